//! One bounded queue for any number of producers and consumers.
//!
//! A ring whose slots carry the position that may use them next (Vyukov's bounded MPMC queue):
//!
//! ```text
//! slot.turn == position                 free, for the producer that gets `position`
//! slot.turn == position + 1             full, for the consumer that gets `position`
//! slot.turn == position + slots         free again, one lap later
//! ```
//!
//! Per operation: one compare-exchange on the shared `tail` or `head`, one load-acquire and one
//! store-release of the slot's turn. Designed line transfers per item of `s` bytes between cores: one
//! each for `tail` and `head`, and `(s + 8) / 64` for the slot. Not lock-free in the strict sense: a
//! thread that stops between its compare-exchange and its store holds up the slot it took. Where that
//! matters, or where throughput does, give each producer a lane ([`crate::mpsc`]).

use core::{fmt, mem::MaybeUninit};

use memory::{
    Line,
    sync::{Arc, AtomicUsize, Ordering, UnsafeCell},
};

use crate::spsc::Full;

struct Slot<T> {
    turn: AtomicUsize,
    item: UnsafeCell<MaybeUninit<T>>,
}

struct Shared<T> {
    tail: Line<AtomicUsize>,
    head: Line<AtomicUsize>,
    slots: Box<[Slot<T>]>,
}

// SAFETY: an item is touched by the one thread that won its position, which hands it on through the
// slot's turn (hence `T: Send`); no thread gets a `&T` (hence no `T: Sync`).
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: owning a `Shared` means owning its `T`s.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    #[inline(always)]
    fn slot(&self, position: usize) -> &Slot<T> {
        &self.slots[position & (self.slots.len() - 1)]
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // All handles are gone, and dropping the last `Arc` synchronised with them.
        let tail = self.tail.load(Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        while head != tail {
            self.slot(head).item.with_mut(|item| {
                // SAFETY: no operation is half done, so `head..tail` hold items; we own them.
                unsafe { item.cast::<T>().drop_in_place() };
            });
            head = head.wrapping_add(1);
        }
    }
}

/// A handle to push and pop with; clone it for each thread.
pub struct Queue<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Queue<T> {
    /// Creates a queue of `capacity_items`, rounded up to a power of two of at least two.
    ///
    /// With a single slot, "full" and "free a lap later" would be the same turn.
    #[must_use]
    pub fn new(capacity_items: usize) -> Self {
        let slot = |turn| Slot {
            turn: AtomicUsize::new(turn),
            item: UnsafeCell::new(MaybeUninit::uninit()),
        };
        let slots = (0..capacity_items.max(2).next_power_of_two()).map(slot).collect();
        let shared = Shared { tail: Line::default(), head: Line::default(), slots };
        Self { shared: Arc::new(shared) }
    }

    /// Items that fit.
    #[must_use]
    pub fn capacity_items(&self) -> usize {
        self.shared.slots.len()
    }

    /// Appends `item`.
    ///
    /// # Errors
    ///
    /// [`Full`] hands `item` back. The queue was full, or the consumer of the slot has not finished.
    pub fn push(&self, item: T) -> Result<(), Full<T>> {
        let Some(position) = self.claim(&self.shared.tail, 0) else { return Err(Full(item)) };
        let slot = self.shared.slot(position);
        slot.item.with_mut(|cell| {
            // SAFETY: the slot is ours: its turn was `position`, and `claim` gave that to us alone.
            unsafe { cell.cast::<T>().write(item) };
        });
        // SYNC(mpmc-turn): pairs with the `Acquire` in `claim`, of a consumer: the item is written.
        slot.turn.store(position.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Removes the oldest item, if there is one whose producer has finished.
    #[must_use]
    pub fn pop(&self) -> Option<T> {
        let position = self.claim(&self.shared.head, 1)?;
        let slot = self.shared.slot(position);
        let item = slot.item.with(|cell| {
            // SAFETY: the slot is ours: its turn said full, and `claim` gave `position` to us alone.
            unsafe { cell.cast::<T>().read() }
        });
        let next_lap = position.wrapping_add(self.capacity_items());
        // SYNC(mpmc-turn): pairs with the `Acquire` in `claim`, of a producer: the item is moved out.
        slot.turn.store(next_lap, Ordering::Release);
        Some(item)
    }

    /// Advances `index` by one and returns its old value, once the slot's turn is that plus `offset`;
    /// none if the turn is still behind.
    #[inline]
    fn claim(&self, index: &AtomicUsize, offset: usize) -> Option<usize> {
        let mut position = index.load(Ordering::Relaxed);
        loop {
            // SYNC(mpmc-turn): pairs with both `Release`s: what the slot's last user did is done.
            let turn = self.shared.slot(position).turn.load(Ordering::Acquire);
            let ahead = turn.wrapping_sub(position.wrapping_add(offset));
            if ahead == 0 {
                let next = position.wrapping_add(1);
                // Only the winner is decided here; the turns order the items.
                let exchange = index.compare_exchange_weak(
                    position,
                    next,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                match exchange {
                    Ok(_) => return Some(position),
                    Err(now) => position = now,
                }
            } else if ahead > usize::MAX / 2 {
                return None; // behind: the slot's last user has not finished, or there was none
            } else {
                position = index.load(Ordering::Relaxed); // another thread took the position
            }
        }
    }
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("capacity_items", &self.capacity_items()).finish()
    }
}
