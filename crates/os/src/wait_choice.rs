//! Whether a thread polls before it sleeps, by what its waits have cost.
//!
//! Threads that share a core and yield it to each other lose it for microseconds, and find much when they get it back.
//! A thread that computes keeps the core for milliseconds; who polls beside it uses its share of the core up, where who
//! sleeps is let run as soon as it is woken. The two are told apart by two measurements: how long a thread polled
//! before it found something, and how much it found.
//!
//! A thread that serves finds the more the longer the others took, so dear polling is enough. A thread that waits for
//! answers finds few of them in either case. It sleeps once, to compare: a wait beside threads that compute ends
//! sooner by a multiple, one among threads that yield does not.

/// A thread that polled for so long and found little lost its core to others: polling is dear.
const DEAR_NS: u64 = 1_000_000;

/// … and found so little, in time for each piece.
const DEAR_PER_PIECE_NS: u64 = 100_000;

/// Sleeping pays if waits are shorter by this factor: each sleep costs another thread a wakeup.
const GAIN: u64 = 4;

/// A thread that sleeps tries to poll after so many times of what that cost the last time.
const POLL_AGAIN: u64 = 16;

/// Dear waits between two trials of sleeping: at first, and at most. The first trials may be in vain because the other
/// side polls still.
const DEAR_WAITS: (u32, u32) = (1, 64);

/// What a thread waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitsFor {
    /// Answers to calls of its own.
    #[default]
    Answers,
    /// Requests of others, as many as there are.
    Requests,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    #[default]
    Poll,
    /// Sleeps, and compares.
    TrySleep,
    Sleep,
    /// Polls, and compares.
    TryPoll,
}

/// How the waits of a thread begin.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitChoice {
    waits_for: WaitsFor,
    way: Way,
    /// The last dear wait that polled, in time until something was found.
    polled_ns: u64,
    /// A wait that slept, on average.
    slept_ns: u64,
    /// Dear waits until sleeping is tried, and as many as there were from the trial before to that.
    left: u32,
    between: u32,
    /// When a thread that sleeps polls again.
    poll_ns: u64,
}

impl WaitChoice {
    pub(crate) fn new(waits_for: WaitsFor) -> Self {
        Self { waits_for, ..Self::default() }
    }

    /// Whether waits begin by polling, without a look at the clock.
    #[inline]
    pub(crate) fn polls(&self) -> bool {
        self.way == Way::Poll
    }

    /// A wait begins; returns whether the thread sleeps at once.
    #[cold]
    pub(crate) fn begin(&mut self, now_ns: u64) -> bool {
        if self.way == Way::Sleep && now_ns >= self.poll_ns {
            self.way = Way::TryPoll;
        }
        matches!(self.way, Way::TrySleep | Way::Sleep)
    }

    /// A wait that has polled for so long goes on; returns whether the thread sleeps from now on.
    pub(crate) fn polled(&mut self, polled_ns: u64, now_ns: u64) -> bool {
        let sleeps = self.waits_for == WaitsFor::Requests && polled_ns >= DEAR_NS;
        if sleeps {
            self.sleep(polled_ns, now_ns);
        }
        sleeps
    }

    /// A wait of so long, which polled for the first part of it, has found so many pieces.
    #[cold]
    pub(crate) fn end(&mut self, (waited_ns, polled_ns): (u64, u64), pieces: usize, now_ns: u64) {
        let pieces = u64::try_from(pieces).unwrap_or(u64::MAX).max(1);
        let is_dear = polled_ns >= DEAR_NS && polled_ns / pieces >= DEAR_PER_PIECE_NS;
        match (self.way, self.waits_for) {
            (Way::Poll, _) if !is_dear => {}
            (Way::Poll | Way::TryPoll, WaitsFor::Requests) if is_dear => {
                self.sleep(polled_ns, now_ns);
            }
            (Way::Poll, _) if self.left > 0 => self.left -= 1,
            (Way::Poll, _) => (self.way, self.polled_ns) = (Way::TrySleep, waited_ns),
            (Way::TryPoll, _) if is_dear && waited_ns / GAIN > self.slept_ns => {
                self.sleep(waited_ns, now_ns);
            }
            (Way::TryPoll, _) => self.way = Way::Poll,
            (Way::TrySleep, _) if waited_ns < self.polled_ns / GAIN => {
                (self.slept_ns, self.between, self.left) = (waited_ns, 0, 0);
                self.sleep(self.polled_ns, now_ns);
            }
            (Way::TrySleep, _) => {
                self.between = (self.between * 2).clamp(DEAR_WAITS.0, DEAR_WAITS.1);
                (self.way, self.left) = (Way::Poll, self.between);
            }
            (Way::Sleep, _) => self.slept_ns = self.slept_ns - self.slept_ns / 8 + waited_ns / 8,
        }
    }

    fn sleep(&mut self, polled_ns: u64, now_ns: u64) {
        self.way = Way::Sleep;
        self.poll_ns = now_ns.saturating_add(polled_ns.saturating_mul(POLL_AGAIN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine: how long a wait lasts that polls, and one that sleeps, and what it finds then.
    #[derive(Clone, Copy)]
    struct Machine {
        polled_ns: u64,
        slept_ns: u64,
        pieces: usize,
    }

    /// Three threads that compute share the core.
    const COMPUTING: Machine = Machine { polled_ns: 12_000_000, slept_ns: 100_000, pieces: 1 };
    /// 128 clients with four calls in flight that yield: a round of them takes milliseconds.
    const YIELDING: Machine = Machine { polled_ns: 4_500_000, slept_ns: 2_500_000, pieces: 4 };
    const QUIET: Machine = Machine { polled_ns: 5_000, slept_ns: 15_000, pieces: 1 };

    struct Thread {
        choice: WaitChoice,
        now_ns: u64,
    }

    impl Thread {
        fn new(waits_for: WaitsFor) -> Self {
            Self { choice: WaitChoice::new(waits_for), now_ns: 1 }
        }

        /// Waits so often; returns how often it slept at once.
        fn wait(&mut self, machine: Machine, waits: u32) -> u32 {
            (0..waits).map(|_| u32::from(self.wait_once(machine))).sum()
        }

        fn wait_once(&mut self, machine: Machine) -> bool {
            let sleeps = !self.choice.polls() && self.choice.begin(self.now_ns);
            let waited_ns = if sleeps { machine.slept_ns } else { machine.polled_ns };
            self.now_ns += waited_ns;
            let polled_ns = if sleeps { 0 } else { waited_ns };
            self.choice.end((waited_ns, polled_ns), machine.pieces, self.now_ns);
            sleeps
        }
    }

    #[test]
    fn beside_threads_that_compute_a_thread_sleeps_from_its_second_wait_on() {
        for waits_for in [WaitsFor::Answers, WaitsFor::Requests] {
            let mut thread = Thread::new(waits_for);
            assert_eq!(thread.wait(QUIET, 1000), 0, "{waits_for:?}");
            assert!(!thread.wait_once(COMPUTING), "{waits_for:?}");
            let slept = thread.wait(COMPUTING, 10_000);
            // 1 s of waits, and 12 ms for a look once in 192 ms.
            assert!((9_990..10_000).contains(&slept), "{waits_for:?}: {slept}");
        }
    }

    #[test]
    fn a_thread_polls_again_once_nobody_computes() {
        for waits_for in [WaitsFor::Answers, WaitsFor::Requests] {
            let mut thread = Thread::new(waits_for);
            thread.wait(COMPUTING, 1000);
            let since_ns = thread.now_ns;
            while thread.wait_once(QUIET) {}
            let passed_ns = thread.now_ns - since_ns;
            assert!(passed_ns <= POLL_AGAIN * COMPUTING.polled_ns, "{waits_for:?}: {passed_ns}");
            assert_eq!(thread.wait(QUIET, 1000), 0, "{waits_for:?}");
        }
    }

    #[test]
    fn among_clients_that_yield_a_client_sleeps_in_one_wait_of_64_at_most() {
        let mut thread = Thread::new(WaitsFor::Answers);
        let slept = thread.wait(YIELDING, 65_000);
        assert!(slept <= 1000 + 6, "{slept}");
    }

    /// A wait that sleeps ends late while the daemon polls beside threads that compute.
    #[test]
    fn a_thread_sleeps_soon_after_the_other_side_does() {
        let mut thread = Thread::new(WaitsFor::Answers);
        thread.wait(Machine { slept_ns: COMPUTING.polled_ns, ..COMPUTING }, 5);
        let polled = (0..).take_while(|_| !thread.wait_once(COMPUTING)).count();
        assert!(polled <= 4, "{polled}");
        assert!(thread.wait(COMPUTING, 100) >= 98);
    }

    #[test]
    fn a_server_of_clients_that_yield_polls() {
        let mut thread = Thread::new(WaitsFor::Requests);
        assert_eq!(thread.wait(Machine { pieces: 512, ..YIELDING }, 10_000), 0);
    }

    #[test]
    fn a_server_that_finds_nothing_does_not_poll_on_beside_threads_that_compute() {
        let mut choice = WaitChoice::new(WaitsFor::Requests);
        assert!(!choice.polled(DEAR_NS - 1, 1), "too early");
        assert!(choice.polled(DEAR_NS, 1) && !choice.polls());
        assert!(!WaitChoice::new(WaitsFor::Answers).polled(u64::MAX, 1));
    }

    #[test]
    fn long_waits_for_slow_services_do_not_make_a_thread_sleep() {
        let mut thread = Thread::new(WaitsFor::Answers);
        let slow = Machine { polled_ns: 5_000_000, slept_ns: 5_000_000, pieces: 1 };
        assert!(thread.wait(slow, 6400) <= 103);
        // Where the wait polled for 56 µs and slept then, there is nothing to try.
        let choice = &mut WaitChoice::new(WaitsFor::Answers);
        choice.end((5_000_000, 56_000), 1, 1);
        assert!(choice.polls());
    }
}
