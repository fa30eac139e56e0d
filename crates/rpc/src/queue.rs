//! A send queue and what was posted to it.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::{HashMap, VecDeque};

use verbs::{Nic, PostSendError, Qpn, QueuePair as _, SendRequest};

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

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A batch, and what it takes to post it again.
    Batch(Batch),
    /// Credit, written beside the ring.
    Credit,
    /// The transfer at this place of the worker's table.
    Transfer(usize),
}

/// A batch that was posted. Its bytes stay in the staging ring until the peer gives credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) number: u64,
    pub(crate) offset_bytes: usize,
    pub(crate) len_bytes: usize,
    pub(crate) imm: u32,
}

/// A queue pair that sends, and its bookkeeping: one per peer on RC, few for all on DC.
///
/// Completions are accounted per queue, not per peer: a completion ends every earlier request of
/// its queue, whichever peer it was for.
pub(crate) struct Queue<N: Nic> {
    pub(crate) qp: N::Qp,
    posted: VecDeque<Work>,
    /// RC without a shared receive queue.
    pub(crate) refill: Option<Refill>,
    /// Something was posted and the NIC was not told.
    pub(crate) is_unrung: bool,
}

impl<N: Nic> Queue<N> {
    pub(crate) fn new(qp: N::Qp, refill: Option<Refill>) -> Self {
        Self { qp, posted: VecDeque::new(), refill, is_unrung: false }
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
        self.posted.push_back(Work { wqe, peer, what });
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
        self.posted.pop_front()
    }

    /// Whether the NIC may still work for a peer.
    pub(crate) fn has_work(&self, peer: PeerId) -> bool {
        self.posted.iter().any(|work| work.peer == peer)
    }

    /// Forgets all requests, after the queue pair failed and before it is reset; returns those
    /// that it did not start.
    pub(crate) fn reset(&mut self) -> VecDeque<Work> {
        self.is_unrung = false;
        core::mem::take(&mut self.posted)
    }

    /// Whether this is the last request that a completion of `wqe` ends.
    #[inline]
    pub(crate) fn is_last(work: &Work, wqe: u16) -> bool {
        work.wqe == wqe
    }
}
