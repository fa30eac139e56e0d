//! A world in virtual time: ports of the virtual drive, and a network that delays, loses and repeats.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use copyrpc_softnic::{
    Cause, Config, Issued, Nic, Packet, ReplyPacket, Timeline, VirtualPort, open_virtual,
};
use verbs::{Lid, Qpn};

/// Time from port to port, without what the seed adds.
const LATENCY_NS: u64 = 1_000;

/// What the network does to packets and answers, each once in so many times; 0: never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lose_one_in: u64,
    pub(crate) repeat_one_in: u64,
    /// Up to so long an additional delay, by which later ones overtake earlier ones.
    pub(crate) delay_ns_max: u64,
}

#[derive(Clone, Debug)]
enum Event {
    Issue(Lid, Qpn),
    Arrive(Packet),
    Settle(ReplyPacket),
}

#[derive(Debug, Default)]
struct State {
    now_ns: u64,
    random: u64,
    faults: Faults,
    /// By time, then by order of scheduling.
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    /// When each queue pair is to be issued next.
    issue_at_ns: BTreeMap<(Lid, Qpn), u64>,
    ports: BTreeMap<Lid, VirtualPort>,
    doorbells: Vec<(Lid, Qpn, Cause)>,
    /// What has happened, in order.
    history: Vec<String>,
}

impl State {
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.random >> 33
    }

    fn happens(&mut self, one_in: u64) -> bool {
        one_in != 0 && self.next_random().is_multiple_of(one_in)
    }

    fn schedule(&mut self, at_ns: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((at_ns, self.scheduled), event);
    }

    fn issue_at(&mut self, at_ns: u64, port: Lid, qp: Qpn) {
        let next = self.issue_at_ns.entry((port, qp)).or_insert(u64::MAX);
        if at_ns < *next {
            *next = at_ns;
            self.schedule(at_ns, Event::Issue(port, qp));
        }
    }

    /// Sends something to its port.
    fn transmit(&mut self, event: Event) {
        let faults = self.faults;
        if self.happens(faults.lose_one_in) {
            return;
        }
        let copies = if self.happens(faults.repeat_one_in) { 2 } else { 1 };
        for _ in 0..copies {
            let delay_ns = self.next_random() % (faults.delay_ns_max + 1);
            self.schedule(self.now_ns + LATENCY_NS + delay_ns, event.clone());
        }
    }
}

/// Ports, the network between them, and their time.
#[derive(Debug, Default)]
pub(crate) struct World {
    state: Mutex<State>,
    /// Whoever has it makes things happen.
    stepping: Mutex<()>,
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults) -> Arc<Self> {
        let world = Self::default();
        (world.lock().random, world.lock().faults) = (seed, faults);
        Arc::new(world)
    }

    pub(crate) fn open(self: &Arc<Self>, lid: u16, config: &Config) -> Nic {
        let (nic, port) = open_virtual(config, Lid::new(lid), self.clone()).unwrap();
        self.lock().ports.insert(port.lid(), port);
        nic
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn history(&self) -> Vec<String> {
        self.lock().history.clone()
    }

    pub(crate) fn doorbells(&self) -> Vec<(Lid, Qpn, Cause)> {
        self.lock().doorbells.clone()
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    pub(crate) fn port(&self, lid: u16) -> VirtualPort {
        self.lock().ports[&Lid::new(lid)].clone()
    }

    /// Makes the next thing happen; `false` if there is none, or another thread is at it.
    pub(crate) fn step(&self) -> bool {
        let Ok(_one_thread) = self.stepping.try_lock() else { return false };
        let mut state = self.lock();
        let Some(((at_ns, _), event)) = state.events.pop_first() else { return false };
        state.now_ns = at_ns;
        if let Event::Issue(port, qp) = event {
            if state.issue_at_ns.get(&(port, qp)) != Some(&at_ns) {
                return true;
            }
            state.issue_at_ns.remove(&(port, qp));
        }
        let lid = match &event {
            Event::Issue(port, _) => *port,
            Event::Arrive(packet) => packet.destination().0,
            Event::Settle(answer) => answer.destination().0,
        };
        let line = match &event {
            Event::Issue(port, qp) => format!("{at_ns} issue {port:?} {qp:?}"),
            Event::Arrive(packet) => format!("{at_ns} {:x?}", packet.encode()),
            Event::Settle(answer) => format!("{at_ns} {:x?}", answer.encode()),
        };
        if state.history.len() < 1 << 14 {
            state.history.push(line);
        }
        let Some(port) = state.ports.get(&lid).cloned() else { return true };
        // The port calls back.
        drop(state);
        self.run(&port, event, at_ns);
        true
    }

    fn run(&self, port: &VirtualPort, event: Event, at_ns: u64) {
        match event {
            Event::Issue(lid, qp) => match port.issue(qp) {
                Issued::Packet(packet) => {
                    // As after a byte stream.
                    let packet = Packet::decode(&packet.encode()).unwrap();
                    let mut state = self.lock();
                    state.transmit(Event::Arrive(packet));
                    state.issue_at(at_ns + 50, lid, qp);
                }
                Issued::Done => self.lock().issue_at(at_ns + 10, lid, qp),
                Issued::WaitUntil(then_ns) => self.lock().issue_at(then_ns, lid, qp),
                Issued::Idle => {}
            },
            Event::Arrive(packet) => {
                if let Some(answer) = port.respond(&packet) {
                    let answer = ReplyPacket::decode(&answer.encode()).unwrap();
                    self.lock().transmit(Event::Settle(answer));
                }
            }
            Event::Settle(answer) => {
                let (lid, qp) = answer.destination();
                port.settle(&answer);
                self.lock().issue_at(at_ns, lid, qp);
            }
        }
    }
}

impl Timeline for World {
    fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    fn runnable(&self, port: Lid, qp: Qpn, cause: Cause) {
        let mut state = self.lock();
        let at_ns = state.now_ns + 20;
        state.issue_at(at_ns, port, qp);
        if cause != Cause::Port && state.doorbells.len() < 1 << 14 {
            state.doorbells.push((port, qp, cause));
        }
    }

    fn idle(&self, _: Lid) -> bool {
        self.step()
    }
}
