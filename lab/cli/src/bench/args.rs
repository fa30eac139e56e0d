//! Options of benchmarks of layers.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use bench::{
    by_protocol::ScalerpcSettings,
    dc_plan::DcGrid,
    dc_reads::{INITIATORS_MAX, TARGETS_MAX, WINDOW_MAX},
    plan::IpcGrid,
    workers::switches::{CallLoad, Grid, SWITCHES, Switch},
};
use clap::{
    Arg, ArgGroup, ArgMatches, Args as ClapArgs, Command as Clap, FromArgMatches, Id, Subcommand,
};
use command::{
    exit::UsageError,
    flags::{KnobFlags, NicKnobs},
    output::file,
};
use config::units::{parse_bytes, parse_duration_ns};
use measure::cores::Cores;
use protocols::Protocol;

use super::{long_calls::LongArgs, rounds::RoundArgs, segments::SegmentsArgs, shown::Files};
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

const SEGMENTS_HELP: &str = "\
Examples:
  copyrpc-lab bench segments
  copyrpc-lab bench segments --clients 6 --qd 16 --runs 12 --json rounds.jsonl

Each round runs bench limit, bench ipc, bench rpc, the work of the store on one thread, and bench kv with two daemons, as \
commands of their own. The layers of a round predict the store of that round: nothing is fitted. Where each process has \
a core, a daemon's side of each segment bounds the rate, or the round trips of the calls in flight do; else both sides of \
all segments share the cores, and each switch between processes, as often as the store counted it, takes half a round \
trip of two processes on one core. The NIC is that of COPYRPC_NIC.";

/// Benchmarks of a layer each.
#[derive(Debug, Subcommand)]
pub(crate) enum LayerCommand {
    /// What the machine can do: cache-line round trips and streams, memory copies, a core that two share.
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
    Ipc(IpcArgs),
    /// Long answers by way of daemons, and short calls beside them.
    #[command(after_help = BENCH_HELP)]
    Daemons(BenchArgs),
    /// What a call with long bodies costs: copies, READs, turns and page faults, and its time on two cores.
    Long(LongArgs),
    /// What the layers predict of the key-value store, beside what it does.
    #[command(after_help = SEGMENTS_HELP)]
    Segments(SegmentsArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct VerbsArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    /// READs over DC in flight, 1 to 1024: only such cells, with the same, with changing and with random targets.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=i64::from(WINDOW_MAX)))]
    dc_window: Vec<u16>,
    /// Initiators of READs over DC, 1 to 256.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=i64::from(INITIATORS_MAX)))]
    dc_initiators: Vec<u16>,
    /// Targets of READs over DC, 1 to 64.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=i64::from(TARGETS_MAX)))]
    dc_targets: Vec<u16>,
    #[command(flatten)]
    pub(crate) nic: KnobFlags<NicKnobs>,
}

impl VerbsArgs {
    /// What is asked of READs over DC.
    pub(crate) fn dc_grid(&self) -> DcGrid {
        DcGrid {
            windows: self.dc_window.clone(),
            initiators: self.dc_initiators.clone(),
            targets: self.dc_targets.clone(),
        }
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct IpcArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    /// Clients, 1 to 1024: only calls of 56 B of so many, which one thread polls in turn, and of as many processes.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: Vec<u16>,
    /// Calls in flight of each client, 1 to 4096; those that --ring has no slots for are left out.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: Vec<u16>,
    /// Slots of each ring, a power of two from 1 to 4096 [default: 64].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ring_slots)]
    ring: Vec<u16>,
}

impl IpcArgs {
    /// What is asked for.
    pub(crate) fn grid(&self) -> IpcGrid {
        let Self { clients, depth, ring, .. } = self;
        IpcGrid { clients: clients.clone(), depths: depth.clone(), rings: ring.clone() }
    }
}

fn ring_slots(text: &str) -> Result<u16, String> {
    let slots = text.parse::<u16>().ok().filter(|slots| slots.is_power_of_two() && *slots <= 4096);
    slots.ok_or_else(|| "a power of two from 1 to 4096 is possible".to_owned())
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
    /// Connections, 1 to 1024: short calls over so many, instead of the three loads of the table.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    #[arg(conflicts_with_all = ["server", "client"])]
    pub(crate) endpoints: Vec<u16>,
    /// Calls in flight over all connections, 1 to 4096 [default: one for each]; combinations with fewer are left out.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=4096))]
    #[arg(conflicts_with_all = ["server", "client"])]
    pub(crate) depth: Vec<u16>,
    #[command(flatten)]
    pub(crate) scalerpc: ScalerpcArgs,
    #[command(flatten)]
    grid: GridArgs,
}

/// What can be set about ScaleRPC, for `--protocol`.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "ScaleRPC, with --protocol")]
pub(crate) struct ScalerpcArgs {
    /// Clients of a group, 1 to 16384 [default: as many as fit 32 MiB, up to 40].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16384), requires = "protocol")]
    group: Option<u16>,
    /// Turn of a group, 1us to 1s [default: 100us].
    #[arg(long, value_name = "TIME", value_parser = turn, requires = "protocol")]
    turn: Option<Duration>,
    /// Blocks of a client's zone, 1 to 64 [default: its calls in flight].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64), requires = "protocol")]
    slots: Option<u8>,
    /// Bytes of a block, 128B to 64MiB in steps of 64 [default: 4KiB, or what the body takes if that is longer].
    #[arg(long, value_name = "BYTES", value_parser = block, requires = "protocol")]
    block: Option<u32>,
}

impl ScalerpcArgs {
    pub(crate) fn settings(&self) -> ScalerpcSettings {
        let Self { group, turn, slots, block } = *self;
        let turn_ns = turn.and_then(|turn| u64::try_from(turn.as_nanos()).ok());
        ScalerpcSettings { group, turn_ns, slots, block_bytes: block }
    }
}

fn turn(text: &str) -> Result<Duration, String> {
    let ns = parse_duration_ns(text).map_err(|error| error.to_string())?;
    let is_possible = (1_000..=1_000_000_000).contains(&ns);
    is_possible.then(|| Duration::from_nanos(ns)).ok_or_else(|| "1us to 1s are possible".to_owned())
}

fn block(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    let bytes = u32::try_from(bytes).ok().filter(|bytes| bytes.is_multiple_of(64));
    let bytes = bytes.filter(|bytes| (128..=64 << 20).contains(bytes));
    bytes.ok_or_else(|| "128B to 64MiB in steps of 64 are possible".to_owned())
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
    /// Every combination of the switches, and of endpoints and calls in flight.
    pub(crate) fn grid(&self) -> Grid {
        let mut grid = match self.preset {
            Some(RpcPreset::Switches) => Grid::of_switches(),
            None => self.grid.0.clone(),
        };
        if self.has_loads() {
            let endpoints = if self.endpoints.is_empty() { &[1][..] } else { &self.endpoints };
            grid.loads = match &self.depth[..] {
                [] => endpoints.iter().flat_map(|&one| CallLoad::grid(&[one], &[one])).collect(),
                depths => CallLoad::grid(endpoints, depths),
            };
        }
        grid
    }

    /// Refuses combinations that have no cell, or that would be measured without what they name.
    pub(crate) fn check(&self) -> Result<(), UsageError> {
        let grid = self.grid();
        if let (true, Some(fewest)) = (grid.loads.is_empty(), self.endpoints.iter().min()) {
            let problem =
                "no combination of --endpoints and --depth has a call for each connection";
            return Err(UsageError(format!("{problem}: name a --depth of {fewest} or more")));
        }
        let without_effect = grid.without_effect().map(|reason| UsageError(reason.to_owned()));
        without_effect.map_or(Ok(()), Err)
    }

    /// Whether endpoints or calls in flight are named.
    pub(crate) fn has_loads(&self) -> bool {
        !self.endpoints.is_empty() || !self.depth.is_empty()
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
        Ok(Self(Grid { switches: SWITCHES.each_ref().map(list), ..Grid::default() }))
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
    /// Write a page with a picture and the tables to PATH.
    #[arg(long, value_name = "PATH", value_parser = file())]
    pub(crate) html: Option<PathBuf>,
    /// Show numbers for each pace of the machine apart, instead of one of all samples.
    #[arg(long)]
    pub(crate) by_pace: bool,
    /// Also count cycles, instructions, misses of caches, lines of other cores, changes of the core and page faults per
    /// operation, on both sides, as far as the machine counts them.
    #[arg(long)]
    pub(crate) counters: bool,
    #[command(flatten)]
    pub(crate) rounds: RoundArgs,
    /// Only cells whose name contains TEXT, and what they are compared with.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) cell: String,
    /// The two cores, as `INITIATOR,RESPONDER` [default: two that are
    /// allowed, of different physical cores if there are such].
    #[arg(long, value_name = "A,B")]
    pub(crate) cpus: Option<Cores>,
}

impl BenchArgs {
    /// Where results go.
    pub(crate) fn files(&self) -> Files<'_> {
        Files { json: self.json.as_deref(), html: self.html.as_deref() }
    }
}
