use memory::{
    Line,
    sync::{AtomicUsize, Ordering},
};

use super::{
    Discipline,
    ring::{Ring, Rules},
};

/// Two free-running indices, each written by one side; each side remembers what it last read of the
/// other's (Lamport 1977, with the cached indices of MCRingBuffer).
///
/// ```text
/// line 0  tail   producer stores, consumer loads when its copy says "empty"
/// line 1  head   consumer stores, producer loads when its copy says "full"
/// slots   items only, contiguous: a 64-byte item is one line, eight 8-byte items share one
/// ```
///
/// Per push or pop: one store-release, and a load-acquire only when the cached index runs out.
/// Designed line transfers per item of `s` bytes: `s / 64` for the item, plus the index lines once
/// per *refill* of a cached index. While the ring stays about half full a refill serves hundreds of
/// items; if it stays nearly empty each item costs a refill, which makes a round trip two lines each
/// way. A reservation or batch of `n` moves the index once per `n`.
#[derive(Clone, Copy, Debug)]
pub enum Lamport {}

/// Shared words of a [`Lamport`] ring.
#[derive(Default)]
pub struct Words {
    tail: Line<AtomicUsize>,
    head: Line<AtomicUsize>,
}

impl Discipline for Lamport {}

impl Rules for Lamport {
    type Stamp = ();
    type Words = Words;

    fn slots(capacity_items: usize) -> (usize, usize) {
        let slots = capacity_items.next_power_of_two();
        (slots, slots)
    }

    fn words(_slots: usize) -> Words {
        Words::default()
    }

    #[inline(always)]
    fn free_until<T>(ring: &Ring<T, Self>, _tail: usize, _want: usize) -> usize {
        // SYNC(lamport-free): pairs with the `Release` in `release`: the items are moved out.
        ring.words.head.load(Ordering::Acquire).wrapping_add(ring.slots.len())
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
    fn release<T>(ring: &Ring<T, Self>, _from: usize, to: usize) {
        // SYNC(lamport-free): pairs with the `Acquire` in `free_until`: the items are moved out.
        ring.words.head.store(to, Ordering::Release);
    }
}
