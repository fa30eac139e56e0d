//! The daemon: takes calls of this node's processes, carries them to other nodes, and answers theirs.
//!
//! ```text
//!   clients ── shared memory ──▶ Front ──▶ Office ──▶ Worker ── NIC ──▶ other daemons
//!                                  ▲         │  ▲        │
//!                                  │         ▼  └────────┘
//!                                  └──── Services: functions, or clients that provide
//!   Links: who is up, by heartbeats over Control
//! ```
//!
//! [`Daemon::step`] is one turn of the loop. It waits for nothing, and its only clock is its argument:
//! what the clients, the NIC and the control datagrams bring decides what it does. So any number of
//! daemons run on one thread in virtual time. [`serve()`] runs one on real ones.
//!
//! A [`Daemon`] is one loop. A daemon of several threads ([`serve_threads`]) is one for each, with some
//! of the clients and some of the peers, and a [`Seat`] among them:
//!
//! ```text
//!  client ─▶ loop 0 ── errand ──▶ loop 1 ─▶ NIC ─▶ rank 1     rank r belongs to loop r mod n
//!             Office ◀─ outcome ── Office
//! ```
//!
//! # What calls promise
//!
//! A call ends with an answer or a status, at the latest at its deadline plus [`CONTROL_NS`] plus one
//! turn. Calls for the own node never touch the NIC. What finds no room in a peer's ring waits in
//! order, up to 1 MiB per peer, and is refused after that with
//! [`ResourceExhausted`](Status::ResourceExhausted): nothing is lost, nothing grows without bound. A
//! request that may have been executed is never sent again.

mod control;
mod copy;
mod crew;
mod front;
mod links;
mod office;
mod roster;
mod run;
mod serve;
mod services;
mod slab;

use core::time::Duration;

pub use rpc::Status;
use rpc::{Counters, PeerId, Worker};
use verbs::Nic;

pub use crate::wire;
pub use control::{Codec, Control, DATAGRAM_BYTES, Message, UdpControl};
pub use crew::{LANE_CALLS, Seat};
pub use front::{Answer, Front, IpcFront, Next};
pub use run::Opening;
pub use serve::{ServeError, Serving, serve, serve_threads};
pub use services::{Handler, Inbound, OfferError, Services};

use crate::{
    bootstrap::Place,
    membership::DetectorConfig,
    metrics::{Counter, LoopTimer, Phase, Recorder, Tally, Timing},
};
use links::Links;
use office::{Office, Stopwatch, Visit};

/// How often deadlines, peers and departed clients are looked at.
pub const CONTROL_NS: u64 = 1_000_000;

/// How long a daemon keeps a core that others want, while calls to peers are under way and nothing comes:
/// longer than a peer that runs takes to answer, and as long as some switches from process to process.
const PATIENCE_NS: u64 = 10_000;

/// Answers given on the spot that are reason enough to let clients have the core at once.
const FED: u64 = 32;

/// What a daemon is made of, besides its NIC, clients and control.
pub struct Parts<F: Front> {
    /// Which of how many.
    pub place: Place,
    /// Timing of the failure detector.
    pub detector: DetectorConfig,
    /// Later than in any earlier life of this rank, as far as known.
    pub epoch: u64,
    /// Datagrams of the job.
    pub codec: Codec,
    /// What it offers.
    pub services: Services<F>,
    /// Its place among the threads of the daemon.
    pub seat: Seat,
    /// Where it counts.
    pub recorder: Recorder,
    /// How long a call takes whose client does not say.
    pub call_timeout: Duration,
    /// Longest body that a client sends or gets.
    pub body_bytes_max: u32,
    /// One in so many turns is timed; 0: none.
    pub sample_every: u32,
    /// What turns are timed with.
    pub clock: fn() -> u64,
}

/// One daemon, or one thread of it, one turn at a time.
pub struct Daemon<N: Nic, F: Front, C: Control> {
    worker: Worker<N>,
    office: Office<F>,
    front: F,
    control: C,
    links: Links,
    timer: LoopTimer,
    clock: fn() -> u64,
    control_ns: u64,
    /// The first turn that found nothing, of those since something was found.
    idle_ns: Option<u64>,
    arrivals: u64,
    /// By slot of the peer: what its connection had done when it was counted last.
    counted: Vec<Option<(PeerId, Counters)>>,
}

impl<N: Nic, F: Front, C: Control> Daemon<N, F, C> {
    /// A daemon that has not done anything yet.
    pub fn new(worker: Worker<N>, front: F, control: C, parts: Parts<F>, now_ns: u64) -> Self {
        let body_bytes_max = parts.body_bytes_max as usize;
        let (place, seat) = (parts.place, parts.seat);
        let (rank, size) = (place.rank(), place.size());
        let peers = (rank + 1..size).chain(0..rank); // each daemon begins with another one
        let own = peers.filter(|rank| seat.owner(*rank).is_none()).collect();
        let links = Links::new(own, parts.detector, parts.codec, parts.epoch, now_ns);
        Self {
            worker,
            office: Office::new(
                place,
                parts.services,
                seat,
                Tally::new(parts.recorder),
                parts.call_timeout,
                body_bytes_max,
            ),
            front,
            control,
            links,
            timer: LoopTimer::new(parts.sample_every),
            clock: parts.clock,
            control_ns: now_ns,
            idle_ns: Some(now_ns),
            arrivals: 0,
            counted: Vec::new(),
        }
    }

    /// One turn: takes requests of clients, polls the NIC, and now and then looks at deadlines and
    /// peers. Returns how many requests, responses and ends of calls it handled. `now_ns` never goes
    /// backwards.
    pub fn step(&mut self, now_ns: u64) -> usize {
        let Self { worker, office, front, control, links, timer, clock, .. } = self;
        let mut watch = Stopwatch { lap: timer.begin(*clock), clock: *clock };
        office.now_ns = now_ns;
        office.tally.add(Counter::Loops, 1);
        let taken = office.take(front, worker);
        let heard = office.hear(front, worker);
        if taken > 0 {
            // Peers get to work on these while this turn serves what they asked for.
            worker.flush();
        }
        watch.ended(&mut office.tally, &[Phase::Clients]);
        let mut visit = Visit { office, front, watch: &mut watch, has_posted: false };
        let handled = worker.poll(now_ns, &mut visit);
        let phases: &[_] =
            if visit.has_posted { &[Phase::Post] } else { &[Phase::Nic, Phase::Post] };
        watch.ended(&mut office.tally, phases);
        let arrivals = worker.stats().arrivals;
        let came = arrivals - std::mem::replace(&mut self.arrivals, arrivals);
        if came > 0 {
            office.tally.add(Counter::CqPolls, 1);
            office.tally.add(Counter::Completions, came);
            office.tally.record(Timing::CompletionsPerPoll, came);
        }
        office.advance(front, worker);
        watch.ended(&mut office.tally, &[Phase::Waiting]);
        if now_ns >= self.control_ns {
            self.control_ns = now_ns + CONTROL_NS;
            office.expire(front, worker);
            links.step(worker, office, front, control, now_ns);
            self.count_batches();
            self.count(now_ns);
        }
        watch.ended(&mut self.office.tally, &[Phase::Control]);
        watch.stop(&mut self.office.tally);
        let done = usize::try_from(taken).unwrap_or(usize::MAX) + heard + handled;
        if done > 0 {
            self.idle_ns = None;
            self.office.tally.add(Counter::BusyLoops, 1);
        } else {
            self.idle_ns.get_or_insert(now_ns);
        }
        done
    }

    /// Whether it is better to look again than to offer the core to others: calls to peers are under
    /// way, something came a moment ago, and clients did not get much to do meanwhile. Daemons that wait
    /// for each other like this run at the same time, even if each shares its core: then calls are
    /// answered while they wait, and not a turn of all processes later.
    ///
    /// Never in a daemon of several threads: if they share a core, the next step may be another one's.
    #[must_use]
    pub fn expects_answers(&self, now_ns: u64) -> bool {
        let is_fresh = self.idle_ns.is_none_or(|since_ns| now_ns < since_ns + PATIENCE_NS);
        let Office { seat, fed, .. } = &self.office;
        is_fresh && *fed < FED && seat.is_alone() && self.office.is_calling()
    }

    /// What connections did since the last look.
    fn count_batches(&mut self) {
        let Self { worker, office, counted, .. } = self;
        worker.visit_active(|peer, now| {
            let slot = usize::from(peer.slot());
            if counted.len() <= slot {
                counted.resize(slot + 1, None);
            }
            // Each connection counts from 0.
            let before = counted[slot].filter(|(counted, _)| *counted == peer);
            let before = before.map_or_else(Counters::default, |(_, counters)| counters);
            counted[slot] = Some((peer, now));
            let tally = &mut office.tally;
            let batches = now.batches_out - before.batches_out;
            tally.add(Counter::Flushes, batches);
            tally.add(Counter::RingFull, now.ring_full - before.ring_full);
            let messages = now.messages_out - before.messages_out;
            let means = [
                (Timing::BatchMessages, messages, batches),
                (Timing::CallToFlush, now.held_ns - before.held_ns, batches),
                (Timing::FlushToCredit, now.trips_ns - before.trips_ns, now.trips - before.trips),
            ];
            for (timing, sum, count) in means {
                if let Some(mean) = sum.checked_div(count) {
                    tally.record(timing, mean);
                }
            }
        });
    }

    /// Numbers that are what they are now.
    fn count(&mut self, now_ns: u64) {
        let outstanding = self.office.outstanding() as u64;
        let (clients, welcomed, evicted) = self.front.census();
        // Before the sample, which tells what was done so far.
        self.office.tally.publish();
        let recorder = self.office.tally.recorder();
        recorder.set(Counter::Clients, clients);
        recorder.set(Counter::Welcomed, welcomed);
        recorder.set(Counter::Evicted, evicted);
        recorder.set(Counter::Departed, self.front.departures() - evicted);
        recorder.set(Counter::PeersUp, self.links.up() as u64);
        recorder.set(Counter::Outstanding, outstanding);
        recorder.sample(now_ns, outstanding);
    }

    /// Takes no new calls any more; those in flight end as they would.
    pub fn drain(&mut self) {
        self.office.is_draining = true;
    }

    /// Calls in flight; for other threads of the daemon, those are in flight there.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.office.outstanding()
    }

    /// Peers that are up.
    #[must_use]
    pub fn peers_up(&self) -> usize {
        self.links.up()
    }

    /// Peers whose connection is this thread's, up or not.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.links.count()
    }

    /// Tells all peers that this daemon leaves.
    pub fn leave(&mut self, now_ns: u64) {
        self.links.leave(&mut self.control, now_ns);
    }

    /// Its clients.
    pub fn front(&mut self) -> &mut F {
        &mut self.front
    }

    /// When something is to be done though nothing comes.
    fn next_ns(&self) -> u64 {
        let times = [self.links.next_ns(), self.worker.wake_ns()];
        let next_ns = times.into_iter().flatten().min().unwrap_or(u64::MAX);
        // Providers and waiting calls have deadlines that only the control look sees.
        if self.office.open() > 0 { next_ns.min(self.control_ns) } else { next_ns }
    }
}
