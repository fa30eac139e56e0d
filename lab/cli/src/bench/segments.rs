//! `copyrpc-lab bench segments`: what the layers take by themselves predicts what all of them do together.
//!
//! In each round the benchmarks of the layers and of the key-value store run one after the other, as commands of their
//! own. The prediction of a round is made of that round's layers, and stands beside that round's store. No constant is
//! fitted. The one number of the store that goes into its prediction is a count: how often a core went from a process to
//! another one per call, which no layer can tell.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use clap::Args as ClapArgs;
use command::output::file;
use kv::{
    bare,
    workload::{Popularity, ValueSize, Workload},
};
use measure::{
    number::{number, percent},
    paired::Ratio,
    progress::StepProgress,
    stats::median,
    table::Table,
};
use serde::Serialize;

use crate::output;

/// Nodes of the store.
const NODES: u16 = 2;
/// Rounds: as many as an interval takes.
const ROUNDS: u16 = 6;
/// Values that fit a slot of `ipc` with their heads, as far as that is possible.
const VALUE_BYTES: usize = 24;
const KEYS: &str = "2k";
/// A round trip of two processes on one core: two switches.
const ONE_CORE: &str = "limit/round-trip/one-core";
/// A prediction that is off by less is as good as was aimed for, in per cent.
const AIM_PERCENT: f64 = 15.0;

#[derive(Debug, ClapArgs)]
pub(crate) struct SegmentsArgs {
    /// Client processes of each of the two nodes, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: u16,
    /// Calls in flight of each client, 1 to 64.
    #[arg(long, value_name = "D", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    qd: u16,
    /// Rounds: each measures the layers and the store once [default: 6; with --quick 1].
    #[arg(long, visible_alias = "rounds", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Short rounds.
    #[arg(long)]
    quick: bool,
    /// Write one JSON object per round and row to PATH.
    #[arg(long, value_name = "PATH", value_parser = file())]
    json: Option<PathBuf>,
}

/// What the layers took in a round, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Segments {
    /// Round trip of a call between two processes, by shared memory.
    ipc_trip: f64,
    /// A call between a server and its client processes, all of them busy.
    ipc: f64,
    /// Round trip of a WRITE with immediate: the NIC's part of the next one.
    raw_trip: f64,
    /// Round trip of a call between two workers.
    rpc_trip: f64,
    /// A call between two workers, both of them busy.
    rpc: f64,
    /// To make a call, to carry it out and to judge its answer, on one thread.
    work: f64,
    /// Of this, to carry it out.
    serve: f64,
    /// A core goes from a process to another one: half a round trip of two that share it.
    switch: f64,
}

/// Processors and load.
#[derive(Clone, Copy, Debug)]
struct Circumstances {
    cores: usize,
    clients: u16,
    depth: u16,
}

impl Circumstances {
    /// Whether every process of the store has a core.
    fn has_cores(self) -> bool {
        usize::from(NODES) * (1 + usize::from(self.clients)) <= self.cores
    }
}

/// A number of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Asked {
    /// Median time of a call to the other node, one in flight on each.
    Latency,
    /// Calls per second of both nodes, of which so many per cent go to the other node.
    Rate { remote_percent: u8 },
}

impl Asked {
    const ALL: [Self; 4] = [
        Self::Latency,
        Self::Rate { remote_percent: 0 },
        Self::Rate { remote_percent: 50 },
        Self::Rate { remote_percent: 100 },
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Latency => "one remote call, ns",
            Self::Rate { remote_percent: 0 } => "local, k/s",
            Self::Rate { remote_percent: 50 } => "half remote, k/s",
            Self::Rate { .. } => "remote, k/s",
        }
    }

    /// Its name without a unit.
    fn load(self) -> &'static str {
        self.name().split(',').next().unwrap_or_default()
    }
}

/// A prediction, and the name of its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Predicted {
    value: f64,
    bound: &'static str,
}

impl Segments {
    /// Predicts a number of the store, in which a core went so many times per call from a process to another one.
    fn predict(&self, asked: Asked, at: Circumstances, switches: f64) -> Predicted {
        let Self { ipc_trip, ipc, rpc_trip, rpc, work, serve, switch, .. } = *self;
        let switches_ns = switches * switch;
        let remote = match asked {
            Asked::Latency => {
                let value = ipc_trip + rpc_trip + work + switches_ns;
                return Predicted { value, bound: "trips" };
            }
            Asked::Rate { remote_percent } => f64::from(remote_percent) / 100.0,
        };
        if !at.has_cores() {
            // All processes share all cores, and every part of a call takes its time on one of them: both sides of
            // each segment, and all switches.
            let call_ns = 2.0 * ipc + 2.0 * remote * rpc + work + switches_ns;
            return Predicted { value: at.cores as f64 * 1e6 / call_ns, bound: "processors" };
        }
        // For each call of its node a daemon serves a client, calls for it, and answers a call of another node.
        let daemon_ns = ipc + 2.0 * remote * rpc + serve;
        let in_flight = f64::from(at.clients) * f64::from(at.depth);
        let trip_ns = ipc_trip + remote * rpc_trip + work;
        let nodes = f64::from(NODES) * 1e6;
        let by = [(nodes / daemon_ns, "daemons"), (nodes * in_flight / trip_ns, "trips")];
        let [daemons, trips] = by.map(|(value, bound)| Predicted { value, bound });
        if daemons.value < trips.value { daemons } else { trips }
    }
}

/// Medians of cells by name and metric, as `--json -` of a benchmark prints them.
struct Medians(HashMap<(String, String), f64>);

impl Medians {
    fn read(text: &str) -> Self {
        let row = |line: &str| {
            let row = serde_json::from_str::<serde_json::Value>(line).ok()?;
            let of = |name: &str| row.get(name)?.as_str().map(str::to_owned);
            // Of all samples, whatever the pace.
            (of("regime")? == "all").then_some(())?;
            Some(((of("cell")?, of("metric")?), row.get("median")?.as_f64()?))
        };
        Self(text.lines().filter_map(row).collect())
    }

    fn cell(&self, cell: &str) -> anyhow::Result<f64> {
        let found = self.0.iter().find(|((name, _), _)| name == cell).map(|(_, median)| *median);
        found.with_context(|| format!("no number of cell `{cell}`"))
    }

    /// The number of the configuration whose name has, or has not, a part.
    fn of_store(&self, part: Option<&str>, metric: &str) -> anyhow::Result<f64> {
        let parts = ["/local", "/remote"];
        let is_it = |(name, of): &(String, String)| {
            let is_whole = parts.iter().all(|part| !name.ends_with(part));
            let has = |part: &str| name.contains(&format!("{part}/"));
            let is_of = part.map_or_else(|| !parts.iter().any(|part| has(part)), has);
            is_whole && is_of && of == metric
        };
        let found = self.0.iter().find(|(key, _)| is_it(key)).map(|(_, median)| *median);
        found.with_context(|| format!("no {metric} of the store with {}", part.unwrap_or("both")))
    }
}

/// Runs this program with arguments. Returns what it printed.
fn run_this(arguments: &[String]) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("cannot tell what this program is")?;
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("cannot run {}", arguments.join(" ")))?;
    let error = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "`{}` failed: {}", arguments.join(" "), error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A folder that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("copyrpc-segments-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The commands of a round.
struct Round<'a> {
    at: Circumstances,
    is_quick: bool,
    scratch: &'a Path,
}

impl Round<'_> {
    fn layer(&self, arguments: &str) -> anyhow::Result<Medians> {
        let quick = if self.is_quick { " --quick" } else { "" };
        let words = format!("bench {arguments} --runs 1{quick} --json -");
        let words = words.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        Ok(Medians::read(&run_this(&words)?))
    }

    fn segments(&self) -> anyhow::Result<Segments> {
        let Circumstances { clients, depth, .. } = self.at;
        let each_ns = |rate: f64| 1e3 / rate;
        let trip = self.layer("ipc --cell ipc/round-trip/56B")?;
        // Where processes share cores, one client and the server with a core each: switches are a segment of their own.
        let pairs = if self.at.has_cores() { clients } else { 1 };
        let shape = format!("ipc --clients {pairs} --depth {depth} --cell processes");
        let ipc = self.layer(&shape)?;
        let many = u32::from(clients) * u32::from(depth);
        let rpc =
            self.layer(&format!("rpc --endpoints 1 --depth 1,{} --cell endpoint", many.max(2)))?;
        let workload = Workload {
            popularity: Popularity::Uniform,
            value_size: ValueSize { min_bytes: VALUE_BYTES, max_bytes: VALUE_BYTES },
            keys: 2000,
            queue_depth: depth.into(),
            warm_up_ms: 10,
            duration_ms: 50,
            ..Workload::default()
        };
        let work = bare::work(&workload)?;
        let one_core = self.layer(&format!("limit --cell {ONE_CORE}"))?;
        Ok(Segments {
            ipc_trip: trip.cell("ipc/round-trip/56B")?,
            ipc: each_ns(ipc.cell(&format!("ipc/{pairs}-processes/depth-{depth}/56B"))?),
            raw_trip: rpc.cell("round-trip/rc-write-imm/32B")?,
            rpc_trip: rpc.cell("rpc/1-endpoint-qd1/32B")?,
            rpc: each_ns(rpc.cell(&format!("rpc/1-endpoint-qd{}/32B", many.max(2)))?),
            work: work.whole_ns,
            serve: work.serve_ns,
            switch: one_core.cell(ONE_CORE)? / 2.0,
        })
    }

    fn store(&self, clients: u16, depth: u16, localities: &str) -> anyhow::Result<Medians> {
        let at = Circumstances { clients, ..self.at };
        let (wait, pin) = if at.has_cores() { ("spin", "apart") } else { ("yield", "node") };
        let duration = if self.is_quick { "100ms" } else { "400ms" };
        let out = self.scratch.join("store");
        let words = format!(
            "bench kv --backend delegation --ranks {NODES} --clients {clients} --qd {depth} --locality {localities} \
             --popularity uniform --value-size {VALUE_BYTES} --keys {KEYS} --wait {wait} --pin {pin} --runs 1 \
             --duration {duration} --force --json - --out"
        );
        let mut words = words.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        words.push(out.display().to_string());
        Ok(Medians::read(&run_this(&words)?))
    }

    /// In the order of [`Asked::ALL`].
    fn measured(&self) -> anyhow::Result<[OfStore; 4]> {
        let alone = self.store(1, 1, "remote")?;
        let together = self.store(self.at.clients, self.at.depth, "local,natural,remote")?;
        let rate = |part| {
            let OfStore { measured, switches } = OfStore::of(&together, part, "rate")?;
            Ok::<_, anyhow::Error>(OfStore { measured: measured / 1e3, switches })
        };
        Ok([
            OfStore::of(&alone, Some("/remote"), "latency-p50")?,
            rate(Some("/local"))?,
            rate(None)?,
            rate(Some("/remote"))?,
        ])
    }
}

/// A number of the store, and what was counted beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct OfStore {
    measured: f64,
    /// Times per call that a core went from a process of the store to another one.
    switches: f64,
}

impl OfStore {
    fn of(store: &Medians, part: Option<&str>, metric: &str) -> anyhow::Result<Self> {
        let of = |metric| store.of_store(part, metric);
        let switches = of("client-switches")? + of("daemon-switches")?;
        Ok(Self { measured: of(metric)?, switches })
    }
}

/// A round: its segments, and for each number of the store what was predicted and measured.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    segments: Segments,
    rows: [(Predicted, OfStore); 4],
}

impl Outcome {
    fn new(segments: Segments, store: [OfStore; 4], at: Circumstances) -> Self {
        let predict = |index: usize| segments.predict(Asked::ALL[index], at, store[index].switches);
        Self { segments, rows: std::array::from_fn(|index| (predict(index), store[index])) }
    }
}

/// `copyrpc-lab bench segments`.
pub(super) fn run(args: &SegmentsArgs) -> anyhow::Result<()> {
    args.json.as_deref().map_or(Ok(()), output::check_file)?;
    let cores = os::affinity::allowed_cores()?.len();
    let at = Circumstances { cores, clients: args.clients, depth: args.qd };
    let scratch = Scratch::new().context("cannot make a folder for results")?;
    let round = Round { at, is_quick: args.quick, scratch: &scratch.0 };
    let rounds = args.runs.unwrap_or(if args.quick { 1 } else { ROUNDS });
    let mut progress = StepProgress::new("steps", 2 * usize::from(rounds));
    let mut outcomes = Vec::new();
    for _ in 0..rounds {
        progress.step("layers");
        let segments = round.segments()?;
        progress.step("store");
        let measured = round.measured()?;
        outcomes.push(Outcome::new(segments, measured, at));
    }
    drop(progress);
    if let Some(path) = &args.json {
        output::write_file(path, |file| write_json(&outcomes, file))?;
    }
    output::print(&text_of(&outcomes, at))
}

fn write_json(outcomes: &[Outcome], to: &mut dyn io::Write) -> io::Result<()> {
    for (round, Outcome { segments, rows }) in outcomes.iter().enumerate() {
        for (asked, (predicted, store)) in Asked::ALL.into_iter().zip(rows) {
            let object = serde_json::json!({
                "round": round, "number": asked.name(), "predicted": predicted.value, "bound": predicted.bound,
                "measured": store.measured, "switches_per_call": store.switches, "segments_ns": segments,
            });
            writeln!(to, "{object}")?;
        }
    }
    Ok(())
}

fn median_of(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    median(&mut outcomes.iter().map(of).collect::<Vec<_>>())
}

/// A segment, the benchmark that measured it, and its time in nanoseconds.
type Part = (&'static str, &'static str, fn(&Segments) -> f64);

/// A ratio with its interval, and a mark for the words that it is undecided: a line fits 80 columns.
fn shown(ratio: &Ratio) -> String {
    let text = ratio.to_string();
    match text.split_once(", undecided") {
        Some((known, _)) => format!("{known}†"),
        None => text,
    }
}

fn text_of(outcomes: &[Outcome], at: Circumstances) -> String {
    let mut segments = Table::new(2, ["segment", "of", "ns"]);
    let parts: [Part; 8] = [
        ("client and daemon, one call", "bench ipc", |s| s.ipc_trip),
        ("client and daemon, busy", "bench ipc", |s| s.ipc),
        ("NIC alone, in no prediction", "bench rpc", |s| s.raw_trip),
        ("daemon and daemon, one call", "bench rpc", |s| s.rpc_trip),
        ("daemon and daemon, busy", "bench rpc", |s| s.rpc),
        ("the workload itself", "one thread", |s| s.work),
        ("of this, the store", "one thread", |s| s.serve),
        ("one switch on a core", "bench limit", |s| s.switch),
    ];
    for (name, source, part) in parts {
        let ns = median_of(outcomes, |outcome| part(&outcome.segments));
        segments.push([name.to_owned(), source.to_owned(), number(ns)]);
    }
    for (row, asked) in Asked::ALL.into_iter().enumerate() {
        let switches = |outcome: &Outcome| outcome.rows[row].1.switches;
        let per_call = median_of(outcomes, switches);
        let ns = median_of(outcomes, |outcome| switches(outcome) * outcome.segments.switch);
        let name = format!("{} switches of a call", number(per_call));
        segments.push([name, asked.load().to_owned(), number(ns)]);
    }
    let head = ["bench kv", "bound", "predicted", "measured", "ratio", ""];
    let mut table = Table::new(2, head);
    for (row, asked) in Asked::ALL.into_iter().enumerate() {
        let pairs = outcomes.iter().map(|outcome| {
            let (predicted, measured) = outcome.rows[row];
            (measured.measured, predicted.value)
        });
        let Some(ratio) = Ratio::of(pairs) else { continue };
        let error = 100.0 * (ratio.median - 1.0).abs();
        let verdict = if error <= AIM_PERCENT { "met" } else { "missed" };
        table.push([
            asked.name().to_owned(),
            outcomes.first().map_or("", |outcome| outcome.rows[row].0.bound).to_owned(),
            number(median_of(outcomes, |outcome| outcome.rows[row].0.value)),
            number(median_of(outcomes, |outcome| outcome.rows[row].1.measured)),
            shown(&ratio),
            verdict.to_owned(),
        ]);
    }
    let Circumstances { cores, clients, depth } = at;
    let shared = if at.has_cores() { "a core for each process" } else { "processes share cores" };
    format!(
        "{}\n\n{}\n\n{cores} cores, {NODES} nodes of {clients} clients with {depth} calls in flight each:\n{shared}; medians of {} \
         rounds\naim: off by {} at most; †: undecided, --runs has more\ntrips: round trips one after the other; processors: both \
         sides of all\nsegments, and switches, on all cores; daemons: their side of each segment\n",
        segments.text(),
        table.text(),
        outcomes.len(),
        percent(AIM_PERCENT),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENTS: Segments = Segments {
        ipc_trip: 400.0,
        ipc: 100.0,
        raw_trip: 300.0,
        rpc_trip: 600.0,
        rpc: 50.0,
        work: 200.0,
        serve: 50.0,
        switch: 500.0,
    };

    fn predicted(asked: Asked, cores: usize, depth: u16) -> (f64, &'static str) {
        let at = Circumstances { cores, clients: 4, depth };
        let Predicted { value, bound } = SEGMENTS.predict(asked, at, 0.0);
        (value.round(), bound)
    }

    #[test]
    fn switches_take_their_time_where_processes_share_cores_and_nowhere_else() {
        let predicted = |asked, cores| {
            let at = Circumstances { cores, clients: 4, depth: 64 };
            SEGMENTS.predict(asked, at, 3.2).value.round()
        };
        // 400 + 600 + 200 ns of trips and work, and 3.2 switches of 500 ns.
        assert_eq!(predicted(Asked::Latency, 2), 2800.0);
        // Two cores, on which a call to the other node takes 500 ns, and as long for its switches.
        let remote = Asked::Rate { remote_percent: 100 };
        assert_eq!(predicted(remote, 2), (2e6_f64 / (500.0 + 1600.0)).round());
        assert_eq!(predicted(remote, 10), 8000.0);
    }

    #[test]
    fn a_stored_run_gives_a_number_its_switches_and_they_make_the_prediction() {
        let row = |cell: &str, metric: &str, median: f64| {
            let row = serde_json::json!({
                "cell": cell, "regime": "all", "metric": metric, "median": median,
            });
            format!("{row}\n")
        };
        let text = [
            row("delegation/2x4/remote/2000keys", "rate", 250_000.0),
            row("delegation/2x4/remote/2000keys", "client-switches", 1.5),
            row("delegation/2x4/remote/2000keys", "daemon-switches", 2.5),
            row("delegation/2x4/2000keys", "daemon-switches", 9.0),
        ];
        let store = Medians::read(&text.concat());
        let remote = OfStore::of(&store, Some("/remote"), "rate").unwrap();
        assert_eq!(remote, OfStore { measured: 250_000.0, switches: 4.0 });
        let missing = OfStore::of(&store, None, "daemon-switches").unwrap_err();
        assert!(missing.to_string().contains("client-switches"), "{missing}");
        let at = Circumstances { cores: 2, clients: 4, depth: 8 };
        let Outcome { rows, .. } = Outcome::new(SEGMENTS, [remote; 4], at);
        assert_eq!(rows[0].0.value, 1200.0 + 4.0 * 500.0);
        assert_eq!(rows[3].0, Predicted { value: 2e6 / (500.0 + 2000.0), bound: "processors" });
    }

    #[test]
    fn each_bound_is_the_sum_of_its_segments() {
        assert_eq!(predicted(Asked::Latency, 2, 8), (1200.0, "trips"));
        let [local, half, remote] =
            [0, 50, 100].map(|remote_percent| Asked::Rate { remote_percent });
        // Two cores, on which a call takes 200 + 200 ns, and 100 more to another node.
        assert_eq!(predicted(local, 2, 8), (5000.0, "processors"));
        assert_eq!(predicted(remote, 2, 8), (4000.0, "processors"));
        // A core for each: two daemons, which need 100 + 50, and 100 more for calls of other nodes.
        assert_eq!(predicted(local, 10, 64), (13333.0, "daemons"));
        assert_eq!(predicted(half, 10, 64), (10000.0, "daemons"));
        assert_eq!(predicted(remote, 10, 64), (8000.0, "daemons"));
        // Two nodes with four calls each, of 1200 ns.
        assert_eq!(predicted(remote, 10, 1), (6667.0, "trips"));
    }

    #[test]
    fn numbers_of_benchmarks_are_found_by_name() {
        let row = |cell: &str, regime: &str, metric: &str, median: f64| {
            format!(
                "{{\"cell\":\"{cell}\",\"regime\":\"{regime}\",\"metric\":\"{metric}\",\"median\":{median}}}\n"
            )
        };
        let text = [
            row("ipc/round-trip/56B", "all", "round-trip", 1.0),
            row("ipc/round-trip/56B", "line 90 ns", "round-trip", 9.0),
            row("delegation/2x4/local/2000keys", "all", "rate", 2.0),
            row("delegation/2x4/2000keys", "all", "rate", 3.0),
            row("delegation/2x4/2000keys/remote", "all", "rate", 9.0),
            row("delegation/2x4/remote/2000keys", "all", "rate", 4.0),
        ];
        let medians = Medians::read(&text.concat());
        assert_eq!(medians.cell("ipc/round-trip/56B").unwrap(), 1.0);
        assert_eq!(medians.of_store(Some("/local"), "rate").unwrap(), 2.0);
        assert_eq!(medians.of_store(None, "rate").unwrap(), 3.0);
        assert_eq!(medians.of_store(Some("/remote"), "rate").unwrap(), 4.0);
        assert!(medians.cell("rpc").is_err() && medians.of_store(None, "latency").is_err());
    }

    #[test]
    fn a_prediction_stands_beside_what_was_measured_within_80_columns() {
        let at = Circumstances { cores: 2, clients: 4, depth: 8 };
        let store =
            [1250.0, 4000.0, 4400.0, 4000.0].map(|measured| OfStore { measured, switches: 0.0 });
        let text = text_of(&[Outcome::new(SEGMENTS, store, at); 6], at);
        let row_of = |name: &str| {
            let found = text.lines().map(str::trim).find(|line| line.starts_with(name));
            found.unwrap_or_else(|| panic!("no row {name}: {text}"))
        };
        let local = row_of("local");
        assert!(local.contains("0.80") && local.ends_with("missed"), "{local}");
        let latency = row_of("one remote call");
        assert!(latency.contains("1.04") && latency.ends_with("met"), "{latency}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
