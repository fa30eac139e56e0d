//! Whether a thread shares its core with threads that compute.
//!
//! A yield ends once the other threads of the core have had their turns. Threads that wait for each other have turns
//! of microseconds, however many they are; a thread that computes keeps the core until the kernel's tick takes it
//! away, 1 to 10 ms later. Beside the first a waiting thread yields. Beside the second it sleeps: the kernel runs a
//! thread that was woken before a thread that computes, and lets a thread that yields wait for its next share.
//!
//! The length of a turn is the length of the yield times the machine's cores, by its runnable threads. Two cores of
//! an AMD EPYC, Linux 6.18, one thread that yields beside others on the same machine: 64 to 256 threads with turns of
//! 5 µs make yields of 0.5 to 3 ms and turns of 15 to 23 µs by this rule; 2 to 8 threads that compute make yields of
//! 4 to 20 ms and turns of 2 to 4 ms.

use std::{fs, sync::OnceLock};

/// A shorter yield costs little.
const LONG_NS: u64 = 500_000;

/// A shorter turn is that of a thread that waits, too. A sleep and its wakeup cost some 10 µs, little beside this.
const TURN_NS: u64 = 100_000;

/// After so many long turns in a row the neighbours compute. A hypervisor takes the core away for milliseconds now and
/// then.
const LONG_TURNS: u32 = 4;

/// Long turns are in a row if the time between two is at most this multiple of the second's yield.
const GAP: u64 = 4;

/// Threads that sleep yield again for a while at the beginning of each period of the clock, all at the same time: beside
/// threads that sleep a thread that yields loses, since the kernel runs each of those before it, so no thread could
/// leave off sleeping alone. A power of two, of which one in 64 is lost where neighbours compute.
const PERIOD_NS: u64 = 1 << 29;

/// How long they yield in a period.
const TRIAL_NS: u64 = PERIOD_NS / 64;

/// The yields of a trial count from here on, when the others yield, too.
const SETTLED_NS: u64 = TRIAL_NS / 2;

/// Each look at a long yield reads a file. After one whose turns were short, so many are not looked at, unless they take
/// [`LONGER`] times as long.
const UNREAD: u32 = 64;

/// See [`UNREAD`].
const LONGER: u64 = 2;

/// What a thread learns from its timed yields about the threads that share its core.
#[derive(Clone, Debug, Default)]
pub(crate) struct Neighbours {
    /// Long turns in a row.
    long: u32,
    /// The end of the latest of them.
    long_ns: u64,
    /// Long yields that are not to be looked at, and their length.
    unread: u32,
    unread_ns: u64,
    /// A thread that sleeps.
    sleeper: Option<Trial>,
}

/// The latest trial of a thread that sleeps.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Its period of the clock.
    period: u64,
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Open,
    NeighboursWait,
    NeighboursCompute,
}

impl Neighbours {
    /// Whether the thread sleeps instead of yielding: its neighbours compute.
    #[inline(always)]
    pub(crate) fn compute(&self) -> bool {
        self.sleeper.is_some()
    }

    /// A thread whose neighbours compute begins to wait; returns whether it sleeps.
    #[cold]
    pub(crate) fn begin(&mut self, now_ns: u64) -> bool {
        let Some(trial) = &mut self.sleeper else { return false };
        if now_ns % PERIOD_NS < TRIAL_NS {
            if trial.period != now_ns / PERIOD_NS {
                *trial = Trial { period: now_ns / PERIOD_NS, verdict: Verdict::Open };
            }
            return trial.verdict == Verdict::NeighboursCompute;
        }
        if trial.verdict == Verdict::NeighboursWait {
            *self = Self::default();
            return false;
        }
        true
    }

    /// A yield that began at `before_ns` has ended. `machine` is asked after long yields.
    #[inline]
    pub(crate) fn yielded(&mut self, before_ns: u64, after_ns: u64, machine: fn() -> Machine) {
        let took_ns = after_ns.saturating_sub(before_ns);
        if self.sleeper.is_some() {
            self.tried(before_ns, took_ns, machine);
        } else if took_ns >= LONG_NS {
            self.lost(before_ns, took_ns, machine);
        }
    }

    /// A yield of a trial.
    #[cold]
    fn tried(&mut self, before_ns: u64, took_ns: u64, machine: fn() -> Machine) {
        let Some(trial) = &mut self.sleeper else { return };
        if before_ns % PERIOD_NS < SETTLED_NS {
            return;
        }
        if took_ns >= LONG_NS && machine().has_long_turns(took_ns) {
            trial.verdict = Verdict::NeighboursCompute;
        } else if trial.verdict == Verdict::Open {
            trial.verdict = Verdict::NeighboursWait;
        }
    }

    #[cold]
    fn lost(&mut self, before_ns: u64, took_ns: u64, machine: fn() -> Machine) {
        if self.unread > 0 && took_ns < self.unread_ns.saturating_mul(LONGER) {
            self.unread -= 1;
            return;
        }
        if !machine().has_long_turns(took_ns) {
            (self.long, self.unread, self.unread_ns) = (0, UNREAD, took_ns);
            return;
        }
        let is_in_a_row = before_ns.saturating_sub(self.long_ns) <= took_ns.saturating_mul(GAP);
        self.long = if is_in_a_row { self.long + 1 } else { 1 };
        self.long_ns = before_ns.saturating_add(took_ns);
        if self.long == LONG_TURNS {
            let period = self.long_ns / PERIOD_NS;
            let trial = Trial { period, verdict: Verdict::NeighboursCompute };
            *self = Self { sleeper: Some(trial), ..Self::default() };
        }
    }
}

/// The machine at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// Cores that run threads.
    cores: u64,
    /// Threads that run or want to; 0: unknown.
    runnable: u64,
}

impl Machine {
    /// As the kernel tells it. Without `/proc` or `/sys`, nothing is known.
    pub(crate) fn now() -> Self {
        static CORES: OnceLock<u64> = OnceLock::new();
        let cores =
            *CORES.get_or_init(|| read("/sys/devices/system/cpu/online", online).unwrap_or(1));
        Self { cores, runnable: read("/proc/loadavg", runnable).unwrap_or(0) }
    }

    /// Whether its threads have long turns in the mean, by a yield that took so long.
    fn has_long_turns(self, took_ns: u64) -> bool {
        let turn_ns = took_ns.saturating_mul(self.cores).checked_div(self.runnable);
        turn_ns.is_some_and(|turn_ns| turn_ns >= TURN_NS)
    }
}

fn read(path: &str, parse: fn(&str) -> Option<u64>) -> Option<u64> {
    parse(&fs::read_to_string(path).ok()?)
}

/// Cores in a list of the kernel, like `0-3,8`.
fn online(list: &str) -> Option<u64> {
    list.trim().split(',').try_fold(0, |cores, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        Some(cores + last.checked_sub(first)? + 1)
    })
}

/// Runnable threads in `/proc/loadavg`, like `0.20 0.18 0.12 1/80 11206`.
fn runnable(loadavg: &str) -> Option<u64> {
    loadavg.split_ascii_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MS: u64 = 1_000_000;

    fn two_cores(runnable: u64) -> Machine {
        Machine { cores: 2, runnable }
    }

    /// A thread and its clock.
    #[derive(Default)]
    struct Thread {
        neighbours: Neighbours,
        now_ns: u64,
    }

    impl Thread {
        /// Works for so long, then waits: sleeps or yields for so long. Returns whether it slept.
        fn wait(&mut self, worked_ns: u64, yield_ns: u64, machine: fn() -> Machine) -> bool {
            self.now_ns += worked_ns;
            if self.neighbours.compute() && self.neighbours.begin(self.now_ns) {
                self.now_ns += 10_000;
                return true;
            }
            let before_ns = self.now_ns;
            self.now_ns += yield_ns;
            self.neighbours.yielded(before_ns, self.now_ns, machine);
            false
        }

        fn waits(&mut self, waits: u32, yield_ns: u64, machine: fn() -> Machine) -> u32 {
            (0..waits).map(|_| u32::from(self.wait(5_000, yield_ns, machine))).sum()
        }
    }

    #[test]
    fn beside_threads_that_compute_a_thread_sleeps_after_four_yields() {
        for (yield_ns, machine) in
            [(4 * MS, (|| two_cores(4)) as fn() -> Machine), (12 * MS, || two_cores(10))]
        {
            let mut thread = Thread::default();
            assert_eq!(thread.waits(4, yield_ns, machine), 0);
            let begin_ns = thread.now_ns;
            let slept = thread.waits(1_000_000, yield_ns, machine);
            let yielded_ns = u64::from(1_000_000 - slept) * yield_ns;
            let trials = (thread.now_ns - begin_ns) / PERIOD_NS + 1;
            let lost_ns = trials * (SETTLED_NS + 2 * yield_ns);
            assert!((1..=lost_ns).contains(&yielded_ns), "{yielded_ns} of {lost_ns}");
        }
    }

    #[test]
    fn short_yields_between_the_long_ones_change_nothing() {
        let mut thread = Thread::default();
        for _ in 0..4 {
            assert_eq!(thread.waits(100, 500, || two_cores(4)), 0);
            thread.wait(0, 4 * MS, || two_cores(4));
        }
        assert!(thread.wait(0, 4 * MS, || two_cores(4)));
    }

    #[test]
    fn a_thread_yields_on_after_the_first_trial_without_neighbours_that_compute() {
        let mut thread = Thread::default();
        thread.waits(1000, 4 * MS, || two_cores(4));
        let end_ns = thread.now_ns;
        while thread.neighbours.compute() {
            thread.wait(5_000, 500, || two_cores(1));
        }
        assert!(thread.now_ns - end_ns <= PERIOD_NS + TRIAL_NS + MS);
        assert_eq!(thread.waits(1000, 500, || two_cores(1)), 0);
    }

    /// While others still sleep a yield is long and the machine has few runnable threads.
    #[test]
    fn the_yields_of_a_trial_count_once_the_others_yield_too() {
        let mut thread = Thread::default();
        thread.waits(1000, 4 * MS, || two_cores(4));
        thread.now_ns = thread.now_ns.next_multiple_of(PERIOD_NS);
        assert!(!thread.wait(0, SETTLED_NS, || two_cores(4)), "its first yield does not count");
        while thread.now_ns % PERIOD_NS < TRIAL_NS {
            assert!(!thread.wait(5_000, MS, || two_cores(130)));
        }
        assert!(!thread.wait(5_000, MS, || two_cores(130)) && !thread.neighbours.compute());
    }

    #[test]
    fn one_long_turn_ends_a_trial() {
        let mut thread = Thread::default();
        thread.waits(1000, 4 * MS, || two_cores(4));
        thread.now_ns = thread.now_ns.next_multiple_of(PERIOD_NS) + SETTLED_NS;
        assert!(!thread.wait(0, 500, || two_cores(4)));
        assert!(!thread.wait(0, MS, || two_cores(4)));
        assert_eq!(thread.waits(1000, 500, || two_cores(1)), 1000);
    }

    #[test]
    fn among_many_threads_that_wait_a_thread_yields_and_seldom_looks() {
        thread_local!(static LOOKS: Cell<u32> = const { Cell::new(0) });
        let crowd = || {
            LOOKS.set(LOOKS.get() + 1);
            two_cores(258)
        };
        let mut thread = Thread::default();
        assert_eq!(thread.waits(10 * (UNREAD + 1), 3 * MS, crowd), 0);
        assert_eq!(LOOKS.get(), 10);
        // Threads that compute are noticed at once.
        assert_eq!(thread.waits(5, 6 * MS, || two_cores(40)), 1);
    }

    #[test]
    fn three_long_turns_among_short_ones_are_yielded() {
        let mut thread = Thread::default();
        for _ in 0..100 {
            assert_eq!(thread.waits(3, 13 * MS, || two_cores(130)), 0);
            assert_eq!(thread.waits(UNREAD + 1, 3 * MS, || two_cores(130)), 0);
        }
    }

    #[test]
    fn a_core_that_is_taken_away_now_and_then_is_yielded() {
        let mut thread = Thread::default();
        for _ in 0..1000 {
            assert!(!thread.wait(100 * MS, 5 * MS, || two_cores(1)));
        }
    }

    #[test]
    fn a_machine_that_tells_nothing_is_yielded_to() {
        let mut thread = Thread::default();
        assert_eq!(thread.waits(1000, 10 * MS, || Machine { cores: 2, runnable: 0 }), 0);
    }

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(online("0-1\n"), Some(2));
        assert_eq!(online("0,2-5,127"), Some(6));
        assert_eq!(online("0"), Some(1));
        assert_eq!((online(""), online("3-1"), online("a-b")), (None, None, None));
        assert_eq!(runnable("0.20 0.18 0.12 1/80 11206\n"), Some(1));
        assert_eq!((runnable(""), runnable("1 2 3 4 5")), (None, None));
        let machine = Machine::now();
        assert!(machine.cores >= 1 && machine.runnable >= 1, "this thread runs: {machine:?}");
    }
}
