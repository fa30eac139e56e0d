//! Daemons and their clients on one thread, in virtual time: whole clusters that step in turn.
//!
//! Nothing here looks at a clock. Each daemon is the real one on a real software NIC; what is made up
//! is its clients, the datagrams between daemons, and time.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    rc::Rc,
    time::Duration,
};

use copyrpc_node::{
    bootstrap::{JobId, Place, Secret},
    daemon::{Codec, Control, Daemon, Front, Next, Parts, Services, Status, wire},
    membership::DetectorConfig,
    metrics::{Counter, MetricsFile, Snapshot},
};
use proptest::{collection::vec, prelude::*};
use zerocopy::{FromBytes as _, IntoBytes as _};

mod common;
use common::TempFolder;

const MS: u64 = 1_000_000;
/// Virtual time of one turn of all daemons.
const TURN_NS: u64 = 10_000;

const ECHO: u16 = 7;
const PANIC: u16 = 8;
const ABSENT: u16 = 9;
const PROVIDED: u16 = 10;

/// Clients that exist only as queues.
#[derive(Default)]
struct Clients {
    /// `(client, request)`, in order.
    requests: VecDeque<(u32, Call)>,
    answers: VecDeque<(u32, u64, Status, Vec<u8>)>,
    gone: Vec<u32>,
    departures: u64,
}

struct Call {
    number: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Default)]
struct TestFront(Rc<RefCell<Clients>>);

/// Dropping it answers nobody, which the test would notice.
#[derive(Debug)]
struct Token {
    client: u32,
    number: u64,
}

impl Front for TestFront {
    type Token = Token;
    type Client = u32;

    fn next(
        &mut self,
        serve: impl FnOnce(u32, &[u8], &mut Vec<u8>) -> Option<Status>,
    ) -> Next<Token> {
        let Some((client, Call { number, bytes })) = self.0.borrow_mut().requests.pop_front()
        else {
            return Next::End;
        };
        let mut body = Vec::new();
        match serve(client, &bytes, &mut body) {
            Some(status) => {
                self.0.borrow_mut().answers.push_back((client, number, status, body));
                Next::Answered
            }
            None => Next::Deferred(Token { client, number }),
        }
    }

    fn reply(&mut self, token: Token, status: Status, body: &[u8]) {
        let answer = (token.client, token.number, status, body.to_vec());
        self.0.borrow_mut().answers.push_back(answer);
    }

    fn is_there(&self, client: u32) -> bool {
        !self.0.borrow().gone.contains(&client)
    }

    fn departures(&self) -> u64 {
        self.0.borrow().departures
    }

    fn census(&self) -> (u64, u64, u64) {
        (0, 0, 0)
    }
}

/// Datagrams in flight, and ways that are cut.
#[derive(Default)]
struct Air {
    inboxes: BTreeMap<u32, VecDeque<Vec<u8>>>,
    cut: Vec<(u32, u32)>,
}

struct TestControl {
    rank: u32,
    air: Rc<RefCell<Air>>,
}

impl Control for TestControl {
    type From = ();

    fn send(&mut self, to: u32, datagram: &[u8]) {
        let mut air = self.air.borrow_mut();
        if !air.cut.contains(&(self.rank, to)) {
            air.inboxes.entry(to).or_default().push_back(datagram.to_vec());
        }
    }

    fn recv(&mut self, into: &mut [u8]) -> Option<(usize, ())> {
        let datagram = self.air.borrow_mut().inboxes.get_mut(&self.rank)?.pop_front()?;
        // As the kernel does: what does not fit is cut off.
        let len = datagram.len().min(into.len());
        into[..len].copy_from_slice(&datagram[..len]);
        Some((len, ()))
    }

    fn learn(&mut self, _: u32, (): ()) {}
}

struct Node {
    daemon: Daemon<softnic::Nic, TestFront, TestControl>,
    front: TestFront,
    _metrics: MetricsFile,
    path: std::path::PathBuf,
}

struct Cluster {
    nodes: Vec<Option<Node>>,
    air: Rc<RefCell<Air>>,
    fabric: String,
    folder: TempFolder,
    now_ns: u64,
    next: u64,
    /// Answers by the number of their call.
    ended: BTreeMap<u64, (Status, Vec<u8>)>,
    trace: String,
}

impl Cluster {
    fn new(name: &str, size: u32) -> Self {
        let mut cluster = Self {
            nodes: (0..size).map(|_| None).collect(),
            air: Rc::default(),
            fabric: format!("node-{name}-{}", std::process::id()),
            folder: TempFolder::new(name),
            now_ns: MS,
            next: 1,
            ended: BTreeMap::new(),
            trace: String::new(),
        };
        for rank in 0..size {
            cluster.start(rank, 100);
        }
        cluster
    }

    fn start(&mut self, rank: u32, epoch: u64) {
        let place = Place::new(rank, u32::try_from(self.nodes.len()).unwrap()).unwrap();
        let path = self.folder.path().join(format!("{rank}.metrics"));
        let (metrics, mut recorders) = MetricsFile::create(&path, "test", place, 1, 0).unwrap();
        let front = TestFront::default();
        let mut services = Services::default();
        services
            .offer(
                ECHO,
                Box::new(|inbound, body| {
                    body.extend_from_slice(inbound.body);
                    body.extend_from_slice(&inbound.rank.to_le_bytes());
                    Status::Ok
                }),
            )
            .unwrap();
        services.offer(PANIC, Box::new(|_, _| panic!("a handler that panics"))).unwrap();
        let parts = Parts {
            place,
            detector: DetectorConfig {
                interval_ns: 10 * MS,
                suspect_after_ns: 50 * MS,
                dead_after_ns: 150 * MS,
            },
            epoch,
            codec: Codec::new(JobId::new("test").unwrap(), Secret::from_bytes(b"secret"), rank),
            services,
            recorder: recorders.remove(0),
            call_timeout: Duration::from_millis(500),
            body_bytes_max: 4096,
            sample_every: 0,
            clock: || 0,
        };
        let nic = softnic::Config { fabric: self.fabric.clone(), ..softnic::Config::default() };
        let nic = softnic::open(&nic).unwrap();
        let config = rpc::Config { peers_max: 8, ..rpc::Config::default() };
        let worker = rpc::Worker::open(nic, config, self.now_ns).unwrap();
        let control = TestControl { rank, air: Rc::clone(&self.air) };
        let daemon = Daemon::new(worker, front.clone(), control, parts, self.now_ns);
        self.nodes[rank as usize] = Some(Node { daemon, front, _metrics: metrics, path });
    }

    fn kill(&mut self, rank: u32) {
        self.nodes[rank as usize] = None;
        self.air.borrow_mut().inboxes.remove(&rank);
    }

    fn node(&mut self, rank: u32) -> &mut Node {
        self.nodes[rank as usize].as_mut().unwrap()
    }

    fn turn(&mut self) {
        self.now_ns += TURN_NS;
        for rank in 0..self.nodes.len() {
            let Some(node) = &mut self.nodes[rank] else { continue };
            node.daemon.step(self.now_ns);
            while let Some(answer) = { node.front.0.borrow_mut().answers.pop_front() } {
                let (client, number, status, body) = answer;
                let _ = writeln!(
                    self.trace,
                    "{} {rank}/{client} {number} {status:?} {body:02x?}",
                    self.now_ns
                );
                let before = self.ended.insert(number, (status, body));
                assert!(before.is_none(), "call {number} ended twice");
            }
        }
    }

    #[track_caller]
    fn until(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..200_000 {
            if is_done(self) {
                return;
            }
            self.turn();
        }
        panic!("two seconds of virtual time were not enough");
    }

    fn run_for(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            self.turn();
        }
    }

    fn wait_all_up(&mut self) {
        self.until(|cluster| {
            let peers = cluster.nodes.iter().flatten().count() - 1;
            cluster.nodes.iter().flatten().all(|node| node.daemon.peers_up() == peers)
        });
    }

    fn call(&mut self, from: u32, client: u32, to: u32, service: u16, body: &[u8]) -> u64 {
        self.call_method(from, client, (to, service, 3), body)
    }

    fn call_method(
        &mut self,
        from: u32,
        client: u32,
        (to, service, method): (u32, u16, u16),
        body: &[u8],
    ) -> u64 {
        let head = wire::CallHead {
            rank: to.into(),
            service: service.into(),
            method: method.into(),
            timeout_us: 0.into(),
            response_bytes: 64.into(),
        };
        let number = self.next;
        self.next += 1;
        let bytes = [head.as_bytes(), body].concat();
        let requests = &mut self.node(from).front.0.borrow_mut().requests;
        requests.push_back((client, Call { number, bytes }));
        number
    }

    #[track_caller]
    fn outcome(&mut self, number: u64) -> (Status, Vec<u8>) {
        self.until(|cluster| cluster.ended.contains_key(&number));
        self.ended[&number].clone()
    }

    fn total(&mut self, rank: u32, counter: Counter) -> u64 {
        Snapshot::read(&self.node(rank).path).unwrap().total().counter(counter)
    }
}

fn echoed(body: &[u8], rank: u32) -> (Status, Vec<u8>) {
    (Status::Ok, [body, &rank.to_le_bytes()].concat())
}

/// Two daemons and ten clients that call at random; what happened, in order.
fn random_run(name: &str, mut seed: u64) -> String {
    let mut cluster = Cluster::new(name, 2);
    cluster.wait_all_up();
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let mut expected = BTreeMap::new();
    for _ in 0..400 {
        for _ in 0..random(8) {
            let client = u32::try_from(random(10)).unwrap();
            let (from, to) = (client % 2, u32::try_from(random(2)).unwrap());
            let body =
                vec![u8::try_from(random(256)).unwrap(); usize::try_from(random(300)).unwrap()];
            let number = cluster.call(from, client, to, ECHO, &body);
            expected.insert(number, echoed(&body, from));
        }
        cluster.turn();
    }
    cluster.until(|cluster| cluster.ended.len() == expected.len());
    assert_eq!(cluster.ended, expected);
    assert_eq!(cluster.node(0).daemon.outstanding() + cluster.node(1).daemon.outstanding(), 0);
    cluster.trace
}

#[test]
fn two_daemons_and_ten_clients_on_one_thread_same_seed_same_trace() {
    let (first, second) = (random_run("trace-a", 7), random_run("trace-b", 7));
    assert!(first.lines().count() > 1000);
    assert_eq!(first, second);
    assert_ne!(first, random_run("trace-c", 8));
}

#[test]
fn local_calls_never_touch_the_nic() {
    let mut cluster = Cluster::new("local", 2);
    cluster.wait_all_up();
    for to in [0, wire::HERE] {
        let number = cluster.call(0, 1, to, ECHO, b"here");
        assert_eq!(cluster.outcome(number), echoed(b"here", 0));
    }
    assert_eq!(cluster.total(0, Counter::RequestsLocal), 2);
    assert_eq!(
        (cluster.total(0, Counter::RequestsRemote), cluster.total(0, Counter::BytesOut)),
        (0, 0)
    );
    assert_eq!(cluster.total(1, Counter::Incoming), 0);
    let remote = cluster.call(0, 1, 1, ECHO, b"there");
    assert_eq!(cluster.outcome(remote), echoed(b"there", 0));
    cluster.run_for(2 * MS);
    assert_eq!(
        (cluster.total(0, Counter::Flushes), cluster.total(0, Counter::RequestsRemote)),
        (1, 1)
    );
}

#[test]
fn fault_a10_a_handler_that_panics_or_is_absent_gives_a_status_and_the_daemon_lives() {
    let mut cluster = Cluster::new("panic", 2);
    cluster.wait_all_up();
    for to in [0, 1] {
        let panics = cluster.call(0, 1, to, PANIC, b"");
        assert_eq!(cluster.outcome(panics), (Status::Internal, vec![]));
        let absent = cluster.call(0, 1, to, ABSENT, b"");
        assert_eq!(cluster.outcome(absent), (Status::Unimplemented, vec![]));
        let alive = cluster.call(0, 1, to, ECHO, b"alive");
        assert_eq!(cluster.outcome(alive), echoed(b"alive", 0));
    }
    let nowhere = cluster.call(0, 1, 2, ECHO, b"");
    assert_eq!(cluster.outcome(nowhere).0, Status::NotFound);
}

#[test]
fn fault_c5_lengths_around_the_limits_are_answered_or_refused() {
    let mut cluster = Cluster::new("lengths", 2);
    cluster.wait_all_up();
    for len in [0, 1, 4092, 4096, 16_000, 16_384, 20_000] {
        let body = vec![5; len];
        let number = cluster.call(0, 1, 1, ECHO, &body);
        assert_eq!(cluster.outcome(number), echoed(&body, 0), "{len} B");
    }
    let nothing = cluster.next;
    cluster.next += 1;
    let short = (1, Call { number: nothing, bytes: vec![1, 2, 3] });
    cluster.node(0).front.0.borrow_mut().requests.push_back(short);
    assert_eq!(cluster.outcome(nothing).0, Status::InvalidArgument);
}

/// Asks for work as a provider does, with an answer to earlier work.
fn serve(cluster: &mut Cluster, client: u32, work: u64, answer: &[u8]) -> u64 {
    let mut body = Vec::new();
    body.extend_from_slice(&work.to_le_bytes());
    body.extend_from_slice(&PROVIDED.to_le_bytes());
    body.extend_from_slice(&[Status::Ok.code(), 0, 0, 0, 0, 0]);
    body.extend_from_slice(answer);
    cluster.call_method(1, client, (1, wire::DAEMON, wire::method::SERVE), &body)
}

fn register(cluster: &mut Cluster, client: u32) -> Status {
    let how = (1, wire::DAEMON, wire::method::REGISTER);
    let number = cluster.call_method(1, client, how, &PROVIDED.to_le_bytes());
    cluster.outcome(number).0
}

/// Name, caller's rank and body of the work that a provider was given.
fn work_of(cluster: &mut Cluster, take: u64) -> (u64, u32, Vec<u8>) {
    let (status, bytes) = cluster.outcome(take);
    assert_eq!(status, Status::Ok);
    let name = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    (name, u32::from_le_bytes(bytes[8..12].try_into().unwrap()), bytes[16..].to_vec())
}

#[test]
fn a_client_process_provides_a_service_to_both_nodes() {
    let mut cluster = Cluster::new("provider", 2);
    cluster.wait_all_up();
    assert_eq!(register(&mut cluster, 50), Status::Ok);
    assert_eq!(register(&mut cluster, 51), Status::AlreadyExists);
    let (remote, local) =
        (cluster.call(0, 1, 1, PROVIDED, b"remote"), cluster.call(1, 2, 1, PROVIDED, b"local"));
    let take = serve(&mut cluster, 50, 0, b"");
    let (first, from, body) = work_of(&mut cluster, take);
    assert_eq!((from, &body[..]), (1, &b"local"[..]), "it was there first");
    let take = serve(&mut cluster, 50, first, b"for local");
    assert_eq!(cluster.outcome(local), (Status::Ok, b"for local".to_vec()));
    let (second, from, body) = work_of(&mut cluster, take);
    assert_eq!((from, &body[..]), (0, &b"remote"[..]));
    serve(&mut cluster, 50, second, b"for remote");
    assert_eq!(cluster.outcome(remote), (Status::Ok, b"for remote".to_vec()));
    assert_eq!(cluster.node(1).daemon.outstanding(), 0);
}

#[test]
fn fault_b5_answers_of_others_forged_and_twice_are_ignored() {
    let mut cluster = Cluster::new("forged", 2);
    cluster.wait_all_up();
    assert_eq!(register(&mut cluster, 50), Status::Ok);
    let call = cluster.call(0, 1, 1, PROVIDED, b"x");
    let take = serve(&mut cluster, 50, 0, b"");
    let (name, ..) = work_of(&mut cluster, take);
    let stranger = serve(&mut cluster, 51, name, b"not mine");
    assert_eq!(cluster.outcome(stranger).0, Status::FailedPrecondition);
    serve(&mut cluster, 50, name + 1, b"forged");
    cluster.run_for(5 * MS);
    assert!(!cluster.ended.contains_key(&call));
    serve(&mut cluster, 50, name, b"right");
    serve(&mut cluster, 50, name, b"again");
    assert_eq!(cluster.outcome(call), (Status::Ok, b"right".to_vec()));
    cluster.run_for(5 * MS);
    assert_eq!(cluster.total(1, Counter::Stale), 2);
}

#[test]
fn fault_a10_a_provider_that_never_answers_or_dies_ends_its_calls() {
    let mut cluster = Cluster::new("provider-dies", 2);
    cluster.wait_all_up();
    assert_eq!(register(&mut cluster, 50), Status::Ok);
    let (local, remote) =
        (cluster.call(1, 1, 1, PROVIDED, b"l"), cluster.call(0, 1, 1, PROVIDED, b"r"));
    let take = serve(&mut cluster, 50, 0, b"");
    work_of(&mut cluster, take);
    assert_eq!(cluster.outcome(local).0, Status::DeadlineExceeded);
    assert_eq!(cluster.outcome(remote).0, Status::DeadlineExceeded);
    let (given, waiting) =
        (cluster.call(0, 1, 1, PROVIDED, b"given"), cluster.call(1, 1, 1, PROVIDED, b"waiting"));
    cluster.run_for(2 * MS);
    cluster.node(1).front.0.borrow_mut().gone.push(50);
    cluster.node(1).front.0.borrow_mut().departures += 1;
    assert_eq!(cluster.outcome(given).0, Status::Unavailable);
    assert_eq!(cluster.outcome(waiting).0, Status::Unavailable);
    assert_eq!(register(&mut cluster, 52), Status::Ok, "another may provide it now");
}

#[test]
fn fault_a8_calls_to_a_daemon_that_dies_end_and_its_next_life_is_found() {
    let mut cluster = Cluster::new("dies", 3);
    cluster.wait_all_up();
    let numbers: Vec<_> = (0..20).map(|_| cluster.call(0, 1, 2, ECHO, b"x")).collect();
    cluster.kill(2);
    for number in numbers {
        let status = cluster.outcome(number).0;
        assert!(matches!(status, Status::Unavailable | Status::Ok), "{status}");
    }
    cluster.until(|cluster| cluster.node(0).daemon.peers_up() == 1);
    let refused = cluster.call(0, 1, 2, ECHO, b"x");
    assert_eq!(cluster.outcome(refused).0, Status::Unavailable);
    let other = cluster.call(0, 1, 1, ECHO, b"others do not notice");
    assert_eq!(cluster.outcome(other), echoed(b"others do not notice", 0));
    cluster.start(2, 200);
    cluster.wait_all_up();
    let again = cluster.call(0, 1, 2, ECHO, b"again");
    assert_eq!(cluster.outcome(again), echoed(b"again", 0));
}

#[test]
fn fault_d2_a_cut_in_one_direction_ends_calls_and_heals_with_new_epochs() {
    let mut cluster = Cluster::new("cut", 2);
    cluster.wait_all_up();
    cluster.air.borrow_mut().cut.push((0, 1));
    cluster.until(|cluster| (0..2).all(|rank| cluster.node(rank).daemon.peers_up() == 0));
    for (from, to) in [(0, 1), (1, 0)] {
        let refused = cluster.call(from, 1, to, ECHO, b"x");
        assert_eq!(cluster.outcome(refused).0, Status::Unavailable);
    }
    cluster.air.borrow_mut().cut.clear();
    cluster.wait_all_up();
    let number = cluster.call(0, 1, 1, ECHO, b"healed");
    assert_eq!(cluster.outcome(number), echoed(b"healed", 0));
    assert_eq!(cluster.total(0, Counter::PeersLost), 1);
}

#[test]
fn fault_c4_more_calls_than_rings_hold_wait_in_order_and_none_is_lost() {
    let mut cluster = Cluster::new("full", 2);
    cluster.wait_all_up();
    let body = vec![9; 3000];
    let mut calls = Vec::new();
    for _ in 0..400 {
        calls.push((cluster.call(0, 1, 1, ECHO, &body), 0));
        calls.push((cluster.call(1, 2, 0, ECHO, &body), 1));
    }
    for (number, from) in calls {
        let (status, answer) = cluster.outcome(number);
        match status {
            Status::Ok => assert_eq!((status, answer), echoed(&body, from)),
            status => assert_eq!(status, Status::ResourceExhausted, "refused, not lost"),
        }
    }
    let exhausted = cluster.total(0, Counter::Exhausted);
    let answered = cluster.ended.values().filter(|(status, _)| *status == Status::Ok).count();
    assert!(answered >= 400, "{answered} of 800 answered, {exhausted} refused by rank 0");
    assert_eq!(cluster.node(0).daemon.outstanding(), 0);
}

#[test]
fn a_daemon_that_drains_takes_nothing_new_and_finishes_the_rest() {
    let mut cluster = Cluster::new("drain", 2);
    cluster.wait_all_up();
    assert_eq!(register(&mut cluster, 50), Status::Ok);
    let early = cluster.call(0, 1, 1, PROVIDED, b"early");
    let take = serve(&mut cluster, 50, 0, b"");
    let (name, ..) = work_of(&mut cluster, take);
    cluster.node(1).daemon.drain();
    let late = cluster.call(0, 1, 1, ECHO, b"late");
    assert_eq!(cluster.outcome(late).0, Status::Unavailable);
    let local = cluster.call(1, 1, 1, ECHO, b"late");
    assert_eq!(cluster.outcome(local).0, Status::Unavailable);
    assert_eq!(cluster.node(1).daemon.outstanding(), 1);
    serve(&mut cluster, 50, name, b"finished");
    assert_eq!(cluster.outcome(early), (Status::Ok, b"finished".to_vec()));
    let now_ns = cluster.now_ns;
    cluster.node(1).daemon.leave(now_ns);
    cluster.kill(1);
    cluster.run_for(3 * MS);
    assert_eq!(cluster.node(0).daemon.peers_up(), 0, "it said good-bye");
}

#[test]
fn who_and_ping_are_answered_and_strangers_get_nothing_else() {
    let mut cluster = Cluster::new("who", 2);
    cluster.wait_all_up();
    let who = cluster.call_method(1, 1, (wire::HERE, wire::DAEMON, wire::method::WHO), b"");
    let answer = cluster.outcome(who).1;
    assert_eq!(<[u32; 2]>::read_from_bytes(&answer).unwrap(), [1, 2]);
    let ping = cluster.call_method(0, 1, (1, wire::DAEMON, wire::method::PING), b"ping");
    assert_eq!(cluster.outcome(ping), (Status::Ok, b"ping".to_vec()));
    for method in [wire::method::REGISTER, wire::method::SERVE, 99] {
        let refused = cluster.call_method(0, 1, (1, wire::DAEMON, method), &[0; 16]);
        assert_eq!(cluster.outcome(refused).0, Status::PermissionDenied);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24, failure_persistence: None, ..Default::default()
    })]

    /// Clients that send anything, and datagrams of anybody: each request is answered at most once,
    /// and an honest client is served all along.
    #[test]
    fn fault_b11_any_requests_and_datagrams_are_refused_or_served(
        requests in vec((0u32..4, any_request()), 1..60),
        datagrams in vec(vec(any::<u8>(), 0..400), 0..10),
    ) {
        let mut cluster = Cluster::new("any", 2);
        cluster.wait_all_up();
        assert_eq!(register(&mut cluster, 50), Status::Ok);
        for (client, bytes) in requests {
            let number = cluster.next;
            cluster.next += 1;
            let call = (client, Call { number, bytes });
            cluster.node(1).front.0.borrow_mut().requests.push_back(call);
        }
        cluster.air.borrow_mut().inboxes.entry(1).or_default().extend(datagrams);
        for from in [0, 1] {
            let honest = cluster.call(from, 9, 1, ECHO, b"honest");
            assert_eq!(cluster.outcome(honest), echoed(b"honest", from));
        }
        // What waits for a provider that never answers ends at its deadline.
        cluster.run_for(600 * MS);
        assert_eq!(cluster.node(1).daemon.outstanding(), 0);
    }
}

/// Requests that are nearly right, so that all of the daemon is reached.
fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let head = (
        prop_oneof![0u32..3, Just(wire::HERE), any::<u32>()],
        prop_oneof![0u16..12, any::<u16>()],
        prop_oneof![0u16..5, any::<u16>()],
        0u32..400_000,
        any::<u32>(),
    );
    let nearly = (head, vec(prop_oneof![0u8..3, any::<u8>()], 0..64)).prop_map(|(head, body)| {
        let (rank, service, method, timeout_us, response_bytes) = head;
        let head = wire::CallHead {
            rank: rank.into(),
            service: service.into(),
            method: method.into(),
            timeout_us: timeout_us.into(),
            response_bytes: response_bytes.into(),
        };
        [head.as_bytes(), &body].concat()
    });
    prop_oneof![4 => nearly, 1 => vec(any::<u8>(), 0..40)]
}
