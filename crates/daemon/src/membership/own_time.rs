//! The time in which this daemon ran.

/// A clock that stands still while its daemon does not run, but for a moment.
///
/// A daemon that is kept from running sends nothing that could be echoed and reads no echo. The silence of that time is
/// its own.
#[derive(Clone, Debug)]
pub(super) struct OwnTime {
    /// Longest time between two looks of a daemon that runs.
    look_ns: u64,
    /// The latest look, in the time of all.
    looked_ns: u64,
    /// How far this clock is behind.
    behind_ns: u64,
}

impl OwnTime {
    pub(super) fn new(look_ns: u64, now_ns: u64) -> Self {
        Self { look_ns, looked_ns: now_ns, behind_ns: 0 }
    }

    /// The daemon runs; returns the time of this clock.
    pub(super) fn look(&mut self, now_ns: u64) -> u64 {
        let away_ns = now_ns.saturating_sub(self.looked_ns);
        self.behind_ns += away_ns.saturating_sub(self.look_ns);
        self.looked_ns = self.looked_ns.max(now_ns);
        now_ns.saturating_sub(self.behind_ns)
    }

    /// A time of this clock, in the time of all, if the daemon runs until then.
    pub(super) fn everyones_ns(&self, own_ns: u64) -> u64 {
        own_ns.saturating_add(self.behind_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_counts_what_ran_and_a_moment_of_each_pause() {
        let mut time = OwnTime::new(200, 1000);
        assert_eq!((time.look(1200), time.look(1300)), (1200, 1300));
        assert_eq!(time.look(9300), 1500, "8000 away");
        assert_eq!((time.look(9400), time.everyones_ns(1600)), (1600, 9400));
        assert_eq!(time.look(9399), 1599, "of another thread");
    }
}
