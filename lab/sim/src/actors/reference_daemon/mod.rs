//! The daemon that the delegation measurements were made with: one loop, one ring for all clients of a node,
//! one batch per endpoint and turn. It is not the daemon of this repository.
//!
//! ```text
//!  turn: take requests ─▶ poll completions ─▶ answer clients, or hold the answers ─▶ post a batch per endpoint
//! ```
//!
//! A posted batch cannot grow any more. So there are two steady states: large batches, with a daemon that is
//! busy and a NIC that is not, and single messages, with a NIC that is busy and a daemon that turns for nothing.

mod approaches;
mod lifetime;
mod poll_controller;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

use serde::Serialize;

use crate::{
    machine::DelegationProfile,
    world::{RandomStream, Time, World},
};
pub use approaches::{Approach, Mutant};
pub use lifetime::{Watch, lasts_us};
use poll_controller::PollController;

/// State of all clients when a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum StartState {
    /// All calls at once.
    Burst,
    /// One call per µs and node.
    Trickle,
}

/// What is done with answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Hold {
    /// They go to clients at once.
    None,
    /// They wait for as many as there are nodes, at most so many µs.
    Fixed(f64),
    /// The same, with a limit that follows their rate. It begins with so many µs.
    Adaptive(f64),
    /// The same, with a limit of so many times what passes between a post and the next response.
    RoundTrip(f64),
}

impl Hold {
    const fn start_us(self) -> f64 {
        match self {
            Self::None | Self::RoundTrip(_) => 0.0,
            Self::Fixed(us) | Self::Adaptive(us) => us,
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Load {
    /// Nodes.
    pub nodes: usize,
    /// Calls in flight per client.
    pub depth: u32,
    /// State of all clients at the start.
    pub start: StartState,
    /// Completions that a turn waits for, a poll each; 0: it polls once.
    pub poll_budget: u32,
    /// What is done with answers.
    pub hold: Hold,
    /// What else is done for larger batches.
    pub approach: Approach,
    /// Nothing is counted before, in µs.
    pub warm_up_us: f64,
    /// End, in µs.
    pub end_us: f64,
}

/// A part of a run: whose clients call, and how many calls they keep in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SweepStage {
    /// Nodes whose clients call and that are called, the first ones.
    pub nodes: usize,
    /// Calls in flight per client.
    pub depth: u32,
}

/// Slices of the timeline, of [`SLICE_US`] each.
pub const SLICES: usize = 50;
/// A slice of the timeline, in µs.
pub const SLICE_US: f64 = 100.0;

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Calls per µs, of all nodes.
    pub total_mops: f64,
    /// Responses per turn.
    pub batch: f64,
    /// Turns per node in 10 s, in millions.
    pub turns_10s: f64,
    /// Messages per batch.
    pub messages_per_wqe: f64,
    /// Calls to other nodes in flight per node.
    pub outstanding: f64,
    /// Shares of turns with no response, one, two to ten, and more than a hundred.
    pub shares: [f64; 4],
    /// From a node's first post on, in slices: responses per turn that had any, by when the turn had taken them.
    pub timeline: Vec<f64>,
    /// Turns simulated.
    pub events: u64,
    /// A hash of all of them.
    pub trace: u64,
}

/// Messages of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Batch {
    requests: u32,
    responses: u32,
}

/// A batch at its destination: when, in ps, its number, and from where.
type Arrival = Reverse<(u64, u64, usize, Batch)>;

/// Open batches by destination, and their destinations in the order in which they began: batches leave in
/// that order. In the order of ranks all nodes would favour the same ones, and large batches do not last.
#[derive(Debug, Default)]
struct Pending {
    batches: BTreeMap<usize, Batch>,
    order: Vec<usize>,
}

impl Pending {
    fn to(&mut self, node: usize) -> &mut Batch {
        self.batches.entry(node).or_insert_with(|| {
            self.order.push(node);
            Batch::default()
        })
    }

    fn take(&mut self) -> impl Iterator<Item = (usize, Batch)> + use<> {
        let Self { mut batches, order } = std::mem::take(self);
        order.into_iter().filter_map(move |node| Some((node, batches.remove(&node)?)))
    }
}

#[derive(Debug, Default)]
struct Node {
    /// Requests of clients, and when they are visible.
    ring: VecDeque<(f64, u32)>,
    ring_free: f64,
    /// First requests, if they trickle.
    first: VecDeque<f64>,
    arrivals: BinaryHeap<Arrival>,
    nic_free: f64,
    /// As far as the time of work requests is spent at their receiver.
    receive_free: f64,
    /// When its first batch of all was posted: its timeline begins.
    began_at: Option<f64>,
    /// When the first batch was posted since the last response.
    posted_at: Option<f64>,
    round_trip_us: f64,
    /// Calls that are not repeated when they are answered.
    retiring: u32,
    calls: u32,
    pending: Pending,
    held: u32,
    held_since: Option<f64>,
    may_hold: bool,
    hold_us: f64,
    rate: f64,
    in_flight: u32,
    controller: PollController,
    /// The last turn found no completion.
    is_idle: bool,
    /// When the first message came that has not left.
    unsent_since: Option<f64>,
    /// When its first batch was to leave.
    first_sent: Option<f64>,
}

#[derive(Debug, Default)]
struct Counts {
    calls: u64,
    turns: u64,
    responses: u64,
    wqes: u64,
    messages: u64,
    in_flight: u64,
    sizes: [u64; 4],
}

struct Simulation<'a> {
    profile: &'a DelegationProfile,
    load: &'a Load,
    mutant: Mutant,
    active: usize,
    nodes: Vec<Node>,
    slices: Vec<(u64, u64)>,
    random: RandomStream,
    counts: Counts,
    sent: u64,
}

/// Requests that one event of the ring stands for.
const RING_EVENT: u32 = 16;
/// Bounds of the adaptive limit, in µs.
const ADAPTIVE_US: (f64, f64) = (0.5, 100.0);

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time of some ms, in ps"
)]
fn ps(us: f64) -> u64 {
    (us * 1e6) as u64
}

#[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
fn real(count: u64) -> f64 {
    count as f64
}

/// Simulates a load.
#[must_use]
pub fn run(profile: &DelegationProfile, load: &Load, seed: u64) -> Measured {
    run_mutant(profile, load, Mutant::None, seed)
}

/// Simulates a load in another model.
#[must_use]
pub fn run_mutant(profile: &DelegationProfile, load: &Load, mutant: Mutant, seed: u64) -> Measured {
    let mut simulation = Simulation::new(profile, load, mutant, seed);
    let mut world = simulation.world();
    simulation.advance(&mut world, load.end_us);
    let span = load.end_us - load.warm_up_us;
    let Counts { calls, turns, responses, wqes, messages, in_flight, sizes } = simulation.counts;
    let slices = simulation.slices.iter();
    Measured {
        total_mops: real(calls) / span,
        batch: real(responses) / real(turns.max(1)),
        turns_10s: real(turns) / span * 10.0 / real(load.nodes as u64),
        messages_per_wqe: real(messages) / real(wqes.max(1)),
        outstanding: real(in_flight) / real(turns.max(1)),
        shares: sizes.map(|count| real(count) / real(turns.max(1))),
        timeline: slices
            .map(|(responses, turns)| real(*responses) / real(*turns.max(&1)))
            .collect(),
        events: world.happened(),
        trace: world.trace(),
    }
}

/// Simulates stages of `stage_us` one after the other, in one world. Returns calls per µs and calling node in the
/// second half of each.
#[must_use]
pub fn run_stages(
    profile: &DelegationProfile,
    load: &Load,
    stages: &[SweepStage],
    stage_us: f64,
    seed: u64,
) -> Vec<f64> {
    let mut simulation = Simulation::new(profile, load, Mutant::None, seed);
    let mut world = simulation.world();
    let mut begin = 0.0;
    let rates = stages.iter().map(|stage| {
        simulation.begin_stage(*stage, begin);
        simulation.advance(&mut world, begin + stage_us / 2.0);
        let before = simulation.counts.calls;
        begin += stage_us;
        simulation.advance(&mut world, begin);
        real(simulation.counts.calls - before) / (stage_us / 2.0) / real(stage.nodes as u64)
    });
    rates.collect()
}

impl<'a> Simulation<'a> {
    fn new(profile: &'a DelegationProfile, load: &'a Load, mutant: Mutant, seed: u64) -> Self {
        let mut random = RandomStream::new(seed, "reference daemon");
        let calls = profile.clients * load.depth;
        let nodes = (0..load.nodes).map(|_| {
            let mut node = Node {
                may_hold: load.hold != Hold::None,
                hold_us: load.hold.start_us(),
                calls,
                ..Node::default()
            };
            match load.start {
                StartState::Burst => node.ring.push_back((0.0, calls)),
                StartState::Trickle => {
                    let jitter =
                        |random: &mut RandomStream| real(random.number(1 << 20)) / real(1 << 20);
                    node.first =
                        (0..calls).map(|call| f64::from(call) + jitter(&mut random)).collect();
                }
            }
            node
        });
        let nodes = nodes.collect();
        let (counts, slices) = (Counts::default(), vec![(0, 0); SLICES]);
        let active = load.nodes;
        Self { profile, load, mutant, active, nodes, slices, random, counts, sent: 0 }
    }

    /// A world in which every daemon is about to turn.
    fn world(&mut self) -> World<usize> {
        let mut world = World::default();
        for node in 0..self.load.nodes {
            let at = 0.5 * real(self.random.number(1 << 20)) / real(1 << 20);
            world.schedule(Time::from_ps(ps(at)), node);
        }
        world
    }

    fn advance(&mut self, world: &mut World<usize>, until_us: f64) {
        let end = Time::from_ps(ps(until_us));
        while let Some(node) = world.next(end) {
            let next_us = self.turn(node, world.now().as_ns() / 1000.0);
            world.schedule(Time::from_ps(ps(next_us)), node);
        }
    }

    /// Clients make more calls at once, or do not repeat some that are answered.
    fn begin_stage(&mut self, stage: SweepStage, now: f64) {
        self.active = stage.nodes;
        let depths =
            (0..self.nodes.len()).map(|node| if node < stage.nodes { stage.depth } else { 0 });
        for (node, depth) in self.nodes.iter_mut().zip(depths) {
            let (calls, kept) = (self.profile.clients * depth, node.calls - node.retiring);
            if calls > kept {
                let more = calls - kept;
                let again = more.min(node.retiring);
                node.retiring -= again;
                node.calls += more - again;
                if more > again {
                    node.ring.push_back((now, more - again));
                }
            } else {
                node.retiring += kept - calls;
            }
        }
    }

    fn jitter(&mut self, mean_us: f64) -> f64 {
        self.random.exponential(Time::from_ps(ps(mean_us))).as_ns() / 1000.0
    }

    /// Clients get answers at `at`, and make as many calls.
    fn answer(&mut self, node: usize, at: f64, mut answers: u32) {
        let own = &mut self.nodes[node];
        let retired = own.retiring.min(answers);
        own.retiring -= retired;
        own.calls -= retired;
        answers -= retired;
        while answers > 0 {
            let some = answers.min(RING_EVENT);
            answers -= some;
            let thinks = self.profile.client + self.jitter(self.profile.client_jitter);
            let node = &mut self.nodes[node];
            let seen = node.ring_free.max(at + thinks) + f64::from(some) * self.profile.ring;
            node.ring_free = seen;
            node.ring.push_back((seen, some));
        }
    }

    /// One turn of a daemon; returns when the next one begins.
    fn turn(&mut self, node: usize, began: f64) -> f64 {
        let is_counted = began >= self.load.warm_up_us;
        let mut now = began + self.wait_for_completions(node, began);
        if !self.skips_clients(node) {
            now += self.take_requests(node, now, is_counted);
        }
        now += self.profile.turn;
        let (cpu, mut responses) = self.take_completions(node, now);
        self.nodes[node].is_idle = cpu == 0.0;
        now += cpu;
        for _ in 1..self.load.poll_budget {
            if responses >= self.load.poll_budget {
                break;
            }
            now += self.flush(node, now, is_counted) + self.profile.poll;
            let (cpu, more) = self.take_completions(node, now);
            now += cpu;
            responses += more;
        }
        self.nodes[node].in_flight -= responses;
        self.observe(node, [began, now], responses);
        if is_counted {
            let size = match responses {
                0 => Some(0),
                1 => Some(1),
                2..=10 => Some(2),
                11..=100 => None,
                _ => Some(3),
            };
            if let Some(size) = size {
                self.counts.sizes[size] += 1;
            }
            self.counts.calls += u64::from(responses);
            self.counts.responses += u64::from(responses);
            self.counts.turns += 1;
            self.counts.in_flight += u64::from(self.nodes[node].in_flight);
        }
        self.hold_or_answer(node, now, responses);
        now += self.flush(node, now, is_counted);
        if self.load.approach == Approach::PollController {
            let own = &mut self.nodes[node];
            own.controller.observe(responses, now - began, own.round_trip_us);
        }
        now
    }

    /// Timeline and round trip, of a turn that began and has taken its responses.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive number"
    )]
    fn observe(&mut self, node: usize, [began, now]: [f64; 2], responses: u32) {
        if responses == 0 {
            return;
        }
        let own = &mut self.nodes[node];
        let since = own.began_at.map_or(0.0, |at| now - at);
        if let Some(slice) = self.slices.get_mut((since / SLICE_US) as usize) {
            *slice = (slice.0 + u64::from(responses), slice.1 + 1);
        }
        if let Some(posted) = own.posted_at.take() {
            let trip = began - posted;
            let is_first = own.round_trip_us == 0.0;
            own.round_trip_us =
                if is_first { trip } else { 0.875 * own.round_trip_us + 0.125 * trip };
        }
        if let Hold::RoundTrip(times) = self.load.hold {
            own.hold_us = times * own.round_trip_us;
        }
    }

    /// Takes what clients ask for; returns the time that it takes.
    fn take_requests(&mut self, node: usize, now: f64, is_counted: bool) -> f64 {
        let own = &mut self.nodes[node];
        let mut taken = 0;
        while own.ring.front().is_some_and(|(seen, _)| *seen <= now) {
            taken += own.ring.pop_front().map_or(0, |(_, count)| count);
        }
        while own.first.front().is_some_and(|seen| *seen <= now) {
            own.first.pop_front();
            taken += 1;
        }
        if taken == 0 {
            return 0.0;
        }
        let mut local = 0;
        for _ in 0..taken {
            let to = self.random.below(self.active);
            if to == node {
                local += 1;
            } else {
                self.nodes[node].pending.to(to).requests += 1;
            }
        }
        let profile = self.profile;
        let remote = taken - local;
        let cpu = f64::from(local) * profile.local + f64::from(remote) * profile.call;
        let warm = taken.min(profile.warm_items);
        let weight = f64::from(warm) + f64::from(taken - warm) * profile.cold;
        let cpu = cpu * weight / f64::from(taken);
        self.nodes[node].in_flight += remote;
        self.answer(node, now + cpu, local);
        if is_counted {
            self.counts.calls += u64::from(local);
        }
        cpu
    }

    /// Takes batches that have arrived; returns the time that it takes, and responses.
    fn take_completions(&mut self, node: usize, now: f64) -> (f64, u32) {
        let profile = self.profile;
        let own = &mut self.nodes[node];
        let (mut cpu, mut responses, mut items) = (0.0, 0, 0);
        while own.arrivals.peek().is_some_and(|Reverse((at, ..))| *at <= ps(now)) {
            let Some(Reverse((_, _, from, batch))) = own.arrivals.pop() else { break };
            let work = f64::from(batch.requests) * profile.serve
                + f64::from(batch.responses) * profile.response;
            let factor = if items < profile.warm_items { 1.0 } else { profile.cold };
            cpu += profile.completion + work * factor;
            responses += batch.responses;
            items += batch.requests + batch.responses;
            if batch.requests > 0 {
                own.pending.to(from).responses += batch.requests;
            }
        }
        (cpu, responses)
    }

    /// Posts a batch to each endpoint that has messages; returns the time that it takes.
    fn flush(&mut self, node: usize, now: f64, is_counted: bool) -> f64 {
        if !self.may_send(node, now) {
            return 0.0;
        }
        let mut cpu = 0.0;
        for (to, batch) in self.nodes[node].pending.take() {
            if !self.may_begin(node, to, now) {
                *self.nodes[node].pending.to(to) = batch;
                continue;
            }
            cpu += self.profile.flush;
            let own = &mut self.nodes[node];
            own.posted_at.get_or_insert(now + cpu);
            own.began_at.get_or_insert(now + cpu);
            if self.mutant == Mutant::NoMerging {
                for _ in 0..batch.requests {
                    self.send(node, to, now + cpu, Batch { requests: 1, responses: 0 }, is_counted);
                }
                for _ in 0..batch.responses {
                    self.send(node, to, now + cpu, Batch { requests: 0, responses: 1 }, is_counted);
                }
            } else {
                self.send(node, to, now + cpu, batch, is_counted);
            }
        }
        cpu
    }

    /// A work request leaves its send queue and arrives.
    fn send(&mut self, node: usize, to: usize, posted: f64, batch: Batch, is_counted: bool) {
        let profile = self.profile;
        let messages = batch.requests + batch.responses;
        let time = profile.wqe + f64::from(messages) * profile.message;
        let mut left = posted;
        if self.mutant != Mutant::AtReceiver {
            let own = &mut self.nodes[node];
            own.nic_free = own.nic_free.max(posted) + time;
            left = own.nic_free;
        }
        let mut at = left + profile.wire + self.jitter(profile.jitter);
        let other = &mut self.nodes[to];
        match self.mutant {
            Mutant::None | Mutant::NoMerging => {}
            Mutant::AtReceiver => {
                other.receive_free = other.receive_free.max(at) + time;
                at = other.receive_free;
            }
            Mutant::WholeNic => {
                // Its own requests do not wait for what has not arrived yet.
                other.nic_free = other.nic_free.max(posted) + time;
                at = at.max(other.nic_free);
            }
        }
        self.sent += 1;
        other.arrivals.push(Reverse((ps(at), self.sent, node, batch)));
        if is_counted {
            self.counts.wqes += 1;
            self.counts.messages += u64::from(messages);
        }
    }

    /// Gives answers to clients, now or when there are enough.
    fn hold_or_answer(&mut self, node: usize, now: f64, responses: u32) {
        let is_adaptive = matches!(self.load.hold, Hold::Adaptive(_));
        let target = u32::try_from(self.load.nodes).unwrap_or(u32::MAX);
        let own = &mut self.nodes[node];
        if !own.may_hold {
            if responses > 0 {
                self.answer(node, now, responses);
            } else {
                own.may_hold = self.load.hold != Hold::None;
            }
            return;
        }
        if responses > 0 {
            own.held_since.get_or_insert(now);
            own.held += responses;
        }
        let waited = own.held_since.map_or(0.0, |since| now - since);
        if own.held == 0 || own.held < target && waited < own.hold_us {
            return;
        }
        if is_adaptive {
            let rate = f64::from(own.held) / waited.max(0.05);
            own.rate = if own.rate == 0.0 { rate } else { 0.875 * own.rate + 0.125 * rate };
            own.hold_us = (f64::from(target) / own.rate).clamp(ADAPTIVE_US.0, ADAPTIVE_US.1);
        }
        let held = std::mem::take(&mut own.held);
        own.may_hold = is_adaptive || held < target;
        own.held_since = None;
        self.answer(node, now, held);
    }
}
