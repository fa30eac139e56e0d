//! The cells of a benchmark, and the two roles that run them: the parent plans, times and asks; the
//! child serves.
//!
//! ```text
//! parent                                   child
//!   Open{nic} ───────────────────────────▶ opens its NIC, if cells need one
//!            ◀──────────────────── Ready ──
//!   Prepare(job) ────────────────────────▶ before each sample on a NIC
//!            ◀───────────────── Contacts ──
//!   Connect(contacts) ───────────────────▶
//!            ◀──────────────────── Ready ──
//!   Run(sample) ─────────────────────────▶ prepares
//!            ◀──────────────────── Ready ──
//!   ═══ traffic, timed by the parent ═══
//!            ◀──────────────────── Done ───  or Failed, with the reason
//!
//! Count asks the child to count cycles, instructions and misses during its samples, too; Done says how many.
//! ```

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use measure::{
    events::{EventCounts, EventMeter},
    results::SideEvents,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    cores::Cores,
    error::Error,
    job::{Job, Measured, NicOrNone, NicSide, SamplePlan},
    limit::{Copier, SharedLimit},
    ping_pong::{self, PROBE_WINDOW},
    plan::{Measurement, Planned},
    process_pair::{ChildSide, PairChannel, ProcessPair, REPLY_DEADLINE},
    results::PerBatch,
    sample::BATCH,
    schedule::Experiment,
    shared_words::SharedWords,
    threads::ThreadSetup,
};

/// Messages of the sample that calibrates a cell.
const FIRST_COUNT: u64 = 2 * BATCH;
/// Bytes of that sample beyond which it has fewer messages.
const FIRST_BYTES: u64 = 64 << 20;
/// Messages of a sample, at least and at most.
const COUNT_MIN: u64 = 4;
const COUNT_MAX: u64 = 50_000_000;

/// What the parent asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    Open { nic: String },
    Prepare(Job),
    Connect(Job, Vec<String>),
    Accept(Job, Vec<String>),
    Run(Job, SamplePlan),
    Count,
}

/// What the child answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Contacts(Vec<String>),
    Ready,
    Done(EventCounts),
    Failed(String),
}

/// Waits for the next message and keeps the NIC, if there is one, going meanwhile.
fn receive<T: DeserializeOwned>(
    control: &mut PairChannel,
    nic: &mut NicOrNone,
    deadline: Option<Duration>,
) -> Result<T, Error> {
    let begin = Instant::now();
    loop {
        let pause = nic.as_mut().map(|nic| nic.idle()).transpose()?.flatten();
        let left = deadline.map(|deadline| deadline.saturating_sub(begin.elapsed()));
        let timeout = pause.into_iter().chain(left).min();
        match control.receive(timeout) {
            Err(error) if error.is_timeout() && left.is_none_or(|left| !left.is_zero()) => {}
            message => return message,
        }
    }
}

/// Opens a NIC by name.
pub type OpenNic<'a> = &'a dyn Fn(&str) -> Result<Box<dyn NicSide>, String>;

/// The child's role: does what the parent asks, until that goes away.
///
/// # Errors
///
/// [`Error`]. What fails within a sample is told to the parent instead.
pub fn serve(side: &mut ChildSide, open: OpenNic<'_>) -> Result<(), Error> {
    let (mut nic, mut meter) = (None, None);
    loop {
        let request = match receive(&mut side.control, &mut nic, None) {
            Err(error) if error.is_gone() => return Ok(()),
            request => request?,
        };
        let reply = answer(side, &mut nic, &mut meter, open, request);
        let reply = reply.unwrap_or_else(|error| Reply::Failed(error.to_string()));
        if matches!(reply, Reply::Failed(_)) {
            side.shared.fail();
        }
        side.control.send(&reply)?;
    }
}

fn answer(
    side: &mut ChildSide,
    nic: &mut NicOrNone,
    meter: &mut Option<EventMeter>,
    open: OpenNic<'_>,
    request: Request,
) -> Result<Reply, Error> {
    let ChildSide { shared, control } = side;
    Ok(match request {
        Request::Open { nic: name } => {
            *nic = Some(open(&name).map_err(Error::refused("cannot open the NIC"))?);
            Reply::Ready
        }
        Request::Prepare(job) => Reply::Contacts(nic.as_mut().ok_or(Error::NoNic)?.open(&job)?),
        Request::Connect(job, contacts) => {
            nic.as_mut().ok_or(Error::NoNic)?.connect(&job, &contacts)?;
            Reply::Ready
        }
        Request::Accept(job, contacts) => {
            Reply::Contacts(nic.as_mut().ok_or(Error::NoNic)?.accept(&job, &contacts)?)
        }
        Request::Run(job, sample) => {
            meter.iter_mut().for_each(EventMeter::begin);
            job.respond(nic, shared, &sample, &mut || control.send(&Reply::Ready))?;
            Reply::Done(meter.as_mut().map(EventMeter::end).unwrap_or_default())
        }
        Request::Count => {
            *meter = Some(EventMeter::of_machine());
            Reply::Ready
        }
    })
}

/// The parent's role: runs planned cells as an [`Experiment`].
pub struct Suite {
    process_pair: ProcessPair,
    cores: Cores,
    nic: NicOrNone,
    /// Of the last sample, if it made calls.
    per_batch: Option<PerBatch>,
    plan: Vec<Planned>,
    /// Messages per sample, by cell.
    counts: Vec<u64>,
    copier: Copier,
    window: Duration,
    samples: u64,
    /// Cores for threads, those of `cores` first.
    pool: Vec<usize>,
    folder: Folder,
    /// What the processor counts meanwhile, if it is asked to.
    meter: Option<EventMeter>,
    /// By cell, over its samples.
    counted: Vec<Counted>,
    /// Of the other side, in the last sample.
    theirs: EventCounts,
}

/// What was counted during the samples of a cell.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    initiator: EventCounts,
    responder: EventCounts,
    operations: u64,
}

/// A folder of this run, which a server makes if one needs it; gone with the value.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // It was never made if no cell needed it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Suite {
    /// A suite whose samples take about `window` each. Cells with more than two threads use `pool`, too.
    #[must_use]
    pub fn new(
        process_pair: ProcessPair,
        cores: Cores,
        plan: Vec<Planned>,
        window: Duration,
        pool: &[usize],
    ) -> Self {
        let measuring = [cores.initiator, cores.responder];
        let others = pool.iter().copied().filter(|core| !measuring.contains(core));
        let folder = std::env::temp_dir().join(format!("copyrpc-bench-{}", std::process::id()));
        Self {
            process_pair,
            cores,
            nic: None,
            per_batch: None,
            counts: vec![FIRST_COUNT; plan.len()],
            meter: None,
            theirs: EventCounts::default(),
            counted: vec![Counted::default(); plan.len()],
            plan,
            copier: Copier::default(),
            window,
            samples: 0,
            pool: measuring.into_iter().chain(others).collect(),
            folder: Folder(folder),
        }
    }

    /// Lets both sides use a NIC: this one `nic`, the other one its own of this name.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn open_nic(&mut self, name: &str, nic: Box<dyn NicSide>) -> Result<(), Error> {
        self.nic = Some(nic);
        self.ask(&Request::Open { nic: name.to_owned() }, &Reply::Ready)
    }

    /// Also counts what the processor counts, on both sides. Returns what it does not, a sentence each.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn count_events(&mut self) -> Result<Vec<String>, Error> {
        self.ask(&Request::Count, &Reply::Ready)?;
        Ok(self.meter.insert(EventMeter::of_machine()).missing())
    }

    /// What was counted per operation of a cell, by side.
    #[must_use]
    pub fn events(&self, cell: usize) -> Vec<SideEvents> {
        let Counted { initiator, responder, operations } = self.counted[cell];
        let sides = [("initiator", initiator), ("responder", responder)];
        let sides = sides.into_iter().filter(|(_, counts)| operations > 0 && !counts.is_empty());
        sides
            .map(|(side, counts)| SideEvents {
                side: side.to_owned(),
                each: counts.per(operations as f64),
            })
            .collect()
    }

    fn reply(&mut self) -> Result<Reply, Error> {
        match receive(&mut self.process_pair.control, &mut self.nic, Some(REPLY_DEADLINE))? {
            Reply::Failed(reason) => Err(Error::Responder(reason)),
            reply => Ok(reply),
        }
    }

    fn expect(&mut self, expected: &Reply) -> Result<(), Error> {
        let reply = self.reply()?;
        if reply == *expected { Ok(()) } else { Err(Error::OutOfTurn(format!("{reply:?}"))) }
    }

    fn ask(&mut self, request: &Request, expected: &Reply) -> Result<(), Error> {
        self.process_pair.control.send(request)?;
        self.expect(expected)
    }

    /// Lets both sides of `job` tell each other how to connect, and connect.
    fn connect(&mut self, job: &Job) -> Result<(), Error> {
        if job.has_server() {
            let ours = self.nic.as_mut().ok_or(Error::NoNic)?.open(job)?;
            self.process_pair.control.send(&Request::Accept(job.clone(), ours))?;
            let theirs = self.contacts()?;
            return self.nic.as_mut().ok_or(Error::NoNic)?.connect(job, &theirs);
        }
        self.process_pair.control.send(&Request::Prepare(job.clone()))?;
        let theirs = self.contacts()?;
        let nic = self.nic.as_mut().ok_or(Error::NoNic)?;
        let ours = nic.open(job)?;
        self.process_pair.control.send(&Request::Connect(job.clone(), ours))?;
        nic.connect(job, &theirs)?;
        self.expect(&Reply::Ready)
    }

    /// What the other side says that this one must be told.
    fn contacts(&mut self) -> Result<Vec<String>, Error> {
        match self.reply()? {
            Reply::Contacts(contacts) => Ok(contacts),
            other => Err(Error::OutOfTurn(format!("{other:?}"))),
        }
    }

    /// All but the responder's, if there are others.
    fn cores_of_callers(&self) -> Vec<usize> {
        let others = self.pool.iter().copied().filter(|core| *core != self.cores.responder);
        let others = others.collect::<Vec<_>>();
        if others.is_empty() { self.pool.clone() } else { others }
    }

    /// Runs both sides of a job.
    fn together(&mut self, job: &Job, count: u64) -> Result<Measured, Error> {
        if job.needs_nic() {
            self.connect(job)?;
        }
        self.samples += 1;
        let sample = SamplePlan {
            count,
            number: self.samples,
            folder: self.folder.0.clone(),
            cores: self.cores_of_callers(),
        };
        self.process_pair.shared.reset();
        self.ask(&Request::Run(job.clone(), sample.clone()), &Reply::Ready)?;
        let result = job.initiate(&mut self.nic, &self.process_pair.shared, &sample);
        if result.is_err() {
            self.process_pair.shared.fail();
        }
        match (result, self.done()) {
            (result, Ok(())) => result,
            (Ok(_), Err(error)) => Err(error),
            (Err(initiator), Err(Error::Responder(responder))) => {
                Err(Error::Both { initiator: Box::new(initiator), responder })
            }
            (Err(initiator), Err(_)) => Err(initiator),
        }
    }

    /// Waits until the other side is done with a sample, and keeps what it counted.
    fn done(&mut self) -> Result<(), Error> {
        match self.reply()? {
            Reply::Done(counts) => {
                self.theirs = counts;
                Ok(())
            }
            other => Err(Error::OutOfTurn(format!("{other:?}"))),
        }
    }

    fn run(&mut self, measurement: &Measurement, count: u64) -> Result<Measured, Error> {
        let shared: &SharedWords = &self.process_pair.shared;
        Ok(match measurement {
            Measurement::Threads => {
                ping_pong::between_threads(self.cores, shared, self.window / 4)?.into()
            }
            Measurement::Copy(len_bytes) => self.copier.bandwidth(*len_bytes, self.window).into(),
            Measurement::Queue(queue) => {
                queue.run(ThreadSetup { pool: &self.pool, shared }, count)?.into()
            }
            Measurement::Together(job) => self.together(job, count)?,
        })
    }

    fn named(&self, cell: usize, cause: Error) -> Error {
        Error::Cell { cell: self.plan[cell].cell.name.clone(), cause: Box::new(cause) }
    }

    /// Two samples, each sized by the one before: the first is too short to trust.
    fn calibrate(&mut self, cell: usize) -> Result<(), Error> {
        let Planned { cell: of, measurement } = self.plan[cell].clone();
        let mut count = (FIRST_BYTES / measurement.len_bytes().max(1)).clamp(1, FIRST_COUNT);
        for _ in 0..2 {
            let value = self.run(&measurement, count)?.value;
            let Some(message_ns) = measurement.message_ns(of.metric, value) else { break };
            count = count_for(self.window, message_ns);
        }
        self.counts[cell] = count;
        Ok(())
    }
}

impl Experiment for Suite {
    type Error = Error;

    fn cells(&self) -> usize {
        self.plan.len()
    }

    fn prepare(&mut self, cell: usize) -> Result<(), Error> {
        self.calibrate(cell).map_err(|cause| self.named(cell, cause))
    }

    fn probe(&mut self) -> Result<f64, Error> {
        let limit = SharedLimit::RoundTrip { window: PROBE_WINDOW };
        Ok(self.together(&Job::Limit(limit), 0)?.value)
    }

    fn sample(&mut self, cell: usize) -> Result<f64, Error> {
        let measurement = self.plan[cell].measurement.clone();
        self.meter.iter_mut().for_each(EventMeter::begin);
        self.theirs = EventCounts::default();
        let measured = self.run(&measurement, self.counts[cell]);
        let ours = self.meter.as_mut().map(EventMeter::end);
        if let (Some(ours), Some(operations)) = (ours, measurement.operations(self.counts[cell])) {
            let counted = &mut self.counted[cell];
            counted.initiator.add(&ours);
            counted.responder.add(&self.theirs);
            counted.operations += operations;
        }
        let measured = measured.map_err(|cause| self.named(cell, cause))?;
        self.per_batch = measured.per_batch;
        Ok(measured.value)
    }

    fn per_batch(&self) -> Option<PerBatch> {
        self.per_batch
    }
}

/// Messages of `message_ns` each that fill `window`: whole batches, or less than one of messages that take long.
fn count_for(window: Duration, message_ns: f64) -> u64 {
    let count = window.as_secs_f64() * 1e9 / message_ns;
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and is clamped")]
    #[expect(clippy::cast_sign_loss, reason = "durations are not negative")]
    let count = count as u64;
    let count = count.clamp(COUNT_MIN, COUNT_MAX);
    if count < BATCH { count } else { count.next_multiple_of(BATCH) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_whole_batches_within_bounds() {
        let window = Duration::from_millis(1);
        assert_eq!(count_for(window, 1000.0), 1000);
        assert_eq!(count_for(window, 999.0), 1050);
        assert_eq!(count_for(window, 1e5), 10);
        assert_eq!(count_for(window, 1e9), COUNT_MIN);
        assert_eq!(count_for(window, 0.0), COUNT_MAX);
        assert_eq!(count_for(window, f64::NAN), COUNT_MIN);
    }
}
