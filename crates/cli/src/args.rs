//! The command line.

use std::{ffi::OsString, fmt::Display, net::SocketAddr, path::PathBuf};

use bench::{
    cores::Cores,
    workers::switches::{Carrier, Flush, Grid, Switch},
};
use clap::{
    Args as ClapArgs, Parser, Subcommand,
    builder::{PathBufValueParser, TypedValueParser},
};
use node::config::units::parse_duration_ns;

use crate::{
    exit::Senseless,
    flags::{Call, Every, Folder, KnobFlags, Nic, SettingsArgs},
    kv::{KvArgs, ReportArgs},
};

/// Version and the commit it was built from.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_COMMIT"), ")");

// What follows the options in `--help`. A paragraph is one line, which is wrapped as wide as the terminal is.

const EXAMPLES: &str = "\
Examples:
  copyrpc info                          devices, the NIC in use, every knob
  copyrpc bench limit                   how fast two cores here can talk at all
  copyrpc bench verbs --quick           the NIC, in some seconds
  copyrpc bench inproc                  queues between threads
  copyrpc bench ipc --cell round-trip   calls between processes
  copyrpc bench verbs --json run.jsonl  tables here, JSON lines there
  copyrpc bench rpc                     calls between two processes
  copyrpc bench kv                      a key-value store over every backend
  copyrpc report A B                    is B faster than A, or is it chance?

Exit codes:
  0  done
  1  it failed: nobody answers, a benchmark failed, or its data arrived wrong
  2  the command line, a variable or the file of knobs makes no sense
  3  this machine lacks something: two cores, the NIC, or what `doctor` found

Every knob is a flag of `daemon` and `config`, a variable COPYRPC_NAME, and a line of the TOML file \
that --config or COPYRPC_CONFIG names; `copyrpc config` lists them.

RUST_LOG sets what is logged to standard error (error, warn, info, debug); default: warn, of `daemon` \
info.";

const CONFIG_EXAMPLES: &str = "\
Examples:
  copyrpc config                       every knob and its value
  copyrpc config --show-origin         and where that comes from
  copyrpc config --dead-after 1s       whether a daemon would start with it";

const DAEMON_EXAMPLES: &str = "\
Examples:
  copyrpc daemon                       one node, for processes of this machine
  copyrpc daemon --fork 4              four nodes on this machine
  srun --ntasks-per-node=1 copyrpc daemon --rendezvous n:7000 --secret-file FILE

SIGTERM and SIGINT let calls in flight end, for at most --drain-timeout. A second SIGINT ends at once.";

const STAT_EXAMPLES: &str = "\
Examples:
  copyrpc stat                         of each since its start, dead or not
  copyrpc stat --interval 10s          during the next ten seconds
  copyrpc stat --serve 127.0.0.1:9464  for Prometheus";

const BENCH_HELP: &str = "\
Two processes, each pinned to a core of its own, measure together; without two cores nothing is \
measured. Every sample lies between two probes: the round trip of two cache lines tells whether the \
two cores share a cache (near, below 300 ns) or not (far), or are two threads of one core (twin, below \
65 ns). Samples between probes that disagree are dropped and counted. Ratios compare medians of one regime.";

const VERBS_EXAMPLES: &str = "\
Examples:
  copyrpc bench verbs --quick
  copyrpc bench verbs --cell write-imm --runs 15
  copyrpc bench verbs --json - | jq 'select(.ratio) | [.cell, .regime, .ratio]'

All data is checked: sequence numbers and bytes of every small message, the last word of every large \
one, and every byte of what is in memory at the end of a sample. Wrong data ends the run with exit \
code 1.";

const RPC_EXAMPLES: &str = "\
Examples:
  copyrpc bench rpc --quick
  copyrpc bench rpc --transport rc,dc --inline on,off --cell endpoint
  copyrpc bench rpc --flush self-clocked:1,immediate,hold:10us --cell qd256
  copyrpc bench rpc --preset switches --runs 5 --markdown switches.md

Lists of values are multiplied: every combination is measured, and named in its cells. A round trip is \
a call and its answer; a rate counts calls. Ratios: to the raw WRITE_IMM round trip or rate, and (of \
the limit) to the cache-line round trip or stream, all measured in the same run. Every byte of every \
answer is compared; a call that ends otherwise ends the run with exit code 1.";

const KV_EXAMPLES: &str = "\
Examples:
  copyrpc bench kv                                two nodes, four clients each
  copyrpc bench kv --clients 1,2,4,8 --qd 1,32    a grid: lists multiply
  copyrpc bench kv --preset places,switches       grids that have a name
  copyrpc bench kv --pace open:50000              latency under a fixed load
  copyrpc bench kv --verify full --mix 50:10:20   are the answers linearizable?

All processes of a run are started together and measured over the same interval. Every byte of every \
answer is checked by the client that asked; a wrong answer or a process that fails ends the run with \
exit code 1 and is named. Results of cores near each other and far apart are kept apart. SIGINT (Ctrl-C) \
and SIGTERM end the session; what was measured until then is written, and the exit code is 1.";

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
    /// Measure.
    #[command(after_help = BENCH_HELP)]
    Bench {
        #[command(subcommand)]
        which: BenchCommand,
    },
    /// Show a result of `bench kv`, or compare two.
    Report(ReportArgs),
    /// The other side of a benchmark; started by `bench` itself.
    #[command(name = PEER_COMMAND, hide = true)]
    BenchPeer,
    /// A process of `bench kv`; started by it.
    #[command(name = CHILD_OF_KV, hide = true)]
    KvProcess,
}

/// Name of [`Command::BenchPeer`].
pub(crate) const PEER_COMMAND: &str = "bench-peer";
/// Name of [`Command::KvProcess`].
pub(crate) const CHILD_OF_KV: &str = "kv-process";

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
    /// End when the process that started this one ends.
    #[arg(long = END_WITH_PARENT, hide = true)]
    pub(crate) end_with_parent: bool,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Every>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PingArgs {
    /// Rank to ask.
    pub(crate) rank: u32,
    /// Times to ask.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// Bytes to send along.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(crate) bytes: u16,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Call>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DoctorArgs {
    /// Print one JSON list instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Every>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct StatArgs {
    /// Print one JSON list instead of tables.
    #[arg(long, conflicts_with = "prometheus")]
    pub(crate) json: bool,
    /// Print the text format of Prometheus.
    #[arg(long, conflicts_with = "interval")]
    pub(crate) prometheus: bool,
    /// Serve the text format of Prometheus at http://ADDRESS/metrics, a loopback address.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["json", "prometheus", "interval"])]
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
    pub(crate) settings: SettingsArgs<Folder>,
}

impl TopArgs {
    pub(crate) fn interval_ns(&self) -> anyhow::Result<u64> {
        interval_ns(&self.interval)
    }
}

fn interval_ns(text: &str) -> anyhow::Result<u64> {
    let senseless = |error: &dyn Display| Senseless(format!("--interval {text} {error}"));
    match parse_duration_ns(text).map_err(|error| senseless(&error))? {
        0 => Err(senseless(&"is no time at all").into()),
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
    /// Write tables of the switches in Markdown to PATH.
    #[arg(long, value_name = "PATH", value_parser = file())]
    pub(crate) markdown: Option<PathBuf>,
    #[command(flatten)]
    grid: GridArgs,
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
        let GridArgs { transport, inline, dcis, doorbell_batching, srq, signal_interval, flush } =
            self.grid.clone();
        Grid { transport, dcis, inline, doorbell_batching, srq, signal_interval, flush }
    }
}

#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Switches (comma-separated lists)")]
struct GridArgs {
    /// A queue pair per endpoint (rc), or a few initiators and one target for all (dc).
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "rc")]
    transport: Vec<Carrier>,
    /// Short batches inside the work queue entry, or gathered by the NIC.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "on")]
    inline: Vec<Switch>,
    /// Initiators, 1 to 256; for dc only.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    dcis: Vec<u16>,
    /// One doorbell for all batches of a poll, or one each.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "on")]
    doorbell_batching: Vec<Switch>,
    /// One receive queue for all endpoints, or one each; for rc only.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "on")]
    srq: Vec<Switch>,
    /// A completion at least every so many batches, 1 to 64.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "16")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    signal_interval: Vec<u16>,
    /// When batches are posted: self-clocked:N, immediate, hold:TIME, adaptive-hold:N,
    /// rtt-hold:FACTOR, poll-budget:N, coalesce:TIME.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "self-clocked:2")]
    flush: Vec<Flush>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct BenchArgs {
    /// Fewer sizes, shorter samples: below 20 s.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write JSON lines to PATH; `-` is standard output, and the tables go to standard error.
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
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

/// A path that is not `-`, which elsewhere is standard output and here would be a file of this name.
pub(crate) fn file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.as_os_str() == "-" {
        true => Err("standard output has the tables; name a file"),
        false => Ok(path),
    })
}

/// This process's command line, for the record.
pub(crate) fn command_line() -> String {
    let mut words = std::env::args_os().map(|word: OsString| word.to_string_lossy().into_owned());
    let program = words.next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default().to_owned();
    std::iter::once(name).chain(words).collect::<Vec<_>>().join(" ")
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
