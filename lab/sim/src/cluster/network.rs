//! What lies between ports and between daemons, and the events of the whole world: the owner of time.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ipc::ClientId;
use softnic::{
    Cause, Config, Issued, Nic, OpenError, Packet, Refusal, ReplyPacket, Timeline, VirtualPort,
};
use verbs::{Lid, Qpn};

use super::charge;
use super::fault::{Fault, FaultKind};
use crate::{
    machine::DelegationProfile,
    world::{PlaceStreams, RandomStream, Time, World},
};

/// From a doorbell to a NIC that reads the WQE.
const DOORBELL: Time = Time::from_ns(150);
/// A WQE occupies its send queue.
const WQE: Time = Time::from_ns(60);
/// A port sends and receives a byte: 25 GB/s.
const BYTE_PS: u64 = 40;
/// From port to port: a slice of a world in slices. Assumed, as is the jitter: there are no data on switches.
pub(super) const WIRE_NS: u64 = 600;
const JITTER_NS: u64 = 100;
/// From daemon to daemon, for a datagram.
const DATAGRAM_NS: u64 = 15_000;
/// Pieces in which a torn message becomes visible; the rest comes with its completion.
const PIECES_MAX: usize = 6;
/// How long a sender waits after "receiver not ready".
const RNR_WAIT_NS: u64 = 20_000;

/// A life of a thread of a daemon: the place where datagrams go. In a world of daemons with one thread each, `rank`
/// is that of the daemon; else threads are numbered over all daemons, and those of one are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) rank: u32,
    pub(super) life: u32,
}

/// A part of a turn of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Take,
    Poll,
    Control,
}

impl Phase {
    /// In order.
    pub(super) const ALL: [Self; 3] = [Self::Take, Self::Poll, Self::Control];
}

/// What happens at some time.
#[derive(Debug)]
pub(super) enum Event {
    Issue(Lid, Qpn),
    // Boxed: events are moved as the heap is sorted.
    Arrive(Box<Packet>),
    /// Some bytes of a WRITE become visible.
    Place(Box<Packet>, Range<usize>),
    /// All of it has, and is reported.
    Land(Box<Packet>),
    Settle(Box<ReplyPacket>),
    Datagram {
        from: Socket,
        to: Socket,
        bytes: Vec<u8>,
    },
    /// `number` tells it from those that were replaced by an earlier one.
    Turn {
        socket: Socket,
        number: u64,
        phase: Phase,
    },
    Client {
        socket: Socket,
        client: usize,
        number: u64,
    },
    /// A client wakes its daemon.
    WakeDaemon {
        socket: Socket,
        id: ClientId,
    },
    /// A daemon wakes a client.
    WakeClient {
        socket: Socket,
        slot: u16,
    },
    /// A caller wakes the provider of a session, or the other way round.
    WakeSession {
        socket: Socket,
        session: u64,
        is_for_host: bool,
    },
    /// The end of a client reaches its daemon.
    Departed {
        socket: Socket,
        client: usize,
        id: ClientId,
    },
    Fault {
        fault: Fault,
        begins: bool,
    },
    Restart {
        rank: u32,
    },
}

#[derive(Debug, Default)]
struct State {
    world: World<Event>,
    /// When each queue pair is to be issued next.
    issue_at: BTreeMap<(Lid, Qpn), Time>,
    ports: BTreeMap<Lid, VirtualPort>,
    faults: Vec<Fault>,
    /// Requests of each node that are still to fail, by the kind of fault.
    to_fail: BTreeMap<(FaultKind, u32), u32>,
    /// When what is on its way from one queue pair to another has all of its bytes in memory.
    landed_at: BTreeMap<[(Lid, Qpn); 2], Time>,
    /// When what was sent last from one rank to another arrives: links are first in, first out.
    arrives_at: Vec<Time>,
    nodes: u32,
    /// Threads of a daemon, which share a NIC.
    threads: u32,
    /// Whose times it has; `None`: made-up ones.
    machine: Option<DelegationProfile>,
    /// By daemon: when its NIC has sent what it was given. Of a machine.
    sent_at: BTreeMap<u32, Time>,
    /// Doorbells of each port, ever and since its daemon's phase began.
    rung: BTreeMap<Lid, (u64, u64)>,
    packets: u64,
    payload_bytes: u64,
    torn_pieces: u64,
}

impl State {
    /// Lets an event happen where it belongs.
    fn schedule(&mut self, at: Time, event: Event) {
        let place = if self.world.places() == 1 { 0 } else { self.place_of(&event) };
        self.world.schedule_in(place, at, event);
    }

    /// The daemon that an event happens to.
    fn place_of(&self, event: &Event) -> usize {
        let thread = match event {
            Event::Issue(port, _) => rank_of(*port),
            Event::Arrive(packet) | Event::Land(packet) | Event::Place(packet, _) => {
                rank_of(packet.destination().0)
            }
            Event::Settle(answer) => rank_of(answer.destination().0),
            Event::Datagram { to, .. } => to.rank,
            Event::Turn { socket, .. }
            | Event::Client { socket, .. }
            | Event::WakeDaemon { socket, .. }
            | Event::WakeSession { socket, .. }
            | Event::WakeClient { socket, .. }
            | Event::Departed { socket, .. } => socket.rank,
            Event::Fault { fault, .. } => fault.node % self.nodes,
            Event::Restart { rank } => *rank,
        };
        (thread / self.threads) as usize
    }

    fn issue(&mut self, at: Time, port: Lid, qp: Qpn) {
        let next = self.issue_at.get(&(port, qp));
        if next.is_none_or(|next| at < *next) {
            self.issue_at.insert((port, qp), at);
            self.schedule(at, Event::Issue(port, qp));
        }
    }

    fn active(&self, kind: FaultKind) -> impl Iterator<Item = &Fault> {
        self.faults.iter().filter(move |fault| fault.kind == kind)
    }

    /// The NIC sends a request; returns when its send queue goes on.
    fn sent(&mut self, port: Lid, now: Time, bytes: usize) -> Time {
        let Some(machine) = self.machine else {
            return now + WQE + Time::from_ps(BYTE_PS * bytes as u64);
        };
        // One after the other, whichever the queue.
        let free = self.sent_at.entry(rank_of(port) / self.threads).or_default();
        let messages = bytes.div_ceil(64).max(1);
        let message = Time::from_ns(charge::ns(machine.message) * messages as u64);
        *free = (*free).max(now) + Time::from_ns(charge::ns(machine.wqe)) + message;
        *free
    }

    /// When something arrives that arrives at `at` if nothing is before it on its link.
    fn behind(&mut self, from: Lid, to: Lid, at: Time) -> Time {
        let link = rank_of(from) as usize * self.nodes as usize + rank_of(to) as usize;
        let last = &mut self.arrives_at[link];
        *last = at.max(*last);
        *last
    }

    fn is_cut(&self, kind: FaultKind, from: u32, to: u32) -> bool {
        self.active(kind)
            .any(|fault| fault.is_of(from, self.nodes) && fault.peer % self.nodes == to)
    }

    /// Until when the NIC of a node does nothing.
    fn stalled_until(&self, port: Lid) -> Option<Time> {
        let stalls = self.active(FaultKind::NicStall);
        stalls.filter(|fault| fault.is_of(rank_of(port), self.nodes)).map(Fault::end).max()
    }
}

/// Whether a fault meets a number of requests, and not all of a time.
fn is_counted(kind: FaultKind) -> bool {
    matches!(kind, FaultKind::QpError | FaultKind::Revoked)
}

/// The rank whose port it is.
pub(super) fn rank_of(port: Lid) -> u32 {
    u32::from(port.get()) - 1
}

/// The port of a rank, in each of its lives.
pub(super) fn port_of(rank: u32) -> Lid {
    Lid::new(u16::try_from(rank + 1).expect("a world has fewer nodes than there are LIDs"))
}

/// Ports, the network between them, and time.
#[derive(Debug)]
pub(super) struct Network {
    state: Mutex<State>,
    random: Mutex<PlaceStreams>,
}

impl Network {
    pub(super) fn new(
        seed: u64,
        (daemons, threads): (u32, u32),
        machine: Option<DelegationProfile>,
        slice: Option<Time>,
    ) -> Arc<Self> {
        let nodes = daemons * threads;
        let arrives_at = vec![Time::ZERO; nodes as usize * nodes as usize];
        let world =
            slice.map_or_else(World::default, |length| World::in_slices(daemons as usize, length));
        let random = Mutex::new(PlaceStreams::new(seed, "network", world.places()));
        let state = State { world, nodes, threads, machine, arrives_at, ..State::default() };
        Arc::new(Self { state: Mutex::new(state), random })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn random(&self) -> MutexGuard<'_, PlaceStreams> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A port for a daemon that begins.
    pub(super) fn open(self: &Arc<Self>, rank: u32, card_mib: usize) -> Result<Nic, OpenError> {
        let config = Config { card_mib, ..Config::default() };
        let (nic, port) = softnic::open_virtual(&config, port_of(rank), self.clone())?;
        self.lock().ports.insert(port.lid(), port);
        Ok(nic)
    }

    pub(super) fn now(&self) -> Time {
        self.lock().world.now()
    }

    /// The place where the latest event has happened.
    pub(super) fn place(&self) -> usize {
        self.lock().world.place()
    }

    pub(super) fn schedule(&self, at: Time, event: Event) {
        self.lock().schedule(at, event);
    }

    pub(super) fn next(&self, end: Time) -> Option<Event> {
        self.lock().world.next(end)
    }

    /// Doorbells that a rank has rung. A phase of its daemon begins.
    pub(super) fn rung(&self, rank: u32) -> u64 {
        let mut state = self.lock();
        let (ever, phase) = state.rung.entry(port_of(rank)).or_default();
        *phase = 0;
        *ever
    }

    /// Events so far, and their hash.
    pub(super) fn progress(&self) -> (u64, u64) {
        let state = self.lock();
        (state.world.happened(), state.world.trace())
    }

    /// Requests that left a port, and their bytes.
    pub(super) fn traffic(&self) -> (u64, u64) {
        let state = self.lock();
        (state.packets, state.payload_bytes)
    }

    /// Pieces of WRITEs that became visible before their completions.
    pub(super) fn torn_pieces(&self) -> u64 {
        self.lock().torn_pieces
    }

    /// A fault begins or ends.
    pub(super) fn set_fault(&self, fault: Fault, begins: bool) {
        let mut state = self.lock();
        let node = fault.node % state.nodes;
        if begins {
            state.faults.push(fault);
            if is_counted(fault.kind) {
                state.to_fail.insert((fault.kind, node), fault.amount);
            }
        } else if let Some(at) = state.faults.iter().position(|active| *active == fault) {
            state.faults.swap_remove(at);
            if is_counted(fault.kind) {
                state.to_fail.remove(&(fault.kind, node));
            }
        }
    }

    /// Memory that is registered with all ports.
    pub(super) fn registered_bytes(&self) -> usize {
        let ports: Vec<_> = self.lock().ports.values().cloned().collect();
        ports.iter().map(VirtualPort::registered_bytes).sum()
    }

    /// The completion queues of a rank's port overrun.
    pub(super) fn overrun(&self, rank: u32) {
        let port = self.lock().ports.get(&port_of(rank)).cloned();
        // The port calls back.
        if let Some(port) = port {
            port.overrun();
        }
    }

    /// All faults end now.
    pub(super) fn heal(&self) {
        let mut state = self.lock();
        state.faults.clear();
        state.to_fail.clear();
    }

    /// The largest amount of an active fault of a node; `None`: there is none.
    pub(super) fn amount(&self, kind: FaultKind, node: u32) -> Option<u32> {
        let state = self.lock();
        let nodes = state.nodes;
        state.active(kind).filter(|fault| fault.is_of(node, nodes)).map(|fault| fault.amount).max()
    }

    /// When the last active fault of this kind ends at a node.
    pub(super) fn ends(&self, kind: FaultKind, node: u32) -> Option<Time> {
        let state = self.lock();
        let nodes = state.nodes;
        state.active(kind).filter(|fault| fault.is_of(node, nodes)).map(Fault::end).max()
    }

    /// Sends a datagram, which may be lost.
    pub(super) fn send_datagram(&self, from: Socket, to: Socket, bytes: &[u8]) {
        let mut state = self.lock();
        if state.is_cut(FaultKind::CutControl, from.rank, to.rank) {
            return;
        }
        let delay_ns = DATAGRAM_NS + self.random().of(state.world.place()).number(DATAGRAM_NS);
        let at = state.world.now() + Time::from_ns(delay_ns);
        state.schedule(at, Event::Datagram { from, to, bytes: bytes.to_vec() });
    }

    /// Sends a request or an answer, which may be lost, repeated and overtaken.
    fn transmit(&self, from: Lid, to: Lid, bytes: usize, waits: Time, event: impl Fn() -> Event) {
        let mut state = self.lock();
        let mut streams = self.random();
        let random = streams.of(state.world.place());
        let permille = |kind| state.active(kind).map(|fault| fault.amount).max().unwrap_or(0);
        let is_lost = random.happens(permille(FaultKind::Loss).into())
            || state.is_cut(FaultKind::CutFabric, rank_of(from), rank_of(to));
        let copies = 1 + u64::from(random.happens(permille(FaultKind::Repeat).into()));
        let reorder_ns = u64::from(permille(FaultKind::Reorder));
        if is_lost {
            return;
        }
        for _ in 0..copies {
            let wire = match state.machine {
                None => Time::from_ns(WIRE_NS + random.number(JITTER_NS)),
                Some(machine) => {
                    let jitter = Time::from_ns(charge::ns(machine.jitter));
                    Time::from_ns(charge::ns(machine.wire)) + random.exponential(jitter)
                }
            };
            let length = wire + Time::from_ns(random.number(reorder_ns + 1));
            let at = state.world.now() + waits + length + Time::from_ps(BYTE_PS * bytes as u64);
            let at = if reorder_ns > 0 { at } else { state.behind(from, to, at) };
            state.schedule(at, event());
        }
    }

    /// Does what a NIC does. Returns the rank whose memory has changed.
    pub(super) fn run(&self, event: Event) -> Option<u32> {
        let lid = match &event {
            Event::Issue(port, _) => *port,
            Event::Arrive(packet) | Event::Land(packet) | Event::Place(packet, _) => {
                packet.destination().0
            }
            Event::Settle(answer) => answer.destination().0,
            _ => return None,
        };
        let mut state = self.lock();
        let now = state.world.now();
        if let Event::Issue(port, qp) = event {
            if state.issue_at.get(&(port, qp)) != Some(&now) {
                return None;
            }
            state.issue_at.remove(&(port, qp));
        }
        if let Some(until) = state.stalled_until(lid)
            && until > now
        {
            match event {
                Event::Issue(port, qp) => state.issue(until, port, qp),
                event => state.schedule(until, event),
            }
            return None;
        }
        let port = state.ports.get(&lid).cloned()?;
        // The port calls back.
        drop(state);
        match event {
            Event::Issue(_, qp) => self.issue(&port, qp, now),
            Event::Arrive(packet) => match self.tear(&packet) {
                Some(()) => return None,
                None => self.arrive(&port, &packet),
            },
            Event::Place(packet, bytes) => {
                let is_placed = port.place(&packet, bytes);
                self.lock().torn_pieces += u64::from(is_placed);
            }
            Event::Land(packet) => self.arrive(&port, &packet),
            Event::Settle(answer) => {
                let (lid, qp) = answer.destination();
                port.settle(&answer);
                self.lock().issue(now, lid, qp);
            }
            _ => {}
        }
        Some(rank_of(lid))
    }

    fn is_calibrated(&self) -> bool {
        self.lock().machine.is_some()
    }

    fn issue(&self, port: &VirtualPort, qp: Qpn, now: Time) {
        let lid = port.lid();
        match port.issue(qp) {
            Issued::Packet(packet) => {
                let bytes = packet.payload_bytes();
                let (to, _) = packet.destination();
                let mut state = self.lock();
                (state.packets, state.payload_bytes) =
                    (state.packets + 1, state.payload_bytes + bytes as u64);
                state.world.note(u64::from(qp.get()) << 32 | bytes as u64);
                let left = state.sent(lid, now, bytes);
                state.issue(left, lid, qp);
                drop(state);
                let waits = if self.is_calibrated() { left.since(now) } else { Time::ZERO };
                self.transmit(lid, to, bytes, waits, || Event::Arrive(Box::new(packet.clone())));
            }
            Issued::Done => self.lock().issue(now + Time::from_ns(10), lid, qp),
            Issued::WaitUntil(then_ns) => self.lock().issue(Time::from_ns(then_ns), lid, qp),
            Issued::Idle => {}
        }
    }

    /// Lets a packet become visible in pieces. `None`: it is to be run now.
    fn tear(&self, packet: &Packet) -> Option<()> {
        let mut state = self.lock();
        let (now, len) = (state.world.now(), packet.payload_bytes());
        let (source, destination) = (packet.source(), packet.destination());
        let between = [source, destination];
        let earlier = state.landed_at.get(&between).copied().filter(|at| *at > now);
        let (rank, nodes) = (rank_of(destination.0), state.nodes);
        let torn = state.active(FaultKind::Torn).filter(|fault| fault.is_of(rank, nodes));
        let spread_ns = u64::from(torn.map(|fault| fault.amount).max().unwrap_or(0));
        // What follows waits for what is still on its way to memory.
        if spread_ns == 0 && earlier.is_none() {
            return None;
        }
        let mut streams = self.random();
        let random = streams.of(state.world.place());
        let begin = earlier.unwrap_or(now);
        let landed = begin + Time::from_ns(1 + random.number(spread_ns.max(1)));
        let spread_ns = landed.since(begin).whole_ns();
        for bytes in pieces(len, random) {
            let at = begin + Time::from_ns(random.number(spread_ns));
            state.schedule(at, Event::Place(Box::new(packet.clone()), bytes));
        }
        state.landed_at.insert(between, landed);
        state.schedule(landed, Event::Land(Box::new(packet.clone())));
        Some(())
    }

    fn arrive(&self, port: &VirtualPort, packet: &Packet) {
        let (from, to) = (packet.source().0, packet.destination().0);
        let not_ready = self.amount(FaultKind::Rnr, rank_of(to)).unwrap_or(0);
        let place = self.place();
        let is_read = packet.answer_bytes_max() > 0;
        let answer = if self.fails(FaultKind::QpError, rank_of(from)) {
            port.refuse(packet, Refusal::Failed)
        } else if is_read && self.fails(FaultKind::Revoked, rank_of(to)) {
            port.refuse(packet, Refusal::Revoked)
        } else if self.random().of(place).happens(not_ready.into()) {
            port.refuse(packet, Refusal::NotReady { wait_ns: RNR_WAIT_NS })
        } else {
            port.respond(packet)
        };
        if let Some(answer) = answer {
            let bytes = answer.payload_bytes();
            self.transmit(to, from, bytes, Time::ZERO, || Event::Settle(Box::new(answer.clone())));
        }
    }

    /// Whether a request is to fail by this fault of a node.
    fn fails(&self, kind: FaultKind, node: u32) -> bool {
        let mut state = self.lock();
        let left = state.to_fail.get_mut(&(kind, node));
        left.is_some_and(|left| std::mem::replace(left, left.saturating_sub(1)) > 0)
    }
}

/// Pieces of a message that become visible at once: words of 8 bytes are never torn.
fn pieces(len: usize, random: &mut RandomStream) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut begin = 0;
    while begin < len && pieces.len() < PIECES_MAX {
        let end = begin + 8 * (1 + random.below(len.div_ceil(8)));
        pieces.push(begin..end.min(len));
        begin = end;
    }
    pieces
}

impl Timeline for Network {
    fn now_ns(&self) -> u64 {
        self.now().whole_ns()
    }

    fn runnable(&self, port: Lid, qp: Qpn, cause: Cause) {
        let mut state = self.lock();
        let mut delay = if cause == Cause::Port { Time::ZERO } else { DOORBELL };
        if cause != Cause::Port {
            let (ever, phase) = state.rung.entry(port).or_default();
            (*ever, *phase) = (*ever + 1, *phase + 1);
            let rung = *phase;
            if let Some(machine) = state.machine {
                // A phase rings one after the other. The time to the NIC is part of a WQE's.
                delay = Time::from_ns(charge::ns(machine.flush) * rung);
            }
        }
        let at = state.world.now() + delay;
        state.issue(at, port, qp);
    }

    fn idle(&self, _: Lid) -> bool {
        false
    }
}
