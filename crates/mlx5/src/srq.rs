//! Shared receive queue: entries that the device takes by following links, not in ring order.
//!
//! ```text
//!            posted: the device follows these            free
//!           ┌─────────┐   ┌─────────┐   ┌─────────┐   ┌─────────┐       ┌─────────┐
//!  device ─▶│ next: 5 ├──▶│ next: 2 ├──▶│ next: 7 ├──▶│ next: … ├─ … ──▶│ next: - │
//!           └─────────┘   └─────────┘   └─────────┘   └─────────┘       └─────────┘
//!                                                      head              tail
//! ```
//!
//! All entries form one list: posted ones, then free ones. Posting fills the entry at `head`, whose
//! link is known because at least one free entry is behind it: the queue has more entries than can
//! be posted at once. A buffer that comes back, in whatever order, is linked behind `tail`. So the
//! link of every posted entry is right when the device reads it, and it starts at entry 0.
//!
//! Source: rdma-core `providers/mlx5/srq.c`, `mlx5_post_srq_recv` and `mlx5_free_srq_wqe`.

use std::sync::{Mutex, PoisonError};

use memory::{
    barrier,
    sync::{Arc, AtomicU32, Ordering},
};
use verbs::{Completion, PostRecvError, Sge, SharedReceiveQueue, Srqn};
use wire::{doorbell, wqe::RecvWqeWriter};

use crate::{
    device::Device,
    ring::{OCTOWORD_WORDS, Record, Words},
    rq::{RecvShape, write_sges},
};

/// Receive buffers that several queue pairs share.
#[derive(Debug)]
pub struct Srq<D: Device> {
    ring: Words,
    record: Record,
    shape: RecvShape,
    srqn: Srqn,
    /// By entry: the entry behind it in the list, and whether it is posted.
    entries: Box<[Entry]>,
    /// First free entry.
    head: u16,
    /// Last free entry.
    tail: u16,
    /// Entries posted now; always fewer than the ring has.
    outstanding: u16,
    /// Entries ever posted, modulo 2¹⁶.
    posted: u16,
    /// Entries that the device knows of, modulo 2¹⁶.
    rung: u16,
    returned: Arc<Returned>,
    /// Keeps the memory above alive.
    pub(crate) device: D::Srq,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    next: u16,
    is_posted: bool,
}

impl<D: Device> Srq<D> {
    /// Takes over a ring, whatever is in it, and its record of zero. Links all entries, from entry 0 on,
    /// which is where the device begins.
    pub(crate) fn new(
        ring: Words,
        record: Record,
        shape: RecvShape,
        srqn: Srqn,
        device: D::Srq,
    ) -> Self {
        let last = u16::MAX >> (u16::BITS - u32::from(shape.log_entries));
        let entries = (0..=last).map(|index| {
            let next = index.wrapping_add(1) & last;
            RecvWqeWriter::srq(
                ring.wqe_at(first_word(shape, index)),
                shape.stride_octowords(),
                next,
            )
            .finish();
            Entry { next, is_posted: false }
        });
        let entries = entries.collect();
        let (head, outstanding, posted, rung) = (0, 0, 0, 0);
        Self {
            ring,
            record,
            shape,
            srqn,
            entries,
            head,
            tail: last,
            outstanding,
            posted,
            rung,
            returned: Arc::default(),
            device,
        }
    }

    /// The list into which completion queues put the buffers of departed queue pairs.
    pub(crate) fn returned(&self) -> &Arc<Returned> {
        &self.returned
    }

    #[cold]
    fn take_returned(&mut self) {
        for index in self.returned.take() {
            self.free(index);
        }
    }

    /// Links an entry behind the free ones; `false` if it is not posted.
    #[inline]
    fn free(&mut self, index: u16) -> bool {
        let entry = self.entries.get_mut(usize::from(index)).filter(|entry| entry.is_posted);
        let Some(entry) = entry else { return false };
        entry.is_posted = false;
        self.entries[usize::from(self.tail)].next = index;
        self.tail = index;
        self.outstanding -= 1;
        true
    }

    pub(crate) fn words(&self) -> &Words {
        &self.ring
    }

    /// First word of the entry at `index`, and the number of words.
    pub(crate) fn place(&self, index: u16) -> (usize, usize) {
        (first_word(self.shape, index), OCTOWORD_WORDS << self.shape.log_octowords)
    }

    /// Buffers that can be posted at once: fewer than the ring has entries.
    pub(crate) fn capacity(&self) -> u16 {
        self.shape.requests
    }
}

/// Buffers whose completions were dropped because their queue pair is gone: written by whoever polls
/// the completion queue, taken by whoever posts.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    indices: Mutex<Vec<u16>>,
    /// Their number; a hint.
    count: AtomicU32,
}

impl Returned {
    pub(crate) fn push(&self, index: u16) {
        let mut indices = self.indices.lock().unwrap_or_else(PoisonError::into_inner);
        indices.push(index);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn has_some(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    fn take(&self) -> Vec<u16> {
        let mut indices = self.indices.lock().unwrap_or_else(PoisonError::into_inner);
        self.count.store(0, Ordering::Relaxed);
        core::mem::take(&mut *indices)
    }
}

/// First word of an entry.
#[inline]
fn first_word(shape: RecvShape, index: u16) -> usize {
    (usize::from(index) << shape.log_octowords) * OCTOWORD_WORDS
}

impl<D: Device> SharedReceiveQueue for Srq<D> {
    fn srqn(&self) -> Srqn {
        self.srqn
    }

    /// See the trait. The index is the entry's place in the ring.
    ///
    /// # Panics
    ///
    /// If a scatter entry exceeds 2 GiB or has the key that ends a list; nothing is queued then.
    #[inline]
    fn post(&mut self, into: &[Sge]) -> Result<u16, PostRecvError> {
        if self.returned.has_some() {
            self.take_returned();
        }
        if self.outstanding == self.capacity() {
            return Err(PostRecvError::QueueFull { requests: u32::from(self.capacity()) });
        }
        self.shape.check(into)?;
        let index = self.head;
        let entry = &mut self.entries[usize::from(index)];
        let slots = self.ring.wqe_at(first_word(self.shape, index));
        let writer = RecvWqeWriter::srq(slots, self.shape.stride_octowords(), entry.next);
        write_sges(writer, into).finish();
        entry.is_posted = true;
        self.head = entry.next;
        self.outstanding += 1;
        self.posted = self.posted.wrapping_add(1);
        Ok(index)
    }

    #[inline]
    fn ring(&mut self) {
        if self.rung == self.posted {
            return;
        }
        barrier::before_dbrec();
        self.record.publish(doorbell::counter_word(self.posted));
        self.rung = self.posted;
    }

    #[inline]
    fn retire(&mut self, completion: &Completion) {
        assert!(completion.kind.is_receive(), "not a receive: {completion:?}");
        assert!(self.free(completion.wqe), "buffer is not outstanding: {completion:?}");
    }
}
