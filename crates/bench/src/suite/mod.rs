//! The cells of a benchmark, and the two roles that run them: the parent plans, times and asks; the
//! child serves.
//!
//! ```text
//! parent                                   child
//!   Open{nic} ───────────────────────────▶ creates its links
//!            ◀─────────────── Contacts ───
//!   Connect(contacts) ───────────────────▶
//!            ◀──────────────────── Ready ──   calls: the same three before each sample
//!   Run(sample), Call or Limit ────────────────▶ prepares
//!            ◀──────────────────── Ready ──
//!   ═══ traffic, timed by the parent ═══
//!            ◀──────────────────── Done ───  or Failed, with the reason
//! ```

mod responder;
mod words;

use std::time::Duration;

pub use responder::{OpenParty, OpenWorkers, serve};

use self::words::{Reply, Request, receive};
use crate::{
    board::Board,
    calls::{CallSample, Calls, CallsError, SocketDir},
    cores::Cores,
    duo::{Duo, DuoError, REPLY_DEADLINE},
    limit::{Copier, LimitError, SharedLimit},
    pingpong::{self, PROBE_WINDOW, ThreadsError},
    report::Cell,
    schedule::Workload,
    threads::{Queue, QueueError, Stage},
    traffic::{BATCH, Party, Sample, Traffic, TrafficError},
    workers::{Measured, Merging, WorkerCalls, WorkerError, WorkerParty, WorkerSample},
};

/// Messages of the sample that calibrates a cell.
const FIRST_COUNT: u64 = 2 * BATCH;
/// Messages of a sample, at most.
const COUNT_MAX: u64 = 50_000_000;

/// How a cell is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Two-line round trip between two threads of this process.
    Threads,
    /// Two-line round trip between the two processes.
    Processes,
    /// Stream of 64-byte slots between the two processes.
    Stream,
    /// `memcpy` inside this process, in pieces of so many bytes.
    Copy(usize),
    /// Through the NIC.
    Traffic(Traffic),
    /// Messages that are announced in a ring, between the two processes.
    Announced,
    /// Requests and answers in slots of one line between the two processes, so many in flight.
    Slots(u16),
    /// Between threads of this process.
    Queue(Queue),
    /// To a server in the other process.
    Calls(Calls),
    /// Through workers on the NIC.
    Worker(WorkerCalls),
}

/// A cell and how it is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// What is reported.
    pub cell: Cell,
    /// What is done.
    pub job: Job,
}

impl Planned {
    /// States how many cache lines an operation of the cell is designed to move.
    #[must_use]
    pub(crate) fn lines(mut self, lines: f64) -> Self {
        self.cell.lines = Some(lines);
        self
    }
}

/// Keeps the cells whose name contains `filter`, what they are compared with, and so on.
#[must_use]
pub fn select(plan: Vec<Planned>, filter: &str) -> Vec<Planned> {
    let mut kept = vec![false; plan.len()];
    // References stand before the cells that name them.
    for index in (0..plan.len()).rev() {
        kept[index] |= plan[index].cell.name.contains(filter);
        if !kept[index] {
            continue;
        }
        let Cell { versus, floor, .. } = &plan[index].cell;
        for reference in [versus, floor].into_iter().flatten() {
            let found = plan.iter().position(|planned| planned.cell.name == *reference);
            found.into_iter().for_each(|found| kept[found] = true);
        }
    }
    plan.into_iter().zip(kept).filter_map(|(planned, kept)| kept.then_some(planned)).collect()
}

/// Why a benchmark has no result.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// The two processes lost each other.
    #[error(transparent)]
    Duo(#[from] DuoError),
    /// The machine's own limit could not be measured.
    #[error("bare memory: {0}")]
    Limit(#[from] LimitError),
    /// The same between threads.
    #[error("two-line round trip between threads: {0}")]
    Threads(#[from] ThreadsError),
    /// This side's NIC.
    #[error("initiator: {0}")]
    Traffic(#[from] TrafficError),
    /// This side's calls.
    #[error("initiator: {0}")]
    Calls(#[from] CallsError),
    /// Threads of this process.
    #[error("between threads: {0}")]
    Queue(#[from] QueueError),
    /// This side's worker.
    #[error("initiator: {0}")]
    Worker(#[from] WorkerError),
    /// The other side's reason.
    #[error("responder: {0}")]
    Responder(String),
    /// Both sides failed; usually the second because of the first.
    #[error("initiator: {initiator}; responder: {responder}")]
    Both {
        /// This side's reason.
        initiator: Box<Self>,
        /// The other side's reason.
        responder: String,
    },
    /// The other side answered something else than asked for.
    #[error("the other process answered out of turn: {0}")]
    OutOfTurn(String),
    /// A cell needs the NIC, but the suite has none.
    #[error("this cell needs a NIC")]
    NoNic,
    /// A cell failed.
    #[error("cell {cell}: {cause}")]
    Cell {
        /// Its name.
        cell: String,
        /// Why it failed.
        cause: Box<Self>,
    },
}

/// The parent's role: runs planned cells as a [`Workload`].
pub struct Suite {
    duo: Duo,
    cores: Cores,
    party: Option<Box<dyn Party>>,
    worker_party: Option<Box<dyn WorkerParty>>,
    /// Of the last sample, if it made calls.
    merging: Option<Merging>,
    plan: Vec<Planned>,
    /// Messages per sample, by cell.
    counts: Vec<u64>,
    copier: Copier,
    window: Duration,
    samples: u64,
    /// Cores for threads, those of `cores` first.
    pool: Vec<usize>,
    sockets: SocketDir,
}

impl Suite {
    /// A suite whose samples take about `window` each.
    #[must_use]
    pub fn new(duo: Duo, cores: Cores, plan: Vec<Planned>, window: Duration) -> Self {
        let counts = vec![FIRST_COUNT; plan.len()];
        Self {
            duo,
            cores,
            party: None,
            worker_party: None,
            merging: None,
            plan,
            counts,
            copier: Copier::default(),
            window,
            samples: 0,
            pool: vec![cores.initiator, cores.responder],
            sockets: SocketDir::new(),
        }
    }

    /// Lets cells with more than two threads use these cores, too.
    #[must_use]
    pub fn with_pool(mut self, allowed: &[usize]) -> Self {
        for core in allowed {
            if !self.pool.contains(core) {
                self.pool.push(*core);
            }
        }
        self
    }

    /// Lets both sides make calls: this one by `party`, the other one on its own NIC named `nic`.
    ///
    /// # Errors
    ///
    /// [`SuiteError`].
    pub fn connect_workers(
        &mut self,
        nic: &str,
        party: Box<dyn WorkerParty>,
    ) -> Result<(), SuiteError> {
        self.duo.control.send(&Request::OpenWorkers { nic: nic.to_owned() })?;
        self.expect(&Reply::Ready)?;
        self.worker_party = Some(party);
        Ok(())
    }

    /// Lets both sides use a NIC: this one `party`, the other one its own named `nic`.
    ///
    /// # Errors
    ///
    /// [`SuiteError`].
    pub fn connect(&mut self, nic: &str, mut party: Box<dyn Party>) -> Result<(), SuiteError> {
        self.duo.control.send(&Request::Open { nic: nic.to_owned() })?;
        let contacts = match self.reply()? {
            Reply::Contacts(contacts) => contacts,
            other => return Err(unexpected(other)),
        };
        self.duo.control.send(&Request::Connect(party.contacts()))?;
        party.connect(&contacts)?;
        self.expect(&Reply::Ready)?;
        self.party = Some(party);
        Ok(())
    }

    fn reply(&mut self) -> Result<Reply, SuiteError> {
        let Self { duo, party, .. } = self;
        receive(&mut duo.control, party, Some(REPLY_DEADLINE))
    }

    fn expect(&mut self, expected: &Reply) -> Result<(), SuiteError> {
        let reply = self.reply()?;
        if reply == *expected { Ok(()) } else { Err(unexpected(reply)) }
    }

    /// Runs `here` while the other side runs `request`.
    fn together<T>(
        &mut self,
        request: &Request,
        here: impl FnOnce(&Board, &mut Option<Box<dyn Party>>) -> Result<T, SuiteError>,
    ) -> Result<T, SuiteError> {
        self.duo.board.reset();
        self.duo.control.send(request)?;
        self.expect(&Reply::Ready)?;
        let result = here(&self.duo.board, &mut self.party);
        if result.is_err() {
            self.duo.board.fail();
        }
        match (result, self.expect(&Reply::Done)) {
            (result, Ok(())) => result,
            (Ok(_), Err(error)) => Err(error),
            (Err(initiator), Err(SuiteError::Responder(responder))) => {
                Err(SuiteError::Both { initiator: Box::new(initiator), responder })
            }
            (Err(initiator), Err(_)) => Err(initiator),
        }
    }

    fn limit(&mut self, limit: SharedLimit) -> Result<f64, SuiteError> {
        self.together(&Request::Limit(limit), |board, _| Ok(limit.initiate(board)?))
    }

    fn traffic(&mut self, traffic: Traffic, count: u64) -> Result<f64, SuiteError> {
        self.samples += 1;
        let sample = Sample { traffic, count, number: self.samples };
        self.together(&Request::Run(sample), |board, party| {
            let party = party.as_mut().ok_or(SuiteError::NoNic)?;
            Ok(party.initiate(board, &sample)?)
        })
    }

    fn calls(&mut self, calls: Calls, count: u64) -> Result<f64, SuiteError> {
        self.samples += 1;
        let (number, socket) = (self.samples, self.sockets.socket());
        let sample = CallSample { calls, count, number, socket };
        let request = Request::Serve(sample.clone());
        self.together(&request, |board, _| Ok(sample.initiate(board)?))
    }

    /// ns per round trip, or M/s if several are in flight.
    fn slots(&mut self, in_flight: u16, count: u64) -> Result<f64, SuiteError> {
        let round_trip_ns = self.limit(SharedLimit::Slots { in_flight, count })?;
        Ok(if in_flight == 1 { round_trip_ns } else { 1e3 / round_trip_ns })
    }

    fn worker_calls(&mut self, calls: WorkerCalls, count: u64) -> Result<f64, SuiteError> {
        let Some(mut party) = self.worker_party.take() else { return Err(SuiteError::NoNic) };
        let measured = self.call(party.as_mut(), calls, count);
        self.worker_party = Some(party);
        let Measured { value, merging } = measured?;
        self.merging = Some(merging);
        Ok(value)
    }

    fn call(
        &mut self,
        party: &mut dyn WorkerParty,
        calls: WorkerCalls,
        count: u64,
    ) -> Result<Measured, SuiteError> {
        self.duo.control.send(&Request::Invite(calls))?;
        let theirs = match self.reply()? {
            Reply::Invitations(theirs) => theirs,
            other => return Err(unexpected(other)),
        };
        let ours = party.open(&calls)?;
        self.duo.control.send(&Request::Accept(ours))?;
        party.connect(&theirs)?;
        self.expect(&Reply::Ready)?;
        self.samples += 1;
        let sample = WorkerSample { calls, count, number: self.samples };
        self.together(&Request::CallWorker(sample), |board, _| Ok(party.initiate(board, &sample)?))
    }

    fn run(&mut self, job: Job, count: u64) -> Result<f64, SuiteError> {
        let window = self.window / 4;
        self.merging = None;
        match job {
            Job::Threads => Ok(pingpong::between_threads(self.cores, &self.duo.board, window)?),
            Job::Processes => self.limit(SharedLimit::RoundTrip { window }),
            Job::Stream => self.limit(SharedLimit::Stream { count }),
            Job::Announced => self.limit(SharedLimit::Announced { count }),
            Job::Copy(len_bytes) => Ok(self.copier.bandwidth(len_bytes, self.window)),
            Job::Traffic(traffic) => self.traffic(traffic, count),
            Job::Slots(in_flight) => self.slots(in_flight, count),
            Job::Queue(queue) => {
                Ok(queue.run(Stage { pool: &self.pool, board: &self.duo.board }, count)?)
            }
            Job::Calls(calls) => self.calls(calls, count),
            Job::Worker(calls) => self.worker_calls(calls, count),
        }
    }

    fn named(&self, cell: usize, result: Result<f64, SuiteError>) -> Result<f64, SuiteError> {
        let name = || self.plan[cell].cell.name.clone();
        result.map_err(|cause| SuiteError::Cell { cell: name(), cause: Box::new(cause) })
    }

    /// Two samples, each sized by the one before: the first is too short to trust.
    fn calibrate(&mut self, cell: usize) -> Result<f64, SuiteError> {
        let job = self.plan[cell].job;
        let mut count = FIRST_COUNT;
        let mut value = 0.0;
        for _ in 0..2 {
            value = self.run(job, count)?;
            count = match job {
                Job::Threads | Job::Processes | Job::Copy(_) => break,
                Job::Stream => count_for(self.window, 1e3 / value),
                Job::Announced | Job::Slots(1) => count_for(self.window, value),
                Job::Slots(_) => count_for(self.window, 1e3 / value),
                Job::Queue(queue) => count_for(self.window, queue.item_ns(value)),
                Job::Calls(calls) => count_for(self.window, calls.call_ns(value)),
                Job::Traffic(traffic) => count_for(self.window, traffic.message_ns(value)),
                Job::Worker(calls) => count_for(self.window, calls.call_ns(value)),
            };
        }
        self.counts[cell] = count;
        Ok(value)
    }
}

impl Workload for Suite {
    type Error = SuiteError;

    fn cells(&self) -> usize {
        self.plan.len()
    }

    fn prepare(&mut self, cell: usize) -> Result<(), SuiteError> {
        let result = self.calibrate(cell);
        self.named(cell, result).map(|_| ())
    }

    fn probe(&mut self) -> Result<f64, SuiteError> {
        self.limit(SharedLimit::RoundTrip { window: PROBE_WINDOW })
    }

    fn sample(&mut self, cell: usize) -> Result<f64, SuiteError> {
        let result = self.run(self.plan[cell].job, self.counts[cell]);
        self.named(cell, result)
    }

    fn merging(&self) -> Option<Merging> {
        self.merging
    }
}

/// Messages of `message_ns` each that fill `window`: whole batches, at least one.
fn count_for(window: Duration, message_ns: f64) -> u64 {
    let count = window.as_secs_f64() * 1e9 / message_ns;
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and is clamped")]
    #[expect(clippy::cast_sign_loss, reason = "durations are not negative")]
    let count = count as u64;
    count.clamp(BATCH, COUNT_MAX).next_multiple_of(BATCH)
}

fn unexpected(reply: Reply) -> SuiteError {
    match reply {
        Reply::Failed(reason) => SuiteError::Responder(reason),
        other => SuiteError::OutOfTurn(format!("{other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Metric;

    fn planned(name: &str, versus: Option<&str>) -> Planned {
        let versus = versus.map(str::to_owned);
        let cell =
            Cell { name: name.to_owned(), metric: Metric::Rate, versus, floor: None, lines: None };
        Planned { cell, job: Job::Stream }
    }

    #[test]
    fn a_filter_keeps_what_the_chosen_cells_are_compared_with() {
        let plan = vec![
            planned("limit/line", None),
            planned("limit/copy", None),
            planned("limit/slot", Some("limit/line")),
            planned("send", Some("limit/line")),
            planned("write", Some("limit/copy")),
            planned("call", Some("limit/slot")),
        ];
        let names = |plan: Vec<Planned>| {
            plan.into_iter().map(|planned| planned.cell.name).collect::<Vec<_>>()
        };
        assert_eq!(names(select(plan.clone(), "send")), ["limit/line", "send"]);
        assert_eq!(names(select(plan.clone(), "call")), ["limit/line", "limit/slot", "call"]);
        assert_eq!(names(select(plan.clone(), "")).len(), 6);
        assert!(select(plan, "nothing").is_empty());
    }

    #[test]
    fn counts_are_whole_batches_within_bounds() {
        let window = Duration::from_millis(1);
        assert_eq!(count_for(window, 1000.0), 1000);
        assert_eq!(count_for(window, 999.0), 1050);
        assert_eq!(count_for(window, 1e9), BATCH);
        assert_eq!(count_for(window, 0.0), COUNT_MAX);
        assert_eq!(count_for(window, f64::NAN), BATCH);
    }
}
