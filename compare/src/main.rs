//! The same work on copyrpc's queues and calls and on their peers: one command, one table per cell.
//!
//! ```console
//! $ cargo run --release [queues|calls|wakes|kv|all [ROUNDS [NAME_FILTER]]]
//! ```
//!
//! Two threads (*queues*, *wakes*) or two processes (*calls*), pinned to two cores, or the processes of two
//! nodes (*kv*; 0 rounds are a smoke test). In each round every peer
//! takes its turn, so what the machine does to one it does to all. Each sample lies between two line
//! ping-pongs, and is filed, reduced and shown as `copyrpc bench` does it (crate `measure`): ratios compare
//! medians of one regime.

mod calls;
mod key_value;
mod queues;
mod table;
mod wakes;

use std::{env, error::Error, process::ExitCode};

use measure::cores::Cores;

/// A program that ends at the first failure: a wrong comparison has no numbers.
pub type Fallible<T> = Result<T, Box<dyn Error>>;

const ROUNDS: usize = 9;

/// What to compare, as named on the command line.
struct Choice {
    what: String,
    rounds: usize,
    filter: String,
}

fn run(choice: &Choice) -> Fallible<()> {
    let cores = Cores::choose()?;
    let Choice { what, rounds, filter } = choice;
    let mut comparison = table::Measurements::default();
    if matches!(what.as_str(), "queues" | "all") {
        queues::compare(cores, *rounds, filter, &mut comparison)?;
    }
    if matches!(what.as_str(), "calls" | "all") {
        calls::compare(cores, *rounds, filter, &mut comparison)?;
    }
    if matches!(what.as_str(), "kv" | "all") {
        key_value::compare(*rounds, filter, &mut comparison)?;
    }
    if what != "wakes" {
        comparison.show(cores, *rounds)?;
    }
    if matches!(what.as_str(), "wakes" | "all") {
        wakes::compare(cores, *rounds)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut args = env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "all".into());
    let outcome = match what.as_str() {
        calls::CHILD => calls::serve(),
        key_value::OUR_CHILD => key_value::our_child(),
        key_value::CHILD => key_value::child(&args.next().unwrap_or_default()),
        "queues" | "calls" | "wakes" | "kv" | "all" => {
            let rounds = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(ROUNDS);
            run(&Choice { what, rounds, filter: args.next().unwrap_or_default() })
        }
        _ => Err(format!("`{what}` is none of queues, calls, wakes, kv, all").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
