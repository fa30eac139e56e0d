//! A prototype: two ways in which the answer of a daemon reaches the client that waits for it at another node.
//!
//! ```text
//!  through the daemon   client ─▶ daemon ══▶ daemon ══▶ daemon ─▶ client     batches both ways
//!  into the slot        client ─▶ daemon ══▶ daemon ─────────────▶ client     a WRITE for each answer
//! ```
//!
//! Daemons are like production ones where that matters here: clients have rings of their own, a connection
//! has a limit of unfinished batches, and what waits for it grows meanwhile. The rest is the loop of the
//! [other daemon](super::reference_daemon).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

use serde::Serialize;

use crate::{
    machine::DelegationProfile,
    world::{RandomStream, Time, World},
};

/// How an answer reaches its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ReturnPath {
    /// In a batch to the daemon of the client, which hands it over.
    Daemon,
    /// The serving daemon writes it into the memory of the client: a request of its NIC each, and no work of
    /// the client's daemon.
    Slot,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Nodes.
    pub nodes: usize,
    /// Calls in flight of each client.
    pub depth: u32,
    /// The way back.
    pub path: ReturnPath,
    /// Unfinished batches of a connection.
    pub batches_max: usize,
    /// Nothing is counted before.
    pub warm_up: Time,
    /// The end.
    pub end: Time,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Calls per µs and node.
    pub mops_per_node: f64,
    /// From a client's request to its sight of the answer, of calls to other nodes, on average, in µs.
    pub round_trip_us: f64,
    /// Requests of a NIC per call to another node.
    pub wqes_per_call: f64,
    /// Share of the time in which the daemon's turns found work.
    pub busy: f64,
    /// A hash of all turns.
    pub trace: u64,
}

/// Calls, and the sum of the times at which they were made, in µs.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    count: u32,
    made_us: f64,
}

impl Calls {
    fn add(&mut self, other: Self) {
        (self.count, self.made_us) = (self.count + other.count, self.made_us + other.made_us);
    }

    fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

/// Messages of a batch.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    requests: Calls,
    responses: Calls,
}

/// What one node has for another.
#[derive(Debug, Default)]
struct Link {
    batch: Batch,
    /// When the batches end that were posted, in µs.
    unfinished: VecDeque<f64>,
}

#[derive(Debug, Default)]
struct Node {
    /// Requests of clients, by the time in ps at which they are visible. They were made then.
    requests: BinaryHeap<Reverse<u64>>,
    /// Batches that arrive: when in ps, their number, and from where.
    arrivals: BinaryHeap<Reverse<(u64, u64, usize)>>,
    links: BTreeMap<usize, Link>,
    /// Peers in the order in which their batches began.
    order: VecDeque<usize>,
    nic_free: f64,
}

#[derive(Debug, Default)]
struct Counts {
    calls: u64,
    remote: u64,
    wqes: u64,
    round_trips_us: f64,
    busy_us: f64,
}

struct Simulation<'a> {
    profile: &'a DelegationProfile,
    load: Load,
    nodes: Vec<Node>,
    /// Batches on their way, by number.
    sent: BTreeMap<u64, Batch>,
    sent_ever: u64,
    random: RandomStream,
    counts: Counts,
    warm_up_us: f64,
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some ms, in ps")]
fn ps(us: f64) -> u64 {
    (us * 1e6) as u64
}

#[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
fn real(count: u64) -> f64 {
    count as f64
}

/// Simulates a load.
#[must_use]
pub fn run(profile: &DelegationProfile, load: Load, seed: u64) -> Measured {
    let mut simulation = Simulation::new(profile, load, seed);
    let mut world = World::default();
    for node in 0..load.nodes {
        let at = simulation.random.number(500);
        world.schedule(Time::from_ns(at), node);
    }
    while let Some(node) = world.next(load.end) {
        let next_us = simulation.turn(node, world.now().as_ns() / 1000.0);
        world.schedule(Time::from_ps(ps(next_us)), node);
    }
    let span_us = load.end.since(load.warm_up).as_ns() / 1000.0;
    let per_node = span_us * real(load.nodes as u64);
    let Counts { calls, remote, wqes, round_trips_us, busy_us } = simulation.counts;
    Measured {
        mops_per_node: real(calls) / per_node,
        round_trip_us: round_trips_us / real(remote.max(1)),
        wqes_per_call: real(wqes) / real(remote.max(1)),
        busy: busy_us / per_node,
        trace: world.trace(),
    }
}

impl<'a> Simulation<'a> {
    fn new(profile: &'a DelegationProfile, load: Load, seed: u64) -> Self {
        let mut random = RandomStream::new(seed, "return path");
        let calls = profile.clients * load.depth;
        let nodes = (0..load.nodes).map(|_| {
            let requests = (0..calls).map(|_| Reverse(random.number(1_000_000))).collect();
            Node { requests, ..Node::default() }
        });
        let nodes = nodes.collect();
        let warm_up_us = load.warm_up.as_ns() / 1000.0;
        let (sent, counts) = (BTreeMap::new(), Counts::default());
        Self { profile, load, nodes, sent, sent_ever: 0, random, counts, warm_up_us }
    }

    fn jitter(&mut self, mean_us: f64) -> f64 {
        self.random.exponential(Time::from_ps(ps(mean_us))).as_ns() / 1000.0
    }

    /// Clients of a node get answers at `at`, and make as many calls.
    fn answer(&mut self, node: usize, at: f64, count: u32) {
        if at >= self.warm_up_us {
            self.counts.calls += u64::from(count);
        }
        for _ in 0..count {
            let thinks = self.profile.client + self.jitter(self.profile.client_jitter);
            self.nodes[node].requests.push(Reverse(ps(at + thinks)));
        }
    }

    /// Clients of a node get answers of another one.
    fn answer_remote(&mut self, node: usize, at: f64, calls: Calls) {
        if at >= self.warm_up_us {
            self.counts.remote += u64::from(calls.count);
            self.counts.round_trips_us += f64::from(calls.count) * at - calls.made_us;
        }
        self.answer(node, at, calls.count);
    }

    fn batch(&mut self, node: usize, to: usize) -> &mut Batch {
        let node = &mut self.nodes[node];
        let link = node.links.entry(to).or_default();
        if link.batch.requests.count + link.batch.responses.count == 0 {
            node.order.push_back(to);
        }
        &mut link.batch
    }

    /// One turn of a daemon; returns when the next one begins.
    fn turn(&mut self, node: usize, began: f64) -> f64 {
        let mut now = began + self.profile.turn;
        now += self.take_requests(node, began);
        now += self.take_arrivals(node, now);
        now += self.flush(node, now);
        let work = now - began - self.profile.turn;
        if work > 0.0 && began >= self.warm_up_us {
            self.counts.busy_us += now - began;
        }
        now
    }

    /// A factor for what is beyond the items that caches hold.
    fn weight(&self, items: u32) -> f64 {
        let warm = items.min(self.profile.warm_items);
        (f64::from(warm) + f64::from(items - warm) * self.profile.cold) / f64::from(items.max(1))
    }

    /// Takes what clients ask for; returns the time that it takes.
    fn take_requests(&mut self, node: usize, now: f64) -> f64 {
        let (mut local, mut remote) = (0, 0);
        while let Some(Reverse(at)) = self.nodes[node].requests.peek().copied()
            && at <= ps(now)
        {
            self.nodes[node].requests.pop();
            let to = self.random.below(self.load.nodes);
            if to == node {
                local += 1;
            } else {
                remote += 1;
                self.batch(node, to).requests.add(Calls { count: 1, made_us: real(at) / 1e6 });
            }
        }
        let profile = self.profile;
        let cpu = f64::from(local) * (profile.local + profile.response)
            + f64::from(remote) * profile.call;
        let cpu = cpu * self.weight(local + remote);
        self.answer(node, now + cpu, local);
        cpu
    }

    /// Takes batches that have arrived; returns the time that it takes.
    fn take_arrivals(&mut self, node: usize, now: f64) -> f64 {
        let (mut cpu, mut items) = (0.0, 0);
        while let Some(Reverse((at, number, from))) = self.nodes[node].arrivals.peek().copied()
            && at <= ps(now)
        {
            self.nodes[node].arrivals.pop();
            let Batch { requests, responses } = self.sent.remove(&number).unwrap_or_default();
            let profile = self.profile;
            items += requests.count + responses.count;
            let work = f64::from(requests.count) * profile.serve
                + f64::from(responses.count) * profile.response;
            cpu += profile.completion + work * self.weight(items);
            self.answer_remote(node, now + cpu, responses);
            if requests.count > 0 {
                self.batch(node, from).responses.add(requests);
            }
        }
        cpu
    }

    /// The NIC of a node sends a request with so many messages at `now`; returns when it arrives.
    fn send(&mut self, node: usize, now: f64, messages: u32) -> f64 {
        let (wqe, message, wire) = (self.profile.wqe, self.profile.message, self.profile.wire);
        let free = &mut self.nodes[node].nic_free;
        *free = free.max(now) + wqe + f64::from(messages) * message;
        let left = *free;
        self.counts.wqes += u64::from(now >= self.warm_up_us);
        left + wire + self.jitter(self.profile.jitter)
    }

    /// Posts what may leave, to peers in order; returns the time that it takes.
    fn flush(&mut self, node: usize, now: f64) -> f64 {
        let mut cpu = 0.0;
        for to in std::mem::take(&mut self.nodes[node].order) {
            let Some(link) = self.nodes[node].links.get_mut(&to) else { continue };
            while link.unfinished.front().is_some_and(|end| *end <= now) {
                link.unfinished.pop_front();
            }
            let may_batch = link.unfinished.len() < self.load.batches_max;
            let mut batch = Batch::default();
            if self.load.path == ReturnPath::Slot {
                let answers = link.batch.responses.take();
                if may_batch {
                    batch.requests = link.batch.requests.take();
                }
                // One doorbell for all that goes to the peer.
                if answers.count + batch.requests.count > 0 {
                    cpu += self.profile.flush;
                }
                self.write_answers(node, to, now + cpu, answers);
            } else if may_batch {
                batch = std::mem::take(&mut link.batch);
                cpu += self.profile.flush;
            }
            let messages = batch.requests.count + batch.responses.count;
            if messages > 0 {
                let at = self.send(node, now + cpu, messages);
                self.sent_ever += 1;
                self.sent.insert(self.sent_ever, batch);
                self.nodes[to].arrivals.push(Reverse((ps(at), self.sent_ever, node)));
                if let Some(link) = self.nodes[node].links.get_mut(&to) {
                    link.unfinished.push_back(at + self.profile.wire);
                }
            }
            let link = self.nodes[node].links.get(&to);
            let left =
                link.is_some_and(|link| link.batch.requests.count + link.batch.responses.count > 0);
            if left {
                self.nodes[node].order.push_back(to);
            }
        }
        cpu
    }

    /// Writes each answer into the memory of its client.
    fn write_answers(&mut self, node: usize, to: usize, now: f64, answers: Calls) {
        let made_us = answers.made_us / f64::from(answers.count.max(1));
        for _ in 0..answers.count {
            let at = self.send(node, now, 1);
            self.answer_remote(to, at, Calls { count: 1, made_us });
        }
    }
}
