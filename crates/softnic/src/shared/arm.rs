//! Arming a completion queue: one wake-up for the next completion, none lost, none twice.
//!
//! ```text
//!  consumer                         producer
//!   armed = NEXT                     publish the CQE
//!   ── store_load ──                 ── store_load ──
//!   a CQE is there? ──▶ take()       armed? ──▶ take() ──▶ signal the channel
//! ```
//!
//! The two barriers make at least one side see the other (Dekker); `take` is a swap, so at most one
//! of them signals. The word carries nothing else, so the barriers are all the order it needs: what
//! the consumer finds is ordered by the entry itself.

use memory::{
    barrier,
    sync::{AtomicU32, Ordering},
};

/// Wake for any completion.
pub const NEXT: u32 = 1;
/// Wake for solicited completions and failures only.
pub const SOLICITED: u32 = 2;

/// The arm word of one completion queue; 0 when not armed.
#[derive(Clone, Copy, Debug)]
pub struct Armed<'a>(pub &'a AtomicU32);

impl Armed<'_> {
    /// Arms. Afterwards the consumer must look for entries that were already there, and if it finds
    /// one that qualifies, signal itself if [`take`](Self::take) says so.
    pub fn arm(&self, kind: u32) {
        self.0.store(kind, Ordering::Relaxed);
        barrier::store_load();
    }

    /// Whether a producer that has published something must signal. `solicited`: something of it was
    /// solicited or failed.
    pub fn fires(&self, solicited: bool) -> bool {
        barrier::store_load();
        let kind = self.0.load(Ordering::Relaxed);
        let qualifies = kind == NEXT || kind == SOLICITED && solicited;
        qualifies && self.take()
    }

    /// Whether no event was raised since [`arm`](Self::arm).
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Disarms; whoever gets `true` signals.
    pub fn take(&self) -> bool {
        self.0.swap(0, Ordering::Relaxed) != 0
    }
}
