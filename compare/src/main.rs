//! The same work on copyrpc's queues and calls and on their peers: one command, one table per cell.
//!
//! ```console
//! $ cargo run --release [queues|calls|wakes|all [ROUNDS [NAME_FILTER]]]
//! ```
//!
//! Two threads (*queues*, *wakes*) or two processes (*calls*), pinned to two cores. In each round every peer
//! takes its turn, so what the machine does to one it does to all, and ratios are taken within a
//! round. Each sample lies between two line ping-pongs: it counts as *near* or *far* only if both
//! probes say so (on a virtual machine the two cores may share a cache in one minute and not in the
//! next).

mod calls;
mod queues;
mod table;
mod wakes;

use std::{env, error::Error, process::ExitCode};

use copyrpc_bench::cores::Cores;

/// A program that ends at the first failure: a wrong comparison has no numbers.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

const ROUNDS: usize = 9;

/// What to compare, as named on the command line.
struct Choice {
    what: String,
    rounds: usize,
    filter: String,
}

fn run(choice: &Choice) -> Outcome<()> {
    let cores = Cores::choose()?;
    let Choice { what, rounds, filter } = choice;
    println!("cores {cores}, {rounds} rounds");
    if matches!(what.as_str(), "queues" | "all") {
        queues::compare(cores, *rounds, filter)?;
    }
    if matches!(what.as_str(), "calls" | "all") {
        calls::compare(cores, *rounds, filter)?;
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
        "queues" | "calls" | "wakes" | "all" => {
            let rounds = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(ROUNDS);
            run(&Choice { what, rounds, filter: args.next().unwrap_or_default() })
        }
        _ => Err(format!("`{what}` is none of queues, calls, wakes, all").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
