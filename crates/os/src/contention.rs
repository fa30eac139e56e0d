//! Contention for the core that this thread waits on.

use std::thread;

use crate::clock;

/// Longest time that `sched_yield(2)` takes on a core without other runnable threads. It takes some 0.4 µs;
/// a switch to another thread and back takes more than 1 µs.
const ALONE_NS: u64 = 1_000;

/// While the core is contended, one yield in this many is timed. The others save two readings of the clock.
const TIMED_PERIOD: u32 = 8;

/// Yields that take so long are timed each: the next may take milliseconds.
const LONG_NS: u64 = 50_000;

/// Timed yields in a row without another thread after which a core is no longer contended: the kernel may let the same
/// thread go on now and then, though others want the core.
const ALONE_MIN: u32 = 4;

/// The result of a thread's last timed yields: whether another thread took the core.
#[derive(Clone, Debug, Default)]
pub struct CoreContention {
    is_contended: bool,
    is_long: bool,
    /// Yields since the last timed one.
    untimed: u32,
    /// Timed yields in a row without another thread.
    alone: u32,
}

/// A yield that was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// When it began, in nanoseconds of [`clock::now_ns`].
    pub before_ns: u64,
    /// When it ended.
    pub after_ns: u64,
}

impl CoreContention {
    /// The state before the first yield, as the caller supposes it.
    #[must_use]
    pub const fn new(is_contended: bool) -> Self {
        Self { is_contended, is_long: false, untimed: 0, alone: 0 }
    }

    /// Whether another thread took the core at one of the last timed yields.
    #[inline]
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.is_contended
    }

    /// Yields the core once; returns how long that took, if it was timed. New contention is noticed by this yield, the
    /// end of contention by one of the next few.
    #[inline]
    pub fn yield_core(&mut self) -> Option<Timed> {
        self.untimed += 1;
        if self.is_contended && !self.is_long && self.alone == 0 && self.untimed < TIMED_PERIOD {
            thread::yield_now();
            return None;
        }
        self.untimed = 0;
        let before_ns = clock::now_ns();
        thread::yield_now();
        let after_ns = clock::now_ns();
        self.look(after_ns.saturating_sub(before_ns));
        Some(Timed { before_ns, after_ns })
    }

    /// A timed yield took so long.
    fn look(&mut self, took_ns: u64) {
        self.is_long = took_ns > LONG_NS;
        self.alone = if took_ns > ALONE_NS { 0 } else { self.alone.saturating_add(1) };
        self.is_contended = self.alone == 0 || self.is_contended && self.alone < ALONE_MIN;
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
    fn one_yield_that_nobody_took_does_not_end_contention_and_four_do() {
        let mut contention = CoreContention::new(false);
        contention.look(ALONE_NS + 1);
        for _ in 1..ALONE_MIN {
            contention.look(ALONE_NS);
            assert!(contention.is_contended());
        }
        contention.look(ALONE_NS);
        assert!(!contention.is_contended());
    }

    #[test]
    fn long_yields_are_timed_each() {
        let mut contention = CoreContention::new(true);
        contention.look(LONG_NS + 1);
        assert!(contention.is_contended() && contention.yield_core().is_some());
    }
}
