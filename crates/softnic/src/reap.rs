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
    context::Context,
    fabric::Peer,
    objects::{CqShared, RqShared},
    qp::QpShared,
    shared::Holder,
};

/// Cleans up after `peer`, whose memory nobody writes any more.
pub(crate) fn reap(context: &Context, peer: &Peer) {
    let qps = context.qps();
    let mut holes = Vec::new();
    for cq in context.cqs() {
        for position in cq.view.slots().held_by(peer.lid) {
            match cq.view.read(position) {
                Some(entry) => {
                    release(&qps, &entry, peer.lid);
                    cq.view.slots().finish(position);
                }
                None => holes.push((cq.clone(), position)),
            }
        }
    }
    for rq in context.rqs() {
        for (index, count) in rq.view.claims().held_by(peer.lid) {
            let taken = rq.view.taken(index, count);
            fail_receive(context, peer, &qps, &rq, taken.counter, &mut holes);
            rq.view.release(taken, peer.lid);
        }
    }
    for (cq, position) in holes {
        // Each held slot belongs to a held claim, so nothing is left here unless the peer wrote
        // nonsense. The consumer must get past the entry all the same.
        cq.view.fill_hole(position, &receive_error(Qpn::default(), 0, UserIndex::default()));
    }
    for qp in qps {
        if qp.peer_lid() == Some(peer.lid) {
            qp.lose_peer();
        }
    }
}

/// Releases the claim of a receive whose completion was published, unless the receive was posted
/// again and taken by somebody else.
fn release(qps: &[std::sync::Arc<QpShared>], entry: &cqe::Cqe, holder: Holder) {
    let (qpn, counter) = match entry.parse() {
        Ok(CqeView::Responder(done)) => (done.qpn, done.wqe_counter),
        Ok(CqeView::Error(error)) if !error.is_requester => (error.qpn, error.wqe_counter),
        _ => return,
    };
    let rq = qps.iter().find(|qp| qp.qpn == qpn).and_then(|qp| qp.rq.as_ref());
    let Some(rq) = rq else { return };
    let held = rq.view.claims().held_by(holder);
    for (index, count) in held {
        let taken = rq.view.taken(index, count);
        if taken.counter == counter {
            rq.view.release(taken, holder);
        }
    }
}

/// Completes receive `counter` of `rq`, which the dead peer had taken, with an error.
fn fail_receive(
    context: &Context,
    peer: &Peer,
    qps: &[std::sync::Arc<QpShared>],
    rq: &RqShared,
    counter: u16,
    holes: &mut Vec<(std::sync::Arc<CqShared>, u64)>,
) {
    let users = || qps.iter().filter(|qp| qp.rq.as_ref().is_some_and(|q| q.index() == rq.index()));
    // Connected to the dead peer if there is such a one; else a queue pair that hears many.
    let connected = users().find(|qp| qp.peer_lid() == Some(peer.lid));
    let Some(qp) = connected.or_else(|| users().find(|qp| qp.transport != Transport::Rc)) else {
        return;
    };
    let error = receive_error(qp.qpn, counter, qp.user_index());
    let hole = holes.iter().position(|(cq, _)| cq.index() == qp.recv_cq.index());
    match hole.map(|at| holes.swap_remove(at)) {
        Some((cq, position)) => cq.view.fill_hole(position, &error),
        None => {
            // On failure the CQ is marked as overrun, which is reported.
            let _ = qp.recv_cq.view.publish(context.lid.get(), &error, &[], || {});
        }
    }
    qp.wake_receiver(true);
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

/// A queue pair in these states has something to lose when its peer dies.
pub(crate) fn is_connected(state: QpState) -> bool {
    matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd)
}
