//! Instructions and time of a call through daemons, and of a turn that finds none, without processes: two daemons on one thread, whose
//! clients are queues.
//!
//! Every answer is compared with its request. `--shape I` measures one line only, `--calls N` that many
//! calls once: the difference of two such runs under callgrind is the price of a call without the
//! set-up, function by function.

use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::Rc,
    time::{Duration, Instant},
};

use bootstrap::{JobId, RankInfo, Secret};
use client::message;
use copyrpc_daemon::{
    ClientPort, ClientRequest, ClientTag, Codec, Control, Daemon, Limits, Parts, Replies, Services,
    Status, ThreadHandle,
    membership::DetectorConfig,
    metrics::{MetricsFile, Recorder},
};
use ipc::TakenBytes;
use zerocopy::IntoBytes as _;

const BODY_BYTES: usize = 32;
const ECHO: u16 = 7;
/// Virtual time of a turn, at least: turns differ, as those of a daemon do.
const TURN_NS: u64 = 1000;

/// Calls of one client, numbered in their bodies.
struct Calls {
    to: u32,
    made: u64,
    ended: u64,
    /// To be made before the next turn.
    due: u64,
}

impl Calls {
    fn request(&self) -> [u8; message::CALL_HEAD_BYTES + BODY_BYTES] {
        let head = message::CallHead {
            rank: self.to.into(),
            service: ECHO.into(),
            method: 0.into(),
            timeout_us: 0.into(),
            response_bytes: 64.into(),
        };
        let mut bytes = [0; message::CALL_HEAD_BYTES + BODY_BYTES];
        bytes[..message::CALL_HEAD_BYTES].copy_from_slice(head.as_bytes());
        bytes[message::CALL_HEAD_BYTES..][..8].copy_from_slice(&self.made.to_le_bytes());
        bytes
    }

    fn check(&mut self, number: u64, status: Status, body: &[u8]) {
        assert_eq!((status, body.len()), (Status::Ok, BODY_BYTES));
        assert_eq!(body[..8], number.to_le_bytes());
        self.ended += 1;
    }
}

#[derive(Clone)]
struct Answers(Rc<RefCell<Calls>>);

impl Replies for Answers {
    type ReplyTo = u64;

    fn reply(&mut self, number: u64, status: Status, parts: &[&[u8]]) {
        let [body] = parts else { panic!("an answer in {} parts", parts.len()) };
        self.0.borrow_mut().check(number, status, body);
    }

    fn reply_stored(&mut self, _: u64, _: usize) {
        unreachable!("it takes no parts")
    }
}

#[derive(Clone)]
struct Client {
    answers: Answers,
    /// The request that was taken last.
    request: [u8; message::CALL_HEAD_BYTES + BODY_BYTES],
}

impl ClientPort for Client {
    type ReplyTo = u64;
    type Client = u32;
    type Replies = Answers;

    fn take(&mut self) -> Option<ClientRequest<'_, Self>> {
        let Self { answers, request } = self;
        let number = {
            let mut calls = answers.0.borrow_mut();
            if calls.due == 0 {
                return None;
            }
            *request = calls.request();
            calls.due -= 1;
            calls.made += 1;
            calls.made - 1
        };
        Some(ClientRequest {
            client: 0,
            reply_to: number,
            payload: TakenBytes::Private(request),
            replies: answers,
        })
    }

    fn replies(&mut self) -> &mut Answers {
        &mut self.answers
    }

    fn set_turn_budget(&mut self, _: u32) {}

    fn tag(client: u32) -> ClientTag {
        ClientTag { slot: client, life: 0 }
    }

    fn client_of(_: u64) -> u32 {
        0
    }

    fn is_there(&self, _: u32) -> bool {
        true
    }

    fn departures(&self) -> u64 {
        0
    }

    fn census(&self) -> (u64, u64, u64) {
        (1, 1, 0)
    }
}

/// Datagrams to each rank that is there.
type Air = Rc<RefCell<[VecDeque<Vec<u8>>; 2]>>;

struct Datagrams {
    rank: u32,
    air: Air,
}

impl Control for Datagrams {
    type From = ();

    fn send(&mut self, to: u32, datagram: &[u8]) {
        if let Some(queue) = self.air.borrow_mut().get_mut(to as usize) {
            queue.push_back(datagram.to_vec());
        }
    }

    fn recv(&mut self, into: &mut [u8]) -> Option<(usize, ())> {
        let datagram = self.air.borrow_mut()[self.rank as usize].pop_front()?;
        into[..datagram.len()].copy_from_slice(&datagram);
        Some((datagram.len(), ()))
    }

    fn answer(&mut self, (): &(), _: &[u8]) {}

    fn learn(&mut self, _: u32, (): ()) {}
}

fn parts(rank_info: RankInfo, recorder: Recorder) -> Parts<Client> {
    let mut services = Services::default();
    let echo = |inbound: &copyrpc_daemon::Inbound<'_>, answer: &mut Vec<u8>| {
        answer.extend_from_slice(inbound.body);
        Status::Ok
    };
    services.offer(ECHO, Box::new(echo)).expect("it is free");
    Parts {
        rank_info,
        detector: DetectorConfig {
            interval_ns: 200_000_000,
            suspect_after_ns: 1_000_000_000,
            dead_after_ns: 3_000_000_000,
        },
        epoch: 1,
        codec: Codec::new(
            JobId::new("turn").expect("a name"),
            Secret::from_bytes(b"secret"),
            rank_info.rank(),
        ),
        services,
        thread_handle: ThreadHandle::alone(),
        recorder,
        call_timeout: Duration::from_secs(5),
        body_bytes_max: 4096,
        limits: Limits::default(),
        sample_every: 0,
        clock: Box::new(|| 0),
    }
}

/// What is measured: calls of a client of rank 0 to `to`, `depth` at a time; turns of both daemons with
/// nothing to do, if that is 0. Of a job of `size` ranks, two are there.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    size: u32,
    to: u32,
    depth: u64,
}

const SHAPES: [Shape; 5] = [
    Shape { name: "own node", size: 2, to: 0, depth: 16 },
    Shape { name: "other node", size: 2, to: 1, depth: 1 },
    Shape { name: "other node", size: 2, to: 1, depth: 16 },
    Shape { name: "idle turn", size: 2, to: 1, depth: 0 },
    Shape { name: "idle turn", size: 512, to: 1, depth: 0 },
];

/// Nanoseconds per call, or turn.
fn measure(Shape { size, to, depth, .. }: Shape, calls: u64) -> f64 {
    let air = Air::default();
    let fabric = format!("node-turn-{}-{to}-{depth}", std::process::id());
    let mut now_ns = TURN_NS;
    let (mut daemons, mut clients, mut files) = (Vec::new(), Vec::new(), Vec::new());
    for rank in 0..2 {
        let rank_info = RankInfo::new(rank, size).expect("one of them");
        let (file, mut recorders) = MetricsFile::unnamed("turn", rank_info, 1, 0).expect("memory");
        let nic = softnic::Config { fabric: fabric.clone(), ..softnic::Config::default() };
        let peers_max = u16::try_from(size).expect("a job that fits");
        let config = rpc::Config { peers_max, ..rpc::Config::default() };
        let worker = rpc::Worker::open(softnic::open(&nic).expect("nic"), config, now_ns);
        let answers = Answers(Rc::new(RefCell::new(Calls { to, made: 0, ended: 0, due: 0 })));
        let client = Client { answers, request: [0; message::CALL_HEAD_BYTES + BODY_BYTES] };
        let control = Datagrams { rank, air: Rc::clone(&air) };
        let parts = parts(rank_info, recorders.pop().expect("one"));
        let worker = worker.expect("worker");
        daemons.push(Daemon::new(worker, client.clone(), control, parts, now_ns));
        clients.push(client);
        files.push(file);
    }
    let mut turns = 0;
    let mut turn = || {
        turns += 1;
        now_ns += TURN_NS + turns % 64 * 16;
        for daemon in &mut daemons {
            daemon.step(now_ns);
        }
        daemons.iter().all(|daemon| daemon.peers_up() == 1)
    };
    while !turn() {}
    let (mine, start) = (&clients[0].answers.0, Instant::now());
    if depth == 0 {
        (0..calls).for_each(|_| assert!(turn()));
        return start.elapsed().as_secs_f64() * 1e9 / calls as f64;
    }
    while mine.borrow().ended < calls {
        mine.borrow_mut().due = depth;
        let made = mine.borrow().made + depth;
        while mine.borrow().ended < made {
            turn();
        }
    }
    start.elapsed().as_secs_f64() * 1e9 / mine.borrow().ended as f64
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1)?.parse::<u32>().ok()
    };
    let is_bench = args.iter().any(|arg| arg == "--bench");
    let (mut calls, mut runs) = if is_bench { (1_000_000, 5) } else { (2000, 1) };
    if let Some(asked) = value("--calls") {
        (calls, runs) = (asked.into(), 1);
    }
    let shape = value("--shape").map(|shape| shape as usize);
    println!("call and answer of {BODY_BYTES} B, two daemons on one thread, best of {runs}:");
    for (index, of) in SHAPES.into_iter().enumerate() {
        if shape.is_none_or(|shape| shape == index) {
            let best = (0..runs).map(|_| measure(of, calls)).fold(f64::MAX, f64::min);
            let Shape { name, size, depth, .. } = of;
            println!("  {name:10} of {size:3}, {depth:2} in flight {best:7.1} ns");
        }
    }
}
