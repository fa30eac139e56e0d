//! Where the time of a session went.

use std::{
    fmt::{self, Display},
    time::{Duration, Instant},
};

/// Where the time of a session went: what to look at if it took long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSpent {
    /// Until processes were connected and warm.
    pub starts: Duration,
    /// Number of processes.
    pub processes: usize,
    /// Trials of ways to wait.
    pub trials: Duration,
    /// Their intervals.
    pub trial_intervals: u32,
    /// Rounds, without probes.
    pub rounds: Duration,
    /// Intervals of all rounds, as far as the session measured them.
    pub intervals: u32,
    /// Of that, what was measured: the rest is how long orders and reports take.
    pub measured: Duration,
    /// Probes of the pace.
    pub probes: Duration,
    /// Until processes had ended.
    pub ends: Duration,
}

impl TimeSpent {
    /// Adds what other work took.
    pub(super) fn add(&mut self, other: &Self) {
        let Self { starts, processes, trials, trial_intervals, rounds, intervals, .. } = *other;
        self.starts += starts;
        self.processes += processes;
        self.trials += trials;
        self.trial_intervals += trial_intervals;
        self.rounds += rounds;
        self.intervals += intervals;
        self.measured += other.measured;
        self.probes += other.probes;
        self.ends += other.ends;
    }
}

/// Adds to `spent` how long `work` takes.
pub(super) fn timed<T>(spent: &mut Duration, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = work();
    *spent += begin.elapsed();
    result
}

impl Display for TimeSpent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { starts, processes, trials, trial_intervals, .. } = self;
        let Self { rounds, intervals, measured, probes, ends, .. } = self;
        let s = |time: &Duration| format!("{:.1} s", time.as_secs_f64());
        write!(
            f,
            "time: {} to start {processes} processes, {} for {trial_intervals} intervals of trials, {} for {intervals} \
             intervals of rounds ({} of it measured), {} for probes, {} to end processes",
            s(starts),
            s(trials),
            s(rounds),
            s(measured),
            s(probes),
            s(ends)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_its_time() {
        let mut spent =
            TimeSpent { processes: 20, intervals: 5, trial_intervals: 4, ..Default::default() };
        assert_eq!(timed(&mut spent.starts, || 7), 7);
        spent.rounds = Duration::from_millis(1500);
        let text = spent.to_string();
        assert!(text.contains("to start 20 processes"), "{text}");
        assert!(text.contains("1.5 s for 5 intervals of rounds (0.0 s of it measured)"), "{text}");
    }
}
