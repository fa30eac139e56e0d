//! Knowing that nobody is inside an object any more.
//!
//! Every send queue has a word in its own port's memory: odd while some thread executes the queue,
//! and so may be inside objects of any peer. Before each use the executor checks that the object is
//! still valid; to destroy one, its owner marks it invalid and then waits until every executor that
//! was present has left once.
//!
//! ```text
//!  executor                         owner
//!   word: even ─▶ odd                object invalid
//!   ── store_load ──                 ── store_load ──
//!   object valid? ─▶ use it          word odd? ─▶ wait until it changes
//!   word: odd ─▶ even
//! ```
//!
//! The word is also the lock that keeps two threads from executing the same queue.

use memory::{
    barrier,
    sync::{AtomicU64, Ordering},
};

/// The word of one send queue.
#[derive(Clone, Copy, Debug)]
pub struct Presence<'a>(pub &'a AtomicU64);

impl Presence<'_> {
    /// Enters, unless another thread is inside.
    #[inline]
    #[must_use]
    pub fn try_enter(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        if word & 1 == 1 {
            return false;
        }
        // Ordered after the `Release` in `leave` by the barrier, which is an Acquire fence too.
        let entered =
            self.0.compare_exchange(word, word + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if entered {
            barrier::store_load_after_rmw();
        }
        entered
    }

    /// Leaves. Only the thread that entered calls this.
    #[inline]
    pub fn leave(&self) {
        let word = self.0.load(Ordering::Relaxed);
        // SYNC(presence): pairs with the `Acquire` in `observe` and `has_left`, and with the
        // barrier in `try_enter`.
        self.0.store(word + 1, Ordering::Release);
    }

    /// What [`has_left`](Self::has_left) compares with. Call it after the object was made invalid
    /// and [`barrier::store_load`].
    #[must_use]
    pub fn observe(&self) -> u64 {
        // SYNC(presence): pairs with the `Release` in `leave` of an executor that is out already.
        self.0.load(Ordering::Acquire)
    }

    /// Whether the executor that was, or was not, inside at `observed` is surely out.
    #[must_use]
    pub fn has_left(&self, observed: u64) -> bool {
        // SYNC(presence): pairs with the `Release` in `leave`.
        observed & 1 == 0 || self.0.load(Ordering::Acquire) != observed
    }
}

/// Says to who is inside a queue, of producers or takers, that nobody else ever is; then it needs no
/// read-modify-write. The owner takes it back before another one may come, and waits, as above, until
/// the one that is inside has left.
#[derive(Clone, Copy, Debug)]
pub struct Alone<'a>(pub &'a AtomicU64);

impl Alone<'_> {
    /// Whether that is so. Valid while inside a presence.
    #[inline(always)]
    #[must_use]
    pub fn is_alone(&self) -> bool {
        // SYNC(alone): pairs with the `Release` in `show`: what those who are gone left in the queue.
        self.0.load(Ordering::Acquire) != 0
    }

    /// The owner says so, or takes it back. If so, the others have left.
    pub fn show(&self, is_alone: bool) {
        // SYNC(alone): pairs with the `Acquire` in `is_alone`.
        self.0.store(u64::from(is_alone), Ordering::Release);
    }
}
