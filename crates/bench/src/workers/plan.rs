//! The cells of `bench rpc`.

use crate::{
    plan::{
        LINE_ROUND_TRIP, LINE_STREAM, SMALL_BYTES, planned, raw_round_trip, raw_round_trip_of,
        references_of_lines, size, sizes, small_round_trips, streams,
    },
    report::Metric,
    suite::{Job, Planned},
    workers::{WorkerCalls, switches::Grid},
};

/// Calls of 32 B each way: endpoints and calls in flight over all of them.
pub(super) const LOADS: [(&str, u16, u16); 3] =
    [("1-endpoint-qd1", 1, 1), ("1-endpoint-qd32", 1, 32), ("8-endpoints-qd256", 8, 256)];
/// Bodies that the raw traffic does not reach.
const SIZES_BEYOND: [usize; 2] = [4 << 20, 16 << 20];
/// What a round trip of calls is compared with.
const RAW_ROUND_TRIP: &str = "round-trip/rc-write-imm/32B";
/// What a rate of calls is compared with.
const RAW_RATE: &str = "rate/rc-write-imm/32B/srq";

/// What is measured through workers, after what it is compared with, at every point of `grid`.
#[must_use]
pub fn plan(quick: bool, grid: &Grid) -> Vec<Planned> {
    let mut plan = references_of_lines();
    let raw = streams().into_iter().chain(small_round_trips());
    plan.extend(raw.filter(|p| [RAW_RATE, RAW_ROUND_TRIP].contains(&p.cell.name.as_str())));
    let sizes = sizes(quick);
    plan.extend(sizes.iter().map(|&len_bytes| raw_round_trip(len_bytes)));
    for (switches, suffix) in grid.points() {
        for (load, endpoints, depth) in LOADS {
            let calls = WorkerCalls { switches, endpoints, depth, len_bytes: SMALL_BYTES };
            plan.push(planned_calls(&name_of(load, &suffix), calls));
        }
        plan.extend(sizes.iter().chain(&SIZES_BEYOND).map(|&len_bytes| {
            let calls = WorkerCalls { switches, endpoints: 1, depth: 1, len_bytes };
            planned_calls(&format!("rpc/round-trip/{}{suffix}", size(len_bytes)), calls)
        }));
    }
    plan
}

/// The cell of a load at a point of the grid.
pub(super) fn name_of(load: &str, suffix: &str) -> String {
    format!("rpc/{load}/32B{suffix}")
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
