//! The cells of `bench rpc --protocol`: one table for all protocols.

use protocols::Protocol;

use crate::{
    by_protocol::{ProtocolCalls, ScalerpcSettings},
    job::Job,
    plan::{
        LINE_ROUND_TRIP, LINE_STREAM, Measurement, Planned, RAW_RATE, RAW_ROUND_TRIP,
        raw_round_trip, raw_round_trip_of, references_of_lines, size, small_round_trips,
        small_streams,
    },
    results::Metric,
    traffic::SMALL_BYTES,
    workers::switches::CallLoad,
};

/// What eRPC is compared with.
const UD_ROUND_TRIP: &str = "round-trip/ud-send/32B";
const UD_RATE: &str = "rate/ud-send/32B/doorbell-batched";
/// Lanes and calls in flight of small calls.
const LOADS: [(u16, u16); 3] = [(1, 1), (1, 32), (8, 256)];
/// Lengths of bodies; the longest fits eRPC on InfiniBand.
const SIZES: [usize; 4] = [1 << 10, 64 << 10, 1 << 20, 8_000_000];
/// Clients with a call in flight each.
const CLIENTS: [u16; 5] = [1, 10, 40, 120, 400];
/// The same, to be quick.
const CLIENTS_QUICK: [u16; 2] = [1, 40];

/// The cells, after what they are compared with; if there are `loads`, small calls of these alone.
#[must_use]
pub fn plan(
    quick: bool,
    protocols: &[Protocol],
    loads: &[CallLoad],
    scalerpc: ScalerpcSettings,
) -> Vec<Planned> {
    let mut plan = references_of_lines();
    let references = [RAW_RATE, RAW_ROUND_TRIP, UD_RATE, UD_ROUND_TRIP];
    let small = small_streams().into_iter().chain(small_round_trips());
    plan.extend(small.filter(|planned| references.contains(&planned.cell.name.as_str())));
    plan.extend(SIZES.map(raw_round_trip));
    for &protocol in protocols {
        let (round_trip, rate) = match protocol {
            Protocol::Erpc => (UD_ROUND_TRIP, UD_RATE),
            Protocol::Copyrpc | Protocol::Scalerpc => (RAW_ROUND_TRIP, RAW_RATE),
        };
        let job = |lanes, depth, len_bytes| {
            let calls = ProtocolCalls { protocol, lanes, depth, len_bytes, scalerpc };
            Measurement::Together(Job::Protocol(calls))
        };
        let named = loads.iter().map(|load| (load.endpoints, load.depth)).collect::<Vec<_>>();
        for &(lanes, depth) in if named.is_empty() { &LOADS[..] } else { &named } {
            let name = format!("{protocol}/{lanes}-lane-qd{depth}/32B");
            let (metric, raw, line) = match depth {
                1 => (Metric::RoundTrip, round_trip, LINE_ROUND_TRIP),
                _ => (Metric::Rate, rate, LINE_STREAM),
            };
            let cell = Planned::new(name, metric, job(lanes, depth, SMALL_BYTES));
            plan.push(cell.against(raw).floor(line));
        }
        if !named.is_empty() {
            continue;
        }
        for len_bytes in SIZES {
            let name = format!("{protocol}/round-trip/{}", size(len_bytes));
            let cell = Planned::new(name, Metric::RoundTrip, job(1, 1, len_bytes));
            plan.push(cell.against(raw_round_trip_of(len_bytes)).floor(LINE_ROUND_TRIP));
        }
        let clients: &[u16] = if quick { &CLIENTS_QUICK } else { &CLIENTS };
        for &clients in clients {
            // Two in flight, so that one client has a rate, too.
            let name = format!("{protocol}/{clients}-clients/32B");
            let cell = Planned::new(name, Metric::Rate, job(clients, 2 * clients, SMALL_BYTES));
            plan.push(cell.against(rate).floor(LINE_STREAM));
        }
    }
    plan
}
