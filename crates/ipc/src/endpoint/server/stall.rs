//! Notices clients that do not read: stopped ones, and such as forget to poll.

/// The server's record of a client's reading.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    /// Position up to which the client had read when all its calls were answered, and when that was
    /// first seen. `None` if some call was free when the server looked last.
    since: Option<(u64, u64)>,
}

impl Stall {
    /// The time for which the client has read nothing although it can call nothing, in nanoseconds. `read` is
    /// its own allegation; a wrong one makes nobody but itself look stopped.
    pub(crate) fn look(&mut self, now_ns: u64, read: u64, is_full: bool) -> u64 {
        match self.since {
            Some((seen, since_ns)) if is_full && seen == read => now_ns.saturating_sub(since_ns),
            _ => {
                self.since = is_full.then_some((read, now_ns));
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_a3_only_a_full_quota_that_nobody_reads_counts() {
        let mut stall = Stall::default();
        assert_eq!(stall.look(100, 5, true), 0, "seen for the first time");
        assert_eq!(stall.look(150, 5, true), 50);
        assert_eq!(stall.look(160, 6, true), 0, "it reads, if slowly");
        assert_eq!(stall.look(190, 6, true), 30);
        assert_eq!(stall.look(200, 6, false), 0, "a call is free: it may be idle");
        assert_eq!(stall.look(900, 6, true), 0);
    }

    #[test]
    fn fault_g3_a_clock_that_steps_back_stalls_nobody() {
        let mut stall = Stall::default();
        assert_eq!(stall.look(1000, 5, true), 0);
        assert_eq!(stall.look(10, 5, true), 0, "no negative duration");
        assert_eq!(stall.look(1007, 5, true), 7);
    }
}
