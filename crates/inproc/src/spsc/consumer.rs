//! The popping end.

use core::{cell::Cell, fmt, marker::PhantomData};

use memory::sync::{Arc, Ordering, hint};

use super::{Discipline, ring::Ring};

/// Most pauses before a look at the index. Under loom each is one more place to be preempted at.
const PAUSES_MAX: u32 = if cfg!(loom) { 1 } else { 16 };
/// Less than this is too little for a look at the index.
const FEW_ITEMS: usize = 8;
/// As many need no more pauses.
const ENOUGH_ITEMS: usize = 16;

/// Popping end of a ring. Not `Clone` and not `Sync`: there is one, in one thread at a time.
pub struct Consumer<T, D: Discipline> {
    ring: Arc<Ring<T, D>>,
    /// The position of the next item.
    head: usize,
    /// Slots `head..limit` are known to be full.
    limit: usize,
    /// Slots before this were returned to the producer; less than `head` only while a batch lives,
    /// or after one was leaked.
    released: usize,
    /// Before the next look at shared memory; see [`pop`](Self::pop).
    pauses: u32,
    not_sync: PhantomData<Cell<()>>,
}

impl<T, D: Discipline> Consumer<T, D> {
    pub(super) fn new(ring: Arc<Ring<T, D>>) -> Self {
        Self { ring, head: 0, limit: 0, released: 0, pauses: 0, not_sync: PhantomData }
    }

    /// Items that surely fit.
    #[must_use]
    pub fn capacity_items(&self) -> usize {
        self.ring.capacity_items
    }

    /// Whether the producer is gone. Ask *before* the pop that finds nothing: items that were pushed before
    /// the hang-up can still be popped, so "gone, and then empty" is the end.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        // SYNC(spsc-hangup): pairs with the `Release` in the producer's drop: all pushes came before.
        self.ring.ends.is_producer_gone.load(Ordering::Acquire)
    }

    /// Queued items, at least: exact up to `want`, for one look at shared memory at most if fewer
    /// than `want` are known to be there.
    #[inline]
    pub fn ready_items(&mut self, want: usize) -> usize {
        if self.limit.wrapping_sub(self.head) < want {
            self.limit = D::full_until(&self.ring, self.head, want);
        }
        self.limit.wrapping_sub(self.head)
    }

    /// Removes the oldest item. Wait-free.
    ///
    /// With [`Lamport`](super::Lamport) and items of a cache line, a consumer that follows the producer
    /// closely pauses before it looks again, so that the producer gets ahead: each look takes the line of
    /// the index away from the producer, and takes long where the cores share no cache. It pauses once
    /// (`spin_loop`, some 20 ns) after a look that found a single item, twice as often after each that
    /// found a few, and up to 16 times; after a look that found nothing it does not. For smaller items
    /// pauses were no gain.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.limit == self.head {
            for _ in 0..self.pauses {
                hint::spin_loop();
            }
        }
        self.pop_at_once()
    }

    /// [`pop`](Self::pop) for those who have other queues to look at: without the pauses.
    #[inline(always)]
    pub(crate) fn pop_at_once(&mut self) -> Option<T> {
        let head = self.head;
        if self.limit == head && !self.refill(head) {
            return None;
        }
        self.ring.slots.prefetch_to_read(head, self.limit);
        // Built here, and the position stored behind the credit: so the compiler copies the item once,
        // and keeps the position in a register.
        let item = Some(self.item_at(head));
        let next = head.wrapping_add(1);
        D::release(&self.ring, self.released, next);
        self.released = next;
        self.head = next;
        item
    }

    /// Looks for items from `head` on, of which none is known. Whether there are any.
    #[inline]
    fn refill(&mut self, head: usize) -> bool {
        self.limit = D::full_until(&self.ring, head, 1);
        let found = self.limit.wrapping_sub(head);
        if D::HAS_INDEX && self.ring.slots.per_line() == 1 {
            self.pauses = match found {
                0 => 0,
                1 => 1,
                2..FEW_ITEMS => (2 * self.pauses).clamp(1, PAUSES_MAX),
                FEW_ITEMS..ENOUGH_ITEMS => self.pauses,
                _ => self.pauses / 2,
            };
        }
        found > 0
    }

    /// Up to `max_items` of the oldest items, as an iterator that moves them out. Their slots go back
    /// to the producer together, when the batch is dropped; items that were not iterated stay queued.
    #[inline]
    pub fn batch(&mut self, max_items: usize) -> Batch<'_, T, D> {
        let remaining = self.ready_items(max_items).min(max_items);
        Batch { consumer: self, remaining }
    }

    /// Moves as many items as there are into the front of `items`, and returns how many.
    #[inline]
    pub fn pop_slice(&mut self, items: &mut [T]) -> usize
    where
        T: Copy,
    {
        let count = self.ready_items(items.len()).min(items.len());
        let mut rest = &mut items[..count];
        while !rest.is_empty() {
            let run = self.ring.slots.run(self.head, rest.len());
            let (now, later) = rest.split_at_mut(run.len());
            for (slot, item) in run.iter().zip(now) {
                // SAFETY: as in `take`; and `T` is `Copy`.
                *item = slot.item.with(|slot| unsafe { slot.cast::<T>().read() });
            }
            self.head = self.head.wrapping_add(run.len());
            rest = later;
        }
        self.release();
        count
    }

    /// Moves the oldest item out. There must be one below `limit`.
    #[inline(always)]
    fn take(&mut self) -> T {
        let item = self.item_at(self.head);
        self.head = self.head.wrapping_add(1);
        item
    }

    /// Reads the oldest item out. There must be one below `limit`, and the caller moves `head` on.
    #[inline(always)]
    fn item_at(&self, head: usize) -> T {
        debug_assert_ne!(head, self.limit);
        self.ring.slots.at(head).item.with(|slot| {
            // SAFETY: the slot is the consumer's: `head` is below `limit`, so the producer published
            // an item here, and writes again only after `release`. `head` moves on, so the item is
            // read out once.
            unsafe { slot.cast::<T>().read() }
        })
    }

    #[inline(always)]
    fn release(&mut self) {
        if self.released != self.head {
            D::release(&self.ring, self.released, self.head);
            self.released = self.head;
        }
    }
}

impl<T, D: Discipline> Drop for Consumer<T, D> {
    fn drop(&mut self) {
        self.ring.ends.head.store(self.head, Ordering::Relaxed);
        // Nothing follows from it but "push no more"; dropping the `Arc` orders the rest.
        self.ring.ends.is_consumer_gone.store(true, Ordering::Relaxed);
    }
}

impl<T, D: Discipline> fmt::Debug for Consumer<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("popped", &self.head).finish_non_exhaustive()
    }
}

/// Items being moved out together. Dropping it returns the slots of those that were moved.
#[must_use = "a batch removes nothing unless it is iterated"]
pub struct Batch<'c, T, D: Discipline> {
    consumer: &'c mut Consumer<T, D>,
    remaining: usize,
}

impl<T, D: Discipline> Iterator for Batch<'_, T, D> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        self.remaining = self.remaining.checked_sub(1)?;
        Some(self.consumer.take())
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl<T, D: Discipline> ExactSizeIterator for Batch<'_, T, D> {}

impl<T, D: Discipline> Drop for Batch<'_, T, D> {
    #[inline]
    fn drop(&mut self) {
        self.consumer.release();
    }
}

impl<T, D: Discipline> fmt::Debug for Batch<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("remaining", &self.remaining).finish_non_exhaustive()
    }
}
