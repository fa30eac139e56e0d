//! When the program last looked for completions, and how often it found none.

use memory::sync::{AtomicU64, Ordering};

/// Who has polled within this time polls.
const RECENT_NS: u64 = 100_000_000;

static LAST_NS: AtomicU64 = AtomicU64::new(0);
static EMPTY: AtomicU64 = AtomicU64::new(0);

/// How a program looks for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Polls {
    /// Polls that have found nothing.
    pub(crate) empty: u64,
    /// Whether there was one lately: a program that waits for events polls only after one.
    pub(crate) is_recent: bool,
}

impl Polls {
    /// Those until now.
    pub(crate) fn now() -> Self {
        Self { empty: EMPTY.load(Ordering::Relaxed), is_recent: last_ns_ago() < RECENT_NS }
    }
}

/// How long ago a thread of the program has polled and then done the engine's work.
pub(crate) fn last_ns_ago() -> u64 {
    os::clock::now_ns().saturating_sub(LAST_NS.load(Ordering::Relaxed))
}

/// A poll has found nothing.
pub(crate) fn found_nothing() {
    EMPTY.fetch_add(1, Ordering::Relaxed);
}

/// The thread that has polled has done the engine's work.
pub(crate) fn worked() {
    LAST_NS.store(os::clock::now_ns(), Ordering::Relaxed);
}
