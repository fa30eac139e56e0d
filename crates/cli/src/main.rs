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
//! copyrpc services      what this node offers
//! copyrpc clients       the processes that call through its daemon
//! copyrpc peers         the other nodes, as it sees them
//! copyrpc drain         lets the daemon of this node end
//! copyrpc clean         removes what dead daemons left
//! copyrpc bench limit   what the machine can do
//! copyrpc bench verbs   what a NIC makes of it
//! copyrpc bench rpc     what calls cost on top
//! copyrpc bench inproc  queues between threads
//! copyrpc bench ipc     calls between processes
//! copyrpc bench daemons long answers by way of daemons, and short calls beside them
//! copyrpc bench kv      a key-value store over every way to call another node
//! copyrpc report        results of the latter, compared
//! copyrpc sim dct       measurements of a DC transport, simulated
//! copyrpc sim cluster   daemons and clients in virtual time, with faults
//! copyrpc uverbs run    a verbs program, unmodified, on the software NIC
//! ```

#![forbid(unsafe_code)]
// They panic where nobody reads any more; `output` has what does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::{io::IsTerminal as _, process::ExitCode};

use clap::Parser as _;
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt::writer::BoxMakeWriter,
};

mod args;
mod bench;
mod config;
mod daemon;
mod doctor;
mod exit;
mod flags;
mod generate;
mod help;
mod info;
mod interrupt;
mod knobs;
mod kv;
mod launch;
mod log;
mod logs;
mod nic;
mod node;
mod notify;
mod output;
mod ping;
mod sim;
mod stat;
mod table;
mod top;
mod uverbs;

use args::{Args, BenchCommand, Command, LogFormat};

fn main() -> ExitCode {
    let args = Args::parse();
    // A service has something to say now and then; a command has not.
    let is_service = matches!(args.command, Command::Daemon(_));
    let default = if is_service { LevelFilter::INFO } else { LevelFilter::WARN };
    let asked = std::env::var_os("RUST_LOG").filter(|asked| !asked.is_empty());
    let parsed = |asked: &std::ffi::OsString| {
        let text = asked.to_str().filter(|text| logs::names_a_level(text))?;
        text.parse::<Targets>().ok()
    };
    let filter = asked.as_ref().map(parsed);
    let is_misspelt = filter == Some(None);
    let filter = filter.flatten().unwrap_or_else(|| Targets::new().with_default(default));
    // Nobody waits for the log of a service; without a thread for it, it is as that of a command.
    let format = match &args.command {
        Command::Daemon(args) => args.log,
        _ => LogFormat::Text,
    };
    let start = || log::Log::start(std::io::stderr(), format).ok();
    let log = is_service.then(start).flatten();
    let writer = match log.clone() {
        Some(log) => BoxMakeWriter::new(log),
        None => BoxMakeWriter::new(std::io::stderr),
    };
    let has_colour = std::io::stderr().is_terminal() && wants_colour();
    logs::start(filter, format, writer, is_service, has_colour);
    if !matches!(args.command, Command::BenchPeer | Command::KvProcess) {
        knobs::warn_about_unknown();
        if is_misspelt {
            tracing::warn!("RUST_LOG makes no sense, so it has no effect; write for example debug");
        }
    }
    interrupt::outlive_file_limits();
    let result = run(args.command);
    if let Some(log) = log {
        log.flush();
    }
    exit::code_of(result)
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
        Command::Services(args) => node::services(&args),
        Command::Clients(args) => node::clients(&args),
        Command::Peers(args) => node::peers(&args),
        Command::Drain(args) => node::drain(&args),
        Command::Clean(args) => node::clean(&args),
        Command::Generate { what, into } => generate::run(what, &into),
        Command::Bench { which: BenchCommand::Limit(args) } => bench::limit(&args),
        Command::Bench { which: BenchCommand::Verbs(args) } => bench::verbs(&args),
        Command::Bench { which: BenchCommand::Rpc(args) } => bench::rpc(&args),
        Command::Bench { which: BenchCommand::Inproc(args) } => bench::inproc(&args),
        Command::Bench { which: BenchCommand::Ipc(args) } => bench::ipc(&args),
        Command::Bench { which: BenchCommand::Daemons(args) } => bench::daemons(&args),
        Command::Bench { which: BenchCommand::Kv(args) } => kv::bench(&args),
        Command::Report(args) => kv::report(&args),
        Command::Sim { which } => sim::run(&which),
        Command::Uverbs { which } => uverbs::run(&which),
        Command::BenchPeer => bench::peer(),
        Command::KvProcess => kv::child(),
    }
}
