//! One bit per lane that may hold an item, so that a poll costs one load per 64 lanes.

use memory::{
    barrier,
    sync::{AtomicU64, Ordering},
};

const BITS: usize = u64::BITS as usize;

/// A bit per lane. Set bits cover all lanes with items; some set ones may be empty.
///
/// ```text
/// producer                         consumer
///   publish an item                  clear the bit
///   ── store_load ──                 ── store_load ──
///   bit clear? set it                look into the lane once more
/// ```
///
/// Either the producer sees the bit cleared and sets it again, or the consumer's last look finds the
/// item. While the bit is set a push only *loads* it, so a busy lane moves no line of this table.
#[derive(Debug)]
pub(crate) struct Ready {
    words: Box<[AtomicU64]>,
}

impl Ready {
    pub(crate) fn new(lanes: usize) -> Self {
        Self { words: (0..lanes.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Producer: the lane holds something now. Returns whether the bit had to be set, which is when
    /// the consumer may be asleep.
    #[inline]
    pub(crate) fn raise(&self, lane: usize) -> bool {
        let (word, bit) = self.place(lane);
        // SYNC(ready): pairs with the barrier in `rest`: the consumer finds the item, or we find the
        // bit clear.
        // SYNC(mpsc-users): pairs with the `Acquire` in `ReceiverState::is_deserted`: who leaves after this has
        // sent before.
        barrier::store_load();
        if word.load(Ordering::Relaxed) & bit != 0 {
            return false;
        }
        word.fetch_or(bit, Ordering::Relaxed);
        true
    }

    /// Consumer: clears the bit of a lane that was found empty. Look once more.
    pub(crate) fn rest(&self, lane: usize) {
        let (word, bit) = self.place(lane);
        word.fetch_and(!bit, Ordering::Relaxed);
        // SYNC(ready): pairs with the barrier in `raise`: we find the item, or the producer finds
        // the bit clear.
        barrier::store_load();
    }

    /// Consumer: the last look did find something.
    pub(crate) fn keep(&self, lane: usize) {
        let (word, bit) = self.place(lane);
        word.fetch_or(bit, Ordering::Relaxed);
    }

    /// Whether any bit is set.
    pub(crate) fn any(&self) -> bool {
        self.words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// The next lane whose bit is set, from `lane` on, not wrapping.
    #[inline]
    pub(crate) fn next(&self, lane: usize) -> Option<usize> {
        let mut index = lane / BITS;
        let mut mask = u64::MAX << (lane % BITS);
        while let Some(word) = self.words.get(index) {
            let set = word.load(Ordering::Relaxed) & mask;
            if set != 0 {
                return Some(index * BITS + set.trailing_zeros() as usize);
            }
            mask = u64::MAX;
            index += 1;
        }
        None
    }

    fn place(&self, lane: usize) -> (&AtomicU64, u64) {
        (&self.words[lane / BITS], 1 << (lane % BITS))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bits_are_found_in_order_across_words() {
        let ready = Ready::new(200);
        assert!(!ready.any());
        for lane in [0, 63, 64, 199] {
            assert!(ready.raise(lane), "was clear");
            assert!(!ready.raise(lane), "is set");
        }
        let next = |lane| ready.next(lane);
        assert_eq!(
            [next(0), next(1), next(64), next(65)],
            [Some(0), Some(63), Some(64), Some(199)]
        );
        assert_eq!(ready.next(200), None);
        ready.rest(199);
        assert_eq!(ready.next(65), None);
        ready.keep(199);
        assert!(ready.any() && ready.next(65) == Some(199));
    }
}
