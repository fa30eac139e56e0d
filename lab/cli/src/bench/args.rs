//! Options of benchmarks of layers.

use std::{net::SocketAddr, path::PathBuf};

use bench::workers::switches::{Grid, SWITCHES, Switch};
use clap::{
    Arg, ArgGroup, ArgMatches, Args as ClapArgs, Command as Clap, FromArgMatches, Id, Subcommand,
};
use command::{
    flags::{KnobFlags, NicKnobs},
    output::file,
};
use measure::cores::Cores;
use protocols::Protocol;

use super::long_calls::LongArgs;
use crate::help::BENCH_HELP;

/// Name of the hidden command that is the other side of a benchmark.
pub(crate) const PEER_COMMAND: &str = "bench-peer";

const VERBS_EXAMPLES: &str = "\
Examples:
  copyrpc-lab bench verbs --quick
  copyrpc-lab bench verbs --cell write-imm --runs 15
  copyrpc-lab bench verbs --json - | jq 'select(.ratio) | [.cell, .ratio]'

All data is checked: sequence numbers and bytes of every small message, the last word of every large \
one, and every byte of what is in memory at the end of a sample. Wrong data ends the run with exit \
code 1.";

const RPC_EXAMPLES: &str = "\
Examples:
  copyrpc-lab bench rpc --quick
  copyrpc-lab bench rpc --transport rc,dc --inline on,off --cell endpoint
  copyrpc-lab bench rpc --flush self-clocked:1,immediate,hold:10us --cell qd256
  copyrpc-lab bench rpc --preset switches --runs 5 --markdown switches.md
  copyrpc-lab bench rpc --nic tcp --server               on one host
  copyrpc-lab bench rpc --nic tcp --client HOST          on another one

Lists of values are multiplied: every combination is measured, and named in its cells. A round trip is \
a call and its answer; a rate counts calls. Ratios: to the raw WRITE_IMM round trip or rate, and (of \
the limit) to the cache-line round trip or stream, all measured in the same run. Every byte of every \
answer is compared; a call that ends otherwise ends the run with exit code 1.";

/// Benchmarks of a layer each.
#[derive(Debug, Subcommand)]
pub(crate) enum LayerCommand {
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
