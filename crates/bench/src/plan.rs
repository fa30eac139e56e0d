//! The cells of `bench limit` and `bench verbs`.

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
};

/// Reference of every round trip.
pub const LINE_ROUND_TRIP: &str = "limit/line-round-trip/processes";
/// What a small WRITE WITH IMMEDIATE moves, without a NIC.
pub const ANNOUNCED_ROUND_TRIP: &str = "limit/announced-round-trip/32B";
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
pub(crate) const SMALL_BYTES: usize = 32;

/// What the machine can do without a NIC.
#[must_use]
pub fn limits(quick: bool) -> Vec<Planned> {
    let mut plan =
        vec![planned("limit/line-round-trip/threads", Metric::RoundTrip, Job::Threads).lines(2.0)];
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

pub(crate) fn sizes(quick: bool) -> &'static [usize] {
    if quick { &SIZES_QUICK } else { &SIZES }
}

/// What two processes reach with bare cache lines.
pub(crate) fn references_of_lines() -> Vec<Planned> {
    vec![
        planned(LINE_ROUND_TRIP, Metric::RoundTrip, Job::Processes).lines(2.0),
        against(
            planned(ANNOUNCED_ROUND_TRIP, Metric::RoundTrip, Job::Announced).lines(4.0),
            LINE_ROUND_TRIP,
        ),
        planned(LINE_STREAM, Metric::Rate, Job::Stream).lines(1.0),
    ]
}

fn references(quick: bool) -> Vec<Planned> {
    let mut plan = references_of_lines();
    let copy = |&len_bytes| planned(&copy_of(len_bytes), Metric::Bandwidth, Job::Copy(len_bytes));
    plan.extend(sizes(quick).iter().map(copy));
    plan
}

pub(crate) fn streams() -> Vec<Planned> {
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

pub(crate) fn small_round_trips() -> Vec<Planned> {
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
    let mut cells: Vec<_> = talks.into_iter().chain(remotes).map(plan).collect();
    for planned in &mut cells {
        let is_announced = matches!(planned.job, Job::Traffic(Traffic::RoundTrip(talk))
            if talk.verb != RoundTripVerb::Write);
        planned.cell.floor = is_announced.then(|| ANNOUNCED_ROUND_TRIP.to_owned());
    }
    cells
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

pub(crate) fn raw_round_trip_of(len_bytes: usize) -> String {
    format!("round-trip/rc-write-imm/{}", size(len_bytes))
}

pub(crate) fn raw_round_trip(len_bytes: usize) -> Planned {
    let verb = RoundTripVerb::WriteImm;
    let talk = Traffic::RoundTrip(RoundTrip { link: LinkKind::Rc, verb, len_bytes });
    let name = raw_round_trip_of(len_bytes);
    against(planned(&name, Metric::RoundTrip, Job::Traffic(talk)), LINE_ROUND_TRIP)
}

pub(crate) fn planned(name: &str, metric: Metric, job: Job) -> Planned {
    Planned {
        cell: Cell { name: name.to_owned(), metric, versus: None, floor: None, lines: None },
        job,
    }
}

pub(crate) fn against(mut planned: Planned, reference: &str) -> Planned {
    planned.cell.versus = Some(reference.to_owned());
    planned
}

/// `64B`, `4KiB`, `1MiB`.
pub(crate) fn size(bytes: usize) -> String {
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
        use crate::{calls, threads, workers};
        let workers = |quick| workers::plan(quick, &workers::switches::Grid::default());
        let plans = [limits, verbs, calls::plan, threads::plan, workers];
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
