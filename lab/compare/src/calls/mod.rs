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
mod ucx;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use copyrpc_bench::{
    Error,
    calls::NumberedMessage,
    job::SamplePlan,
    limit::{SharedLimit, gib_per_second},
    process_pair::{ChildSide, ProcessPair, REPLY_DEADLINE},
};
use measure::{
    cores::Cores,
    ping_pong::PROBE_WINDOW,
    regime::Probes,
    results::Metric,
    schedule::shuffled,
    shared_words::{SharedWord, SharedWords},
    stats::Laps,
};
use serde::{Deserialize, Serialize};

use crate::{Fallible, table::Measurements};

/// Command of the other process.
pub const CHILD: &str = "serve";
/// What every ratio is to.
const REFERENCE: &str = "copyrpc ipc";
/// Duration of a sample, and a third of it to warm up.
const SAMPLE: Duration = Duration::from_millis(30);

/// Sizes that are called with.
const SIZES: [usize; 9] =
    [8, 56, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20, IPC_BYTES_MAX];
/// The longest, which `ipc` carries.
const IPC_BYTES_MAX: usize = (16 << 20) - 64;
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
    fn all() -> Vec<Self> {
        let round_trip = |len_bytes| Self { len_bytes, in_flight: 1, is_one_way: false };
        let one_way = |len_bytes| Self { len_bytes, in_flight: WINDOW_ONE_WAY, is_one_way: true };
        let mut all = SIZES.map(round_trip).to_vec();
        all.extend(SIZES.into_iter().skip(1).map(one_way));
        all.push(Self { in_flight: 32, ..round_trip(56) });
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
    directory: PathBuf,
}

impl Drop for Session {
    fn drop(&mut self) {
        #[cfg(feature = "iceoryx2")]
        iceoryx::clean(&self.directory);
        // Absent if no peer needed it.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
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

    fn sample(&mut self, peer: usize, work: CallWork) -> Fallible<f64> {
        self.number += 1;
        // 30 ms of ours, more or less.
        let count =
            ((256 << 20) / work.len_bytes as u64).clamp(8, 200_000 * work.in_flight.min(4) as u64);
        let sample = SamplePlan {
            count,
            number: self.number,
            folder: self.directory.clone(),
            cores: Vec::new(),
        };
        let order = Order::Serve { peer, work, sample: sample.clone() };
        self.together(&order, |shared, port| {
            (peers()[peer].call)(&Ground { work, sample, shared }, port)
        })
    }
}

/// Compares all peers whose names contain `filter` with [`REFERENCE`].
pub fn compare(
    cores: Cores,
    rounds: usize,
    filter: &str,
    comparison: &mut Measurements,
) -> Fallible<()> {
    let directory = std::env::temp_dir().join(format!("copyrpc-compare-{}", std::process::id()));
    let mut session =
        Session { process_pair: ProcessPair::start(cores, &[CHILD])?, number: 0, directory };
    let works = CallWork::all();
    comparison.expect(rounds * works.len());
    for work in works {
        let mut contenders = Contender::all();
        contenders.retain(|contender| {
            let name = contender.name();
            name.contains(filter) || name == REFERENCE
        });
        contenders.retain(|contender| {
            let lack = contender.lacks(work);
            if let Some(lack) = lack {
                comparison.note(format!("{}/{}: no number: {lack}", work.name(), contender.name()));
            }
            lack.is_none()
        });
        let names = contenders.iter().map(Contender::name);
        comparison.declare((&work.name(), REFERENCE), work.metric(), names);
        for _ in 0..rounds {
            let round = comparison.begin(&work.name());
            let order = shuffled(contenders.len(), round);
            take_turns(&mut session, cores, work, &mut contenders, &order, comparison)?;
        }
    }
    Ok(())
}

/// Whoever takes a turn in each round.
enum Contender {
    Peer(usize, Peer),
    Tool(tools::Tool),
}

impl Contender {
    fn all() -> Vec<Self> {
        let peers = peers().into_iter().enumerate().map(|(index, peer)| Self::Peer(index, peer));
        peers.chain(tools::all().into_iter().map(Self::Tool)).collect()
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Peer(_, peer) => peer.name,
            Self::Tool(tool) => tool.name,
        }
    }

    fn lacks(&self, work: CallWork) -> Option<&'static str> {
        match self {
            Self::Peer(_, peer) => (peer.lacks)(work),
            Self::Tool(tool) => (tool.lacks)(work),
        }
    }

    /// The number of the work; `Err`: why it has none, `Ok(Err(_))`: it is not there.
    fn sample(
        &self,
        session: &mut Session,
        cores: Cores,
        work: CallWork,
    ) -> Fallible<Result<f64, String>> {
        match self {
            Self::Peer(index, _) => session.sample(*index, work).map(Ok),
            Self::Tool(tool) => Ok(tool.run(cores, work).map_err(|error| error.to_string())),
        }
    }
}

/// One sample of each, in this order; who is not there takes no further turn.
fn take_turns(
    session: &mut Session,
    cores: Cores,
    work: CallWork,
    contenders: &mut Vec<Contender>,
    order: &[usize],
    comparison: &mut Measurements,
) -> Fallible<()> {
    let name_of_work = work.name();
    let mut skipped = Vec::new();
    for &index in order {
        let contender = &contenders[index];
        let name = contender.name();
        let before_ns = session.probe()?;
        let value = contender.sample(session, cores, work).map_err(|e| format!("{name}: {e}"))?;
        let probes = Probes { before_ns, after_ns: session.probe()? };
        match value {
            Ok(ns) => comparison.add(&name_of_work, name, probes, ns),
            Err(reason) => {
                comparison.note(format!("{name}: skipped: {reason}"));
                skipped.push(name);
            }
        }
    }
    contenders.retain(|contender| !skipped.contains(&contender.name()));
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
