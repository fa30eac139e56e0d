//! A server and its clients on one thread, over heap memory and in virtual time: the same seed makes
//! the same trace.
#![cfg(not(loom))]

use std::{collections::BTreeMap, time::Duration};

use copyrpc_ipc::{
    CallError, CallOutcome, ClientId, EvictReason, ServerConfig,
    sans_os::{ClientCore, Notice, OpenRequest, RequestId, ServerCore},
};

const TIMEOUT_NS: u64 = 20_000;
/// How long a wakeup or the notice of a death travels.
const WAKEUP_NS: u64 = 5_000;
/// How long the server sleeps without a wakeup.
const NAP_NS: u64 = 100_000_000;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What happens, and is compared between two runs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Submitted { client: usize, number: u64 },
    Taken { id: RequestId, number: u64 },
    Answered { id: RequestId, is_there: bool },
    Ended { client: usize, number: u64, outcome: Result<u64, CallError> },
    ServerSleeps,
    ServerWoken,
    ClientSleeps { client: usize },
    ClientWoken { client: usize },
    Left { client: usize },
}

/// An event that is on its way.
enum Arrival {
    WakeServer(ClientId),
    WakeClient(usize),
    Departed(ClientId),
}

struct Client {
    id: ClientId,
    core: ClientCore<u64>,
    slot: u16,
    sleeps_until_ns: Option<u64>,
    empty_polls: u32,
}

struct World {
    now_ns: u64,
    rng: Rng,
    server: ServerCore,
    sleeps_until_ns: Option<u64>,
    empty_turns: u32,
    clients: Vec<Client>,
    deferred: Vec<(RequestId, u64)>,
    arrivals: BTreeMap<(u64, u64), Arrival>,
    /// Requests ever submitted, and whether each has ended.
    ended: Vec<bool>,
    sent: u64,
    is_draining: bool,
    trace: Vec<(u64, Event)>,
}

fn config() -> ServerConfig {
    ServerConfig {
        depth: 4,
        request_bytes_max: 100,
        response_bytes_max: 100,
        clients_max: 4,
        turn_budget: 2,
        first_position: u64::MAX - 100,
        ..ServerConfig::default()
    }
}

fn admitted(server: &mut ServerCore) -> Client {
    let (id, welcome, memory) = server.admit_on_heap().unwrap().expect("a slot is free");
    let core = ClientCore::new(&welcome, memory, 0);
    Client { id, core, slot: welcome.slot, sleeps_until_ns: None, empty_polls: 0 }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut server = ServerCore::on_heap(config()).unwrap();
        let clients = (0..3).map(|_| admitted(&mut server)).collect();
        Self {
            now_ns: 1_000_000_000,
            rng: Rng(seed),
            server,
            sleeps_until_ns: None,
            empty_turns: 0,
            clients,
            deferred: Vec::new(),
            arrivals: BTreeMap::new(),
            ended: Vec::new(),
            sent: 0,
            is_draining: false,
            trace: Vec::new(),
        }
    }

    fn note(&mut self, event: Event) {
        self.trace.push((self.now_ns, event));
    }

    fn send(&mut self, arrival: Arrival) {
        self.sent += 1;
        let due_ns = self.now_ns + WAKEUP_NS + self.rng.below(WAKEUP_NS);
        self.arrivals.insert((due_ns, self.sent), arrival);
    }

    /// Lets time pass, and one of the actors act.
    fn step(&mut self) {
        self.now_ns += 1 + self.rng.below(200);
        if self.everybody_sleeps() {
            let arrival_ns = self.arrivals.keys().next().map(|(due_ns, _)| *due_ns);
            let naps = self.clients.iter().filter_map(|client| client.sleeps_until_ns);
            let next_ns = naps.chain(self.sleeps_until_ns).chain(arrival_ns).min();
            self.now_ns = self.now_ns.max(next_ns.expect("the server wakes up by itself"));
        }
        while let Some(entry) = self.arrivals.first_entry()
            && entry.key().0 <= self.now_ns
        {
            let arrival = entry.remove();
            self.arrive(arrival);
        }
        let actors = self.clients.len() as u64 + 1;
        match usize::try_from(self.rng.below(actors)).unwrap() {
            0 => self.serve(),
            actor => self.call(actor - 1),
        }
    }

    fn everybody_sleeps(&self) -> bool {
        self.sleeps_until_ns.is_some()
            && self.clients.iter().all(|client| client.sleeps_until_ns.is_some())
    }

    fn arrive(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::WakeServer(client) => {
                self.server.woken(client);
                self.end_nap();
            }
            Arrival::WakeClient(client) => self.wake_client(client),
            Arrival::Departed(id) => {
                self.server.departed(id);
                self.end_nap();
                let fresh = admitted(&mut self.server);
                let gone = self.clients.iter().position(|client| client.id == id);
                self.clients[gone.expect("it left")] = fresh;
            }
        }
    }

    fn end_nap(&mut self) {
        if self.sleeps_until_ns.take().is_some() {
            self.note(Event::ServerWoken);
            self.server.wake_up();
        }
        self.server.housekeep(self.now_ns);
        self.deliver();
    }

    fn deliver(&mut self) {
        while let Some(notice) = self.server.next_notice() {
            let Notice::Wake(slot) = notice else { panic!("honest clients stay: {notice:?}") };
            let sleeper = self.clients.iter().position(|client| client.slot == slot);
            self.send(Arrival::WakeClient(sleeper.expect("a client that is there")));
        }
    }

    /// One turn of the server.
    fn serve(&mut self) {
        match self.sleeps_until_ns {
            Some(until_ns) if self.now_ns < until_ns => return,
            Some(_) => self.end_nap(),
            None => {}
        }
        while let Some(OpenRequest { id, payload, replies }) = self.server.take() {
            let number = u64::from_le_bytes(payload[..8].try_into().unwrap());
            self.trace.push((self.now_ns, Event::Taken { id, number }));
            self.deferred.push((id, number));
            // Some other request, or this one, now; the rest later.
            if !self.rng.one_in(3) {
                let lucky = self.rng.below(self.deferred.len() as u64);
                let (id, number) = self.deferred.swap_remove(usize::try_from(lucky).unwrap());
                let is_there = replies.reply_parts(id, &[&(!number).to_le_bytes(), b"!"]).is_ok();
                self.trace.push((self.now_ns, Event::Answered { id, is_there }));
            }
        }
        self.deliver();
        if (self.is_draining || self.rng.one_in(24))
            && let Some((id, number)) = self.deferred.pop()
        {
            let is_there = self.server.replies().reply(id, &(!number).to_le_bytes()).is_ok();
            self.note(Event::Answered { id, is_there });
        }
        if self.server.is_clock_due() && self.server.tick(self.now_ns) {
            self.server.housekeep(self.now_ns);
        }
        self.empty_turns = if self.server.was_busy() { 0 } else { self.empty_turns + 1 };
        if self.empty_turns > 20 && (self.deferred.is_empty() || self.rng.one_in(8)) {
            self.empty_turns = 0;
            if self.server.arm() {
                self.sleeps_until_ns = Some(self.now_ns + NAP_NS);
                self.note(Event::ServerSleeps);
            } else {
                self.server.wake_up();
            }
        }
        self.deliver();
    }

    fn wake_client(&mut self, index: usize) {
        if self.clients[index].sleeps_until_ns.take().is_some() {
            self.note(Event::ClientWoken { client: index });
            self.clients[index].core.disarm();
        }
    }

    /// One step of a client.
    fn call(&mut self, index: usize) {
        if self.clients[index].core.gone().is_some() {
            return;
        }
        match self.clients[index].sleeps_until_ns {
            Some(until_ns) if self.now_ns < until_ns => return,
            Some(_) => self.wake_client(index),
            None => {}
        }
        if !self.is_draining {
            if self.rng.one_in(4) {
                self.submit(index);
            }
            if self.rng.one_in(2000) {
                return self.leave(index);
            }
        }
        let id = self.clients[index].id;
        if self.clients[index].core.announce() {
            self.send(Arrival::WakeServer(id));
        }
        self.poll(index);
        let client = &mut self.clients[index];
        if client.empty_polls > 20 {
            client.empty_polls = 0;
            let wakes_server = client.core.flush();
            if client.core.arm(self.now_ns) {
                let until_ns = client.core.earliest_deadline_ns().min(self.now_ns + NAP_NS);
                client.sleeps_until_ns = Some(until_ns);
                self.note(Event::ClientSleeps { client: index });
            } else {
                client.core.disarm();
            }
            if wakes_server {
                self.send(Arrival::WakeServer(id));
            }
        }
    }

    fn submit(&mut self, index: usize) {
        let number = self.ended.len() as u64;
        let tail = vec![7; usize::try_from(self.rng.below(90)).unwrap()];
        let core = &mut self.clients[index].core;
        let in_flight = core.in_flight();
        match core.submit_parts(&[&number.to_le_bytes(), &tail], TIMEOUT_NS, number) {
            Ok(_) => {
                self.ended.push(false);
                self.note(Event::Submitted { client: index, number });
            }
            Err((error, _)) => {
                // Late responses hold entries, too.
                assert!(in_flight <= 4 && error == CallError::Full { depth: 4 }, "{error}");
            }
        }
    }

    fn poll(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let Self { clients, ended, trace, .. } = self;
        let Client { core, empty_polls, .. } = &mut clients[index];
        let mut done = |number: u64, outcome: CallOutcome<'_>| {
            let is_first = !core::mem::replace(&mut ended[usize::try_from(number).unwrap()], true);
            assert!(is_first, "call {number} ended twice");
            let word = |response: &[u8]| u64::from_le_bytes(response[..8].try_into().unwrap());
            let outcome = outcome.map(word).map_err(|failed| failed.error);
            assert!(matches!(outcome, Ok(word) if word == !number) || outcome.is_err());
            trace.push((now_ns, Event::Ended { client: index, number, outcome }));
        };
        let polled = core.poll(&mut done);
        if polled.is_clock_due {
            core.tick(now_ns, &mut done);
        }
        *empty_polls = if polled.ended > 0 { 0 } else { *empty_polls + 1 };
    }

    /// The client dies, with calls in flight.
    fn leave(&mut self, index: usize) {
        self.note(Event::Left { client: index });
        let Client { id, core, sleeps_until_ns, .. } = &mut self.clients[index];
        let (id, ended) = (*id, &mut self.ended);
        core.looked(true);
        core.end_if_gone(&mut |number, _| {
            let is_first = !core::mem::replace(&mut ended[usize::try_from(number).unwrap()], true);
            assert!(is_first, "call {number} ended twice");
        });
        *sleeps_until_ns = Some(u64::MAX);
        self.send(Arrival::Departed(id));
    }

    fn in_flight(&self) -> usize {
        self.clients.iter().map(|client| client.core.in_flight()).sum()
    }
}

/// Runs a world until everything that was submitted has ended.
fn run(seed: u64, steps: u32) -> Vec<(u64, Event)> {
    let mut world = World::new(seed);
    for _ in 0..steps {
        world.step();
    }
    world.is_draining = true;
    let is_busy = |world: &World| {
        world.in_flight() > 0 || !world.deferred.is_empty() || !world.arrivals.is_empty()
    };
    for _ in 0..1_000_000 {
        if !is_busy(&world) {
            break;
        }
        world.step();
    }
    assert!(!is_busy(&world), "everything ends");
    assert!(world.ended.iter().all(|ended| *ended), "each call ends once");
    for client in 0..world.clients.len() {
        assert_eq!(world.server.unanswered(world.clients[client].id), 0);
    }
    let stats = world.server.stats();
    assert_eq!((stats.evicted, stats.missed_hints, stats.clients), (0, 0, 3));
    world.trace
}

#[test]
fn the_same_seed_makes_the_same_trace_and_every_call_ends_once() {
    let (seeds, steps) = if cfg!(miri) { (1, 500) } else { (10, 20_000) };
    let mut traces = Vec::new();
    for seed in 0..seeds {
        let trace = run(seed, steps);
        assert!(trace == run(seed, steps), "seed {seed}");
        traces.push(trace);
    }
    assert!(traces.windows(2).all(|pair| pair[0] != pair[1]), "seeds differ");
    if cfg!(miri) {
        return;
    }
    // The traces have in them what can go wrong.
    let count = |is_it: fn(&Event) -> bool| {
        traces.iter().flatten().filter(|(_, event)| is_it(event)).count()
    };
    for (what, count) in [
        ("answers", count(|event| matches!(event, Event::Ended { outcome: Ok(_), .. }))),
        ("deadlines", count(|event| matches!(event, Event::Ended { outcome: Err(_), .. }))),
        ("sleeps", count(|event| matches!(event, Event::ServerSleeps))),
        ("naps", count(|event| matches!(event, Event::ClientWoken { .. }))),
        ("departures", count(|event| matches!(event, Event::Left { .. }))),
        ("answers to the gone", count(|e| matches!(e, Event::Answered { is_there: false, .. }))),
    ] {
        assert!(count > 20, "{what}: {count}");
    }
}

#[test]
fn a_call_ends_at_its_deadline_in_virtual_time() {
    let mut server = ServerCore::on_heap(config()).unwrap();
    let mut client = admitted(&mut server).core;
    client.submit(b"nobody serves this", 1000, 5).unwrap();
    let mut nothing = |_, _: CallOutcome<'_>| panic!("too early");
    assert_eq!(client.tick(10_000, &mut nothing), 0);
    assert_eq!(client.earliest_deadline_ns(), 11_000);
    assert_eq!(client.tick(10_999, &mut nothing), 0);
    let mut late = |number, outcome: CallOutcome<'_>| {
        assert_eq!((number, outcome), (5, Err(CallError::Deadline.into())));
    };
    assert_eq!(client.tick(11_000, &mut late), 1);
}

#[test]
fn a_client_that_never_reads_is_evicted_after_30_virtual_seconds() {
    let mut server = ServerCore::on_heap(config()).unwrap();
    let mut glutton = admitted(&mut server);
    for number in 0..4 {
        glutton.core.submit(b"x", u64::MAX, number).unwrap();
    }
    assert!(!glutton.core.flush(), "the server does not sleep");
    for _ in 0..2 {
        while let Some(request) = server.take() {
            request.replies.reply(request.id, b"unread").unwrap();
        }
    }
    let second = |second: u64| Duration::from_secs(second).as_nanos().try_into().unwrap();
    for now in 1..=31 {
        server.housekeep(second(now));
        assert_eq!(server.next_notice(), None, "after {now} s");
    }
    server.housekeep(second(32));
    assert_eq!(server.next_notice(), Some(Notice::Disconnect(glutton.slot)));
    glutton.core.looked(true);
    assert_eq!(glutton.core.gone(), Some(CallError::Evicted(EvictReason::Stalled)));
    // What was answered before the end is answered.
    let ended = glutton.core.end_if_gone(&mut |_, outcome| assert_eq!(outcome, Ok(&b"unread"[..])));
    assert_eq!(ended, 4);
}
