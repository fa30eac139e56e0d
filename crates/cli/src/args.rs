//! The command line.

use std::{fmt::Display, net::SocketAddr, path::PathBuf};

use clap::{Args as ClapArgs, Parser, Subcommand};
use command::{
    exit::UsageError,
    flags::{CallKnobs, EveryKnob, FolderKnobs, NicKnobs, SettingsArgs},
};
use config::units::{parse_bytes, parse_duration_ns};

use crate::help::{CONFIG_EXAMPLES, DAEMON_EXAMPLES, EXAMPLES, STAT_EXAMPLES};

/// Version and the commit it was built from.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_COMMIT"), ")");

/// RPC for RDMA clusters: the daemon of a node, and what operators ask it.
#[derive(Debug, Parser)]
#[command(name = "copyrpc", version = VERSION, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show devices, the NIC in use, and every knob with its value and origin.
    Info(InfoArgs),
    /// Show the knobs that are set, or all of them, and where each value comes from.
    #[command(after_help = CONFIG_EXAMPLES)]
    Config(ConfigArgs),
    /// Serve the processes of this node: forward their calls, answer those of other nodes.
    #[command(after_help = DAEMON_EXAMPLES)]
    Daemon(DaemonArgs),
    /// Ask the daemon of a rank, through that of this node, for an answer.
    Ping(PingArgs),
    /// Show what would fail on this machine, and what to do about it.
    Doctor(DoctorArgs),
    /// Show what the daemons of this machine count.
    #[command(after_help = STAT_EXAMPLES)]
    Stat(StatArgs),
    /// Watch the daemons of this machine.
    Top(TopArgs),
    /// Show what this node offers.
    Services(NodeArgs),
    /// Show the processes that call through the daemon of this node, or offer services.
    Clients(NodeArgs),
    /// Show the other nodes, as the daemon of this one sees them.
    Peers(NodeArgs),
    /// Let the daemon of this node end: it takes nothing new, and calls in flight end.
    Drain(DrainArgs),
    /// Remove counters and sockets that dead daemons left.
    Clean(CleanArgs),
    /// Write completions or man pages, for packages.
    #[command(hide = true)]
    Generate {
        /// Kind of file to write.
        what: Generated,
        /// Into which folder.
        into: PathBuf,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct InfoArgs {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<NicKnobs>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ConfigArgs {
    /// Also show where each value comes from, and what it may be.
    #[arg(long)]
    pub(crate) show_origin: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<EveryKnob>,
}

/// Flag of daemons that `--fork` started.
pub(crate) const END_WITH_PARENT: &str = "end-with-parent";

#[derive(Debug, ClapArgs)]
pub(crate) struct DaemonArgs {
    /// Start N daemons on this machine, each a node of its own, and stop them together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) fork: Option<u32>,
    /// How to log to standard error.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) log: LogFormat,
    /// End when the process that started this one ends.
    #[arg(long = END_WITH_PARENT, hide = true)]
    pub(crate) end_with_parent: bool,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<EveryKnob>,
}

/// How a daemon logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}

/// The kinds of file that `generate` writes.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Generated {
    /// For bash, fish and zsh.
    Completions,
    /// A page per command.
    Man,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct NodeArgs {
    /// Print one JSON list instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<CallKnobs>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<EveryKnob>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CleanArgs {
    /// Only say what would be removed.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<FolderKnobs>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PingArgs {
    /// Rank to ask.
    pub(crate) rank: u32,
    /// Times to ask.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// Print one JSON object instead of text; times are in nanoseconds.
    #[arg(long)]
    pub(crate) json: bool,
    /// Bytes to send along.
    #[arg(long, value_name = "BYTES", default_value = "32", value_parser = ping_bytes)]
    pub(crate) bytes: u16,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<CallKnobs>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DoctorArgs {
    /// Print one JSON list instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<EveryKnob>,
}

/// Which daemons of the runtime folder are shown.
#[derive(Debug, Default, ClapArgs)]
pub(crate) struct OnlyArgs {
    /// Only daemons of this job.
    #[arg(long, value_name = "JOB")]
    pub(crate) job: Option<String>,
    /// Only daemons of this instance; an empty name is that of the daemon that has none.
    #[arg(long, value_name = "INSTANCE")]
    pub(crate) instance: Option<String>,
}

impl OnlyArgs {
    /// Whether a daemon is shown that is called JOB, or JOB@INSTANCE.
    pub(crate) fn shows(&self, name: &str) -> bool {
        let (job, instance) = name.split_once('@').unwrap_or((name, ""));
        self.job.as_deref().is_none_or(|wanted| wanted == job)
            && self.instance.as_deref().is_none_or(|wanted| wanted == instance)
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct StatArgs {
    /// Print one JSON list instead of tables.
    #[arg(long, conflicts_with = "prometheus")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) only: OnlyArgs,
    /// Print the text format of Prometheus.
    #[arg(long, conflicts_with = "interval")]
    pub(crate) prometheus: bool,
    /// Print OpenMetrics: the same, and per service, per peer and per status what the daemons that live tell.
    #[arg(long, conflicts_with_all = ["interval", "json", "prometheus"])]
    pub(crate) openmetrics: bool,
    /// Serve the text format of Prometheus at http://ADDRESS/metrics, a loopback address; to those that accept
    /// it, OpenMetrics.
    #[arg(long, value_name = "ADDRESS")]
    #[arg(conflicts_with_all = ["json", "prometheus", "openmetrics", "interval"])]
    pub(crate) serve: Option<SocketAddr>,
    /// Show what happens during TIME instead of what happened since the start.
    #[arg(long, value_name = "TIME")]
    interval: Option<String>,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<FolderKnobs>,
}

impl StatArgs {
    pub(crate) fn interval_ns(&self) -> anyhow::Result<Option<u64>> {
        self.interval.as_deref().map(interval_ns).transpose()
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TopArgs {
    /// Time between two looks.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: String,
    #[command(flatten)]
    pub(crate) only: OnlyArgs,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<FolderKnobs>,
}

impl TopArgs {
    pub(crate) fn interval_ns(&self) -> anyhow::Result<u64> {
        interval_ns(&self.interval)
    }
}

fn ping_bytes(text: &str) -> Result<u16, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    u16::try_from(bytes).map_err(|_| format!("is too large; at most {} B", u16::MAX))
}

fn interval_ns(text: &str) -> anyhow::Result<u64> {
    let usage_error = |error: &dyn Display| UsageError(format!("--interval {text} {error}"));
    match parse_duration_ns(text).map_err(|error| usage_error(&error))? {
        0 => Err(usage_error(&"is no time at all").into()),
        interval_ns => Ok(interval_ns),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::shown;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    /// Scripts of an earlier implementation called commands that were gone.
    #[test]
    fn pitfall_31_every_command_that_the_documents_show_exists() {
        shown::assert_exist(&Args::command(), &["cargo run --release --"], 30);
    }

    #[test]
    fn help_fits_a_terminal_of_80_columns() {
        shown::assert_help_fits(&Args::command());
    }
}
