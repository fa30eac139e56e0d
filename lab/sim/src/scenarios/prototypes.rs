//! What is not built, tried where it costs little: answers straight into the memory of clients, and a queue pair of
//! its own for a peer that is called often. No measurement stands beside these numbers.

use serde::Serialize;

use crate::{
    actors::{
        reads::{self, Hot, Targets},
        return_path::{self, Load, Measured, ReturnPath},
    },
    machine::{CONNECT_IB, CONNECT_X7, DelegationProfile},
    world::Time,
};

/// A NIC's time per request, in µs: that of a ConnectX-7's send queue, and as the NIC of `sim dct` issues READs.
pub const WQE_US: [f64; 2] = [CONNECT_X7.wqe, 0.074];

/// Both ways back under one load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ReturnRow {
    /// Time of the NIC per request, in µs.
    pub wqe_us: f64,
    /// Nodes.
    pub nodes: u32,
    /// Calls in flight of each client.
    pub depth: u32,
    /// Answers through the client's daemon.
    pub daemon: Measured,
    /// Answers into the client's slot.
    pub slot: Measured,
}

/// Runs both ways back for each of `nodes` and `depths`, and tells how many loads are done, of how many.
#[must_use]
pub fn return_paths(
    nodes: &[u32],
    depths: &[u32],
    clients: u32,
    seed: u64,
    mut progress: impl FnMut(usize, usize),
) -> Vec<ReturnRow> {
    let of = WQE_US.len() * nodes.len() * depths.len();
    let mut rows = Vec::new();
    for wqe_us in WQE_US {
        let profile = DelegationProfile { clients, wqe: wqe_us, ..CONNECT_X7 };
        for &nodes in nodes {
            for &depth in depths {
                let run = |path| {
                    let load = Load {
                        nodes: nodes as usize,
                        depth,
                        path,
                        // As daemons have it by default.
                        batches_max: if nodes > 4 { 1 } else { 2 },
                        warm_up: Time::from_ns(500_000),
                        end: Time::from_ns(1_500_000),
                    };
                    return_path::run(&profile, load, seed)
                };
                let [daemon, slot] = [ReturnPath::Daemon, ReturnPath::Slot].map(run);
                rows.push(ReturnRow { wqe_us, nodes, depth, daemon, slot });
                progress(rows.len(), of);
            }
        }
    }
    rows
}

/// READs of threads that have a hot peer, in M/s per machine.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HotRow {
    /// DC initiators of a thread, which all peers share.
    pub initiators: usize,
    /// Share of READs to the hot peer.
    pub hot_permille: u64,
    /// With these initiators alone.
    pub shared: reads::Measured,
    /// With one more.
    pub one_more: reads::Measured,
    /// With a queue pair for the hot peer beside them.
    pub own: reads::Measured,
}

/// Five machines of 14 threads with 16 READs in flight, as *dct-bench* runs them. Peers other than the hot one are
/// called at random. `progress` is told how many loads are done, of how many.
#[must_use]
pub fn hot_peers(
    initiators: &[usize],
    permilles: &[u64],
    seed: u64,
    mut progress: impl FnMut(usize, usize),
) -> Vec<HotRow> {
    let of = initiators.len() * permilles.len();
    let run = |initiators, permille, has_own| {
        let load = reads::Load {
            machines: 5,
            first_client: 0,
            clients: 5,
            threads: 14,
            window: 16,
            initiators,
            targets: Targets::Random,
            hot: Some(Hot { permille, has_own }),
            is_timed: true,
            warm_up: Time::from_ns(60_000),
            end: Time::from_ns(340_000),
        };
        reads::run(&CONNECT_IB, &load, seed)
    };
    let row = |initiators, hot_permille| HotRow {
        initiators,
        hot_permille,
        shared: run(initiators, hot_permille, false),
        one_more: run(initiators + 1, hot_permille, false),
        own: run(initiators, hot_permille, true),
    };
    let pairs = initiators.iter().flat_map(|count| permilles.iter().map(move |hot| (*count, *hot)));
    let told = pairs.enumerate().map(|(index, (initiators, permille))| {
        let row = row(initiators, permille);
        progress(index + 1, of);
        row
    });
    told.collect()
}
