//! Free slots, announced by the consumer a batch at a time.
//!
//! A consumer that stores its position after each item moves that line once per item whenever the
//! producer waits for room. So it stores after each *batch*, an eighth of a lap. Credit then lags the
//! consumer by up to `batch - 1` items. To hold `capacity` items whatever the lag, a ring has
//! `slots >= capacity + batch - 1`: no item is refused while fewer than `capacity` are queued, so a
//! consumer that waits for the producer gets its item.

use memory::{
    Line,
    sync::{AtomicUsize, Ordering},
};

/// Parts of a lap after each of which the consumer returns credit. Under loom so few that a ring of
/// four slots has batches.
const BATCHES_PER_LAP: usize = if cfg!(loom) { 2 } else { 8 };

/// Position before which all items are moved out, on a line that the consumer writes.
pub struct Credit {
    position: Line<AtomicUsize>,
    slots: usize,
    /// Items per return of credit, less one: a power of two, less one.
    batch_mask: usize,
}

fn batch_items(slots: usize) -> usize {
    (slots / BATCHES_PER_LAP).max(1)
}

/// Items that surely fit.
fn capacity_items(slots: usize) -> usize {
    slots - (batch_items(slots) - 1)
}

/// Slots, a power of two, for at least `capacity`, and how many items surely fit.
pub(super) fn slots_for(capacity: usize) -> (usize, usize) {
    let least = capacity.next_power_of_two();
    let slots = if capacity_items(least) >= capacity { least } else { 2 * least };
    (slots, capacity_items(slots))
}

impl Credit {
    pub(super) fn new(slots: usize) -> Self {
        Self { position: Line::default(), slots, batch_mask: batch_items(slots) - 1 }
    }

    /// Producer: the position up to which slots are free.
    #[inline(always)]
    pub(super) fn free_until(&self) -> usize {
        // SYNC(credit): pairs with the `Release` in `release`: the items are moved out.
        self.position.load(Ordering::Acquire).wrapping_add(self.slots)
    }

    /// Consumer: the items at `from..to` are moved out.
    #[inline(always)]
    pub(super) fn release(&self, from: usize, to: usize) {
        if (from ^ to) & !self.batch_mask != 0 {
            // SYNC(credit): pairs with the `Acquire` in `free_until`: the items are moved out.
            self.position.store(to, Ordering::Release);
        }
    }
}
