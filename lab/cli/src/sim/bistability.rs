//! `copyrpc-lab sim bistability`: throughput of another daemon, beside what was measured.

use std::path::PathBuf;

use clap::Args;
use sim::{
    actors::reference_daemon::Mutant,
    machine::{CONNECT_X7, DelegationProfile},
    scenarios::{
        bistability::{self, Outcome},
        phases::{self, Found, LIFETIME_WATCH, Lifetime, SteadyState, Swept},
        tried::{self, ApproachGain, ReferenceWords},
    },
};

use super::{compared, constants::ConstantArgs, progress::Progress};

pub(super) const HELP: &str = "\
Examples:
  copyrpc-lab sim bistability           every number beside its reference
  copyrpc-lab sim bistability --json    one JSON object per number
  copyrpc-lab sim bistability --states  where starts lead, and a sweep
  copyrpc-lab sim bistability --tried   approaches to small batches, compared

The reference was measured on ConnectX-7 with a daemon of another design, which is simulated here: one ring for \
all clients of a node, one batch per endpoint and turn. The times of machine and clients come from other \
measurements, the daemon's own were fitted to the table of 32 calls per client. Exit code 1 if a claimed number is off by more \
than 15 % or, with --states, if most seeds of a start end in another state than the table says. docs/simulation.md says \
what the model misses.";

#[derive(Debug, Args)]
pub(crate) struct BistabilityArgs {
    /// Seed of all random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object per number.
    #[arg(long)]
    json: bool,
    /// Shows where starts lead to, nodes and depth that go down and up again, and the thresholds.
    #[arg(long, conflicts_with_all = ["json", "page"])]
    states: bool,
    /// Shows what each approach against small batches brings that was tried on that daemon or proposed for it.
    #[arg(long, conflicts_with_all = ["json", "page", "states"])]
    tried: bool,
    /// Writes a page with pictures of reference and simulation to PATH.
    #[arg(long, value_name = "PATH")]
    page: Option<PathBuf>,
    #[command(flatten)]
    constants: ConstantArgs,
}

/// `copyrpc-lab sim bistability`.
pub(super) fn run(args: &BistabilityArgs, progress: &Progress) -> anyhow::Result<()> {
    let profile = args.constants.apply(&CONNECT_X7)?;
    if args.states {
        return states(&profile, args.seed, progress);
    }
    if args.tried {
        return tried(&profile, args.seed, progress);
    }
    progress.begin("simulations");
    let outcome = bistability::run_on(&profile, args.seed, |done, of| progress.at(done, of));
    if let Some(path) = &args.page {
        compared::write_page(path, "bistability", &outcome.rows)?;
    }
    if args.json {
        progress.print_json(&outcome.rows)?;
    } else {
        progress.print(&text_of(&outcome))?;
    }
    compared::judge(&outcome.rows)
}

fn text_of(outcome: &Outcome) -> String {
    let Outcome { seed, events, trace, .. } = outcome;
    let rows = compared::text_of(&outcome.rows);
    let count = bistability::INDEPENDENT;
    format!(
        "{rows}\nthe predicted numbers are {count} independent quantities\n\n\
         seeds from {seed}, {events} turns, trace {trace:016x}\n"
    )
}

fn states(profile: &DelegationProfile, seed: u64, progress: &Progress) -> anyhow::Result<()> {
    progress.begin("starts");
    let found = phases::diagram(profile, Mutant::None, seed, |done, of| progress.at(done, of));
    progress.begin("lifetimes");
    let lifetimes = phases::lifetimes(profile, seed, |done, of| progress.at(done, of));
    progress.begin("sweeps of nodes and depth");
    let sweeps = [phases::nodes_down_and_up(), phases::depth_down_and_up()];
    let sweeps = sweeps.map(|stages| sweep_of(&phases::sweep(profile, &stages, seed)));
    let threshold = phases::threshold(profile);
    let upper_to = threshold.upper_to.map_or("any number of".to_owned(), |nodes| nodes.to_string());
    progress.print(&format!(
        "states with 32 calls per client\n\n{}\n\nhow long the upper state lasts after a burst, seeds from {seed}, steps of {} ms\n\n{}\n\n\
         one world, nodes and calls changed on the way\n\n{}\n\n{}\n\n\
         by the formula the lower state exists from {} nodes on, and the upper one up to\n{upper_to} nodes\n",
        diagram_of(&found),
        LIFETIME_WATCH.look_us / 1000.0,
        lifetimes_of(&lifetimes),
        sweeps[0],
        sweeps[1],
        threshold.lower_from,
    ))?;
    let others = found.iter().filter(|found| !found.is_as_expected());
    let others: Vec<_> = others.map(|found| format!("{:?}", found.expected.condition)).collect();
    anyhow::ensure!(others.is_empty(), "most seeds end in another state: {}", others.join("; "));
    Ok(())
}

fn tried(profile: &DelegationProfile, seed: u64, progress: &Progress) -> anyhow::Result<()> {
    progress.begin("approaches");
    let all = tried::run(profile, seed, |done, of| progress.at(done, of));
    let mut table =
        compared::numbers(&["approach", "nodes", "calls", "reference", "simulated", ""]);
    let change = |[before, after]: [f64; 2]| format!("{before:.2} → {after:.2}");
    for gain in all {
        let is_missed = gain.is_missed();
        let ApproachGain { name, nodes, depth, reference, words, mops } = gain;
        let in_words = words.map_or("", |ReferenceWords::Stalls| "stalls").to_owned();
        table.add_row([
            name.to_owned(),
            nodes.to_string(),
            depth.to_string(),
            reference.map_or(in_words, change),
            change(mops),
            if is_missed { "missed".to_owned() } else { String::new() },
        ]);
    }
    progress.print(&format!(
        "M/s of all nodes without and with each approach, after a burst\n\n{table}\n\nmedians of three seeds from {seed}\n"
    ))
}

const fn name(state: SteadyState) -> &'static str {
    match state {
        SteadyState::Lower => "lower",
        SteadyState::Upper => "upper",
    }
}

fn diagram_of(found: &[Found]) -> String {
    let mut table =
        compared::numbers(&["nodes", "start", "budget", "state", "seeds", "M/s per node", ""]);
    for Found { expected, agreeing, mops_per_node } in found {
        let least = mops_per_node.iter().copied().fold(f64::INFINITY, f64::min);
        let most = mops_per_node.iter().copied().fold(0.0, f64::max);
        table.add_row([
            expected.condition.nodes.to_string(),
            format!("{:?}", expected.condition.start).to_lowercase(),
            expected.condition.poll_budget.to_string(),
            name(expected.state).to_owned(),
            format!("{agreeing}/{}", mops_per_node.len()),
            format!("{least:.2}-{most:.2}"),
            if expected.is_measured { "measured".into() } else { String::new() },
        ]);
    }
    table.to_string()
}

fn lifetimes_of(all: &[Lifetime]) -> String {
    let mut table =
        compared::numbers(&["nodes", "seeds that fell", "first, ms", "median, ms", "last, ms"]);
    for Lifetime { nodes, ended_us, seeds } in all {
        // Seeds that have not fallen last longer than any that has.
        let of = |index: usize| match ended_us.get(index) {
            Some(us) => format!("{:.2}", us / 1000.0),
            None => format!("> {:.0}", LIFETIME_WATCH.end_us / 1000.0),
        };
        table.add_row([
            nodes.to_string(),
            format!("{}/{seeds}", ended_us.len()),
            of(0),
            of(seeds / 2),
            of(seeds.saturating_sub(1)),
        ]);
    }
    table.to_string()
}

fn sweep_of(swept: &[Swept]) -> String {
    let mut table = compared::numbers(&["nodes", "calls per client", "M/s per node", "state"]);
    for Swept { stage, mops_per_node } in swept {
        table.add_row([
            stage.nodes.to_string(),
            stage.depth.to_string(),
            format!("{mops_per_node:.2}"),
            name(SteadyState::of(*mops_per_node)).to_owned(),
        ]);
    }
    table.to_string()
}
