//! Reservation of completion queue entries by several producers.
//!
//! Entry `i` of `n` has one word. It says for which *position* (`i`, `i + n`, `i + 2n`, …) the entry
//! is free, or who is writing it:
//!
//! ```text
//!   63                    16 15       0
//!  ┌────────────────────────┬──────────┐
//!  │ position               │ holder   │   holder 0: free for that position
//!  └────────────────────────┴──────────┘
//!   free(p) ──CAS──▶ held(p, me) ──publish the CQE──▶ free(p + n)
//! ```
//!
//! Reserving by CAS on the entry, not by `fetch_add` on a tail, means that a producer which dies
//! leaves its name in the one entry it was writing. The tail is a hint.

use memory::sync::{AtomicU64, Ordering};

use super::{Holder, NOBODY};

/// Producers' words of one completion queue.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'a> {
    words: &'a [AtomicU64],
    tail: &'a AtomicU64,
    consumed_seen: &'a AtomicU64,
}

/// Why no entry was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveError {
    /// Every entry holds a completion that nobody has polled: the queue overruns.
    Overrun,
    /// Another producer still holds an entry of the previous lap; try later.
    Contended,
}

/// What an entry's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Position that the entry is, or will be, used for.
    pub position: u64,
    /// Who is writing it, or [`NOBODY`].
    pub holder: Holder,
}

impl Word {
    const fn encode(self) -> u64 {
        self.position << 16 | self.holder as u64
    }

    const fn decode(word: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the low 16 bits are the holder")]
        let holder = word as Holder;
        Self { position: word >> 16, holder }
    }
}

impl<'a> Slots<'a> {
    /// Wraps the words of a queue, as many as a power of two. `consumed_seen` is the consumer's position
    /// as somebody last saw it.
    #[inline(always)]
    #[must_use]
    pub fn new(words: &'a [AtomicU64], tail: &'a AtomicU64, consumed_seen: &'a AtomicU64) -> Self {
        debug_assert!(words.len().is_power_of_two(), "{} entries", words.len());
        Self { words, tail, consumed_seen }
    }

    /// Makes every entry free for its first position. Only before anyone else knows the queue.
    pub fn reset(&self) {
        for (word, position) in self.words.iter().zip(0..) {
            word.store(Word { position, holder: NOBODY }.encode(), Ordering::Relaxed);
        }
        self.tail.store(0, Ordering::Relaxed);
        self.consumed_seen.store(0, Ordering::Release);
    }

    #[inline(always)]
    fn word(&self, position: u64) -> &'a AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "masked to the number of entries")]
        let index = position as usize & (self.words.len() - 1);
        &self.words[index]
    }

    /// Takes the next entry and returns its position. `consumed()` loads the low 24 bits of the
    /// consumer's position with Acquire; it is asked only when the queue looks full.
    ///
    /// # Errors
    ///
    /// [`ReserveError`]; nothing was taken.
    #[inline]
    pub fn reserve(
        &self,
        holder: Holder,
        mut consumed: impl FnMut() -> u32,
    ) -> Result<u64, ReserveError> {
        debug_assert_ne!(holder, NOBODY);
        let len = self.words.len() as u64;
        // SYNC(slot-tail): pairs with the `Release` below: who sees that others have come this far
        // also sees how far the consumer was then, or it would take the queue for full.
        let mut position = self.tail.load(Ordering::Acquire);
        // Each turn skips an entry or loses a race to a producer that advances: two laps suffice
        // unless others keep winning, which is contention.
        for _ in 0..2 * len + 2 {
            // SYNC(slot-word): pairs with the `Release` in `finish`.
            let seen = self.word(position).load(Ordering::Acquire);
            let word = Word::decode(seen);
            if word.position > position || word.position == position && word.holder != NOBODY {
                position += 1;
                continue;
            }
            if word.position < position {
                return Err(ReserveError::Contended);
            }
            // Only now: a tail that others have long passed tells nothing about the queue.
            if self.is_full_at(position, &mut consumed) {
                return Err(ReserveError::Overrun);
            }
            let mine = Word { position, holder }.encode();
            // SYNC(slot-word): pairs with itself and with `finish`; the winner owns the entry.
            let won = self.word(position).compare_exchange(
                seen,
                mine,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if won.is_ok() {
                // SYNC(slot-tail): pairs with the `Acquire` above.
                self.tail.store(position + 1, Ordering::Release);
                return Ok(position);
            }
        }
        Err(ReserveError::Contended)
    }

    /// Whether the consumer has not polled the entry before `position` in the same place.
    #[inline(always)]
    fn is_full_at(&self, position: u64, consumed: &mut impl FnMut() -> u32) -> bool {
        let len = self.words.len() as u64;
        // SYNC(consumed-seen): pairs with the `Release` below: the consumer has read the entry.
        let seen = self.consumed_seen.load(Ordering::Acquire);
        if position.wrapping_sub(seen) < len {
            return false;
        }
        let now = nearest(position, consumed());
        // SYNC(consumed-seen): pairs with the `Acquire` above.
        self.consumed_seen.store(now, Ordering::Release);
        // Others may have taken this entry meanwhile, and the consumer polled it.
        let is_ahead = now > position;
        !is_ahead && position - now >= len
    }

    /// [`reserve`](Self::reserve) for a caller that knows to be the only producer: the same words,
    /// without a read-modify-write.
    ///
    /// # Errors
    ///
    /// [`ReserveError`]; nothing was taken.
    #[inline(always)]
    pub fn reserve_alone(
        &self,
        holder: Holder,
        mut consumed: impl FnMut() -> u32,
    ) -> Result<u64, ReserveError> {
        debug_assert_ne!(holder, NOBODY);
        let position = self.tail.load(Ordering::Relaxed);
        if self.is_full_at(position, &mut consumed) {
            return Err(ReserveError::Overrun);
        }
        let free = Word { position, holder: NOBODY }.encode();
        let word = self.word(position);
        // What an earlier, other producer wrote there the consumer has read, and `is_full_at` has just
        // seen that with Acquire: this load orders nothing.
        if word.load(Ordering::Relaxed) != free {
            return Err(ReserveError::Contended);
        }
        word.store(Word { position, holder }.encode(), Ordering::Relaxed);
        // Its owner may have written any tail, and what matches it.
        self.tail.store(position.wrapping_add(1), Ordering::Relaxed);
        Ok(position)
    }

    /// Entries that were reserved so far, if nobody reserves one now.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.tail.load(Ordering::Relaxed)
    }

    /// Frees the entry for the next lap. Only its holder calls this, after it has published the
    /// entry, or the owner of the queue once the holder is dead.
    #[inline(always)]
    pub fn finish(&self, position: u64) {
        let position_next = position.wrapping_add(self.words.len() as u64);
        let next = Word { position: position_next, holder: NOBODY };
        // SYNC(slot-word): pairs with the `Acquire` in `reserve`.
        self.word(position).store(next.encode(), Ordering::Release);
    }

    /// Positions that `holder` has reserved and not finished. For use after its death.
    pub fn held_by(&self, holder: Holder) -> impl Iterator<Item = u64> + use<'a> {
        // The end of its process, as the kernel reports it, comes after all that it wrote.
        let words = self.words.iter().map(|word| Word::decode(word.load(Ordering::Relaxed)));
        words.filter(move |word| word.holder == holder).map(|word| word.position)
    }
}

/// The position with these low 24 bits that is nearest to `position`: far fewer entries than half of
/// 2²⁴ lie between a producer and the consumer.
#[must_use]
pub fn nearest(position: u64, low: u32) -> u64 {
    let behind = position.wrapping_sub(u64::from(low)) & 0xff_ffff;
    if behind > 0x7f_ffff {
        position.saturating_add(0x100_0000 - behind)
    } else {
        position.saturating_sub(behind)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::array::from_fn;

    use super::*;

    /// The words are in memory of the queue's owner, who may be hostile.
    #[test]
    fn a_producer_survives_a_tail_at_the_end_of_all_numbers() {
        let words: [_; 4] = from_fn(|_| AtomicU64::new(!0 << 16));
        let [tail, seen] = from_fn(|_| AtomicU64::new(u64::MAX));
        let slots = Slots::new(&words, &tail, &seen);
        let position = slots.reserve_alone(7, || 0).unwrap();
        slots.finish(position);
        assert!(slots.reserve(7, || 0).is_ok(), "it went on from the first position");
    }
}
