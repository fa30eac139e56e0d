//! Calls between two processes: this program runs itself a second time as the server.
//!
//! The server echoes, and the client compares every byte of each answer. Sockets echo bytes and see
//! no messages, which is the least that they can do.

#[cfg(feature = "iceoryx2")]
mod iceoryx;
mod nodes;
mod ours;
mod sockets;
mod tools;
mod turns;
mod ucx;

use std::time::{Duration, Instant};

use copyrpc_bench::{
    Error,
    calls::NumberedMessage,
    job::SamplePlan,
    limit::{SharedLimit, gib_per_second},
    process_pair::{ChildSide, ProcessPair, REPLY_DEADLINE},
};
use measure::{
    ping_pong::PROBE_WINDOW,
    regime::Probes,
    results::Metric,
    schedule::shuffled,
    shared_words::{SharedWord, SharedWords},
    stats::Laps,
};
use serde::{Deserialize, Serialize};

use self::turns::{Spent, present, turns_of};
use crate::{Fallible, leftovers::RunFolder, plan::ComparisonPlan, table::Measurements};

/// Command of the other process.
pub const CHILD: &str = "serve";
/// What every ratio is to.
const REFERENCE: &str = "copyrpc ipc";
/// Duration of a sample, and a third of it to warm up.
const SAMPLE: Duration = Duration::from_millis(20);

/// Sizes that are called with, unless others are asked for.
const SIZES: [usize; 5] = [56, 1 << 10, 4 << 10, 64 << 10, 1 << 20];
/// The longest, which `ipc` carries.
const IPC_BYTES_MAX: usize = (16 << 20) - 64;
/// The longest of the sizes up to this is called with 32 in flight, too.
const SHORT_BYTES_MAX: usize = 56;
/// Requests in flight that go one way.
const WINDOW_ONE_WAY: usize = 4;
/// Of requests that go one way, all bytes of so many are compared; of the others the number at each end.
pub const COMPARED_EVERY: u64 = 16;
/// Bytes of the answer to a request that goes one way: its number.
pub const NUMBER_BYTES: usize = size_of::<u64>();

/// A call and its answer: their kinds and lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallWork {
    /// Of the request, and of the answer unless it goes one way.
    pub len_bytes: usize,
    /// Calls whose answers are waited for together.
    pub in_flight: usize,
    /// The answer is the number alone, and bandwidth is what counts.
    pub is_one_way: bool,
}

impl CallWork {
    fn all(sizes: &[usize]) -> Vec<Self> {
        let round_trip = |len_bytes| Self { len_bytes, in_flight: 1, is_one_way: false };
        let one_way = |len_bytes| Self { len_bytes, in_flight: WINDOW_ONE_WAY, is_one_way: true };
        let mut all = sizes.iter().copied().map(round_trip).collect::<Vec<_>>();
        all.extend(sizes.iter().copied().filter(|bytes| *bytes > NUMBER_BYTES).map(one_way));
        let short = sizes.iter().copied().filter(|bytes| *bytes <= SHORT_BYTES_MAX).max();
        all.extend(short.map(|bytes| Self { in_flight: 32, ..round_trip(bytes) }));
        all
    }

    pub fn answer_bytes(self) -> usize {
        if self.is_one_way { NUMBER_BYTES } else { self.len_bytes }
    }

    /// Calls per reading of the clock: about so many, fewer if they are long. No fewer than are in flight, whose answers
    /// may come together.
    pub fn batch(self, calls: usize) -> usize {
        ((4 << 20) / self.len_bytes).clamp(self.in_flight, calls)
    }

    fn name(self) -> String {
        let Self { len_bytes, in_flight, is_one_way } = self;
        match is_one_way {
            true => format!("calls/{len_bytes}B/one-way"),
            false => format!("calls/{len_bytes}B/depth-{in_flight}"),
        }
    }

    fn metric(self) -> Metric {
        if self.is_one_way { Metric::Bandwidth } else { Metric::RoundTrip }
    }
}

/// What both sides of a sample have.
pub struct Ground<'a> {
    pub work: CallWork,
    pub sample: SamplePlan,
    pub shared: &'a SharedWords,
}

/// Tells the client that the server listens, with a number that it may need, such as a port.
pub type Listening<'a> = &'a mut dyn FnMut(u16) -> Fallible<()>;

/// One way to call another process.
pub struct Peer {
    name: &'static str,
    serve: fn(&Ground<'_>, Listening<'_>) -> Fallible<()>,
    /// ns per call, or GiB/s of work that goes one way.
    call: fn(&Ground<'_>, u16) -> Fallible<f64>,
    /// Why it has no number of some work.
    lacks: fn(CallWork) -> Option<&'static str>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Probe(SharedLimit),
    Serve { peer: usize, work: CallWork, sample: SamplePlan },
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Reply {
    Listening(u16),
    Done,
    Failed(String),
}

fn peers() -> Vec<Peer> {
    let mut peers = vec![ours::IPC];
    peers.extend(nodes::PEERS);
    #[cfg(feature = "iceoryx2")]
    peers.push(iceoryx::REQUEST_RESPONSE);
    peers.extend(sockets::PEERS);
    peers.extend(ucx::PEERS);
    peers
}

impl Ground<'_> {
    /// Whether the client has all its answers, or failed.
    pub fn is_over(&self) -> bool {
        let load = |word| self.shared.word(word).load(copyrpc_memory::sync::Ordering::Acquire);
        load(SharedWord::InitiatorDone) == self.sample.number || load(SharedWord::Failed) != 0
    }
}

/// Runs `batch`, which makes `calls` calls, for the time of a sample; the number of the work, of the median batch.
pub fn timed(
    work: CallWork,
    calls: usize,
    mut batch: impl FnMut() -> Fallible<()>,
) -> Fallible<f64> {
    // The first calls of each that is in flight take memory.
    let (begin, mut warmed) = (Instant::now(), 0);
    while begin.elapsed() < SAMPLE / 3 || warmed < 2 * work.in_flight {
        batch()?;
        warmed += calls;
    }
    let (begin, mut laps) = (Instant::now(), Laps::start());
    loop {
        batch()?;
        if laps.lap(calls as u64) - begin >= SAMPLE {
            break;
        }
    }
    let call_ns = laps.median_ns();
    let bandwidth = gib_per_second(work.len_bytes as u64, Duration::from_secs(1)) * 1e9 / call_ns;
    Ok(if work.is_one_way { bandwidth } else { call_ns })
}

/// Whether a request that goes one way is what it should be: `compared` is how many came before.
pub fn is_right(message: &NumberedMessage, payload: &[u8], compared: u64) -> bool {
    let (first, last) = (payload.first_chunk::<NUMBER_BYTES>(), payload.last_chunk());
    let number = first.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    match compared % COMPARED_EVERY {
        0 => message.is(number, payload),
        _ => first == last,
    }
}

/// The client's process.
struct Session {
    process_pair: ProcessPair,
    number: u64,
    /// Behind the pair: the other process is gone when the folder goes.
    folder: RunFolder,
}

impl Session {
    fn together<T>(
        &mut self,
        order: &Order,
        here: impl FnOnce(&SharedWords, u16) -> Fallible<T>,
    ) -> Fallible<T> {
        self.process_pair.shared.reset();
        self.process_pair.control.send(order)?;
        let number = match self.process_pair.control.receive(Some(REPLY_DEADLINE))? {
            Reply::Listening(number) => number,
            other => return Err(format!("server: {other:?}").into()),
        };
        let result = here(&self.process_pair.shared, number);
        match &result {
            Ok(_) => {
                let done = self.process_pair.shared.word(SharedWord::InitiatorDone);
                done.store(self.number, copyrpc_memory::sync::Ordering::Release);
            }
            Err(_) => self.process_pair.shared.fail(),
        }
        match self.process_pair.control.receive(Some(REPLY_DEADLINE))? {
            Reply::Done => result,
            other => Err(result.err().unwrap_or_else(|| format!("server: {other:?}").into())),
        }
    }

    fn probe(&mut self) -> Fallible<f64> {
        let limit = SharedLimit::RoundTrip { window: PROBE_WINDOW };
        self.together(&Order::Probe(limit), |shared, _| Ok(limit.initiate(shared, 0)?))
    }

    fn sample(&mut self, peer: usize, work: CallWork, count: u64) -> Fallible<f64> {
        self.number += 1;
        let sample = SamplePlan {
            count,
            number: self.number,
            folder: self.folder.path().to_owned(),
            cores: Vec::new(),
        };
        let order = Order::Serve { peer, work, sample: sample.clone() };
        self.together(&order, |shared, port| {
            (peers()[peer].call)(&Ground { work, sample, shared }, port)
        })
    }
}

/// Compares all peers whose names the plan names with [`REFERENCE`].
pub fn compare(plan: &ComparisonPlan, comparison: &mut Measurements) -> Fallible<()> {
    let (begin, first) = (Instant::now(), comparison.len());
    let sizes = plan.sizes_or(&SIZES);
    if let Some(size) = sizes.iter().find(|size| **size > IPC_BYTES_MAX) {
        return Err(format!("--sizes {size}: {IPC_BYTES_MAX} B are the longest of `ipc`").into());
    }
    let folder = RunFolder::new()?;
    let process_pair = ProcessPair::start(plan.cores, &[CHILD])?;
    let mut session = Session { process_pair, number: 0, folder };
    let contenders = present(plan, comparison);
    let works = CallWork::all(&sizes);
    let mut turns = Vec::new();
    for work in &works {
        let of_work = turns_of(&mut session, (plan, *work), &contenders, comparison)?;
        let names = of_work.iter().map(|turn| turn.contender.name());
        comparison.declare((&work.name(), REFERENCE), work.metric(), names);
        turns.push(of_work);
    }
    let prepared = begin.elapsed();
    let mut spent = Spent::default();
    let names = works.iter().map(|work| work.name()).collect::<Vec<_>>();
    comparison.take_rounds((plan, begin), &names, first, |index, round, comparison| {
        for turn in shuffled(turns[index].len(), round).into_iter().map(|at| &turns[index][at]) {
            plan.go_on()?;
            let before_ns = spent.probe(&mut session)?;
            let value = match spent.sample(turn, (&mut session, plan.cores)) {
                Err(error) if turn.is_of_a_tool() => {
                    comparison.note(format!("{}: no number in a round: {error}", names[index]));
                    continue;
                }
                value => value?,
            };
            let probes = Probes { before_ns, after_ns: spent.probe(&mut session)? };
            comparison.add(&names[index], turn.contender.name(), probes, value);
        }
        Ok(())
    })?;
    comparison.note(spent.sentence(begin.elapsed(), prepared));
    Ok(())
}

/// The other process.
pub fn serve() -> Fallible<()> {
    let mut side = ChildSide::of_child()?;
    loop {
        let order = match side.control.receive(None) {
            Err(error) if Error::is_gone(&error) => return Ok(()),
            order => order?,
        };
        let ChildSide { shared, control } = &mut side;
        let mut ready = |port| Ok(control.send(&Reply::Listening(port))?);
        let result = match order {
            Order::Probe(limit) => ready(0).and_then(|()| Ok(limit.respond(shared, 0)?)),
            Order::Serve { peer, work, sample } => {
                (peers()[peer].serve)(&Ground { work, sample, shared }, &mut ready)
            }
        };
        let reply = match result {
            Ok(()) => Reply::Done,
            Err(error) => Reply::Failed(error.to_string()),
        };
        side.control.send(&reply)?;
    }
}
