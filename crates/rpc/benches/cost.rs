//! Instructions and time of a call itself: both workers on one thread, no other core.
//!
//! Every answer is compared with its request. What two cores add is measured by
//! `copyrpc bench rpc`.

use std::{hint::black_box, time::Instant};

use copyrpc_rpc::{Call, Config, Handler, PeerId, Request, Status, Worker};
use softnic::Nic;

const BODY_BYTES: usize = 32;

struct Echo;

impl Handler<Nic> for Echo {
    fn request(&mut self, worker: &mut Worker<Nic>, request: Request<'_>) {
        worker.reply(request.token, Status::Ok, request.body).expect("the caller is there");
    }

    fn response(&mut self, _: &mut Worker<Nic>, _: u64, _: Status, _: &[u8]) {}
}

/// Answers seen, each checked against the number that it was asked with.
struct Check {
    ended: u64,
}

impl Handler<Nic> for Check {
    fn request(&mut self, _: &mut Worker<Nic>, _: Request<'_>) {}

    fn response(&mut self, _: &mut Worker<Nic>, cookie: u64, status: Status, body: &[u8]) {
        assert_eq!((status, body.len()), (Status::Ok, BODY_BYTES));
        assert_eq!(body[..8], cookie.to_le_bytes());
        self.ended += 1;
    }
}

/// Nanoseconds per call with `depth` calls in flight on each of `endpoints` connections.
fn measure(endpoints: usize, depth: u64, calls: u64) -> f64 {
    let fabric = format!("rpc-cost-{}-{endpoints}-{depth}", std::process::id());
    let nic = softnic::Config { fabric, ..softnic::Config::default() };
    let open = || {
        let config =
            Config { shared_receives: endpoints > 1, may_sleep: false, ..Config::default() };
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
        for peer in &peers {
            for _ in 0..depth {
                let mut body = [0; BODY_BYTES];
                body[..8].copy_from_slice(&made.to_le_bytes());
                let call = Call { response_bytes: 40, cookie: made, ..Call::default() };
                client.call(*peer, &call, black_box(&body)).expect("there is room");
                made += 1;
            }
        }
        while check.ended < made {
            now_ns += 50;
            client.poll(now_ns, &mut check);
            server.poll(now_ns, &mut Echo);
        }
    }
    start.elapsed().as_secs_f64() * 1e9 / check.ended as f64
}

fn main() {
    let is_smoke = !std::env::args().any(|arg| arg == "--bench");
    let calls = if is_smoke { 1000 } else { 2_000_000 };
    println!("call and answer of {BODY_BYTES} B, both sides on one thread, best of 5:");
    for (endpoints, depth) in [(1, 1), (1, 32), (8, 32)] {
        let runs = if is_smoke { 1 } else { 5 };
        let best = (0..runs).map(|_| measure(endpoints, depth, calls)).fold(f64::MAX, f64::min);
        println!("  {endpoints} endpoints, {depth:2} calls each {best:7.1} ns per call");
    }
}
