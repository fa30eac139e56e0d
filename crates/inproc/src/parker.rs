//! Going to sleep without missing the wake-up.
//!
//! ```text
//! sleeper                          waker
//!   announce: word = ASLEEP          make work visible (a ready bit)
//!   ── store_load ──                 ── store_load ──
//!   look for work; if there is       look at word; if ASLEEP
//!     some, word = AWAKE               word = AWAKE, futex wake
//!   else futex wait while ASLEEP
//! ```
//!
//! Of the two looks behind the barriers at least one finds what the other side stored before, so a
//! sleeper with work is awake or about to be. A waker that finds no sleeper makes no system call.

use core::{fmt, hint};

use memory::{
    Line, barrier,
    sync::{AtomicU32, Ordering, thread},
};

/// Looks in a row, between two at the clock.
const CLOCK_SPINS: u32 = 1024;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// The phases of waiting: look `spins` times in a row, then `yields` times with the core given up in between,
/// then sleep in the kernel.
///
/// A wake-up from sleep costs the sleeper some 20 µs and the waker some 6 µs; a spin costs the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Looks in a row, some 20 ns apart.
    pub spins: u32,
    /// Looks with `sched_yield` in between, some 0.5 µs apart; `u32::MAX` to all but never sleep.
    pub yields: u32,
}

impl Default for Waiting {
    /// About 20 µs in all on an idle machine: what a sleep would cost.
    fn default() -> Self {
        Self { spins: 256, yields: 32 }
    }
}

/// Wakes a thread that sleeps elsewhere, such as in `poll(2)`, from any other thread.
pub type Alarm = Box<dyn Fn() + Send + Sync>;

/// Lets one thread sleep until another one wakes it.
#[derive(Default)]
pub(crate) struct Parker {
    word: Line<AtomicU32>,
    /// Besides the futex.
    alarm: Option<Alarm>,
}

impl fmt::Debug for Parker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parker").field("word", &self.word).finish_non_exhaustive()
    }
}

impl Parker {
    pub(crate) fn with_alarm(alarm: Option<Alarm>) -> Self {
        Self { word: Line::default(), alarm }
    }

    /// Waits until `has_work`, the deadline (in nanoseconds of `os::clock`), or a signal. Returns
    /// whether there is work.
    pub(crate) fn wait(
        &self,
        waiting: Waiting,
        deadline_ns: u64,
        has_work: impl Fn() -> bool,
    ) -> bool {
        if has_work() {
            return true;
        }
        if deadline_ns == 0 {
            return false;
        }
        for spun in 1..=waiting.spins {
            hint::spin_loop();
            if has_work() {
                return true;
            }
            if spun.is_multiple_of(CLOCK_SPINS) && kernel::has_passed(deadline_ns) {
                return false;
            }
        }
        for _ in 0..waiting.yields {
            thread::yield_now();
            if has_work() {
                return true;
            }
            if kernel::has_passed(deadline_ns) {
                return false;
            }
        }
        self.sleep(deadline_ns, has_work)
    }

    fn sleep(&self, deadline_ns: u64, has_work: impl Fn() -> bool) -> bool {
        if self.arm(&has_work) {
            kernel::sleep(&self.word, ASLEEP, deadline_ns);
        }
        self.disarm();
        has_work()
    }

    /// Announces the sleeper; `true` if there is no work, so that it will be woken.
    pub(crate) fn arm(&self, has_work: impl Fn() -> bool) -> bool {
        self.word.store(ASLEEP, Ordering::Relaxed);
        // SYNC(sleep): pairs with the barrier in `wake`: we see the work, or the waker sees us.
        barrier::store_load();
        !has_work()
    }

    /// The sleeper needs no waking any more.
    pub(crate) fn disarm(&self) {
        // SYNC(woken): pairs with the barrier in `wake`: who was woken sees why.
        self.word.swap(AWAKE, Ordering::Acquire);
    }

    /// Wakes the sleeper, if any. The work must be visible to its `has_work` before.
    #[inline]
    pub(crate) fn wake(&self) {
        // SYNC(sleep): pairs with the barrier in `arm`: the sleeper sees the work, or we see it.
        // SYNC(woken): pairs with the `Acquire` in `disarm`: what follows the barrier says "woken".
        barrier::store_load();
        if self.word.load(Ordering::Relaxed) == ASLEEP {
            self.wake_sleeper();
        }
    }

    #[cold]
    fn wake_sleeper(&self) {
        // One of several wakers makes the system call.
        if self.word.swap(AWAKE, Ordering::Relaxed) == ASLEEP {
            kernel::wake(&self.word);
            if let Some(alarm) = &self.alarm {
                alarm();
            }
        }
    }
}

#[cfg(not(any(loom, miri)))]
mod kernel {
    use memory::sync::AtomicU32;

    pub(super) fn sleep(word: &AtomicU32, expected: u32, deadline_ns: u64) {
        os::futex::wait(word, expected, deadline_ns);
    }

    pub(super) fn wake(word: &AtomicU32) {
        os::futex::wake(word, 1);
    }

    pub(super) fn has_passed(deadline_ns: u64) -> bool {
        os::clock::now_ns() >= deadline_ns
    }
}

/// A futex whose sleepers wake when the word changes. Wakers change it exactly when they wake, so a
/// lost wake-up is a model that never ends, which loom reports.
#[cfg(any(loom, miri))]
mod kernel {
    use memory::sync::{AtomicU32, Ordering, thread};

    pub(super) fn sleep(word: &AtomicU32, expected: u32, _deadline_ns: u64) {
        while word.load(Ordering::Relaxed) == expected {
            thread::yield_now();
        }
    }

    pub(super) fn wake(_word: &AtomicU32) {}

    pub(super) fn has_passed(_deadline_ns: u64) -> bool {
        false
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use core::cell::Cell;

    use super::*;

    #[test]
    fn a_thread_that_never_sleeps_meets_its_deadline_too() {
        let long = 10_000_000; // seconds
        for waiting in [Waiting { spins: 0, yields: long }, Waiting { spins: long, yields: 0 }] {
            let looks = Cell::new(0);
            let has_work = || looks.replace(looks.get() + 1) == long;
            let passed_ns = 1;
            assert!(!Parker::default().wait(waiting, passed_ns, has_work));
            assert!(looks.get() < long, "the deadline has passed, and it looked on");
        }
    }
}
