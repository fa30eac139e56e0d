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

/// The deadline `timeout` from now; the end of time if that overflows.
#[must_use]
pub fn deadline_ns(timeout: Duration) -> u64 {
    now_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
}

/// Time left until a deadline, zero if it has passed.
pub(crate) fn left(deadline_ns: u64) -> Duration {
    // Most waits pass `NOW`, and need no clock.
    let left_ns = if deadline_ns == NOW { 0 } else { deadline_ns.saturating_sub(now_ns()) };
    Duration::from_nanos(left_ns)
}

/// As system calls want it.
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
    fn time_goes_forward_and_deadlines_saturate() {
        let earlier = now_ns();
        assert!(earlier > 0 && now_ns() >= earlier);
        assert_eq!(deadline_ns(Duration::MAX), u64::MAX);
        assert_eq!(left(NOW), Duration::ZERO);
        assert_eq!(left(earlier), Duration::ZERO);
        assert!(left(deadline_ns(Duration::from_secs(60))) > Duration::from_secs(50));
    }
}
