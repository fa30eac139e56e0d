//! Finishing what a dead peer left half done in this port's queues.
//!
//! A sender takes a receive (its name in a claim), then a completion entry (its name in the slot),
//! publishes the entry, releases the claim, frees the slot. Whatever the instruction at which it
//! died, these names tell how far it got:
//!
//! | slot held | entry published | claim held | what is left to do |
//! |---|---|---|---|
//! | yes | yes | yes or no | release the claim that the entry names, free the slot |
//! | yes | no | yes | complete the receive with an error, in this entry |
//! | no | – | yes | complete the receive with an error, in a new entry |
//!
//! Of a ring that several senders share, it takes the receive and the entry in order, with its name in the
//! lock meanwhile: that is given back last.
//!
//! A thread that executes one of *this* port's queues never dies alone, so only other ports are
//! reaped.

use memory::sync::Arc;
use verbs::Transport;
use wire::{
    cqe::{self, CqeView, Syndrome},
    ids::{Qpn, UserIndex},
};

use crate::{
    nic::{
        card::views::{CqView, RqView},
        fabric::Peer,
        objects::{CqShared, RqShared},
        qp::QpShared,
    },
    shared::Holder,
};

/// The queues of a port.
pub(crate) struct AllQueues {
    pub(crate) qps: Vec<Arc<QpShared>>,
    pub(crate) cqs: Vec<Arc<CqShared>>,
    pub(crate) rqs: Vec<Arc<RqShared>>,
}

/// Cleans up after `peer`, whose memory nobody writes any more. Returns the queue pairs that were connected to it.
pub(crate) fn reap(queues: &AllQueues, owner: Holder, peer: &Peer) -> Vec<Qpn> {
    let AllQueues { qps, cqs, rqs } = queues;
    let users = qps.iter().filter_map(|qp| {
        let rq = qp.rq.as_ref()?;
        Some(User {
            qpn: qp.qpn,
            user_index: qp.user_index(),
            rq_index: rq.index(),
            cq: qp.recv_cq.view.clone(),
            sender: match qp.transport {
                Transport::Rc => qp.peer_lid(),
                _ => Some(peer.lid),
            },
            is_connected: qp.transport == Transport::Rc,
        })
    });
    let recovery = Recovery {
        owner,
        cqs: cqs.iter().map(|cq| cq.view.clone()).collect(),
        rqs: rqs.iter().map(|rq| (rq.index(), rq.view.clone())).collect(),
        users: users.collect(),
    };
    recovery.run(peer.lid);
    let lost = qps.iter().filter(|qp| qp.peer_lid() == Some(peer.lid)).map(|qp| qp.qpn).collect();
    for qp in qps {
        qp.lose_peer(peer.lid);
    }
    lost
}

/// A queue pair that receives.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) qpn: Qpn,
    pub(crate) user_index: UserIndex,
    pub(crate) rq_index: u32,
    pub(crate) cq: CqView,
    /// The dead port, if that may send to this queue pair.
    pub(crate) sender: Option<Holder>,
    /// RC: no other port sends to it.
    pub(crate) is_connected: bool,
}

/// What recovery after a dead peer works on: the queues of this port that peers write to.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) owner: Holder,
    pub(crate) cqs: Vec<CqView>,
    /// By index.
    pub(crate) rqs: Vec<(u32, RqView)>,
    pub(crate) users: Vec<User>,
}

impl Recovery {
    /// Finishes what `dead` left half done.
    pub(crate) fn run(&self, dead: Holder) {
        let mut holes = Vec::new();
        for cq in &self.cqs {
            for position in cq.slots().held_by(dead) {
                match cq.read(position) {
                    Some(entry) => {
                        self.release(&entry, dead);
                        cq.slots().finish(position);
                    }
                    None => holes.push((cq, position)),
                }
            }
        }
        for (rq_index, rq) in &self.rqs {
            for (index, count) in rq.claims().held_by(dead) {
                let taken = rq.taken(index, count);
                rq.pass(taken);
                self.fail_receive(*rq_index, taken.counter, dead, &mut holes);
                rq.release(taken, dead);
            }
        }
        for (cq, position) in holes {
            // Each held slot belongs to a held claim, so nothing is left here unless the peer wrote
            // nonsense. The consumer must get past the entry all the same.
            let error = receive_error(Qpn::default(), 0, UserIndex::default());
            cq.fill_hole(position, &error);
        }
        // Only now may others go on, behind what the dead one had taken.
        for (_, rq) in &self.rqs {
            rq.order().give(dead);
        }
    }

    /// Releases the claim of a receive whose completion was published, unless the receive was
    /// posted again and taken by somebody else.
    fn release(&self, entry: &cqe::Cqe, dead: Holder) {
        let (qpn, counter) = match entry.parse() {
            Ok(CqeView::Responder(done)) => (done.qpn, done.wqe_counter),
            Ok(CqeView::Error(error)) if !error.is_requester => (error.qpn, error.wqe_counter),
            _ => return,
        };
        let Some(user) = self.users.iter().find(|user| user.qpn == qpn) else { return };
        for (_, rq) in self.rqs.iter().filter(|(index, _)| *index == user.rq_index) {
            let held = rq.claims().held_by(dead).map(|(index, count)| rq.taken(index, count));
            held.filter(|taken| taken.counter == counter).for_each(|taken| rq.release(taken, dead));
        }
    }

    /// Completes receive `counter`, which the dead peer had taken, with an error.
    fn fail_receive(
        &self,
        rq_index: u32,
        counter: u16,
        dead: Holder,
        holes: &mut Vec<(&CqView, u64)>,
    ) {
        let users = || self.users.iter().filter(|user| user.rq_index == rq_index);
        let of_dead = || users().filter(|user| user.sender == Some(dead));
        // Connected to the dead peer if there is such a one; else one that hears many.
        let connected = of_dead().find(|user| user.is_connected);
        let Some(user) = connected.or_else(|| of_dead().next()) else { return };
        let error = receive_error(user.qpn, counter, user.user_index);
        let hole = holes.iter().position(|(cq, _)| cq.index == user.cq.index);
        match hole.map(|at| holes.swap_remove(at)) {
            Some((cq, position)) => cq.fill_hole(position, &error),
            None => {
                // On failure the CQ is marked as overrun, which is reported.
                let _ = user.cq.publish(self.owner, &error, || {});
            }
        }
    }
}

fn receive_error(qpn: Qpn, counter: u16, user_index: UserIndex) -> CqeView<'static> {
    CqeView::Error(cqe::ErrorCqe {
        is_requester: false,
        qpn,
        wqe_counter: counter,
        user_index,
        send_opcode: 0,
        syndrome: Syndrome::Flushed,
        vendor_syndrome: 0,
    })
}

#[cfg(test)]
mod tests;
