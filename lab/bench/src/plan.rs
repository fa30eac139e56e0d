//! The cells of every benchmark but `bench kv`: what is reported, what is done, and what it is compared with.
//!
//! A row is added here: a [`Planned`] with a name, what its number means, and what is done; references stand before
//! the cells that name them.

use std::time::Duration;

use crate::{
    beside,
    calls::{Calls, DEPTH, Shape},
    delegated::{self, ANSWER_BYTES_MAX, DelegatedCalls, LongService},
    job::Job,
    limit::{COPY_WINDOW_BYTES, SharedLimit},
    results::{Cell, Metric},
    threads::{self, ThreadTraffic},
    traffic::{LinkKind, OneWay, Remote, RoundTrip, SMALL_BYTES, Traffic, Verb},
    workers::{
        WorkerCalls,
        matrix::name_of,
        switches::{CallLoad, Grid, Switches},
    },
};

/// Reference of every round trip.
pub(crate) const LINE_ROUND_TRIP: &str = "limit/line-round-trip/processes";
/// Between two processes that share a core and hand it over: two changes of process.
const ONE_CORE_ROUND_TRIP: &str = "limit/round-trip/one-core";
/// What a small WRITE WITH IMMEDIATE moves, without a NIC.
const ANNOUNCED_ROUND_TRIP: &str = "limit/announced-round-trip/32B";
/// Reference of every rate.
pub(crate) const LINE_STREAM: &str = "limit/line-stream/64B";
/// Reference of every call: what two processes do with a ring of one-line slots and nothing else.
const SLOT_ROUND_TRIP: &str = "limit/slot-round-trip/56B";
/// Reference of every rate of calls.
const SLOT_RATE: &str = "limit/slot-window-32/56B";
/// What a small round trip and a rate of calls are compared with.
pub(crate) const RAW_ROUND_TRIP: &str = "round-trip/rc-write-imm/32B";
pub(crate) const RAW_RATE: &str = "rate/rc-write-imm/32B/srq";

/// Duration of the line's round trips, and of those before it that do not count.
const LINE_WINDOW: Duration = Duration::from_millis(15);

/// Sizes of the sweeps.
const SIZES: [usize; 11] = [
    8,
    56,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    COPY_WINDOW_BYTES,
    4 << 20,
    16 << 20,
];
/// The same, to be quick.
const SIZES_QUICK: [usize; 4] = [56, 4 << 10, 64 << 10, COPY_WINDOW_BYTES];
/// Messages of `ipc` that lie beside their slot, in memory that is allocated with the connection.
const LINE_BYTES: usize = 64;
const EAGER_BYTES: usize = 4096;
/// Longest message of `ipc`, whose length has 24 bits.
const IPC_BYTES_MAX: usize = (16 << 20) - 64;
/// Of a small call whose slowest are looked for.
const TAIL_BYTES: usize = 56;
/// Messages per doorbell where doorbells are batched: of small ones, and of large ones.
const BATCH: u16 = 32;
const BATCH_LARGE: u16 = 16;

/// How a cell is measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Measurement {
    /// Two-line round trip between two threads of this process.
    Threads,
    /// `memcpy` inside this process, in pieces of so many bytes.
    Copy(usize),
    /// Between threads of this process.
    Queue(ThreadTraffic),
    /// By both processes together.
    Together(Job),
}

impl Measurement {
    /// Bytes that an operation moves, as far as they decide how many fit a sample.
    pub(crate) fn len_bytes(&self) -> u64 {
        if let Self::Together(job) = self { job.len_bytes() as u64 } else { 0 }
    }

    /// Operations of a sample with this count; `None`: samples are as long as they are.
    pub(crate) fn operations(&self, count: u64) -> Option<u64> {
        match self {
            Self::Threads | Self::Copy(_) => None,
            Self::Together(Job::Limit(SharedLimit::RoundTrip { .. })) => None,
            Self::Queue(_) | Self::Together(_) => Some(count),
        }
    }

    /// Time per operation, in ns, of a sample whose number was `value`; `None`: samples are as long as they are.
    pub(crate) fn message_ns(&self, metric: Metric, value: f64) -> Option<f64> {
        match self {
            Self::Threads | Self::Copy(_) => None,
            Self::Together(Job::Limit(SharedLimit::RoundTrip { .. })) => None,
            Self::Queue(_) => Some(metric.each_ns(value, 0)),
            Self::Together(job) => Some(job.message_ns(metric, value)),
        }
    }
}

/// A cell and how it is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The cell of the table that the numbers go to.
    pub cell: Cell,
    /// Work that is measured.
    pub measurement: Measurement,
}

impl Planned {
    /// A cell that is compared with nothing, but for what a card had.
    #[must_use]
    pub fn new(name: impl Into<String>, metric: Metric, measurement: Measurement) -> Self {
        let (name, versus, floor, lines) = (name.into(), None, None, None);
        let reference = beside::of_cell(&name, metric);
        let cell = Cell { name, metric, versus, floor, lines, reference };
        Self { cell, measurement }
    }

    /// Compares it with another cell.
    #[must_use]
    pub fn against(mut self, reference: impl Into<String>) -> Self {
        self.cell.versus = Some(reference.into());
        self
    }

    /// Compares it with what the machine can do, too.
    #[must_use]
    pub fn floor(mut self, reference: impl Into<String>) -> Self {
        self.cell.floor = Some(reference.into());
        self
    }

    /// States how many cache lines an operation of the cell is designed to move.
    #[must_use]
    pub fn lines(mut self, lines: f64) -> Self {
        self.cell.lines = Some(lines);
        self
    }
}

/// Keeps the cells whose name contains `filter`, what they are compared with, and so on.
#[must_use]
pub fn select(plan: Vec<Planned>, filter: &str) -> Vec<Planned> {
    let mut kept = vec![false; plan.len()];
    // References stand before the cells that name them.
    for index in (0..plan.len()).rev() {
        kept[index] |= plan[index].cell.name.contains(filter);
        if !kept[index] {
            continue;
        }
        let Cell { versus, floor, .. } = &plan[index].cell;
        for reference in [versus, floor].into_iter().flatten() {
            let found = plan.iter().position(|planned| planned.cell.name == *reference);
            found.into_iter().for_each(|found| kept[found] = true);
        }
    }
    plan.into_iter().zip(kept).filter_map(|(planned, kept)| kept.then_some(planned)).collect()
}

/// `64B`, `4KiB`, `1MiB`.
pub(crate) fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{}MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{}KiB", b >> 10),
        b => format!("{b}B"),
    }
}

fn sizes(quick: bool) -> &'static [usize] {
    if quick { &SIZES_QUICK } else { &SIZES }
}

fn limit(name: &str, metric: Metric, limit: SharedLimit, lines: f64) -> Planned {
    Planned::new(name, metric, Measurement::Together(Job::Limit(limit))).lines(lines)
}

fn traffic(name: impl Into<String>, metric: Metric, traffic: Traffic) -> Planned {
    Planned::new(name, metric, Measurement::Together(Job::Traffic(traffic)))
}

/// What two processes reach with bare cache lines.
pub(crate) fn references_of_lines() -> Vec<Planned> {
    let line = SharedLimit::RoundTrip { window: LINE_WINDOW };
    vec![
        limit(LINE_ROUND_TRIP, Metric::RoundTrip, line, 2.0),
        limit(ANNOUNCED_ROUND_TRIP, Metric::RoundTrip, SharedLimit::Announced, 4.0)
            .against(LINE_ROUND_TRIP),
        limit(LINE_STREAM, Metric::Rate, SharedLimit::Stream, 1.0),
    ]
}

fn copy_of(len_bytes: usize) -> String {
    format!("limit/memcpy/{}", size(len_bytes))
}

fn copies(sizes: &[usize]) -> impl Iterator<Item = Planned> {
    let copy = |&len_bytes: &usize| {
        Planned::new(copy_of(len_bytes), Metric::Bandwidth, Measurement::Copy(len_bytes))
    };
    sizes.iter().map(copy)
}

/// What the machine can do without a NIC.
#[must_use]
pub fn limits(quick: bool) -> Vec<Planned> {
    let threads =
        Planned::new("limit/line-round-trip/threads", Metric::RoundTrip, Measurement::Threads);
    let lines = references_of_lines();
    let one_core = Measurement::Together(Job::OneCore);
    let one_core = Planned::new(ONE_CORE_ROUND_TRIP, Metric::RoundTrip, one_core);
    let ends = [one_core.against(LINE_ROUND_TRIP)].into_iter().chain(copies(sizes(quick)));
    [threads.lines(2.0)].into_iter().chain(lines).chain(ends).collect()
}

/// What is measured through a NIC, after what it is compared with.
#[must_use]
pub fn verbs(quick: bool) -> Vec<Planned> {
    let mut plan = references_of_lines();
    plan.extend(copies(sizes(quick)));
    plan.extend(small_streams());
    plan.extend(small_round_trips());
    for (name, verb) in [("rc-write-relaxed", Verb::Write), ("rc-read-relaxed", Verb::Read)] {
        plan.push(transfer(name, LinkKind::Relaxed, verb, COPY_WINDOW_BYTES));
    }
    for &len_bytes in sizes(quick) {
        plan.push(raw_round_trip(len_bytes));
        plan.push(transfer("rc-write", LinkKind::Rc, Verb::Write, len_bytes));
        plan.push(transfer("rc-read", LinkKind::Rc, Verb::Read, len_bytes));
        plan.push(transfer("rc-send", LinkKind::Rc, Verb::Send, len_bytes));
    }
    plan
}

pub(crate) fn small_streams() -> Vec<Planned> {
    use LinkKind::{Rc, Srq, Ud};
    let streams = [
        ("rate/rc-send/32B/doorbell-batched", Rc, Verb::Send, BATCH),
        ("rate/rc-send/32B/doorbell-each", Rc, Verb::Send, 1),
        ("rate/rc-write-imm/32B/doorbell-batched", Rc, Verb::WriteImm, BATCH),
        ("rate/rc-write-imm/32B/doorbell-each", Rc, Verb::WriteImm, 1),
        (RAW_RATE, Srq, Verb::WriteImm, BATCH),
        ("rate/ud-send/32B/doorbell-batched", Ud, Verb::Send, BATCH),
    ];
    let plan = |(name, link, verb, batch)| {
        let stream = OneWay { link, verb, len_bytes: SMALL_BYTES, batch };
        traffic(name, Metric::Rate, Traffic::OneWay(stream)).against(LINE_STREAM)
    };
    streams.map(plan).into()
}

pub(crate) fn small_round_trips() -> Vec<Planned> {
    use LinkKind::{Rc, Ud};
    let talks = [
        ("round-trip/rc-send/32B", Rc, Verb::Send),
        (RAW_ROUND_TRIP, Rc, Verb::WriteImm),
        ("round-trip/rc-write-poll-memory/32B", Rc, Verb::Write),
        ("round-trip/ud-send/32B", Ud, Verb::Send),
    ];
    let talks = talks.map(|(name, link, verb)| {
        let talk = Traffic::RoundTrip(RoundTrip { link, verb, len_bytes: SMALL_BYTES });
        let planned = traffic(name, Metric::RoundTrip, talk).against(LINE_ROUND_TRIP);
        if verb == Verb::Write { planned } else { planned.floor(ANNOUNCED_ROUND_TRIP) }
    });
    let remotes = [
        ("latency/rc-read/8B", Remote::Read),
        ("latency/rc-fetch-add/8B", Remote::FetchAdd),
        ("latency/rc-compare-swap/8B", Remote::CompareSwap),
    ];
    let remotes = remotes.map(|(name, remote)| {
        traffic(name, Metric::RoundTrip, Traffic::Remote(remote)).against(LINE_ROUND_TRIP)
    });
    talks.into_iter().chain(remotes).collect()
}

fn transfer_of(name: &str, len_bytes: usize) -> String {
    format!("bandwidth/{name}/{}", size(len_bytes))
}

fn transfer(name: &str, link: LinkKind, verb: Verb, len_bytes: usize) -> Planned {
    let one_way = Traffic::OneWay(OneWay { link, verb, len_bytes, batch: BATCH_LARGE });
    traffic(transfer_of(name, len_bytes), Metric::Bandwidth, one_way).against(copy_of(len_bytes))
}

pub(crate) fn raw_round_trip_of(len_bytes: usize) -> String {
    format!("round-trip/rc-write-imm/{}", size(len_bytes))
}

pub(crate) fn raw_round_trip(len_bytes: usize) -> Planned {
    let talk =
        Traffic::RoundTrip(RoundTrip { link: LinkKind::Rc, verb: Verb::WriteImm, len_bytes });
    traffic(raw_round_trip_of(len_bytes), Metric::RoundTrip, talk).against(LINE_ROUND_TRIP)
}

/// The cells of `bench rpc`, after what they are compared with, at every point of `grid`.
#[must_use]
pub fn rpc(quick: bool, grid: &Grid) -> Vec<Planned> {
    let mut plan = references_of_lines();
    let small = small_streams().into_iter().chain(small_round_trips());
    plan.extend(small.filter(|p| [RAW_RATE, RAW_ROUND_TRIP].contains(&p.cell.name.as_str())));
    plan.extend(copies(sizes(quick)));
    for &len_bytes in sizes(quick) {
        plan.push(raw_round_trip(len_bytes));
        plan.push(transfer("rc-write", LinkKind::Rc, Verb::Write, len_bytes));
    }
    for (switches, suffix) in grid.points() {
        let calls = |endpoints, depth, len_bytes, is_one_way| {
            let switches = switches.clone();
            let tail_beside = None;
            let calls =
                WorkerCalls { switches, endpoints, depth, len_bytes, is_one_way, tail_beside };
            Measurement::Together(Job::Worker(calls))
        };
        for CallLoad { name: load, endpoints, depth } in &grid.loads {
            let (metric, raw, line) = match depth {
                1 => (Metric::RoundTrip, RAW_ROUND_TRIP, LINE_ROUND_TRIP),
                _ => (Metric::Rate, RAW_RATE, LINE_STREAM),
            };
            let calls = calls(*endpoints, *depth, SMALL_BYTES, false);
            plan.push(Planned::new(name_of(load, &suffix), metric, calls).against(raw).floor(line));
        }
        plan.extend(tails(&switches, &suffix));
        for &len_bytes in sizes(quick) {
            let name = |what: &str| format!("rpc/{what}/{}{suffix}", size(len_bytes));
            let (there_and_back, there) =
                (calls(1, 1, len_bytes, false), calls(1, 4, len_bytes, true));
            let round_trip = Planned::new(name("round-trip"), Metric::RoundTrip, there_and_back);
            plan.push(round_trip.against(raw_round_trip_of(len_bytes)).floor(LINE_ROUND_TRIP));
            let one_way = Planned::new(name("one-way"), Metric::Bandwidth, there);
            let raw = transfer_of("rc-write", len_bytes);
            plan.push(one_way.against(raw).floor(copy_of(len_bytes)));
        }
    }
    plan
}

/// What 99 of 100 small calls stay below, alone and beside a stream of long bodies over another connection of the
/// same workers.
fn tails(switches: &Switches, suffix: &str) -> [Planned; 2] {
    let plan = |name: String, beside| {
        let calls = WorkerCalls {
            switches: switches.clone(),
            endpoints: 2,
            depth: 1,
            len_bytes: TAIL_BYTES,
            is_one_way: false,
            tail_beside: Some(beside),
        };
        Planned::new(name, Metric::RoundTrip, Measurement::Together(Job::Worker(calls)))
    };
    let quiet = format!("rpc/p99/{}{suffix}", size(TAIL_BYTES));
    let beside = format!("{quiet}/beside-{}", size(COPY_WINDOW_BYTES));
    [
        plan(quiet.clone(), 0).against(LINE_ROUND_TRIP),
        plan(beside, COPY_WINDOW_BYTES).against(quiet),
    ]
}

/// Clients of `bench ipc` and their calls in flight, of which every combination is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpcGrid {
    /// Clients; none given: as the table of cells has them.
    pub clients: Vec<u16>,
    /// Calls in flight of each.
    pub depths: Vec<u16>,
    /// Slots of the rings.
    pub rings: Vec<u16>,
}

impl IpcGrid {
    /// Whether no ring has a slot for each call in flight of a client: then there is no combination.
    #[must_use]
    pub fn is_without_room(&self) -> bool {
        *self != Self::default() && ipc_of_grid(self).is_empty()
    }
}

/// Cells of `grid`: clients that one thread polls in turn, and client processes.
fn ipc_of_grid(grid: &IpcGrid) -> Vec<Planned> {
    let or =
        |values: &[u16], default| if values.is_empty() { vec![default] } else { values.to_vec() };
    let mut cells = Vec::<Planned>::new();
    for &ring in &or(&grid.rings, DEPTH) {
        for &clients in &or(&grid.clients, 16) {
            // More calls than the ring has slots for wait in the client.
            let depths = or(&grid.depths, 1).into_iter().filter(|depth| *depth <= ring);
            for shape in depths.flat_map(|depth| [Shape::Window(depth), Shape::Processes(depth)]) {
                let mut planned = ipc_calls_in(56, clients, ring, shape);
                if grid.rings.len() > 1 {
                    planned.cell.name += &format!("/ring-{ring}");
                }
                if cells.iter().all(|cell| cell.cell.name != planned.cell.name) {
                    cells.push(planned);
                }
            }
        }
    }
    cells
}

/// The cells of `bench ipc`, after what they are compared with; those of `grid` instead, if it has any.
#[must_use]
pub fn ipc(quick: bool, grid: &IpcGrid) -> Vec<Planned> {
    let mut plan = references_of_lines();
    let slots = |in_flight| SharedLimit::Slots { in_flight };
    plan.push(limit(SLOT_ROUND_TRIP, Metric::RoundTrip, slots(1), 2.0).against(LINE_ROUND_TRIP));
    plan.push(limit(SLOT_RATE, Metric::Rate, slots(32), 2.0).against(LINE_STREAM));
    if *grid != IpcGrid::default() {
        plan.extend(ipc_of_grid(grid));
        return plan;
    }
    let sizes = sizes(quick).iter().map(|&bytes| bytes.min(IPC_BYTES_MAX)).collect::<Vec<_>>();
    plan.extend(copies(&sizes));
    for &len_bytes in &sizes {
        plan.push(ipc_calls(len_bytes, 1, Shape::RoundTrip));
        if (LINE_BYTES..=EAGER_BYTES).contains(&len_bytes) {
            plan.push(ipc_calls(len_bytes, 1, Shape::InPlace));
        }
        if len_bytes > SMALL_BYTES {
            plan.push(ipc_calls(len_bytes, 1, Shape::OneWay));
        }
    }
    let clients: &[u16] = if quick { &[1, 4] } else { &[1, 2, 4, 8, 16] };
    for &clients in clients {
        plan.extend([1, 4, 32].map(|depth| ipc_calls(56, clients, Shape::Window(depth))));
    }
    let processes: &[u16] = if quick { &[4] } else { &[4, 16] };
    for &clients in processes {
        plan.extend([1, 4].map(|depth| ipc_calls(56, clients, Shape::Processes(depth))));
    }
    plan.extend([8, 4096].map(|len_bytes| ipc_calls(len_bytes, 1, Shape::Window(32))));
    plan.push(ipc_calls(56, 1, Shape::AfterIdle));
    plan
}

fn ipc_calls(len_bytes: usize, clients: u16, shape: Shape) -> Planned {
    ipc_calls_in(len_bytes, clients, DEPTH, shape)
}

fn ipc_calls_in(len_bytes: usize, clients: u16, ring: u16, shape: Shape) -> Planned {
    let (calls, len) = (Calls { len_bytes, clients, shape, ring }, size(len_bytes));
    let plan =
        |name: String, metric| Planned::new(name, metric, Measurement::Together(Job::Calls(calls)));
    match shape {
        Shape::RoundTrip => plan(format!("ipc/round-trip/{len}"), Metric::RoundTrip)
            .lines(calls.lines())
            .against(SLOT_ROUND_TRIP),
        // By design the lines of the slots and of the numbers move, and all of one message in sixteen.
        Shape::InPlace => {
            plan(format!("ipc/in-place/{len}"), Metric::RoundTrip).against(SLOT_ROUND_TRIP)
        }
        Shape::OneWay => {
            plan(format!("ipc/one-way/{len}"), Metric::Bandwidth).against(copy_of(len_bytes))
        }
        Shape::Window(depth) => {
            plan(format!("ipc/{clients}-clients/depth-{depth}/{len}"), Metric::Rate)
                .lines(calls.lines())
                .against(SLOT_RATE)
        }
        Shape::Processes(depth) => {
            plan(format!("ipc/{clients}-processes/depth-{depth}/{len}"), Metric::Rate)
                .lines(calls.lines())
                .against(SLOT_RATE)
        }
        // Wake-ups of the kernel: lines do not matter.
        Shape::AfterIdle => {
            plan(format!("ipc/after-idle/{len}"), Metric::RoundTrip).against(SLOT_ROUND_TRIP)
        }
    }
}

/// The cells of `bench daemons`, after what they are compared with.
#[must_use]
pub fn daemons(quick: bool) -> Vec<Planned> {
    let sizes: &[usize] =
        if quick { &[COPY_WINDOW_BYTES] } else { &[COPY_WINDOW_BYTES, 4 << 20, ANSWER_BYTES_MAX] };
    let plan = |name: String, metric, calls| {
        Planned::new(name, metric, Measurement::Together(Job::Delegated(calls)))
    };
    let mut cells: Vec<_> = references_of_lines().into_iter().chain(copies(sizes)).collect();
    for (place, is_local) in [("local", true), ("remote", false)] {
        let calls = |answer_bytes, answers, shape| DelegatedCalls {
            answer_bytes,
            answers,
            is_local,
            shape,
        };
        let quiet = format!("daemons/{place}/p99/{}", size(TAIL_BYTES));
        let alone = calls(0, LongService::Function, delegated::Shape::Tail);
        cells.push(plan(quiet.clone(), Metric::RoundTrip, alone).against(LINE_ROUND_TRIP));
        for (who, answers) in
            [("function", LongService::Function), ("process", LongService::Process)]
        {
            for &len_bytes in sizes {
                let name = |what| format!("daemons/{place}/{who}/{what}/{}", size(len_bytes));
                let round_trip = calls(len_bytes, answers, delegated::Shape::RoundTrip);
                let round_trip = plan(name("round-trip"), Metric::RoundTrip, round_trip);
                cells.push(round_trip.against(LINE_ROUND_TRIP));
                let answers = calls(len_bytes, answers, delegated::Shape::Window);
                let answers = plan(name("answers"), Metric::Bandwidth, answers);
                cells.push(answers.against(copy_of(len_bytes)));
            }
            let beside = calls(COPY_WINDOW_BYTES, answers, delegated::Shape::Tail);
            let name = format!("{quiet}/beside-{}-of-a-{who}", size(COPY_WINDOW_BYTES));
            cells.push(plan(name, Metric::RoundTrip, beside).against(quiet.clone()));
        }
    }
    cells
}

/// The cells of `bench inproc`, after what they are compared with.
#[must_use]
pub fn inproc(quick: bool) -> Vec<Planned> {
    let plan = |queue: ThreadTraffic| {
        let (metric, line) = match queue.is_round_trip() {
            true => (Metric::RoundTrip, LINE_ROUND_TRIP),
            false => (Metric::Rate, LINE_STREAM),
        };
        Planned::new(queue.name(), metric, Measurement::Queue(queue))
            .lines(queue.lines())
            .against(line)
    };
    references_of_lines().into_iter().chain(threads::queues(quick).into_iter().map(plan)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn ipc_by_default(quick: bool) -> Vec<Planned> {
        ipc(quick, &IpcGrid::default())
    }

    #[test]
    fn a_grid_of_ipc_has_both_kinds_of_clients_and_no_more_calls_than_slots() {
        let grid = IpcGrid { clients: vec![2], depths: vec![4, 32], rings: vec![8, 64] };
        let plan = ipc(true, &grid);
        let names = plan.iter().map(|planned| planned.cell.name.as_str());
        let names = names.filter(|name| name.starts_with("ipc/")).collect::<Vec<_>>();
        assert_eq!(
            names,
            [
                "ipc/2-clients/depth-4/56B/ring-8",
                "ipc/2-processes/depth-4/56B/ring-8",
                "ipc/2-clients/depth-4/56B/ring-64",
                "ipc/2-processes/depth-4/56B/ring-64",
                "ipc/2-clients/depth-32/56B/ring-64",
                "ipc/2-processes/depth-32/56B/ring-64",
            ]
        );
    }

    fn rpc_by_default(quick: bool) -> Vec<Planned> {
        rpc(quick, &Grid::default())
    }

    #[test]
    fn names_are_unique_and_references_are_measured_in_the_same_run() {
        let protocols = |quick| {
            let settings = Default::default();
            crate::protocol_plan::plan(quick, &protocols::Protocol::ALL, &[], settings)
        };
        let dc = |quick| {
            let cells = crate::dc_plan::dc_reads(quick, &Default::default());
            [verbs(quick), cells].concat()
        };
        let plans = [limits, verbs, ipc_by_default, inproc, daemons, rpc_by_default, protocols, dc];
        for plan in plans.iter().flat_map(|plan| [plan(false), plan(true)]) {
            let names = plan.iter().map(|p| p.cell.name.as_str()).collect::<BTreeSet<_>>();
            assert_eq!(names.len(), plan.len());
            let references = plan
                .iter()
                .flat_map(|p| [p.cell.versus.as_deref(), p.cell.floor.as_deref()])
                .flatten();
            for reference in references {
                assert!(names.contains(reference), "{reference} is missing");
            }
        }
    }

    #[test]
    fn every_transfer_is_compared_with_a_copy_of_its_size() {
        let is_large = |planned: &Planned| planned.cell.name.starts_with("bandwidth/");
        for planned in verbs(false).into_iter().filter(is_large) {
            let reference = planned.cell.versus.unwrap();
            let len_bytes = usize::try_from(planned.measurement.len_bytes()).unwrap();
            assert_eq!(reference, copy_of(len_bytes));
        }
    }

    #[test]
    fn calls_of_every_size_have_a_round_trip_and_a_bandwidth() {
        for len in ["56B", "256B", "1KiB", "4KiB", "16KiB", "64KiB", "1MiB", "16MiB"] {
            for shape in ["round-trip", "one-way"] {
                let has = |plan: &[Planned], layer: &str, len: &str| {
                    plan.iter().any(|p| p.cell.name == format!("{layer}/{shape}/{len}"))
                };
                assert!(has(&rpc_by_default(false), "rpc", len), "{shape} {len}");
                let longest = size(IPC_BYTES_MAX);
                let len = if len == "16MiB" { &longest } else { len };
                assert!(has(&ipc_by_default(false), "ipc", len), "{shape} {len}");
            }
        }
    }

    #[test]
    fn being_quick_means_fewer_cells() {
        assert!(verbs(true).len() < verbs(false).len());
        assert_eq!(size(8), "8B");
        assert_eq!(size(64 << 10), "64KiB");
        assert_eq!(size(1 << 20), "1MiB");
    }

    fn planned(name: &str, versus: Option<&str>) -> Planned {
        let planned = Planned::new(name, Metric::Rate, Measurement::Threads);
        versus.map_or(planned.clone(), |versus| planned.against(versus))
    }

    #[test]
    fn a_filter_keeps_what_the_chosen_cells_are_compared_with() {
        let plan = vec![
            planned("limit/line", None),
            planned("limit/copy", None),
            planned("limit/slot", Some("limit/line")),
            planned("send", Some("limit/line")),
            planned("write", Some("limit/copy")),
            planned("call", Some("limit/slot")),
        ];
        let names = |plan: Vec<Planned>| {
            plan.into_iter().map(|planned| planned.cell.name).collect::<Vec<_>>()
        };
        assert_eq!(names(select(plan.clone(), "send")), ["limit/line", "send"]);
        assert_eq!(names(select(plan.clone(), "call")), ["limit/line", "limit/slot", "call"]);
        assert_eq!(names(select(plan.clone(), "")).len(), 6);
        assert!(select(plan, "nothing").is_empty());
    }
}
