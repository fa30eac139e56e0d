//! The command line.

use std::{ffi::OsString, fmt::Display, net::SocketAddr, path::PathBuf};

use bench::workers::switches::{Grid, SWITCHES, Switch};
use clap::{
    Arg, ArgGroup, ArgMatches, Args as ClapArgs, Command as Clap, FromArgMatches, Id, Parser,
    Subcommand,
};
use config::units::{parse_bytes, parse_duration_ns};
use measure::cores::Cores;
use protocols::Protocol;

use crate::{
    exit::UsageError,
    flags::{Call, Every, Folder, KnobFlags, Nic, SettingsArgs},
    help::{
        BENCH_HELP, CONFIG_EXAMPLES, DAEMON_EXAMPLES, EXAMPLES, KV_EXAMPLES, RPC_EXAMPLES,
        STAT_EXAMPLES, UVERBS_EXAMPLES, VERBS_EXAMPLES,
    },
    kv::{CHILD_OF_KV, KvArgs, ReportArgs},
    output::file,
    sim::SimCommand,
};

/// Version and the commit it was built from.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_COMMIT"), ")");

/// RPC for RDMA clusters: what is on this machine, and how fast it is.
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
    /// Measure a layer beside its peers and the limits of the machine.
    #[command(after_help = BENCH_HELP)]
    Bench {
        #[command(subcommand)]
        which: BenchCommand,
    },
    /// Show a result of `bench`, or compare two of `bench kv`.
    Report(ReportArgs),
    /// Simulate measurements of hardware, and compare.
    Sim {
        #[command(subcommand)]
        which: SimCommand,
    },
    /// Run verbs programs, unmodified, on the software NIC.
    #[command(after_help = UVERBS_EXAMPLES)]
    Uverbs {
        #[command(subcommand)]
        which: UverbsCommand,
    },
    /// The other side of a benchmark; started by `bench` itself.
    #[command(name = PEER_COMMAND, hide = true)]
    BenchPeer,
    /// A process of `bench kv`; started by it.
    #[command(name = CHILD_OF_KV, hide = true)]
    KvProcess,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UverbsCommand {
    /// Run a program whose libibverbs finds `mlx5_0`.
    Run(UverbsRunArgs),
    /// Show whether programs can run, and what they are refused.
    Doctor,
    /// Run programs that are known to work, two processes each, and show the table.
    Matrix(UverbsMatrixArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct UverbsRunArgs {
    /// Say on standard error what is refused.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Programs see each other only within one fabric.
    #[arg(long, value_name = "NAME")]
    pub(crate) fabric: Option<String>,
    /// Do not say on standard error what hardware would not take of the program's queues.
    #[arg(long)]
    pub(crate) lenient: bool,
    /// Link layer of the port: on InfiniBand it is addressed by LID, on RoCE by GID.
    #[arg(long, value_name = "LINK", default_value = "infiniband", value_parser = ["infiniband", "roce"])]
    pub(crate) link: String,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct UverbsMatrixArgs {
    /// Only lines that contain TEXT.
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// A line does not fail for what hardware would not take of its programs' queues.
    #[arg(long)]
    pub(crate) lenient: bool,
}

/// Name of [`Command::BenchPeer`].
pub(crate) const PEER_COMMAND: &str = "bench-peer";

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// What the machine can do: cache-line round trips and streams, memory copies.
    #[command(after_help = BENCH_HELP)]
    Limit(BenchArgs),
    /// What a NIC does: rates, round trips and bandwidths between two processes.
    #[command(after_help = VERBS_EXAMPLES)]
    Verbs(VerbsArgs),
    /// What calls cost: round trips and rates between two processes, over a matrix of switches.
    #[command(after_help = RPC_EXAMPLES)]
    Rpc(Box<RpcArgs>),
    /// Queues and calls between threads of one process.
    #[command(after_help = BENCH_HELP)]
    Inproc(BenchArgs),
    /// Calls between two processes over shared memory.
    #[command(after_help = BENCH_HELP)]
    Ipc(BenchArgs),
    /// Long answers by way of daemons, and short calls beside them.
    #[command(after_help = BENCH_HELP)]
    Daemons(BenchArgs),
    /// A key-value store over every way to call another node.
    #[command(after_help = KV_EXAMPLES)]
    Kv(Box<KvArgs>),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct InfoArgs {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Nic>,
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
    pub(crate) settings: SettingsArgs<Every>,
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
    pub(crate) settings: SettingsArgs<Every>,
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
    pub(crate) settings: SettingsArgs<Call>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Every>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CleanArgs {
    /// Only say what would be removed.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Folder>,
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
    pub(crate) settings: SettingsArgs<Call>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DoctorArgs {
    /// Print one JSON list instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write to FILE what somebody who has not this machine wants to know of its NIC, as JSON: devices, limits,
    /// conformance by name, the bytes of every operation, raw rates. It takes a minute and uses the NIC.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Every>,
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
    pub(crate) settings: SettingsArgs<Folder>,
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
    pub(crate) settings: SettingsArgs<Folder>,
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

#[derive(Debug, ClapArgs)]
pub(crate) struct VerbsArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    #[command(flatten)]
    pub(crate) nic: KnobFlags<Nic>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct RpcArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    #[command(flatten)]
    pub(crate) nic: KnobFlags<Nic>,
    /// Measure every combination of a grid that has a name: `switches`, 60 combinations of 32 B cells.
    #[arg(long, value_name = "NAME", value_enum, conflicts_with = "GridArgs")]
    pub(crate) preset: Option<RpcPreset>,
    /// Measure these protocols side by side, in one table: copyrpc, erpc, scalerpc.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        value_parser = clap::value_parser!(Protocol),
        conflicts_with_all = ["GridArgs", "preset", "markdown"]
    )]
    pub(crate) protocol: Vec<Protocol>,
    /// Write tables of the switches in Markdown to PATH.
    #[arg(long, value_name = "PATH", value_parser = file())]
    pub(crate) markdown: Option<PathBuf>,
    /// Answer the calls of `--client` on other hosts, which find this one at ADDRESS. For machines without RDMA
    /// with --nic tcp on both.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = SERVER_ADDRESS)]
    #[arg(conflicts_with_all = ["GridArgs", "preset", "markdown", "protocol", "client"])]
    pub(crate) server: Option<SocketAddr>,
    /// Measure calls to the `--server` of HOST, or HOST:PORT: rate, and p50, p99 and p99.9 of their times.
    #[arg(long, value_name = "HOST")]
    #[arg(conflicts_with_all = ["GridArgs", "preset", "markdown", "protocol"])]
    pub(crate) client: Option<String>,
    #[command(flatten)]
    grid: GridArgs,
}

/// Where `bench rpc --server` listens unless it is told.
const SERVER_ADDRESS: &str = "0.0.0.0:7471";

impl RpcArgs {
    /// The server that is to be called.
    pub(crate) fn server_address(host: &str) -> String {
        let has_port = host.rsplit_once(':').is_some_and(|(host, port)| {
            port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
        });
        let (_, port) = SERVER_ADDRESS.rsplit_once(':').unwrap_or_default();
        if has_port { host.to_owned() } else { format!("{host}:{port}") }
    }
}

/// Grids that have a name.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum RpcPreset {
    /// Everything but the flush policies.
    Switches,
}

impl RpcArgs {
    /// Every combination of the switches.
    pub(crate) fn grid(&self) -> Grid {
        if let Some(RpcPreset::Switches) = self.preset {
            return Grid::of_switches();
        }
        self.grid.0.clone()
    }
}

/// A list of values for each switch of a worker, made from their table.
#[derive(Clone, Debug)]
struct GridArgs(Grid);

impl ClapArgs for GridArgs {
    fn group_id() -> Option<Id> {
        Some("GridArgs".into())
    }

    fn augment_args(command: Clap) -> Clap {
        let group = ArgGroup::new("GridArgs").args(SWITCHES.each_ref().map(|s| s.name));
        let arg = |switch: &'static Switch| {
            let arg =
                Arg::new(switch.name).long(switch.name).value_name("LIST").help(switch.meaning);
            let parse = move |text: &str| switch.check(text).map(|()| text.to_owned());
            let arg = arg.value_delimiter(',').value_parser(parse).default_value(switch.default());
            arg.help_heading("Switches (comma-separated lists)")
        };
        command.group(group.multiple(true)).args(SWITCHES.iter().map(arg))
    }

    fn augment_args_for_update(command: Clap) -> Clap {
        Self::augment_args(command)
    }
}

impl FromArgMatches for GridArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let list = |switch: &Switch| {
            let values = matches.get_many::<String>(switch.name);
            values.into_iter().flatten().cloned().collect()
        };
        Ok(Self(Grid(SWITCHES.each_ref().map(list))))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct BenchArgs {
    /// Fewer sizes, shorter samples: below 20 s.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write JSON lines to PATH; `-` is standard output, and the tables go to standard error.
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
    /// Show numbers for each pace of the machine apart, instead of one of all samples.
    #[arg(long)]
    pub(crate) by_pace: bool,
    /// Samples per cell [default: 7; with --quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: Option<u16>,
    /// Only cells whose name contains TEXT, and what they are compared with.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) cell: String,
    /// The two cores, as `INITIATOR,RESPONDER` [default: two that are
    /// allowed, of different physical cores if there are such].
    #[arg(long, value_name = "A,B")]
    pub(crate) cpus: Option<Cores>,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, error::ErrorKind};

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    /// This command and all below it.
    fn every_command() -> Vec<clap::Command> {
        let mut all = vec![Args::command()];
        let mut next = 0;
        while next < all.len() {
            let below = all[next].get_subcommands().cloned().collect::<Vec<_>>();
            all.extend(below);
            next += 1;
        }
        all
    }

    /// What follows the options, of every command.
    fn afterwords() -> Vec<String> {
        let commands = every_command();
        commands.iter().filter_map(|c| Some(c.get_after_help()?.to_string())).collect()
    }

    /// Every document, from the root down.
    fn documents() -> Vec<String> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folders = ["", "docs", "docs/protocol"].map(|folder| root.join(folder));
        let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let files = files.map(|entry| entry.unwrap().path());
        let documents = files.filter(|file| file.extension().is_some_and(|e| e == "md"));
        documents.map(|file| std::fs::read_to_string(file).unwrap()).collect()
    }

    /// Scripts of an earlier implementation called commands that were gone.
    #[test]
    fn pitfall_31_every_command_that_the_documents_show_exists() {
        let texts = [documents(), afterwords()].concat();
        let commands = texts.iter().flat_map(|text| shown_commands(text)).collect::<Vec<_>>();
        assert!(commands.len() > 60, "{commands:?}");
        for command in commands {
            let parsed = Args::try_parse_from(command.split_whitespace());
            let is_known = parsed.as_ref().map_or_else(
                |error| error.exit_code() == 0 || NAMED.contains(&error.kind()),
                |_| true,
            );
            assert!(is_known, "`{command}`: {}", parsed.unwrap_err());
        }
    }

    /// `copyrpc bench` and `copyrpc report` name commands; without more they cannot be called.
    const NAMED: [ErrorKind; 2] =
        [ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, ErrorKind::MissingRequiredArgument];

    /// Lines and spans of code that call this program, as `copyrpc …` or through cargo, without what
    /// follows.
    fn shown_commands(text: &str) -> Vec<String> {
        let code = text.lines().flat_map(|line| {
            let spans = line.split('`').skip(1).step_by(2);
            spans.chain([line.trim().trim_start_matches("$ ")])
        });
        let arguments = |code: &str| {
            let arguments = match code.strip_prefix("copyrpc ") {
                Some(manifest) if manifest.starts_with("= ") => return None,
                Some(arguments) => arguments,
                None if code.starts_with("cargo run") && !code.contains(" -p ") => {
                    code.split_once(" -- ")?.1
                }
                None => return None,
            };
            let end = arguments.find(|c| "|#`".contains(c)).unwrap_or(arguments.len());
            // In help, what the command does stands two blanks behind it.
            let arguments = arguments[..end].split("  ").next()?;
            Some(format!("copyrpc {arguments}"))
        };
        code.filter_map(arguments).collect()
    }

    /// At 80 columns nothing is broken where it should not be.
    #[test]
    fn help_fits_a_terminal_of_80_columns() {
        for text in afterwords() {
            for pair in text.lines().collect::<Vec<_>>().windows(2) {
                let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
                let is_heading = pair[0].ends_with(':');
                let is_one = is_heading || !is_prose(pair[0]) || !is_prose(pair[1]);
                assert!(is_one, "a paragraph is one line, which clap wraps: {pair:?}");
            }
            for line in text.lines().filter(|line| line.starts_with(' ')) {
                assert!(line.chars().count() <= 80, "{line}");
            }
        }
    }

    #[test]
    fn the_default_switches_are_the_defaults_of_a_worker() {
        let args = Args::try_parse_from(["copyrpc", "bench", "rpc"]).unwrap();
        let Command::Bench { which: BenchCommand::Rpc(args) } = args.command else { panic!() };
        assert_eq!(args.grid(), Grid::default());
    }

    #[test]
    fn impossible_arguments_are_usage_errors() {
        for bad in [
            &["copyrpc", "bench", "limit", "--runs", "0"][..],
            &["copyrpc", "bench", "limit", "--cpus", "1,1"],
            &["copyrpc", "bench"],
            &["copyrpc", "bench", "rpc", "--flush", "sometimes"],
            &["copyrpc", "bench", "rpc", "--dcis", "1,257"],
            &["copyrpc", "bench", "rpc", "--signal-interval", "0"],
            &["copyrpc", "bench", "rpc", "--signal-interval", "65"],
            &["copyrpc", "bench", "rpc", "--markdown", "-"],
            &["copyrpc", "bench", "kv", "--markdown", "-"],
            &["copyrpc", "report", "a", "--markdown", "-"],
            &["copyrpc", "report", "a", "--html", "-"],
        ] {
            assert_eq!(Args::try_parse_from(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }
}
