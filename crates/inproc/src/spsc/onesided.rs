use memory::{
    Line,
    sync::{AtomicUsize, Ordering},
};

use super::{
    Discipline,
    ring::{Ring, Rules},
};

/// A generation in each slot, written by the producer alone; the consumer writes nothing but its
/// credit, an eighth of a lap at a time.
///
/// ```text
/// slot    │ stamp: position + 1 of the item it holds │ item │
/// line 0    credit: items whose slots may be used again   consumer stores every `batch` items
/// ```
///
/// This is the shape of a ring that a NIC or another process writes, and whose slots the consumer
/// cannot or should not touch. A stamp says only "item `p` is here": it cannot say that item
/// `p - slots` was taken out, because nobody but the producer writes it. **A ring of stamps alone has
/// no full check**, and loses items when the producer laps the consumer. So credit flows back, and
/// the producer stops at `credit + slots`.
///
/// Credit in batches of `b` lags the consumer by up to `b - 1` items. To hold `capacity` items
/// whatever the lag, the ring has `slots >= capacity + b - 1`; no item is refused while fewer than
/// `capacity` are queued, so a consumer that waits for the producer always gets its item.
///
/// Per push: one store-release of the stamp; per pop: one load-acquire of it. Designed line transfers
/// per item: the slot's line to the consumer, `(s + 8) / 64`, whose copy the producer invalidates a
/// lap later without data moving back, plus two per `b` items for the credit. A round trip of items
/// up to 56 bytes is one line each way.
#[derive(Clone, Copy, Debug)]
pub enum Onesided {}

/// Part of a lap after which the consumer returns credit.
const BATCHES_PER_LAP: usize = 8;

/// Shared words of a [`Onesided`] ring.
pub struct Words {
    credit: Line<AtomicUsize>,
    /// Items per return of credit, less one: a power of two, less one.
    batch_mask: usize,
}

fn batch_items(slots: usize) -> usize {
    (slots / BATCHES_PER_LAP).max(1)
}

impl Discipline for Onesided {}

impl Rules for Onesided {
    type Stamp = AtomicUsize;
    type Words = Words;

    fn slots(capacity_items: usize) -> (usize, usize) {
        let fits = |slots: usize| slots - (batch_items(slots) - 1);
        let least = capacity_items.next_power_of_two();
        let slots = if fits(least) >= capacity_items { least } else { 2 * least };
        (slots, fits(slots))
    }

    fn words(slots: usize) -> Words {
        Words { credit: Line::default(), batch_mask: batch_items(slots) - 1 }
    }

    #[inline(always)]
    fn free_until<T>(ring: &Ring<T, Self>, _tail: usize, _want: usize) -> usize {
        // SYNC(onesided-credit): pairs with the `Release` in `release`: the items are moved out.
        ring.words.credit.load(Ordering::Acquire).wrapping_add(ring.slots.len())
    }

    #[inline(always)]
    fn publish<T>(ring: &Ring<T, Self>, from: usize, to: usize) {
        for offset in 0..to.wrapping_sub(from) {
            let position = from.wrapping_add(offset);
            // SYNC(onesided-full): pairs with the `Acquire` in `full_until`: the item is written.
            ring.slots.at(position).stamp.store(position.wrapping_add(1), Ordering::Release);
        }
    }

    #[inline(always)]
    fn full_until<T>(ring: &Ring<T, Self>, head: usize, want: usize) -> usize {
        let mut until = head;
        while until.wrapping_sub(head) < want.min(ring.slots.len()) {
            // SYNC(onesided-full): pairs with the `Release` in `publish`: the item is written.
            let stamp = ring.slots.at(until).stamp.load(Ordering::Acquire);
            if stamp != until.wrapping_add(1) {
                break;
            }
            until = until.wrapping_add(1);
        }
        until
    }

    #[inline(always)]
    fn release<T>(ring: &Ring<T, Self>, from: usize, to: usize) {
        let batch = |position: usize| position & !ring.words.batch_mask;
        if batch(from) != batch(to) {
            // SYNC(onesided-credit): pairs with the `Acquire` in `free_until`: the items are moved
            // out.
            ring.words.credit.store(to, Ordering::Release);
        }
    }
}
