use memory::sync::{AtomicUsize, Ordering};

use super::{
    Discipline,
    ring::{Ring, Rules},
};

/// A flag in each slot, set by the producer and cleared by the consumer; no shared index at all
/// (Giacomoni, Moseley, Vachharajani: FastForward, PPoPP 2008).
///
/// ```text
/// slot  │ flag: 0 free, 1 full │ item │     slot size = 8 + item, rounded up to its alignment
/// ```
///
/// Per push or pop: one load-acquire and one store-release, both of the slot's own flag. Designed
/// line transfers per item: the slot's line to the consumer and back, `2 (s + 8) / 64` per lap for
/// an item of `s` bytes. A round trip of items up to 56 bytes is one line each way, the least
/// possible. The price is that both sides write the line: a consumer right behind the producer steals
/// a line that the producer is still filling.
///
/// Slots fill and empty in order. So one free slot ahead proves all before it free, and the producer
/// looks up to 32 slots ahead to test one flag for many pushes (as in B-Queue, Wang et
/// al. 2013).
#[derive(Clone, Copy, Debug)]
pub enum FastForward {}

const FREE: usize = 0;
const FULL: usize = 1;

/// Pushes that one look at a flag may admit.
const LOOKAHEAD: usize = 32;

impl Discipline for FastForward {}

impl FastForward {
    /// Whether all of `tail..=position` is free, given that `tail` is where the next item goes and
    /// `position` is less than a lap ahead.
    #[inline(always)]
    fn is_free<T>(ring: &Ring<T, Self>, position: usize) -> bool {
        // SYNC(fastforward-free): pairs with the `Release` in `release`: this and all earlier items
        // are moved out.
        ring.slots.at(position).stamp.load(Ordering::Acquire) == FREE
    }
}

impl Rules for FastForward {
    type Stamp = AtomicUsize;
    type Words = ();

    const HAS_INDEX: bool = false;

    fn slots(capacity_items: usize) -> (usize, usize) {
        let slots = capacity_items.next_power_of_two();
        (slots, slots)
    }

    fn words(_slots: usize) {}

    #[inline(always)]
    fn free_until<T>(ring: &Ring<T, Self>, tail: usize, want: usize) -> usize {
        let far = want.max(LOOKAHEAD).min(ring.slots.len());
        let until = tail.wrapping_add(far);
        if Self::is_free(ring, until.wrapping_sub(1)) {
            return until;
        }
        // The last of the free slots, by bisection: `tail..low` is free, `high - 1` is not.
        let mut low = 0;
        let mut high = far;
        while low < want && high - low > 1 {
            let middle = usize::midpoint(low, high);
            match Self::is_free(ring, tail.wrapping_add(middle - 1)) {
                true => low = middle,
                false => high = middle,
            }
        }
        tail.wrapping_add(low)
    }

    #[inline(always)]
    fn publish<T>(ring: &Ring<T, Self>, from: usize, to: usize) {
        for offset in 0..to.wrapping_sub(from) {
            let slot = ring.slots.at(from.wrapping_add(offset));
            // SYNC(fastforward-full): pairs with the `Acquire` in `full_until`: the item is written.
            slot.stamp.store(FULL, Ordering::Release);
        }
    }

    #[inline(always)]
    fn full_until<T>(ring: &Ring<T, Self>, head: usize, want: usize) -> usize {
        let mut until = head;
        while until.wrapping_sub(head) < want.min(ring.slots.len()) {
            // SYNC(fastforward-full): pairs with the `Release` in `publish`: the item is written.
            if ring.slots.at(until).stamp.load(Ordering::Acquire) != FULL {
                break;
            }
            until = until.wrapping_add(1);
        }
        until
    }

    #[inline(always)]
    fn release<T>(ring: &Ring<T, Self>, from: usize, to: usize) {
        for offset in 0..to.wrapping_sub(from) {
            let slot = ring.slots.at(from.wrapping_add(offset));
            // SYNC(fastforward-free): pairs with the `Acquire` in `is_free`: this and all earlier
            // items are moved out.
            slot.stamp.store(FREE, Ordering::Release);
        }
    }
}
