//! The send queues of a worker and their completions.

use verbs::{Arm, ArmError, Completion, CompletionQueue as _, Nic, Qpn};

use crate::{
    PeerId,
    peer::PeerState,
    queue::{Queue, QueueIndex, Unfinished},
};

/// A peer whose connection ended while an initiator may still work for it.
struct RetiredPeer<N: Nic> {
    id: PeerId,
    queue: u16,
    /// Owns memory that posted requests name.
    _state: PeerState<N>,
}

/// RC: one queue for each peer, at the index of the peer's slot. DC: initiators.
pub(super) struct SendSide<N: Nic> {
    // Queue pairs are dropped before the memory that their requests name.
    queues: Vec<Option<Queue<N>>>,
    index_of: QueueIndex,
    /// Queues that were posted to and not rung.
    unrung: Vec<u16>,
    retired: Vec<RetiredPeer<N>>,
    unfinished: Unfinished,
    cq: N::Cq,
}

impl<N: Nic> SendSide<N> {
    pub(super) fn new(queues: u16, cq: N::Cq) -> Self {
        Self {
            queues: (0..queues).map(|_| None).collect(),
            index_of: QueueIndex::default(),
            unrung: Vec::new(),
            retired: Vec::new(),
            unfinished: Unfinished::default(),
            cq,
        }
    }

    /// Batches of all queues that are not known to be finished.
    #[inline]
    pub(super) fn unfinished(&self) -> u32 {
        self.unfinished.get()
    }

    /// The count of these, for a new queue.
    pub(super) fn unfinished_count(&self) -> Unfinished {
        self.unfinished.clone()
    }

    pub(super) fn cq(&self) -> &N::Cq {
        &self.cq
    }

    pub(super) fn arm(&mut self) -> Result<(), ArmError> {
        self.cq.arm(Arm::Next)
    }

    #[inline]
    pub(super) fn poll(&mut self) -> Option<Completion> {
        self.cq.poll()
    }

    #[inline]
    pub(super) fn queue(&mut self, index: u16) -> Option<&mut Queue<N>> {
        self.queues.get_mut(usize::from(index))?.as_mut()
    }

    /// The queue at an index, to read.
    #[inline]
    pub(super) fn peek(&self, index: u16) -> Option<&Queue<N>> {
        self.queues.get(usize::from(index))?.as_ref()
    }

    #[inline]
    pub(super) fn index_of(&self, qpn: Qpn) -> Option<u16> {
        self.index_of.get(&qpn).copied()
    }

    pub(super) fn put(&mut self, index: u16, queue: Queue<N>) {
        self.index_of.insert(queue.qpn(), index);
        self.queues[usize::from(index)] = Some(queue);
    }

    /// Takes a queue out. Its queue pair goes when it is dropped: before the memory that its requests name.
    pub(super) fn take(&mut self, index: u16) -> Option<Queue<N>> {
        let queue = self.queues[usize::from(index)].take()?;
        self.index_of.remove(&queue.qpn());
        Some(queue)
    }

    // Doorbells

    #[inline]
    pub(super) fn has_unrung(&self) -> bool {
        !self.unrung.is_empty()
    }

    /// [`ring_all`](Self::ring_all) is to ring this queue.
    #[inline]
    pub(super) fn ring_later(&mut self, index: u16) {
        self.unrung.push(index);
    }

    /// Tells the NIC of everything that was posted, with one doorbell for each queue.
    #[inline]
    pub(super) fn ring_all(&mut self) {
        while let Some(index) = self.unrung.pop() {
            if let Some(queue) = self.queue(index) {
                queue.ring();
            }
        }
    }

    // Peers that are gone

    /// Whether the NIC may still work for a peer.
    pub(super) fn has_work(&self, index: u16, peer: PeerId) -> bool {
        self.peek(index).is_some_and(|queue| queue.has_work(peer))
    }

    /// Keeps the memory of a peer that is gone until its queue has no more work for it.
    pub(super) fn retire(&mut self, id: PeerId, queue: u16, state: PeerState<N>) {
        self.retired.push(RetiredPeer { id, queue, _state: state });
    }

    /// Drops the memory of peers that no queue works for any more.
    pub(super) fn drop_retired(&mut self) {
        let Self { queues, retired, .. } = self;
        retired.retain(|peer| {
            let queue = queues[usize::from(peer.queue)].as_ref();
            queue.is_some_and(|queue| queue.has_work(peer.id))
        });
    }
}
