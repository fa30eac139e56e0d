//! eRPC: production endpoints on UD queue pairs of software NICs, in virtual time, on a network that loses, repeats
//! and reorders their packets and the packets by which sessions begin.
//!
//! Each call ends once, in time, with its own answer or a status; no request is executed twice; and once the
//! network is whole, all sessions are connected and a call over each of them succeeds.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use protocols::erpc::{
    Call, Config, ConnectOptions, Endpoint, Handler, ManagementPort, Request, SessionId,
    SessionState, Status,
};
use softnic::{Cause, Issued, Nic, Packet, Timeline, VirtualPort};
use verbs::{Lid, Qpn};

use super::{
    End,
    history::{self, History, Made},
    network::{port_of, rank_of},
};
use crate::world::{RandomStream, Time, World};

/// From port to port. Without a fault no packet overtakes another.
const WIRE_NS: u64 = 600;
/// From one management socket to another.
const MANAGEMENT_NS: u64 = 15_000;
/// A WQE occupies its send queue.
const WQE: Time = Time::from_ns(60);
/// Between two polls of an endpoint; and once nobody makes calls.
const POLL_NS: u64 = 1_000;
const QUIET_POLL_NS: u64 = 20_000;
/// Calls that an endpoint has in flight.
const WINDOW: usize = 16;
/// Time of a call, and how much later it may end: a look at deadlines and some polls.
const TIMEOUT_NS: u64 = 5_000_000;
const SLACK_NS: u64 = 1_000_000;
/// Once the network is whole everything works again within this.
const HEAL: Time = Time::from_ns(500_000_000);

/// A run: everything that happens follows from this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramSetup {
    /// Endpoints, each with a session to every other one.
    pub nodes: u32,
    /// How long they call, on a network with faults.
    pub length: Time,
    /// Of all random numbers.
    pub seed: u64,
    /// Packets that are lost, of a thousand.
    pub loss_permille: u64,
    /// Packets that come twice, of a thousand.
    pub repeat_permille: u64,
    /// How much longer a packet may take, in ns, so that later ones overtake it.
    pub reorder_ns: u64,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramOutcome {
    /// Events.
    pub events: u64,
    /// A hash of all of them, in order, and of how each call ended.
    pub trace: u64,
    /// Calls, by how they ended.
    pub ends: BTreeMap<End, u64>,
    /// Calls whose packets were sent again.
    pub retransmissions: u64,
    /// Packets that nobody expected.
    pub ignored: u64,
    /// What happened first of what must not.
    pub failure: Option<String>,
}

#[derive(Debug)]
enum DatagramEvent {
    Issue(Lid, Qpn),
    Arrive(Packet),
    Management { from: SocketAddr, to: usize, bytes: Vec<u8> },
    Poll(usize),
}

#[derive(Debug)]
struct WireState {
    world: World<DatagramEvent>,
    random: RandomStream,
    setup: DatagramSetup,
    issue_at: BTreeMap<(Lid, Qpn), Time>,
    is_whole: bool,
    inboxes: Vec<VecDeque<(SocketAddr, Vec<u8>)>>,
}

impl WireState {
    fn issue(&mut self, at: Time, port: Lid, qp: Qpn) {
        let next = self.issue_at.get(&(port, qp));
        if next.is_none_or(|next| at < *next) {
            self.issue_at.insert((port, qp), at);
            self.world.schedule(at, DatagramEvent::Issue(port, qp));
        }
    }

    /// Lets what is sent now arrive: not at all, once or twice.
    fn transmit(&mut self, least_ns: u64, event: impl Fn() -> DatagramEvent) {
        let Self { random, setup, is_whole, .. } = self;
        let permille = |permille: u64| if *is_whole { 0 } else { permille };
        let is_lost = random.happens(permille(setup.loss_permille));
        let copies = 1 + u64::from(random.happens(permille(setup.repeat_permille)));
        for _ in 0..if is_lost { 0 } else { copies } {
            let late_ns = random.number(1 + permille(setup.reorder_ns));
            let at = self.world.now() + Time::from_ns(least_ns + late_ns);
            self.world.schedule(at, event());
        }
    }
}

/// What lies between endpoints, and time.
#[derive(Debug)]
struct Wire(Mutex<WireState>);

impl Wire {
    fn lock(&self) -> MutexGuard<'_, WireState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn issue(&self, port: &VirtualPort, qp: Qpn) {
        // The port calls back.
        let issued = port.issue(qp);
        let (lid, mut state) = (port.lid(), self.lock());
        let now = state.world.now();
        match issued {
            Issued::Packet(packet) => {
                state.transmit(WIRE_NS, || DatagramEvent::Arrive(packet.clone()));
                state.issue(now + WQE, lid, qp);
            }
            Issued::Done => state.issue(now + WQE, lid, qp),
            Issued::WaitUntil(then_ns) => state.issue(Time::from_ns(then_ns), lid, qp),
            Issued::Idle => {}
        }
    }
}

impl Timeline for Wire {
    fn now_ns(&self) -> u64 {
        self.lock().world.now().whole_ns()
    }

    fn runnable(&self, port: Lid, qp: Qpn, _: Cause) {
        let mut state = self.lock();
        let at = state.world.now() + WQE;
        state.issue(at, port, qp);
    }

    fn idle(&self, _: Lid) -> bool {
        false
    }
}

/// A management socket.
#[derive(Debug)]
struct SimManagement {
    node: usize,
    wire: Arc<Wire>,
}

/// Of a node: addresses of a documentation network.
fn address_of(node: usize) -> SocketAddr {
    let [.., high, low] = u32::try_from(node).unwrap_or(u32::MAX).to_be_bytes();
    SocketAddr::new(Ipv4Addr::new(198, 18, high, low).into(), 31850)
}

impl ManagementPort for SimManagement {
    fn address(&self) -> SocketAddr {
        address_of(self.node)
    }

    fn send(&self, packet: &[u8], to: SocketAddr) {
        let mut state = self.wire.lock();
        let nodes = state.inboxes.len();
        let Some(to) = (0..nodes).find(|node| address_of(*node) == to) else { return };
        let from = self.address();
        let event = || DatagramEvent::Management { from, to, bytes: packet.to_vec() };
        state.transmit(MANAGEMENT_NS, event);
    }

    fn receive(&self, into: &mut [u8]) -> Option<(usize, SocketAddr)> {
        let (from, bytes) = self.wire.lock().inboxes[self.node].pop_front()?;
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        Some((len, from))
    }
}

/// What an endpoint's program has.
struct Program {
    rank: u32,
    now: Time,
    in_flight: usize,
    history: Rc<RefCell<History>>,
}

impl Handler<Nic> for Program {
    fn request(&mut self, endpoint: &mut Endpoint<Nic>, request: Request<'_>) {
        let mut response = Vec::new();
        self.history.borrow_mut().execute((self.rank, self.rank), request.body, &mut response);
        // Whose session has ended meanwhile is not told.
        let _ = endpoint.reply(request.token, &response);
    }

    fn response(&mut self, _: &mut Endpoint<Nic>, cookie: u64, status: Status, body: &[u8]) {
        self.in_flight -= 1;
        let is_expected =
            matches!(status, Status::Ok | Status::DeadlineExceeded | Status::Unavailable);
        let mut history = self.history.borrow_mut();
        if !is_expected {
            history.fail(|| format!("call {cookie} ended with {status:?}"));
        }
        let outcome = if status == Status::Ok { Ok(body) } else { Err(End::Status(status.code())) };
        history.ended(cookie, outcome, self.now);
    }
}

struct DatagramNode {
    endpoint: Endpoint<Nic>,
    port: VirtualPort,
    program: Program,
    /// By rank; `None`: itself.
    sessions: Vec<Option<SessionId>>,
    random: RandomStream,
}

impl DatagramNode {
    fn open(
        setup: &DatagramSetup,
        rank: u32,
        wire: &Arc<Wire>,
        history: &Rc<RefCell<History>>,
    ) -> Result<Self, DatagramError> {
        let soft = softnic::Config { card_mib: 4, ..softnic::Config::default() };
        let (nic, port) = softnic::open_virtual(&soft, port_of(rank), wire.clone())?;
        let config = Config {
            receives: 256,
            sends: 64,
            retransmit: Duration::from_micros(200),
            management_retry: Duration::from_millis(1),
            ping_after: Duration::from_millis(5),
            failure_after: Duration::from_millis(50),
            ..Config::default()
        };
        let management = SimManagement { node: rank as usize, wire: wire.clone() };
        let mut endpoint = Endpoint::open_on(nic, config, Box::new(management), wire.now_ns())?;
        let options = ConnectOptions { timeout: Duration::from_secs(10), reconnect: true };
        let mut sessions = Vec::new();
        for to in 0..setup.nodes {
            let is_own = to == rank;
            let connect = |endpoint: &mut Endpoint<Nic>| {
                endpoint.connect(address_of(to as usize), 0, options)
            };
            sessions.push(if is_own { None } else { Some(connect(&mut endpoint)?) });
        }
        let program = Program { rank, now: Time::ZERO, in_flight: 0, history: Rc::clone(history) };
        let random = RandomStream::new(setup.seed, &format!("endpoint {rank}"));
        Ok(Self { endpoint, port, program, sessions, random })
    }

    fn is_connected(&self) -> bool {
        let state = |session: &SessionId| self.endpoint.state(*session);
        self.sessions.iter().flatten().all(|one| state(one) == Some(SessionState::Connected))
    }

    /// Makes a call, if the session can be used now.
    fn call(&mut self, to: u32, must_succeed: bool) {
        let Some(session) = self.sessions[to as usize] else { return };
        let mut draw = || {
            let most = self.random.choose(&[16, 64, 1_000, 20_000]);
            u32::try_from(self.random.number(most)).unwrap_or(0)
        };
        let (request_bytes, response_bytes) = (draw(), draw());
        let mut history = self.program.history.borrow_mut();
        let number = history.next_number();
        let body = history::request(number, request_bytes as usize, response_bytes);
        let timeout = Duration::from_nanos(TIMEOUT_NS);
        let call = Call { req_type: 1, cookie: number, timeout, ..Call::default() };
        match self.endpoint.call(session, &call, &body) {
            Ok(_) => {
                let (from, at) = (self.program.rank, self.program.now);
                let due = at + Time::from_ns(TIMEOUT_NS + SLACK_NS);
                history.made(Made { from, client: 0, to, at, due, response_bytes, must_succeed });
                self.program.in_flight += 1;
            }
            Err(error) if error.is_temporary() && !must_succeed => {}
            Err(error) => history.fail(|| format!("a call is refused: {error}")),
        }
    }
}

/// Why there was no run.
#[derive(Debug, thiserror::Error)]
pub enum DatagramError {
    /// Of a NIC.
    #[error(transparent)]
    Nic(#[from] softnic::OpenError),
    /// Of an endpoint.
    #[error(transparent)]
    Endpoint(#[from] protocols::erpc::OpenError),
    /// Of a session.
    #[error(transparent)]
    Session(#[from] protocols::erpc::ConnectError),
}

struct Datagrams {
    wire: Arc<Wire>,
    nodes: Vec<DatagramNode>,
    history: Rc<RefCell<History>>,
    /// Whether endpoints make calls.
    is_calling: bool,
}

impl Datagrams {
    fn new(setup: &DatagramSetup) -> Result<Self, DatagramError> {
        let state = WireState {
            world: World::default(),
            random: RandomStream::new(setup.seed, "wire"),
            setup: *setup,
            issue_at: BTreeMap::new(),
            is_whole: false,
            inboxes: vec![VecDeque::new(); setup.nodes as usize],
        };
        let (wire, history) = (Arc::new(Wire(Mutex::new(state))), Rc::<RefCell<_>>::default());
        let open = |rank| DatagramNode::open(setup, rank, &wire, &history);
        let nodes = (0..setup.nodes).map(open).collect::<Result<Vec<_>, _>>()?;
        for node in 0..nodes.len() {
            wire.lock().world.schedule(Time::ZERO, DatagramEvent::Poll(node));
        }
        Ok(Self { wire, nodes, history, is_calling: false })
    }

    fn now(&self) -> Time {
        self.wire.lock().world.now()
    }

    /// Runs until `is_done`, `end`, or something is wrong; whether it was done.
    fn advance(&mut self, end: Time, is_done: impl Fn(&Self) -> bool) -> bool {
        while !is_done(self) && self.history.borrow().failure().is_none() {
            let Some(event) = self.wire.lock().world.next(end) else { return false };
            self.happen(event);
        }
        self.history.borrow().failure().is_none()
    }

    fn happen(&mut self, event: DatagramEvent) {
        let now = self.now();
        match event {
            DatagramEvent::Issue(port, qp) => {
                let mut state = self.wire.lock();
                if state.issue_at.get(&(port, qp)) != Some(&now) {
                    return;
                }
                state.issue_at.remove(&(port, qp));
                drop(state);
                self.wire.issue(&self.nodes[rank_of(port) as usize].port, qp);
            }
            DatagramEvent::Arrive(packet) => {
                let to = rank_of(packet.destination().0) as usize;
                let answer = self.nodes[to].port.respond(&packet);
                debug_assert!(answer.is_none(), "a datagram has no answer");
            }
            DatagramEvent::Management { from, to, bytes } => {
                self.wire.lock().inboxes[to].push_back((from, bytes));
            }
            DatagramEvent::Poll(node) => self.poll(node, now),
        }
    }

    fn poll(&mut self, number: usize, now: Time) {
        let nodes = self.nodes.len() as u64;
        let DatagramNode { endpoint, program, .. } = &mut self.nodes[number];
        program.now = now;
        endpoint.poll(now.whole_ns(), program);
        let node = &mut self.nodes[number];
        if self.is_calling && node.program.in_flight < WINDOW {
            let to = u32::try_from(node.random.number(nodes)).unwrap_or(0);
            node.call(to, false);
        }
        let pause_ns = if self.is_calling { POLL_NS } else { QUIET_POLL_NS };
        let at = now + Time::from_ns(pause_ns / 2 + node.random.number(pause_ns));
        self.wire.lock().world.schedule(at, DatagramEvent::Poll(number));
    }

    fn is_quiet(&self) -> bool {
        self.history.borrow().open() == 0
    }

    fn give_up(&self, what: &str) {
        self.history.borrow_mut().fail(|| what.to_owned());
    }

    fn run(&mut self, setup: &DatagramSetup) {
        let is_connected = |run: &Self| run.nodes.iter().all(DatagramNode::is_connected);
        if !self.advance(HEAL, is_connected) {
            return self.give_up("sessions are not connected");
        }
        self.is_calling = true;
        self.advance(self.now() + setup.length, |_| false);
        self.wire.lock().is_whole = true;
        self.is_calling = false;
        let end = self.now() + HEAL;
        let is_well = |run: &Self| run.is_quiet() && is_connected(run);
        if !self.advance(end, is_well) {
            return self.give_up("the network is whole, and not all sessions work");
        }
        for from in 0..self.nodes.len() {
            self.nodes[from].program.now = self.now();
            (0..setup.nodes).for_each(|to| self.nodes[from].call(to, true));
        }
        let end = self.now() + HEAL;
        if !self.advance(end, Self::is_quiet) {
            self.give_up("the network is whole, and calls do not end");
        }
    }
}

/// Runs endpoints.
///
/// # Errors
///
/// [`DatagramError`], for lack of memory.
pub fn run(setup: &DatagramSetup) -> Result<DatagramOutcome, DatagramError> {
    let mut datagrams = Datagrams::new(setup)?;
    datagrams.run(setup);
    let stats = datagrams.nodes.iter().map(|node| node.endpoint.stats());
    let (mut retransmissions, mut ignored) = (0, 0);
    for stats in stats {
        (retransmissions, ignored) =
            (retransmissions + stats.retransmissions, ignored + stats.ignored);
    }
    let (history, state) = (datagrams.history.borrow(), datagrams.wire.lock());
    Ok(DatagramOutcome {
        events: state.world.happened(),
        trace: state.world.trace() ^ history.hash().rotate_left(1),
        ends: history.ends().clone(),
        retransmissions,
        ignored,
        failure: history.failure().map(str::to_owned),
    })
}
