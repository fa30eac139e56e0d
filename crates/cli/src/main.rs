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
//! ```

#![forbid(unsafe_code)]
// They panic where no process reads any more; `command::output` has functions that do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use clap::Parser as _;
use command::{
    exit::{code_of, tell},
    interrupt, knobs,
    logs::{LogFilter, has_colour},
    output::say,
};
use tracing_subscriber::{filter::LevelFilter, fmt::writer::BoxMakeWriter};

mod args;
mod config;
mod daemon;
mod doctor;
mod exit;
mod generate;
mod help;
mod info;
mod log;
mod logs;
mod node;
mod notify;
mod ping;
#[cfg(test)]
mod shown;
mod stat;
mod top;

use args::{Args, Command, LogFormat};

fn main() -> ExitCode {
    let args = Args::parse();
    // A service has something to say now and then; a command has not.
    let is_service = matches!(args.command, Command::Daemon(_));
    let default = if is_service { LevelFilter::INFO } else { LevelFilter::WARN };
    let filter = LogFilter::from_env(default);
    // A service does not wait for its log; without a thread for it, it is as that of a command.
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
    logs::start(filter.targets.clone(), format, writer, is_service, has_colour());
    knobs::warn_about_unknown();
    filter.warn_if_misspelt();
    interrupt::outlive_file_limits();
    let result = run(args.command);
    if let Some(log) = log {
        log.flush();
    }
    code_of(result, exit::kind_of, |error| match logs::is_named() || format == LogFormat::Json {
        true => {
            say(format_args!("{}", logs::note(format, tracing::Level::ERROR, error).trim_end()))
        }
        false => tell(error),
    })
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
    }
}
