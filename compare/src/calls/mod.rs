//! Calls between two processes: this program runs itself a second time as the server.
//!
//! The server echoes, and the client compares every byte of each answer. Sockets echo bytes and see
//! no messages, which is the least that they can do.

#[cfg(feature = "iceoryx2")]
mod iceoryx;
mod ours;
mod sockets;
mod tools;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use copyrpc_bench::{
    board::{Board, Word},
    cores::Cores,
    duo::{Duo, DuoError, REPLY_DEADLINE, Side},
    limit::SharedLimit,
    pingpong::PROBE_WINDOW,
    regime::Regime,
    stats,
};
use serde::{Deserialize, Serialize};

use crate::{
    Outcome,
    table::{self, Samples},
};

/// Command of the other process.
pub const CHILD: &str = "serve";
/// What every ratio is to.
const REFERENCE: &str = "copyrpc ipc";
/// Duration of a sample, and a third of it to warm up.
const SAMPLE: Duration = Duration::from_millis(30);

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Of request and answer.
    pub len_bytes: usize,
    /// Calls whose answers are waited for together.
    pub in_flight: usize,
}

/// What both sides of a sample have.
pub struct Ground<'a> {
    pub work: Work,
    /// Different for every sample.
    pub number: u64,
    /// A directory of this run.
    pub directory: &'a Path,
    pub board: &'a Board,
}

/// Tells the client that the server listens, with a number that it may need, such as a port.
pub type Ready<'a> = &'a mut dyn FnMut(u16) -> Outcome<()>;

/// One way to call another process.
pub struct Peer {
    name: &'static str,
    serve: fn(&Ground<'_>, Ready<'_>) -> Outcome<()>,
    /// ns per call.
    call: fn(&Ground<'_>, u16) -> Outcome<f64>,
    does: fn(Work) -> bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Probe(SharedLimit),
    Serve { peer: usize, work: Work, number: u64, directory: PathBuf },
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Reply {
    Ready(u16),
    Done,
    Failed(String),
}

fn peers() -> Vec<Peer> {
    let mut peers = vec![ours::IPC];
    #[cfg(feature = "iceoryx2")]
    peers.push(iceoryx::REQUEST_RESPONSE);
    peers.extend(sockets::PEERS);
    peers
}

impl Ground<'_> {
    /// Whether the client has all its answers, or failed.
    #[cfg(feature = "iceoryx2")]
    pub fn is_over(&self) -> bool {
        let load = |word| self.board.word(word).load(copyrpc_memory::sync::Ordering::Acquire);
        load(Word::InitiatorDone) == self.number || load(Word::Failed) != 0
    }
}

/// Runs `batch`, which makes `calls` calls, for the time of a sample; ns per call, the median batch.
pub fn timed(calls: usize, mut batch: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let begin = Instant::now();
    while begin.elapsed() < SAMPLE / 3 {
        batch()?;
    }
    let mut batches_ns = Vec::new();
    let begin = Instant::now();
    let mut last = begin;
    while last - begin < SAMPLE {
        batch()?;
        let now = Instant::now();
        batches_ns.push((now - last).as_secs_f64() * 1e9 / calls as f64);
        last = now;
    }
    Ok(stats::median(&mut batches_ns))
}

/// The client's process.
struct Session {
    duo: Duo,
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
        here: impl FnOnce(&Board, u16) -> Outcome<T>,
    ) -> Outcome<T> {
        self.duo.board.reset();
        self.duo.control.send(order)?;
        let number = match self.duo.control.receive(Some(REPLY_DEADLINE))? {
            Reply::Ready(number) => number,
            other => return Err(format!("server: {other:?}").into()),
        };
        let result = here(&self.duo.board, number);
        match &result {
            Ok(_) => {
                let done = self.duo.board.word(Word::InitiatorDone);
                done.store(self.number, copyrpc_memory::sync::Ordering::Release);
            }
            Err(_) => self.duo.board.fail(),
        }
        match self.duo.control.receive(Some(REPLY_DEADLINE))? {
            Reply::Done => result,
            other => Err(result.err().unwrap_or_else(|| format!("server: {other:?}").into())),
        }
    }

    fn probe(&mut self) -> Outcome<f64> {
        let limit = SharedLimit::RoundTrip { window: PROBE_WINDOW };
        self.together(&Order::Probe(limit), |board, _| Ok(limit.initiate(board)?))
    }

    fn sample(&mut self, peer: usize, work: Work) -> Outcome<f64> {
        self.number += 1;
        let (number, directory) = (self.number, self.directory.clone());
        let order = Order::Serve { peer, work, number, directory: directory.clone() };
        self.together(&order, |board, port| {
            (peers()[peer].call)(&Ground { work, number, directory: &directory, board }, port)
        })
    }
}

/// Compares all peers whose names contain `filter` with [`REFERENCE`].
pub fn compare(cores: Cores, rounds: usize, filter: &str) -> Outcome<()> {
    let directory = std::env::temp_dir().join(format!("copyrpc-compare-{}", std::process::id()));
    let mut session = Session { duo: Duo::start(cores, &[CHILD])?, number: 0, directory };
    for (len_bytes, in_flight) in [(8, 1), (56, 1), (4096, 1), (56, 32)] {
        measure(&mut session, cores, rounds, filter, Work { len_bytes, in_flight })?;
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
        peers.chain(tools::TOOLS.map(Self::Tool)).collect()
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Peer(_, peer) => peer.name,
            Self::Tool(tool) => tool.name,
        }
    }

    fn does(&self, work: Work) -> bool {
        match self {
            Self::Peer(_, peer) => (peer.does)(work),
            Self::Tool(_) => work == tools::WORK,
        }
    }

    /// ns per call; `Err`: why it has none, `Ok(Err(_))`: it is not there.
    fn sample(
        &self,
        session: &mut Session,
        cores: Cores,
        work: Work,
    ) -> Outcome<Result<f64, String>> {
        match self {
            Self::Peer(index, _) => session.sample(*index, work).map(Ok),
            Self::Tool(tool) => Ok(tool.run(cores).map_err(|error| error.to_string())),
        }
    }
}

fn measure(
    session: &mut Session,
    cores: Cores,
    rounds: usize,
    filter: &str,
    work: Work,
) -> Outcome<()> {
    let mut contenders = Contender::all();
    contenders.retain(|contender| {
        let name = contender.name();
        (name.contains(filter) || name == REFERENCE) && contender.does(work)
    });
    let mut samples: BTreeMap<&str, Samples> = BTreeMap::new();
    let mut skipped: BTreeMap<&str, String> = BTreeMap::new();
    for _ in 0..rounds {
        for contender in &contenders {
            let name = contender.name();
            if skipped.contains_key(name) {
                continue;
            }
            let before_ns = session.probe()?;
            let value =
                contender.sample(session, cores, work).map_err(|e| format!("{name}: {e}"))?;
            let regime = Regime::between(before_ns, session.probe()?);
            match value {
                Ok(value) => {
                    let sample = (regime != Regime::Mixed).then_some((regime, value));
                    samples.entry(name).or_default().push(sample);
                }
                Err(reason) => drop(skipped.insert(name, reason)),
            }
        }
    }
    let Work { len_bytes, in_flight } = work;
    table::heading(&format!("{len_bytes} B, {in_flight} in flight, ns per call"), REFERENCE);
    for contender in &contenders {
        let name = contender.name();
        match (skipped.get(name), samples.get(name)) {
            (Some(reason), _) => println!("{name:<26} skipped: {reason}"),
            (None, Some(own)) => table::row(name, own, &samples[REFERENCE]),
            (None, None) => {}
        }
    }
    Ok(())
}

/// The other process.
pub fn serve() -> Outcome<()> {
    let mut side = Side::of_child()?;
    loop {
        let order = match side.control.receive(None) {
            Err(DuoError::PeerGone) => return Ok(()),
            order => order?,
        };
        let Side { board, control } = &mut side;
        let mut ready = |port| Ok(control.send(&Reply::Ready(port))?);
        let result = match order {
            Order::Probe(limit) => ready(0).and_then(|()| Ok(limit.respond(board)?)),
            Order::Serve { peer, work, number, directory } => {
                let ground = Ground { work, number, directory: &directory, board };
                (peers()[peer].serve)(&ground, &mut ready)
            }
        };
        let reply = match result {
            Ok(()) => Reply::Done,
            Err(error) => Reply::Failed(error.to_string()),
        };
        side.control.send(&reply)?;
    }
}
