//! `copyrpc-lab sim cluster`: the production daemon, driver and protocol in virtual time, with faults.

use std::{
    io::Write as _,
    num::NonZero,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::{Args, builder::RangedU64ValueParser};
use config::units::parse_duration_ns;
use sim::{
    cluster::{self, ClusterWorkload, Outcome, Setup, fault::Fault},
    world::Time,
};

use super::{compared, many::Many, progress::Progress};
use crate::output;
use comfy_table::Table;

pub(super) const HELP: &str = "\
Examples:
  copyrpc-lab sim cluster --seed 7              one run; the seed draws faults
  copyrpc-lab sim cluster --seeds 1000 --twice  many runs, each of them twice
  copyrpc-lab sim cluster --seed 7 --faults crash:1/0/0@200+300
                                              node 1 dies at 200 µs for 300 µs
  copyrpc-lab sim cluster --seeds 1000000 --for-wall 1h --resume seeds.log
                                              as many of them as an hour takes
  copyrpc-lab sim cluster --trace run.json      a timeline for ui.perfetto.dev

A fault is KIND:NODE/PEER/AMOUNT@AT+FOR, times in µs. Kinds: loss, repeat, reorder, cut-fabric, cut-control, \
nic-stall, rnr, torn, revoked, cq-overrun, qp-error, pause, slow, crash, crash-clock-back, client-death, client-pause, clock-rate. When \
all faults are over, everything has to work again. Exit code 1 if anything happened that must not; then the \
run is made smaller as long as it fails, and the last line repeats the smallest one. docs/simulation.md says \
what is checked.";

#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Number of daemons, one per node.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = RangedU64ValueParser::<u32>::new().range(2..=1024))]
    nodes: u32,
    /// Clients of each daemon.
    #[arg(long, value_name = "M", default_value_t = 3, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    clients: u32,
    /// How long clients call, and faults last, in virtual time.
    #[arg(long = "for", value_name = "TIME", default_value = "1ms", value_parser = parse_time)]
    length: Time,
    /// Seed of all random numbers; the first one with `--seeds`.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Runs so many seeds, in threads; all that there is time for with `--for-wall` alone.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Ends when so much real time has passed, with the seeds that were begun.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    for_wall: Option<Duration>,
    /// Threads that run seeds; as many as there are cores.
    #[arg(long, value_name = "T")]
    threads: Option<NonZero<usize>>,
    /// Keeps what was run in the log PATH, and goes on from there if it exists. Several processes with one log share
    /// the work: each seed is run once.
    #[arg(long, value_name = "PATH")]
    resume: Option<PathBuf>,
    /// Runs each seed twice: both have to go the same way.
    #[arg(long)]
    twice: bool,
    /// `swarm`: what the seed draws; `none`; or a list of faults.
    #[arg(long, value_name = "FAULTS", default_value = "swarm", value_parser = parse_faults)]
    faults: Faults,
    /// What clients do: `drawn` by the seed, `full-rings`, `all-sleep`, `incast`, `fair`, `greedy`, `silent`,
    /// `providers`, `direct`.
    #[arg(long, value_name = "NAME", default_value_t)]
    workload: ClusterWorkload,
    /// Writes a timeline in Chrome's format to PATH. One seed only.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["seeds", "for_wall", "resume", "twice"])]
    trace: Option<PathBuf>,
    /// Does not make a run smaller that fails.
    #[arg(long)]
    no_shrink: bool,
}

/// `None`: drawn by the seed.
#[derive(Clone, Debug)]
struct Faults(Option<Vec<Fault>>);

pub(super) fn parse_time(text: &str) -> Result<Time, String> {
    let ns = parse_duration_ns(text).map_err(|error| error.to_string())?;
    let is_possible = (1_000..=10_000_000_000).contains(&ns);
    is_possible.then(|| Time::from_ns(ns)).ok_or_else(|| "1us to 10s are possible".to_owned())
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_duration_ns(text).map(Duration::from_nanos).map_err(|error| error.to_string())
}

fn parse_faults(text: &str) -> Result<Faults, String> {
    let faults = match text {
        "swarm" => None,
        "none" => Some(Vec::new()),
        list => {
            let faults: Result<Vec<Fault>, _> = list.split(',').map(str::parse).collect();
            Some(faults.map_err(|error| error.to_string())?)
        }
    };
    Ok(Faults(faults))
}

/// `copyrpc-lab sim cluster`.
pub(super) fn run(args: &ClusterArgs, progress: &Progress) -> anyhow::Result<()> {
    let ClusterArgs { nodes, clients, length, seed, workload, .. } = *args;
    let setup = Setup { nodes, clients, length, seed, faults: args.faults.0.clone(), workload };
    let is_many = args.for_wall.is_some() || args.resume.is_some();
    let seeds = args.seeds.unwrap_or(if is_many { u64::MAX - seed } else { 1 });
    if is_many || seeds > 1 {
        let many = Many {
            seeds,
            twice: args.twice,
            threads: args.threads,
            for_wall: args.for_wall,
            resume: args.resume.as_deref(),
        };
        let (failed, failure) = many.run(&setup, progress)?.unzip();
        return fail(args, failed.as_ref().unwrap_or(&setup), failure, progress);
    }
    if let Some(path) = &args.trace {
        output::check_file(path)?;
    }
    let started = Instant::now();
    let (outcome, timeline) = cluster::run_with_timeline(&setup)?;
    if let Some(path) = &args.trace {
        output::write_file(path, |file| file.write_all(timeline.as_bytes()))?;
    }
    progress.print(&text_of(&setup, &outcome, started.elapsed().as_secs_f64()))?;
    if args.twice {
        let again = cluster::run(&setup)?;
        anyhow::ensure!(again == outcome, "the second run has trace {:016x}: {setup}", again.trace);
    }
    fail(args, &setup, outcome.failure, progress)
}

/// Tells of a failure, with the line that repeats it.
fn fail(
    args: &ClusterArgs,
    setup: &Setup,
    failure: Option<String>,
    progress: &Progress,
) -> anyhow::Result<()> {
    let Some(failure) = failure else { return Ok(()) };
    let mut smallest = (setup.clone(), failure);
    if !args.no_shrink {
        progress.begin("smaller runs that fail");
        let shrunk =
            cluster::shrink(setup, |_, _| progress.step()).context("cannot repeat the run")?;
        // Two runs that differ cannot be made smaller.
        smallest = shrunk.unwrap_or(smallest);
    }
    let (setup, failure) = smallest;
    anyhow::bail!("{failure}; repeat it with:\n{setup}")
}

#[expect(clippy::cast_precision_loss, reason = "a rate for reading")]
fn text_of(setup: &Setup, outcome: &Outcome, seconds: f64) -> String {
    let mut text = String::new();
    for fault in setup.faults() {
        text.push_str(&format!("fault {fault}\n"));
    }
    let mut ends = compared::numbers(&["calls", "ended with"]);
    for (end, count) in &outcome.ends {
        ends.add_row([count.to_string(), end.to_string()]);
    }
    text.push_str(&format!("{ends}\n\n"));
    let counters = counters_of(outcome);
    let (packets, bytes) = outcome.packets;
    let rate = outcome.events as f64 / seconds.max(1e-9);
    text.push_str(&format!(
        "{counters}\n\n{packets} packets with {bytes} B, {:.3} ms of virtual time; {} events in {seconds:.2} s, \
         {rate:.0} events/s; trace {:016x}\n",
        outcome.end.as_ns() / 1e6,
        outcome.events,
        outcome.trace,
    ));
    text
}

/// Nodes whose counters stand beside each other in a table of 80 columns.
const NODES_SHOWN: usize = 4;

/// Counters of the first nodes, and of all of them together.
fn counters_of(outcome: &Outcome) -> Table {
    let ranks = 0..outcome.counters.len().min(NODES_SHOWN);
    let shown: Vec<_> = ranks.map(|rank| format!("node {rank}")).collect();
    let mut header = vec!["counter", "all"];
    header.extend(shown.iter().map(String::as_str));
    let mut counters = compared::numbers(&header);
    let names = outcome.counters.first().map_or(&[][..], |first| first);
    for (index, (name, _)) in names.iter().enumerate() {
        let values = outcome.counters.iter().map(|node| node[index].1);
        let all = values.clone().sum::<u64>();
        if all > 0 {
            let values = std::iter::once(all).chain(values.take(NODES_SHOWN));
            let values = values.map(|value| value.to_string());
            counters.add_row(std::iter::once((*name).to_owned()).chain(values));
        }
    }
    counters
}
