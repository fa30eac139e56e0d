//! The pushing end.

use core::{cell::Cell, fmt, marker::PhantomData};

use memory::sync::{Arc, Ordering};

use super::{Discipline, Full, ring::Ring};

/// Pushing end of a ring. Not `Clone` and not `Sync`: there is one, in one thread at a time.
///
/// Dropping it hangs up: the consumer gets the items that were pushed, then
/// [`Consumer::is_disconnected`](super::Consumer::is_disconnected) says so.
pub struct Producer<T, D: Discipline> {
    ring: Arc<Ring<T, D>>,
    /// The position of the next item.
    tail: usize,
    /// Slots `tail..limit` are known to be free.
    limit: usize,
    not_sync: PhantomData<Cell<()>>,
}

impl<T, D: Discipline> Producer<T, D> {
    pub(super) fn new(ring: Arc<Ring<T, D>>) -> Self {
        Self { ring, tail: 0, limit: 0, not_sync: PhantomData }
    }

    /// Items that surely fit.
    #[must_use]
    pub fn capacity_items(&self) -> usize {
        self.ring.capacity_items
    }

    /// Whether the consumer is gone: items that are pushed from now on are dropped with the queue.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        // No data follows from the answer, so nothing to order.
        self.ring.ends.is_consumer_gone.load(Ordering::Relaxed)
    }

    /// Free slots, at least: exact up to `want`, for one look at shared memory at most if fewer than
    /// `want` are known to be free.
    #[inline]
    pub fn free_items(&mut self, want: usize) -> usize {
        if self.limit.wrapping_sub(self.tail) < want {
            self.limit = D::free_until(&self.ring, self.tail, want);
        }
        self.limit.wrapping_sub(self.tail)
    }

    /// Appends `item`. Wait-free.
    ///
    /// # Errors
    ///
    /// [`Full`] hands `item` back.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), Full<T>> {
        if self.free_items(1) == 0 {
            return Err(Full(item));
        }
        self.ring.slots.prefetch_to_write(self.tail, self.limit);
        self.ring.slots.at(self.tail).item.with_mut(|slot| {
            // SAFETY: the slot is the producer's: `tail` is below `limit`, so the consumer moved its
            // last item out, and looks again only after `publish`.
            unsafe { slot.cast::<T>().write(item) };
        });
        let next = self.tail.wrapping_add(1);
        D::publish(&self.ring, self.tail, next);
        self.tail = next;
        Ok(())
    }

    /// Appends as many of `items` as fit, visible to the consumer at once, and returns how many.
    #[inline]
    pub fn push_slice(&mut self, items: &[T]) -> usize
    where
        T: Copy,
    {
        let mut reservation = self.reserve(items.len());
        reservation.push_slice(items);
        reservation.commit()
    }

    /// Takes up to `max_items` free slots, to fill and then [`commit`](Reservation::commit).
    ///
    /// The reservation may be smaller, or empty.
    #[inline]
    pub fn reserve(&mut self, max_items: usize) -> Reservation<'_, T, D> {
        let len = self.free_items(max_items).min(max_items);
        Reservation { producer: self, len, filled: 0 }
    }
}

impl<T, D: Discipline> Drop for Producer<T, D> {
    fn drop(&mut self) {
        let ends = &self.ring.ends;
        ends.tail.store(self.tail, Ordering::Relaxed);
        // SYNC(spsc-hangup): pairs with the `Acquire` in `Consumer::is_disconnected`: all pushes
        // come before.
        ends.is_producer_gone.store(true, Ordering::Release);
    }
}

impl<T, D: Discipline> fmt::Debug for Producer<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("pushed", &self.tail).finish_non_exhaustive()
    }
}

/// Free slots that the producer is filling. The consumer sees nothing before
/// [`commit`](Self::commit); dropping a reservation drops the items in it.
#[must_use = "items in a reservation are dropped unless it is committed"]
pub struct Reservation<'p, T, D: Discipline> {
    producer: &'p mut Producer<T, D>,
    /// Slots reserved, from the producer's `tail` on.
    len: usize,
    /// Slots filled, of those.
    filled: usize,
}

impl<T, D: Discipline> Reservation<'_, T, D> {
    /// Slots still to fill.
    #[must_use]
    pub fn remaining_items(&self) -> usize {
        self.len - self.filled
    }

    /// Fills the next slot.
    ///
    /// # Errors
    ///
    /// [`Full`] hands `item` back if all slots of the reservation are filled.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), Full<T>> {
        if self.filled == self.len {
            return Err(Full(item));
        }
        self.producer.ring.slots.at(self.producer.tail.wrapping_add(self.filled)).item.with_mut(
            // SAFETY: the slot is the producer's: reserved slots are free, and not published yet.
            |slot| unsafe { slot.cast::<T>().write(item) },
        );
        self.filled += 1;
        Ok(())
    }

    /// Fills the next slots with the first of `items`, and returns how many fitted.
    #[inline]
    pub fn push_slice(&mut self, items: &[T]) -> usize
    where
        T: Copy,
    {
        let count = items.len().min(self.remaining_items());
        let mut rest = &items[..count];
        while !rest.is_empty() {
            let start = self.producer.tail.wrapping_add(self.filled);
            let run = self.producer.ring.slots.run(start, rest.len());
            let (now, later) = rest.split_at(run.len());
            for (slot, item) in run.iter().zip(now) {
                // SAFETY: as in `push`.
                slot.item.with_mut(|slot| unsafe { slot.cast::<T>().write(*item) });
            }
            self.filled += run.len();
            rest = later;
        }
        count
    }

    /// Fills slots from `items` until the reservation or the iterator ends, and returns how many.
    ///
    /// If the iterator panics, the items before are dropped and the queue is as it was.
    pub fn extend(&mut self, items: impl IntoIterator<Item = T>) -> usize {
        let before = self.filled;
        // The reservation first: no item is taken from the iterator that does not fit.
        for item in items.into_iter().take(self.len - self.filled) {
            // A slot is left: that is what `take` counts.
            let _ = self.push(item);
        }
        self.filled - before
    }

    /// Makes the filled slots visible to the consumer, all with one step of the index where the
    /// discipline has one. Slots that were not filled stay free. Returns how many were.
    #[inline]
    pub fn commit(mut self) -> usize {
        let filled = core::mem::take(&mut self.filled);
        if filled > 0 {
            let from = self.producer.tail;
            self.producer.tail = from.wrapping_add(filled);
            D::publish(&self.producer.ring, from, self.producer.tail);
        }
        filled
    }
}

impl<T, D: Discipline> Drop for Reservation<'_, T, D> {
    #[inline]
    fn drop(&mut self) {
        while self.filled > 0 {
            self.filled -= 1;
            let position = self.producer.tail.wrapping_add(self.filled);
            self.producer.ring.slots.at(position).item.with_mut(|slot| {
                // SAFETY: the slot is the producer's, and `push` wrote an item; counted down first,
                // so it is dropped once even if another drop panics.
                unsafe { slot.cast::<T>().drop_in_place() };
            });
        }
    }
}

impl<T, D: Discipline> fmt::Debug for Reservation<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { len, filled, .. } = self;
        f.debug_struct("Reservation").field("len", len).field("filled", filled).finish()
    }
}
