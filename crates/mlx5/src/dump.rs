//! Bytes of requests and completions as they lie in memory, for people and for comparisons with other drivers.

use crate::{Cq, Qp, Srq, device::Device, ring::Words, sq::SendQueue};

/// Bytes per octoword.
const OCTOWORD: usize = 16;

/// Words `first..first + count` of a ring, which wraps.
fn bytes(ring: &Words, first: usize, count: usize) -> Vec<u8> {
    (first..first + count).flat_map(|word| ring.load(word).to_ne_bytes()).collect()
}

/// The WQE that begins with word `first` of a ring, as long as its control segment says.
fn send_wqe(ring: &Words, first: usize) -> Vec<u8> {
    /// The length's bits in byte 7: octowords.
    const LENGTH: u8 = 0x3f;
    let octowords = usize::from(bytes(ring, first, 1)[7] & LENGTH);
    bytes(ring, first, octowords * OCTOWORD / size_of::<u64>())
}

impl<D: Device> Qp<D> {
    /// The request at `index` of the send queue, which `post_send` has returned, or what has overwritten it;
    /// `None` without a send queue.
    #[must_use]
    pub fn send_wqe(&self, index: u16) -> Option<Vec<u8>> {
        let sq = self.sq.as_ref()?;
        Some(send_wqe(sq.words(), SendQueue::word_of(index)))
    }

    /// The receive at `index`, which `post_recv` has returned, as long as its place; `None` without a receive
    /// queue.
    #[must_use]
    pub fn recv_wqe(&self, index: u16) -> Option<Vec<u8>> {
        let rq = self.rq.as_ref()?;
        let (first, count) = rq.place(index);
        Some(bytes(rq.words(), first, count))
    }
}

impl<D: Device> Srq<D> {
    /// The receive at `index`, which `post` has returned, as long as its place.
    #[must_use]
    pub fn wqe(&self, index: u16) -> Vec<u8> {
        let (first, count) = self.place(index);
        bytes(self.words(), first, count)
    }
}

impl<D: Device> Cq<D> {
    /// The entry that was polled last, of 64 or 128 bytes; the device may have overwritten it if the queue was
    /// full.
    #[must_use]
    pub fn last_entry(&self) -> Vec<u8> {
        let (ring, first, count) = self.entries.last();
        bytes(ring, first, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::heap::Heap;

    #[test]
    fn a_wqe_is_as_long_as_it_says_and_wraps() {
        let heap = Heap::zeroed(128);
        let ring = heap.ring();
        // Three octowords, the last of which is the ring's first.
        ring.store(12, u64::from_ne_bytes([0, 0, 1, 10, 0, 0, 7, 3]));
        ring.store(15, 15);
        ring.store(1, 1);
        let wqe = send_wqe(&ring, 12);
        assert_eq!(wqe.len(), 48);
        assert_eq!(wqe[24..32], 15u64.to_ne_bytes());
        assert_eq!(wqe[40..48], 1u64.to_ne_bytes());
    }
}
