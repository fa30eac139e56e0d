//! `copyrpc-lab sim`: measurements of hardware, and clusters with faults, simulated.

mod bistability;
mod cluster;
mod compared;
mod constants;
mod curve;
mod many;
mod mutants;
mod progress;
mod prototypes;
mod scale;
mod scalerpc;
mod seed_log;
mod seeds;
mod sensitivity;
mod steady;
mod two_rank;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use constants::ConstantArgs;
use progress::Progress;
use sim::{
    machine::CONNECT_IB,
    scenarios::{
        dct::{self, Outcome},
        leave_one_out,
    },
};

use crate::output;

const DCT_HELP: &str = "\
Examples:
  copyrpc-lab sim dct                    every number beside its reference
  copyrpc-lab sim dct --seed 7 --json -  one JSON object per number
  copyrpc-lab sim dct --leave-one-out    what the other numbers say of each

The reference was measured on Connect-IB by dct-bench of FaSST (OSDI 2016). 18 constants of the model were fitted \
to all rows but the predicted one, which are 22 independent numbers. Exit code 1 if a number is off by more \
than 15 %. The same seed gives the same numbers on every machine. docs/simulation.md describes the model.";

#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// READs over DC transport: rates and latencies against the targets of each READ.
    #[command(after_help = DCT_HELP)]
    Dct(DctArgs),
    /// Delegation at 2 to 32 nodes, with the daemon of the measurements: two steady states.
    #[command(after_help = bistability::HELP)]
    Bistability(bistability::BistabilityArgs),
    /// One and two ranks with 16 clients: counters, phases, throughput, and what would explain them.
    #[command(after_help = two_rank::HELP)]
    TwoRank(two_rank::TwoRankArgs),
    /// Raw operations and pipelined calls of one machine with itself.
    #[command(after_help = two_rank::RAW_HELP)]
    Raw(two_rank::RawArgs),
    /// Every measurement that the project started from, beside what a model has.
    #[command(after_help = seeds::HELP)]
    Seeds(seeds::SeedsArgs),
    /// Which numbers of a model move with which constant, and which combinations they determine.
    #[command(after_help = sensitivity::HELP)]
    Sensitivity(sensitivity::SensitivityArgs),
    /// Models that are wrong on purpose: what checks notice of each.
    #[command(after_help = mutants::HELP)]
    Mutants(mutants::MutantsArgs),
    /// Production daemons with a machine's times: whether they do as much however they began.
    #[command(after_help = steady::HELP)]
    Steady(steady::SteadyArgs),
    /// Calls per second over clients per node, each with a core: the curve of `bench kv`, simulated.
    #[command(after_help = curve::HELP)]
    Curve(curve::CurveArgs),
    /// ScaleRPC beside a pool per client, on a NIC that keeps few connections.
    #[command(after_help = scalerpc::HELP)]
    Scalerpc(scalerpc::ScalerpcArgs),
    /// Two designs that are not built: answers straight to clients, a queue pair for a hot peer.
    #[command(after_help = prototypes::HELP)]
    Prototypes(prototypes::PrototypesArgs),
    /// Daemons, clients and their network in virtual time, with faults: every answer is checked.
    #[command(alias = "fuzz")]
    #[command(after_help = cluster::HELP)]
    Cluster(cluster::ClusterArgs),
    /// Many daemons without faults: events per second, memory, calls.
    #[command(after_help = scale::HELP)]
    Scale(scale::ScaleArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DctArgs {
    /// Seed of all random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write one JSON object per number to PATH; `-`: standard output, instead of the table.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Writes a page with pictures of reference and simulation to PATH.
    #[arg(long, value_name = "PATH")]
    page: Option<PathBuf>,
    /// Fits constants again without each number, and shows how far it is off then.
    #[arg(long, conflicts_with_all = ["json", "page", "set", "profile"])]
    leave_one_out: bool,
    #[command(flatten)]
    constants: ConstantArgs,
}

/// `copyrpc-lab sim`.
pub(crate) fn run(command: &SimCommand) -> anyhow::Result<()> {
    let progress = &Progress::new("simulations");
    match command {
        SimCommand::Dct(args) => dct(args, progress),
        SimCommand::Bistability(args) => bistability::run(args, progress),
        SimCommand::TwoRank(args) => two_rank::run(args, progress),
        SimCommand::Raw(args) => two_rank::run_raw(args, progress),
        SimCommand::Seeds(args) => seeds::run(args, progress),
        SimCommand::Sensitivity(args) => sensitivity::run(args, progress),
        SimCommand::Mutants(args) => mutants::run(args, progress),
        SimCommand::Steady(args) => steady::run(args, progress),
        SimCommand::Curve(args) => curve::run(args, progress),
        SimCommand::Scalerpc(args) => scalerpc::run(args, progress),
        SimCommand::Prototypes(args) => prototypes::run(args, progress),
        SimCommand::Cluster(args) => cluster::run(args, progress),
        SimCommand::Scale(args) => scale::run(args, progress),
    }
}

fn dct(args: &DctArgs, progress: &Progress) -> anyhow::Result<()> {
    if args.leave_one_out {
        return left_out(args.seed, progress);
    }
    if let Some(path) = args.json.as_deref().filter(|path| *path != Path::new("-")) {
        output::check_file(path)?;
    }
    progress.begin("loads");
    let profile = args.constants.apply(&CONNECT_IB)?;
    let outcome = dct::run_on(&profile, args.seed, |done, of| progress.at(done, of));
    if let Some(path) = &args.page {
        compared::write_page(path, "dct", &outcome.rows)?;
    }
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => progress.print_json(&outcome.rows)?,
        path => {
            if let Some(path) = path {
                let json = json_of(&outcome)?;
                output::write_file(path, |file| file.write_all(json.as_bytes()))?;
            }
            progress.print(&text_of(&outcome))?;
        }
    }
    compared::judge(&outcome.rows)
}

fn left_out(seed: u64, progress: &Progress) -> anyhow::Result<()> {
    progress.begin("steps");
    let rows = leave_one_out::run(seed, |done, of| progress.at(done, of))?;
    let mut table = compared::numbers(&["number", "reference", "error", "left out", "share"]);
    for row in &rows {
        let without = if row.is_determined_by_others() {
            format!("{:+.1} %", 100.0 * row.error())
        } else {
            "alone".to_owned()
        };
        table.add_row([
            compared::named(&row.row.what, row.row.unit),
            compared::number(row.row.reference),
            format!("{:+.1} %", 100.0 * row.row.error()),
            without,
            format!("{:.2}", row.share),
        ]);
    }
    progress.print(&format!(
        "{table}\n\nleft out: error with constants that were fitted without the numbers of its simulation; alone: others do \
         not determine it; share: its own part in a fit with it; seed {seed}\n"
    ))
}

fn text_of(outcome: &Outcome) -> String {
    let Outcome { seed, events, trace, .. } = outcome;
    let table = compared::text_of(&outcome.rows);
    format!("{table}\n\nseed {seed}, {events} events, trace {trace:016x}\n")
}

fn json_of(outcome: &Outcome) -> anyhow::Result<String> {
    let lines: Result<Vec<_>, _> = outcome.rows.iter().map(serde_json::to_string).collect();
    let mut text = lines.context("cannot write JSON")?.join("\n");
    text.push('\n');
    Ok(text)
}
