//! The same service and the same program on three protocols, on the software NIC.

#![expect(clippy::cast_possible_truncation, reason = "lengths and numbers of tests are small")]

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use copyrpc_protocols::{
    Answers, Call, CallError, Caller, Config, Protocol, Replies, ReplyError, Request, Server,
    Service, Status, Token, Unsupported,
};
use softnic::Nic;

const REVERSE: u16 = 3;
const LATER: u16 = 4;
const REFUSE: u16 = 5;

/// Reverses bodies.
#[derive(Default)]
struct Reverser {
    kept: Vec<(Token, Vec<u8>)>,
    refused: Option<ReplyError>,
}

impl Service<Nic> for Reverser {
    fn request(&mut self, replies: &mut Replies<'_, Nic>, request: Request<'_>) {
        let Request { token, method, body } = request;
        let answer: Vec<u8> = body.iter().rev().copied().collect();
        match method {
            LATER => self.kept.push((token, answer)),
            REFUSE => self.refused = replies.reply(token, Status::NotFound, b"").err(),
            _ => replies.reply(token, Status::Ok, &answer).unwrap(),
        }
    }
}

#[derive(Default)]
struct Seen(BTreeMap<u64, (Status, Vec<u8>)>);

impl Answers for Seen {
    fn answer(&mut self, cookie: u64, status: Status, body: &[u8]) {
        assert!(self.0.insert(cookie, (status, body.to_vec())).is_none(), "{cookie} ended twice");
    }
}

struct Scene {
    server: Server<Nic>,
    caller: Caller<Nic>,
    service: Reverser,
    seen: Seen,
}

impl Scene {
    fn new(config: &Config, lanes: u16) -> Self {
        let fabric = format!("same-{}-{}", config.protocol, std::process::id());
        let soft = softnic::Config { fabric, ..softnic::Config::default() };
        let open = || softnic::open(&soft).unwrap();
        let mut server = Server::open(open(), config, os::clock::now_ns()).unwrap();
        let mut caller = Caller::open(open(), config, lanes, os::clock::now_ns()).unwrap();
        let told: Vec<_> =
            caller.greetings().iter().map(|greeting| server.accept(greeting).unwrap()).collect();
        caller.connect(&told).unwrap();
        let service = Reverser::default();
        let seen = Seen::default();
        let mut scene = Self { server, caller, service, seen };
        scene.until(|scene| scene.caller.is_connected());
        scene
    }

    fn until(&mut self, is_done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is_done(self) {
            let now_ns = os::clock::now_ns();
            let work = self.caller.poll(now_ns, &mut self.seen);
            if work + self.server.poll(now_ns, &mut self.service) == 0 {
                std::thread::yield_now();
            }
            assert!(start.elapsed() < Duration::from_secs(30), "it takes too long");
        }
    }

    fn call(
        &mut self,
        lane: usize,
        method: u16,
        cookie: u64,
        body: &[u8],
    ) -> Result<(), CallError> {
        let timeout = Duration::from_secs(30);
        let call = Call { method, cookie, response_bytes: body.len().max(64), timeout };
        self.caller.call(lane, &call, body)
    }
}

fn config(protocol: Protocol) -> Config {
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut config = Config { protocol, ..Config::default() };
    // The two endpoints of this test must not compete for one port.
    config.erpc.management = std::net::SocketAddr::new(free.ip(), 0);
    config
}

fn body(cookie: u64) -> Vec<u8> {
    (0..cookie % 3000).map(|at| (at * 7 + cookie) as u8).collect()
}

#[test]
fn the_same_service_and_program_run_on_all() {
    for protocol in Protocol::ALL {
        let mut scene = Scene::new(&config(protocol), 3);
        let mut cookie = 0;
        while cookie < 600 {
            let lane = cookie as usize % 3;
            match scene.call(lane, REVERSE, cookie, &body(cookie * 11)) {
                Ok(()) => cookie += 1,
                Err(error) => assert_eq!(error, CallError::Busy, "{protocol}"),
            }
            let now_ns = os::clock::now_ns();
            scene.caller.poll(now_ns, &mut scene.seen);
            scene.server.poll(now_ns, &mut scene.service);
        }
        scene.until(|scene| scene.seen.0.len() == 600);
        for (cookie, (status, answer)) in &scene.seen.0 {
            let expected: Vec<_> = body(cookie * 11).into_iter().rev().collect();
            assert!(*status == Status::Ok && *answer == expected, "{protocol}: {cookie}");
        }
        assert_eq!(
            scene.call(3, REVERSE, 0, b""),
            Err(CallError::Gone("there is no such lane".into()))
        );
    }
}

#[test]
fn answers_may_come_later_on_all() {
    for protocol in Protocol::ALL {
        let mut scene = Scene::new(&config(protocol), 1);
        (0..4).for_each(|cookie| scene.call(0, LATER, cookie, &body(cookie + 100)).unwrap());
        scene.until(|scene| scene.service.kept.len() == 4);
        for (token, answer) in std::mem::take(&mut scene.service.kept).into_iter().rev() {
            scene.server.reply(token, Status::Ok, &answer).unwrap();
        }
        scene.until(|scene| scene.seen.0.len() == 4);
    }
}

/// A request beyond a protocol's abilities is a typed error.
#[test]
fn what_a_protocol_cannot_do_is_said() {
    for protocol in Protocol::ALL {
        let mut scene = Scene::new(&config(protocol), 1);
        let method = scene.call(0, 1000, 1, b"high");
        scene.call(0, REFUSE, 2, b"refuse").unwrap();
        let long = scene.call(0, REVERSE, 3, &[1; 20_000]);
        scene.until(|scene| scene.service.refused.is_some() || scene.seen.0.contains_key(&2));
        let refused = scene.service.refused.take();
        match protocol {
            Protocol::Copyrpc => assert_eq!((method, long, refused), (Ok(()), Ok(()), None)),
            Protocol::Erpc => {
                let wrong = Unsupported::Method { protocol, method: 1000, max: 254 };
                assert_eq!((method, long), (Err(wrong.into()), Ok(())));
                let wrong = Unsupported::Status { protocol, status: Status::NotFound };
                assert_eq!(refused, Some(wrong.into()));
            }
            Protocol::Scalerpc => {
                assert_eq!((method, refused), (Ok(()), None));
                let wrong = Unsupported::Length { protocol, len_bytes: 20_000, max_bytes: 4080 };
                assert_eq!(long, Err(wrong.into()));
            }
        }
    }
}

#[test]
fn protocols_have_names() {
    for protocol in Protocol::ALL {
        assert_eq!(protocol.name().parse(), Ok(protocol));
    }
    assert!("http".parse::<Protocol>().is_err());
}
