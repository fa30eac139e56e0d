//! A lock among the executors that reach a card: its word says which port holds it, so that the owner of the
//! card can give back what a dead port held.

use memory::sync::{AtomicU64, Ordering};

use super::{Holder, NOBODY};

/// Attempts to be alone before somebody else is let on first.
const ATTEMPTS: u32 = if cfg!(loom) { 2 } else { 256 };

/// A word of a card: who is inside, or [`NOBODY`].
#[derive(Clone, Copy, Debug)]
pub struct PortLock<'a>(pub &'a AtomicU64);

impl PortLock<'_> {
    /// Whether `holder` is inside now. If not, somebody else is, who may be of the same port, and the caller
    /// lets others run before it tries again.
    #[inline]
    #[must_use]
    pub fn try_take(self, holder: Holder) -> bool {
        debug_assert_ne!(holder, NOBODY);
        (0..ATTEMPTS).any(|_| {
            // SYNC(port-lock): pairs with the `Release` in `give`: what the last one left there.
            let taken = self.0.compare_exchange(
                NOBODY.into(),
                holder.into(),
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if taken.is_err() {
                memory::sync::hint::spin_loop();
            }
            taken.is_ok()
        })
    }

    /// `holder` leaves, or is dead. Nothing happens if it is not inside.
    #[inline]
    pub fn give(self, holder: Holder) {
        // SYNC(port-lock): pairs with the `Acquire` in `try_take`.
        let (held, free) = (holder.into(), NOBODY.into());
        let _ = self.0.compare_exchange(held, free, Ordering::Release, Ordering::Relaxed);
    }
}
