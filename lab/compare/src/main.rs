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
mod queues;
mod rivals;
mod table;
mod wakes;

use std::{env, error::Error, fs::File, path::PathBuf, process::ExitCode};

use clap::{Parser, ValueEnum};
use measure::cores::Cores;

/// A program that ends at the first failure: a wrong comparison has no numbers.
pub type Fallible<T> = Result<T, Box<dyn Error>>;

/// The same work on copyrpc's queues and calls and on their peers, interleaved in one run
#[derive(Parser)]
#[command(version, after_help = "Peers that are not installed are named with what to install.")]
struct Choice {
    /// What to compare
    #[arg(default_value = "all")]
    what: What,
    /// How often each peer takes its turn at each cell; `kv 0` is a smoke test
    #[arg(default_value_t = 9)]
    rounds: usize,
    /// Only peers whose names contain this, beside what all are compared with
    #[arg(default_value = "", hide_default_value = true)]
    filter: String,
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

    fn run(&self) -> Fallible<()> {
        if let Some(prefix) = &self.rivals {
            rivals::prefer(prefix)?;
        }
        let cores = Cores::choose()?;
        let Self { rounds, filter, .. } = self;
        // Better known before something is measured for minutes.
        let open = |path: &PathBuf| {
            File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()))
        };
        let json = self.json.as_ref().map(open).transpose()?;
        let mut comparison = table::Measurements::default();
        if self.has(What::Queues) {
            queues::compare(cores, *rounds, filter, &mut comparison)?;
        }
        if self.has(What::Calls) {
            comparison.note(rivals::versions());
            calls::compare(cores, *rounds, filter, &mut comparison)?;
        }
        if self.has(What::Kv) {
            key_value::compare(*rounds, filter, &mut comparison)?;
        }
        if self.what != What::Wakes {
            comparison.show(cores, json, self.by_pace)?;
        }
        if self.has(What::Wakes) {
            wakes::compare(cores, *rounds)?;
        }
        Ok(())
    }
}

/// This program runs itself for other processes of a comparison; `None`: it was not called so.
fn run_child() -> Option<Fallible<()>> {
    let mut args = env::args().skip(1);
    match args.next()?.as_str() {
        calls::CHILD => Some(calls::serve()),
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
            ExitCode::FAILURE
        }
    }
}
