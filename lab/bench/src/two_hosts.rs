//! Calls between two hosts: a server that echoes, and a client that measures.
//!
//! ```text
//! client                                        server
//!   TCP: a line of JSON, invitation ───────────▶
//!        ◀─────────────── a line of JSON, invitation
//!   NIC: calls ────────────────────────────────▶ echoes
//!   TCP: closed ───────────────────────────────▶ waits for the next client
//! ```
//!
//! There is no probe of the machine's pace between two hosts, so there are no regimes: numbers of two runs compare
//! only if nothing else changed.

use std::{
    io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use os::{child::from_json, clock};
use rpc::{Body, Call, CallEnd, Config, Handler, Invitation, PeerId, Request, Status, Worker};
use serde::{Deserialize, Serialize};
use verbs::Nic;

use crate::error::Error;

/// Longest wait for the other side.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest line.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Polls in a row that find nothing before the core is offered to others.
const POLLS_PER_YIELD: u32 = 64;
/// Polls in a row that find nothing between two looks at the TCP connection.
const POLLS_PER_LOOK: u32 = 256;

/// What both sides tell first.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    version: String,
    invitation: Vec<u8>,
}

/// What is measured: so many bytes each way, and so many calls in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Of a request and of its answer.
    pub len_bytes: usize,
    /// Calls in flight.
    pub depth: u16,
}

/// What `bench rpc --client` measures.
pub const SHAPES: [Shape; 5] = [
    Shape { len_bytes: 32, depth: 1 },
    Shape { len_bytes: 1024, depth: 1 },
    Shape { len_bytes: 4096, depth: 1 },
    Shape { len_bytes: 32, depth: 32 },
    Shape { len_bytes: 1024, depth: 32 },
];

/// What came of one shape.
#[derive(Clone, Copy, Debug)]
pub struct TwoHostsOutcome {
    /// The shape that was measured.
    pub shape: Shape,
    /// Calls that were timed.
    pub calls: u64,
    /// Calls per second.
    pub rate: f64,
    /// From a call to its answer: half of them took at most so long, in nanoseconds.
    pub p50_ns: u64,
    /// 99 of 100.
    pub p99_ns: u64,
    /// 999 of 1000.
    pub p999_ns: u64,
}

/// Answers the calls of clients, one client after the other and each on a NIC of its own: of so many, or for ever.
/// `came` is told of each.
///
/// # Errors
///
/// [`Error`] if the NIC cannot be used. What a client does wrong ends that client alone.
pub fn serve<N: Nic>(
    open_nic: impl Fn() -> Result<N, Error>,
    listener: &TcpListener,
    clients: Option<u32>,
    mut came: impl FnMut(&str),
) -> Result<(), Error> {
    let mut served = 0;
    while clients.is_none_or(|clients| served < clients) {
        served += 1;
        let (stream, address) =
            listener.accept().map_err(Error::refused("cannot take a client"))?;
        let mut worker = open(open_nic()?)?;
        match serve_one(&mut worker, stream) {
            Ok(calls) => came(&format!("{address}: {calls} calls")),
            Err(error) => came(&format!("{address}: {error}")),
        }
    }
    Ok(())
}

fn open<N: Nic>(nic: N) -> Result<Worker<N>, Error> {
    Ok(Worker::open(nic, Config::default(), clock::now_ns())?)
}

/// Both sides by a table, so that the worker is compiled once for them: calls between hosts take microseconds.
fn poll<N: Nic>(worker: &mut Worker<N>, side: &mut dyn Handler<N>) -> usize {
    worker.poll(clock::now_ns(), side)
}

/// Tells the other side where this one is, and connects to where that is.
fn meet<N: Nic>(worker: &mut Worker<N>, stream: &TcpStream) -> Result<PeerId, Error> {
    let lost = Error::refused("the other side does not answer");
    let (peer, invitation) = worker.invite()?;
    let hello = Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        invitation: invitation.as_bytes().to_vec(),
    };
    let mut line = serde_json::to_string(&hello)?;
    line.push('\n');
    let exchange = || -> io::Result<String> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        (&*stream).write_all(line.as_bytes())?;
        let mut theirs = String::new();
        BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut theirs)?;
        Ok(theirs)
    };
    let theirs: Hello = from_json(&exchange().map_err(lost)?)?;
    if theirs.version != hello.version {
        let cause = format!("it has version {}, this side {}", theirs.version, hello.version);
        return Err(Error::refused::<String>("the other side is another program")(cause));
    }
    worker.connect(peer, &Invitation::from_bytes(&theirs.invitation)?)?;
    Ok(peer)
}

/// Counts polls that find nothing.
#[derive(Default)]
struct Idle {
    polls: u32,
    since: Option<Instant>,
}

impl Idle {
    /// A poll handled so much. Returns for how long there was nothing.
    fn look(&mut self, handled: usize) -> Duration {
        if handled > 0 {
            *self = Self::default();
            return Duration::ZERO;
        }
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(POLLS_PER_YIELD) {
            return Duration::ZERO;
        }
        thread::yield_now();
        self.since.get_or_insert_with(Instant::now).elapsed()
    }
}

fn serve_one<N: Nic>(worker: &mut Worker<N>, stream: TcpStream) -> Result<u64, Error> {
    let peer = meet(worker, &stream)?;
    stream.set_nonblocking(true).map_err(Error::refused("cannot watch the client"))?;
    let (mut echo, mut idle) = (Echo::default(), Idle::default());
    loop {
        let handled = poll(worker, &mut echo);
        let _ = idle.look(handled);
        if echo.is_closed || idle.polls.is_multiple_of(POLLS_PER_LOOK) && has_left(&stream) {
            worker.close(peer);
            return Ok(echo.calls);
        }
    }
}

/// Whether the other side has closed the connection.
fn has_left(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[derive(Default)]
struct Echo {
    calls: u64,
    is_closed: bool,
}

impl<N: Nic> Handler<N> for Echo {
    #[inline(always)]
    fn request(&mut self, worker: &mut Worker<N>, request: Request, body: Body<'_, N>) {
        let Request { token, .. } = request;
        self.calls += 1;
        // Whoever does not take the answer is about to leave.
        let _ = worker.reply(token, Status::Ok, &body.bytes());
    }

    #[inline(always)]
    fn ended(&mut self, _: &mut Worker<N>, _: u64, _: CallEnd<'_, N>) {}

    fn closed(&mut self, _: &mut Worker<N>, _: PeerId, _: rpc::CloseReason) {
        self.is_closed = true;
    }
}

/// Measures calls to the server at `address`: so many of each shape are timed.
///
/// # Errors
///
/// [`Error`], also when an answer is wrong or does not come.
pub fn measure<N: Nic>(
    nic: N,
    address: &str,
    shapes: &[Shape],
    calls: u64,
) -> Result<Vec<TwoHostsOutcome>, Error> {
    let stream = TcpStream::connect(address).map_err(Error::refused("cannot reach the server"))?;
    let mut worker = open(nic)?;
    let peer = meet(&mut worker, &stream)?;
    shapes.iter().map(|shape| run(&mut worker, peer, *shape, calls)).collect()
}

fn run<N: Nic>(
    worker: &mut Worker<N>,
    peer: PeerId,
    shape: Shape,
    calls: u64,
) -> Result<TwoHostsOutcome, Error> {
    let untimed = calls / 8 + u64::from(shape.depth);
    let mut client = Client {
        peer,
        body: (0..=250_u8).cycle().take(shape.len_bytes).collect(),
        made: 0,
        total: untimed + calls,
        untimed,
        called: vec![Instant::now(); shape.depth.into()],
        times_ns: Vec::with_capacity(usize::try_from(calls).unwrap_or(0)),
        done: 0,
        began: None,
        failure: None,
    };
    for slot in 0..shape.depth.into() {
        client.call(worker, slot);
    }
    let mut idle = Idle::default();
    while client.done < client.total {
        let handled = poll(worker, &mut client);
        if let Some(failure) = client.failure.take() {
            return Err(failure);
        }
        if idle.look(handled) > PATIENCE {
            let cause = format!("nothing came for {PATIENCE:?}");
            return Err(Error::refused::<String>("the server does not answer")(cause));
        }
    }
    let elapsed = client.began.map_or(Duration::ZERO, |began| began.elapsed());
    let mut times_ns = client.times_ns;
    times_ns.sort_unstable();
    let at = |per_mille: usize| {
        let last = times_ns.len().saturating_sub(1);
        times_ns.get(last * per_mille / 1000).copied().unwrap_or(0)
    };
    let rate = calls as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    Ok(TwoHostsOutcome { shape, calls, rate, p50_ns: at(500), p99_ns: at(990), p999_ns: at(999) })
}

struct Client {
    peer: PeerId,
    body: Vec<u8>,
    made: u64,
    total: u64,
    untimed: u64,
    /// By slot of the calls in flight.
    called: Vec<Instant>,
    times_ns: Vec<u64>,
    done: u64,
    began: Option<Instant>,
    failure: Option<Error>,
}

impl Client {
    fn call<N: Nic>(&mut self, worker: &mut Worker<N>, slot: usize) {
        if self.made == self.total {
            return;
        }
        // Each call differs from the one before.
        let number = self.made.to_le_bytes();
        for (byte, number) in self.body.iter_mut().zip(number) {
            *byte = number;
        }
        self.called[slot] = Instant::now();
        let (len_bytes, cookie) = (self.body.len(), (self.made << 16) | slot as u64);
        let call = Call { response_bytes: len_bytes, cookie, timeout: PATIENCE, ..Call::default() };
        match worker.call_with(self.peer, &call, len_bytes, |to| to.copy_from_slice(&self.body)) {
            Ok(_) => self.made += 1,
            Err(error) => drop(self.failure.get_or_insert(error.into())),
        }
    }

    /// Whether a body is what that call had.
    fn is_answer(&self, index: u64, body: &[u8]) -> bool {
        let number = index.to_le_bytes();
        let head = number.len().min(body.len());
        body.len() == self.body.len()
            && body[..head] == number[..head]
            && body[head..] == self.body[head..]
    }
}

impl<N: Nic> Handler<N> for Client {
    #[inline(always)]
    fn request(&mut self, _: &mut Worker<N>, request: Request, _: Body<'_, N>) {
        drop(request); // a server makes no calls; dropping a token answers it
    }

    #[inline(always)]
    fn ended(&mut self, worker: &mut Worker<N>, cookie: u64, end: CallEnd<'_, N>) {
        let status = end.status();
        let (index, slot) = (cookie >> 16, (cookie & 0xffff) as usize);
        if status != Status::Ok || !self.is_answer(index, &end.bytes()) {
            let what = if status == Status::Ok {
                "its answer is wrong".to_owned()
            } else {
                status.to_string()
            };
            self.failure.get_or_insert(Error::Call { index, what });
            return;
        }
        self.done += 1;
        if self.done > self.untimed {
            self.times_ns.push(clock::duration_ns(self.called[slot].elapsed()));
        } else if self.done == self.untimed {
            self.began = Some(Instant::now());
        }
        self.call(worker, slot);
    }
}
