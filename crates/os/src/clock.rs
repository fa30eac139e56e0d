//! The monotonic clock, and deadlines on it.

use std::time::Duration;

use rustix::time::{ClockId, Timespec};

const NS_PER_S: u64 = 1_000_000_000;

/// A deadline that has passed already: try once, do not wait.
pub const NOW: u64 = 0;

/// Nanoseconds of `CLOCK_MONOTONIC`: the same clock in all processes of this machine since boot.
#[must_use]
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let (s, ns) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    s.unwrap_or(0).saturating_mul(NS_PER_S).saturating_add(ns.unwrap_or(0))
}

/// The clock of a loop that polls, read once in [`READ_EVERY`](Self::READ_EVERY) polls: a reading takes
/// about as long as a poll that finds nothing.
///
/// ```
/// let mut clock = copyrpc_os::clock::PollClock::new();
/// let earlier = clock.now_ns();
/// assert!((0..100).all(|_| clock.now_ns() >= earlier));
/// ```
#[derive(Clone, Debug)]
pub struct PollClock {
    now_ns: u64,
    /// Polls since the clock was read.
    polls: u8,
}

impl PollClock {
    /// The time is late by less than this many polls.
    pub const READ_EVERY: u8 = 8;

    /// Reads the clock.
    #[must_use]
    pub fn new() -> Self {
        Self { now_ns: now_ns(), polls: 0 }
    }

    /// The time of [`now_ns`] at this poll or a recent one.
    #[inline]
    pub fn now_ns(&mut self) -> u64 {
        self.polls += 1;
        if self.polls >= Self::READ_EVERY {
            *self = Self::new();
        }
        self.now_ns
    }
}

impl Default for PollClock {
    fn default() -> Self {
        Self::new()
    }
}

/// A duration in nanoseconds; `u64::MAX`, some 584 years, if it is longer.
#[inline]
#[must_use]
pub fn duration_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The deadline `timeout` from now; `u64::MAX` if that overflows.
#[must_use]
pub fn deadline_ns(timeout: Duration) -> u64 {
    now_ns().saturating_add(duration_ns(timeout))
}

/// Time left until a deadline, zero if it has passed.
#[must_use]
pub fn left(deadline_ns: u64) -> Duration {
    // Most waits pass `NOW`, and need no clock.
    let left_ns = if deadline_ns == NOW { 0 } else { deadline_ns.saturating_sub(now_ns()) };
    Duration::from_nanos(left_ns)
}

/// A duration as system calls take it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_clock_is_late_by_a_bounded_number_of_polls() {
        let mut clock = PollClock::new();
        let first_ns = clock.now_ns();
        while now_ns() == first_ns {}
        let times: Vec<_> = (1..PollClock::READ_EVERY).map(|_| clock.now_ns()).collect();
        assert!(times.is_sorted() && times[0] == first_ns);
        assert!(times[times.len() - 1] > first_ns);
    }

    #[test]
    fn time_goes_forward_and_deadlines_saturate() {
        let earlier = now_ns();
        assert!(earlier > 0 && now_ns() >= earlier);
        assert_eq!((duration_ns(Duration::MAX), deadline_ns(Duration::MAX)), (u64::MAX, u64::MAX));
        assert_eq!(duration_ns(Duration::from_micros(1)), 1000);
        assert_eq!(left(NOW), Duration::ZERO);
        assert_eq!(left(earlier), Duration::ZERO);
        assert!(left(deadline_ns(Duration::from_secs(60))) > Duration::from_secs(50));
    }
}
