use memory::{
    Line,
    sync::{AtomicUsize, Ordering},
};

use super::{
    Discipline,
    credit::{self, Credit},
    ring::{Ring, Rules},
};

/// Two free-running indices, each written by one side; each side remembers its last read of the
/// other's (Lamport 1977, with the cached indices and batched credit of MCRingBuffer).
///
/// ```text
/// line 0  tail     producer stores, consumer loads when its copy says "empty"
/// line 1  credit   consumer stores eight times a lap, producer loads when its copy says "full"
/// slots   items only, contiguous: a 64-byte item is one line, eight 8-byte items share one
/// ```
///
/// Per push: one store-release of `tail`; per pop: none, but for the credit; and a load-acquire only
/// when the cached index runs out. Designed line transfers per item of `s` bytes: `s / 64` for the
/// item, 16 per lap for the credit, and two per *refill* of the consumer's copy of `tail`. While items
/// queue up a refill serves many; a ring that stays nearly empty pays one per item, so a round trip
/// is two lines each way. [`Consumer::pop`](super::Consumer::pop) of items of a line pauses before it looks
/// again right after it found something, which makes refills fewer. A reservation of `n` stores `tail` once
/// per `n`.
#[derive(Clone, Copy, Debug)]
pub enum Lamport {}

/// Shared words of a [`Lamport`] ring.
pub struct Words {
    tail: Line<AtomicUsize>,
    credit: Credit,
}

impl Discipline for Lamport {}

impl Rules for Lamport {
    type Stamp = ();
    type Words = Words;

    const HAS_INDEX: bool = true;

    fn slots(capacity_items: usize) -> (usize, usize) {
        credit::slots_for(capacity_items)
    }

    fn words(slots: usize) -> Words {
        Words { tail: Line::default(), credit: Credit::new(slots) }
    }

    #[inline(always)]
    fn free_until<T>(ring: &Ring<T, Self>, _tail: usize, _want: usize) -> usize {
        ring.words.credit.free_until()
    }

    #[inline(always)]
    fn publish<T>(ring: &Ring<T, Self>, _from: usize, to: usize) {
        // SYNC(lamport-full): pairs with the `Acquire` in `full_until`: the items are written.
        ring.words.tail.store(to, Ordering::Release);
    }

    #[inline(always)]
    fn full_until<T>(ring: &Ring<T, Self>, _head: usize, _want: usize) -> usize {
        // SYNC(lamport-full): pairs with the `Release` in `publish`: the items are written.
        ring.words.tail.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn release<T>(ring: &Ring<T, Self>, from: usize, to: usize) {
        ring.words.credit.release(from, to);
    }
}
