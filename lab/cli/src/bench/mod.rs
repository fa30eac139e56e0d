//! `copyrpc-lab bench`.

use std::{net::TcpListener, path::Path, time::Duration};

use anyhow::Context as _;
use bench::{
    beside,
    dc_plan::{self, DcGrid},
    parts,
    plan::{self, Planned},
    process_pair::{ChildSide, ProcessPair},
    selected,
    suite::{self, Suite},
    workers::matrix,
};
use measure::{
    cores::{Cores, CoresError},
    progress::StepProgress,
    results::{Aim, Cell, Goal, Results},
    schedule,
};

use nics::Selection;
use protocols::Protocol;

use command::{
    exit::{Interrupted, UsageError},
    interrupt::stop_at_signal,
    knobs, nic,
    table::table,
};
use memory::sync::Ordering;

use crate::output;

pub(crate) mod args;
mod long_calls;
pub(crate) mod rounds;
mod segments;
pub(crate) mod shown;
mod work;

use args::{BenchArgs, IpcArgs, LayerCommand, PEER_COMMAND, RpcArgs, VerbsArgs};
pub(crate) use work::WorkError;
use work::open_work;

/// Duration of a sample.
const WINDOW: Duration = Duration::from_millis(60);
/// The same, to be quick.
const WINDOW_QUICK: Duration = Duration::from_millis(20);

/// What a preset measures: sizes have a cell for each combination too.
const SMALL_CELLS: &str = "/32B";

/// What `bench verbs` is measured against. A line is the two-line round trip around the sample.
const AIMS: [Aim; 3] = [
    Aim {
        cell: "round-trip/rc-write-imm/32B",
        text: "a 32 B WRITE_IMM round trip takes, of the two-line round trip, at most",
        goal: Goal::AtMost(2.0),
    },
    Aim {
        cell: "rate/rc-write-imm/32B/doorbell-batched",
        text: "a posted 32 B WRITE_IMM takes, of the two-line round trip, at most",
        goal: Goal::LinesAtMost(0.56),
    },
    Aim {
        cell: "bandwidth/rc-write/1MiB",
        text: "a 1 MiB WRITE reaches, of memcpy, at least",
        goal: Goal::AtLeast(0.8),
    },
];

/// How READs over DC are to be read.
const DC_NOTES: [&str; 2] = [
    "dc-read: 32 B from a random place by one thread, both ends compared; latency: READs in flight over their rate",
    "reference of dc-read: machines with Connect-IB cards, 14 threads each and 140 of an incast; alone and static: one thread",
];
/// The same, of a NIC that cannot.
const NO_DC_NOTES: [&str; 1] = ["the NIC has no DC, so no READs over it were measured"];

/// What `bench rpc` is measured against.
const RPC_AIMS: [Aim; 2] = [
    Aim {
        cell: "rpc/1-endpoint-qd1/32B",
        text: "a 32 B call with one in flight takes, of the raw WRITE_IMM round trip, at most",
        goal: Goal::AtMost(1.5),
    },
    Aim {
        cell: "rpc/8-endpoints-qd256/32B",
        text: "a call over 8 endpoints with 256 in flight takes, of the two-line round trip, at most",
        goal: Goal::LinesAtMost(0.33),
    },
];

/// What `bench ipc` is measured against.
const IPC_AIMS: [Aim; 1] = [Aim {
    cell: "ipc/round-trip/56B",
    text: "a 56 B round trip takes, of the slot round trip, at most",
    goal: Goal::AtMost(1.3),
}];

/// What `bench inproc` is measured against.
const INPROC_NOTES: [&str; 2] = [
    "lines: cache lines that an item, a round trip or a call moves, as designed; rates: queue full",
    "more threads than cores share them in turn: such cells say how sleeping works",
];

/// What `bench ipc` is measured against.
const IPC_NOTES: [&str; 3] = [
    "lines: cache lines that a call moves, as designed, while both sides poll",
    "clients: of one process, which polls them in turn",
    "processes: clients that are a process each, on all cores but the server's, if there are others",
];

/// How `bench daemons` takes its numbers.
const DAEMONS_NOTES: [&str; 2] = [
    "each daemon shares its core: that of the client's node with the client, the other one with what answers",
    "answers: four in flight; p99: short calls one by one, beside four long answers of another client in flight",
];

/// Runs the benchmark of a layer.
pub(crate) fn run(which: &LayerCommand) -> anyhow::Result<()> {
    match which {
        LayerCommand::Limit(args) => limit(args),
        LayerCommand::Verbs(args) => verbs(args),
        LayerCommand::Rpc(args) => rpc(args),
        LayerCommand::Inproc(args) => inproc(args),
        LayerCommand::Ipc(args) => ipc(args),
        LayerCommand::Daemons(args) => daemons(args),
        LayerCommand::Long(args) => long_calls::run(args),
        LayerCommand::Segments(args) => segments::run(args),
    }
}

/// `copyrpc-lab bench inproc`.
fn inproc(args: &BenchArgs) -> anyhow::Result<()> {
    let session = Session::start(args, plan::inproc(args.quick))?;
    session.run(args, "inproc", "none", &[], &INPROC_NOTES)
}

/// `copyrpc-lab bench ipc`.
fn ipc(args: &IpcArgs) -> anyhow::Result<()> {
    let (grid, args) = (args.grid(), &args.bench);
    if grid.is_without_room() {
        let problem = "no --ring has a slot for each of the calls in flight that --depth names";
        let fewest = grid.depths.iter().min().copied().unwrap_or(1).next_power_of_two();
        return Err(UsageError(format!("{problem}: name a --ring of {fewest} or more")).into());
    }
    let session = Session::start(args, plan::ipc(args.quick, &grid))?;
    session.run(args, "ipc", "none", &IPC_AIMS, &IPC_NOTES)
}

/// `copyrpc-lab bench daemons`.
fn daemons(args: &BenchArgs) -> anyhow::Result<()> {
    let nic = Selection::from_env();
    let mut session = Session::start(args, parts::behind(plan::daemons(args.quick)))?;
    session.open(&nic)?;
    let (mut results, interruption) = session.measure(args, "daemons", nic.name(), &[])?;
    results.notes.extend(DAEMONS_NOTES.map(str::to_owned));
    if interruption.is_none() {
        results.notes.extend(parts::explained(&results));
    }
    shown::write_until(results, interruption, args.by_pace, args.files())
}

/// `copyrpc-lab bench limit`.
fn limit(args: &BenchArgs) -> anyhow::Result<()> {
    let session = Session::start(args, plan::limits(args.quick))?;
    session.run(args, "limit", "none", &[], &[])
}

/// `copyrpc-lab bench verbs`.
fn verbs(args: &VerbsArgs) -> anyhow::Result<()> {
    let nic = nic::selected(&args.nic.load()?);
    let (grid, quick) = (args.dc_grid(), args.bench.quick);
    let has_dc = selected::has_dc(&nic)?;
    let mut plan = plan::verbs(quick);
    if has_dc {
        plan.extend(dc_plan::dc_reads(quick, &grid));
    }
    let notes = if has_dc { &DC_NOTES[..] } else { &NO_DC_NOTES };
    if grid != DcGrid::default() {
        if !has_dc {
            return Err(UsageError(format!("--dc-…: {}", NO_DC_NOTES[0])).into());
        }
        plan = plan::select(plan, "dc-read/");
    }
    let mut session = Session::start(&args.bench, plan)?;
    session.open(&nic)?;
    session.run(&args.bench, "verbs", &nic.to_string(), &AIMS, notes)
}

/// `copyrpc-lab bench rpc`.
fn rpc(args: &RpcArgs) -> anyhow::Result<()> {
    let nic = nic::selected(&args.nic.load()?);
    if args.server.is_some() || args.client.is_some() {
        return two_hosts(args, &nic);
    }
    args.check()?;
    if !args.protocol.is_empty() {
        return by_protocols(args, &nic);
    }
    let grid = args.grid();
    let mut plan = plan::rpc(args.bench.quick, &grid);
    if args.preset.is_some() || args.has_loads() {
        plan = plan::select(plan, SMALL_CELLS);
    }
    args.markdown.as_deref().map_or(Ok(()), output::check_file)?;
    let mut session = Session::start(&args.bench, plan)?;
    session.open(&nic)?;
    let switches = grid.points().into_iter().map(|(switches, suffix)| {
        let cells = if suffix.is_empty() { "all cells" } else { suffix.trim_start_matches('/') };
        format!("{cells}: {switches}")
    });
    let (mut results, interruption) =
        session.measure(&args.bench, "rpc", &nic.to_string(), &RPC_AIMS)?;
    results.notes.extend(switches);
    let written = args.markdown.as_deref().map_or(Ok(()), |path| {
        output::write_file(path, |file| matrix::report(&results, &grid).write_markdown(file))
    });
    let files = args.bench.files();
    let shown = shown::write_until(results, interruption, args.bench.by_pace, files);
    written.and(shown)
}

/// Calls of each shape that are timed.
const CALLS: u64 = 20_000;
/// The same, to be quick.
const CALLS_QUICK: u64 = 2_000;

/// `copyrpc-lab bench rpc --server` and `--client`.
fn two_hosts(args: &RpcArgs, nic: &Selection) -> anyhow::Result<()> {
    let cores = args.bench.cpus.map_or_else(Cores::choose, Ok)?;
    if let Some(address) = args.server {
        measure::cores::pin(cores.responder).context("cannot pin to the second core")?;
        let listener =
            TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
        output::say(format_args!("answering calls at {}", listener.local_addr()?));
        let came = |line: &str| output::say(format_args!("{line}"));
        return Ok(selected::serve_hosts(nic, &listener, came)??);
    }
    measure::cores::pin(cores.initiator).context("cannot pin to the first core")?;
    let address = RpcArgs::server_address(args.client.as_deref().unwrap_or_default());
    let calls = if args.bench.quick { CALLS_QUICK } else { CALLS };
    let (label, outcomes) = selected::measure_hosts(nic, &address, calls)??;
    let mut lines = String::new();
    let mut shown = table(&["bytes", "in flight", "calls/s", "p50 us", "p99 us", "p99.9 us"]);
    for it in outcomes {
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
        let (len_bytes, depth) = (it.shape.len_bytes, it.shape.depth);
        let rate = format!("{:.0}", it.rate);
        let times = [it.p50_ns, it.p99_ns, it.p999_ns].map(us);
        let row = [len_bytes.to_string(), depth.to_string(), rate].into_iter().chain(times);
        shown.add_row(row);
        let object = serde_json::json!({
            "benchmark": "rpc between two hosts", "nic": label, "server": address,
            "bytes": len_bytes, "in_flight": depth, "calls": it.calls, "calls_per_s": it.rate,
            "p50_ns": it.p50_ns, "p99_ns": it.p99_ns, "p99.9_ns": it.p999_ns,
        });
        lines += &format!("{object}\n");
    }
    match args.bench.json.as_deref() {
        Some(path) if path == Path::new("-") => output::print(&lines),
        Some(path) => {
            std::fs::write(path, &lines)
                .with_context(|| format!("cannot write {}", path.display()))?;
            output::print(&format!("{}\n", shown.trim_fmt()))
        }
        None => output::print(&format!("{}\n", shown.trim_fmt())),
    }
}

/// What eRPC is measured against.
const PROTOCOL_AIMS: [Aim; 2] = [
    Aim {
        cell: "erpc/1-lane-qd1/32B",
        text: "a 32 B call over eRPC with one in flight takes, of a UD SEND round trip, at most",
        goal: Goal::AtMost(1.7),
    },
    Aim {
        cell: "erpc/1-lane-qd32/32B",
        text: "32 calls in flight over eRPC reach, of the rate of UD SENDs, at least",
        goal: Goal::AtLeast(0.7),
    },
];

/// How cells of protocols are to be read.
const PROTOCOL_NOTES: [&str; 2] = [
    "every byte of every answer is compared; a call is a request and its answer, so of two messages",
    "clients: connections of one process that it polls in turn, two calls in flight each",
];

/// `copyrpc-lab bench rpc --protocol`.
fn by_protocols(args: &RpcArgs, nic: &Selection) -> anyhow::Result<()> {
    let loads = if args.has_loads() { args.grid().loads } else { Vec::new() };
    let settings = args.scalerpc.settings();
    let plan = bench::protocol_plan::plan(args.bench.quick, &args.protocol, &loads, settings);
    let mut session = Session::start(&args.bench, plan)?;
    session.open(nic)?;
    let aims = if args.protocol.contains(&Protocol::Erpc) { &PROTOCOL_AIMS[..] } else { &[] };
    session.run(&args.bench, "rpc", &nic.to_string(), aims, &PROTOCOL_NOTES)
}

/// The other side.
pub(crate) fn peer() -> anyhow::Result<()> {
    let settings = knobs::load(None, std::iter::empty())?;
    let open =
        |name: &str| open_work(&nic::named(name, &settings)).map_err(|error| error.to_string());
    Ok(suite::serve(&mut ChildSide::of_child()?, &open)?)
}

/// Two processes on two cores, and what they will measure.
struct Session {
    suite: Suite,
    cells: Vec<Cell>,
    cores: Cores,
    /// Cores that were allowed before this process was pinned to one.
    allowed: usize,
    /// What this machine does not count, a sentence each.
    missing: Vec<String>,
}

impl Session {
    fn start(args: &BenchArgs, plan: Vec<Planned>) -> anyhow::Result<Self> {
        let allowed = os::affinity::allowed_cores().map_err(CoresError::from)?;
        let cores = match args.cpus {
            Some(cores) => {
                cores.check_allowed()?;
                cores
            }
            None => Cores::choose()?,
        };
        let plan = plan::select(plan, &args.cell);
        if plan.is_empty() {
            return Err(UsageError(format!("no cell's name contains `{}`", args.cell)).into());
        }
        let json = args.json.as_deref().filter(|path| *path != Path::new("-"));
        [json, args.html.as_deref()].into_iter().flatten().try_for_each(output::check_file)?;
        let cells = plan.iter().map(|planned| planned.cell.clone()).collect();
        let window = if args.quick { WINDOW_QUICK } else { WINDOW };
        let process_pair = ProcessPair::start(cores, &[PEER_COMMAND])?;
        let mut suite = Suite::new(process_pair, cores, plan, window, &allowed);
        let missing = if args.counters { suite.count_events()? } else { Vec::new() };
        Ok(Self { suite, cells, cores, allowed: allowed.len(), missing })
    }

    /// Lets both processes use the NIC.
    fn open(&mut self, nic: &Selection) -> anyhow::Result<()> {
        let cannot = || format!("cannot connect two ports of NIC `{}`", nic.name());
        self.suite.open_nic(nic.name(), open_work(nic)?).with_context(cannot)
    }

    fn run(
        self,
        args: &BenchArgs,
        bench: &str,
        nic: &str,
        aims: &[Aim],
        notes: &[&str],
    ) -> anyhow::Result<()> {
        let (mut results, interruption) = self.measure(args, bench, nic, aims)?;
        results.notes.extend(notes.iter().map(ToString::to_string));
        shown::write_until(results, interruption, args.by_pace, args.files())
    }

    /// What was measured, and whether a signal has ended it.
    fn measure(
        mut self,
        args: &BenchArgs,
        bench: &str,
        nic: &str,
        aims: &[Aim],
    ) -> anyhow::Result<(Results, Option<Interrupted>)> {
        let header = output::header(bench, nic, self.allowed, self.cores.to_string());
        let rounds = args.rounds.plan(args.quick);
        let mut progress = StepProgress::new("samples", rounds.samples(self.cells.len()));
        let stop = stop_at_signal()?;
        let cells = &self.cells;
        let mut samples = Vec::new();
        let is_known = shown::is_enough(cells);
        let suite = &mut self.suite;
        let ended = schedule::interleave_into(suite, rounds, is_known, &mut samples, |cell| {
            progress.step(cells[cell].name.clone());
            !stop.load(Ordering::Relaxed)
        });
        drop(progress);
        let interruption = shown::interruption(&stop, ended, samples.len())?;
        let mut results = Results::new(header, cells, &samples, aims);
        for (index, cell) in cells.iter().enumerate() {
            results.set_events(&cell.name, self.suite.events(index));
        }
        results.notes.extend(self.missing);
        if cells.iter().any(|cell| beside::of_cell(&cell.name, cell.metric).is_some()) {
            results.notes.push(beside::NOTE.to_owned());
        }
        Ok((results, interruption))
    }
}
