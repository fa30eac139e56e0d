//! What keeps a port open: its handles.

use memory::sync::Arc;

use crate::nic::{housekeeping::Housekeeping, port_state::lock};

/// What all handles of a port have together. When the last of them goes, nobody looks any more after what
/// was left behind, and that would keep the port open: it goes, too. A peer that is inside goes on in
/// mappings of its own.
#[derive(Debug)]
pub(crate) struct InUse(Arc<Housekeeping>);

impl InUse {
    pub(crate) fn new(housekeeping: &Arc<Housekeeping>) -> Arc<Self> {
        Arc::new(Self(housekeeping.clone()))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let objects = core::mem::take(&mut *lock(&self.0.port.left_behind));
        // Not under the lock: a queue pair that is dropped comes back here.
        drop(objects);
    }
}

#[cfg(all(test, not(miri)))]
pub(crate) mod tests {
    use std::time::{Duration, Instant};

    use verbs::{
        Access, CqConfig, MemoryError, MemoryRegion as _, Nic as _, QpConfig, QueuePair as _,
        Transport,
    };

    use memory::sync::Ordering;

    use super::Arc;
    use crate::{Config, Nic, open, shared::presence::Presence};

    /// Two ports that know each other.
    pub(crate) fn ports(name: &str) -> [Nic; 2] {
        let fabric = format!("{name}-{}", std::process::id());
        let config = Config { fabric, card_mib: 8, ..Config::default() };
        let ports = [open(&config).unwrap(), open(&config).unwrap()];
        let deadline = Instant::now() + Duration::from_secs(10);
        let lid = ports[1].device().0.port.lid.get();
        while ports[0].device().0.port.import(lid).is_err() {
            assert!(Instant::now() < deadline, "the ports do not meet");
            ports.iter().for_each(|port| port.device().0.port.fetch());
        }
        ports
    }

    #[test]
    fn what_a_stopped_peer_is_inside_of_is_given_back_when_it_goes_on() {
        let [owner, peer] = ports("left-behind");
        let pd = owner.alloc_pd().unwrap();
        let before = owner.device().0.port.owner.unused();
        let cq = owner.create_cq(&CqConfig::new(256), None).unwrap();
        let qp = owner.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq)).unwrap();
        let mr = owner.alloc_mr(&pd, 4096, Access::empty()).unwrap();
        let theirs = peer.create_cq(&CqConfig::new(256), None).unwrap();
        let sender = peer
            .create_qp(&peer.alloc_pd().unwrap(), &QpConfig::new(Transport::Rc, &theirs))
            .unwrap();

        let card = &peer.device().0.port.owner.card;
        let presence = Presence(&card.qp(sender.qpn().get()).unwrap().presence);
        assert!(presence.try_enter(), "the peer is about to send, and is stopped");
        let lid = peer.device().0.port.lid;
        assert_eq!(mr.deregister(), Err(MemoryError::Busy { peer: lid }));
        drop(qp);
        drop(cq);
        owner.device().0.port.look_at_ns.store(0, Ordering::Relaxed);
        owner.device().0.collect();
        let unused = owner.device().0.port.owner.unused();
        let [regions, queue_pairs] = [0, 1].map(|table: usize| unused.1[table]);
        assert_ne!(regions, before.1[0], "the peer is still inside");
        assert_ne!(queue_pairs, before.1[1], "the peer is still inside");

        presence.leave();
        let deadline = Instant::now() + Duration::from_secs(10);
        while owner.device().0.port.owner.unused() != before {
            assert!(Instant::now() < deadline, "it is not given back");
            owner.device().0.progress();
        }
    }

    /// Nobody would look any more whether the peer has gone on.
    #[test]
    fn a_port_that_closes_keeps_nothing_for_a_stopped_peer() {
        let [owner, peer] = ports("closing");
        let pd = owner.alloc_pd().unwrap();
        let cq = owner.create_cq(&CqConfig::new(256), None).unwrap();
        let qp = owner.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq)).unwrap();
        let theirs = peer.create_cq(&CqConfig::new(256), None).unwrap();
        let sender = peer
            .create_qp(&peer.alloc_pd().unwrap(), &QpConfig::new(Transport::Rc, &theirs))
            .unwrap();
        let card = &peer.device().0.port.owner.card;
        let presence = Presence(&card.qp(sender.qpn().get()).unwrap().presence);
        assert!(presence.try_enter(), "the peer is about to send, and is stopped");
        let context = Arc::downgrade(&owner.device().0);
        drop((owner, cq));
        assert!(context.upgrade().is_some(), "a queue pair keeps its port");
        drop(qp);
        assert!(context.upgrade().is_none(), "the port stays open");
        presence.leave();
    }
}
