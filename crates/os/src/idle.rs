//! The idle loop of a thread between two empty polls: it spins, yields its core, or sleeps.

use memory::sync::hint;

use crate::{
    clock,
    contention::{CoreContention, Timed},
    wait_choice::WaitChoice,
};

pub use crate::wait_choice::WaitsFor;

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
    /// contended core it does not spin, and beside threads that compute it sleeps at once.
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

/// A poll that finds nothing for the so many-th time in a row reads the clock: how long the wait lasts is measured from
/// then on. Shorter waits are not dear.
const CLOCK_POLLS: u32 = 256;

/// Counts empty polls in a row, and learns from what waits cost whether to poll at all.
///
/// A thread of [`Wait::Adaptive`] that lost milliseconds to threads that compute sleeps at once, until it finds that
/// polling is cheap again: it looks once in 16 times of what the last look cost.
#[derive(Debug, Default)]
pub struct Idle {
    polls: u32,
    yields: u32,
    contention: CoreContention,
    choice: WaitChoice,
    state: WaitState,
    /// When the wait began, about; 0: it is not known.
    begin_ns: u64,
    /// How long it polled; 0: it polls still.
    polled_ns: u64,
    /// The end of its latest yield that was timed; 0: none was.
    yielded_ns: u64,
}

/// How far a wait has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WaitState {
    /// It has not begun, or it polls as all do that learned nothing else.
    #[default]
    Begins,
    /// It polls, to compare.
    Polls,
    Sleeps,
}

impl Idle {
    /// Of a thread that waits for this.
    #[must_use]
    pub fn new(waits_for: WaitsFor) -> Self {
        Self { choice: WaitChoice::new(waits_for), ..Self::default() }
    }

    /// A poll found work: so many pieces.
    #[inline(always)]
    pub fn found(&mut self, pieces: usize) {
        if self.begin_ns != 0 {
            self.learn(pieces);
        }
        (self.polls, self.yields) = (0, 0);
    }

    #[cold]
    fn learn(&mut self, pieces: usize) {
        let now_ns = clock::now_ns();
        let waited_ns = now_ns.saturating_sub(self.begin_ns);
        let polled_ns = match self.state {
            WaitState::Sleeps => self.polled_ns,
            WaitState::Begins | WaitState::Polls => waited_ns,
        };
        self.choice.end((waited_ns, polled_ns), pieces, now_ns);
        (self.begin_ns, self.polled_ns, self.yielded_ns) = (0, 0, 0);
        self.state = WaitState::Begins;
    }

    /// A poll found nothing, but what the thread waits for is due at any moment: spins once, also on a
    /// contended core. Returns `false`, without a spin, on a thread for which polling is dear: it is to [step](Self::step).
    #[inline(always)]
    #[must_use]
    pub fn spin(&mut self) -> bool {
        if !self.choice.polls() {
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
            Wait::Block => return IdleStep::Sleep,
        };
        if !self.choice.polls() && yields != u32::MAX && self.sleeps() {
            return IdleStep::Sleep;
        }
        if self.polls <= spins && !self.contention.is_contended() {
            if self.polls == CLOCK_POLLS && wait != Wait::Busy {
                self.begin(clock::now_ns());
            }
            hint::spin_loop();
            return IdleStep::Spun;
        }
        if self.yields == yields {
            return self.fall_asleep();
        }
        if yields == u32::MAX {
            self.polls = if wait == Wait::Busy { 0 } else { self.polls };
            self.contention.yield_core();
            return IdleStep::Yielded;
        }
        self.yields += 1;
        self.yield_core()
    }

    /// Whether the thread, which does not poll as others do, sleeps in this wait.
    #[cold]
    fn sleeps(&mut self) -> bool {
        if self.state == WaitState::Begins {
            let now_ns = clock::now_ns();
            self.begin(now_ns);
            let sleeps = self.choice.begin(now_ns);
            self.state = if sleeps { WaitState::Sleeps } else { WaitState::Polls };
        }
        self.state == WaitState::Sleeps
    }

    fn begin(&mut self, now_ns: u64) {
        if self.begin_ns == 0 {
            self.begin_ns = now_ns;
        }
    }

    /// The wait has polled enough.
    fn fall_asleep(&mut self) -> IdleStep {
        if self.begin_ns != 0 && self.state != WaitState::Sleeps {
            self.polled_ns = clock::now_ns().saturating_sub(self.begin_ns);
            self.state = WaitState::Sleeps;
        }
        IdleStep::Sleep
    }

    /// Yields the core, unless the yields so far were dear and the poll after them has found nothing.
    fn yield_core(&mut self) -> IdleStep {
        let polled_ns = self.yielded_ns.saturating_sub(self.begin_ns);
        if self.choice.polled(polled_ns, self.yielded_ns) {
            self.polled_ns = polled_ns;
            self.state = WaitState::Sleeps;
            return IdleStep::Sleep;
        }
        if let Some(Timed { before_ns, after_ns }) = self.contention.yield_core() {
            self.begin(before_ns);
            self.yielded_ns = after_ns;
        }
        IdleStep::Yielded
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
        idle.found(1);
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
        (0..3).for_each(|_| assert!(idle.spin()));
        idle.contention = CoreContention::new(false);
        assert_eq!(idle.step(Wait::Adaptive { spins: 3, yields: 0 }), IdleStep::Sleep);
    }

    /// A thread whose core others had for milliseconds in its latest yield.
    fn after_a_long_yield(waits_for: WaitsFor) -> Idle {
        let now_ns = clock::now_ns();
        let contention = CoreContention::new(true);
        let begin_ns = now_ns - 5_000_000;
        Idle { contention, begin_ns, yielded_ns: now_ns, yields: 1, ..Idle::new(waits_for) }
    }

    const PATIENT: Wait = Wait::Adaptive { spins: 0, yields: 64 };

    #[test]
    fn a_server_sleeps_if_a_long_yield_brought_nothing_or_little() {
        let mut idle = after_a_long_yield(WaitsFor::Requests);
        assert_eq!((idle.step(PATIENT), idle.step(PATIENT)), (IdleStep::Sleep, IdleStep::Sleep));
        let mut idle = after_a_long_yield(WaitsFor::Requests);
        idle.found(1);
        assert_eq!(idle.step(PATIENT), IdleStep::Sleep);
        assert!(!idle.spin());
    }

    #[test]
    fn a_server_polls_on_if_a_long_yield_brought_much() {
        let mut idle = after_a_long_yield(WaitsFor::Requests);
        idle.found(500);
        assert_eq!(idle.step(PATIENT), IdleStep::Yielded);
    }

    #[test]
    fn a_thread_that_never_sleeps_yields_whatever_that_costs() {
        for wait in [Wait::Busy, Wait::Adaptive { spins: 0, yields: u32::MAX }] {
            let mut idle = after_a_long_yield(WaitsFor::Requests);
            assert_eq!(idle.step(wait), IdleStep::Yielded, "{wait:?}");
            idle.found(1);
            idle.contention = CoreContention::new(true);
            assert_eq!(idle.step(wait), IdleStep::Yielded, "{wait:?}");
        }
    }
}
