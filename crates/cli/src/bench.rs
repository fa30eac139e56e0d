//! `copyrpc bench`.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use bench::{
    calls,
    cores::{Cores, CoresError},
    duo::{Duo, Side},
    machine, plan,
    report::{Cell, Header, Report},
    schedule,
    suite::{self, Planned, Suite},
    threads,
    workers::{self, matrix},
};
use indicatif::{ProgressBar, ProgressStyle};
use node::config::{NIC, Settings};

use crate::{
    args::{self, BenchArgs, PEER_COMMAND, RpcArgs, VerbsArgs},
    exit::Senseless,
    knobs, nic, output,
};

/// Duration of a sample.
const WINDOW: Duration = Duration::from_millis(60);
/// The same, to be quick.
const WINDOW_QUICK: Duration = Duration::from_millis(20);
/// Samples per cell.
const RUNS: u16 = 7;
/// The same, to be quick.
const RUNS_QUICK: u16 = 3;

/// What a preset measures: sizes have a cell for each combination too.
const SMALL_CELLS: &str = "/32B";

/// What `bench verbs` is measured against.
const AIMS: [&str; 3] = [
    "aim: a 32 B WRITE_IMM round trip takes at most 2x the two-line round trip",
    "aim: near, at least 15 M posted 32 B WRITE_IMM/s",
    "aim: a 1 MiB WRITE reaches at least 0.8 of memcpy",
];

/// What `bench rpc` is measured against.
const RPC_AIMS: [&str; 2] = [
    "aim: a 32 B call with one in flight takes at most 1.5x the raw WRITE_IMM round trip",
    "aim: near, at least 25 M calls/s over 8 endpoints with 256 in flight",
];

/// What `bench inproc` is measured against.
const INPROC_NOTES: [&str; 2] = [
    "lines: cache lines that an item, a round trip or a call moves, as designed; rates: queue full",
    "more threads than cores share them in turn: such cells say how sleeping works",
];

/// What `bench ipc` is measured against.
const IPC_NOTES: [&str; 3] = [
    "lines: cache lines that a call moves, as designed, while both sides poll",
    "aim: a 56 B round trip takes at most 1.3x the slot round trip",
    "all clients of a cell live in one process and are polled in turn",
];

/// `copyrpc bench inproc`.
pub(crate) fn inproc(args: &BenchArgs) -> anyhow::Result<()> {
    let session = Session::start(args, threads::plan(args.quick))?;
    session.run(args, "inproc", "none", &INPROC_NOTES)
}

/// `copyrpc bench ipc`.
pub(crate) fn ipc(args: &BenchArgs) -> anyhow::Result<()> {
    let session = Session::start(args, calls::plan(args.quick))?;
    session.run(args, "ipc", "none", &IPC_NOTES)
}

/// `copyrpc bench limit`.
pub(crate) fn limit(args: &BenchArgs) -> anyhow::Result<()> {
    let session = Session::start(args, plan::limits(args.quick))?;
    session.run(args, "limit", "none", &[])
}

/// `copyrpc bench verbs`.
pub(crate) fn verbs(args: &VerbsArgs) -> anyhow::Result<()> {
    let settings = args.nic.load()?;
    let name = settings.text(&NIC);
    let mut session = Session::start(&args.bench, plan::verbs(args.bench.quick))?;
    let party = nic::open_party(name, &settings)?;
    session.suite.connect(name, party).with_context(|| format!("cannot connect two `{name}`"))?;
    session.run(&args.bench, "verbs", &label(&settings), &AIMS)
}

/// `copyrpc bench rpc`.
pub(crate) fn rpc(args: &RpcArgs) -> anyhow::Result<()> {
    let settings = args.nic.load()?;
    let name = settings.text(&NIC);
    let grid = args.grid();
    let mut plan = workers::plan(args.bench.quick, &grid);
    if args.preset.is_some() {
        plan = suite::select(plan, SMALL_CELLS);
    }
    args.markdown.as_deref().map_or(Ok(()), output::check_file)?;
    let mut session = Session::start(&args.bench, plan)?;
    let party = nic::open_party(name, &settings)?;
    let cannot = || format!("cannot connect two `{name}`");
    session.suite.connect(name, party).with_context(cannot)?;
    session
        .suite
        .connect_workers(name, nic::open_workers(name, &settings)?)
        .with_context(cannot)?;
    let switches = grid.points().into_iter().map(|(switches, suffix)| {
        let cells = if suffix.is_empty() { "all cells" } else { suffix.trim_start_matches('/') };
        format!("{cells}: {switches}")
    });
    let notes = switches.chain(RPC_AIMS.map(str::to_owned)).collect::<Vec<_>>();
    let notes = notes.iter().map(String::as_str).collect::<Vec<_>>();
    let report = session.measure(&args.bench, "rpc", &label(&settings), &notes)?;
    let written = args.markdown.as_deref().map_or(Ok(()), |path| {
        output::write_file(path, |file| matrix::write_markdown(&report, &grid, file))
    });
    let shown = output::write(&report, args.bench.json.as_deref());
    written.and(shown)
}

fn label(settings: &Settings) -> String {
    nic::label(settings.text(&NIC), &knobs::set_of_nic(settings))
}

/// The other side.
pub(crate) fn peer() -> anyhow::Result<()> {
    let settings = knobs::load(None, std::iter::empty())?;
    let open = |name: &str| nic::open_party(name, &settings).map_err(|error| error.to_string());
    let open_workers =
        |name: &str| nic::open_workers(name, &settings).map_err(|error| error.to_string());
    let mut side = Side::of_child()?;
    Ok(suite::serve(&mut side, &open, &open_workers)?)
}

/// Two processes on two cores, and what they will measure.
struct Session {
    suite: Suite,
    cells: Vec<Cell>,
    cores: Cores,
    /// Cores that were allowed before this process was pinned to one.
    allowed: usize,
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
        let plan = suite::select(plan, &args.cell);
        if plan.is_empty() {
            return Err(Senseless(format!("no cell's name contains `{}`", args.cell)).into());
        }
        let json = args.json.as_deref().filter(|path| *path != Path::new("-"));
        json.map_or(Ok(()), output::check_file)?;
        let cells = plan.iter().map(|planned| planned.cell.clone()).collect();
        let window = if args.quick { WINDOW_QUICK } else { WINDOW };
        let duo = Duo::start(cores, &[PEER_COMMAND])?;
        let suite = Suite::new(duo, cores, plan, window).with_pool(&allowed);
        Ok(Self { suite, cells, cores, allowed: allowed.len() })
    }

    fn run(self, args: &BenchArgs, bench: &str, nic: &str, notes: &[&str]) -> anyhow::Result<()> {
        output::write(&self.measure(args, bench, nic, notes)?, args.json.as_deref())
    }

    fn measure(
        mut self,
        args: &BenchArgs,
        bench: &str,
        nic: &str,
        notes: &[&str],
    ) -> anyhow::Result<Report> {
        let header = header(bench, nic, self.allowed, self.cores.to_string());
        let runs = usize::from(args.runs.unwrap_or(if args.quick { RUNS_QUICK } else { RUNS }));
        let progress = progress_bar(self.cells.len() * (runs + 1));
        let cells = &self.cells;
        let filed = schedule::interleave(&mut self.suite, runs, |cell| {
            progress.set_message(cells[cell].name.clone());
            progress.inc(1);
        });
        progress.finish_and_clear();
        let mut notes = notes.iter().map(ToString::to_string).collect::<Vec<_>>();
        if cfg!(debug_assertions) {
            notes.push("this is a debug build: its numbers mean nothing".to_owned());
        }
        Ok(Report::new(header, cells, &filed?, notes))
    }
}

/// Under which circumstances a benchmark runs.
pub(crate) fn header(bench: &str, nic: &str, cores: usize, pinning: String) -> Header {
    Header {
        bench: bench.to_owned(),
        command: args::command_line(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: env!("BUILD_COMMIT").to_owned(),
        profile: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
        cpu: machine::cpu_model(),
        cores,
        pinning,
        kernel: machine::kernel(),
        nic: nic.to_owned(),
        date: machine::date(),
    }
}

/// On standard error, if that is a terminal.
fn progress_bar(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
    ProgressBar::new(steps as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
