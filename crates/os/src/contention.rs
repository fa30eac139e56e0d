//! Contention for the core that this thread waits on.

use std::thread;

use crate::clock;

/// Longest time that `sched_yield(2)` takes on a core without other runnable threads. It takes some 0.4 µs;
/// a switch to another thread and back takes more than 1 µs.
const ALONE_NS: u64 = 1_000;

/// While the core is contended, one yield in this many is timed. The others save two readings of the clock.
const TIMED_PERIOD: u32 = 8;

/// After a yield that took so long the next ones are timed each: one of them may take milliseconds.
const LONG_NS: u64 = 100_000;

/// As many as these.
const TIMED_AFTER_LONG: u32 = 64;

/// The result of a thread's last timed yield: whether another thread took the core.
#[derive(Clone, Debug, Default)]
pub struct CoreContention {
    is_contended: bool,
    /// Yields that are timed whatever the last one took.
    timed: u32,
    /// Yields since the last timed one.
    untimed: u32,
}

/// A yield that was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedYield {
    /// When it began, in nanoseconds of [`clock::now_ns`].
    pub before_ns: u64,
    /// When it ended.
    pub after_ns: u64,
}

impl CoreContention {
    /// The state before the first yield, as the caller supposes it.
    #[must_use]
    pub const fn new(is_contended: bool) -> Self {
        Self { is_contended, timed: 0, untimed: 0 }
    }

    /// Whether another thread took the core at the last timed yield.
    #[inline]
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.is_contended
    }

    /// Yields the core once; returns its times if they were taken. New contention is noticed by this yield, the end
    /// of contention by one of the next few.
    ///
    /// A thread whose core is contended should not spin: the thread that it keeps from running may be the one
    /// that it waits for.
    #[inline]
    pub fn yield_core(&mut self) -> Option<TimedYield> {
        self.untimed += 1;
        if self.is_contended && self.timed == 0 && self.untimed < TIMED_PERIOD {
            thread::yield_now();
            return None;
        }
        let before_ns = clock::now_ns();
        thread::yield_now();
        let after_ns = clock::now_ns();
        self.look(after_ns.saturating_sub(before_ns));
        Some(TimedYield { before_ns, after_ns })
    }

    /// A timed yield took so long.
    fn look(&mut self, took_ns: u64) {
        (self.is_contended, self.untimed) = (took_ns > ALONE_NS, 0);
        self.timed =
            if took_ns > LONG_NS { TIMED_AFTER_LONG } else { self.timed.saturating_sub(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_contention_is_looked_for_within_a_few_yields() {
        let mut contention = CoreContention::new(true);
        let timed = (1..=TIMED_PERIOD).find(|_| contention.yield_core().is_some());
        assert_eq!(timed, Some(TIMED_PERIOD));
        contention.is_contended = false;
        assert!(contention.yield_core().is_some(), "a yield without contention is always timed");
    }

    #[test]
    fn the_yields_after_a_long_one_are_timed() {
        let mut contention = CoreContention::new(false);
        contention.look(LONG_NS);
        assert!(contention.is_contended() && contention.yield_core().is_none());
        contention.look(LONG_NS + 1);
        for _ in 0..TIMED_AFTER_LONG {
            contention.is_contended = true;
            assert!(contention.yield_core().is_some());
        }
    }
}
