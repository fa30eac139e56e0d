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

use memory::barrier;
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
    /// Entries posted now; at most half of the ring.
    outstanding: u16,
    /// Entries ever posted, modulo 2¹⁶.
    posted: u16,
    /// Entries that the device knows of, modulo 2¹⁶.
    rung: u16,
    /// Keeps the memory above alive.
    pub(crate) device: D::Srq,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    next: u16,
    is_posted: bool,
}

impl<D: Device> Srq<D> {
    /// Takes over a ring of zeroes and its record, and links its entries.
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
            device,
        }
    }

    /// Buffers that can be posted at once: half the entries of the ring.
    pub(crate) fn capacity(&self) -> u16 {
        1 << (self.shape.log_entries - 1)
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
        if self.outstanding == self.capacity() {
            return Err(PostRecvError::QueueFull { entries: u32::from(self.capacity()) });
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
        let index = completion.wqe;
        let entry = self.entries.get_mut(usize::from(index)).filter(|entry| entry.is_posted);
        let entry = entry.expect("buffer is not outstanding");
        entry.is_posted = false;
        self.entries[usize::from(self.tail)].next = index;
        self.tail = index;
        self.outstanding -= 1;
    }
}
