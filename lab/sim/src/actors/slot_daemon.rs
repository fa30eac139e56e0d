//! The daemon that the measurements with one and two ranks were made with: a slot per client, and one loop of
//! four phases. It is not the daemon of this repository.
//!
//! ```text
//!  turn: completions ─▶ incoming requests ─▶ slots of clients ─▶ post a batch
//! ```

use std::{cmp::Reverse, collections::BinaryHeap};

use serde::Serialize;

use crate::{
    machine::TwoRankProfile,
    world::{RandomStream, Time, World},
};

/// What may make calls to the other rank slow. Each is off unless it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Candidate {
    /// The NIC reads the batch from memory: one read more before it leaves.
    Gather,
    /// Each message takes an entry of a shared receive queue, whose place the NIC learns from the one before.
    SrqChain,
    /// Each message is an entry with a doorbell of its own.
    DoorbellEach,
    /// The one send queue of a daemon takes [`SEND_QUEUE_NS`](crate::machine::SEND_QUEUE_NS) per entry.
    SendQueue,
    /// A batch without an answer is confirmed by an empty batch, which returns its credit.
    CreditReturn,
    /// A send queue has room for one entry: the next one waits for its completion, and grows meanwhile.
    Backpressure,
    /// Daemons and queues of NICs do one thing after the other.
    Queueing,
}

impl Candidate {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Gather,
        Self::SrqChain,
        Self::DoorbellEach,
        Self::SendQueue,
        Self::CreditReturn,
        Self::Backpressure,
        Self::Queueing,
    ];

    /// What it is called in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gather => "gather",
            Self::SrqChain => "SRQ chain",
            Self::DoorbellEach => "doorbells",
            Self::SendQueue => "send queue",
            Self::CreditReturn => "credit return",
            Self::Backpressure => "backpressure",
            Self::Queueing => "queues",
        }
    }
}

/// The ranks that call, and those that are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Pattern {
    /// The clients of this many ranks, 1 or 2, call all ranks alike.
    Uniform(u32),
    /// One program calls the other rank, and nothing else happens.
    PingPong,
}

impl Pattern {
    const fn ranks(self) -> usize {
        match self {
            Self::Uniform(1) => 1,
            Self::Uniform(_) | Self::PingPong => 2,
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Load<'a> {
    /// The ranks that call, and those that are called.
    pub pattern: Pattern,
    /// The candidates that are on.
    pub candidates: &'a [Candidate],
    /// Nothing is counted before, in µs.
    pub warm_up_us: u32,
    /// End, in µs.
    pub end_us: u32,
}

/// Durations of a phase: how often each, in whole ns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations(Vec<u64>);

/// Durations are told apart up to here.
const DURATION_NS_MAX: usize = 4095;

impl Durations {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive duration; longer ones count as the longest"
    )]
    fn add(&mut self, ns: f64, count: u64) {
        let at = (ns as usize).min(DURATION_NS_MAX);
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] += count;
    }

    /// The duration that `percent` of all do not exceed, in ns.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> usize {
        let total: u64 = self.0.iter().sum();
        let mut seen = 0;
        let is_it = |count: &u64| {
            seen += *count;
            seen * 100 >= total * percent
        };
        self.0.iter().position(is_it).unwrap_or(0)
    }

    /// The share of durations that are longer than `ns`.
    #[must_use]
    pub fn share_above(&self, ns: usize) -> f64 {
        let total: u64 = self.0.iter().sum();
        real(self.0.iter().skip(ns + 1).sum()) / real(total.max(1))
    }
}

/// What came of it, summed over ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// Ranks.
    pub ranks: usize,
    /// Counted time, in µs.
    pub span_us: f64,
    /// Turns.
    pub turns: u64,
    /// Calls for the own rank.
    pub local: u64,
    /// Calls for the other one.
    pub remote: u64,
    /// Completions.
    pub completions: u64,
    /// Requests of the other rank.
    pub incoming: u64,
    /// Batches posted.
    pub flushes: u64,
    /// Calls that have ended.
    pub ended: u64,
    /// Sum of how long calls to the other rank have taken their clients, in ns.
    pub remote_ns: f64,
    /// How many those are.
    pub remote_ended: u64,
    /// Sum of how long calls to the own rank have taken their clients, in ns.
    pub local_ns: f64,
    /// Of the phases completions, incoming, slots and post, and of the whole turn.
    pub phases: [Durations; 5],
    /// A hash of all turns.
    pub trace: u64,
}

impl Counted {
    fn of(load: &Load<'_>) -> Self {
        let span_us = f64::from(load.end_us - load.warm_up_us);
        Self { ranks: load.pattern.ranks(), span_us, ..Self::default() }
    }

    /// So many turns find nothing.
    fn idle(&mut self, turns: u64, profile: &TwoRankProfile) {
        self.turns += turns;
        for phase in &mut self.phases[..4] {
            phase.add(profile.turn / 4.0, turns);
        }
        self.phases[4].add(profile.turn, turns);
    }

    /// Calls per µs of all ranks.
    #[must_use]
    pub fn total_mops(&self) -> f64 {
        real(self.ended) / self.span_us
    }

    /// So many per turn.
    #[must_use]
    pub fn per_turn(&self, count: u64) -> f64 {
        real(count) / real(self.turns.max(1))
    }

    /// How long a call to the other rank takes its client, in µs.
    #[must_use]
    pub fn remote_us(&self) -> f64 {
        self.remote_ns / real(self.remote_ended.max(1)) / 1000.0
    }

    /// How long a call to the own rank takes its client, in µs.
    #[must_use]
    pub fn local_us(&self) -> f64 {
        self.local_ns / real((self.ended - self.remote_ended).max(1)) / 1000.0
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
const fn real(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time of some ms, in ps"
)]
const fn ps(ns: f64) -> u64 {
    (ns * 1000.0) as u64
}

/// A slot without a request.
const NEVER: u64 = u64::MAX;

/// Messages of a batch, each by the client whose call it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Batch {
    requests: Vec<u32>,
    responses: Vec<u32>,
}

impl Batch {
    const fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.responses.is_empty()
    }

    /// Each message alone.
    fn split(self) -> Vec<Self> {
        let one = |client| vec![client];
        let requests = self
            .requests
            .into_iter()
            .map(|client| Self { requests: one(client), ..Self::default() });
        let responses = self
            .responses
            .into_iter()
            .map(|client| Self { responses: one(client), ..Self::default() });
        requests.chain(responses).collect()
    }
}

#[derive(Debug, Default)]
struct Rank {
    /// By client: when its request is visible in its slot, in ps.
    slots: Vec<u64>,
    /// By client: when it made its call, in ns, and whether that was to the other rank.
    calls: Vec<(f64, bool)>,
    /// Batches that have completions: when, in ps, and their number.
    arrivals: BinaryHeap<Reverse<(u64, u64, Batch)>>,
    pending: Batch,
    /// Requests of the other rank that were taken and not executed.
    unserved: usize,
    /// The last message was ready to be posted then.
    pending_at: f64,
    send_free: f64,
    receive_free: f64,
    /// Credit of a batch is to be returned.
    owes_credit: bool,
    /// The entry that a send queue with room for one has is finished then, in ns.
    sent_until: f64,
}

impl Rank {
    /// When there is something to do, in ps.
    fn next_ps(&self) -> u64 {
        let mut next = self.arrivals.peek().map_or(NEVER, |Reverse((at, ..))| *at);
        if !self.pending.is_empty() || self.owes_credit {
            next = next.min(ps(self.sent_until));
        }
        self.slots.iter().copied().fold(next, u64::min)
    }
}

struct Simulation<'a> {
    profile: &'a TwoRankProfile,
    load: &'a Load<'a>,
    ranks: Vec<Rank>,
    random: RandomStream,
    counted: Counted,
    is_counting: bool,
    sent: u64,
}

/// Simulates a load.
#[must_use]
pub fn run(profile: &TwoRankProfile, load: &Load<'_>, seed: u64) -> Counted {
    let mut simulation = Simulation::new(profile, load, seed);
    let mut world = World::default();
    let end = Time::from_ns(u64::from(load.end_us) * 1000);
    for rank in 0..load.pattern.ranks() {
        world.schedule(Time::from_ps(simulation.random.number(5_000)), rank);
    }
    while let Some(rank) = world.next(end) {
        let next_ns = simulation.turn(rank, world.now().as_ns());
        world.schedule(Time::from_ps(ps(next_ns)), rank);
    }
    let mut counted = simulation.counted;
    counted.trace = world.trace();
    counted
}

impl<'a> Simulation<'a> {
    fn new(profile: &'a TwoRankProfile, load: &'a Load<'a>, seed: u64) -> Self {
        let mut random = RandomStream::new(seed, "slot daemon");
        let ranks = (0..load.pattern.ranks()).map(|number| {
            let clients = match load.pattern {
                Pattern::Uniform(_) => profile.clients,
                Pattern::PingPong => u32::from(number == 0),
            };
            let mut rank = Rank::default();
            for _ in 0..clients {
                let at = random.number(1_000_000);
                rank.slots.push(at);
                rank.calls.push((real(at) / 1000.0, false));
            }
            rank
        });
        let ranks: Vec<_> = ranks.collect();
        let counted = Counted::of(load);
        Self { profile, load, ranks, random, counted, is_counting: false, sent: 0 }
    }

    fn has(&self, candidate: Candidate) -> bool {
        self.load.candidates.contains(&candidate)
    }

    /// Works for `cost` ns; returns when that is done. Without queueing nothing else waits for it.
    fn spend(&self, now: &mut f64, cost: f64) -> f64 {
        let done = *now + cost;
        if self.has(Candidate::Queueing) {
            *now = done;
        }
        done
    }

    fn jitter(&mut self, mean_ns: f64) -> f64 {
        self.random.exponential(Time::from_ps(ps(mean_ns))).as_ns()
    }

    /// One turn of a daemon; returns when the next one begins.
    fn turn(&mut self, rank: usize, began: f64) -> f64 {
        if !self.is_counting && began >= f64::from(self.load.warm_up_us) * 1000.0 {
            self.is_counting = true;
            self.counted = Counted::of(self.load);
        }
        if let Some(turns) = self.idle_turns(rank, began) {
            self.counted.idle(turns, self.profile);
            return began + real(turns) * self.profile.turn;
        }
        let mut now = began;
        let mut marks = [began; 5];
        self.take_completions(rank, &mut now);
        marks[1] = now;
        self.serve(rank, &mut now);
        marks[2] = now;
        self.scan(rank, &mut now);
        marks[3] = now;
        self.post(rank, &mut now);
        marks[4] = now;
        self.counted.turns += 1;
        let Self { counted, profile, .. } = self;
        for (phase, marks) in marks.windows(2).enumerate() {
            counted.phases[phase].add(marks[1] - marks[0] + profile.turn / 4.0, 1);
        }
        counted.phases[4].add(now - began + profile.turn, 1);
        now + profile.turn
    }

    /// Turns from now on that find nothing, whatever the other rank does; `None`: this one finds something.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a positive time of some µs"
    )]
    fn idle_turns(&self, rank: usize, began: f64) -> Option<u64> {
        let next = self.ranks[rank].next_ps();
        if next <= ps(began) {
            return None;
        }
        // What the other rank sends from now on is not here earlier.
        let until = next.min(ps(began + self.profile.one_way));
        let wait_ns = (until - ps(began)) as f64 / 1000.0;
        Some(((wait_ns / self.profile.turn) as u64).max(1))
    }

    /// A client sees its response, and makes its next call.
    fn answer(&mut self, rank: usize, client: u32, at: f64) {
        let (think, jitter) = match self.load.pattern {
            Pattern::Uniform(_) => (self.profile.client, self.profile.client_jitter),
            Pattern::PingPong => (0.0, 0.0),
        };
        let seen = at + think + self.jitter(jitter);
        let (made, is_remote) = self.ranks[rank].calls[client as usize];
        self.counted.ended += 1;
        if is_remote {
            self.counted.remote_ended += 1;
            self.counted.remote_ns += seen - made;
        } else {
            self.counted.local_ns += seen - made;
        }
        self.ranks[rank].calls[client as usize] = (seen, false);
        self.ranks[rank].slots[client as usize] = ps(seen);
    }

    fn take_completions(&mut self, rank: usize, now: &mut f64) {
        let began = ps(*now);
        while let Some(Reverse((at, ..))) = self.ranks[rank].arrivals.peek() {
            if *at > began {
                break;
            }
            let Some(Reverse((_, _, batch))) = self.ranks[rank].arrivals.pop() else { break };
            let cost = match self.load.pattern {
                Pattern::Uniform(_) => self.profile.completion,
                Pattern::PingPong => self.profile.program,
            };
            let done = self.spend(now, cost);
            self.counted.completions += 1;
            batch.responses.iter().for_each(|client| self.answer(rank, *client, done));
            let returns_credit = self.has(Candidate::CreditReturn) && !batch.is_empty();
            let own = &mut self.ranks[rank];
            own.owes_credit |= returns_credit;
            own.pending.responses.extend(&batch.requests);
            own.unserved += batch.requests.len();
            own.pending_at = own.pending_at.max(done);
        }
    }

    fn serve(&mut self, rank: usize, now: &mut f64) {
        for _ in 0..std::mem::take(&mut self.ranks[rank].unserved) {
            let cost = match self.load.pattern {
                Pattern::Uniform(_) => self.profile.serve,
                Pattern::PingPong => 0.0,
            };
            let done = self.spend(now, cost);
            self.counted.incoming += 1;
            let own = &mut self.ranks[rank];
            own.pending_at = own.pending_at.max(done);
        }
    }

    /// Looks at one slot after the other.
    fn scan(&mut self, rank: usize, now: &mut f64) {
        for (client, number) in (0..self.ranks[rank].slots.len()).zip(0..) {
            if self.ranks[rank].slots[client] > ps(*now) {
                continue;
            }
            self.ranks[rank].slots[client] = NEVER;
            let (cost, is_remote) = match self.load.pattern {
                Pattern::Uniform(_) => {
                    (self.profile.take, self.random.below(self.ranks.len()) != rank)
                }
                Pattern::PingPong => (self.profile.program, true),
            };
            let done = self.spend(now, cost);
            self.ranks[rank].calls[client].1 = is_remote;
            if is_remote {
                self.counted.remote += 1;
                let own = &mut self.ranks[rank];
                own.pending.requests.push(number);
                own.pending_at = own.pending_at.max(done);
            } else {
                self.counted.local += 1;
                self.answer(rank, number, done);
            }
        }
    }

    fn post(&mut self, rank: usize, now: &mut f64) {
        let own = &mut self.ranks[rank];
        if own.sent_until > *now || own.pending.is_empty() && !own.owes_credit {
            return;
        }
        own.owes_credit = false;
        let pending = std::mem::take(&mut own.pending);
        let (batches, cost) = if self.has(Candidate::DoorbellEach) && !pending.is_empty() {
            (pending.split(), self.profile.flush + self.profile.doorbell)
        } else {
            (vec![pending], self.profile.flush)
        };
        for batch in batches {
            let posted = self.spend(now, cost).max(self.ranks[rank].pending_at + cost);
            self.counted.flushes += 1;
            self.send(rank, posted, batch);
        }
        self.ranks[rank].pending_at = 0.0;
    }

    /// The NICs carry a batch to the other rank.
    fn send(&mut self, rank: usize, posted: f64, batch: Batch) {
        let profile = self.profile;
        let (queues, is_chained) = (self.has(Candidate::Queueing), self.has(Candidate::SrqChain));
        let wqe = if self.has(Candidate::SendQueue) { profile.send_queue } else { profile.wqe };
        let has_room = !self.has(Candidate::Backpressure);
        let read = if self.has(Candidate::Gather) { profile.pcie_read } else { 0.0 };
        let jitter = self.jitter(profile.jitter);
        let own = &mut self.ranks[rank];
        let begins = if queues { own.send_free.max(posted) } else { posted };
        own.send_free = begins + wqe;
        let mut seen = begins + wqe + read + profile.one_way + jitter;
        let other = &mut self.ranks[1 - rank];
        if is_chained {
            // The NIC reads one entry after the other: the next place stands in the one before.
            let begins = if queues { other.receive_free.max(seen) } else { seen };
            seen = begins + profile.pcie_read;
            other.receive_free = seen;
        }
        if !has_room {
            // The acknowledgement travels back before the completion of the entry is there.
            self.ranks[rank].sent_until = seen + profile.one_way;
        }
        let other = &mut self.ranks[1 - rank];
        self.sent += 1;
        other.arrivals.push(Reverse((ps(seen), self.sent, batch)));
    }
}
