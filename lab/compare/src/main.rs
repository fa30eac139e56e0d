//! The same work on copyrpc's queues and calls and on their peers: one command, one table per cell.
//!
//! ```console
//! $ cargo run --release -- --help
//! ```
//!
//! Two threads (*queues*, *wakes*) or two processes (*calls*), pinned to two cores, or the processes of two
//! nodes (*kv*). In each round every peer
//! takes its turn, in random order, so what the machine does to one it does to all. Samples are reduced and shown as
//! `copyrpc-lab bench` does it (crate `measure`): a ratio is that of two samples of one round, and the median of the rounds
//! is shown with its interval.

mod calls;
mod key_value;
mod leftovers;
mod plan;
mod queues;
mod rivals;
mod table;
mod tool_process;
mod wakes;

use std::{env, error::Error, fs::File, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use copyrpc_command::{exit::Interrupted, interrupt::stop_at_signal};
use measure::{cores::Cores, rounds::Rounds};

use self::plan::ComparisonPlan;

/// Exit code of a run that a signal has ended.
const INTERRUPTED: u8 = 130;

/// A program that ends at the first failure: a wrong comparison has no numbers.
pub type Fallible<T> = Result<T, Box<dyn Error>>;

/// The same work on copyrpc's queues and calls and on their peers, interleaved in one run
#[derive(Parser)]
#[command(version, after_help = "Peers that are not installed are named with what to install.")]
struct Choice {
    /// What to compare
    #[arg(default_value = "all")]
    what: What,
    /// How often each peer takes its turn at each cell; `kv 0` is a smoke test [default: until all ratios are known to
    /// 5 % or --time is over, 6 at least, which an interval takes; of wakes 9]
    rounds: Option<u32>,
    /// Only peers whose names contain this, beside what all are compared with
    #[arg(default_value = "", hide_default_value = true)]
    filter: String,
    /// Time of each comparison, about; 6 rounds are measured in any case
    #[arg(long, value_name = "TIME", default_value = "8m", value_parser = plan::time, conflicts_with = "rounds")]
    time: Duration,
    /// Bytes of a request of calls, or of a value of kv [default: 56, 1KiB, 4KiB, 64KiB, 1MiB of calls; 64, 4KiB of kv]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = plan::size)]
    sizes: Vec<usize>,
    /// Also writes the results here, one JSON object per line; not those of `wakes`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A prefix with other builds of UCX and libfabric than the system's: bin/ucx_perftest, bin/fi_pingpong, lib/libucp.so.0,
    /// such as folder `libucx` of the Python package libucx-cu12
    #[arg(long, value_name = "DIR")]
    rivals: Option<PathBuf>,
    /// One table for each pace of the machine instead of one for all
    #[arg(long)]
    by_pace: bool,
}

/// Rounds of `wakes`.
const WAKES: u32 = 9;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Queues between two threads
    Queues,
    /// Calls between two processes
    Calls,
    /// How long it takes to wake a sleeper
    Wakes,
    /// The key-value workload of `copyrpc-lab bench kv`
    Kv,
    /// All of them
    All,
}

impl Choice {
    fn has(&self, what: What) -> bool {
        self.what == what || self.what == What::All
    }

    fn plan(&self, cores: Cores) -> Fallible<ComparisonPlan> {
        let Self { rounds, time, filter, sizes, .. } = self;
        Ok(ComparisonPlan {
            cores,
            rounds: rounds.map_or(Rounds::Known(*time), Rounds::Exactly),
            filter: filter.clone(),
            sizes: sizes.clone(),
            stop: stop_at_signal()?,
        })
    }

    fn run(&self) -> Fallible<()> {
        if let Some(prefix) = &self.rivals {
            rivals::prefer(prefix)?;
        }
        let cores = Cores::choose()?;
        let plan = self.plan(cores)?;
        // Processes of the terminal get its signal, too, so it is the cause of an error that the run may have met.
        self.compare(&plan).map_err(|error| plan.go_on().err().unwrap_or(error))
    }

    fn compare(&self, plan: &ComparisonPlan) -> Fallible<()> {
        // Better known before something is measured for minutes.
        let open = |path: &PathBuf| {
            File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()))
        };
        let json = self.json.as_ref().map(open).transpose()?;
        let mut comparison = table::Measurements::default();
        let measured = self.measure(plan, &mut comparison);
        if plan.go_on().is_ok() {
            measured?;
        }
        if self.what != What::Wakes && comparison.has_samples() {
            comparison.show(plan.cores, json, self.by_pace)?;
        }
        plan.go_on()?;
        if self.has(What::Wakes) {
            wakes::compare(plan, self.rounds.unwrap_or(WAKES))?;
        }
        Ok(())
    }

    fn measure(&self, plan: &ComparisonPlan, comparison: &mut table::Measurements) -> Fallible<()> {
        if self.has(What::Queues) {
            queues::compare(plan, comparison)?;
        }
        if self.has(What::Calls) {
            comparison.note(rivals::versions());
            calls::compare(plan, comparison)?;
        }
        if self.has(What::Kv) {
            key_value::compare(plan, comparison)?;
        }
        Ok(())
    }
}

/// This program runs itself for other processes of a comparison; `None`: it was not called so.
fn run_child() -> Option<Fallible<()>> {
    let mut args = env::args().skip(1);
    match args.next()?.as_str() {
        calls::CHILD => Some(calls::serve()),
        tool_process::CHILD => Some(tool_process::become_tool(args)),
        key_value::OUR_CHILD => Some(key_value::our_child()),
        key_value::CHILD => Some(key_value::child(&args.next().unwrap_or_default())),
        _ => None,
    }
}

fn main() -> ExitCode {
    match run_child().unwrap_or_else(|| Choice::parse().run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            if error.is::<Interrupted>() { ExitCode::from(INTERRUPTED) } else { ExitCode::FAILURE }
        }
    }
}
