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
//! A thread that executes one of *this* port's queues never dies alone, so only other ports are
//! reaped.

use verbs::{QpState, Transport};
use wire::{
    cqe::{self, CqeView, Syndrome},
    ids::{Qpn, UserIndex},
};

use crate::{
    card::views::{CqView, RqView},
    context::Context,
    fabric::Peer,
    shared::Holder,
};

/// Cleans up after `peer`, whose memory nobody writes any more.
pub(crate) fn reap(context: &Context, peer: &Peer) {
    let qps = context.qps();
    let users = qps.iter().filter_map(|qp| {
        let rq = qp.rq.as_ref()?;
        Some(User {
            qpn: qp.qpn,
            user_index: qp.user_index(),
            rq_index: rq.index(),
            cq: qp.recv_cq.view.clone(),
            hears: match qp.transport {
                Transport::Rc => qp.peer_lid(),
                _ => Some(peer.lid),
            },
            is_connected: qp.transport == Transport::Rc,
        })
    });
    let estate = Estate {
        owner: context.lid.get(),
        cqs: context.cqs().iter().map(|cq| cq.view.clone()).collect(),
        rqs: context.rqs().iter().map(|rq| (rq.index(), rq.view.clone())).collect(),
        users: users.collect(),
    };
    estate.settle(peer.lid);
    for qp in qps {
        qp.lose_peer(peer.lid);
    }
}

/// A queue pair that receives.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) qpn: Qpn,
    pub(crate) user_index: UserIndex,
    pub(crate) rq_index: u32,
    pub(crate) cq: CqView,
    /// The port that it hears, if it is the dead one.
    pub(crate) hears: Option<Holder>,
    /// It hears no other.
    pub(crate) is_connected: bool,
}

/// A port's queues, which others write to.
#[derive(Debug)]
pub(crate) struct Estate {
    pub(crate) owner: Holder,
    pub(crate) cqs: Vec<CqView>,
    /// By index.
    pub(crate) rqs: Vec<(u32, RqView)>,
    pub(crate) users: Vec<User>,
}

impl Estate {
    /// Finishes what `dead` left half done.
    pub(crate) fn settle(&self, dead: Holder) {
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
        let hearing = || users().filter(|user| user.hears == Some(dead));
        // Connected to the dead peer if there is such a one; else one that hears many.
        let connected = hearing().find(|user| user.is_connected);
        let Some(user) = connected.or_else(|| hearing().next()) else { return };
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
    CqeView::Error(cqe::Error {
        is_requester: false,
        qpn,
        wqe_counter: counter,
        user_index,
        send_opcode: 0,
        syndrome: Syndrome::Flushed,
        vendor_syndrome: 0,
    })
}

/// A queue pair in these states may have a receive in its peer's hands. In ERR, too: what the peer held
/// when the queue pair fell was not flushed.
pub(crate) fn has_heard(state: QpState) -> bool {
    !matches!(state, QpState::Reset | QpState::Init)
}

#[cfg(test)]
mod tests;
