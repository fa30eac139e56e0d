//! Instructions and time of a call itself: both workers on one thread, no other core.
//!
//! Every answer is compared with its request. What two cores add is measured by
//! `copyrpc-lab bench rpc`.

use std::{hint::black_box, time::Instant};

use copyrpc_rpc::{Body, Call, CallEnd, Config, Handler, PeerId, Request, Status, Worker};
use softnic::Nic;

const BODY_BYTES: usize = 32;

struct Echo;

impl Handler<Nic> for Echo {
    #[inline(always)]
    fn request(&mut self, worker: &mut Worker<Nic>, request: Request, body: Body<'_, Nic>) {
        worker.reply(request.token, Status::Ok, &body.bytes()).expect("the caller is there");
    }

    fn ended(&mut self, _: &mut Worker<Nic>, _: u64, _: CallEnd<'_, Nic>) {}
}

/// Answers seen, each checked against the number that it was asked with.
struct Check {
    ended: u64,
}

impl Handler<Nic> for Check {
    fn request(&mut self, _: &mut Worker<Nic>, _: Request, _: Body<'_, Nic>) {}

    #[inline(always)]
    fn ended(&mut self, _: &mut Worker<Nic>, cookie: u64, end: CallEnd<'_, Nic>) {
        let body = &*end.bytes();
        assert_eq!((end.status(), body.len()), (Status::Ok, BODY_BYTES));
        assert_eq!(body[..8], cookie.to_le_bytes());
        self.ended += 1;
    }
}

/// What is measured: `depth` calls in flight on each of the first `active` connections, out of
/// `endpoints`.
#[derive(Clone, Copy)]
struct Shape {
    endpoints: u16,
    active: usize,
    depth: u64,
}

const SHAPES: [Shape; 4] = [
    Shape { endpoints: 1, active: 1, depth: 1 },
    Shape { endpoints: 1, active: 1, depth: 32 },
    Shape { endpoints: 8, active: 8, depth: 32 },
    Shape { endpoints: 512, active: 1, depth: 1 },
];

/// Virtual time between two polls: about what a poll takes.
const TURN_NS: u64 = 200;

/// Nanoseconds per call.
fn measure(Shape { endpoints, active, depth }: Shape, calls: u64) -> f64 {
    let fabric = format!("rpc-cost-{}-{endpoints}-{depth}", std::process::id());
    let nic = softnic::Config { fabric, ..softnic::Config::default() };
    let open = || {
        let peers_max = endpoints.max(Config::default().peers_max);
        let shared_receives = endpoints > 1;
        let config = Config { shared_receives, may_sleep: false, peers_max, ..Config::default() };
        Worker::open(softnic::open(&nic).expect("nic"), config, 0).expect("worker")
    };
    let (mut client, mut server) = (open(), open());
    let peers: Vec<PeerId> = (0..endpoints)
        .map(|_| {
            let (to_server, from_client) = client.invite().expect("invite");
            let (to_client, from_server) = server.invite().expect("invite");
            client.connect(to_server, &from_server).expect("connect");
            server.connect(to_client, &from_client).expect("connect");
            to_server
        })
        .collect();
    let mut check = Check { ended: 0 };
    let (mut made, start) = (0_u64, Instant::now());
    let mut now_ns = 0;
    while check.ended < calls {
        for peer in &peers[..active] {
            for _ in 0..depth {
                let mut body = [0; BODY_BYTES];
                body[..8].copy_from_slice(&made.to_le_bytes());
                let call = Call { response_bytes: 40, cookie: made, ..Call::default() };
                client.call(*peer, &call, black_box(&body)).expect("there is room");
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

/// What to do: `cargo bench` measures; anything else is a short check.
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
            if args.iter().any(|arg| arg == "--bench") { (2_000_000, 5) } else { (1000, 1) };
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
        let Shape { endpoints, active, depth } = of;
        println!(
            "  {active:3} of {endpoints:3} endpoints, {depth:2} calls each {best:7.1} ns per call"
        );
    }
}
