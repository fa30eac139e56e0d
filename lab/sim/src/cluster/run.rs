//! A run: what happens, event by event, and how it is judged in the end.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use daemon::{LANE_CALLS, ThreadHandle, metrics::Counter};
use ipc::sans_os::Notice;

use super::{
    ClusterError, Setup, charge,
    client::Client,
    direct::SharedDesk,
    fault::FaultKind,
    history::History,
    network::{Event, Network, Phase, Socket},
    node::{Directory, Node},
    plan::Plan,
    surroundings::Surroundings,
    trace::Spans,
};
use crate::world::{PlaceStreams, RandomStream, Time};

/// The number of a turn, or step, that nothing replaces.
const TIMER: u64 = 0;
/// What is not later than this is no timer.
const NEAR: Time = Time::from_ns(1_000);
/// What a turn takes longer for everything that it handles.
const HANDLED_NS: u64 = 50;
/// A daemon that polls looks at deadlines and datagrams so often.
const CONTROL: Time = Time::from_ns(daemon::CONTROL_NS);
/// How often a daemon that waits for that look is simulated to turn.
const LOOK: Time = Time::from_ns(daemon::CONTROL_NS / 8);
/// Longest sleep of a daemon.
const SLEEP_MAX: Time = Time::from_ns(100_000_000);
/// A wakeup of a process takes this long, and up to as much again.
pub(super) const WAKEUP_NS: u64 = 3_000;
/// What is in memory is seen by a process that polls after at most so long.
const SEEN_NS: u64 = 200;
/// Datagrams that a socket keeps.
const DATAGRAMS_MAX: usize = 4096;
/// All daemons find each other within this.
const MEET: Time = Time::from_ns(100_000_000);

pub(super) struct Cluster {
    pub(super) plan: Plan,
    pub(super) network: Arc<Network>,
    directory: Directory,
    desk: SharedDesk,
    pub(super) history: Rc<RefCell<History>>,
    pub(super) nodes: Vec<Option<Node>>,
    pub(super) clients: Vec<Vec<Option<Client>>>,
    /// By rank: lives so far, and the epoch of the latest.
    pub(super) lives: Vec<(u32, u64)>,
    /// By rank: faults of the node itself.
    pub(super) disturbed: Vec<bool>,
    /// By rank: its NIC has failed, which the daemon has not noticed.
    pub(super) doomed: Vec<bool>,
    /// Clients ever, which have a stream of random numbers each.
    clients_ever: u64,
    pub(super) random: PlaceStreams,
    pub(super) is_draining: bool,
    /// Counters of lives that are over.
    pub(super) past: Vec<Vec<u64>>,
    pub(super) spans: Option<Spans>,
}

impl Cluster {
    pub(super) fn new(plan: Plan, is_traced: bool) -> Result<Self, ClusterError> {
        let Plan { nodes, threads, seed, .. } = plan;
        let network = Network::new(seed, (nodes, threads), plan.machine, plan.slice);
        let places = if plan.slice.is_some() { nodes as usize } else { 1 };
        let count = (nodes * threads) as usize;
        let mut cluster = Self {
            plan,
            network,
            directory: Directory::default(),
            desk: SharedDesk::default(),
            history: Rc::default(),
            nodes: (0..count).map(|_| None).collect(),
            clients: (0..count).map(|_| Vec::new()).collect(),
            lives: vec![(0, 1 << 40); count],
            disturbed: vec![false; count],
            doomed: vec![false; count],
            clients_ever: 0,
            random: PlaceStreams::new(seed, "cluster", places),
            is_draining: false,
            past: vec![vec![0; Counter::ALL.len()]; count],
            spans: is_traced.then(Spans::default),
        };
        for rank in 0..nodes {
            cluster.start(rank)?;
        }
        if is_traced {
            cluster.history.borrow_mut().keep_all();
        }
        Ok(cluster)
    }

    /// Runs until the end, and then until everything works again.
    pub(super) fn run(&mut self, setup: &Setup) -> Result<(), ClusterError> {
        self.run_until(MEET, |cluster| cluster.is_connected())?;
        if !self.is_connected() {
            return self.give_up("the daemons did not find each other");
        }
        let start = self.network.now();
        let end = start + setup.length;
        for fault in setup.faults() {
            let fault = fault.within(start, end);
            let rank = (fault.node % setup.nodes) as usize;
            self.disturbed[rank] |= fault.kind.is_of_processes();
            self.network.schedule(fault.begin(), Event::Fault { fault, begins: true });
            self.network.schedule(fault.end(), Event::Fault { fault, begins: false });
        }
        for rank in 0..setup.nodes {
            self.admit_all(rank);
        }
        self.advance(end)?;
        if self.history.borrow().failure().is_some() {
            return Ok(());
        }
        self.recover(end)?;
        self.check()?;
        self.judge(setup)
    }

    pub(super) fn give_up(&mut self, what: &str) -> Result<(), ClusterError> {
        let peers: Vec<_> = self
            .nodes
            .iter()
            .map(|node| {
                node.as_ref().map(|node| (node.daemon.peers_up(), node.daemon.outstanding()))
            })
            .collect();
        let mut history = self.history.borrow_mut();
        let oldest = history.oldest_open();
        history
            .fail(|| format!("{what}: peers up and calls under way {peers:?}, oldest {oldest:?}"));
        Ok(())
    }

    /// Makes what happens until `end` happen, or until something is wrong.
    pub(super) fn advance(&mut self, end: Time) -> Result<(), ClusterError> {
        while let Some(event) = self.network.next(end) {
            self.handle(event)?;
            if self.history.borrow().failure().is_some() {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn run_until(
        &mut self,
        end: Time,
        mut is_done: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), ClusterError> {
        while !is_done(self)
            && self.network.now() < end
            && self.history.borrow().failure().is_none()
        {
            let before = self.network.now();
            self.advance((before + CONTROL).min(end))?;
            // Nothing may happen for longer than that.
            if self.network.now() == before {
                match self.network.next(end) {
                    Some(event) => self.handle(event)?,
                    None => break,
                }
            }
        }
        Ok(())
    }

    pub(super) fn is_connected(&self) -> bool {
        let is_connected = |node: &Node| node.daemon.peers_up() == node.daemon.peers();
        self.nodes.iter().all(|node| node.as_ref().is_some_and(is_connected))
    }

    pub(super) fn is_settled(&self) -> bool {
        let is_idle = |node: &Node| node.daemon.outstanding() == 0;
        self.is_connected()
            && !self.doomed.contains(&true)
            && self.history.borrow().open() == 0
            && self.nodes.iter().flatten().all(is_idle)
            && self.clients.iter().flatten().all(Option::is_some)
    }

    fn handle(&mut self, event: Event) -> Result<(), ClusterError> {
        match event {
            Event::Issue(..)
            | Event::Arrive(_)
            | Event::Place(..)
            | Event::Land(_)
            | Event::Settle(_) => {
                if let Some(rank) = self.network.run(event) {
                    self.rouse(rank);
                }
            }
            Event::Datagram { from, to, bytes } => self.deliver(from, to, bytes),
            Event::Turn { socket, number, phase } => self.turn(socket, number, phase),
            Event::Client { socket, client, number } => self.step_client(socket, client, number),
            Event::WakeDaemon { socket, id } => {
                if let Some(node) = self.node(socket) {
                    node.server().woken(id);
                    self.rouse(socket.rank);
                }
            }
            Event::WakeClient { socket, slot } => self.wake_client(socket, slot),
            Event::WakeSession { socket, session, is_for_host } => {
                self.wake_session(socket, session, is_for_host);
            }
            Event::Departed { socket, client, id } => {
                if let Some(node) = self.node(socket) {
                    node.server().departed(id);
                    self.rouse(socket.rank);
                    self.admit(socket.rank, client);
                }
            }
            Event::Fault { fault, begins } => self.fault(fault, begins),
            Event::Restart { rank } => {
                if self.nodes[rank as usize].is_none() {
                    self.start(rank)?;
                    self.admit_all(rank);
                }
            }
        }
        Ok(())
    }

    pub(super) fn node(&mut self, socket: Socket) -> Option<&mut Node> {
        self.nodes[socket.rank as usize].as_mut().filter(|node| node.socket == socket)
    }

    /// The random numbers of the place where something happens now.
    pub(super) fn random(&mut self) -> &mut RandomStream {
        self.random.of(self.network.place())
    }

    // Daemons

    /// Starts the threads of a daemon.
    pub(super) fn start(&mut self, rank: u32) -> Result<(), ClusterError> {
        let threads = self.plan.threads;
        let handles =
            ThreadHandle::polled_mesh(u8::try_from(threads).unwrap_or(u8::MAX), LANE_CALLS);
        for (thread, handle) in (rank * threads..).zip(handles) {
            self.start_thread(thread, handle)?;
        }
        Ok(())
    }

    fn start_thread(&mut self, rank: u32, handle: ThreadHandle) -> Result<(), ClusterError> {
        let (life, epoch) = &mut self.lives[rank as usize];
        *life += 1;
        let socket = Socket { rank, life: *life };
        let epoch = *epoch;
        let node = Node::start(
            &self.plan,
            (socket, handle),
            epoch,
            &self.network,
            &self.directory,
            &self.history,
        )?;
        self.nodes[rank as usize] = Some(node);
        self.schedule_turn(rank, self.network.now(), Phase::Take);
        Ok(())
    }

    fn schedule_turn(&mut self, rank: u32, at: Time, phase: Phase) {
        let Some(node) = &mut self.nodes[rank as usize] else { return };
        node.turn += 1;
        node.phase = phase;
        let (socket, number) = (node.socket, node.turn);
        self.network.schedule(at, Event::Turn { socket, number, phase });
    }

    /// There is something for a daemon that waits.
    pub(super) fn rouse(&mut self, rank: u32) {
        let now = self.network.now();
        let turn_ns = self.plan.turn.whole_ns();
        let Some(node) = &mut self.nodes[rank as usize] else { return };
        node.is_roused = true;
        if std::mem::take(&mut node.is_parked) {
            let delay_ns = if node.is_asleep {
                WAKEUP_NS + node.random.number(WAKEUP_NS)
            } else {
                node.random.number(turn_ns)
            };
            self.schedule_turn(rank, now + Time::from_ns(delay_ns), Phase::Take);
        }
    }

    /// There may be something for the other threads of a daemon.
    fn rouse_siblings(&mut self, thread: u32) {
        let threads = self.plan.threads;
        let first = thread / threads * threads;
        (first..first + threads)
            .filter(|other| *other != thread)
            .for_each(|other| self.rouse(other));
    }

    /// A datagram has come. Only a daemon that sleeps is told.
    fn deliver(&mut self, from: Socket, to: Socket, bytes: Vec<u8>) {
        let Some(node) = self.node(to) else { return };
        let mut inbox = node.inbox.borrow_mut();
        if inbox.len() < DATAGRAMS_MAX {
            inbox.push_back((from, bytes));
        }
        drop(inbox);
        if node.is_asleep {
            self.rouse(to.rank);
        }
    }

    /// A phase of a turn.
    fn turn(&mut self, socket: Socket, number: u64, phase: Phase) {
        let (rank, now) = (socket.rank, self.network.now());
        let splits_turns = self.plan.detail.splits_turns;
        let gain_ppm = self.network.amount(FaultKind::ClockRate, rank).unwrap_or(0);
        let slow = u64::from(self.network.amount(FaultKind::Slow, rank).unwrap_or(1));
        let stopped = self.network.ends(FaultKind::Pause, rank).filter(|until| *until > now);
        let Some(node) = self.node(socket) else { return };
        if number == TIMER {
            node.timer = None;
        }
        if node.turn != number && !(number == TIMER && node.is_parked) {
            return;
        }
        if let Some(until) = stopped {
            return self.schedule_turn(rank, until, phase);
        }
        let now_ns = node.clock.read(now, gain_ppm.into());
        let before = self.work(rank);
        let Some(node) = self.node(socket) else { return };
        let phases = if splits_turns { vec![phase] } else { Phase::ALL.to_vec() };
        let mut handled = 0;
        for phase in &phases {
            handled = node.run_phase(*phase, now, now_ns);
        }
        let (began, handled_ns) = (node.turn_began, HANDLED_NS * handled as u64);
        if handled > 0
            && let Some(spans) = &mut self.spans
        {
            spans.turn(rank, began, now, handled);
        }
        self.after_phase(socket);
        if self.ends_by_itself(socket) {
            return;
        }
        let length_ns = slow
            * match self.plan.machine {
                None => self.plan.turn.whole_ns() / 3 * phases.len() as u64 + handled_ns,
                Some(machine) => charge::phase_ns(&machine, before, self.work(rank)),
            };
        let next = now + Time::from_ns(length_ns.max(1));
        match phases.last().unwrap_or(&phase) {
            Phase::Take => self.schedule_turn(rank, next, Phase::Poll),
            Phase::Poll => self.schedule_turn(rank, next, Phase::Control),
            Phase::Control => {
                if handled > 0 {
                    self.rouse_siblings(rank);
                }
                self.after_turn(socket, handled, next, now_ns);
            }
        }
    }

    /// What a daemon has done. Nobody asks in a world of made-up times.
    fn work(&mut self, rank: u32) -> charge::Work {
        let (rung, executed) = match self.plan.machine {
            None => return charge::Work::default(),
            Some(_) => (self.network.rung(rank), self.history.borrow().executed(rank)),
        };
        let Some(node) = &mut self.nodes[rank as usize] else { return charge::Work::default() };
        let arrivals = node.daemon.worker_stats().arrivals;
        let ipc::Stats { requests, responses, .. } = node.server().stats();
        charge::Work { requests, responses, executed, arrivals, rung }
    }

    /// Tells clients what the phase brought them.
    fn after_phase(&mut self, socket: Socket) {
        let now = self.network.now();
        let Some(node) = self.node(socket) else { return };
        let responses = node.server().stats().responses;
        let has_answered = std::mem::replace(&mut node.responses, responses) != responses;
        let mut notices = Vec::new();
        while let Some(notice) = node.server().next_notice() {
            notices.push(notice);
        }
        for notice in notices {
            match notice {
                Notice::Wake(slot) => {
                    let delay_ns = WAKEUP_NS + self.random().number(WAKEUP_NS);
                    let event = Event::WakeClient { socket, slot };
                    self.network.schedule(now + Time::from_ns(delay_ns), event);
                }
                Notice::Disconnect(slot) => self.history.borrow_mut().fail(|| {
                    format!("rank {} evicted the honest client in slot {slot}", socket.rank)
                }),
            }
        }
        if has_answered {
            for client in 0..self.clients[socket.rank as usize].len() {
                self.rouse_client(socket, client);
            }
        }
        self.ring(socket);
    }

    /// What a daemon does between two turns.
    fn after_turn(&mut self, socket: Socket, handled: usize, next: Time, now_ns: u64) {
        let (now, detail) = (self.network.now(), self.plan.detail);
        let Some(node) = self.node(socket) else { return };
        let is_idle = handled == 0 && !node.is_roused;
        node.idle_turns = if is_idle { node.idle_turns + 1 } else { 0 };
        if node.idle_turns < detail.idle_turns {
            return self.schedule_turn(socket.rank, next, Phase::Take);
        }
        node.idle_turns = 0;
        if node.is_sleeper {
            node.is_asleep = node.server().arm();
            if !node.is_asleep {
                node.server().wake_up();
            }
        }
        node.is_parked = true;
        let due = now + Time::from_ns(node.daemon.next_ns().saturating_sub(now_ns).min(1 << 40));
        let limit = if node.is_asleep { SLEEP_MAX } else { CONTROL };
        // What is due and was not done waits for the next look at deadlines.
        let due = if due > next { due } else { now + LOOK };
        let at = due.min(now + limit).max(next);
        if detail.looks_often || at <= now + NEAR {
            self.schedule_turn(socket.rank, at, Phase::Take);
        } else if node.timer.is_none_or(|timer| at < timer) {
            node.timer = Some(at);
            let event = Event::Turn { socket, number: TIMER, phase: Phase::Take };
            self.network.schedule(at, event);
        }
        self.after_phase(socket);
    }

    // Clients

    pub(super) fn admit_all(&mut self, rank: u32) {
        for client in 0..self.plan.clients as usize {
            self.admit(rank, client);
        }
    }

    /// A client of this number comes.
    fn admit(&mut self, rank: u32, client: usize) {
        let Some(node) = &mut self.nodes[rank as usize] else { return };
        let (socket, now) = (node.socket, self.network.now());
        self.clients_ever += 1;
        let name = format!("client {}", self.clients_ever);
        let is_provider = client >= (self.plan.clients - self.plan.providers()) as usize;
        let fresh = if is_provider {
            node.admit().map(|admitted| Client::provider(&self.plan, &name, admitted, &self.desk))
        } else {
            let named = (name.as_str(), client);
            node.admit().map(|admitted| Client::caller(&self.plan, named, admitted, now))
        };
        let Some(fresh) = fresh else {
            return self
                .history
                .borrow_mut()
                .fail(|| format!("rank {rank} has no place for a client"));
        };
        let clients = &mut self.clients[rank as usize];
        if clients.len() <= client {
            clients.resize_with(client + 1, || None);
        }
        clients[client] = Some(fresh);
        self.schedule_client(socket, client, now);
    }

    pub(super) fn schedule_client(&mut self, socket: Socket, client: usize, at: Time) {
        let entry = self.clients[socket.rank as usize].get_mut(client);
        if let Some(Some(entry)) = entry {
            entry.step += 1;
            let number = entry.step;
            self.network.schedule(at, Event::Client { socket, client, number });
        }
    }

    /// There may be an answer for a client that polls.
    pub(super) fn rouse_client(&mut self, socket: Socket, client: usize) {
        let Some(entry) = &self.clients[socket.rank as usize][client] else { return };
        let may_find = self.plan.detail.looks_often || entry.has_response();
        if entry.is_parked && !entry.is_asleep && entry.in_flight() > 0 && may_find {
            let seen = self.seen();
            let at = self.network.now() + seen;
            self.schedule_client(socket, client, at);
        }
    }

    /// How long a client takes to see what came.
    pub(super) fn seen(&mut self) -> Time {
        match self.plan.machine {
            None => Time::from_ns(self.random().number(SEEN_NS)),
            Some(machine) => {
                let jitter = Time::from_ns(charge::ns(machine.client_jitter));
                Time::from_ns(charge::ns(machine.client)) + self.random().exponential(jitter)
            }
        }
    }

    fn wake_client(&mut self, socket: Socket, slot: u16) {
        if self.node(socket).is_none() {
            return;
        }
        let is_it = |client: &Option<Client>| {
            client.as_ref().is_some_and(|client| client.slot == slot && client.is_asleep)
        };
        if let Some(client) = self.clients[socket.rank as usize].iter().position(is_it) {
            self.schedule_client(socket, client, self.network.now());
        }
    }

    fn step_client(&mut self, socket: Socket, client: usize, number: u64) {
        let (rank, now) = (socket.rank, self.network.now());
        let stopped = self.network.ends(FaultKind::ClientPause, rank).filter(|until| *until > now);
        let gain_ppm = self.network.amount(FaultKind::ClockRate, rank).unwrap_or(0);
        let is_disturbed = self.disturbed[rank as usize];
        let Some(node) = self.nodes[rank as usize].as_mut().filter(|node| node.socket == socket)
        else {
            return;
        };
        let Some(Some(entry)) = self.clients[rank as usize].get_mut(client) else { return };
        if number == TIMER {
            entry.timer = None;
        } else if entry.step != number {
            return;
        }
        if let Some(until) = stopped {
            return self.schedule_client(socket, client, until);
        }
        let mut history = self.history.borrow_mut();
        let mut around = Surroundings {
            plan: &self.plan,
            history: &mut history,
            rank: rank / self.plan.threads,
            id: entry.id,
            now,
            now_ns: node.clock.read(now, gain_ppm.into()),
            is_draining: self.is_draining,
            is_disturbed,
            descriptors: &mut node.daemon.port().descriptors,
            desk: &self.desk,
        };
        let stepped = entry.step(&mut around);
        let id = entry.id;
        drop(history);
        if stepped.wakes_daemon {
            let delay_ns = WAKEUP_NS + self.random().number(WAKEUP_NS);
            let event = Event::WakeDaemon { socket, id };
            self.network.schedule(now + Time::from_ns(delay_ns), event);
        }
        if stepped.has_told && self.node(socket).is_some_and(|node| !node.is_asleep) {
            self.rouse(rank);
        }
        if self.plan.is_direct {
            self.tell_sessions(socket, &stepped);
        }
        if let Some(again) = stepped.again {
            self.schedule_look(socket, client, again);
        }
    }

    /// Steps a client again if nothing comes before.
    fn schedule_look(&mut self, socket: Socket, client: usize, at: Time) {
        if self.plan.detail.looks_often || at <= self.network.now() + NEAR {
            return self.schedule_client(socket, client, at);
        }
        let Some(Some(entry)) = self.clients[socket.rank as usize].get_mut(client) else { return };
        if entry.timer.is_none_or(|timer| at < timer) {
            entry.timer = Some(at);
            self.network.schedule(at, Event::Client { socket, client, number: TIMER });
        }
    }

    /// By rank: counters of all lives, in the order of [`Counter::ALL`].
    pub(super) fn counters(&self) -> Vec<Vec<u64>> {
        let mut sums = self.past.clone();
        for (sums, node) in sums.iter_mut().zip(&self.nodes) {
            let Some(node) = node else { continue };
            let total = node.counters().total();
            for (sum, counter) in sums.iter_mut().zip(Counter::ALL) {
                *sum += total.counter(*counter);
            }
        }
        sums
    }
}
