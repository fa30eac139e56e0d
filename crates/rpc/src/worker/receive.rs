//! The receives of a worker: completions, announcements that came early, and the batch in hand.

use std::collections::VecDeque;

use proto::copyrpc::Imm;
use verbs::{Arm, ArmError, Completion, CompletionQueue as _, Nic, Qpn};

use crate::{PeerId, queue::Queue, receives::SharedReceives};

/// Messages of a batch that were not handled, because a callback panicked.
pub(super) struct Rest {
    pub(super) peer: PeerId,
    pub(super) bytes: Vec<u8>,
    pub(super) count: u16,
    pub(super) offset_bytes: usize,
}

/// The receiving half of a worker.
pub(super) struct ReceiveSide<N: Nic> {
    /// DC: the target. It is dropped before the queues that it uses.
    target: Option<N::Qp>,
    shared: Option<SharedReceives<N>>,
    cq: N::Cq,
    /// Announcements that came before the invitation of their peer.
    early: VecDeque<u32>,
    /// A receive that was taken from the queue and is not handled: in a poll, or beside `interrupted`.
    ahead: Option<Completion>,
    /// The messages behind the one whose callback panicked.
    interrupted: Option<Box<Rest>>,
    /// Private copy of the batch that is being handled. Empty while it is lent.
    scratch: Box<[u8]>,
    batch_bytes_max: usize,
    /// Nothing has arrived after the batch that is being handled.
    is_last: bool,
    /// The peer whose batch was handled last.
    last_peer: Option<PeerId>,
}

impl<N: Nic> ReceiveSide<N> {
    pub(super) fn new(
        cq: N::Cq,
        shared: Option<SharedReceives<N>>,
        target: Option<N::Qp>,
        batch_bytes_max: usize,
    ) -> Self {
        Self {
            target,
            shared,
            cq,
            early: VecDeque::new(),
            ahead: None,
            interrupted: None,
            scratch: vec![0; batch_bytes_max].into(),
            batch_bytes_max,
            is_last: true,
            last_peer: None,
        }
    }

    pub(super) fn cq(&self) -> &N::Cq {
        &self.cq
    }

    pub(super) fn srq(&self) -> Option<&N::Srq> {
        self.shared.as_ref().map(SharedReceives::srq)
    }

    /// DC: the queue pair that all peers send to.
    pub(super) fn target(&self) -> Option<&N::Qp> {
        self.target.as_ref()
    }

    pub(super) fn arm(&mut self) -> Result<(), ArmError> {
        self.cq.arm(Arm::Next)
    }

    /// Whether nothing is left that a poll would handle without an arrival.
    pub(super) fn is_idle(&self) -> bool {
        self.early.is_empty() && self.interrupted.is_none()
    }

    // Completions

    /// Whether there is a completion to handle: takes one from the queue unless one was taken ahead.
    #[inline]
    pub(super) fn look(&mut self) -> bool {
        if self.ahead.is_none() {
            // A poll that finds nothing stores nothing.
            let Some(completion) = self.cq.poll() else { return false };
            self.ahead = Some(completion);
        }
        true
    }

    /// The completion that was taken ahead. Takes the next one ahead if `looks_on`, so that it is known
    /// whether this one is the last.
    #[inline]
    pub(super) fn next(&mut self, looks_on: bool) -> Option<Completion> {
        let completion = self.ahead.take()?;
        if looks_on {
            self.ahead = self.cq.poll();
        }
        self.is_last = self.ahead.is_none();
        Some(completion)
    }

    /// Whether nothing has arrived after the batch that is being handled.
    #[inline]
    pub(super) fn is_last(&self) -> bool {
        self.is_last
    }

    /// Takes back what was taken ahead from a queue pair that is gone: another one may get its number.
    pub(super) fn forget_ahead(&mut self, gone: Qpn) -> Option<Completion> {
        self.ahead.take_if(|ahead| ahead.qpn == gone)
    }

    /// Gives a receive back, to the shared queue or to the own one of its queue pair.
    #[inline]
    pub(super) fn retire(&mut self, completion: &Completion, own: Option<&mut Queue<N>>) {
        if let Some(shared) = &mut self.shared {
            shared.retire(completion);
            if let Err(error) = shared.fill() {
                tracing::error!(%error, "cannot post receives");
            }
        } else if let Some(queue) = own {
            queue.retire_receive(completion);
        }
    }

    /// Posts shared receives that nobody counted.
    pub(super) fn top_up(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.top_up();
        }
    }

    // Announcements before an invitation

    pub(super) fn add_early(&mut self, imms: Vec<u32>) {
        self.early.extend(imms);
    }

    #[inline]
    pub(super) fn early_len(&self) -> usize {
        self.early.len()
    }

    pub(super) fn next_early(&mut self) -> Option<u32> {
        self.early.pop_front()
    }

    pub(super) fn forget_early(&mut self, slot: u16) {
        self.early.retain(|imm| Imm::decode(*imm).slot != slot);
    }

    // The batch in hand

    /// The buffer for the private copy of a batch; [`return_scratch`](Self::return_scratch) follows.
    #[inline]
    pub(super) fn lend_scratch(&mut self) -> Box<[u8]> {
        core::mem::take(&mut self.scratch)
    }

    #[inline]
    pub(super) fn return_scratch(&mut self, scratch: Box<[u8]>) {
        self.scratch = scratch;
    }

    /// A callback panicked: keeps the rest of its batch. The scratch buffer is being dropped too.
    pub(super) fn interrupt(&mut self, rest: Rest) {
        self.interrupted = Some(Box::new(rest));
        self.scratch = vec![0; self.batch_bytes_max].into();
    }

    #[inline]
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.is_some()
    }

    pub(super) fn take_rest(&mut self) -> Option<Box<Rest>> {
        self.interrupted.take()
    }

    /// A batch of this peer is being handled. Returns whether no other peer is active: the last batch was
    /// of the same peer, and nothing has arrived after this one.
    #[inline]
    pub(super) fn is_alone(&mut self, peer: PeerId) -> bool {
        self.last_peer.replace(peer) == Some(peer) && self.is_last
    }
}
