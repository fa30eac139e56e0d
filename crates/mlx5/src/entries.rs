//! Entries of a completion queue: whose they are, lap after lap.
//!
//! ```text
//! 64 B   ┌─────────────────────┬────────┐
//!        │ completion          │ op_own │
//!        └─────────────────────┴────────┘
//! 128 B  ┌──────────────────────────────┬─────────────────────┬────────┐
//!        │ payload, if `op_own` says so │ completion          │ op_own │
//!        └──────────────────────────────┴─────────────────────┴────────┘
//! ```
//!
//! The owner bit in `op_own` changes with each lap, so the entry of the lap before is never taken
//! for a new one. Software owns an entry from then until it publishes a consumer index beyond it.
//!
//! Source: rdma-core `providers/mlx5/cq.c`, `get_sw_cqe`.

use memory::barrier;
use wire::{
    cqe::{
        CQE_BYTES, Cqe, INLINE_64_BYTES, PlainArrival, Source, is_solicited, is_written,
        op_own_of_last_word, read_source,
    },
    doorbell,
};

use crate::ring::{Record, WORD_BYTES, Words};

/// Words of a completion.
const CQE_WORDS: usize = CQE_BYTES / WORD_BYTES;

/// Words of the payload in front of it.
pub(crate) const PAYLOAD_WORDS: usize = INLINE_64_BYTES / WORD_BYTES;

/// An entry that the device has written, and that is the next one still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// Number of its first word.
    first: usize,
    last_word: u64,
}

impl Written {
    /// Whether it raises an event of a queue that was armed for solicited ones: a solicited message, or a
    /// failure.
    pub(crate) fn is_solicited(self) -> bool {
        is_solicited(op_own_of_last_word(self.last_word))
    }

    /// Whether it says that a WRITE with immediate data has arrived.
    #[inline(always)]
    pub(crate) fn is_write_arrival(self) -> bool {
        PlainArrival::write_ends_in(self.last_word)
    }
}

/// Ring, consumer index and record of a completion queue.
#[derive(Debug)]
pub(crate) struct Entries {
    ring: Words,
    record: Record,
    log_entries: u8,
    /// Base-2 logarithm of the words per entry: 3 or 4.
    log_entry_words: u8,
    /// Entries ever consumed, modulo 2³²; the record has the low 24 bits.
    consumer: u32,
}

impl Entries {
    /// Takes over a ring of zeroes and its record, and marks every entry as not written.
    pub(crate) fn new(ring: Words, record: Record, log_entries: u8, has_payload: bool) -> Self {
        let log_entry_words = if has_payload { 4 } else { 3 };
        let [.., last_word] = Cqe::INVALID.to_words();
        for entry in 1..=1usize << log_entries {
            ring.store((entry << log_entry_words) - 1, last_word);
        }
        Self { ring, record, log_entries, log_entry_words, consumer: 0 }
    }

    /// Number of entries.
    pub(crate) fn count(&self) -> u32 {
        1 << self.log_entries
    }

    /// Entries ever consumed, modulo 2³².
    pub(crate) fn consumer(&self) -> u32 {
        self.consumer
    }

    /// The entry that was consumed last: the ring, its first word, and the number of words.
    pub(crate) fn last(&self) -> (&Words, usize, usize) {
        let words = 1usize << self.log_entry_words;
        let at = self.consumer.wrapping_sub(1) & (self.count() - 1);
        (&self.ring, at as usize * words, words)
    }

    /// Whether the next entry comes before position `until`, modulo 2²⁴.
    pub(crate) fn is_before(&self, until: u32) -> bool {
        let ahead = until.wrapping_sub(self.consumer) & INDEX_MASK;
        ahead != 0 && ahead <= self.count()
    }

    /// A way to look at the queue from other threads.
    ///
    /// # Safety
    ///
    /// The result is not used once the memory of the queue is gone.
    pub(crate) unsafe fn peek(&self) -> Peek {
        // SAFETY: by contract.
        let ring = unsafe { self.ring.alias() };
        // SAFETY: by contract.
        let record = unsafe { self.record.alias() };
        let (log_entries, log_entry_words) = (self.log_entries, self.log_entry_words);
        Peek(Self { ring, record, log_entries, log_entry_words, consumer: 0 })
    }

    /// Number of the first word of the completion of the entry at `index`.
    #[inline(always)]
    fn first_word(&self, index: u32) -> usize {
        (((index as usize) + 1) << self.log_entry_words) - CQE_WORDS
    }

    /// The next entry, if the device has written it.
    #[inline(always)]
    pub(crate) fn written(&self) -> Option<Written> {
        self.written_at(self.consumer)
    }

    /// The entry at `index`, if the device has written it.
    #[inline(always)]
    fn written_at(&self, index: u32) -> Option<Written> {
        let first = self.first_word(index);
        let last_word = self.ring.load_acquire(first + CQE_WORDS - 1);
        let is_written = is_written(op_own_of_last_word(last_word), index, self.log_entries);
        is_written.then_some(Written { first, last_word })
    }

    /// Entries that the device has written, and that are not consumed yet.
    pub(crate) fn unpolled(&self) -> impl Iterator<Item = Written> + '_ {
        (0..self.count()).map_while(|ahead| self.written_at(self.consumer.wrapping_add(ahead)))
    }

    /// Copies the completion of the next entry.
    #[inline(always)]
    pub(crate) fn copy(&self, next: Written) -> Cqe {
        barrier::after_ownership();
        let mut words = [0; CQE_WORDS];
        for (index, word) in words[..CQE_WORDS - 1].iter_mut().enumerate() {
            *word = self.ring.load(next.first + index);
        }
        words[CQE_WORDS - 1] = next.last_word;
        Cqe::from_words(words)
    }

    /// The next entry, if it is a plain arrival.
    #[inline(always)]
    pub(crate) fn arrival(&self, next: Written) -> Option<PlainArrival> {
        if !PlainArrival::ends_in(next.last_word) {
            return None;
        }
        barrier::after_ownership();
        let [imm, length] = [4, 5].map(|word| self.ring.load(next.first + word));
        Some(PlainArrival::read(imm, length, next.last_word))
    }

    /// The sender of the message that [`arrival`](Self::arrival) returned.
    #[inline(always)]
    pub(crate) fn source(&self, next: Written) -> Source {
        let [path, sender] = [2, 3].map(|word| self.ring.load(next.first + word));
        read_source(path, sender)
    }

    /// Copies the next entry's payload half, if entries have one. Call after [`copy`](Self::copy).
    #[inline]
    pub(crate) fn copy_payload(&self) -> Option<[u64; PAYLOAD_WORDS]> {
        if 1 << self.log_entry_words == CQE_WORDS {
            return None;
        }
        let first = self.first_word(self.consumer) - PAYLOAD_WORDS;
        Some(core::array::from_fn(|index| self.ring.load(first + index)))
    }

    /// Gives the next entry back to the device.
    #[inline(always)]
    pub(crate) fn consume(&mut self) {
        self.consumer = self.consumer.wrapping_add(1);
        self.record.publish(doorbell::consumer_word(self.consumer));
    }
}

/// Consumer indices in records have 24 bits.
const INDEX_MASK: u32 = (1 << 24) - 1;

/// A look at a completion queue that somebody else polls.
#[derive(Debug)]
pub(crate) struct Peek(Entries);

impl Peek {
    /// Position, modulo 2²⁴, of the first entry that the device has not written; `None` if all that it has
    /// written is consumed.
    ///
    /// Owner bits repeat every other lap, and a queue has at most half of 2²⁴ entries, so the low 24
    /// bits of the position tell them apart as well as all of it.
    pub(crate) fn end(&mut self) -> Option<u32> {
        self.end_from(self.consumed())
    }

    /// [`end`](Self::end), looked for from `start`, where the consumer was a while ago.
    fn end_from(&mut self, mut start: u32) -> Option<u32> {
        let entries = self.0.count();
        loop {
            self.0.consumer = start;
            let mut passed = 0;
            while passed < entries && self.0.written().is_some() {
                self.0.consumer = self.0.consumer.wrapping_add(1);
                passed += 1;
            }
            // What was polled meanwhile may be written anew, for the next lap, and then looks unwritten.
            // It ends: a poll takes longer than a look, so nobody gets ahead of many.
            let consumed = self.consumed();
            let polled = consumed.wrapping_sub(start) & INDEX_MASK;
            if polled <= passed {
                return (polled < passed).then_some(self.0.consumer & INDEX_MASK);
            }
            start = consumed;
        }
    }

    /// The consumer index, modulo 2²⁴.
    fn consumed(&self) -> u32 {
        doorbell::consumer_of_word(self.0.record.published())
    }
}

#[cfg(test)]
mod tests {
    use wire::cqe::owner_bit;

    use super::*;
    use crate::ring::heap::Heap;

    /// The record wraps at 24 bits, the index at 32, and the owner bit at neither.
    #[test]
    fn laps_go_on_across_the_wraps_of_the_index() {
        for start in [0, (1 << 24) - 5, u32::MAX - 4] {
            let (ring, record) = (Heap::zeroed(4 * 64), Heap::zeroed(8));
            let mut entries = Entries::new(ring.ring(), record.record(), 2, false);
            entries.consumer = start;
            for turn in 0..12 {
                let produced = start.wrapping_add(turn);
                // The entry of the lap before, whose owner bit is the other one.
                write(&entries, produced, 1 ^ owner_bit(produced, 2));
                assert!(entries.written().is_none(), "{produced} is not written yet");
                write(&entries, produced, owner_bit(produced, 2));
                assert!(entries.written().is_some());
                entries.consume();
                assert_eq!(record.recorded(), produced.wrapping_add(1) & 0xff_ffff);
            }
        }
    }

    fn write(entries: &Entries, index: u32, owner: u8) {
        let last = (index as usize & 3) * CQE_WORDS + CQE_WORDS - 1;
        entries.ring.store(last, u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 0, owner]));
    }

    /// Whoever polls the queue goes on, and so does the device.
    #[test]
    fn a_late_look_finds_the_end_of_the_queue() {
        for lap in [0u32, 4, 0xff_fffc] {
            let (ring, record) = (Heap::zeroed(4 * 64), Heap::zeroed(8));
            let mut entries = Entries::new(ring.ring(), record.record(), 2, false);
            // SAFETY: the heaps live until the end of the loop's turn.
            let mut peek = unsafe { entries.peek() };
            (lap..lap + 4).for_each(|index| write(&entries, index, owner_bit(index, 2)));
            entries.consumer = lap;
            entries.record.publish(doorbell::consumer_word(lap));
            for polled in 0..4 {
                assert_eq!(peek.end_from(lap), Some((lap + 4) & INDEX_MASK), "{polled} polled");
                entries.consume();
            }
            assert_eq!(peek.end_from(lap), None, "all are polled");
            (lap + 4..lap + 6).for_each(|index| write(&entries, index, owner_bit(index, 2)));
            assert_eq!(peek.end_from(lap), Some((lap + 6) & INDEX_MASK));
            entries.consume();
            entries.consume();
            (lap + 6..lap + 10).for_each(|index| write(&entries, index, owner_bit(index, 2)));
            assert_eq!(peek.end_from(lap), Some((lap + 10) & INDEX_MASK), "two laps late");
        }
    }

    #[test]
    fn payload_halves_exist_in_long_entries_only() {
        let (ring, record) = (Heap::zeroed(2 * 128), Heap::zeroed(8));
        let mut entries = Entries::new(ring.ring(), record.record(), 1, true);
        for entry in 0..2u64 {
            for word in 0..8 {
                entries.ring.store(usize::try_from(entry * 16 + word).unwrap(), entry * 8 + word);
            }
            assert_eq!(
                entries.copy_payload(),
                Some(core::array::from_fn(|w| entry * 8 + w as u64))
            );
            entries.consume();
        }
        let short = Entries::new(ring.ring(), record.record(), 2, false);
        assert_eq!(short.copy_payload(), None);
    }
}
