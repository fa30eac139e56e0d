//! The popping end.

use core::{cell::Cell, fmt, marker::PhantomData};

use memory::sync::{Arc, Ordering, hint};

use super::{Discipline, ring::Ring};

/// Popping end of a ring. Not `Clone` and not `Sync`: there is one, in one thread at a time.
pub struct Consumer<T, D: Discipline> {
    ring: Arc<Ring<T, D>>,
    /// Where the next item comes from.
    head: usize,
    /// Slots `head..limit` are known to be full.
    limit: usize,
    /// Slots before this were returned to the producer; less than `head` only while a batch lives,
    /// or after one was leaked.
    released: usize,
    /// The latest look found items.
    is_fed: bool,
    not_sync: PhantomData<Cell<()>>,
}

impl<T, D: Discipline> Consumer<T, D> {
    pub(super) fn new(ring: Arc<Ring<T, D>>) -> Self {
        Self { ring, head: 0, limit: 0, released: 0, is_fed: false, not_sync: PhantomData }
    }

    /// Items that surely fit.
    #[must_use]
    pub fn capacity_items(&self) -> usize {
        self.ring.capacity_items
    }

    /// Whether the producer is gone. Ask *before* the pop that finds nothing: what was pushed before
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
            self.is_fed = D::HAS_INDEX && self.limit != self.head;
        }
        self.limit.wrapping_sub(self.head)
    }

    /// Removes the oldest item. Wait-free.
    ///
    /// With [`Lamport`](super::Lamport), a consumer that has taken all that it knew of pauses once
    /// (`spin_loop`, some 20 ns) before it looks again, so that the producer gets ahead: two threads
    /// that follow each other at the distance of one item exchange the line of the index for each.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if D::HAS_INDEX && self.limit == self.head && core::mem::take(&mut self.is_fed) {
            hint::spin_loop();
        }
        self.pop_at_once()
    }

    /// [`pop`](Self::pop) for those who have other queues to look at: without the pause.
    #[inline]
    pub(crate) fn pop_at_once(&mut self) -> Option<T> {
        if self.ready_items(1) == 0 {
            return None;
        }
        let item = self.take();
        self.release();
        Some(item)
    }

    /// Up to `max_items` of the oldest items, as an iterator that moves them out. Their slots go back
    /// to the producer together, when the batch is dropped; what was not iterated stays queued.
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
        debug_assert_ne!(self.head, self.limit);
        let item = self.ring.slots.at(self.head).item.with(|slot| {
            // SAFETY: the slot is the consumer's: `head` is below `limit`, so the producer published
            // an item here, and writes again only after `release`. `head` moves on, so the item is
            // read out once.
            unsafe { slot.cast::<T>().read() }
        });
        self.head = self.head.wrapping_add(1);
        item
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
