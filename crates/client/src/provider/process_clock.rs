//! The clock of a provider's process.

use std::fmt::Debug;

use os::clock;

/// A clock in nanoseconds.
pub trait ProviderClock: Clone + Debug {
    /// The time.
    fn now_ns(&self) -> u64;
}

/// `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsClock;

impl ProviderClock for OsClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }
}
