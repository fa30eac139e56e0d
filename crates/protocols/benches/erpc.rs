//! Instructions and time of a call itself: both endpoints on one thread, no other core.
//!
//! Every answer is compared with its request. The part of two cores is measured by
//! `copyrpc-lab bench rpc --protocol erpc`.

use std::{hint::black_box, net::UdpSocket, time::Instant};

use copyrpc_protocols::erpc::{
    Call, Config, ConnectOptions, Endpoint, Handler, Request, SessionId, SessionState, Status,
};
use softnic::Nic;

const BODY_BYTES: usize = 32;

struct Echo;

impl Handler<Nic> for Echo {
    fn request(&mut self, endpoint: &mut Endpoint<Nic>, request: Request<'_>) {
        endpoint.reply(request.token, request.body).expect("the caller is there");
    }

    fn response(&mut self, _: &mut Endpoint<Nic>, _: u64, _: Status, _: &[u8]) {}
}

/// Answers seen, each checked against the number that it was asked with.
struct Check {
    ended: u64,
}

impl Handler<Nic> for Check {
    fn request(&mut self, _: &mut Endpoint<Nic>, _: Request<'_>) {}

    fn response(&mut self, _: &mut Endpoint<Nic>, cookie: u64, status: Status, body: &[u8]) {
        assert_eq!((status, body.len()), (Status::Ok, BODY_BYTES));
        assert_eq!(body[..8], cookie.to_le_bytes());
        self.ended += 1;
    }
}

/// A shape: `depth` calls in flight on each session.
#[derive(Clone, Copy)]
struct Shape {
    sessions: u16,
    depth: u64,
}

const SHAPES: [Shape; 4] = [
    Shape { sessions: 1, depth: 1 },
    Shape { sessions: 1, depth: 32 },
    Shape { sessions: 4, depth: 8 },
    Shape { sessions: 8, depth: 32 },
];

/// Virtual time between two polls: about what a poll takes.
const TURN_NS: u64 = 200;

/// Nanoseconds per call.
fn measure(Shape { sessions, depth }: Shape, calls: u64) -> f64 {
    let fabric = format!("erpc-cost-{}-{sessions}-{depth}", std::process::id());
    let nic = softnic::Config { fabric, ..softnic::Config::default() };
    let open = || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
        let management = socket.local_addr().expect("address");
        drop(socket);
        let config = Config { management, receives: 256, ..Config::default() };
        Endpoint::open(softnic::open(&nic).expect("nic"), config, 0).expect("endpoint")
    };
    let mut client = open();
    let mut server = open();
    let mut check = Check { ended: 0 };
    let to = server.management_address();
    let connect = |_| client.connect(to, 0, ConnectOptions::default()).expect("connect");
    let ids: Vec<SessionId> = (0..sessions).map(connect).collect();
    let mut now_ns = 0;
    while !ids.iter().all(|id| client.state(*id) == Some(SessionState::Connected)) {
        now_ns += TURN_NS;
        client.poll(now_ns, &mut check);
        server.poll(now_ns, &mut Echo);
    }
    let mut made = 0_u64;
    let start = Instant::now();
    while check.ended < calls {
        for id in &ids {
            for _ in 0..depth {
                let mut body = [0; BODY_BYTES];
                body[..8].copy_from_slice(&made.to_le_bytes());
                let call = Call { cookie: made, response_bytes_max: 40, ..Call::default() };
                client.call(*id, &call, black_box(&body)).expect("there is room");
                made += 1;
            }
        }
        while check.ended < made {
            now_ns += TURN_NS;
            client.poll(now_ns, &mut check);
            server.poll(now_ns, &mut Echo);
        }
    }
    start.elapsed().as_secs_f64() * 1e9 / check.ended as f64
}

/// The mode: `cargo bench` measures; anything else is a short check.
///
/// `--shape I` measures one line only, `--calls N` that many calls once: the difference of two such
/// runs under callgrind is the price of a call without the set-up.
struct Plan {
    calls: u64,
    runs: u32,
    shape: Option<usize>,
}

impl Plan {
    fn from_args() -> Self {
        let args: Vec<String> = std::env::args().collect();
        let value = |name: &str| {
            let at = args.iter().position(|arg| arg == name)?;
            args.get(at + 1)?.parse::<u32>().ok()
        };
        let (calls, runs) =
            if args.iter().any(|arg| arg == "--bench") { (1_000_000, 5) } else { (1000, 1) };
        let shape = value("--shape").map(|shape| shape as usize);
        match value("--calls") {
            Some(calls) => Self { calls: calls.into(), runs: 1, shape },
            None => Self { calls, runs, shape },
        }
    }
}

fn main() {
    let Plan { calls, runs, shape } = Plan::from_args();
    println!("call and answer of {BODY_BYTES} B, both sides on one thread, best of {runs}:");
    for (index, of) in SHAPES.into_iter().enumerate() {
        if shape.is_some_and(|shape| shape != index) {
            continue;
        }
        let best = (0..runs).map(|_| measure(of, calls)).fold(f64::MAX, f64::min);
        let Shape { sessions, depth } = of;
        println!("  {sessions} sessions, {depth:2} calls each {best:7.1} ns per call");
    }
}
