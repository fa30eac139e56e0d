//! Instructions of a call over each protocol: caller and server on one thread, no other core.
//!
//! `--protocol NAME --lanes L --depth D --calls N` makes that many calls, `D` in flight on each lane: the difference of
//! two such runs under callgrind is the price of a call without the set-up. Every answer is compared with its request.

use std::{hint::black_box, time::Instant};

use copyrpc_protocols::{
    Answers, Call, Caller, Config, Protocol, Replies, Request, Server, Service, Status,
};
use softnic::Nic;

const BODY_BYTES: usize = 32;
/// Virtual time between two polls: about what a poll takes.
const TURN_NS: u64 = 200;

struct Echo;

impl Service<Nic> for Echo {
    fn request(&mut self, replies: &mut Replies<'_, Nic>, request: Request<'_>) {
        replies.reply(request.token, Status::Ok, request.body).expect("the caller is there");
    }
}

/// Answers seen, each checked against the number that it was asked with.
#[derive(Default)]
struct Check {
    ended: u64,
}

impl Answers for Check {
    fn answer(&mut self, cookie: u64, status: Status, body: &[u8]) {
        assert_eq!((status, body.len()), (Status::Ok, BODY_BYTES));
        assert_eq!(body[..8], cookie.to_le_bytes());
        self.ended += 1;
    }
}

/// Nanoseconds per call.
fn measure(protocol: Protocol, lanes: u16, depth: u8, calls: u64) -> f64 {
    let fabric = format!("protocols-cost-{protocol}-{lanes}-{depth}-{}", std::process::id());
    let soft = softnic::Config { fabric, ..softnic::Config::default() };
    let mut config = Config { protocol, ..Config::default() };
    config.copyrpc.may_sleep = false;
    config.erpc.receives = 256;
    (config.scalerpc.slots, config.scalerpc.clients_max) = (depth.min(64), lanes);
    let open = || softnic::open(&soft).expect("nic");
    let mut server = Server::open(open(), &config, 0).expect("server");
    let mut caller = Caller::open(open(), &config, lanes, 0).expect("caller");
    let greetings = caller.greetings();
    let told = greetings.iter().map(|greeting| server.accept(greeting).expect("a greeting"));
    caller.connect(&told.collect::<Vec<_>>()).expect("connect");
    let mut check = Check::default();
    let mut now_ns = 0;
    let mut poll = |caller: &mut Caller<Nic>, check: &mut Check| {
        now_ns += TURN_NS;
        caller.poll(now_ns, check);
        server.poll(now_ns, &mut Echo);
    };
    while !caller.is_connected() {
        poll(&mut caller, &mut check);
    }
    let mut made = 0_u64;
    let start = Instant::now();
    while check.ended < calls {
        for lane in 0..lanes {
            for _ in 0..depth {
                let mut body = [0; BODY_BYTES];
                body[..8].copy_from_slice(&made.to_le_bytes());
                let call = Call { cookie: made, response_bytes: 40, ..Call::default() };
                caller.call(lane.into(), &call, black_box(&body)).expect("there is room");
                made += 1;
            }
        }
        while check.ended < made {
            poll(&mut caller, &mut check);
        }
    }
    start.elapsed().as_secs_f64() * 1e9 / check.ended as f64
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1).cloned()
    };
    let number = |name: &str| value(name).and_then(|value| value.parse::<u32>().ok());
    let is_bench = args.iter().any(|arg| arg == "--bench");
    let calls = number("--calls").map_or(if is_bench { 500_000 } else { 500 }, u64::from);
    let only: Option<Protocol> = value("--protocol").and_then(|name| name.parse().ok());
    let lanes = number("--lanes").unwrap_or(1);
    let depth = number("--depth").unwrap_or(1);
    let lanes = u16::try_from(lanes).unwrap_or(1);
    let depth = u8::try_from(depth).unwrap_or(1);
    println!(
        "call and answer of {BODY_BYTES} B, {lanes} lanes, {depth} calls each, on one thread:"
    );
    for protocol in Protocol::ALL.into_iter().filter(|one| only.is_none_or(|only| only == *one)) {
        println!("  {protocol:8} {:7.1} ns per call", measure(protocol, lanes, depth, calls));
    }
}
