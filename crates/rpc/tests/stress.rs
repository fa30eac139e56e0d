//! Two workers on two threads that call each other over several connections as fast as they can.
//!
//! ```text
//! body: number in its connection │ words that follow from it │ sum of the words
//! ```
//!
//! A request that is lost, repeated or overtaken within its connection has the wrong number; one
//! whose bytes are wrong has the wrong words or sum. So have answers, which come in the order of the
//! calls, since each request is answered at once.

use std::{
    collections::HashMap,
    env,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use copyrpc_rpc::{
    Body, Call, CallEnd, CallError, CloseReason, Config, Handler, Invitation, PeerId, Request,
    Status, TransportKind, Worker,
};
use memory::sync::{AtomicUsize, Ordering};
use softnic::Nic;

/// Between the two workers.
const CONNECTIONS: usize = 4;
/// Messages of the short form, requests and responses, over both transports.
const MESSAGES: u64 = 1_000_000;
/// Sets the number of messages of the long form.
const MESSAGES_VARIABLE: &str = "RPC_STRESS_MESSAGES";
/// The same if it is not set.
const MESSAGES_LONG: u64 = 1_000_000_000;
/// Longest time without progress.
const PATIENCE: Duration = Duration::from_secs(60);
const WORD_BYTES: usize = size_of::<u64>();

/// Words between the number and the sum: mostly few, at times many.
fn words(number: u64) -> usize {
    match number % 1024 {
        0 => 400,
        rest => (rest % 7) as usize,
    }
}

fn word(number: u64, at: usize) -> u64 {
    (number ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn len_bytes(number: u64) -> usize {
    (words(number) + 2) * WORD_BYTES
}

fn fill(number: u64, to: &mut [u8]) {
    let mut sum = number;
    let (chunks, _) = to.as_chunks_mut::<WORD_BYTES>();
    let [first, middle @ .., last] = chunks else { unreachable!("two words at least") };
    *first = number.to_le_bytes();
    for (at, chunk) in middle.iter_mut().enumerate() {
        let word = word(number, at);
        *chunk = word.to_le_bytes();
        sum = sum.wrapping_add(word);
    }
    *last = sum.to_le_bytes();
}

/// Panics unless the body is that of this number.
#[track_caller]
fn check(number: u64, body: &[u8]) {
    let (chunks, rest) = body.as_chunks::<WORD_BYTES>();
    let [first, middle @ .., last] = chunks else { panic!("{} B", body.len()) };
    let found = u64::from_le_bytes(*first);
    assert_eq!(found, number, "a message was lost, repeated or overtaken");
    assert_eq!((middle.len(), rest.len()), (words(number), 0), "length of message {number}");
    let mut sum = number;
    for (at, chunk) in middle.iter().enumerate() {
        let found = u64::from_le_bytes(*chunk);
        assert_eq!(found, word(number, at), "word {at} of message {number}");
        sum = sum.wrapping_add(found);
    }
    assert_eq!(u64::from_le_bytes(*last), sum, "sum of message {number}");
}

/// What one connection has done, from one side.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    made: u64,
    answered: u64,
    served: u64,
}

struct Side {
    peers: Vec<PeerId>,
    index_of: HashMap<PeerId, usize>,
    links: [Link; CONNECTIONS],
    /// Calls to be made over each connection.
    goal: u64,
}

impl Side {
    fn new(peers: Vec<PeerId>, goal: u64) -> Self {
        let index_of = peers.iter().enumerate().map(|(index, peer)| (*peer, index)).collect();
        Self { peers, index_of, links: Default::default(), goal }
    }

    /// Calls until there is no place, or nothing left to call.
    fn call(&mut self, worker: &mut Worker<Nic>) {
        for (index, link) in self.links.iter_mut().enumerate() {
            while link.made < self.goal {
                let number = link.made;
                let call = Call {
                    response_bytes: len_bytes(number),
                    timeout: PATIENCE,
                    cookie: number << 8 | index as u64,
                    ..Call::default()
                };
                let (to, len_bytes) = (self.peers[index], len_bytes(number));
                match worker.call_with(to, &call, len_bytes, |to| fill(number, to)) {
                    Ok(_) => link.made += 1,
                    Err(CallError::Busy(_)) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.links.iter().all(|link| link.answered == self.goal)
    }

    fn progress(&self) -> u64 {
        self.links.iter().map(|link| link.answered + link.served).sum()
    }
}

impl Handler<Nic> for Side {
    fn request(&mut self, worker: &mut Worker<Nic>, request: Request, body: Body<'_, Nic>) {
        let body = &*body.bytes();
        let Request { token, .. } = request;
        let link = &mut self.links[self.index_of[&token.peer()]];
        check(link.served, body);
        link.served += 1;
        worker.reply(token, Status::Ok, body).unwrap();
    }

    fn ended(&mut self, _: &mut Worker<Nic>, cookie: u64, end: CallEnd<'_, Nic>) {
        let (number, index) = (cookie >> 8, (cookie & 0xff) as usize);
        assert_eq!(end.status(), Status::Ok, "call {number} of connection {index}");
        let link = &mut self.links[index];
        assert_eq!(number, link.answered, "answers in the order of the calls");
        check(number, &end.bytes());
        link.answered += 1;
    }

    fn closed(&mut self, _: &mut Worker<Nic>, _: PeerId, reason: CloseReason) {
        panic!("a connection ended: {reason}");
    }
}

/// One thread: a worker that calls and serves until both have nothing left to call.
fn run(
    nic: &softnic::Config,
    config: Config,
    goal: u64,
    (to_other, from_other): (mpsc::Sender<Invitation>, mpsc::Receiver<Invitation>),
    finished: &AtomicUsize,
) -> [Link; CONNECTIONS] {
    let now_ns = os::clock::now_ns;
    let mut worker = Worker::open(softnic::open(nic).unwrap(), config, now_ns()).unwrap();
    let invite = |_| {
        let (peer, invitation) = worker.invite().unwrap();
        to_other.send(invitation).unwrap();
        peer
    };
    let peers: Vec<_> = (0..CONNECTIONS).map(invite).collect();
    for peer in &peers {
        worker.connect(*peer, &from_other.recv().unwrap()).unwrap();
    }
    let mut side = Side::new(peers, goal);
    let (mut is_told, mut progress, mut since) = (false, 0, Instant::now());
    while finished.load(Ordering::Relaxed) < 2 {
        side.call(&mut worker);
        if worker.poll(now_ns(), &mut side) == 0 {
            if side.progress() > progress {
                (progress, since) = (side.progress(), Instant::now());
            }
            assert!(since.elapsed() < PATIENCE || side.is_done(), "no progress: {:?}", side.links);
            thread::yield_now();
        }
        if side.is_done() && !is_told {
            is_told = true;
            finished.fetch_add(1, Ordering::Relaxed);
        }
    }
    side.links
}

/// Sends at least so many messages over each transport in turn.
fn stress(messages: u64, strict: Option<u64>) {
    // A call is two messages, and both sides call over every connection.
    let calls = messages.div_ceil(2 * 2 * 2 * CONNECTIONS as u64);
    for (name, transport) in [("rc", TransportKind::Rc), ("dc", TransportKind::Dc)] {
        let config = Config { transport, may_sleep: false, calls_max: 256, ..Config::default() };
        let kind = if strict.is_some() { "strict" } else { "normal" };
        let fabric = format!("stress-{name}-{kind}-{}", std::process::id());
        let nic = softnic::Config { fabric, strict, ..softnic::Config::default() };
        let finished = AtomicUsize::new(0);
        let ((to_a, from_b), (to_b, from_a)) = (mpsc::channel(), mpsc::channel());
        let begin = Instant::now();
        let links = thread::scope(|scope| {
            let (a, b) = (config.clone(), config);
            let (nic, finished) = (&nic, &finished);
            let a = scope.spawn(move || run(nic, a, calls, (to_b, from_b), finished));
            let b = scope.spawn(move || run(nic, b, calls, (to_a, from_a), finished));
            [a.join().unwrap(), b.join().unwrap()]
        });
        for link in links.iter().flatten() {
            assert_eq!((link.made, link.answered, link.served), (calls, calls, calls));
        }
        let sent = calls * 2 * 2 * CONNECTIONS as u64;
        let elapsed = begin.elapsed();
        eprintln!("{name}, {kind}: {sent} messages in {elapsed:?}");
    }
}

#[test]
fn a_million_messages_arrive_once_and_in_order() {
    stress(MESSAGES, None);
}

/// The NIC delays and shuffles whatever hardware may.
#[test]
fn messages_arrive_once_and_in_order_in_strict_mode() {
    stress(MESSAGES / 10, Some(0x57));
}

/// `cargo xtask ci --full` runs it.
#[test]
#[ignore = "a billion messages take minutes, in a release build"]
fn a_billion_messages_arrive_once_and_in_order() {
    let messages = env::var(MESSAGES_VARIABLE).ok().map(|text| text.parse().unwrap());
    stress(messages.unwrap_or(MESSAGES_LONG), None);
}
