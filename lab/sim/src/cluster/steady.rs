//! Production daemons without faults in a world whose times are those of a ConnectX-7: how much they
//! do, and whether that depends on how they began.
//!
//! CPU and NIC take what the reference daemon's take ([`CONNECT_X7`](crate::machine::CONNECT_X7)), but for its ring, which all clients of a
//! node share: production clients have a ring each. Nobody has measured production daemons on that machine.

pub use proto::copyrpc::FlushPolicy;
use serde::Serialize;

pub use super::load::{Begin, Connected, Steady, UnknownTransport};

use super::{
    ClusterError, End,
    fault::{Fault, FaultKind},
    network::Event,
    plan::Plan,
    run::Cluster,
};
use crate::world::Time;

/// All daemons find each other within this.
const MEET: Time = Time::from_ns(2_000_000_000);

/// Parts of a time series: of the warm-up, and of what is counted.
pub const PARTS: u32 = 20;

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Calls per µs and node.
    pub mops_per_node: f64,
    /// Calls to other nodes and their answers, per request that left a NIC.
    pub messages_per_wqe: f64,
    /// Memory that is registered for connections, in bytes per node.
    pub connection_bytes: usize,
    /// Calls that were not answered.
    pub others: u64,
    /// Calls per µs and node in parts of the warm-up, and then of what is counted: as many of each, [`PARTS`].
    pub series: Vec<f64>,
    /// A hash of all events.
    pub trace: u64,
}

/// Lets clients call.
///
/// # Errors
///
/// [`ClusterError`], for lack of memory.
pub fn run(steady: &Steady) -> Result<Measured, ClusterError> {
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || {
        let Steady { nodes, threads, lengths: (warm_up, length), begin, .. } = *steady;
        let mut cluster = Cluster::new(Plan::calibrated(steady), false)?;
        cluster.run_until(MEET, |cluster| cluster.is_connected())?;
        if !cluster.is_connected() {
            cluster.give_up("the daemons did not find each other")?;
        }
        let start = cluster.network.now();
        let connection_bytes = cluster.network.registered_bytes() / nodes as usize;
        if begin == Begin::Perturbed {
            cluster.disturbed[0] = true;
            let whole_us = warm_up.whole_ns() / 1000;
            let at_us = start.whole_ns() / 1000 + whole_us / 2;
            let for_us = (whole_us / 10).max(1);
            let fault =
                Fault { kind: FaultKind::Pause, node: 0, peer: 0, amount: 0, at_us, for_us };
            cluster.network.schedule(fault.begin(), Event::Fault { fault, begins: true });
            cluster.network.schedule(fault.end(), Event::Fault { fault, begins: false });
        }
        (0..nodes * threads).for_each(|thread| cluster.admit_all(thread));
        let mut series = advance(&mut cluster, start, warm_up, nodes)?;
        let (packets, ended) = (cluster.network.traffic().0, answered(&cluster));
        series.extend(advance(&mut cluster, start + warm_up, length, nodes)?);
        let (packets, ended) = (cluster.network.traffic().0 - packets, answered(&cluster) - ended);
        let history = cluster.history.borrow();
        let others = history.ends().values().sum::<u64>() - answered(&cluster);
        let is_wrong = u64::from(history.failure().is_some());
        let remote = 2.0 * real(ended) * f64::from(nodes - 1) / f64::from(nodes);
        Ok(Measured {
            mops_per_node: real(ended) * 1000.0 / length.as_ns() / f64::from(nodes),
            messages_per_wqe: remote / real(packets.max(1)),
            connection_bytes,
            others: others + is_wrong,
            series,
            trace: cluster.network.progress().1 ^ history.hash(),
        })
    })
}

/// Lets a time pass. Returns calls per µs and node in parts of it.
fn advance(
    cluster: &mut Cluster,
    begin: Time,
    length: Time,
    nodes: u32,
) -> Result<Vec<f64>, ClusterError> {
    let part_us = length.as_ns() / 1000.0 / f64::from(PARTS);
    let rates = (1..=PARTS).map(|part| {
        let before = answered(cluster);
        let passed = length.whole_ns() * u64::from(part) / u64::from(PARTS);
        cluster.advance(begin + Time::from_ns(passed))?;
        Ok(real(answered(cluster) - before) / part_us / f64::from(nodes))
    });
    rates.collect()
}

fn answered(cluster: &Cluster) -> u64 {
    cluster.history.borrow().ends().get(&End::Answered).copied().unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
const fn real(count: u64) -> f64 {
    count as f64
}
