//! A cluster whose daemons, clients, datagrams and time are all in this thread's hands.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
    ops::Range,
    rc::Rc,
    time::Duration,
};

use bootstrap::{JobId, RankInfo, Secret};
use client::{Filler, LentBytes, message};
use copyrpc_daemon::{
    CONTROL_NS, ClientPort, ClientRequest, ClientTag, Codec, Control, Daemon, Inbound,
    LeftRequests, Limits, NotCopied, Parts, Replies, Rights, Services, Status, ThreadHandle,
    membership::DetectorConfig,
    metrics::{Counter, MetricsFile},
};
use ipc::TakenBytes;
use zerocopy::{FromBytes as _, IntoBytes as _};

pub(crate) const MS: u64 = 1_000_000;
/// Virtual time of one turn of all daemons.
pub(crate) const TURN_NS: u64 = 10_000;

pub(crate) const ECHO: u16 = 7;
pub(crate) const PANIC: u16 = 8;
pub(crate) const ABSENT: u16 = 9;
pub(crate) const PROVIDED: u16 = 10;
/// Offered by the third thread alone.
pub(crate) const OF_THREAD_2: u16 = 11;

/// Clients that exist only as queues.
#[derive(Default)]
struct Clients {
    /// `(client, request)`, in order.
    requests: VecDeque<(u32, Call)>,
    answers: VecDeque<(u32, u64, Status, Vec<u8>)>,
    /// By call: the body of an answer that was no success.
    errors: BTreeMap<Address, Vec<u8>>,
    /// Requests are private copies when the daemon takes them.
    are_private: bool,
    /// Calls that were taken and not answered: each is answered once.
    unanswered: BTreeSet<(u32, u64)>,
    gone: Vec<u32>,
    departures: u64,
    /// Answers in parts, and how many bytes of each were put.
    stored: BTreeMap<Address, (Vec<u8>, usize)>,
    /// Parts that were asked to be put, in all.
    parts: usize,
    /// What becomes of the next part.
    next_part: NextPart,
    /// Requests that were left with their clients, which are not answered.
    left: BTreeMap<Address, Vec<u8>>,
    /// Bytes of answers that were put in parts, or read of requests that were left.
    copied_bytes: usize,
    /// The most bytes that were copied at once: of an answer that was not put in parts, of a part, or of what was left.
    most_at_once: usize,
}

impl Clients {
    fn end(&mut self, to: Address, status: Status, body: Vec<u8>) {
        assert!(self.unanswered.remove(&to), "call {to:?} is answered twice");
        self.stored.remove(&to);
        self.left.remove(&to);
        self.answers.push_back((to.0, to.1, status, body));
    }
}

/// What becomes of a part of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NextPart {
    #[default]
    Put,
    /// There is no memory for it.
    Refused,
    /// Whatever puts it panics.
    Panics,
}

struct Call {
    number: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Default)]
struct TestReplies(Rc<RefCell<Clients>>);

#[derive(Clone, Default)]
struct TestPort {
    replies: TestReplies,
    /// The request that was taken last.
    request: Vec<u8>,
    /// Long requests that are left with their clients.
    leaves: Option<LeftRequests>,
}

impl TestPort {
    fn clients(&self) -> &RefCell<Clients> {
        &self.replies.0
    }
}

/// Client and number of a call.
type Address = (u32, u64);

impl Replies for TestReplies {
    type ReplyTo = Address;

    fn reply(&mut self, to: Address, status: Status, parts: &[&[u8]]) {
        let mut clients = self.0.borrow_mut();
        let mut body = parts.concat();
        if status != Status::Ok {
            clients.errors.insert(to, std::mem::take(&mut body));
        }
        clients.most_at_once = clients.most_at_once.max(body.len());
        clients.end(to, status, body);
    }

    /// As shared memory does: what fits a line goes in one.
    fn takes_parts(&self, len_bytes: usize) -> bool {
        len_bytes > 1 << 14
    }

    fn put_part(
        &mut self,
        to: Address,
        len_bytes: usize,
        part: Range<usize>,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<(), NotCopied> {
        let mut clients = self.0.borrow_mut();
        assert!(clients.unanswered.contains(&to), "a part of {to:?}, which is answered");
        clients.parts += 1;
        match core::mem::take(&mut clients.next_part) {
            NextPart::Put => {}
            NextPart::Refused => return Err(NotCopied),
            NextPart::Panics => panic!("a part that cannot be put"),
        }
        if clients.gone.contains(&to.0) {
            return Err(NotCopied);
        }
        clients.copied_bytes += part.len();
        clients.most_at_once = clients.most_at_once.max(part.len());
        let (body, put_bytes) = clients.stored.entry(to).or_default();
        body.resize(len_bytes, 0);
        // What was put before of another answer counts as nothing.
        *put_bytes = if part.start == 0 { part.len() } else { *put_bytes + part.len() };
        fill(&mut Filler::from(&mut body[part]));
        Ok(())
    }

    fn reply_stored(&mut self, to: Address, len_bytes: usize) {
        let mut clients = self.0.borrow_mut();
        let (body, put_bytes) = clients.stored.remove(&to).expect("its parts were put");
        assert_eq!((body.len(), put_bytes), (len_bytes, len_bytes), "each part once");
        clients.end(to, Status::Ok, body);
    }

    fn read_left(
        &mut self,
        from: Address,
        part: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<(), NotCopied> {
        let mut clients = self.0.borrow_mut();
        if clients.gone.contains(&from.0) {
            return Err(NotCopied);
        }
        clients.copied_bytes += part.len();
        clients.most_at_once = clients.most_at_once.max(part.len());
        let left = clients.left.get(&from).expect("memory is read until it is given back");
        to.extend_from_slice(&left[part]);
        Ok(())
    }

    /// The user is the number of the client.
    fn process_of(&self, (client, _): Address) -> Option<ipc::ClientProcess> {
        Some(ipc::ClientProcess { uid: client, pid: client + 1 })
    }
}

/// Whether shared memory would leave this where it lies.
fn is_long_answer(request: &[u8]) -> bool {
    let Ok((head, _)) = message::CallHead::read_from_prefix(request) else { return false };
    let to = (head.rank.get(), head.service.get(), head.method.get());
    to == (message::HERE, message::DAEMON, message::method::SERVE) && request.len() > 4160
}

impl ClientPort for TestPort {
    type ReplyTo = Address;
    type Client = u32;
    type Replies = TestReplies;

    fn take(&mut self) -> Option<ClientRequest<'_, Self>> {
        let mut clients = self.replies.0.borrow_mut();
        let (client, Call { number, bytes }) = clients.requests.pop_front()?;
        let reply_to = (client, number);
        assert!(clients.unanswered.insert(reply_to), "call {reply_to:?} is made twice");
        let len_bytes = bytes.len();
        let is_request = self.leaves.as_ref().is_some_and(|leaves| leaves.has(&bytes));
        let is_left = is_long_answer(&bytes) || is_request && len_bytes > 4160;
        if is_left {
            clients.left.insert(reply_to, bytes.clone());
        }
        let is_private = clients.are_private;
        drop(clients);
        self.request = bytes;
        let Self { request, replies, .. } = self;
        if is_left {
            let payload = TakenBytes::Left { head: &request[..64], len_bytes };
            return Some(ClientRequest { client, reply_to, payload, replies });
        }
        if is_private {
            let payload = TakenBytes::Private(request);
            return Some(ClientRequest { client, reply_to, payload, replies });
        }
        // Lent, so that all of this goes both ways: passed on, and copied.
        let payload = TakenBytes::Lent(LentBytes::from(&**request));
        Some(ClientRequest { client, reply_to, payload, replies })
    }

    fn replies(&mut self) -> &mut TestReplies {
        &mut self.replies
    }

    fn set_turn_budget(&mut self, _: u32) {}

    fn leave_requests(&mut self, requests: LeftRequests) {
        self.leaves = Some(requests);
    }

    fn tag(client: u32) -> ClientTag {
        ClientTag { slot: client, life: 0 }
    }

    fn client_of(to: Address) -> u32 {
        to.0
    }

    fn is_there(&self, client: u32) -> bool {
        !self.clients().borrow().gone.contains(&client)
    }

    fn departures(&self) -> u64 {
        self.clients().borrow().departures
    }

    fn census(&self) -> (u64, u64, u64) {
        (0, 0, 0)
    }
}

/// Where a thread of a daemon listens: each life of a daemon has sockets of its own.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Socket {
    rank: u32,
    thread: u32,
    life: u32,
}

/// Datagrams that a thread has not taken yet, with their senders.
type Inbox = VecDeque<(Socket, Vec<u8>)>;

/// Datagrams in flight, and ways that are cut.
#[derive(Default)]
pub(crate) struct Air {
    /// By rank and thread.
    pub(crate) inboxes: BTreeMap<(u32, u32), Inbox>,
    pub(crate) cut: Vec<(u32, u32)>,
    /// By rank, of daemons that live: how many threads, in which life.
    alive: BTreeMap<u32, (u32, u32)>,
    lives: u32,
}

impl Air {
    fn kill(&mut self, rank: u32) {
        self.alive.remove(&rank);
        self.inboxes.retain(|(owner, _), _| *owner != rank);
    }

    fn start(&mut self, rank: u32, threads: u32) {
        self.kill(rank);
        self.lives += 1;
        self.alive.insert(rank, (threads, self.lives));
    }

    fn carry(&mut self, from: Socket, to: Socket, datagram: &[u8]) {
        let is_there = self.alive.get(&to.rank).is_some_and(|(_, life)| *life == to.life);
        if is_there && !self.cut.contains(&(from.rank, to.rank)) {
            let inbox = self.inboxes.entry((to.rank, to.thread)).or_default();
            inbox.push_back((from, datagram.to_vec()));
        }
    }
}

struct TestControl {
    own: Socket,
    /// By rank; who is not there asks for it when it needs it.
    known: BTreeMap<u32, Socket>,
    air: Rc<RefCell<Air>>,
}

impl Control for TestControl {
    type From = Socket;

    fn send(&mut self, to: u32, datagram: &[u8]) {
        let Self { own, known, air } = self;
        let mut air = air.borrow_mut();
        if let Some((threads, life)) = air.alive.get(&to).copied() {
            let found = Socket { rank: to, thread: own.rank % threads, life };
            air.carry(*own, *known.entry(to).or_insert(found), datagram);
        }
    }

    fn recv(&mut self, into: &mut [u8]) -> Option<(usize, Socket)> {
        let mut air = self.air.borrow_mut();
        let (from, datagram) =
            air.inboxes.get_mut(&(self.own.rank, self.own.thread))?.pop_front()?;
        // As the kernel does: what does not fit is cut off.
        let len = datagram.len().min(into.len());
        into[..len].copy_from_slice(&datagram[..len]);
        Some((len, from))
    }

    fn answer(&mut self, to: &Socket, datagram: &[u8]) {
        self.air.borrow_mut().carry(self.own, *to, datagram);
    }

    fn learn(&mut self, rank: u32, from: Socket) {
        self.known.insert(rank, from);
    }
}

struct Loop {
    daemon: Daemon<softnic::Nic, TestPort, TestControl>,
    port: TestPort,
}

impl Loop {
    /// A turn, phase by phase, as a simulator takes it that charges time in between.
    fn turn(&mut self, now_ns: u64) {
        self.daemon.take(now_ns);
        self.daemon.poll(now_ns);
        self.daemon.control(now_ns);
    }
}

/// A daemon.
pub(crate) struct Node {
    /// By thread; clients belong to them in turn.
    loops: Vec<Loop>,
    metrics: MetricsFile,
}

impl Node {
    pub(crate) fn peers_up(&self) -> usize {
        self.loops.iter().map(|one| one.daemon.peers_up()).sum()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.loops.iter().map(|one| one.daemon.outstanding()).sum()
    }

    /// READs and WRITEs that its threads posted for bodies.
    pub(crate) fn transfers(&self) -> u64 {
        self.loops.iter().map(|one| one.daemon.worker_stats().bodies.pieces).sum()
    }

    /// Bytes of long bodies that its threads and their workers copied.
    pub(crate) fn copied_bytes(&self) -> u64 {
        let of_worker = |one: &Loop| one.daemon.worker_stats().bodies.copied_bytes;
        self.loops.iter().map(|one| one.daemon.copied_bytes() + of_worker(one)).sum()
    }

    /// A turn of its first thread alone, and what came of it.
    pub(crate) fn step(&mut self, now_ns: u64) -> usize {
        self.loops[0].daemon.step(now_ns)
    }

    pub(crate) fn expects_answers(&self, now_ns: u64) -> bool {
        self.loops[0].daemon.expects_answers(now_ns)
    }

    pub(crate) fn drain(&mut self) {
        self.loops.iter_mut().for_each(|one| one.daemon.drain());
    }

    pub(crate) fn leave(&mut self, now_ns: u64) {
        self.loops.iter_mut().for_each(|one| one.daemon.leave(now_ns));
    }

    fn clients(&self, client: u32) -> &RefCell<Clients> {
        self.loops[client as usize % self.loops.len()].port.clients()
    }

    pub(crate) fn request(&self, client: u32, number: u64, bytes: Vec<u8>) {
        self.clients(client).borrow_mut().requests.push_back((client, Call { number, bytes }));
    }

    /// Whether requests of a client's thread are private copies from now on, if they are not left with their clients.
    pub(crate) fn copy_requests(&self, client: u32, are_private: bool) {
        self.clients(client).borrow_mut().are_private = are_private;
    }

    /// The body of an answer that was no success.
    pub(crate) fn error_of(&self, client: u32, number: u64) -> Vec<u8> {
        self.clients(client).borrow().errors[&(client, number)].clone()
    }

    /// A client dies.
    pub(crate) fn depart(&self, client: u32) {
        let mut clients = self.clients(client).borrow_mut();
        clients.gone.push(client);
        clients.left.retain(|(of, _), _| *of != client);
        clients.departures += 1;
    }

    /// What becomes of the next part of an answer of a client.
    pub(crate) fn next_part(&self, client: u32, next_part: NextPart) {
        self.clients(client).borrow_mut().next_part = next_part;
    }

    /// Parts of answers of a client that were asked to be put.
    pub(crate) fn parts(&self, client: u32) -> usize {
        self.clients(client).borrow().parts
    }

    /// Bytes of answers that clients of a client's thread were given in parts, or were read of what was left with
    /// them, since the last question.
    pub(crate) fn take_copied(&self, client: u32) -> usize {
        std::mem::take(&mut self.clients(client).borrow_mut().copied_bytes)
    }

    /// The most bytes that were copied at once for the clients of a client's thread.
    pub(crate) fn most_at_once(&self, client: u32) -> usize {
        self.clients(client).borrow().most_at_once
    }

    /// The clients of a client's thread rewrite every byte of the requests that they have left.
    pub(crate) fn rewrite_left(&self, client: u32, byte: u8) {
        let mut clients = self.clients(client).borrow_mut();
        clients.left.values_mut().for_each(|left| left.fill(byte));
    }

    /// Requests that are left with the clients of a client's thread.
    pub(crate) fn left(&self, client: u32) -> usize {
        self.clients(client).borrow().left.len()
    }

    /// A thread is gone, as if it had panicked.
    pub(crate) fn lose_thread(&mut self, thread: usize) {
        self.loops.remove(thread);
    }
}

pub(crate) struct Cluster {
    nodes: Vec<Option<Node>>,
    pub(crate) air: Rc<RefCell<Air>>,
    fabric: String,
    threads: u8,
    lane_calls: u32,
    /// Of daemons that are started from now on.
    pub(crate) transport: rpc::TransportKind,
    pub(crate) limits: Limits,
    pub(crate) body_bytes_max: u32,
    pub(crate) rights: Rights,
    pub(crate) now_ns: u64,
    /// The same, for the daemons to read.
    clock: Rc<Cell<u64>>,
    pub(crate) next: u64,
    /// Answers by the number of their call.
    pub(crate) ended: BTreeMap<u64, (Status, Vec<u8>)>,
    pub(crate) trace: String,
}

impl Cluster {
    /// One cluster after the other: of daemons with one thread and with two.
    pub(crate) fn each(name: &str, size: u32) -> impl Iterator<Item = Self> {
        [1, 2].into_iter().map(move |threads| Self::new(name, size, threads, 64))
    }

    pub(crate) fn new(name: &str, size: u32, threads: u8, lane_calls: u32) -> Self {
        let mut cluster = Self {
            nodes: (0..size).map(|_| None).collect(),
            air: Rc::default(),
            fabric: format!("node-{name}-{threads}-{}", std::process::id()),
            threads,
            lane_calls,
            transport: rpc::TransportKind::Rc,
            limits: Limits::default(),
            body_bytes_max: 4096,
            rights: Rights::default(),
            now_ns: MS,
            clock: Rc::new(Cell::new(MS)),
            next: 1,
            ended: BTreeMap::new(),
            trace: String::new(),
        };
        for rank in 0..size {
            cluster.start(rank, 100);
        }
        cluster
    }

    /// Starts a daemon with another number of threads from now on.
    pub(crate) fn restart_with(&mut self, rank: u32, epoch: u64, threads: u8) {
        self.threads = threads;
        self.start(rank, epoch);
    }

    pub(crate) fn start(&mut self, rank: u32, epoch: u64) {
        self.air.borrow_mut().start(rank, self.threads.into());
        let life = self.air.borrow().lives;
        let rank_info = RankInfo::new(rank, u32::try_from(self.nodes.len()).unwrap()).unwrap();
        let threads = usize::from(self.threads);
        let (metrics, recorders) =
            MetricsFile::embedded("test", rank_info, threads, 1, self.now_ns).unwrap();
        let handles = ThreadHandle::polled_mesh(self.threads, self.lane_calls);
        let open = |(thread, (thread_handle, recorder))| {
            let port = TestPort::default();
            let clock = Rc::clone(&self.clock);
            let mut services = services(thread);
            services.limit(self.rights.clone());
            let parts = Parts {
                rank_info,
                detector: DetectorConfig {
                    interval_ns: 10 * MS,
                    suspect_after_ns: 50 * MS,
                    dead_after_ns: 150 * MS,
                },
                epoch,
                codec: Codec::new(JobId::new("test").unwrap(), Secret::from_bytes(b"secret"), rank),
                services,
                thread_handle,
                recorder,
                call_timeout: Duration::from_millis(500),
                body_bytes_max: self.body_bytes_max,
                limits: self.limits,
                sample_every: 3,
                clock: Box::new(move || clock.get()),
            };
            let nic = softnic::Config { fabric: self.fabric.clone(), ..softnic::Config::default() };
            let nic = softnic::open(&nic).unwrap();
            let config =
                rpc::Config { peers_max: 8, transport: self.transport, ..rpc::Config::default() };
            let worker = rpc::Worker::open(nic, self.limits.bound(config), self.now_ns).unwrap();
            let control = TestControl {
                own: Socket { rank, thread, life },
                known: BTreeMap::new(),
                air: Rc::clone(&self.air),
            };
            let daemon = Daemon::new(worker, port.clone(), control, parts, self.now_ns);
            Loop { daemon, port }
        };
        let loops = (0..).zip(handles.into_iter().zip(recorders)).map(open).collect();
        self.nodes[rank as usize] = Some(Node { loops, metrics });
    }

    pub(crate) fn kill(&mut self, rank: u32) {
        self.nodes[rank as usize] = None;
        self.air.borrow_mut().kill(rank);
    }

    pub(crate) fn node(&mut self, rank: u32) -> &mut Node {
        self.nodes[rank as usize].as_mut().unwrap()
    }

    pub(crate) fn turn(&mut self) {
        self.now_ns += TURN_NS;
        self.clock.set(self.now_ns);
        for (rank, node) in self.nodes.iter_mut().enumerate() {
            for one in node.iter_mut().flat_map(|node| &mut node.loops) {
                one.turn(self.now_ns);
                while let Some(answer) = { one.port.clients().borrow_mut().answers.pop_front() } {
                    let (client, number, status, body) = answer;
                    let (len_bytes, first) = (body.len(), &body[..body.len().min(512)]);
                    let _ = writeln!(
                        self.trace,
                        "{} {rank}/{client} {number} {status:?} {len_bytes} {first:02x?}",
                        self.now_ns
                    );
                    let before = self.ended.insert(number, (status, body));
                    assert!(before.is_none(), "call {number} ended twice");
                }
            }
        }
    }

    #[track_caller]
    pub(crate) fn until(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..200_000 {
            if is_done(self) {
                return;
            }
            self.turn();
        }
        panic!("two seconds of virtual time were not enough");
    }

    pub(crate) fn run_for(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            self.turn();
        }
    }

    /// As [`run_for`](Self::run_for), in turns of a millisecond.
    pub(crate) fn idle_for(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            self.now_ns += MS - TURN_NS;
            self.turn();
        }
    }

    pub(crate) fn wait_all_up(&mut self) {
        self.until(|cluster| {
            let peers = cluster.nodes.iter().flatten().count() - 1;
            cluster.nodes.iter().flatten().all(|node| node.peers_up() == peers)
        });
    }

    pub(crate) fn call(
        &mut self,
        from: u32,
        client: u32,
        to: u32,
        service: u16,
        body: &[u8],
    ) -> u64 {
        self.call_method(from, client, (to, service, 3), body)
    }

    pub(crate) fn call_method(
        &mut self,
        from: u32,
        client: u32,
        to: (u32, u16, u16),
        body: &[u8],
    ) -> u64 {
        self.call_for(from, client, to, Duration::ZERO, body)
    }

    /// A call that takes at most `timeout`, if that is not zero.
    pub(crate) fn call_for(
        &mut self,
        from: u32,
        client: u32,
        (to, service, method): (u32, u16, u16),
        timeout: Duration,
        body: &[u8],
    ) -> u64 {
        let timeout_us = u32::try_from(timeout.as_micros()).unwrap();
        let head = message::CallHead {
            rank: to.into(),
            service: service.into(),
            method: method.into(),
            timeout_us: timeout_us.into(),
            response_bytes: 64.into(),
        };
        let number = self.next;
        self.next += 1;
        let bytes = [head.as_bytes(), body].concat();
        self.node(from).request(client, number, bytes);
        number
    }

    #[track_caller]
    pub(crate) fn outcome(&mut self, number: u64) -> (Status, Vec<u8>) {
        self.until(|cluster| cluster.ended.contains_key(&number));
        self.ended[&number].clone()
    }

    /// All that a daemon has counted so far: others can read it a look at deadlines later.
    pub(crate) fn total(&mut self, rank: u32, counter: Counter) -> u64 {
        self.run_for(CONTROL_NS);
        self.node(rank).metrics.snapshot().total().counter(counter)
    }
}

/// What each thread offers; the last service, only the last of three.
fn services(thread: u32) -> Services<TestPort> {
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
    if thread == 2 {
        let answer = move |_: &Inbound<'_>, body: &mut Vec<u8>| {
            body.extend_from_slice(&thread.to_le_bytes());
            Status::Ok
        };
        services.offer(OF_THREAD_2, Box::new(answer)).unwrap();
    }
    services
}
