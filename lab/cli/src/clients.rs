//! `copyrpc-lab bench clients`.

use std::{path::PathBuf, time::Duration};

use bench::clients::{self as forms, Clients};
use clap::Args as ClapArgs;
use measure::{cores::Cores, progress::StepProgress, results::Results, schedule};
use nics::Selection;

use crate::{
    bench::{rounds::RoundArgs, shown},
    output,
};
use command::{exit::UsageError, interrupt::stop_at_signal};
use memory::sync::Ordering;

/// Name of the hidden command that is a client.
pub(crate) const CLIENT_COMMAND: &str = "bench-client";
/// Duration of a sample.
const SAMPLE: Duration = Duration::from_millis(60);
/// The same, to be quick.
const SAMPLE_QUICK: Duration = Duration::from_millis(20);

const NOTES: [&str; 2] = [
    "here/, there/: the service is on the client's node, or on the other one; one/: one call at a time, \
     in-flight-16/: sixteen in flight",
    "each client is a process that gets and puts values of 64 B and checks every byte; daemons, and providers that \
     `serve`, are threads of one process; nothing is pinned",
];

pub(crate) const EXAMPLES: &str = "\
Examples:
  copyrpc-lab bench clients
  copyrpc-lab bench clients --cell there/one --runs 31

Rows: blocking (Client), typed (service!), tokio (TokioClient), c (copyrpc.h) and python (the package) with one call \
at a time; pipeline (Pipeline), tokio, c and python with sixteen in flight. A ratio is to the first row of its group, in \
the same round: the median of the rounds, with the 95 % interval of the sign test. Clients in C are compiled by cc, those \
in Python run in python3; a row that cannot be measured is named with the reason. A wrong answer ends the run with exit \
code 1.";

#[derive(Debug, ClapArgs)]
pub(crate) struct ClientsArgs {
    /// Fewer and shorter samples.
    #[arg(long)]
    quick: bool,
    /// Write JSON lines to PATH; `-` is standard output, and the tables go to standard error.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Show numbers for each pace of the machine apart, instead of one of all samples.
    #[arg(long)]
    by_pace: bool,
    #[command(flatten)]
    rounds: RoundArgs,
    /// Only rows whose name contains TEXT, and what they are compared with.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    cell: String,
}

pub(crate) fn run(args: &ClientsArgs) -> anyhow::Result<()> {
    args.json
        .as_deref()
        .filter(|path| path.as_os_str() != "-")
        .map_or(Ok(()), output::check_file)?;
    // Without two cores nothing is measured, and the exit code says so.
    Cores::choose()?;
    let sample = if args.quick { SAMPLE_QUICK } else { SAMPLE };
    let rounds = args.rounds.plan(args.quick);
    let mut clients = Clients::start(vec![CLIENT_COMMAND.into()], &args.cell, sample, None)?;
    let cells = clients.cells();
    if cells.is_empty() {
        let problem = format!("no row's name contains `{}`", args.cell);
        let absent = clients.absent.join("; ");
        return Err(UsageError(format!("{problem} {absent}").trim_end().to_owned()).into());
    }
    let cores = os::affinity::allowed_cores()?.len();
    let nic = Selection::from_env();
    let header = output::header("clients", nic.name(), cores, "nothing".to_owned());
    let mut progress = StepProgress::new("samples", rounds.samples(cells.len()));
    let stop = stop_at_signal()?;
    let mut samples = Vec::new();
    let is_known = shown::is_enough(&cells);
    let ended = schedule::interleave_into(&mut clients, rounds, is_known, &mut samples, |cell| {
        progress.step(cells[cell].name.clone());
        !stop.load(Ordering::Relaxed)
    });
    drop(progress);
    let interruption = shown::interruption(&stop, ended, samples.len())?;
    let mut results = Results::new(header, &cells, &samples, &[]);
    results.notes.extend(clients.absent.iter().cloned());
    results.notes.extend(NOTES.map(str::to_owned));
    let files = shown::Files { json: args.json.as_deref(), html: None };
    shown::write_until(results, interruption, args.by_pace, files)
}

/// A client.
pub(crate) fn client(arguments: &[String]) -> anyhow::Result<()> {
    Ok(forms::run(arguments)?)
}
