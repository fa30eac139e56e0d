//! Short calls with long answers by way of daemons, and short calls beside them, every answer checked.
//!
//! ```text
//! initiator's core                           responder's core
//!   client ── shared memory ──▶ daemon 0 ═══▶ daemon 1 ── a function of its, or a process: LongService
//!   client ── shared memory ────────────────▶ daemon 1                        is_local
//! ```
//!
//! A request carries its number twice, and the answer in its first and in its last word. All bytes of one answer
//! in sixteen are compared.

use std::{
    cell::RefCell,
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt as _,
    path::Path,
    rc::Rc,
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use bootstrap::{JobId, RankInfo, Secret};
use client::{Client, ClientConfig, Filler, InPlace, Pipeline, Provider, Runtime, To};
use daemon::{
    Inbound, IpcPort, Services, Serving, Status,
    config::{DaemonConfig, KNOBS, Layers, Start},
};
use memory::sync::{AtomicBool, Ordering};
use nics::Selection;
use serde::{Deserialize, Serialize};
use tracing::subscriber::{NoSubscriber, with_default};

use crate::{
    calls::{COMPARED_EVERY, NumberedMessage},
    error::Error,
    sample::{Ready, SamplePlan},
    shared_words::{PATIENCE, SharedWord, SharedWords},
    stats::Laps,
};

/// Answers with what it is sent.
const ECHO: u16 = 1;
/// Its answers are long.
const LONG: u16 = 2;
const NUMBER_BYTES: usize = size_of::<u64>();
/// Length of requests whose answers are long.
const REQUEST_BYTES: usize = 2 * NUMBER_BYTES;
/// Length of calls whose slowest are looked for, and of their answers.
const TAIL_BYTES: usize = 56;
/// The slowest of so many calls is the number.
const OF: usize = 100;
/// Long answers in flight, but of round trips.
const WINDOW: usize = 4;
/// Longest answer: what an ordinary call carries at most.
pub(crate) const ANSWER_BYTES_MAX: usize = 15 << 20;
/// Between two looks at what the other process does.
const NAP: Duration = Duration::from_millis(1);

/// Who gives the long answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LongService {
    /// A function of the daemon.
    Function,
    /// A client of the daemon, which puts them in place.
    Process,
}

/// How calls follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// The next after the answer: ns per call, the median.
    RoundTrip,
    /// Four in flight: GiB/s of answers.
    Window,
    /// Short calls one after the other: what 99 of 100 stay below, in ns. Meanwhile four long answers are in flight,
    /// if they have a length.
    Tail,
}

/// Calls by way of daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelegatedCalls {
    /// Of a long answer: 0, or at least 16.
    pub answer_bytes: usize,
    /// What answers at length.
    pub answers: LongService,
    /// The client calls its own node.
    pub is_local: bool,
    /// How calls follow each other.
    pub shape: Shape,
}

/// Ends a daemon with the sample, also if that fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl DelegatedCalls {
    /// Bytes that a call moves, as far as they count.
    pub(crate) fn len_bytes(self) -> usize {
        if self.shape == Shape::Tail { TAIL_BYTES } else { self.answer_bytes }
    }

    /// Rank of the node that answers.
    fn rank(self) -> u32 {
        u32::from(!self.is_local)
    }

    /// The daemon of a rank.
    fn serving(self, sample: &SamplePlan, rank: u32) -> Result<Serving, Error> {
        let folder = sample.folder.join(format!("daemons-{}", sample.number));
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&sample.folder);
        made.map_err(Error::refused("no folder for daemons"))?;
        let job = JobId::new("bench").map_err(Error::refused("no job"))?;
        let runtime = Runtime::new(folder.clone(), job, &rank.to_string());
        let runtime = runtime.map_err(Error::refused("no folder for daemons"))?;
        runtime.ensure_folder().map_err(Error::refused("no folder for daemons"))?;
        let meet = folder.join("meet");
        fs::create_dir_all(&meet).map_err(Error::refused("no folder to meet in"))?;
        let settings = Layers::new(KNOBS.to_vec()).finish();
        let mut config = DaemonConfig::from_settings(&settings)
            .map_err(|causes| Error::OutOfTurn(format!("{causes:?}")))?;
        config.start = Start::File(meet);
        config.message_bytes_max = u32::try_from(ANSWER_BYTES_MAX).unwrap_or(u32::MAX);
        let rank_info = RankInfo::new(rank, self.rank() + 1);
        let rank_info = rank_info.map_err(Error::refused("no rank"))?;
        let secret = Secret::from_bytes(b"the secret of a benchmark");
        Ok(Serving { config, runtime, rank_info, secret })
    }

    /// What a daemon answers by itself.
    fn services(self) -> Result<Services<IpcPort>, daemon::OfferError> {
        let mut services = Services::default();
        services.offer(
            ECHO,
            Box::new(|inbound: &Inbound<'_>, answer: &mut Vec<u8>| {
                answer.extend_from_slice(inbound.body);
                Status::Ok
            }),
        )?;
        if self.answers == LongService::Function && self.answer_bytes > 0 {
            let mut message = NumberedMessage::new(self.answer_bytes);
            let handler = move |inbound: &Inbound<'_>, answer: &mut Vec<u8>| {
                let Some(number) = number_of(inbound.body) else { return Status::InvalidArgument };
                answer.extend_from_slice(message.stamp(number));
                Status::Ok
            };
            services.offer(LONG, Box::new(handler))?;
        }
        Ok(services)
    }

    /// Runs a daemon until `stop` is set.
    fn serve(self, serving: &Serving, stop: &AtomicBool) -> Result<(), Error> {
        let services = |_| self.services().unwrap_or_default();
        let serve = || daemon::serve_selected(serving, &Selection::from_env(), &services, stop);
        // That the other daemon leaves at the end of a sample is nobody's warning.
        let served = with_default(NoSubscriber::new(), serve);
        served
            .map_err(Error::refused("no NIC for a daemon"))?
            .map_err(Error::refused("a daemon does not serve"))
    }

    /// A process that answers at length, until its daemon ends.
    fn provide(self, socket: &Path) -> Result<(), Error> {
        let provider = Provider::register(socket, LONG, ClientConfig::default());
        let provider = provider.map_err(Error::refused("no service"))?;
        let message = Rc::new(RefCell::new(NumberedMessage::new(self.answer_bytes)));
        // It ends with the daemon, which is no failure.
        let _ = provider.serve_in_place(|inbound| {
            let Some(number) = number_of(inbound.body) else {
                return Some(InPlace::refused(Status::InvalidArgument));
            };
            let message = Rc::clone(&message);
            Some(InPlace::of(self.answer_bytes, move |answer: &mut Filler<'_>| {
                // The room is as long as the message.
                let _ = answer.put(message.borrow_mut().stamp(number));
            }))
        });
        Ok(())
    }

    /// Answers until the initiator is done or one side failed; calls `ready` when clients can call.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn respond(
        self,
        shared: &SharedWords,
        sample: &SamplePlan,
        ready: Ready<'_>,
    ) -> Result<(), Error> {
        let serving = self.serving(sample, self.rank())?;
        let (socket, stop) = (serving.runtime.socket(), AtomicBool::new(false));
        thread::scope(|scope| {
            let daemon = scope.spawn(|| self.serve(&serving, &stop));
            let stopped = StopOnDrop(&stop);
            // The daemons look for each other, so that this one serves only when the other one is there.
            let provide = || -> Result<(), Error> {
                connect(&socket, &stop)?;
                self.provide(&socket)
            };
            let has_provider = self.answers == LongService::Process && self.answer_bytes > 0;
            let provider = has_provider.then(|| scope.spawn(provide));
            if self.is_local {
                connect(&socket, &stop)?;
            }
            ready()?;
            let (done, failed) =
                (shared.word(SharedWord::InitiatorDone), shared.word(SharedWord::Failed));
            // SYNC(calls-done): pairs with the Release in `initiate`.
            while done.load(Ordering::Acquire) != sample.number
                && failed.load(Ordering::Relaxed) == 0
                && !daemon.is_finished()
            {
                thread::sleep(NAP);
            }
            drop(stopped);
            ended(daemon)?;
            provider.map_or(Ok(()), ended)?;
            clean(&serving);
            Ok(())
        })
    }

    /// Calls, once the other side is ready.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn initiate(self, shared: &SharedWords, sample: &SamplePlan) -> Result<f64, Error> {
        let (serving, stop) = (self.serving(sample, 0)?, AtomicBool::new(false));
        thread::scope(|scope| {
            let daemon = (!self.is_local).then(|| scope.spawn(|| self.serve(&serving, &stop)));
            let stopped = StopOnDrop(&stop);
            let value = self.call(&serving.runtime.socket(), &stop, sample);
            if value.is_ok() {
                // SYNC(calls-done): pairs with the Acquire in `respond`.
                shared.word(SharedWord::InitiatorDone).store(sample.number, Ordering::Release);
            }
            drop(stopped);
            daemon.map_or(Ok(()), ended)?;
            clean(&serving);
            value
        })
    }

    fn call(self, socket: &Path, stop: &AtomicBool, sample: &SamplePlan) -> Result<f64, Error> {
        let mut client = connect(socket, stop)?;
        let services: &[u16] = if self.answer_bytes > 0 { &[ECHO, LONG] } else { &[ECHO] };
        let begin = Instant::now();
        for &service in services {
            // Peers and providers come to be while the first calls are refused.
            while let Err(refused) =
                client.call(To::new(self.rank(), service, 0), &[1; REQUEST_BYTES])
            {
                if begin.elapsed() > PATIENCE {
                    return Err(failed(0, &refused));
                }
                thread::sleep(NAP);
            }
        }
        let depth = if self.shape == Shape::RoundTrip { 1 } else { WINDOW };
        let request = NumberedMessage::new(REQUEST_BYTES);
        let long =
            |depth| Stream::connect(socket, self.to(LONG), request, self.answer_bytes, depth);
        if self.shape == Shape::Tail {
            let request = NumberedMessage::new(TAIL_BYTES);
            let short = Stream::connect(socket, self.to(ECHO), request, TAIL_BYTES, 1)?;
            let long = if self.answer_bytes > 0 { Some(long(depth)?) } else { None };
            return slowest(short, long, sample.count);
        }
        let mut long = long(depth)?;
        long.run(2 * depth as u64)?;
        let (mut laps, mut answered) = (Laps::start(), 0);
        let batch = ((16 << 20) / self.answer_bytes as u64).clamp(1, 16);
        while answered < sample.count {
            let count = long.run(batch)?;
            laps.lap(count);
            answered += count;
        }
        long.drain()?;
        let call_ns = laps.median_ns();
        let each = if self.shape == Shape::RoundTrip {
            call_ns
        } else {
            self.answer_bytes as f64 / call_ns * 1e9 / f64::from(1 << 30)
        };
        Ok(each)
    }

    fn to(self, service: u16) -> To {
        To { rank: self.rank(), service, method: 0 }
    }
}

/// Short calls one by one, beside long ones; what all but a hundredth of so many stay below. Those during which this
/// side compared all bytes of a long answer do not count: that takes longer than what is looked for.
fn slowest(mut short: Stream, mut long: Option<Stream>, count: u64) -> Result<f64, Error> {
    let untimed = count / 8 + 1;
    let mut times_ns = Vec::new();
    for number in 0..untimed + 2 * count {
        let compared = long.as_ref().map_or(0, Stream::whole_ones);
        let begun = Instant::now();
        while short.step()? == 0 {
            let found = long.as_mut().map_or(Ok(0), Stream::step)?;
            if found == 0 {
                // The daemon of the own node may have the same core.
                thread::yield_now();
            }
        }
        if number >= untimed && long.as_ref().map_or(0, Stream::whole_ones) == compared {
            times_ns.push(begun.elapsed().as_nanos() as f64);
        }
        if times_ns.len() as u64 >= count {
            break;
        }
    }
    short.drain()?;
    long.map_or(Ok(()), |mut long| long.drain())?;
    times_ns.sort_unstable_by(f64::total_cmp);
    let index = times_ns.len().saturating_sub(1 + times_ns.len() / OF);
    Ok(times_ns.get(index).copied().unwrap_or(0.0))
}

/// What daemons leave; the other process may be at it, too.
fn clean(serving: &Serving) {
    let _ = fs::remove_dir_all(serving.runtime.folder());
}

fn number_of(body: &[u8]) -> Option<u64> {
    body.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn failed(index: u64, cause: &client::CallError) -> Error {
    Error::Call { index, what: cause.to_string() }
}

fn ended(thread: ScopedJoinHandle<'_, Result<(), Error>>) -> Result<(), Error> {
    let panicked = |_| Err(Error::OutOfTurn("a thread panicked".to_owned()));
    thread.join().unwrap_or_else(panicked)
}

/// A client of a daemon that is about to listen.
fn connect(socket: &Path, stop: &AtomicBool) -> Result<Client, Error> {
    let begin = Instant::now();
    loop {
        match Client::connect(socket, ClientConfig::default()) {
            Ok(client) => return Ok(client),
            Err(_) if begin.elapsed() < PATIENCE && !stop.load(Ordering::Relaxed) => {
                thread::sleep(NAP);
            }
            Err(cause) => return Err(Error::refused("no daemon")(cause)),
        }
    }
}

/// Calls of one client, so many in flight.
struct Stream {
    pipeline: Pipeline<u64>,
    to: To,
    request: NumberedMessage,
    answer: NumberedMessage,
    depth: usize,
    number: u64,
    /// Answers that were looked at.
    compared: u64,
}

impl Stream {
    fn connect(
        socket: &Path,
        to: To,
        request: NumberedMessage,
        answer_bytes: usize,
        depth: usize,
    ) -> Result<Self, Error> {
        let config = ClientConfig { timeout: PATIENCE, ..ClientConfig::default() };
        let pipeline = Pipeline::connect(socket, config).map_err(Error::refused("no daemon"))?;
        let answer = NumberedMessage::new(answer_bytes);
        Ok(Self { pipeline, to, request, answer, depth, number: 0, compared: 0 })
    }

    /// Answers all of whose bytes were compared.
    fn whole_ones(&self) -> u64 {
        self.compared / COMPARED_EVERY
    }

    /// Keeps as many calls in flight as there are to be, and looks for answers; returns how many there were.
    fn step(&mut self) -> Result<u64, Error> {
        while self.pipeline.in_flight() < self.depth {
            self.number += 1;
            let (number, request) = (self.number, self.request.stamp(self.number));
            let submitted = self.pipeline.submit(self.to, request, number);
            submitted.map_err(|refused| failed(number, &refused.error))?;
        }
        self.pipeline.flush();
        self.look()
    }

    fn look(&mut self) -> Result<u64, Error> {
        let Self { pipeline, answer, compared, .. } = self;
        let (mut answered, mut wrong) = (0, None);
        pipeline.poll_lent(|number, told| match told {
            Ok(lent) if answer.number_of(lent, compared) == Some(number) => answered += 1,
            Ok(_) => {
                let what = "its answer is wrong".to_owned();
                wrong = Some(Error::Call { index: number, what });
            }
            Err(cause) => wrong = Some(failed(number, &cause)),
        });
        wrong.map_or(Ok(answered), Err)
    }

    /// Until so many more calls are answered; returns how many were.
    fn run(&mut self, least: u64) -> Result<u64, Error> {
        let mut answered = 0;
        while answered < least {
            match self.step()? {
                0 => thread::yield_now(),
                count => answered += count,
            }
        }
        Ok(answered)
    }

    /// Waits for what is in flight.
    fn drain(&mut self) -> Result<(), Error> {
        while self.pipeline.in_flight() > 0 {
            if self.look()? == 0 {
                self.pipeline.rest();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_rig::value_of;

    fn runs(calls: DelegatedCalls, sample: &SamplePlan) {
        let value = value_of(
            |shared, ready| calls.respond(shared, sample, ready),
            |shared| calls.initiate(shared, sample),
        );
        assert!(value.is_finite() && value > 0.0, "{calls:?}: {value}");
    }

    #[test]
    fn every_shape_checks_its_answers() {
        let folder = std::env::temp_dir().join(format!("copyrpc-d-{}", std::process::id()));
        let mut number = 0;
        for (answers, is_local) in [(LongService::Function, true), (LongService::Process, false)] {
            for shape in [Shape::RoundTrip, Shape::Window, Shape::Tail] {
                number += 1;
                let calls = DelegatedCalls { answer_bytes: 1 << 20, answers, is_local, shape };
                runs(
                    calls,
                    &SamplePlan { count: 20, number, folder: folder.clone(), cores: Vec::new() },
                );
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
