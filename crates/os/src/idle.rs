//! The idle loop of a thread between two empty polls: it spins, yields its core, or sleeps.

use memory::sync::hint;

use crate::{
    clock,
    contention::{CoreContention, TimedYield},
    neighbours::{Machine, Neighbours},
};

/// The waiting mode of a process. Chosen per process, not per call.
///
/// ```
/// # use copyrpc_os::idle as copyrpc;
/// use copyrpc::Wait;
///
/// let patient = Wait::Adaptive { spins: 1000, yields: 10 };
/// assert_ne!(patient, Wait::Block);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Polls, and never sleeps. Yields the core now and then, so that many processes make progress on
    /// few cores, and after each poll on a contended one. For a thread with a core of its own.
    Busy,
    /// Polls `spins` times, then yields the core `yields` times, then sleeps in the kernel. On a
    /// contended core it does not spin; beside threads that compute it sleeps at once.
    Adaptive {
        /// Polls, about 20 ns each, before it yields.
        spins: u32,
        /// Polls with `sched_yield(2)` before it sleeps; with `u32::MAX` it never sleeps.
        yields: u32,
    },
    /// Sleeps at once.
    Block,
}

impl Default for Wait {
    /// Polls for some 40 µs, as long as a wakeup takes. A wakeup costs both sides a system call, so 64 rounds
    /// of the threads that share the core come first.
    fn default() -> Self {
        Self::Adaptive { spins: 1500, yields: 64 }
    }
}

/// Polls in a row between two yields of a busy process.
const BUSY_SPINS: u32 = 2048;

/// The step after an empty poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleStep {
    /// The thread executed one spin hint.
    Spun,
    /// The thread yielded its core: time may have passed.
    Yielded,
    /// Nothing yet: the caller is to sleep in the kernel.
    Sleep,
}

/// Counts empty polls in a row, and learns from its yields who shares the core.
#[derive(Debug, Default)]
pub struct Idle {
    polls: u32,
    yields: u32,
    contention: CoreContention,
    neighbours: Neighbours,
}

impl Idle {
    /// A poll found work.
    #[inline(always)]
    pub fn reset(&mut self) {
        (self.polls, self.yields) = (0, 0);
    }

    /// A poll found nothing, but what the thread waits for is due at any moment: spins once, also on a
    /// contended core. Beside threads that compute it returns false, and the thread should [`step`](Self::step).
    #[inline(always)]
    pub fn spin(&mut self) -> bool {
        if self.neighbours.compute() {
            return false;
        }
        self.polls = self.polls.saturating_add(1);
        hint::spin_loop();
        true
    }

    /// A poll found nothing. Spins or yields once, or tells the caller to sleep.
    #[inline(always)]
    pub fn step(&mut self, wait: Wait) -> IdleStep {
        self.polls = self.polls.saturating_add(1);
        let (spins, yields) = match wait {
            Wait::Busy => (BUSY_SPINS - 1, u32::MAX),
            Wait::Adaptive { spins, yields } => (spins, yields),
            Wait::Block => (0, 0),
        };
        if self.neighbours.compute() && self.neighbours.begin(clock::now_ns()) {
            return IdleStep::Sleep;
        }
        if self.polls <= spins && !self.contention.is_contended() {
            hint::spin_loop();
            return IdleStep::Spun;
        }
        if self.yields == yields {
            return IdleStep::Sleep;
        }
        if wait == Wait::Busy {
            self.polls = 0;
        } else if yields != u32::MAX {
            self.yields += 1;
        }
        self.yield_core(yields != u32::MAX);
        IdleStep::Yielded
    }

    /// Yields the core once. A thread that `may_sleep` learns from what that took.
    fn yield_core(&mut self, may_sleep: bool) {
        if let Some(TimedYield { before_ns, after_ns }) = self.contention.yield_core()
            && may_sleep
        {
            self.neighbours.yielded(before_ns, after_ns, Machine::now);
        }
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
        assert_eq!(
            steps,
            [IdleStep::Spun, IdleStep::Spun, IdleStep::Yielded, IdleStep::Sleep, IdleStep::Sleep]
        );
        idle.reset();
        idle.contention = CoreContention::new(false);
        assert_eq!(idle.step(wait), IdleStep::Spun);
        assert_eq!(Idle::default().step(Wait::Block), IdleStep::Sleep);
    }

    #[test]
    fn a_thread_on_a_contended_core_does_not_spin() {
        let mut idle = Idle { contention: CoreContention::new(true), ..Idle::default() };
        let step = idle.step(Wait::Adaptive { spins: 2, yields: 1 });
        assert_eq!(step, IdleStep::Yielded);
    }

    #[test]
    fn busy_yields_now_and_then_and_never_sleeps() {
        let mut idle = Idle::default();
        for _ in 0..3 {
            // Whether others wanted the core at the last yield is not this test's.
            idle.contention = CoreContention::new(false);
            let steps: Vec<_> = (0..BUSY_SPINS).map(|_| idle.step(Wait::Busy)).collect();
            let (last, before) = steps.split_last().unwrap();
            assert!(
                before.iter().all(|step| *step == IdleStep::Spun) && *last == IdleStep::Yielded
            );
        }
        idle.contention = CoreContention::new(true);
        assert_eq!(idle.step(Wait::Busy), IdleStep::Yielded);
    }

    #[test]
    fn what_is_due_at_any_moment_is_spun_for_and_counts() {
        let mut idle = Idle { contention: CoreContention::new(true), ..Idle::default() };
        assert!((0..3).all(|_| idle.spin()));
        idle.contention = CoreContention::new(false);
        assert_eq!(idle.step(Wait::Adaptive { spins: 3, yields: 0 }), IdleStep::Sleep);
    }
}
