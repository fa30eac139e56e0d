//! Contention for the core that this thread waits on.

use std::thread;

use crate::clock;

/// Longest time that `sched_yield(2)` takes on a core without other runnable threads. It takes some 0.4 µs;
/// a switch to another thread and back takes more than 1 µs.
const ALONE_NS: u64 = 1_000;

/// While the core is contended, one yield in this many is timed. The others save two readings of the clock.
const TIMED_PERIOD: u32 = 8;

/// The result of a thread's last timed yield: whether another thread took the core.
#[derive(Clone, Debug, Default)]
pub struct CoreContention {
    is_contended: bool,
    /// Yields since the last timed one.
    untimed: u32,
}

impl CoreContention {
    /// The state before the first yield, as the caller supposes it.
    #[must_use]
    pub const fn new(is_contended: bool) -> Self {
        Self { is_contended, untimed: 0 }
    }

    /// Whether another thread took the core at the last timed yield.
    #[inline]
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.is_contended
    }

    /// Yields the core once. New contention is noticed by this yield, the end of contention by one of the
    /// next few.
    #[inline]
    pub fn yield_core(&mut self) {
        self.untimed += 1;
        if self.is_contended && self.untimed < TIMED_PERIOD {
            thread::yield_now();
        } else {
            (self.is_contended, self.untimed) = (yield_core(), 0);
        }
    }
}

/// Yields the core once. Returns whether another thread took it.
///
/// A thread whose core is contended should not spin: the thread that it keeps from running may be the one
/// that it waits for.
pub fn yield_core() -> bool {
    let before_ns = clock::now_ns();
    thread::yield_now();
    clock::now_ns().saturating_sub(before_ns) > ALONE_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_contention_is_looked_for_within_a_few_yields() {
        let mut contention = CoreContention::new(true);
        let timed = (1..=TIMED_PERIOD).find(|_| {
            contention.yield_core();
            contention.untimed == 0
        });
        assert_eq!(timed, Some(TIMED_PERIOD));
        contention.is_contended = false;
        contention.yield_core();
        assert_eq!(contention.untimed, 0, "a yield without contention is always timed");
    }
}
