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

/// Long yields in a row by whose mean a thread decides. A hypervisor takes the core away for milliseconds now and then.
const LONG_YIELDS: u32 = 4;

/// Long yields are in a row if the time between two is at most this multiple of the second.
const GAP: u64 = 4;

/// A thread that sleeps yields again after so many times of what its last long yield took: at most a 64th of its time
/// is lost to such trials.
const TRIAL: u64 = 64;

/// The same while the machine has a core for each runnable thread: the neighbours may have ended.
const EARLY_TRIAL: u64 = 16;

/// Time between two looks whether the machine has.
const LOOK_NS: u64 = 4_000_000;

/// Each look at a long yield reads a file. After long yields whose turns were short, so many long yields are not looked
/// at, unless they take [`LONGER`] times as long.
const UNREAD: u32 = 1024;

/// See [`UNREAD`].
const LONGER: u64 = 2;

/// What a thread learns from its timed yields about the threads that share its core.
#[derive(Clone, Debug, Default)]
pub(crate) struct Neighbours {
    /// Long yields in a row.
    long: u32,
    /// The end of the latest of them.
    long_ns: u64,
    /// Turns of the neighbours in them, all together.
    turns_ns: u64,
    /// Long yields that are not to be looked at, and their length.
    unread: u32,
    unread_ns: u64,
    /// When a thread that sleeps yields again; 0: it yields now.
    trial_ns: u64,
    /// When it looks whether to do so earlier.
    look_ns: u64,
}

impl Neighbours {
    /// Whether the thread sleeps instead of yielding: its neighbours compute.
    #[inline(always)]
    pub(crate) fn compute(&self) -> bool {
        self.trial_ns != 0
    }

    /// A thread whose neighbours compute begins to wait; returns whether it sleeps. The other case is a trial.
    #[cold]
    pub(crate) fn begin(&mut self, now_ns: u64, machine: fn() -> Machine) -> bool {
        if now_ns < self.trial_ns && !self.is_early_trial(now_ns, machine) {
            return true;
        }
        // The next long yield decides, with the mean of those before as the others.
        self.turns_ns -= self.turns_ns / u64::from(LONG_YIELDS);
        (self.trial_ns, self.long, self.long_ns) = (0, LONG_YIELDS - 1, now_ns);
        false
    }

    fn is_early_trial(&mut self, now_ns: u64, machine: fn() -> Machine) -> bool {
        if now_ns < self.look_ns {
            return false;
        }
        self.look_ns = now_ns.saturating_add(LOOK_NS);
        machine().has_room()
    }

    /// A yield that began at `before_ns` has ended. `machine` is asked after long yields.
    #[inline]
    pub(crate) fn yielded(&mut self, before_ns: u64, after_ns: u64, machine: fn() -> Machine) {
        if after_ns.saturating_sub(before_ns) >= LONG_NS {
            self.lost(before_ns, after_ns, machine);
        }
    }

    #[cold]
    fn lost(&mut self, before_ns: u64, after_ns: u64, machine: fn() -> Machine) {
        let took_ns = after_ns - before_ns;
        if self.unread > 0 && took_ns < self.unread_ns.saturating_mul(LONGER) {
            self.unread -= 1;
            return;
        }
        if before_ns.saturating_sub(self.long_ns) > took_ns.saturating_mul(GAP) {
            (self.long, self.turns_ns) = (0, 0);
        }
        self.long += 1;
        self.long_ns = after_ns;
        self.turns_ns = self.turns_ns.saturating_add(machine().turn_ns(took_ns));
        if self.long < LONG_YIELDS {
            return;
        }
        if self.turns_ns / u64::from(LONG_YIELDS) >= TURN_NS {
            self.trial_ns = after_ns.saturating_add(took_ns.saturating_mul(TRIAL));
            self.look_ns = after_ns.saturating_add(took_ns.saturating_mul(EARLY_TRIAL));
        } else {
            (self.long, self.turns_ns) = (0, 0);
            (self.unread, self.unread_ns) = (UNREAD, took_ns);
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

    /// Whether each runnable thread may have a core.
    fn has_room(self) -> bool {
        (1..=self.cores).contains(&self.runnable)
    }

    /// The mean turn of a thread, by a yield that took so long; 0 if unknown.
    fn turn_ns(self, took_ns: u64) -> u64 {
        took_ns.saturating_mul(self.cores).checked_div(self.runnable).unwrap_or(0)
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
            if self.neighbours.compute() && self.neighbours.begin(self.now_ns, machine) {
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
            let slept = thread.waits(100_000, yield_ns, machine);
            let yielded_ns = u64::from(100_000 - slept) * yield_ns;
            assert!(yielded_ns * TRIAL <= thread.now_ns - begin_ns, "{yielded_ns}");
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
    fn a_thread_yields_again_soon_after_its_neighbours_have_ended() {
        let mut thread = Thread::default();
        thread.waits(1000, 4 * MS, || two_cores(4));
        let end_ns = thread.now_ns;
        while thread.wait(5_000, 500, || two_cores(1)) {}
        assert!(thread.now_ns - end_ns <= EARLY_TRIAL * 4 * MS + LOOK_NS + MS);
        assert_eq!(thread.waits(1000, 500, || two_cores(1)), 0);
    }

    #[test]
    fn a_thread_yields_again_after_a_while_whatever_the_machine_tells() {
        let mut thread = Thread::default();
        thread.waits(1000, 4 * MS, || two_cores(4));
        let end_ns = thread.now_ns;
        while thread.wait(5_000, 500, || two_cores(40)) {}
        let passed_ns = thread.now_ns - end_ns;
        assert!((EARLY_TRIAL * 4 * MS..=TRIAL * 4 * MS + MS).contains(&passed_ns), "{passed_ns}");
    }

    #[test]
    fn among_many_threads_that_wait_a_thread_yields_and_seldom_looks() {
        thread_local!(static LOOKS: Cell<u32> = const { Cell::new(0) });
        let crowd = || {
            LOOKS.set(LOOKS.get() + 1);
            two_cores(258)
        };
        let mut thread = Thread::default();
        assert_eq!(thread.waits(10 * (UNREAD + LONG_YIELDS), 3 * MS, crowd), 0);
        assert_eq!(LOOKS.get(), 10 * LONG_YIELDS);
        // Threads that compute are noticed at once.
        assert_eq!(thread.waits(5, 6 * MS, || two_cores(40)), 1);
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
