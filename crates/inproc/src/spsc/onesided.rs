use memory::sync::{AtomicUsize, Ordering};

use super::{
    Discipline,
    credit::{self, Credit},
    ring::{Ring, Rules},
};

/// A generation in each slot, written by the producer alone; the consumer writes nothing but its
/// credit, an eighth of a lap at a time.
///
/// ```text
/// slot    │ stamp: position + 1 of the item it holds │ item │
/// line 0    credit: items whose slots may be used again   consumer stores eight times a lap
/// ```
///
/// This is the shape of a ring that a NIC or another process writes, and whose slots the consumer
/// cannot or should not touch. A stamp says only "item `p` is here": it cannot say that item
/// `p - slots` was taken out, because only the producer writes it. **A ring of stamps alone has
/// no full check**, and loses items when the producer laps the consumer. So credit flows back, and
/// the producer stops at `credit + slots`, where slots leave room for the lag of the credit.
///
/// Per push: one store-release of the stamp; per pop: one load-acquire of it. Designed line transfers
/// per item: the slot's line to the consumer, `(s + 8) / 64`, whose copy the producer invalidates a
/// lap later without data moving back, plus 16 per lap for the credit. A round trip of items
/// up to 56 bytes is one line each way.
#[derive(Clone, Copy, Debug)]
pub enum Onesided {}

impl Discipline for Onesided {}

impl Rules for Onesided {
    type Stamp = AtomicUsize;
    type Words = Credit;

    const HAS_INDEX: bool = false;

    fn slots(capacity_items: usize) -> (usize, usize) {
        credit::slots_for(capacity_items)
    }

    fn words(slots: usize) -> Credit {
        Credit::new(slots)
    }

    #[inline(always)]
    fn free_until<T>(ring: &Ring<T, Self>, _tail: usize, _want: usize) -> usize {
        ring.words.free_until()
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
        ring.words.release(from, to);
    }
}
