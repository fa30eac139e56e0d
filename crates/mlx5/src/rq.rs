//! Receive queue of one queue pair: a ring of scatter lists, all of the same stride.
//!
//! The device takes entries in ring order. A receive queue has a doorbell record and *no* register:
//! ringing one would hand the bytes of a scatter list to the send queue.
//!
//! Source: rdma-core `providers/mlx5/qp.c`, `mlx5_post_recv`.

use memory::barrier;
use verbs::{PostRecvError, Sge};
use wire::{doorbell, wqe::RecvWqeWriter};

use crate::{
    ring::{OCTOWORD_WORDS, Record, Words},
    sq::entries,
};

/// Most entries of a receive queue: half the range of its counters.
pub(crate) const ENTRIES_MAX: u32 = 1 << 15;

/// Geometry of a receive queue, shared or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecvShape {
    /// Base-2 logarithm of the entries.
    pub(crate) log_entries: u8,
    /// Base-2 logarithm of the octowords per entry.
    pub(crate) log_octowords: u8,
    /// Requests that can be outstanding; for a shared queue fewer than entries.
    pub(crate) requests: u16,
    /// Scatter entries per request.
    pub(crate) sges_max: u8,
}

impl RecvShape {
    /// Octowords per entry.
    pub(crate) fn stride_octowords(self) -> u8 {
        1 << self.log_octowords
    }

    /// Checks a scatter list against the queue's limit.
    #[inline]
    pub(crate) fn check(self, into: &[Sge]) -> Result<(), PostRecvError> {
        let asked = entries(into);
        if asked > usize::from(self.sges_max) {
            return Err(PostRecvError::TooManySges { asked, max: self.sges_max });
        }
        Ok(())
    }
}

/// Software's end of a receive queue.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    ring: Words,
    record: Record,
    shape: RecvShape,
    /// Entries ever posted, modulo 2¹⁶.
    posted: u16,
    /// Entries ever given back, modulo 2¹⁶.
    retired: u16,
    /// Entries that the device knows of, modulo 2¹⁶.
    rung: u16,
}

impl RecvQueue {
    /// Takes over a ring and its record of zero.
    pub(crate) fn new(ring: Words, record: Record, shape: RecvShape) -> Self {
        assert!(1 << shape.log_entries <= ENTRIES_MAX, "2^{} receives", shape.log_entries);
        Self { ring, record, shape, posted: 0, retired: 0, rung: 0 }
    }

    /// Writes one scatter list and returns its counter, modulo 2¹⁶, which is what the completion's
    /// `wqe_counter` will be. Slot in the ring: `counter % entries`.
    ///
    /// # Panics
    ///
    /// If a scatter entry exceeds 2 GiB or has the key that ends a list; nothing is queued then.
    #[inline]
    pub(crate) fn post(&mut self, into: &[Sge]) -> Result<u16, PostRecvError> {
        if self.posted.wrapping_sub(self.retired) == self.shape.requests {
            return Err(PostRecvError::QueueFull { requests: self.shape.requests.into() });
        }
        self.shape.check(into)?;
        let index = self.posted;
        let (first, _) = self.place(index);
        let writer = RecvWqeWriter::rq(self.ring.wqe_at(first), self.shape.stride_octowords());
        write_sges(writer, into).finish();
        self.posted = index.wrapping_add(1);
        Ok(index)
    }

    pub(crate) fn words(&self) -> &Words {
        &self.ring
    }

    /// First word of the entry with this counter, and the number of words.
    #[inline(always)]
    pub(crate) fn place(&self, index: u16) -> (usize, usize) {
        let words = OCTOWORD_WORDS << self.shape.log_octowords;
        (usize::from(index) * words, words)
    }

    /// Publishes everything posted; returns whether there was anything.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if self.rung == self.posted {
            return false;
        }
        barrier::before_dbrec();
        self.record.publish(doorbell::counter_word(self.posted));
        self.rung = self.posted;
        true
    }

    /// Gives back entry `counter` and all before it: receives complete in order, so the device has
    /// done with those as well.
    ///
    /// A counter that is not outstanding, such as that of a completion from before a reset, changes
    /// nothing.
    #[inline]
    pub(crate) fn retire(&mut self, counter: u16) {
        let ahead = counter.wrapping_sub(self.retired);
        if ahead < self.rung.wrapping_sub(self.retired) {
            self.retired = counter.wrapping_add(1);
        }
    }

    /// Forgets everything, ring and record included. The device must have stopped.
    pub(crate) fn reset(&mut self) {
        self.ring.fill(0);
        self.record.publish(0);
        (self.posted, self.retired, self.rung) = (0, 0, 0);
    }
}

/// Appends a scatter list.
///
/// Inlined, or the writer goes through memory, stored piece by piece and loaded at once, which stalls.
#[inline(always)]
pub(crate) fn write_sges<S: wire::wqe::WqeSink>(
    mut writer: RecvWqeWriter<S>,
    into: &[Sge],
) -> RecvWqeWriter<S> {
    for sge in into {
        writer = writer.data(sge.addr, sge.lkey, sge.len_bytes);
    }
    writer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::heap::Heap;

    #[test]
    fn counters_wrap_while_entries_are_outstanding() {
        let (ring, record) = (Heap::zeroed(4 * 16), Heap::zeroed(8));
        let shape = RecvShape { log_entries: 2, log_octowords: 0, requests: 4, sges_max: 1 };
        let mut rq = RecvQueue::new(ring.ring(), record.record(), shape);
        (rq.posted, rq.rung, rq.retired) = (0xfffe, 0xfffe, 0xfffe);
        for index in [0xfffe, 0xffff, 0, 1] {
            assert_eq!(rq.post(&[]), Ok(index));
        }
        assert!(rq.post(&[]).is_err());
        assert!(rq.publish());
        assert_eq!(record.recorded(), 2);
        rq.retire(0xfffd);
        rq.retire(2);
        assert!(rq.post(&[]).is_err(), "neither is outstanding");
        rq.retire(0);
        assert_eq!([rq.post(&[]), rq.post(&[]), rq.post(&[])], [Ok(2), Ok(3), Ok(4)]);
        assert!(rq.post(&[]).is_err());
    }
}
