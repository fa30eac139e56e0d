//! The `copyrpc-lab` command.
//!
//! ```text
//! copyrpc-lab bench kv      a key-value store over every way to call another node
//! copyrpc-lab bench clients what users write, in each form and language
//! copyrpc-lab bench limit   what the machine can do
//! copyrpc-lab bench verbs   what a NIC makes of it
//! copyrpc-lab bench rpc     what calls cost on top
//! copyrpc-lab bench inproc  queues between threads
//! copyrpc-lab bench ipc     calls between processes
//! copyrpc-lab bench daemons long answers by way of daemons, and short calls beside them
//! copyrpc-lab bench long    what a call with long bodies costs
//! copyrpc-lab report        results of benchmarks, shown again or compared
//! copyrpc-lab sim dct       measurements of a DC transport, simulated
//! copyrpc-lab sim curve     calls over clients per node, each with a core
//! copyrpc-lab sim cluster   daemons and clients in virtual time, with faults
//! copyrpc-lab uverbs run    a verbs program, unmodified, on the software NIC
//! copyrpc-lab nic-report    a NIC for people who do not have it
//! ```

#![forbid(unsafe_code)]
// They panic where no process reads any more; `output` has functions that do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use ::kv::grid::GridError;
use clap::Parser as _;
use command::{
    exit::{FailureKind, code_of, tell},
    interrupt, knobs, logs,
};
use measure::cores::CoresError;

mod args;
#[cfg(feature = "layers")]
mod bench;
#[cfg(feature = "clients")]
mod clients;
mod help;
mod kv;
#[cfg(feature = "nic-report")]
mod nic_report;
mod output;
#[cfg(test)]
#[path = "../../../crates/cli/src/shown.rs"]
mod shown;
#[cfg(feature = "sim")]
mod sim;
#[cfg(feature = "uverbs")]
mod uverbs;
mod version;

use args::{Args, BenchCommand, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = logs::start_of_command();
    let is_child = match args.command {
        #[cfg(feature = "layers")]
        Command::BenchPeer | Command::BenchCaller => true,
        Command::KvProcess => true,
        #[cfg(feature = "clients")]
        Command::BenchClient { .. } => true,
        _ => false,
    };
    if !is_child {
        knobs::warn_about_unknown();
        filter.warn_if_misspelt();
    }
    interrupt::outlive_file_limits();
    code_of(run(args.command), kind_of, tell)
}

/// The kind of an error of benchmarks.
fn kind_of(error: &anyhow::Error) -> Option<FailureKind> {
    if error.is::<GridError>() {
        return Some(FailureKind::Usage);
    }
    if error.is::<CoresError>() {
        return Some(FailureKind::Unavailable);
    }
    #[cfg(feature = "layers")]
    if let Some(error) = error.downcast_ref() {
        return Some(match error {
            bench::WorkError::Nic(error) => command::exit::kind_of_nic(error),
            bench::WorkError::Work { .. } => FailureKind::Unavailable,
        });
    }
    None
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Bench { which: BenchCommand::Kv(args) } => kv::bench(&args),
        #[cfg(feature = "clients")]
        Command::Bench { which: BenchCommand::Clients(args) } => clients::run(&args),
        #[cfg(feature = "layers")]
        Command::Bench { which: BenchCommand::Layer(which) } => bench::run(&which),
        Command::Report(args) => kv::report(&args),
        #[cfg(feature = "sim")]
        Command::Sim { which } => sim::run(&which),
        #[cfg(feature = "uverbs")]
        Command::Uverbs { which } => uverbs::run(&which),
        #[cfg(feature = "nic-report")]
        Command::NicReport(args) => nic_report::run(&args),
        #[cfg(feature = "layers")]
        Command::BenchPeer => bench::peer(),
        #[cfg(feature = "layers")]
        Command::BenchCaller => Ok(::bench::calls::serve_caller()?),
        Command::KvProcess => kv::child(),
        #[cfg(feature = "clients")]
        Command::BenchClient { arguments } => clients::client(&arguments),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn a_missing_core_is_told_apart_from_a_failure() {
        let unavailable = Err::<(), _>(CoresError::TooFew { allowed: 1 }).context("more words");
        assert_eq!(kind_of(&unavailable.unwrap_err()), Some(FailureKind::Unavailable));
        assert_eq!(kind_of(&anyhow::anyhow!("wrong bytes")), None);
    }

    #[cfg(feature = "uverbs")]
    #[test]
    fn the_variables_of_foreign_programs_are_known() {
        for variable in [
            ::uverbs::launch::LIBRARY_ENV,
            ::uverbs::launch::PARENT_ENV,
            ::uverbs::process::EXPLAIN_ENV,
            ::uverbs::process::FABRIC_ENV,
            ::uverbs::process::LINK_ENV,
            ::uverbs::process::STRICT_ENV,
        ] {
            assert!(knobs::is_known(variable), "{variable}");
        }
    }
}
