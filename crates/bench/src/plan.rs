//! The cells of `bench limit`, `bench verbs` and `bench rpc`.

use crate::{
    limit::COPY_WINDOW_BYTES,
    report::{Cell, Metric},
    suite::{Job, Planned},
    traffic::{
        LinkKind, Traffic,
        remote::Remote,
        round_trip::{RoundTrip, RoundTripVerb},
        stream::{Stream, StreamVerb},
        transfer::{Transfer, TransferVerb},
    },
    workers::{WorkerCalls, switches::Grid},
};

/// Reference of every round trip.
pub const LINE_ROUND_TRIP: &str = "limit/line-round-trip/processes";
/// Reference of every rate.
pub const LINE_STREAM: &str = "limit/line-stream/64B";

/// Sizes of the sweep.
const SIZES: [usize; 9] =
    [8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, COPY_WINDOW_BYTES];
/// The same, to be quick.
const SIZES_QUICK: [usize; 4] = [64, 4 << 10, 64 << 10, COPY_WINDOW_BYTES];
/// Messages per doorbell where doorbells are batched.
const BATCH: u16 = 32;
/// Bytes of a small message.
const SMALL_BYTES: usize = 32;

/// What the machine can do without a NIC.
#[must_use]
pub fn limits(quick: bool) -> Vec<Planned> {
    let mut plan = vec![planned("limit/line-round-trip/threads", Metric::RoundTrip, Job::Threads)];
    plan.extend(references(quick));
    plan
}

/// What is measured through a NIC, after what it is compared with.
#[must_use]
pub fn verbs(quick: bool) -> Vec<Planned> {
    let mut plan = references(quick);
    plan.extend(streams());
    plan.extend(small_round_trips());
    plan.extend(relaxed_transfers());
    for &len_bytes in sizes(quick) {
        plan.extend(sweep(len_bytes));
    }
    plan
}

fn sizes(quick: bool) -> &'static [usize] {
    if quick { &SIZES_QUICK } else { &SIZES }
}

fn references(quick: bool) -> Vec<Planned> {
    let mut plan = vec![
        planned(LINE_ROUND_TRIP, Metric::RoundTrip, Job::Processes),
        planned(LINE_STREAM, Metric::Rate, Job::Stream),
    ];
    let copy = |&len_bytes| planned(&copy_of(len_bytes), Metric::Bandwidth, Job::Copy(len_bytes));
    plan.extend(sizes(quick).iter().map(copy));
    plan
}

fn streams() -> Vec<Planned> {
    use LinkKind::{Rc, Srq, Ud};
    use StreamVerb::{Send, WriteImm};
    [
        ("rate/rc-send/32B/doorbell-batched", Rc, Send, BATCH),
        ("rate/rc-send/32B/doorbell-each", Rc, Send, 1),
        ("rate/rc-write-imm/32B/doorbell-batched", Rc, WriteImm, BATCH),
        ("rate/rc-write-imm/32B/doorbell-each", Rc, WriteImm, 1),
        ("rate/rc-write-imm/32B/srq", Srq, WriteImm, BATCH),
        ("rate/ud-send/32B/doorbell-batched", Ud, Send, BATCH),
    ]
    .map(|(name, link, verb, batch)| {
        let traffic = Traffic::Stream(Stream { link, verb, batch });
        against(planned(name, Metric::Rate, Job::Traffic(traffic)), LINE_STREAM)
    })
    .into()
}

fn small_round_trips() -> Vec<Planned> {
    use LinkKind::{Rc, Ud};
    let talks = [
        ("round-trip/rc-send/32B", Rc, RoundTripVerb::Send),
        ("round-trip/rc-write-imm/32B", Rc, RoundTripVerb::WriteImm),
        ("round-trip/rc-write-poll-memory/32B", Rc, RoundTripVerb::Write),
        ("round-trip/ud-send/32B", Ud, RoundTripVerb::Send),
    ]
    .map(|(name, link, verb)| {
        (name, Traffic::RoundTrip(RoundTrip { link, verb, len_bytes: SMALL_BYTES }))
    });
    let remotes = [
        ("latency/rc-read/8B", Remote::Read),
        ("latency/rc-fetch-add/8B", Remote::FetchAdd),
        ("latency/rc-compare-swap/8B", Remote::CompareSwap),
    ]
    .map(|(name, remote)| (name, Traffic::Remote(remote)));
    let plan = |(name, traffic)| {
        against(planned(name, Metric::RoundTrip, Job::Traffic(traffic)), LINE_ROUND_TRIP)
    };
    talks.into_iter().chain(remotes).map(plan).collect()
}

fn relaxed_transfers() -> [Planned; 2] {
    [
        transfer("rc-write-relaxed", LinkKind::Relaxed, TransferVerb::Write, COPY_WINDOW_BYTES),
        transfer("rc-read-relaxed", LinkKind::Relaxed, TransferVerb::Read, COPY_WINDOW_BYTES),
    ]
}

fn sweep(len_bytes: usize) -> [Planned; 4] {
    [
        raw_round_trip(len_bytes),
        transfer("rc-write", LinkKind::Rc, TransferVerb::Write, len_bytes),
        transfer("rc-read", LinkKind::Rc, TransferVerb::Read, len_bytes),
        transfer("rc-send", LinkKind::Rc, TransferVerb::Send, len_bytes),
    ]
}

fn transfer(name: &str, link: LinkKind, verb: TransferVerb, len_bytes: usize) -> Planned {
    let name = format!("bandwidth/{name}/{}", size(len_bytes));
    let traffic = Traffic::Transfer(Transfer { link, verb, len_bytes });
    against(planned(&name, Metric::Bandwidth, Job::Traffic(traffic)), &copy_of(len_bytes))
}

fn copy_of(len_bytes: usize) -> String {
    format!("limit/memcpy/{}", size(len_bytes))
}

/// WorkerCalls of 32 B each way: endpoints and calls in flight over all of them.
const LOADS: [(&str, u16, u16); 3] =
    [("1-endpoint-qd1", 1, 1), ("1-endpoint-qd32", 1, 32), ("8-endpoints-qd256", 8, 256)];
/// Bodies that the raw traffic does not reach.
const SIZES_BEYOND: [usize; 2] = [4 << 20, 16 << 20];
/// What a round trip of calls is compared with.
const RAW_ROUND_TRIP: &str = "round-trip/rc-write-imm/32B";
/// What a rate of calls is compared with.
const RAW_RATE: &str = "rate/rc-write-imm/32B/srq";

/// What is measured through workers, after what it is compared with, at every point of `grid`.
#[must_use]
pub fn rpc(quick: bool, grid: &Grid) -> Vec<Planned> {
    let mut plan = references(quick);
    plan.retain(|planned| !matches!(planned.job, Job::Copy(_)));
    let raw = streams().into_iter().chain(small_round_trips());
    plan.extend(raw.filter(|p| [RAW_RATE, RAW_ROUND_TRIP].contains(&p.cell.name.as_str())));
    let sizes = sizes(quick);
    plan.extend(sizes.iter().map(|&len_bytes| raw_round_trip(len_bytes)));
    for (switches, suffix) in grid.points() {
        for (load, endpoints, depth) in LOADS {
            let calls = WorkerCalls { switches, endpoints, depth, len_bytes: SMALL_BYTES };
            plan.push(planned_calls(&format!("rpc/{load}/32B{suffix}"), calls));
        }
        plan.extend(sizes.iter().chain(&SIZES_BEYOND).map(|&len_bytes| {
            let calls = WorkerCalls { switches, endpoints: 1, depth: 1, len_bytes };
            planned_calls(&format!("rpc/round-trip/{}{suffix}", size(len_bytes)), calls)
        }));
    }
    plan
}

fn planned_calls(name: &str, calls: WorkerCalls) -> Planned {
    let (metric, raw, floor) = match (calls.depth, calls.len_bytes) {
        (1, SMALL_BYTES) => (Metric::RoundTrip, RAW_ROUND_TRIP.to_owned(), LINE_ROUND_TRIP),
        (1, len_bytes) => (Metric::RoundTrip, raw_round_trip_of(len_bytes), LINE_ROUND_TRIP),
        _ => (Metric::Rate, RAW_RATE.to_owned(), LINE_STREAM),
    };
    let mut planned = planned(name, metric, Job::Worker(calls));
    if !SIZES_BEYOND.contains(&calls.len_bytes) {
        (planned.cell.versus, planned.cell.floor) = (Some(raw), Some(floor.to_owned()));
    }
    planned
}

fn raw_round_trip_of(len_bytes: usize) -> String {
    format!("round-trip/rc-write-imm/{}", size(len_bytes))
}

fn raw_round_trip(len_bytes: usize) -> Planned {
    let verb = RoundTripVerb::WriteImm;
    let talk = Traffic::RoundTrip(RoundTrip { link: LinkKind::Rc, verb, len_bytes });
    let name = raw_round_trip_of(len_bytes);
    against(planned(&name, Metric::RoundTrip, Job::Traffic(talk)), LINE_ROUND_TRIP)
}

fn planned(name: &str, metric: Metric, job: Job) -> Planned {
    let cell = Cell { name: name.to_owned(), metric, versus: None, floor: None };
    Planned { cell, job }
}

fn against(mut planned: Planned, reference: &str) -> Planned {
    planned.cell.versus = Some(reference.to_owned());
    planned
}

/// `64B`, `4KiB`, `1MiB`.
fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{}MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{}KiB", b >> 10),
        b => format!("{b}B"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_references_are_measured_in_the_same_run() {
        let grid = Grid::default();
        let rpc = [rpc(false, &grid), rpc(true, &grid)];
        let plans = [limits(false), limits(true), verbs(false), verbs(true)];
        for plan in plans.into_iter().chain(rpc) {
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
        for planned in verbs(false) {
            let Job::Traffic(Traffic::Transfer(transfer)) = planned.job else { continue };
            let reference = planned.cell.versus.unwrap();
            assert_eq!(reference, copy_of(transfer.len_bytes));
        }
    }

    #[test]
    fn being_quick_means_fewer_cells() {
        assert!(verbs(true).len() < verbs(false).len());
        assert_eq!(size(8), "8B");
        assert_eq!(size(64 << 10), "64KiB");
        assert_eq!(size(1 << 20), "1MiB");
    }
}
