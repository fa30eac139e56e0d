//! A send queue and what was posted to it.

use core::hash::{BuildHasherDefault, Hasher};
use std::{
    cell::Cell,
    collections::{HashMap, VecDeque},
    rc::Rc,
};

use ids::slots::Key;
use verbs::{
    Completion, ModifyError, Nic, PostRecvError, PostSendError, Qpn, QueuePair as _, SendRequest,
    Transition,
};

use crate::{PeerId, receives::Refill};

/// Finds queues by the number of their queue pair.
pub(crate) type QueueIndex = HashMap<Qpn, u16, BuildHasherDefault<QpnHasher>>;

/// Queue pair numbers are given by the own NIC, so nobody can choose them to collide: one
/// multiplication is enough.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpnHasher(u64);

impl Hasher for QpnHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A posted request that is not known to be finished.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// As the NIC names it.
    wqe: u16,
    pub(crate) peer: PeerId,
    pub(crate) what: What,
}

impl Work {
    #[inline]
    fn is_batch(&self) -> bool {
        matches!(self.what, What::Batch(_))
    }
}

/// The purpose of a posted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A batch, and what it takes to post it again.
    Batch(PostedBatch),
    /// Credit, written beside the ring.
    Credit,
    /// A piece of a transfer.
    Piece(Piece),
}

/// A piece of a transfer that was posted: a transfer takes as many as the NIC's longest message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) transfer: Key,
    pub(crate) offset_bytes: usize,
}

/// A batch that was posted. Its bytes stay in the staging ring until the peer gives credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostedBatch {
    pub(crate) number: u64,
    pub(crate) offset_bytes: usize,
    pub(crate) len_bytes: usize,
    pub(crate) imm: u32,
    pub(crate) posted_ns: u64,
}

/// Batches that were posted to the queues of a worker and are not known to be finished.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unfinished(Rc<Cell<u32>>);

impl Unfinished {
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.0.get()
    }

    #[inline]
    fn add(&self, work: &Work) {
        self.0.set(self.0.get() + u32::from(work.is_batch()));
    }

    #[inline]
    fn remove(&self, work: &Work) {
        self.0.set(self.0.get() - u32::from(work.is_batch()));
    }
}

/// A queue pair that sends, and its bookkeeping: one per peer on RC, few for all on DC.
///
/// Completions are accounted per queue, not per peer: a completion ends every earlier request of
/// its queue, whichever peer it was for.
pub(crate) struct Queue<N: Nic> {
    qp: N::Qp,
    posted: VecDeque<Work>,
    /// Over all queues of the worker.
    unfinished: Unfinished,
    /// RC without a shared receive queue.
    refill: Option<Refill>,
    /// Something was posted and the NIC was not told.
    is_unrung: bool,
}

impl<N: Nic> Queue<N> {
    pub(crate) fn new(qp: N::Qp, refill: Option<Refill>, unfinished: Unfinished) -> Self {
        Self { qp, posted: VecDeque::new(), unfinished, refill, is_unrung: false }
    }

    pub(crate) fn qp(&self) -> &N::Qp {
        &self.qp
    }

    #[inline]
    pub(crate) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    pub(crate) fn modify(&mut self, to: &Transition) -> Result<(), ModifyError> {
        self.qp.modify(to)
    }

    /// Gives back the queue space that a completion ends.
    #[inline]
    pub(crate) fn retire(&mut self, completion: &Completion) {
        self.qp.retire(completion);
    }

    /// Gives the receive of a completion back to the queue pair's own receive queue.
    #[inline]
    pub(crate) fn retire_receive(&mut self, completion: &Completion) {
        self.qp.retire(completion);
        if let Some(refill) = &mut self.refill {
            refill.consumed();
            // It fails only when the queue pair is in error, which a send will tell.
            let _ = refill.fill_own(&mut self.qp);
        }
    }

    /// Posts the first receives of the queue pair's own receive queue.
    pub(crate) fn fill_receives(&mut self) -> Result<(), PostRecvError> {
        self.refill.as_mut().map_or(Ok(()), |refill| refill.fill_own(&mut self.qp))
    }

    #[inline]
    pub(crate) fn is_unrung(&self) -> bool {
        self.is_unrung
    }

    /// Posts a request; tells the NIC at once unless `is_batched`.
    ///
    /// Inlined, so that the driver sees which kind of request each caller builds.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        request: &SendRequest<'_>,
        peer: PeerId,
        what: What,
        is_batched: bool,
    ) -> Result<(), PostSendError> {
        let wqe = self.qp.post_send(request)?;
        let work = Work { wqe, peer, what };
        self.unfinished.add(&work);
        self.posted.push_back(work);
        self.is_unrung = true;
        if !is_batched {
            self.ring();
        }
        Ok(())
    }

    /// Tells the NIC of what was posted.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if core::mem::take(&mut self.is_unrung) {
            self.qp.ring_send();
        }
    }

    /// Takes the next request that a completion of `wqe` ends; call it until it has returned the
    /// one with that name.
    #[inline]
    pub(crate) fn finish(&mut self) -> Option<Work> {
        let work = self.posted.pop_front()?;
        self.unfinished.remove(&work);
        Some(work)
    }

    /// Whether the NIC may still work for a peer.
    pub(crate) fn has_work(&self, peer: PeerId) -> bool {
        self.posted.iter().any(|work| work.peer == peer)
    }

    /// Forgets all requests, after the queue pair failed and before it is reset; returns those
    /// that it did not start.
    pub(crate) fn reset(&mut self) -> VecDeque<Work> {
        self.is_unrung = false;
        self.posted.iter().for_each(|work| self.unfinished.remove(work));
        core::mem::take(&mut self.posted)
    }

    /// Whether this is the last request that a completion of `wqe` ends.
    #[inline]
    pub(crate) fn is_last(work: &Work, wqe: u16) -> bool {
        work.wqe == wqe
    }
}

impl<N: Nic> Drop for Queue<N> {
    fn drop(&mut self) {
        self.posted.iter().for_each(|work| self.unfinished.remove(work));
    }
}
