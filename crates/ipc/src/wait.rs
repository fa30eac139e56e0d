//! How a process waits: chosen per process, not per call.

use core::time::Duration;

use memory::sync::hint;
use os::crowd::Crowd;

/// As many nanoseconds as a word can count, at most.
pub(crate) fn timeout_ns(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)
}

/// What to do while there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Polls, and never sleeps. Yields the core now and then, so that many processes make progress
    /// on few cores. For a core that has nothing else to do.
    Busy,
    /// Polls `spins` times, then yields the core `yields` times, then sleeps in the kernel. Where
    /// others want the core it does not spin: what it waits for may have to come from them.
    Adaptive {
        /// Polls, about 20 ns each, before it yields.
        spins: u32,
        /// Polls with `sched_yield(2)` before it sleeps.
        yields: u32,
    },
    /// Sleeps at once.
    Block,
}

impl Default for Wait {
    /// Polls about as long as it takes to be woken up, some 40 µs. A wake costs both sides a system
    /// call, and a turn of everybody who shares the core is no reason for one.
    fn default() -> Self {
        Self::Adaptive { spins: 1500, yields: 64 }
    }
}

/// Polls in a row between two yields of a busy process.
const BUSY_SPINS: u32 = 2048;

/// What an empty poll is followed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Polled on, without leaving the core.
    Spun,
    /// Gave the core to others: time may have passed.
    Yielded,
    /// It is time to sleep.
    Sleep,
}

/// Counts empty polls in a row.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    polls: u32,
    yields: u32,
    crowd: Crowd,
}

impl Idle {
    /// There was work.
    #[inline(always)]
    pub(crate) fn reset(&mut self) {
        (self.polls, self.yields) = (0, 0);
    }

    /// There was none, again.
    #[inline(always)]
    pub(crate) fn step(&mut self, wait: Wait) -> Step {
        self.polls = self.polls.saturating_add(1);
        let (spins, yields) = match wait {
            Wait::Busy => (BUSY_SPINS - 1, u32::MAX),
            Wait::Adaptive { spins, yields } => {
                (if self.crowd.is_crowded() { 0 } else { spins }, yields)
            }
            Wait::Block => (0, 0),
        };
        if self.polls <= spins {
            hint::spin_loop();
            return Step::Spun;
        }
        if self.yields == yields {
            return Step::Sleep;
        }
        if wait == Wait::Busy {
            self.polls = 0;
        } else {
            self.yields += 1;
        }
        self.crowd.offer();
        Step::Yielded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adaptive_spins_then_yields_then_sleeps() {
        let mut idle = Idle::default();
        let wait = Wait::Adaptive { spins: 2, yields: 1 };
        let steps: Vec<_> = (0..5).map(|_| idle.step(wait)).collect();
        assert_eq!(steps, [Step::Spun, Step::Spun, Step::Yielded, Step::Sleep, Step::Sleep]);
        idle.reset();
        idle.crowd = Crowd::new(false);
        assert_eq!(idle.step(wait), Step::Spun);
        assert_eq!(Idle::default().step(Wait::Block), Step::Sleep);
    }

    #[test]
    fn who_shares_a_core_does_not_spin() {
        let mut idle = Idle { crowd: Crowd::new(true), ..Idle::default() };
        let step = idle.step(Wait::Adaptive { spins: 2, yields: 1 });
        assert_eq!(step, Step::Yielded);
    }

    #[test]
    fn busy_yields_now_and_then_and_never_sleeps() {
        let mut idle = Idle::default();
        let steps: Vec<_> = (0..3 * BUSY_SPINS).map(|_| idle.step(Wait::Busy)).collect();
        assert!(!steps.contains(&Step::Sleep));
        assert_eq!(steps.iter().filter(|step| **step == Step::Yielded).count(), 3);
    }
}
