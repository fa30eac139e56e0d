//! Many nodes without faults: what a simulation of them costs.

use super::{ClusterError, End, plan::Plan, run::Cluster};
use crate::world::Time;

/// All daemons find each other within this.
const MEET: Time = Time::from_ns(2_000_000_000);

/// How many nodes, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Daemons.
    pub nodes: u32,
    /// Clients of each, with one call in flight.
    pub clients: u32,
    /// They call their own node and so many after it: memory of others is not touched.
    pub peers: u32,
    /// How long they call.
    pub length: Time,
    /// Of all random numbers.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scaled {
    /// Virtual time until all daemons were connected.
    pub met: Time,
    /// Events until then.
    pub events_met: u64,
    /// Events while clients called.
    pub events: u64,
    /// Calls that were answered meanwhile.
    pub answered: u64,
    /// Calls that ended otherwise.
    pub others: u64,
    /// Requests that left a NIC, and their bytes, from the start.
    pub packets: (u64, u64),
    /// A hash of all events.
    pub trace: u64,
    /// What happened that must not.
    pub failure: Option<String>,
}

/// Connects all nodes and lets their clients call. `has_met` hears when they are connected.
///
/// # Errors
///
/// [`ClusterError`], for lack of memory.
pub fn run(scale: Scale, has_met: impl FnOnce()) -> Result<Scaled, ClusterError> {
    let Scale { nodes, clients, peers, length, seed } = scale;
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || {
        let peers_called = peers.min(nodes - 1);
        let mut plan = Plan::large(seed, nodes, clients);
        plan.peers_called = peers_called;
        let mut cluster = Cluster::new(plan, false)?;
        cluster.run_until(MEET, |cluster| cluster.is_connected())?;
        if !cluster.is_connected() {
            cluster.give_up("the daemons did not find each other")?;
        }
        let met = cluster.network.now();
        let (events_met, _) = cluster.network.progress();
        has_met();
        for rank in 0..nodes {
            cluster.admit_all(rank);
        }
        cluster.advance(met + length)?;
        let (events, trace) = cluster.network.progress();
        let history = cluster.history.borrow();
        let answered = history.ends().get(&End::Answered).copied().unwrap_or(0);
        Ok(Scaled {
            met,
            events_met,
            events: events - events_met,
            answered,
            others: history.ends().values().sum::<u64>() - answered,
            packets: cluster.network.traffic(),
            trace: trace ^ history.hash(),
            failure: history.failure().map(str::to_owned),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of each place, and their hash, of a small cluster in slices of so long.
    fn progress(slice_ns: u64) -> (u64, u64) {
        let mut plan = Plan::large(1, 5, 2);
        plan.slice = Some(Time::from_ns(slice_ns));
        let mut cluster = Cluster::new(plan, false).unwrap();
        cluster.run_until(MEET, |cluster| cluster.is_connected()).unwrap();
        assert!(cluster.is_connected());
        (0..5).for_each(|rank| cluster.admit_all(rank));
        cluster.advance(Time::from_ns(20_000_000)).unwrap();
        assert_eq!(cluster.history.borrow().failure(), None);
        cluster.network.progress()
    }

    #[test]
    fn every_daemon_sees_the_same_however_long_slices_are() {
        assert_eq!(progress(600), progress(217));
    }
}
