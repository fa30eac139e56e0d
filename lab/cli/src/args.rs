//! The command line.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf};

use bench::workers::switches::{Grid, SWITCHES, Switch};
use clap::{
    Arg, ArgGroup, ArgMatches, Args as ClapArgs, Command as Clap, FromArgMatches, Id, Parser,
    Subcommand,
};
use command::{
    flags::{KnobFlags, NicKnobs},
    output::file,
};
use measure::cores::Cores;
use protocols::Protocol;

use crate::{
    help::{BENCH_HELP, EXAMPLES, KV_EXAMPLES, RPC_EXAMPLES, UVERBS_EXAMPLES, VERBS_EXAMPLES},
    kv::{CHILD_OF_KV, KvArgs, ReportArgs},
    long_calls::LongArgs,
    sim::SimCommand,
};

/// Version and the commit it was built from.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_COMMIT"), ")");

/// The laboratory of copyrpc: how fast it is here, and what it would be elsewhere.
#[derive(Debug, Parser)]
#[command(name = "copyrpc-lab", version = VERSION, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
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
    /// Write to FILE, as JSON, what a person without this machine wants to know of its NIC: devices, limits,
    /// conformance by name, the bytes of every operation, raw rates. It takes a minute and uses the NIC.
    NicReport(NicReportArgs),
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
    /// The adapter: `vf` has short queues and no atomics, and its InfiniBand port needs global route headers;
    /// `adaptive-routing` places WRITEs that are under way in any order.
    #[arg(long, value_name = "NAME", default_value = "connectx", value_parser = ["connectx", "vf", "adaptive-routing"])]
    pub(crate) profile: String,
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
    /// What a call with long bodies costs: copies, READs, turns and page faults, and its time on two cores.
    Long(LongArgs),
    /// A key-value store over every way to call another node.
    #[command(after_help = KV_EXAMPLES)]
    Kv(Box<KvArgs>),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct NicReportArgs {
    /// The file.
    #[arg(value_name = "FILE", value_parser = file())]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) nic: KnobFlags<NicKnobs>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct VerbsArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    #[command(flatten)]
    pub(crate) nic: KnobFlags<NicKnobs>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct RpcArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    #[command(flatten)]
    pub(crate) nic: KnobFlags<NicKnobs>,
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

/// The default address of `bench rpc --server`.
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
    use clap::CommandFactory as _;

    use super::*;
    use crate::shown;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_command_of_the_laboratory_that_the_documents_show_exists() {
        shown::assert_exist(&Args::command(), &["cargo lab"], 60);
    }

    #[test]
    fn help_fits_a_terminal_of_80_columns() {
        shown::assert_help_fits(&Args::command());
    }

    #[test]
    fn the_default_switches_are_the_defaults_of_a_worker() {
        let args = Args::try_parse_from(["copyrpc-lab", "bench", "rpc"]).unwrap();
        let Command::Bench { which: BenchCommand::Rpc(args) } = args.command else { panic!() };
        assert_eq!(args.grid(), Grid::default());
    }

    #[test]
    fn impossible_arguments_are_usage_errors() {
        for bad in [
            &["copyrpc-lab", "bench", "limit", "--runs", "0"][..],
            &["copyrpc-lab", "bench", "limit", "--cpus", "1,1"],
            &["copyrpc-lab", "bench"],
            &["copyrpc-lab", "bench", "rpc", "--flush", "sometimes"],
            &["copyrpc-lab", "bench", "rpc", "--dcis", "1,257"],
            &["copyrpc-lab", "bench", "rpc", "--signal-interval", "0"],
            &["copyrpc-lab", "bench", "rpc", "--signal-interval", "65"],
            &["copyrpc-lab", "bench", "rpc", "--markdown", "-"],
            &["copyrpc-lab", "bench", "kv", "--markdown", "-"],
            &["copyrpc-lab", "report", "a", "--markdown", "-"],
            &["copyrpc-lab", "report", "a", "--html", "-"],
        ] {
            assert_eq!(Args::try_parse_from(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }
}
