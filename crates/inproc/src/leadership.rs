//! A thread that leads, and one that watches it: who has what both use, when a step of the leader lasts.
//!
//! The leader works on something behind a lock, which it leaves while it takes a step that may last. The watcher ends
//! such a step, and with it the term of the leader: the thread that ends a step first has what both use.
//!
//! ```text
//!  leader   lock ─ begin_step ─ unlock ─ … ─ end_step: true ─ lock ─ …
//!                                                      false: the watcher has ended the term
//!  watcher  steps ─ … ─ the same step ─ lock ─ end_step: true ─ end_term
//!                                                       false: the step is over, the leader leads
//! ```
//!
//! A step and the watcher's sleep are one word: either the watcher sees a step that has begun and does not sleep, or
//! the leader that begins one sees the sleeper.

use memory::sync::{AtomicU64, Ordering};

/// The watcher sleeps until a step begins.
const ASLEEP: u64 = 1 << 63;

/// Which thread has what a leader and its watcher use: see the [module](self).
///
/// Nothing is published by it: what both use is behind a lock.
///
/// ```
/// use copyrpc_inproc::leadership::Leadership;
///
/// let leadership = Leadership::default();
/// leadership.begin_term();
/// let begun = leadership.begin_step();
/// assert_eq!(leadership.look().step(), Some(begun.step));
/// // The step lasts: the watcher ends it.
/// assert!(leadership.end_step(begun.step));
/// leadership.end_term();
/// assert!(!leadership.end_step(begun.step) && !leadership.is_led());
/// ```
#[derive(Debug, Default)]
pub struct Leadership {
    /// Odd: a thread leads.
    term: AtomicU64,
    /// Steps that began and that ended: odd while one runs. The highest bit is [`ASLEEP`].
    steps: AtomicU64,
}

/// A step of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedStep(u64);

/// A step that the leader has begun.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct BegunStep {
    /// Its name.
    pub step: LedStep,
    /// The watcher sleeps, and is to be woken.
    pub wakes: bool,
}

/// How far the leader was when the watcher looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderProgress(u64);

impl LeaderProgress {
    /// The step that ran.
    #[must_use]
    pub fn step(self) -> Option<LedStep> {
        (self.0 % 2 == 1).then_some(LedStep(self.0))
    }
}

impl Leadership {
    /// The number of the term: it changes when a thread begins or ceases to lead, with the lock held.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    /// Whether a thread leads.
    #[must_use]
    pub fn is_led(&self) -> bool {
        self.term() % 2 == 1
    }

    /// A thread leads from now on. With the lock held, by the watcher.
    pub fn begin_term(&self) {
        self.change(false);
    }

    /// No thread leads any more. With the lock held: by the leader, which wakes the watcher then, or by the watcher after
    /// it has ended a step.
    pub fn end_term(&self) {
        self.change(true);
    }

    fn change(&self, was_led: bool) {
        let term = self.term.fetch_add(1, Ordering::Relaxed);
        debug_assert_eq!(term % 2 == 1, was_led, "a term begins and ends in turn");
    }

    /// The leader begins a step, with the lock held.
    pub fn begin_step(&self) -> BegunStep {
        let before = self.steps.fetch_add(1, Ordering::Relaxed);
        BegunStep { step: LedStep((before + 1) & !ASLEEP), wakes: before & ASLEEP != 0 }
    }

    /// The step is over, or its thread leads no longer: the first thread that says so gets `true`. The watcher says it with
    /// the lock held.
    #[must_use]
    pub fn end_step(&self, step: LedStep) -> bool {
        let mut now = step.0;
        loop {
            let ended =
                self.steps.compare_exchange(now, now + 1, Ordering::Relaxed, Ordering::Relaxed);
            match ended {
                Ok(_) => return true,
                // The watcher fell asleep or woke up meanwhile.
                Err(other) if other != now && other & !ASLEEP == step.0 => now = other,
                Err(_) => return false,
            }
        }
    }

    /// The watcher looks.
    #[must_use]
    pub fn look(&self) -> LeaderProgress {
        LeaderProgress(self.steps.load(Ordering::Relaxed) & !ASLEEP)
    }

    /// The watcher is about to sleep; `false`: the leader has gone on since it looked, or a step runs. It is woken when a
    /// step begins and when the term ends, and says then that it is [awake](Self::awake).
    #[must_use]
    pub fn fall_asleep(&self, seen: LeaderProgress) -> bool {
        let to = seen.0 | ASLEEP;
        // The wakeup of a step that runs is over.
        seen.step().is_none()
            && self.steps.compare_exchange(seen.0, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The watcher sleeps no longer.
    pub fn awake(&self) {
        self.steps.fetch_and(!ASLEEP, Ordering::Relaxed);
    }
}
