//! The end of a provider, which any thread may ask for.

use std::time::Duration;

use memory::sync::{AtomicU64, Ordering};
use os::clock;

/// How long taken requests may go unanswered when the provider was stopped.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Whether a provider was stopped, and until when it waits for requests that were taken.
#[derive(Debug)]
pub(super) struct StopSign {
    /// 0: it was not stopped.
    by_ns: AtomicU64,
}

impl StopSign {
    pub(super) fn new() -> Self {
        Self { by_ns: AtomicU64::new(0) }
    }

    pub(super) fn stop(&self) {
        let by_ns = clock::deadline_ns(STOP_MAX);
        // It was stopped before, if this fails.
        let _ = self.by_ns.compare_exchange(0, by_ns, Ordering::SeqCst, Ordering::SeqCst);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.by_ns.load(Ordering::SeqCst) != 0
    }

    /// Whether it was stopped, and waits no longer.
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        let by_ns = self.by_ns.load(Ordering::SeqCst);
        by_ns != 0 && now_ns >= by_ns
    }
}
