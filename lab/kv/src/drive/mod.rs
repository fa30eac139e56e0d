//! One client: makes calls when they are due, as many at once as the queue depth allows, checks
//! every answer and measures it.
//!
//! ```text
//!  due (intended start)      sent              answer seen
//!   │◀──── waiting for room ──▶│◀──── call ─────▶│
//!   │◀─────────────── latency ─────────────────▶│       open loop; in a closed one due = sent
//!   ─────┬──────────── measured interval ────────────────────┬───▶ time
//!        └ the same for all clients of a job                 └
//! ```
//!
//! Throughput counts answers seen inside the interval. Latency is that of the calls *due* inside it,
//! however late their answer: a server that stalls does not thereby hide the calls that should have
//! been made meanwhile.
//!
//! The driver reads no clock: time is an argument, so that it can be virtual.

mod call_table;
mod judge;
mod recorder;
mod tally;

pub use judge::{Call, JudgedAnswer, Violation};
pub use recorder::{HistoryFull, HistoryRecorder};
pub use tally::{ClientTally, LATENCY_NS_MAX, SideTally, latency_histogram};

use self::{
    call_table::{CallTable, Settled},
    judge::Judge,
};
use crate::{
    backend::{BackendError, CallFailure, Client, Event, SubmitError},
    codec::{HEAD_BYTES, Request, StoreCommand, StoreOp, Version, value},
    history::HistoryEvent,
    place::ClientId,
    workload::{self, Arrivals, OpStream, Verify, Workload},
};

const NS_PER_MS: u64 = 1_000_000;
/// Calls of an interval that are not measured, at its begin, at most.
const SETTLE_MS_MAX: u64 = 40;
/// Looks for calls that are overdue, per timeout.
const SWEEPS_PER_TIMEOUT: u64 = 16;
/// Slices that the measured interval is divided into, at most.
const SLICES: u64 = 50;
/// Calls that nobody had time to send which a client draws one by one, at most.
const UNSENT_DRAWN: u64 = 1 << 16;
/// Versions that a client remembers for its CASes.
const SEEN: usize = 256;

/// When things happen, on the clock that all processes of a machine share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Schedule {
    /// First call.
    pub begin_ns: u64,
    /// Begin of the measured interval.
    pub measure_ns: u64,
    /// Its end: no call is due after this.
    pub end_ns: u64,
    /// All calls have an answer or are given up.
    pub drained_ns: u64,
    /// Length of the slices of the measured interval.
    pub slice_ns: u64,
    /// Length of the slices of a series; 0: there is none.
    pub series_ns: u64,
}

impl Schedule {
    /// The schedule of `workload` from `begin_ns` on, for an interval of clients that are warm: what settles
    /// takes a part of the warm-up.
    #[must_use]
    pub fn of_interval(workload: &Workload, begin_ns: u64) -> Self {
        let settle_ms = workload.warm_up_ms.min(workload.duration_ms / 5).min(SETTLE_MS_MAX);
        Self::new(&Workload { warm_up_ms: settle_ms, ..workload.clone() }, begin_ns)
    }

    /// The schedule of `workload` from `begin_ns` on.
    #[must_use]
    pub fn new(workload: &Workload, begin_ns: u64) -> Self {
        let measure_ns = begin_ns + workload.warm_up_ms * NS_PER_MS;
        let duration_ns = workload.duration_ms * NS_PER_MS;
        let end_ns = measure_ns + duration_ns;
        let drained_ns = end_ns + workload.timeout_ms * NS_PER_MS;
        let slice_ns = duration_ns.div_ceil(SLICES);
        let series_ns = workload.series.map_or(0, |plan| plan.slice_ns);
        Self { begin_ns, measure_ns, end_ns, drained_ns, slice_ns, series_ns }
    }

    /// The slice that a time inside the measured interval belongs to.
    #[must_use]
    pub fn slice_of(&self, now_ns: u64) -> Option<usize> {
        let is_inside = (self.measure_ns..self.end_ns).contains(&now_ns);
        is_inside.then(|| usize::try_from((now_ns - self.measure_ns) / self.slice_ns).ok())?
    }

    /// Means of samples `(time_ns, value)` in each slice. A slice without one is as the slice before;
    /// empty if there are no samples inside the interval at all.
    #[must_use]
    pub fn means(&self, samples: impl Iterator<Item = (u64, u64)>) -> Vec<u64> {
        let mut sums = vec![(0_u64, 0_u64); self.slices()];
        for (time_ns, value) in samples {
            if let Some((sum, count)) = self.slice_of(time_ns).and_then(|at| sums.get_mut(at)) {
                (*sum, *count) = (*sum + value, *count + 1);
            }
        }
        if sums.iter().all(|(_, count)| *count == 0) {
            return Vec::new();
        }
        let mut last = 0;
        let means = sums.into_iter().map(|(sum, count)| {
            last = sum.checked_div(count).unwrap_or(last);
            last
        });
        means.collect()
    }

    /// Slices of the measured interval.
    #[must_use]
    pub fn slices(&self) -> usize {
        usize::try_from((self.end_ns - self.measure_ns).div_ceil(self.slice_ns)).unwrap_or(0)
    }
}

/// Why a client cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// An answer is wrong: nothing that was measured means anything.
    #[error("client {}: wrong answer: {violation}", client.0)]
    Violation {
        /// The client that asked.
        client: ClientId,
        /// The rule that the answer broke.
        violation: Violation,
    },
    /// The way to the servers broke.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Too many operations to remember.
    #[error(transparent)]
    History(#[from] HistoryFull),
    /// The backend cannot carry the workload's messages.
    #[error(transparent)]
    Submit(SubmitError),
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something happened: go on.
    Busy,
    /// Calls were made, and there was no answer; one to these will take its time.
    Sent {
        /// As of [`Self::Idle`].
        until_ns: u64,
    },
    /// Nothing happened; nothing will before `until_ns` unless an answer comes.
    Idle {
        /// When the driver wants to be called again.
        until_ns: u64,
    },
    /// All is done.
    Done,
}

/// A client's state.
#[derive(Debug)]
pub struct Driver {
    id: ClientId,
    schedule: Schedule,
    timeout_ns: u64,
    ops: OpStream,
    arrivals: Arrivals,
    calls: CallTable,
    judge: Judge,
    tally: ClientTally,
    recorder: Option<HistoryRecorder>,
    /// Due, but not yet taken by the backend.
    deferred: Option<(workload::PlannedOp, u64)>,
    /// Last seen versions of some keys.
    seen: Box<[(u64, Option<Version>)]>,
    writes: u64,
    request: Vec<u8>,
    value: Vec<u8>,
    settled: Vec<Settled>,
    next_sweep_ns: u64,
}

impl Driver {
    /// A client of `workload`, before its first call.
    #[must_use]
    pub fn new(workload: &Workload, id: ClientId, schedule: Schedule) -> Self {
        let value_bytes_max = workload.value_size.max_bytes;
        Self {
            id,
            schedule,
            timeout_ns: workload.timeout_ms * NS_PER_MS,
            ops: OpStream::new(workload, id),
            arrivals: Arrivals::new(workload, id, schedule.begin_ns),
            calls: CallTable::new(workload.queue_depth),
            judge: Judge::new(workload, id),
            tally: ClientTally::new(&schedule),
            recorder: (workload.verify == Verify::Full).then(HistoryRecorder::default),
            deferred: None,
            seen: vec![(0, Some(value::INITIAL)); SEEN].into_boxed_slice(),
            writes: 0,
            request: Vec::with_capacity(HEAD_BYTES + value_bytes_max),
            value: vec![0; value_bytes_max],
            settled: Vec::with_capacity(workload.queue_depth as usize),
            next_sweep_ns: schedule.begin_ns,
        }
    }

    /// Calls without an answer.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.calls.outstanding()
    }

    /// Whether the queue depth forbids another call.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.calls.is_full()
    }

    /// Calls that came to an end so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.tally.calls
    }

    /// Begins another interval. What the client knows of the store stays; what it has measured is gone.
    pub fn restart(&mut self, workload: &Workload, schedule: Schedule) {
        self.arrivals = Arrivals::new(workload, self.id, schedule.begin_ns);
        self.tally = ClientTally::new(&schedule);
        self.next_sweep_ns = schedule.begin_ns;
        self.schedule = schedule;
    }

    /// The measurements of the interval that is over and, if it was recorded, its history.
    #[must_use]
    pub fn finish(&mut self) -> (ClientTally, Vec<HistoryEvent>) {
        let tally = std::mem::replace(&mut self.tally, ClientTally::new(&self.schedule));
        let events = self.recorder.as_mut().map(HistoryRecorder::take_events);
        (tally, events.unwrap_or_default())
    }

    /// Makes the calls that are due and takes the answers that are there. `clock` says the time.
    ///
    /// # Errors
    ///
    /// [`DriveError`].
    pub fn step<C: Client>(
        &mut self,
        client: &mut C,
        clock: &impl Fn() -> u64,
    ) -> Result<Step, DriveError> {
        let now_ns = clock();
        let sent = self.submit_due(client, now_ns)?;
        let polled = self.poll(client, clock)?;
        let swept = self.sweep(now_ns)?;
        self.tally.note_outstanding(&self.schedule, now_ns, self.calls.outstanding());
        Ok(match () {
            () if self.is_done(now_ns) => {
                self.give_up(now_ns)?;
                Step::Done
            }
            () if polled + swept > 0 => Step::Busy,
            () if sent > 0 => Step::Sent { until_ns: self.wake_ns(now_ns) },
            () => Step::Idle { until_ns: self.wake_ns(now_ns) },
        })
    }

    fn is_done(&self, now_ns: u64) -> bool {
        let has_calls = self.calls.outstanding() > 0
            || self.next_due_ns(now_ns) < self.schedule.end_ns
            || now_ns < self.schedule.end_ns;
        !has_calls || now_ns >= self.schedule.drained_ns
    }

    fn next_due_ns(&self, now_ns: u64) -> u64 {
        match self.deferred {
            Some((_, due_ns)) => due_ns,
            None => self.arrivals.due_ns(now_ns),
        }
    }

    fn wake_ns(&self, now_ns: u64) -> u64 {
        let due_ns = self.next_due_ns(now_ns);
        let is_submission_next = !self.calls.is_full() && self.deferred.is_none();
        let due_ns = if is_submission_next && due_ns > now_ns { due_ns } else { u64::MAX };
        let end_ns = if now_ns < self.schedule.end_ns { self.schedule.end_ns } else { u64::MAX };
        due_ns.min(self.next_sweep_ns).min(end_ns)
    }

    /// Makes calls until none is due, or there is no room.
    fn submit_due<C: Client>(&mut self, client: &mut C, now_ns: u64) -> Result<usize, DriveError> {
        let mut sent = 0;
        if now_ns < self.schedule.begin_ns || now_ns >= self.schedule.drained_ns {
            return Ok(0);
        }
        while !self.calls.is_full() {
            let due_ns = self.next_due_ns(now_ns);
            if due_ns > now_ns || due_ns >= self.schedule.end_ns {
                break;
            }
            let op = self.next_op();
            match self.submit(client, op, due_ns, now_ns) {
                Ok(()) => sent += 1,
                Err(SubmitError::Full) => {
                    self.deferred = Some((op, due_ns));
                    break;
                }
                Err(SubmitError::Gone(_)) => {
                    let failure = CallFailure::PeerGone;
                    self.tally.unsent(failure, &self.schedule, op.is_local, due_ns, now_ns, 1);
                    if !self.arrivals.is_open() {
                        break; // the next one is due at once, and the one after that
                    }
                }
                Err(error @ SubmitError::TooLarge { .. }) => return Err(DriveError::Submit(error)),
            }
        }
        Ok(sent)
    }

    fn submit<C: Client>(
        &mut self,
        client: &mut C,
        op: workload::PlannedOp,
        due_ns: u64,
        sent_ns: u64,
    ) -> Result<(), SubmitError> {
        let workload::PlannedOp { op: kind, key, shard, is_local, value_bytes } = op;
        let written = Version::of(self.id, self.writes);
        let filled = &mut self.value[..value_bytes];
        if value_bytes > 0 {
            value::fill(filled, key, written);
        }
        let expected = self.seen_version(key);
        let action = match kind {
            StoreOp::Get => StoreCommand::Get,
            StoreOp::Put => StoreCommand::Put { value: &self.value[..value_bytes] },
            StoreOp::Delete => StoreCommand::Delete,
            StoreOp::Cas => StoreCommand::Cas { expected, value: &self.value[..value_bytes] },
        };
        let call = Call { op: kind, key, shard, is_local, written, expected, due_ns, sent_ns };
        let token = self.calls.insert(call);
        self.request.clear();
        Request { tag: judge::tag_of(token), key, action }.write(&mut self.request);
        let submitted = client.submit(shard, token, &self.request);
        match submitted {
            Ok(()) => self.writes += u64::from(value_bytes > 0),
            Err(_) => self.calls.withdraw(token),
        }
        submitted
    }

    fn poll<C: Client>(
        &mut self,
        client: &mut C,
        clock: &impl Fn() -> u64,
    ) -> Result<usize, DriveError> {
        let Self { calls, judge, settled, tally, writes, .. } = self;
        let mut violation = None;
        let budget = calls.depth();
        let count = client.poll(budget, &mut |event| match event {
            Event::Answer { token, bytes } => match calls.settle(token) {
                Ok(Some(call)) => match judge.judge(&call, token, bytes, *writes) {
                    Ok(verdict) => settled.push(Settled { call, result: Ok(verdict) }),
                    Err(wrong) => violation = violation.or(Some(wrong)),
                },
                Ok(None) => tally.note_late(),
                Err(wrong) => violation = violation.or(Some(wrong)),
            },
            Event::Failed { token, failure } => match calls.settle(token) {
                Ok(Some(call)) => settled.push(Settled { call, result: Err(failure) }),
                Ok(None) => tally.note_late(),
                Err(wrong) => violation = violation.or(Some(wrong)),
            },
            Event::Lost { shard } => calls.abandon(
                |call| call.shard == shard,
                |call| {
                    settled.push(Settled { call, result: Err(CallFailure::PeerGone) });
                },
            ),
        })?;
        if let Some(violation) = violation {
            return Err(DriveError::Violation { client: self.id, violation });
        }
        if !self.settled.is_empty() {
            // After the poll: no answer is made to look earlier than it was.
            self.account(clock())?;
        }
        Ok(count)
    }

    /// Files what was settled, as of `now_ns`.
    fn account(&mut self, now_ns: u64) -> Result<(), DriveError> {
        for index in 0..self.settled.len() {
            let Settled { call, result } = self.settled[index];
            if let Ok(verdict) = result {
                self.remember(call.key, verdict.present(&call));
            }
            self.tally.settle(&self.schedule, &call, result, now_ns);
            if let Some(recorder) = &mut self.recorder {
                recorder.record(&call, result.ok(), now_ns)?;
            }
        }
        self.settled.clear();
        Ok(())
    }

    /// Gives up calls that are overdue.
    fn sweep(&mut self, now_ns: u64) -> Result<usize, DriveError> {
        if now_ns < self.next_sweep_ns {
            return Ok(0);
        }
        let timeout_ns = self.timeout_ns;
        self.next_sweep_ns = now_ns + timeout_ns / SWEEPS_PER_TIMEOUT;
        self.time_out(now_ns, |call| now_ns.saturating_sub(call.sent_ns) >= timeout_ns)
    }

    fn time_out(
        &mut self,
        now_ns: u64,
        is_overdue: impl Fn(&Call) -> bool,
    ) -> Result<usize, DriveError> {
        let Self { calls, settled, .. } = self;
        calls.abandon(is_overdue, |call| {
            settled.push(Settled { call, result: Err(CallFailure::Timeout) });
        });
        let count = self.settled.len();
        self.account(now_ns)?;
        Ok(count)
    }

    /// At the end: what has no answer now gets none, and what was due but not sent is counted. Of very
    /// many one stands for several, which are due when it is: a rate that nobody can keep up with makes
    /// more than there is time to draw.
    fn give_up(&mut self, now_ns: u64) -> Result<(), DriveError> {
        self.time_out(now_ns, |_| true)?;
        let count = self.arrivals.left(self.schedule.end_ns) / UNSENT_DRAWN + 1;
        while self.next_due_ns(now_ns) < self.schedule.end_ns && self.arrivals.is_open() {
            let due_ns = self.next_due_ns(now_ns);
            let op = self.next_op();
            self.arrivals.skip(count - 1);
            let failure = CallFailure::Unsent;
            self.tally.unsent(failure, &self.schedule, op.is_local, due_ns, now_ns, count);
        }
        Ok(())
    }

    /// The operation that is due: from now on the next one is.
    fn next_op(&mut self) -> workload::PlannedOp {
        match self.deferred.take() {
            Some((op, _)) => op,
            None => {
                self.arrivals.advance();
                self.ops.next()
            }
        }
    }

    fn remember(&mut self, key: u64, present: Option<Version>) {
        self.seen[seen_index(key)] = (key, present);
    }

    fn seen_version(&self, key: u64) -> Option<Version> {
        let (seen_key, version) = self.seen[seen_index(key)];
        if seen_key == key { version } else { Some(value::INITIAL) }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lowest bits are enough")]
fn seen_index(key: u64) -> usize {
    key as usize % SEEN
}

#[cfg(test)]
mod tests;
