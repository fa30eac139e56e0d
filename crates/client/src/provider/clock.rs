//! The daemon's clock: a provider in another time namespace has another `CLOCK_MONOTONIC`.

/// What two clocks may differ by and be one: a daemon says the time at which its turn began, and a busy machine may
/// keep it from its core in that turn.
const SAME_NS: i128 = 1_000_000_000;

/// How far the daemon's clock is ahead of that of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DaemonClock {
    ahead_ns: i128,
}

impl DaemonClock {
    /// Reads the time that the daemon said between two looks at the own clock. A daemon of an earlier version says
    /// none.
    pub(super) fn read(told: &[u8], before_ns: u64, after_ns: u64) -> Self {
        let Some(told_ns) = told.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
            return Self::default();
        };
        let [told_ns, before_ns, after_ns] = [told_ns, before_ns, after_ns].map(i128::from);
        let is_same = told_ns >= before_ns - SAME_NS && told_ns <= after_ns + SAME_NS;
        Self { ahead_ns: if is_same { 0 } else { told_ns - i128::midpoint(before_ns, after_ns) } }
    }

    /// A time of the daemon's clock, by the clock of this process.
    pub(super) fn here_ns(self, told_ns: u64) -> u64 {
        if told_ns == u64::MAX {
            return told_ns;
        }
        let here_ns = i128::from(told_ns) - self.ahead_ns;
        u64::try_from(here_ns.max(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn one_clock_is_taken_as_it_is_and_another_one_is_translated() {
        let read =
            |told: u64, before: u64, after| DaemonClock::read(&told.to_le_bytes(), before, after);
        for told in [5 * SECOND, 5 * SECOND - SECOND / 2, 6 * SECOND] {
            assert_eq!(read(told, 5 * SECOND, 6 * SECOND).here_ns(7), 7, "{told}");
        }
        // The provider was started with a clock that is a day ahead, or 2000 s behind.
        let behind = read(10 * SECOND, 86_410 * SECOND, 86_410 * SECOND);
        assert_eq!(behind.here_ns(12 * SECOND), 86_412 * SECOND);
        let ahead = read(2_010 * SECOND, 10 * SECOND, 10 * SECOND + 2);
        assert_eq!(ahead.here_ns(2_012 * SECOND), 12 * SECOND + 1);
        assert_eq!((ahead.here_ns(7), ahead.here_ns(u64::MAX)), (0, u64::MAX));
        // An earlier daemon says nothing.
        assert_eq!(DaemonClock::read(b"", 5, 6), DaemonClock::default());
        assert_eq!(read(u64::MAX, 0, 0).here_ns(1), 0);
    }
}
