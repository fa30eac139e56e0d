//! What one client measured.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::{
    Schedule,
    judge::{Call, JudgedAnswer},
};
use crate::{
    backend::CallFailure,
    codec::StoreStatus,
    series::{CLIENT_COLUMNS, Slices},
};

/// Latencies above this are filed as this: longer than any timeout.
pub const LATENCY_NS_MAX: u64 = 7_200_000_000_000;
/// Three significant digits.
const DIGITS: u8 = 3;

/// An empty histogram of latencies in ns.
///
/// # Panics
///
/// Never: the bounds are constant.
#[must_use]
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("constant bounds")
}

/// The local or the remote calls.
#[derive(Clone, Debug)]
pub struct SideTally {
    /// Answers seen inside the measured interval.
    pub completed: u64,
    /// Of the calls due inside the measured interval, in ns.
    pub latency: Histogram<u64>,
}

impl Default for SideTally {
    fn default() -> Self {
        Self { completed: 0, latency: latency_histogram() }
    }
}

/// What one client measured.
#[derive(Clone, Debug)]
pub struct ClientTally {
    /// Calls to the client's own node.
    pub local: SideTally,
    /// Calls to other nodes.
    pub remote: SideTally,
    /// Answers seen in each slice of the measured interval.
    pub slices: Vec<u64>,
    /// Most calls that were outstanding in each slice.
    pub outstanding: Vec<u32>,
    /// Calls without an answer, by reason, warm-up included.
    pub failures: BTreeMap<CallFailure, u64>,
    /// Keys that were not there, warm-up included.
    pub not_found: u64,
    /// CASes that were refused, warm-up included.
    pub mismatches: u64,
    /// Answers that came after their call was given up.
    pub late: u64,
    /// Calls made, warm-up included.
    pub calls: u64,
    /// When the first call was sent, after the scheduled begin; `None`: there was none.
    pub start_skew_ns: Option<u64>,
    /// What happened in the slices of a series.
    pub series: Slices,
}

impl ClientTally {
    pub(super) fn new(schedule: &Schedule) -> Self {
        Self {
            local: SideTally::default(),
            remote: SideTally::default(),
            slices: vec![0; schedule.slices()],
            outstanding: vec![0; schedule.slices()],
            failures: BTreeMap::new(),
            not_found: 0,
            mismatches: 0,
            late: 0,
            calls: 0,
            start_skew_ns: None,
            series: Slices::new(CLIENT_COLUMNS.len()),
        }
    }

    fn fail(&mut self, failure: CallFailure, count: u64) {
        *self.failures.entry(failure).or_default() += count;
    }

    pub(super) fn note_late(&mut self) {
        self.late += 1;
    }

    pub(super) fn note_outstanding(&mut self, schedule: &Schedule, now_ns: u64, count: u32) {
        if let Some(slice) = schedule.slice_of(now_ns) {
            self.outstanding[slice] = self.outstanding[slice].max(count);
        }
        if let Some(slice) = now_ns.checked_div(schedule.series_ns) {
            self.series.see(1, slice, count.into());
        }
    }

    pub(super) fn settle(
        &mut self,
        schedule: &Schedule,
        call: &Call,
        result: Result<JudgedAnswer, CallFailure>,
        now_ns: u64,
    ) {
        self.calls += 1;
        let skew_ns = call.sent_ns - schedule.begin_ns;
        self.start_skew_ns = Some(self.start_skew_ns.map_or(skew_ns, |least| least.min(skew_ns)));
        match result {
            Ok(verdict) => {
                self.not_found += u64::from(verdict.status == StoreStatus::NotFound);
                self.mismatches += u64::from(verdict.status == StoreStatus::Mismatch);
            }
            Err(failure) => self.fail(failure, 1),
        }
        if result.is_ok()
            && let Some(slice) = now_ns.checked_div(schedule.series_ns)
        {
            let row = self.series.row(slice);
            row[0] += 1;
            row[2] += now_ns.saturating_sub(call.due_ns);
        }
        let side = if call.is_local { &mut self.local } else { &mut self.remote };
        if result.is_ok()
            && let Some(slice) = schedule.slice_of(now_ns)
        {
            side.completed += 1;
            self.slices[slice] += 1;
        }
        side.file(schedule, call.due_ns, now_ns, 1);
    }

    /// `count` calls that were due but never sent: their latency is at least the time since.
    pub(super) fn unsent(
        &mut self,
        failure: CallFailure,
        schedule: &Schedule,
        is_local: bool,
        due_ns: u64,
        now_ns: u64,
        count: u64,
    ) {
        self.fail(failure, count);
        let side = if is_local { &mut self.local } else { &mut self.remote };
        side.file(schedule, due_ns, now_ns, count);
    }
}

impl SideTally {
    fn file(&mut self, schedule: &Schedule, due_ns: u64, now_ns: u64, count: u64) {
        if schedule.slice_of(due_ns).is_some() {
            let latency_ns = now_ns.saturating_sub(due_ns).clamp(1, LATENCY_NS_MAX);
            self.latency.saturating_record_n(latency_ns, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        codec::{StoreOp, Version},
        place::Shard,
    };

    /// Calls from 100 on, measured from 1000 to 2000 in slices of 100 ns.
    const SCHEDULE: Schedule = Schedule {
        begin_ns: 100,
        measure_ns: 1000,
        end_ns: 2000,
        drained_ns: 9000,
        slice_ns: 100,
        series_ns: 0,
    };

    fn call(is_local: bool, due_ns: u64) -> Call {
        Call {
            op: StoreOp::Get,
            key: 1,
            shard: Shard(0),
            is_local,
            written: Version(0),
            expected: None,
            due_ns,
            sent_ns: due_ns + 10,
        }
    }

    fn ended(status: StoreStatus) -> Result<JudgedAnswer, CallFailure> {
        Ok(JudgedAnswer { status, version: None })
    }

    fn counts(tally: &ClientTally) -> [u64; 4] {
        let ClientTally { local, remote, .. } = tally;
        [local.completed, local.latency.len(), remote.completed, remote.latency.len()]
    }

    #[test]
    fn fault_k2_answers_count_when_they_are_seen_and_are_timed_if_they_were_due_in_the_interval() {
        let mut tally = ClientTally::new(&SCHEDULE);
        tally.settle(&SCHEDULE, &call(true, 500), ended(StoreStatus::Ok), 999);
        assert_eq!(counts(&tally), [0, 0, 0, 0], "warm-up");
        tally.settle(&SCHEDULE, &call(true, 999), ended(StoreStatus::Ok), 1000);
        assert_eq!(counts(&tally), [1, 0, 0, 0]);
        tally.settle(&SCHEDULE, &call(false, 1000), ended(StoreStatus::Ok), 1999);
        assert_eq!(counts(&tally), [1, 0, 1, 1]);
        tally.settle(&SCHEDULE, &call(false, 1999), ended(StoreStatus::Ok), 2500);
        assert_eq!(counts(&tally), [1, 0, 1, 2], "late, and in the histogram all the same");
        assert_eq!((tally.slices[0], tally.slices[9]), (1, 1));
        assert_eq!((tally.remote.latency.min(), tally.remote.latency.max()), (501, 999));
        assert_eq!((tally.calls, tally.start_skew_ns), (4, Some(410)), "the first was sent at 510");
    }

    #[test]
    fn fault_k2_a_failed_call_is_a_call_is_timed_and_is_no_answer() {
        let mut tally = ClientTally::new(&SCHEDULE);
        tally.settle(&SCHEDULE, &call(true, 1100), Err(CallFailure::Timeout), 1200);
        tally.unsent(CallFailure::Unsent, &SCHEDULE, false, 1100, 1200, 3);
        assert_eq!(counts(&tally), [0, 1, 0, 3]);
        assert_eq!(tally.slices.iter().sum::<u64>(), 0);
        assert_eq!(tally.failures, [(CallFailure::Timeout, 1), (CallFailure::Unsent, 3)].into());
        assert_eq!(tally.calls, 1, "three were never made");
    }

    #[test]
    fn outcomes_are_counted_by_name_and_the_most_that_was_outstanding_is_kept() {
        let mut tally = ClientTally::new(&SCHEDULE);
        for status in
            [StoreStatus::NotFound, StoreStatus::NotFound, StoreStatus::Mismatch, StoreStatus::Ok]
        {
            tally.settle(&SCHEDULE, &call(true, 1100), ended(status), 1200);
        }
        assert_eq!((tally.not_found, tally.mismatches, tally.local.completed), (2, 1, 4));
        for (now_ns, count) in [(999, 9), (1100, 3), (1150, 4), (1199, 2), (2000, 9)] {
            tally.note_outstanding(&SCHEDULE, now_ns, count);
        }
        assert_eq!(tally.outstanding, [0, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
