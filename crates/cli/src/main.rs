//! The `copyrpc` command.
//!
//! ```text
//! copyrpc info          what is on this machine, and every knob
//! copyrpc config        every knob, and where its value comes from
//! copyrpc daemon        serves the processes of a node
//! copyrpc ping          asks the daemon of another node
//! copyrpc doctor        what would fail here, and what to do about it
//! copyrpc stat          what the daemons of this machine count
//! copyrpc top           the same, live
//! copyrpc bench limit   what the machine can do
//! copyrpc bench verbs   what a NIC makes of it
//! copyrpc bench rpc     what calls cost on top
//! copyrpc bench inproc  queues between threads
//! copyrpc bench ipc     calls between processes
//! copyrpc bench kv      a key-value store over every way to call another node
//! copyrpc report        results of the latter, compared
//! ```

#![forbid(unsafe_code)]
// They panic where nobody reads any more; `output` has what does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::{io::IsTerminal as _, process::ExitCode};

use clap::Parser as _;
use tracing_subscriber::EnvFilter;

mod args;
mod bench;
mod config;
mod daemon;
mod doctor;
mod exit;
mod flags;
mod info;
mod interrupt;
mod knobs;
mod kv;
mod nic;
mod output;
mod ping;
mod stat;
mod table;
mod top;

use args::{Args, BenchCommand, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    // A service has something to say now and then; a command has not.
    let default = if matches!(args.command, Command::Daemon(_)) { "info" } else { "warn" };
    let filter = EnvFilter::try_from_default_env();
    let is_misspelt = filter.is_err() && std::env::var_os(EnvFilter::DEFAULT_ENV).is_some();
    let filter = filter.unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && wants_colour())
        // It would tell of a standard error that nobody reads there, and panic.
        .log_internal_errors(false)
        .without_time()
        .with_target(false)
        .init();
    if !matches!(args.command, Command::BenchPeer | Command::KvProcess) {
        knobs::warn_about_unknown();
        if is_misspelt {
            tracing::warn!("RUST_LOG makes no sense, so it has no effect; write for example debug");
        }
    }
    interrupt::outlive_file_limits();
    exit::code_of(run(args.command))
}

/// As every program has it: <https://no-color.org>.
fn wants_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Info(args) => info::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Daemon(args) => daemon::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Bench { which: BenchCommand::Limit(args) } => bench::limit(&args),
        Command::Bench { which: BenchCommand::Verbs(args) } => bench::verbs(&args),
        Command::Bench { which: BenchCommand::Rpc(args) } => bench::rpc(&args),
        Command::Bench { which: BenchCommand::Inproc(args) } => bench::inproc(&args),
        Command::Bench { which: BenchCommand::Ipc(args) } => bench::ipc(&args),
        Command::Bench { which: BenchCommand::Kv(args) } => kv::bench(&args),
        Command::Report(args) => kv::report(&args),
        Command::BenchPeer => bench::peer(),
        Command::KvProcess => kv::child(),
    }
}
