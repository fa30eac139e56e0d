//! How far the clock of another host is ahead of this one.

use crate::{drive::Schedule, history::HistoryEvent};

/// Bounds of what the other clock shows more, in nanoseconds. Each exchange of messages narrows them: the other
/// clock was read after the question was sent, and before the answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::job) struct ClockBounds {
    min_ns: i64,
    max_ns: i64,
}

impl ClockBounds {
    /// Of the own clock.
    pub(super) const SAME: Self = Self { min_ns: 0, max_ns: 0 };
    /// Before the first exchange.
    pub(super) const UNKNOWN: Self = Self { min_ns: i64::MIN, max_ns: i64::MAX };

    /// What an exchange says: it was asked at `asked_ns` and answered at `answered_ns` of this clock, and the other one
    /// showed `theirs_ns` in between.
    pub(super) fn narrow(&mut self, asked_ns: u64, theirs_ns: u64, answered_ns: u64) {
        self.min_ns = self.min_ns.max(difference(theirs_ns, answered_ns));
        self.max_ns = self.max_ns.min(difference(theirs_ns, asked_ns));
    }

    /// Bounds that hold from one look until a later one, if the clocks drift apart in one direction meanwhile.
    pub(in crate::job) fn until(self, later: Self) -> Self {
        Self { min_ns: self.min_ns.min(later.min_ns), max_ns: self.max_ns.max(later.max_ns) }
    }

    /// The schedule by the other clock.
    pub(in crate::job) fn theirs(self, schedule: &Schedule) -> Schedule {
        let ahead_ns = i64::midpoint(self.min_ns, self.max_ns);
        let shifted = |ns: u64| ns.saturating_add_signed(ahead_ns);
        Schedule {
            begin_ns: shifted(schedule.begin_ns),
            measure_ns: shifted(schedule.measure_ns),
            end_ns: shifted(schedule.end_ns),
            drained_ns: shifted(schedule.drained_ns),
            slice_ns: schedule.slice_ns,
            series_ns: schedule.series_ns,
        }
    }

    /// An event of the other host by this clock: not earlier than it can have begun, not before it can have ended.
    /// So a history that is right is never judged wrong for want of a common clock.
    pub(in crate::job) fn ours(self, event: HistoryEvent) -> HistoryEvent {
        let shifted = |ns: u64, ahead_ns: i64| ns.saturating_add_signed(ahead_ns.saturating_neg());
        HistoryEvent {
            begin_ns: shifted(event.begin_ns, self.max_ns),
            end_ns: event.end_ns.map(|ns| shifted(ns, self.min_ns)),
            ..event
        }
    }
}

fn difference(a_ns: u64, b_ns: u64) -> i64 {
    let magnitude = i64::try_from(a_ns.abs_diff(b_ns)).unwrap_or(i64::MAX);
    if a_ns < b_ns { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Act;

    /// The other clock is 1000 ahead; messages take 10 to it and 30 back, then 25 and 5.
    fn bounds() -> ClockBounds {
        let mut bounds = ClockBounds::UNKNOWN;
        bounds.narrow(100, 1110, 140);
        bounds.narrow(200, 1225, 230);
        bounds
    }

    #[test]
    fn bounds_hold_the_truth_and_each_exchange_narrows_them() {
        assert_eq!(bounds(), ClockBounds { min_ns: 995, max_ns: 1010 });
        let behind = {
            let mut bounds = ClockBounds::UNKNOWN;
            bounds.narrow(5000, 4010, 5040);
            bounds
        };
        assert_eq!(behind, ClockBounds { min_ns: -1030, max_ns: -990 });
        let both = bounds().until(ClockBounds { min_ns: 1001, max_ns: 1020 });
        assert_eq!(both, ClockBounds { min_ns: 995, max_ns: 1020 });
    }

    #[test]
    fn events_become_wider_and_schedules_keep_their_lengths() {
        let event =
            HistoryEvent { key: 1, act: Act::Read(None), begin_ns: 2000, end_ns: Some(2010) };
        let ours = bounds().ours(event);
        assert_eq!((ours.begin_ns, ours.end_ns), (990, Some(1015)));
        assert_eq!(ClockBounds::SAME.ours(event), event);
        let schedule = Schedule {
            begin_ns: 10,
            measure_ns: 20,
            end_ns: 30,
            drained_ns: 40,
            slice_ns: 5,
            series_ns: 0,
        };
        let theirs = bounds().theirs(&schedule);
        assert_eq!((theirs.begin_ns, theirs.drained_ns, theirs.slice_ns), (1012, 1042, 5));
        assert_eq!(ClockBounds::SAME.theirs(&schedule), schedule);
    }
}
