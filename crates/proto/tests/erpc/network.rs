//! A client and a server over a network that loses, repeats and reorders packets, in virtual time. Every
//! byte of every answer is checked, and that no request is executed twice.

use std::collections::{BTreeMap, BTreeSet};

use copyrpc_proto::{
    Status,
    erpc::{
        Client, Geometry, Header, Link, PacketKind, Server, Span,
        client::{self, Call, ClientConfig},
        server::{self, RequestId},
    },
};
use proptest::prelude::*;

const STEP_NS: u64 = 1000;
const NEVER_NS: u64 = u64::MAX;

/// The faults of the network, in percent.
#[derive(Clone, Copy, Debug)]
struct Network {
    lost: u8,
    repeated: u8,
    /// Longest delay, in steps: packets with different delays overtake each other.
    delay_max: u8,
}

#[derive(Clone, Copy, Debug)]
struct Wish {
    request_bytes: u32,
    response_bytes: u32,
    /// Steps that the handler takes.
    handler_steps: u8,
    deadline_steps: Option<u16>,
}

/// A small generator, so that a case is a function of its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn percent(&mut self, chance: u8) -> bool {
        self.below(100) < u64::from(chance)
    }
}

fn request_of(cookie: u64, bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (u64::from(at) * 31 + cookie * 7) as u8).collect()
}

fn response_of(request: &[u8], bytes: u32) -> Vec<u8> {
    let seed = request.iter().fold(17u8, |sum, byte| sum.wrapping_mul(3).wrapping_add(*byte));
    (0..bytes).map(|at| seed.wrapping_add(at as u8)).collect()
}

#[derive(Default)]
struct Buffers {
    request: Vec<u8>,
    response: Vec<u8>,
}

struct World {
    geometry: Geometry,
    network: Network,
    random: Random,
    now: u64,
    client: Client,
    server: Server,
    wishes: Vec<Wish>,
    /// By time of arrival and number: to the server, or to the client.
    in_flight: BTreeMap<(u64, u64), (bool, Header, Vec<u8>)>,
    sent: u64,
    responses: BTreeMap<u64, Vec<u8>>,
    served: BTreeMap<usize, Buffers>,
    executed: BTreeSet<RequestId>,
    /// Handlers that run: when they end.
    running: Vec<(u64, RequestId, u32)>,
    ended: BTreeMap<u64, Result<u32, client::Ended>>,
}

impl World {
    fn new(geometry: Geometry, network: Network, seed: u64, wishes: Vec<Wish>) -> Self {
        let config = ClientConfig { retransmit_ns: 50 * STEP_NS, ..ClientConfig::new(geometry) };
        Self {
            geometry,
            network,
            random: Random(seed),
            now: 0,
            client: Client::new(config, 3),
            server: Server::new(geometry, 4),
            wishes,
            in_flight: BTreeMap::new(),
            sent: 0,
            responses: BTreeMap::new(),
            served: BTreeMap::new(),
            executed: BTreeSet::new(),
            running: Vec::new(),
            ended: BTreeMap::new(),
        }
    }

    fn send(&mut self, is_to_server: bool, header: Header, data: &[u8]) {
        // As on the wire: only what the header says survives.
        let mut bytes = vec![0; self.geometry.link().header_bytes()];
        header.encode(self.geometry.link(), &mut bytes);
        let header = Header::decode(self.geometry.link(), &bytes).expect("a packet");
        let copies = if self.random.percent(self.network.repeated) { 2 } else { 1 };
        for _ in 0..copies {
            if self.random.percent(self.network.lost) {
                continue;
            }
            let delay = 1 + self.random.below(u64::from(self.network.delay_max) + 1);
            self.sent += 1;
            let at = (self.now + delay, self.sent);
            self.in_flight.insert(at, (is_to_server, header, data.to_vec()));
        }
    }

    fn transmit(&mut self) {
        while let Some(packet) = self.client.poll_transmit(self.now * STEP_NS) {
            let wish = self.wishes[packet.cookie as usize];
            let body = request_of(packet.cookie, wish.request_bytes);
            self.send(true, packet.header, cut(&body, packet.span));
        }
        while let Some(packet) = self.server.poll_transmit() {
            let body = &self.served[&packet.request.slot()].response;
            let data = cut(body, packet.span).to_vec();
            self.send(false, packet.header, &data);
        }
    }

    fn arrive(&mut self) {
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (is_to_server, header, data) = entry.remove();
            if is_to_server {
                self.at_server(&header, &data)
            } else {
                self.at_client(&header, &data)
            }
        }
    }

    fn at_server(&mut self, header: &Header, data: &[u8]) {
        assert_eq!(header.dest_session, 3);
        let received = self.server.receive(header, data.len() as u32);
        let server::Received::Data { request, req_type, span, msg_bytes, is_first, is_last } =
            received
        else {
            return;
        };
        let buffers = self.served.entry(request.slot()).or_default();
        if is_first {
            *buffers = Buffers { request: vec![0; msg_bytes as usize], response: Vec::new() };
        }
        paste(&mut buffers.request, span, data);
        if is_last {
            assert!(self.executed.insert(request), "{request:?} is executed twice");
            let steps = self.wishes.iter().map(|wish| u64::from(wish.handler_steps)).max();
            let steps = steps.unwrap_or(0).min(u64::from(req_type));
            // The length of a request names the answer; the world knows the rest.
            self.running.push((self.now + steps, request, msg_bytes));
        }
    }

    fn serve(&mut self) {
        let done: Vec<_> = self.running.extract_if(.., |(at, ..)| *at <= self.now).collect();
        for (_, request, msg_bytes) in done {
            let buffers = self.served.get_mut(&request.slot()).expect("it was received");
            let of = |wish: &&Wish| wish.request_bytes == msg_bytes;
            let wish = self.wishes.iter().find(of).expect("it was asked for");
            buffers.response = response_of(&buffers.request, wish.response_bytes);
            self.server.respond(request, wish.response_bytes).expect("the client waits");
        }
    }

    fn at_client(&mut self, header: &Header, data: &[u8]) {
        assert_eq!(header.dest_session, 4);
        let now_ns = self.now * STEP_NS;
        let received = self.client.receive(header, data.len() as u32, now_ns);
        if let client::Received::Data { cookie, span, complete } = received {
            let wish = self.wishes[cookie as usize];
            let room = self
                .responses
                .entry(cookie)
                .or_insert_with(|| vec![0; wish.response_bytes as usize]);
            paste(room, span, data);
            if let Some(bytes) = complete {
                let request = request_of(cookie, wish.request_bytes);
                assert_eq!(room, &response_of(&request, wish.response_bytes), "call {cookie}");
                assert!(self.ended.insert(cookie, Ok(bytes)).is_none(), "call {cookie} ends twice");
            }
        }
    }

    fn step(&mut self) {
        self.now += 1;
        self.arrive();
        self.serve();
        self.client.handle_timeout(self.now * STEP_NS);
        while let Some(ended) = self.client.poll_ended() {
            assert!(self.ended.insert(ended.cookie, Err(ended)).is_none(), "a call ends twice");
        }
        self.transmit();
    }

    fn run(&mut self, steps_max: u64) {
        for (cookie, wish) in self.wishes.clone().into_iter().enumerate() {
            let call = Call {
                cookie: cookie as u64,
                req_type: wish.handler_steps,
                request_bytes: wish.request_bytes,
                response_bytes_max: wish.response_bytes,
                deadline_ns: wish
                    .deadline_steps
                    .map_or(NEVER_NS, |steps| u64::from(steps) * STEP_NS),
            };
            self.client.call(call, 0).expect("the backlog has room");
        }
        self.transmit();
        while self.client.outstanding() > 0 || !self.client.is_idle() {
            self.step();
            assert!(self.now < steps_max, "no progress: {:?}", self.client);
        }
    }
}

fn cut(body: &[u8], span: Span) -> &[u8] {
    &body[span.at_bytes as usize..][..span.len_bytes as usize]
}

fn paste(room: &mut [u8], span: Span, data: &[u8]) {
    room[span.at_bytes as usize..][..span.len_bytes as usize]
        .copy_from_slice(&data[..span.len_bytes as usize]);
}

fn wishes(with_deadlines: bool) -> impl Strategy<Value = Vec<Wish>> {
    let deadline =
        if with_deadlines { (1..400u16).prop_map(Some).boxed() } else { Just(None).boxed() };
    let wish = (0..600u32, 0..600u32, 0..40u8, deadline);
    proptest::collection::vec(wish, 1..40).prop_map(|list| {
        // The length of a request names its wish.
        let mut wishes: Vec<Wish> = Vec::new();
        for (request_bytes, response_bytes, handler_steps, deadline_steps) in list {
            if wishes.iter().all(|wish| wish.request_bytes != request_bytes) {
                wishes.push(Wish { request_bytes, response_bytes, handler_steps, deadline_steps });
            }
        }
        wishes
    })
}

fn network() -> impl Strategy<Value = Network> {
    (0..30u8, 0..30u8, 0..20u8).prop_map(|(lost, repeated, delay_max)| Network {
        lost,
        repeated,
        delay_max,
    })
}

fn geometry() -> Geometry {
    Geometry::with_mtu(Link::Roce, 56 + 64).expect("packets of 64 B")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 200 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Rules E2.2 to E2.7, E3.1, E3.3.
    #[test]
    fn every_call_is_executed_once_and_answered_whole(
        seed: u64, network in network(), wishes in wishes(false),
    ) {
        let mut world = World::new(geometry(), network, seed, wishes);
        world.run(100_000);
        prop_assert_eq!(world.executed.len(), world.wishes.len());
        prop_assert_eq!(world.ended.len(), world.wishes.len());
        for (cookie, ended) in &world.ended {
            prop_assert_eq!(*ended, Ok(world.wishes[*cookie as usize].response_bytes));
        }
    }

    /// Rule E4.1: a call that was given up leaves its slot usable, and no request is executed twice.
    #[test]
    fn every_call_ends_by_its_deadline(
        seed: u64, network in network(), wishes in wishes(true),
    ) {
        let mut world = World::new(geometry(), network, seed, wishes);
        world.run(100_000);
        prop_assert_eq!(world.ended.len(), world.wishes.len());
        for ended in world.ended.values().filter_map(|ended| ended.err()) {
            prop_assert_eq!(ended.status, Status::DeadlineExceeded);
        }
    }

    /// Rule E1.3: headers that no correct peer sends change nothing that the next call would notice.
    #[test]
    fn no_header_makes_either_end_panic(
        headers in proptest::collection::vec(
            (any::<u8>(), 0..2000u32, 0..4u8, 0..40u16, 0..40u64, 0..80u32), 0..60),
        wishes in wishes(false),
    ) {
        let mut world = World::new(geometry(), Network { lost: 0, repeated: 0, delay_max: 3 }, 1, wishes);
        for (cookie, wish) in world.wishes.clone().into_iter().enumerate() {
            let call = Call {
                cookie: cookie as u64, req_type: 1, request_bytes: wish.request_bytes,
                response_bytes_max: wish.response_bytes, deadline_ns: NEVER_NS,
            };
            world.client.call(call, 0).expect("the backlog has room");
        }
        for (req_type, msg_bytes, kind, pkt_num, req_num, data_bytes) in headers {
            let kind = [PacketKind::Request, PacketKind::RequestForResponse, PacketKind::CreditReturn, PacketKind::Response]
                [usize::from(kind)];
            let header = Header { req_type, msg_bytes, dest_session: 0, kind, pkt_num, req_num };
            let _ = world.client.poll_transmit(0);
            let _ = world.client.receive(&header, data_bytes, 0);
            if let server::Received::Data { request, is_last: true, .. } =
                world.server.receive(&header, data_bytes)
            {
                world.server.respond(request, msg_bytes).expect("it was just received");
            }
            let _ = world.server.poll_transmit();
        }
    }
}
