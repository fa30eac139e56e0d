//! What a call costs whose request and answer are long: counts, and times on two cores.
//!
//! ```text
//! rpc       caller ═════════════════════════════════════════▶ worker that echoes
//! daemons   client ── shared memory ──▶ daemon 0 ═══════════▶ daemon 1, whose function echoes
//! ```
//!
//! Counts are taken with all of them on one thread, which steps one after the other: they do not depend on what else the
//! machine does. Times are taken with the last one on a core of its own; both sides poll, so nobody sleeps or is woken.
//! Every byte of every answer is compared.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use bootstrap::{JobId, RankInfo, Secret};
use client::{ClientConfig, Pipeline, To};
use daemon::{
    Codec, Inbound, IpcPort, SelectedDaemon, Services, Status, UdpControl,
    config::{DaemonConfig, KNOBS, Layers},
    metrics::MetricsFile,
    open_selected, open_threads,
};
use measure::cores::{self, Cores};
use memory::sync::{AtomicBool, Ordering};
use nics::{OpenError, Opener, Selection, Visitor};
use os::clock;
use rpc::{BodyStats, Call, Handler, Invitation, PeerId, Request, Worker};
use verbs::Nic;

use crate::{calls::NumberedMessage, delegated::ANSWER_BYTES_MAX, error::Error};

/// Lengths of a request and of its answer.
pub const LONG_CALL_BYTES: [usize; 8] =
    [4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Calls that are neither counted nor timed: they make regions and pages.
const WARM_UP: u32 = 8;
/// Longest wait for a peer and for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
const ECHO: u16 = 1;

/// The way of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongCallWay {
    /// Between two workers.
    Rpc,
    /// From a client of one daemon to a function of another one.
    Daemons,
}

impl LongCallWay {
    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rpc => "rpc",
            Self::Daemons => "daemons",
        }
    }

    /// Whether such a call can have bodies of this length.
    #[must_use]
    pub fn carries(self, len_bytes: usize) -> bool {
        self == Self::Rpc || len_bytes <= ANSWER_BYTES_MAX
    }
}

/// What one call costs, both directions and all parties together; means over the calls that were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LongCallCosts {
    /// Bytes that processors copied of bodies that went by rendezvous, beside the two copies of a client.
    pub copied_bytes: f64,
    /// Bytes that were cleared before.
    pub cleared_bytes: f64,
    /// Bytes that the NIC moved by READ.
    pub read_bytes: f64,
    /// READs.
    pub reads: f64,
    /// Most READs that were outstanding at a time.
    pub reads_at_once: u64,
    /// Polls that found no end of a READ while some were outstanding.
    pub polls_in_vain: f64,
    /// Turns of both sides.
    pub turns: f64,
    /// Page faults.
    pub page_faults: f64,
    /// Time of the call with each side on its own core, in ns: the tenth percentile, and the median; 0: not taken.
    pub time_ns: [u64; 2],
}

/// Measures calls of one length: counts, and times if there are cores for them.
///
/// # Errors
///
/// [`OpenError`] of the NIC; [`Error`]: the peer did not answer rightly and in time.
pub fn long_call_costs(
    nic: &Selection,
    way: LongCallWay,
    len_bytes: usize,
    calls: u32,
    cores: Option<Cores>,
) -> Result<Result<LongCallCosts, Error>, OpenError> {
    struct OverRpc {
        len_bytes: usize,
        calls: u32,
        cores: Option<Cores>,
    }

    impl Visitor for OverRpc {
        type Output = Result<LongCallCosts, Error>;

        fn visit<O: Opener>(self, opener: O) -> Self::Output {
            let Self { len_bytes, calls, cores } = self;
            let open = || opener.open().map_err(Error::refused("cannot open the NIC"));
            let pair = || Ok((WorkerCaller::new(open()?)?, WorkerEcho(open)));
            measured(pair, len_bytes, calls, cores)
        }
    }

    if way == LongCallWay::Rpc {
        return nic.with(OverRpc { len_bytes, calls, cores });
    }
    Ok(measured(|| DaemonCaller::pair(nic), len_bytes, calls, cores))
}

fn measured<C: LongCaller, E: MakeEcho>(
    pair: impl Fn() -> Result<(C, E), Error>,
    len_bytes: usize,
    calls: u32,
    cores: Option<Cores>,
) -> Result<LongCallCosts, Error> {
    let (caller, other) = pair()?;
    let mut costs = counted(caller, other, len_bytes, calls)?;
    if let Some(cores) = cores {
        let (caller, other) = pair()?;
        costs.time_ns = times_ns(caller, other, len_bytes, (calls, cores))?;
    }
    Ok(costs)
}

/// Bytes and READs so far, of one side.
#[derive(Clone, Copy, Default)]
struct Spent {
    bodies: BodyStats,
    copied_bytes: u64,
}

/// One side, step by step.
trait Party {
    /// Returns once it has looked at everything once.
    fn step(&mut self) -> Result<(), Error>;

    fn spent(&self) -> Spent;
}

/// The side that calls.
trait LongCaller: Party {
    /// What the other side is told before it is made.
    fn contact(&mut self) -> Vec<u8>;

    /// Learns what the other side told; then both sides are stepped until [`is_ready`](Self::is_ready).
    fn meet(&mut self, contact: &[u8]) -> Result<(), Error>;

    fn is_ready(&mut self) -> Result<bool, Error>;

    /// Begins the next call.
    fn begin(&mut self, body: &[u8]) -> Result<(), Error>;

    /// Whether the answer is there, and is right.
    fn is_answered(&mut self, number: u64, message: &NumberedMessage) -> Result<bool, Error>;
}

/// Makes the other side, on the thread that steps it.
trait MakeEcho: Send {
    fn make(self, contact: &[u8]) -> Result<(Box<dyn Party>, Vec<u8>), Error>;
}

fn late() -> Error {
    Error::OutOfTurn("a peer does not answer".to_owned())
}

/// One call after the other, while `others` lets the other side do its part.
struct Series<'a, C> {
    caller: C,
    message: NumberedMessage,
    number: u64,
    others: &'a mut dyn FnMut() -> Result<(), Error>,
    turns: u64,
}

impl<C: LongCaller> Series<'_, C> {
    fn turn(&mut self) -> Result<(), Error> {
        self.turns += 1;
        self.caller.step()?;
        (self.others)()
    }

    fn ready(&mut self) -> Result<(), Error> {
        let begin = Instant::now();
        while !self.caller.is_ready()? {
            if begin.elapsed() > PATIENCE {
                return Err(late());
            }
            self.turn()?;
        }
        Ok(())
    }

    fn call(&mut self) -> Result<Duration, Error> {
        self.number += 1;
        let (number, begin) = (self.number, Instant::now());
        self.caller.begin(self.message.stamp(number))?;
        loop {
            self.turn()?;
            if self.caller.is_answered(number, &self.message)? {
                return Ok(begin.elapsed());
            }
            if begin.elapsed() > PATIENCE {
                return Err(late());
            }
        }
    }
}

/// Counts what calls cost, on one thread.
fn counted(
    mut caller: impl LongCaller,
    other: impl MakeEcho,
    len_bytes: usize,
    calls: u32,
) -> Result<LongCallCosts, Error> {
    let (other, told) = other.make(&caller.contact())?;
    caller.meet(&told)?;
    let other = std::cell::RefCell::new(other);
    let mut others = || other.borrow_mut().step();
    let message = NumberedMessage::new(len_bytes);
    let mut series = Series { caller, message, number: 0, others: &mut others, turns: 0 };
    series.ready()?;
    for _ in 0..WARM_UP {
        series.call()?;
    }
    let before = [series.caller.spent(), other.borrow().spent()];
    let (turns, faults) = (series.turns, page_faults()?);
    for _ in 0..calls {
        series.call()?;
    }
    let faults = page_faults()? - faults;
    let after = [series.caller.spent(), other.borrow().spent()];
    let each = |of: fn(&Spent) -> u64| {
        let sum = |spent: &[Spent; 2]| spent.iter().map(of).sum::<u64>();
        (sum(&after) - sum(&before)) as f64 / f64::from(calls)
    };
    let most = |spent: &Spent| spent.bodies.outstanding_max;
    Ok(LongCallCosts {
        copied_bytes: each(|spent| spent.bodies.copied_bytes + spent.copied_bytes),
        cleared_bytes: each(|spent| spent.bodies.cleared_bytes),
        read_bytes: each(|spent| spent.bodies.moved_bytes),
        reads: each(|spent| spent.bodies.pieces),
        reads_at_once: after.iter().map(most).max().unwrap_or(0),
        polls_in_vain: each(|spent| spent.bodies.polls_in_vain),
        turns: 2.0 * (series.turns - turns) as f64 / f64::from(calls),
        page_faults: faults as f64 / f64::from(calls),
        time_ns: [0; 2],
    })
}

/// What calls take with each side on its core.
fn times_ns(
    mut caller: impl LongCaller,
    other: impl MakeEcho,
    len_bytes: usize,
    (calls, cores): (u32, Cores),
) -> Result<[u64; 2], Error> {
    let (contact, is_over) = (caller.contact(), AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    let mut times = thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<(), Error> {
            cores::pin(cores.responder).map_err(Error::refused("cannot pin a thread"))?;
            let (mut other, mine) = other.make(&contact)?;
            // The other end ends with the measurement, as this does.
            let _ = tell.send(mine);
            // Relaxed: the flag is all there is to see.
            while !is_over.load(Ordering::Relaxed) {
                other.step()?;
            }
            Ok(())
        });
        let run = || -> Result<Vec<u64>, Error> {
            cores::pin(cores.initiator).map_err(Error::refused("cannot pin a thread"))?;
            caller.meet(&told.recv_timeout(PATIENCE).map_err(|_| late())?)?;
            let mut others = || Ok(());
            let message = NumberedMessage::new(len_bytes);
            let mut series = Series { caller, message, number: 0, others: &mut others, turns: 0 };
            series.ready()?;
            for _ in 0..WARM_UP {
                series.call()?;
            }
            let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            (0..calls).map(|_| series.call().map(nanoseconds)).collect()
        };
        let times = run();
        is_over.store(true, Ordering::Relaxed);
        let panicked = |_| Err(Error::OutOfTurn("a thread panicked".to_owned()));
        echo.join().unwrap_or_else(panicked)?;
        times
    })?;
    times.sort_unstable();
    let at = |tenths: usize| times.get(times.len() * tenths / 10).copied().unwrap_or(0);
    Ok([at(1), at(5)])
}

/// Page faults of this thread so far that needed no device.
fn page_faults() -> Result<u64, Error> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD);
    let faults = usage.map_err(Error::refused("no counts of page faults"))?.minor_page_faults();
    Ok(u64::try_from(faults).unwrap_or(0))
}

/// A worker that calls.
struct WorkerCaller<N: Nic> {
    worker: Worker<N>,
    peer: Option<PeerId>,
    answers: Answers,
}

#[derive(Default)]
struct Answers {
    body: Vec<u8>,
    status: Option<Status>,
    closed: Option<rpc::CloseReason>,
}

fn config() -> rpc::Config {
    rpc::Config { peers_max: 1, ..rpc::Config::default() }
}

impl<N: Nic> WorkerCaller<N> {
    fn new(nic: N) -> Result<Self, Error> {
        let worker = Worker::open(nic, config(), clock::now_ns())?;
        Ok(Self { worker, peer: None, answers: Answers::default() })
    }
}

impl<N: Nic> Party for WorkerCaller<N> {
    fn step(&mut self) -> Result<(), Error> {
        self.worker.poll(clock::now_ns(), &mut self.answers);
        match self.answers.closed {
            Some(reason) => Err(Error::OutOfTurn(format!("a connection ended: {reason}"))),
            None => Ok(()),
        }
    }

    fn spent(&self) -> Spent {
        Spent { bodies: self.worker.stats().bodies, copied_bytes: 0 }
    }
}

impl<N: Nic> Handler<N> for Answers {
    fn request(&mut self, _: &mut Worker<N>, request: Request<'_>) {
        drop(request); // the other side makes no calls
    }

    fn response(&mut self, _: &mut Worker<N>, _: u64, status: Status, body: &[u8]) {
        self.body.clear();
        self.body.extend_from_slice(body);
        self.status = Some(status);
    }

    /// The answer stays in the memory that it came in.
    fn large_response(&mut self, worker: &mut Worker<N>, _: u64, body: &mut Vec<u8>) {
        worker.keep_memory(std::mem::replace(&mut self.body, std::mem::take(body)));
        self.status = Some(Status::Ok);
    }

    fn closed(&mut self, _: &mut Worker<N>, _: PeerId, reason: rpc::CloseReason) {
        self.closed = Some(reason);
    }
}

impl<N: Nic> LongCaller for WorkerCaller<N> {
    fn contact(&mut self) -> Vec<u8> {
        let Ok((peer, invitation)) = self.worker.invite() else { return Vec::new() };
        self.peer = Some(peer);
        invitation.as_bytes().to_vec()
    }

    fn meet(&mut self, contact: &[u8]) -> Result<(), Error> {
        let peer = self.peer.ok_or_else(late)?;
        self.worker.connect(peer, &Invitation::from_bytes(contact)?)?;
        Ok(())
    }

    fn is_ready(&mut self) -> Result<bool, Error> {
        Ok(true)
    }

    fn begin(&mut self, body: &[u8]) -> Result<(), Error> {
        let peer = self.peer.ok_or_else(late)?;
        // As a caller that knows what it will get.
        let call =
            Call { response_bytes: body.len().min(8 << 10), timeout: PATIENCE, ..Call::default() };
        self.worker.call(peer, &call, body)?;
        Ok(())
    }

    fn is_answered(&mut self, number: u64, message: &NumberedMessage) -> Result<bool, Error> {
        let Some(status) = self.answers.status.take() else { return Ok(false) };
        right(number, message, status == Status::Ok, &self.answers.body)
    }
}

fn right(
    number: u64,
    message: &NumberedMessage,
    is_success: bool,
    answer: &[u8],
) -> Result<bool, Error> {
    if is_success && message.is(number, answer) {
        return Ok(true);
    }
    Err(Error::Call { index: number, what: "its answer is wrong".to_owned() })
}

/// A worker that answers each request with its body.
struct WorkerEcho<F>(F);

struct Echoing<N: Nic> {
    worker: Worker<N>,
    echo: Echo,
}

#[derive(Default)]
struct Echo {
    failed: Option<rpc::ReplyError>,
}

impl<N: Nic> Handler<N> for Echo {
    fn request(&mut self, worker: &mut Worker<N>, request: Request<'_>) {
        let Request { token, body, .. } = request;
        self.failed = worker.reply(token, Status::Ok, body).err().or(self.failed.take());
    }

    fn response(&mut self, _: &mut Worker<N>, _: u64, _: Status, _: &[u8]) {}
}

impl<N: Nic> Party for Echoing<N> {
    fn step(&mut self) -> Result<(), Error> {
        self.worker.poll(clock::now_ns(), &mut self.echo);
        self.echo.failed.take().map_or(Ok(()), |error| Err(error.into()))
    }

    fn spent(&self) -> Spent {
        Spent { bodies: self.worker.stats().bodies, copied_bytes: 0 }
    }
}

impl<N: Nic + 'static, F: Fn() -> Result<N, Error> + Send> MakeEcho for WorkerEcho<F> {
    fn make(self, contact: &[u8]) -> Result<(Box<dyn Party>, Vec<u8>), Error> {
        let mut worker = Worker::open((self.0)()?, config(), clock::now_ns())?;
        let (peer, invitation) = worker.invite()?;
        worker.connect(peer, &Invitation::from_bytes(contact)?)?;
        let told = invitation.as_bytes().to_vec();
        Ok((Box::new(Echoing { worker, echo: Echo::default() }), told))
    }
}

/// A daemon.
struct Node {
    daemon: Box<dyn SelectedDaemon>,
    socket: PathBuf,
    /// Its counters are there.
    _metrics: MetricsFile,
}

impl Node {
    fn open(nic: &Selection, rank: u32, control: UdpControl, name: &str) -> Result<Self, Error> {
        let refused = |what| move |cause: String| Error::refused(what)(cause);
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let mut config = DaemonConfig::from_settings(&Layers::new(KNOBS.to_vec()).finish())
            .map_err(|causes| Error::OutOfTurn(format!("{causes:?}")))?;
        config.message_bytes_max = u32::try_from(ANSWER_BYTES_MAX).unwrap_or(u32::MAX);
        let no_rank = refused("no rank");
        let rank_info = RankInfo::new(rank, 2).map_err(|error| no_rank(text(&error)))?;
        let no_file = refused("no counters");
        let (metrics, recorders) = MetricsFile::unnamed("bench", rank_info, 1, 0)
            .map_err(|error| no_file(text(&error)))?;
        let socket = PathBuf::from(format!("@copyrpc-long/{name}/{rank}"));
        let no_daemon = refused("no daemon");
        let threads = open_threads(&config, &socket, recorders);
        let thread = threads.map_err(|error| no_daemon(text(&error)))?.pop().ok_or_else(late)?;
        let job = JobId::new("bench").map_err(Error::refused("no job"))?;
        let codec = Codec::new(job, Secret::from_bytes(b"the secret of a benchmark"), rank);
        let mut services = Services::<IpcPort>::default();
        let echo = |inbound: &Inbound<'_>, answer: &mut Vec<u8>| {
            answer.extend_from_slice(inbound.body);
            Status::Ok
        };
        services.offer(ECHO, Box::new(echo)).map_err(Error::refused("no service"))?;
        let (port, parts) = thread.configured(&config, rank_info, codec, services);
        let daemon = open_selected(nic, self::config(), port, control, parts);
        let daemon = daemon.map_err(|error| no_daemon(text(&error)))?;
        let daemon = daemon.map_err(|error| no_daemon(text(&error)))?;
        Ok(Self { daemon, socket, _metrics: metrics })
    }
}

impl Party for Node {
    fn step(&mut self) -> Result<(), Error> {
        self.daemon.step(clock::now_ns());
        Ok(())
    }

    fn spent(&self) -> Spent {
        let bodies = self.daemon.worker_stats().bodies;
        Spent { bodies, copied_bytes: self.daemon.copied_bytes() }
    }
}

/// A client and its daemon, on one thread.
struct DaemonCaller {
    node: Node,
    /// It connects on a thread of its own, while this one steps the daemon.
    connecting: Option<thread::JoinHandle<Result<Pipeline<u64>, Error>>>,
    pipeline: Option<Pipeline<u64>>,
}

/// The other daemon, before it is made.
struct MakeNode<'a> {
    nic: &'a Selection,
    control: UdpControl,
    name: String,
}

impl MakeEcho for MakeNode<'_> {
    fn make(self, _: &[u8]) -> Result<(Box<dyn Party>, Vec<u8>), Error> {
        let node = Node::open(self.nic, 1, self.control, &self.name)?;
        Ok((Box::new(node), Vec::new()))
    }
}

impl DaemonCaller {
    fn pair(nic: &Selection) -> Result<(Self, MakeNode<'_>), Error> {
        let name = format!("{}-{:x}", std::process::id(), clock::now_ns());
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let bind = || UdpControl::bind(at, 2).map_err(Error::refused("no socket for a daemon"));
        let (mut zero, mut one) = (bind()?, bind()?);
        let address = |of: &UdpControl| of.address().map_err(Error::refused("no address"));
        let (first, second) = (address(&zero)?, address(&one)?);
        zero.set(1, second);
        one.set(0, first);
        let node = Node::open(nic, 0, zero, &name)?;
        let caller = Self { node, connecting: None, pipeline: None };
        Ok((caller, MakeNode { nic, control: one, name }))
    }
}

impl Party for DaemonCaller {
    fn step(&mut self) -> Result<(), Error> {
        self.node.step()
    }

    fn spent(&self) -> Spent {
        self.node.spent()
    }
}

impl LongCaller for DaemonCaller {
    fn contact(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn meet(&mut self, _: &[u8]) -> Result<(), Error> {
        let socket = self.node.socket.clone();
        self.connecting = Some(thread::spawn(move || {
            let config = ClientConfig { timeout: PATIENCE, ..ClientConfig::default() };
            Pipeline::connect(&socket, config).map_err(Error::refused("no daemon"))
        }));
        Ok(())
    }

    fn is_ready(&mut self) -> Result<bool, Error> {
        if let Some(connecting) = self.connecting.take_if(|thread| thread.is_finished()) {
            let panicked = |_| Err(Error::OutOfTurn("a thread panicked".to_owned()));
            self.pipeline = Some(connecting.join().unwrap_or_else(panicked)?);
        }
        Ok(self.pipeline.is_some() && self.node.daemon.peers_up() == 1)
    }

    fn begin(&mut self, body: &[u8]) -> Result<(), Error> {
        let pipeline = self.pipeline.as_mut().ok_or_else(late)?;
        let to = To { rank: 1, service: ECHO, method: 0 };
        let submitted = pipeline.submit(to, body, 0);
        submitted.map_err(|refused| Error::refused("a call")(refused.error))?;
        pipeline.flush();
        Ok(())
    }

    fn is_answered(&mut self, number: u64, message: &NumberedMessage) -> Result<bool, Error> {
        let pipeline = self.pipeline.as_mut().ok_or_else(late)?;
        let mut found = Ok(false);
        pipeline.poll(|_, answer| {
            found = match answer {
                Ok(answer) => right(number, message, true, answer),
                Err(error) => Err(Error::Call { index: number, what: error.to_string() }),
            };
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bodies are READ once in each direction, in pieces of 128 KiB; after some calls nothing is cleared and no page is
    /// new. The copies are those that docs/performance.md tells.
    #[test]
    fn a_long_call_costs_what_the_documentation_says() {
        let nic = Selection::with_settings("soft", std::collections::BTreeMap::new());
        for (way, copies) in [(LongCallWay::Rpc, 4.0), (LongCallWay::Daemons, 6.0)] {
            let len_bytes = 300_000;
            let costs = long_call_costs(&nic, way, len_bytes, 20, None).unwrap().unwrap();
            let bodies = |bytes: f64| bytes / len_bytes as f64;
            // A message has some bytes of heads beside its body.
            assert!((bodies(costs.copied_bytes) - copies).abs() < 0.01, "{way:?}: {costs:?}");
            assert!((bodies(costs.read_bytes) - 2.0).abs() < 0.01, "{way:?}: {costs:?}");
            assert_eq!((costs.reads, costs.cleared_bytes), (6.0, 0.0), "{way:?}: {costs:?}");
            assert!(costs.page_faults < 1.0, "{way:?}: {costs:?}");
        }
    }
}
