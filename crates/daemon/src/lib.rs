//! The daemon: takes calls of this node's processes, carries them to other nodes, and answers theirs.
//!
//! ```text
//!   clients ── shared memory ──▶ ClientPort ──▶ Dispatcher ──▶ Worker ── NIC ──▶ other daemons
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
//! of the clients and some of the peers, and a [`ThreadHandle`] among them:
//!
//! ```text
//!  client ─▶ loop 0 ── request ─▶ loop 1 ─▶ NIC ─▶ rank 1     rank r belongs to loop r mod n
//!             Dispatcher ◀─ outcome ── Dispatcher
//! ```
//!
//! # What calls promise
//!
//! A call ends with an answer or a status, at the latest at its deadline plus [`CONTROL_NS`] plus one
//! turn. Calls for the own node never touch the NIC. What finds no room at a peer, or within the
//! share of its client or of its service, waits; clients take turns. What would exceed the [`Limits`] of what
//! is held is refused with [`ResourceExhausted`](Status::ResourceExhausted): nothing is lost, nothing grows without bound. A
//! request that may have been executed is never sent again.

#![forbid(unsafe_code)]

mod address_space;
mod admission;
mod bulk;
mod bulk_inbox;
mod client_port;
pub mod config;
mod control;
mod descriptors;
mod device_room;
mod direct_link;
mod direct_sessions;
mod dispatcher;
mod fair_queue;
mod limits;
mod links;
mod members;
pub mod membership;
pub mod metrics;
mod nic_identity;
mod pace;
mod process_regions;
mod rejections;
mod request;
mod request_head;
mod rights;
mod roster;
mod run;
#[cfg(feature = "nic")]
mod selected;
mod serve;
mod services;
mod source;
mod thread_messages;
mod threads;
mod unheard;

use core::time::Duration;

pub use rpc::Status;
use rpc::{Counters, PeerId, Worker};
use verbs::Nic;

pub use address_space::{AddressSpaceError, AddressSpaceNeed};
pub use client_port::{
    ClientEntry, ClientPort, ClientRequest, ClientTag, IpcPort, LeftRequests, NotCopied, Replies,
};
pub use control::{Codec, Control, ControlMessage, DATAGRAM_BYTES, UdpControl, Unread};
pub use descriptors::DescriptorShares;
pub use device_room::{DeviceRoomError, check_device};
pub use dispatcher::ReplyHold;
pub use limits::Limits;
pub use members::OfferError;
pub use nic_identity::NicIdentity;
pub use rights::{Rights, RightsError};
#[cfg(feature = "nic")]
pub use selected::{MakeServices, SelectedDaemon, open_selected, serve_selected};
pub use serve::{
    ServeError, Serving, ThreadParts, bootstrap_of, open_threads, own_address, serve, serve_threads,
};
pub use services::{Inbound, ServiceFn, Services};
pub use threads::{LANE_CALLS, ThreadHandle};

use crate::{
    membership::DetectorConfig,
    metrics::{Counter, Phase, Recorder, Tally, Timing},
    process_regions::RegionCount,
};
use bootstrap::{Lives, RankInfo};
use bulk::{Bulk, Turn};
use dispatcher::{Bounds, Dispatcher, PollHandler, Scratch, Stopwatch};
use links::Links;
use memory::sync::Arc;
use pace::Pace;

/// The interval at which deadlines, peers and departed clients are checked.
pub const CONTROL_NS: u64 = 1_000_000;

/// The time for which a daemon keeps a core that others want, while calls to peers are under way and nothing comes:
/// longer than a peer that runs takes to answer, and as long as some switches from process to process.
const PATIENCE_NS: u64 = 10_000;

/// Answers given on the spot that are reason enough to let clients have the core at once.
const INLINE_BURST: u64 = 32;

/// The parts of a daemon besides its NIC, clients and control.
pub struct Parts<P: ClientPort> {
    /// The rank and the size of the job.
    pub rank_info: RankInfo,
    /// Timing of the failure detector.
    pub detector: DetectorConfig,
    /// Later than in any earlier life of this rank, as far as known.
    pub epoch: u64,
    /// Datagrams of the job.
    pub codec: Codec,
    /// The services of this node.
    pub services: Services<P>,
    /// Its place among the threads of the daemon.
    pub thread_handle: ThreadHandle,
    /// The recorder of its counters.
    pub recorder: Recorder,
    /// The deadline of a call that names none.
    pub call_timeout: Duration,
    /// Longest body that a client sends or gets.
    pub body_bytes_max: u32,
    /// Limits on what the daemon keeps for clients and services.
    pub limits: Limits,
    /// One in so many turns is timed; 0: none.
    pub sample_every: u32,
    /// The clock that times turns.
    pub clock: Box<dyn Fn() -> u64>,
}

/// One daemon, or one thread of it, one turn at a time.
pub struct Daemon<N: Nic, P: ClientPort, C: Control> {
    worker: Worker<N>,
    dispatcher: Dispatcher<P>,
    bulk: Bulk<N, P>,
    port: P,
    control: C,
    links: Links,
    pace: Pace,
    watch: Stopwatch,
    scratch: Scratch,
    control_ns: u64,
    /// Requests, responses and ends of calls that the turn has handled so far.
    handled: usize,
    /// The first turn that found nothing, of those since something was found.
    idle_ns: Option<u64>,
    arrivals: u64,
    /// Connections that did not become clients, as far as that was logged.
    rejections: ipc::Rejections,
    /// Times that the worker found no memory to reach a peer, as far as they were counted.
    shortages: u64,
    /// By slot of the peer: what its connection had done when it was counted last.
    counted: Vec<Option<(PeerId, Counters)>>,
}

impl<N: Nic, P: ClientPort, C: Control> Daemon<N, P, C> {
    /// A daemon that has not done anything yet.
    pub fn new(worker: Worker<N>, mut port: P, control: C, parts: Parts<P>, now_ns: u64) -> Self {
        let geometry = worker.config().geometry();
        let bounds = Bounds {
            call_timeout: parts.call_timeout,
            body_bytes_max: parts.body_bytes_max as usize,
            limits: parts.limits,
            peer_calls: worker.config().calls_max,
            answer_bytes: worker.config().response_bytes,
            answer_bytes_max: geometry.map_or(0, |geometry| geometry.body_bytes_max()),
        };
        let (rank_info, thread_handle) = (parts.rank_info, parts.thread_handle);
        let regions = thread_handle.process_regions();
        let (rank, size) = (rank_info.rank(), rank_info.size());
        let peers = (rank + 1..size).chain(0..rank); // each daemon begins with another one
        let own = peers.filter(|rank| thread_handle.owner(*rank).is_none()).collect();
        let links = Links::new(own, parts.detector, parts.codec, parts.epoch, now_ns);
        let tally = Tally::new(parts.recorder);
        let dispatcher = Dispatcher::new(rank_info, parts.services, thread_handle, tally, bounds);
        port.leave_requests(dispatcher.left_requests());
        Self {
            worker,
            dispatcher,
            bulk: Bulk::new(&parts.limits, regions),
            port,
            control,
            links,
            pace: Pace::default(),
            watch: Stopwatch::new(parts.sample_every, parts.clock),
            scratch: Scratch::default(),
            control_ns: now_ns,
            handled: 0,
            idle_ns: Some(now_ns),
            arrivals: 0,
            rejections: ipc::Rejections::default(),
            shortages: 0,
            counted: Vec::new(),
        }
    }

    /// What the NIC said after which no other node is reached any more: the daemon is to be started anew.
    #[must_use]
    pub fn nic_failure(&self) -> Option<rpc::NicFailure> {
        self.worker.nic_failure()
    }

    /// One turn: [`take`](Self::take), [`poll`](Self::poll) and [`control`](Self::control). Returns how
    /// many requests, responses and ends of calls it handled. `now_ns` never goes backwards.
    pub fn step(&mut self, now_ns: u64) -> usize {
        self.take(now_ns);
        self.poll(now_ns);
        self.control(now_ns)
    }

    /// The first phase of a turn: takes requests of clients, and requests and replies of other threads of
    /// the daemon. Answers those that functions answer, and makes calls.
    pub fn take(&mut self, now_ns: u64) {
        let Self { worker, dispatcher, port, watch, pace, scratch, .. } = self;
        watch.begin();
        dispatcher.now_ns = now_ns;
        dispatcher.tally.add(Counter::Loops, 1);
        dispatcher.depart_providers(port, worker);
        let taken = dispatcher.take(port, worker, scratch);
        if dispatcher.introductions.has_requests() {
            dispatcher.introduce(port);
        }
        let of_threads = dispatcher.take_from_threads(port.replies(), worker, scratch);
        let pieces = dispatcher.copy_bodies(port.replies(), worker);
        if taken > 0
            && let Some(requests) = pace.took(now_ns)
        {
            port.set_turn_budget(requests);
        }
        if taken > 0 || pieces > 0 {
            // Peers get to work on these while this turn serves what they asked for.
            worker.flush();
        }
        dispatcher.announce_to_threads();
        watch.ended(&mut dispatcher.tally, &[Phase::Clients]);
        self.handled = usize::try_from(taken).unwrap_or(usize::MAX) + of_threads + pieces;
    }

    /// The second phase of a turn: polls the NIC, posts what is to leave, and makes the calls that waited
    /// for room.
    pub fn poll(&mut self, now_ns: u64) {
        let Self { worker, dispatcher, port, watch, scratch, .. } = self;
        dispatcher.now_ns = now_ns;
        let replies = port.replies();
        let mut handler = PollHandler { dispatcher, replies, watch, scratch, has_posted: false };
        self.handled += worker.poll(now_ns, &mut handler);
        let has_posted = handler.has_posted;
        if let Some(holding) = &mut dispatcher.holding {
            if has_posted {
                holding.posted(now_ns);
            }
            dispatcher.release_replies(replies);
        }
        let phases: &[_] = if has_posted { &[Phase::Post] } else { &[Phase::Nic, Phase::Post] };
        watch.ended(&mut dispatcher.tally, phases);
        let arrivals = worker.stats().arrivals;
        let came = arrivals - std::mem::replace(&mut self.arrivals, arrivals);
        if came > 0 {
            dispatcher.tally.add(Counter::CqPolls, 1);
            dispatcher.tally.add(Counter::Completions, came);
            dispatcher.tally.record(Timing::CompletionsPerPoll, came);
        }
        dispatcher.advance(port.replies(), worker);
        self.handled += dispatcher.take_request_pieces();
        self.handled += self.bulk.advance(&mut Turn { worker, port, dispatcher });
        dispatcher.announce_to_threads();
        watch.ended(&mut dispatcher.tally, &[Phase::Waiting]);
    }

    /// The last phase of a turn: looks at deadlines and peers if it is time to. Returns how many requests,
    /// responses and ends of calls the turn has handled.
    pub fn control(&mut self, now_ns: u64) -> usize {
        let Self { worker, dispatcher, port, control, links, .. } = self;
        dispatcher.now_ns = now_ns;
        if now_ns >= self.control_ns {
            self.control_ns = now_ns + CONTROL_NS;
            dispatcher.expire(port, worker);
            self.bulk.expire(&mut Turn { worker, port, dispatcher });
            links.step(worker, dispatcher, port.replies(), control, now_ns);
            self.count_batches();
            self.count(now_ns);
            self.dispatcher.announce_to_threads();
        }
        self.watch.ended(&mut self.dispatcher.tally, &[Phase::Control]);
        self.watch.stop(&mut self.dispatcher.tally);
        let handled = std::mem::take(&mut self.handled);
        if handled > 0 {
            self.idle_ns = None;
            self.dispatcher.tally.add(Counter::BusyLoops, 1);
        } else {
            self.idle_ns.get_or_insert(now_ns);
            self.pace.rested();
        }
        handled
    }

    /// Whether it is better to look again than to offer the core to others: calls to peers are under
    /// way, something came a moment ago, and clients did not get much to do meanwhile. Daemons that wait
    /// for each other like this run at the same time, even if each shares its core: then calls are
    /// answered while they wait, and not a turn of all processes later.
    ///
    /// Never in a daemon of several threads, nor while a process of this node has a request: if they share a
    /// core, the next step may be theirs.
    #[must_use]
    pub fn expects_answers(&self, now_ns: u64) -> bool {
        let is_fresh = self.idle_ns.is_none_or(|since_ns| now_ns < since_ns + PATIENCE_NS);
        let dispatcher = &self.dispatcher;
        // Nobody says when what waits has waited long enough.
        dispatcher.holds_replies()
            || is_fresh
                && dispatcher.answered_inline() < INLINE_BURST
                && dispatcher.thread_handle.is_alone()
                && dispatcher.is_calling()
                && !dispatcher.is_served_elsewhere()
    }

    /// What was counted so far, published or not.
    #[must_use]
    pub fn total(&self, counter: Counter) -> u64 {
        self.dispatcher.tally.total(counter)
    }

    /// Time of a part of the loop in the turns that were timed so far.
    #[must_use]
    pub fn phase_ns(&self, phase: Phase) -> u64 {
        self.dispatcher.tally.phase_ns(phase)
    }

    /// Lets answers of other nodes wait for each other before clients of this thread get them: for research.
    pub fn hold_replies(&mut self, policy: ReplyHold) {
        let nodes = self.links.count() + 1;
        self.dispatcher.hold_replies(policy, nodes);
    }

    /// Adds the connections' counters since the last look.
    fn count_batches(&mut self) {
        let Self { worker, dispatcher, counted, .. } = self;
        worker.visit_active(|peer, now| {
            let slot = usize::from(peer.slot());
            if counted.len() <= slot {
                counted.resize(slot + 1, None);
            }
            // Each connection counts from 0.
            let before = counted[slot].filter(|(counted, _)| *counted == peer);
            let before = before.map_or_else(Counters::default, |(_, counters)| counters);
            counted[slot] = Some((peer, now));
            let tally = &mut dispatcher.tally;
            let batches = now.batches_out - before.batches_out;
            tally.add(Counter::Flushes, batches);
            tally.add(Counter::BatchesIn, now.batches_in - before.batches_in);
            tally.add(Counter::Credits, now.credits_out - before.credits_out);
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
        let outstanding = self.dispatcher.outstanding() as u64;
        let (waiting, held) = (self.dispatcher.waiting(), self.dispatcher.held_bytes());
        let sessions = self.dispatcher.introductions.sessions.hosted() as u64;
        let (clients, welcomed, evicted) = self.port.census();
        let rejections = self.port.rejections();
        rejections::log(std::mem::replace(&mut self.rejections, rejections), rejections);
        let large = self.worker.large_memory();
        let shortages = self.worker.stats().shortages;
        let before = std::mem::replace(&mut self.shortages, shortages);
        self.dispatcher.tally.add(Counter::NoMemory, shortages - before);
        // Before the sample, which tells what was done so far.
        self.dispatcher.tally.publish();
        let peers_up = self.dispatcher.peers_up();
        let recorder = self.dispatcher.tally.recorder();
        recorder.set(Counter::Clients, clients);
        recorder.set(Counter::Welcomed, welcomed);
        recorder.set(Counter::Evicted, evicted);
        recorder.set(Counter::Departed, self.port.departures() - evicted);
        recorder.set(Counter::PeersUp, peers_up as u64);
        recorder.set(Counter::Outstanding, outstanding);
        recorder.set(Counter::Waiting, waiting as u64);
        recorder.set(Counter::HeldBytes, held as u64);
        recorder.set(Counter::LargeHeld, large.used_bytes as u64);
        recorder.set(Counter::LargeRegistered, large.registered_bytes as u64);
        let RegionCount { regions, bytes } = self.bulk.held();
        recorder.set(Counter::BulkHeld, bytes);
        recorder.set(Counter::BulkRegions, regions as u64);
        recorder.set(Counter::DirectSessions, sessions);
        recorder.sample(now_ns, outstanding);
    }

    /// Takes no new calls any more; those in flight end as they would.
    pub fn drain(&mut self) {
        self.dispatcher.drain();
    }

    /// Calls in flight; for other threads of the daemon, those are in flight there.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.dispatcher.outstanding() + self.bulk.open()
    }

    /// Says from now on when the peers of this thread lived.
    pub fn tell_lives(&mut self, lives: Arc<Lives>) {
        self.links.tell_lives(lives);
    }

    /// Peers that are up at both ends, so that they may be called.
    #[must_use]
    pub fn peers_up(&self) -> usize {
        self.dispatcher.peers_up()
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

    /// The counters of its worker.
    #[must_use]
    pub fn worker_stats(&self) -> rpc::Stats {
        self.worker.stats()
    }

    /// Bytes of long bodies that it copied so far; its worker counts what that copies.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.dispatcher.mover.copied_bytes
    }

    /// Its clients.
    pub fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// The time of the next work if nothing arrives.
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        if self.dispatcher.is_copying() {
            return 0;
        }
        let times = [self.links.next_ns(), self.worker.wake_ns()];
        let next_ns = times.into_iter().flatten().min().unwrap_or(u64::MAX);
        let next_ns = next_ns.min(self.bulk.registering_look_ns());
        // Providers and waiting calls have deadlines that only the control look sees.
        if self.dispatcher.open() + self.bulk.open() > 0 {
            next_ns.min(self.control_ns)
        } else {
            next_ns
        }
    }
}
