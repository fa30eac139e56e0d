//! The dispatcher: calls taken from clients, on their way to other nodes or threads, or waiting for a
//! provider. Each call is stored with the address of its answer.
//!
//! | part | holds |
//! |---|---|
//! | [`Admission`] | the one door: rights, limits and life of the daemon, by which requests and offers are judged |
//! | [`PeerTable`] | ranks that are up, and their connections |
//! | [`PendingCalls`] | calls to other nodes and threads that were made, and what they take of their peers ([`Shares`]) |
//! | [`WaitQueues`] | calls that wait for room at a peer, for their share of it, or for their next piece |
//! | [`Services`] | functions and providers of this node |
//! | [`ProviderCalls`] | requests that a provider or another thread is to answer, or whose answers are long |
//! | [`RequestCopies`] | what this turn may copy of long requests to other nodes, which are among the calls that wait |
//! | [`Mover`] | the one way on which pieces of long bodies are copied |
//! | [`LongBodies`] | long answers, and long requests for this node, that are copied in pieces |

mod answer_room;
mod departures;
mod given_up;
mod giving;
mod incoming;
mod introductions;
mod lent_bodies;
mod long_answers;
mod long_bodies;
mod long_requests;
mod outgoing;
mod passing;
mod peers;
mod pending_calls;
mod pieces;
mod provider_calls;
mod reply_hold;
mod report;
mod said;
mod shares;
mod thread_requests;
mod waiting;

use reply_hold::Holding;
pub use reply_hold::ReplyHold;

use std::{mem, time::Duration};

use bootstrap::RankInfo;
use departures::Departures;
use given_up::GivenUp;
use introductions::Introductions;
use ipc::TakenBytes;
use long_bodies::LongBodies;
use long_requests::RequestCopies;
use os::clock::duration_ns;
use peers::PeerTable;
use pending_calls::{PendingCall, PendingCalls};
use pieces::Mover;
use provider_calls::ProviderCalls;
use rpc::{CloseReason, PeerId, Status, Worker};
pub(crate) use said::{mark_service, not_executed};
use shares::Shares;
use verbs::Nic;
use waiting::{WaitQueues, Waiting};

use crate::{
    admission::{Admission, Refusal, Route},
    bulk_inbox::BulkInbox,
    client_port::{ClientPort, ClientRequest, Replies as _},
    limits::{Held, Limits},
    metrics::{Counter, Lap, LoopTimer, Phase, Tally, Timing},
    request::{Body, CallHeads, Request},
    request_head::Outgoing,
    services::Services,
    threads::ThreadHandle,
};

/// The address of the answer to a call that was made on this node.
enum ReplyTo<P: ClientPort> {
    /// A client of this thread.
    Client(P::ReplyTo),
    /// Another thread.
    Thread(inproc::Token),
    /// Its client is gone.
    Nobody,
}

/// The answer to a client's request.
enum Answer {
    /// At once: the body is in the turn's buffer.
    Now(Status),
    /// At once: the request was not executed.
    Refused(Status),
    /// Later: the address of the answer is stored with the call.
    Later,
}

impl From<Refusal> for Answer {
    #[inline]
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal.status())
    }
}

/// Memory that turns use one after the other.
#[derive(Default)]
pub(super) struct Scratch {
    /// Body of the answer that is being made.
    answer: Vec<u8>,
    /// Copy of a request that is not only passed on.
    request: Vec<u8>,
}

/// A request that was not accepted, and the address of the answer that it needs.
struct Returned<R> {
    status: Status,
    reply_to: R,
}

impl<R> From<Result<(), Returned<R>>> for Answer {
    #[inline]
    fn from(handed: Result<(), Returned<R>>) -> Self {
        match handed {
            Ok(()) => Self::Later,
            Err(Returned { status, .. }) => Self::Refused(status),
        }
    }
}

/// Numbers that the clients of one thread may have.
const CLIENT_NUMBERS: u32 = 4096;

/// What a dispatcher is bounded by.
pub(super) struct Bounds {
    pub(super) call_timeout: Duration,
    pub(super) body_bytes_max: usize,
    pub(super) limits: Limits,
    /// Calls in flight per peer.
    pub(super) peer_calls: u16,
    /// Room for answers of a peer.
    pub(super) answer_bytes: usize,
    /// Longest of them.
    pub(super) answer_bytes_max: usize,
}

/// Takes requests and finds the callers of answers, for one thread of a daemon.
pub(super) struct Dispatcher<P: ClientPort> {
    pub(super) rank_info: RankInfo,
    pub(super) tally: Tally,
    pub(super) now_ns: u64,
    pub(super) admission: Admission,
    /// What came for bulk memory in this turn.
    pub(super) bulk: BulkInbox<P>,
    /// This thread's endpoint in the mesh.
    pub(super) thread_handle: ThreadHandle,
    /// Clients that call providers without this daemon.
    pub(super) introductions: Introductions<P>,
    pub(super) services: Services<P>,
    peers: PeerTable,
    calls: PendingCalls<P>,
    waiting: WaitQueues<P>,
    held: Held,
    /// Added to the numbers of this thread's clients, so that all threads' differ.
    client_base: u32,
    provider_calls: ProviderCalls<P>,
    long_bodies: LongBodies<P>,
    request_copies: RequestCopies,
    /// Peers whose connection broke, and why, until they are disconnected.
    broken: Vec<(u32, CloseReason)>,
    pub(crate) mover: Mover,
    /// Requests that were answered at once when clients asked for something last.
    answered_inline: u64,
    call_timeout_ns: u64,
    departures: Departures,
    given_up: GivenUp<P>,
    /// By number: answers to clients with this status.
    pub(super) statuses: [u64; Status::ALL.len()],
    /// Answers of other nodes that wait for each other.
    pub(super) holding: Option<Box<Holding<P>>>,
}

/// Handles what a poll of the worker finds.
pub(super) struct PollHandler<'a, P: ClientPort> {
    pub(super) dispatcher: &'a mut Dispatcher<P>,
    pub(super) replies: &'a mut P::Replies,
    pub(super) watch: &'a mut Stopwatch,
    pub(super) scratch: &'a mut Scratch,
    /// Batches were posted.
    pub(super) has_posted: bool,
}

/// Times the phases of a turn, if it is one of those that are timed.
pub(super) struct Stopwatch {
    timer: LoopTimer,
    lap: Option<Lap>,
    clock: Box<dyn Fn() -> u64>,
}

impl Stopwatch {
    /// Times one turn in `every`, by `clock`.
    pub(super) fn new(every: u32, clock: Box<dyn Fn() -> u64>) -> Self {
        Self { timer: LoopTimer::new(every), lap: None, clock }
    }

    /// The time now.
    pub(super) fn now_ns(&self) -> u64 {
        (self.clock)()
    }

    /// A turn begins.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.lap = self.timer.begin(&*self.clock);
    }

    /// Phases have ended: the first just now, and those after it at once.
    #[inline]
    pub(super) fn ended(&mut self, tally: &mut Tally, phases: &[Phase]) {
        if let Some(lap) = &mut self.lap {
            let now_ns = (self.clock)();
            for phase in phases {
                lap.phase(tally.recorder(), *phase, now_ns);
            }
        }
    }

    /// The turn has ended.
    #[inline]
    pub(super) fn stop(&mut self, tally: &mut Tally) {
        if let Some(lap) = self.lap.take() {
            lap.end(tally.recorder());
        }
    }
}

impl<P: ClientPort> Dispatcher<P> {
    pub(super) fn new(
        rank_info: RankInfo,
        mut services: Services<P>,
        thread_handle: ThreadHandle,
        tally: Tally,
        bounds: Bounds,
    ) -> Self {
        services.share(thread_handle.offers());
        let Bounds { call_timeout, body_bytes_max, limits, peer_calls, .. } = bounds;
        let size = rank_info.size();
        let admission = Admission::new(rank_info, services.take_rights(), body_bytes_max, &limits);
        // Of a peer of another thread: what is left of the way there if other ranks have much.
        let slots = |rank| match thread_handle.owner(rank) {
            Some(_) => u32::from(peer_calls).min(thread_handle.lane_calls() / 4),
            None => peer_calls.into(),
        };
        let shares = Shares::new(size, slots, bounds.answer_bytes);
        Self {
            client_base: thread_handle.number() * CLIENT_NUMBERS,
            rank_info,
            tally,
            now_ns: 0,
            admission,
            bulk: BulkInbox::default(),
            introductions: Introductions::new(thread_handle.others().count() + 1),
            thread_handle,
            services,
            peers: PeerTable::new(size),
            calls: PendingCalls::new(shares, bounds.answer_bytes_max),
            waiting: WaitQueues::new(size),
            held: Held::new(limits),
            provider_calls: ProviderCalls::default(),
            long_bodies: LongBodies::default(),
            request_copies: RequestCopies::default(),
            broken: Vec::new(),
            mover: Mover::default(),
            answered_inline: 0,
            call_timeout_ns: duration_ns(call_timeout),
            departures: Departures::default(),
            given_up: GivenUp::default(),
            statuses: [0; Status::ALL.len()],
            holding: None,
        }
    }

    /// Calls in flight: to other nodes, and to providers. Those of other threads are theirs.
    pub(super) fn outstanding(&self) -> usize {
        self.open() - self.thread_handle.inbound() + self.introductions.sessions.awaited()
    }

    /// Takes no new calls any more.
    pub(super) fn drain(&mut self) {
        self.admission.drain();
        self.introductions.sessions.drain();
    }

    /// Calls in flight, also those that this thread handles for others.
    pub(super) fn open(&self) -> usize {
        self.calls.len() + self.provider_calls.len() + self.waiting.len()
    }

    /// Whether calls to other nodes are under way.
    pub(super) fn is_calling(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Whether processes of this node, or other threads, have requests to answer.
    pub(super) fn is_served_elsewhere(&self) -> bool {
        self.provider_calls.len() > 0
    }

    /// Requests that were answered at once when clients asked for something last.
    pub(super) fn answered_inline(&self) -> u64 {
        self.answered_inline
    }

    /// Peers whose connection broke since the last look.
    pub(super) fn take_broken(&mut self) -> Vec<(u32, CloseReason)> {
        mem::take(&mut self.broken)
    }

    /// A peer came up here: it may call.
    pub(super) fn connect(&mut self, rank: u32, peer: PeerId) {
        self.peers.insert(rank, peer);
    }

    /// Peers that may be called.
    pub(super) fn peers_up(&self) -> usize {
        self.peers.up()
    }

    /// A peer came up there, too: it may be called.
    pub(super) fn call_from_now_on(&mut self, rank: u32) {
        self.peers.open(rank);
    }

    /// A peer is gone: calls that wait for its ring end. Calls in flight end with the connection.
    pub(super) fn disconnect(&mut self, rank: u32, replies: &mut P::Replies) {
        self.peers.remove(rank);
        self.broken.retain(|(broken, _)| *broken != rank);
        let status = self.peers.absence(rank, self.now_ns);
        let waiting = self.waiting.take_all(&mut self.held, rank);
        self.end_waiting(replies, waiting, status);
    }

    /// Ends calls that waited, and that no one else was told of.
    fn end_waiting(&mut self, replies: &mut P::Replies, ended: Vec<Waiting<P>>, status: Status) {
        for Waiting { reply_to, call, .. } in ended {
            self.count_end(status);
            self.answer(replies, reply_to, status, not_executed(status), call.taken_ns);
        }
    }

    /// There was no memory to reach a peer: until it is up, calls to it say so.
    pub(super) fn lack_memory(&mut self, rank: u32) {
        self.peers.lack_memory(rank, self.now_ns);
    }

    /// Ends a call that was made on this node. Inlined, as all that is done for every call of a client is.
    #[inline(always)]
    fn answer(
        &mut self,
        replies: &mut P::Replies,
        reply_to: ReplyTo<P>,
        status: Status,
        body: &[u8],
        taken_ns: u64,
    ) {
        match reply_to {
            ReplyTo::Client(to) => {
                replies.reply(to, status, &[body]);
                self.count_reply(status, taken_ns);
            }
            ReplyTo::Thread(token) => self.thread_handle.answer(token, status, body),
            ReplyTo::Nobody => {}
        }
    }

    /// A client got its answer.
    #[inline(always)]
    fn count_reply(&mut self, status: Status, taken_ns: u64) {
        self.statuses[usize::from(status.code())] += 1;
        self.tally.add(Counter::Replies, 1);
        self.tally.record(Timing::Call, self.now_ns.saturating_sub(taken_ns));
    }

    // Requests of clients

    /// Takes requests of clients, one turn of all; returns how many.
    pub(super) fn take<N: Nic>(
        &mut self,
        port: &mut P,
        worker: &mut Worker<N>,
        scratch: &mut Scratch,
    ) -> u64 {
        let Scratch { answer: body, request: copy } = scratch;
        let (mut taken, mut answered) = (0, 0);
        self.request_copies.begin_turn();
        while let Some(request) = port.take() {
            let ClientRequest { reply_to, payload, replies, .. } = request;
            taken += 1;
            body.clear();
            let answer = match payload {
                TakenBytes::Private(message) => {
                    self.serve(worker, reply_to, message, replies, body)
                }
                TakenBytes::Lent(lent) => match self.pass_on(worker, reply_to, lent, replies) {
                    Some(answer) => answer,
                    None => {
                        copy.clear();
                        lent.append_to(copy);
                        self.serve(worker, reply_to, copy, replies, body)
                    }
                },
                TakenBytes::Left { head, len_bytes } => {
                    let left = (head, len_bytes);
                    self.serve_left(worker, reply_to, left, replies, (copy, body))
                }
            };
            let (status, body) = match answer {
                Answer::Now(status) => (status, &**body),
                Answer::Refused(status) => (status, not_executed(status)),
                Answer::Later => continue,
            };
            replies.reply(reply_to, status, &[body]);
            self.statuses[usize::from(status.code())] += 1;
            answered += 1;
        }
        if taken > 0 {
            self.answered_inline = answered;
            self.tally.add(Counter::RequestsIpc, taken);
            self.tally.record(Timing::RequestsPerLoop, taken);
        }
        if answered > 0 {
            self.tally.add(Counter::Replies, answered);
            self.tally.record_all(Timing::Call, 0, answered);
        }
        taken
    }

    /// A client's message whose bytes are a private copy.
    #[inline]
    fn serve<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        reply_to: P::ReplyTo,
        message: &[u8],
        replies: &mut P::Replies,
        answer: &mut Vec<u8>,
    ) -> Answer {
        let Some(heads) = CallHeads::read(message) else {
            return Answer::Now(Status::InvalidArgument);
        };
        let body = Body::Private(&message[heads.len_bytes..]);
        let request = self.request_of(replies, reply_to, &heads, body);
        match self.admit(&request) {
            Ok(route) => self.serve_admitted(worker, reply_to, route, &request, replies, answer),
            Err(refusal) => refusal.into(),
        }
    }

    /// A client's request with a private copy of its body. A request that is answered at once is never moved.
    #[inline]
    fn serve_admitted<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        reply_to: P::ReplyTo,
        route: Route,
        request: &Request<'_, P>,
        replies: &mut P::Replies,
        answer: &mut Vec<u8>,
    ) -> Answer {
        match route {
            Route::Here => self.serve_local(reply_to, request, replies, answer),
            Route::There => self.forward(worker, reply_to, request),
            Route::Daemon => {
                let request = request.of_client(reply_to);
                self.serve_daemon(worker, reply_to, request, replies, answer)
            }
        }
    }

    /// Counts and judges a request: see [`Admission`].
    #[inline(always)]
    pub(crate) fn admit(&mut self, request: &Request<'_, P>) -> Result<Route, Refusal> {
        self.admission.admit(request, &mut self.tally)
    }

    /// The connection of this thread to another node.
    pub(super) fn peer_of(&self, rank: u32) -> Result<PeerId, Status> {
        if self.thread_handle.owner(rank).is_some() {
            return Err(Status::Unimplemented);
        }
        self.peers.get(rank).ok_or(Status::Unavailable)
    }

    pub(super) fn timeout_ns(&self, timeout_us: u32) -> u64 {
        match timeout_us {
            0 => self.call_timeout_ns,
            timeout_us => u64::from(timeout_us) * 1000,
        }
    }

    // Waiting requests

    /// Gives other threads the requests that wait for them, and makes the calls that waited for room.
    #[inline]
    pub(super) fn advance<N: Nic>(&mut self, replies: &mut P::Replies, worker: &mut Worker<N>) {
        if !self.provider_calls.is_idle() {
            for service in self.provider_calls.take_ready() {
                self.give_to_thread(replies, worker, service);
            }
        }
        if !self.waiting.is_idle() {
            self.retry(replies, worker);
        }
    }

    /// Ends the calls that have passed their deadlines, that were given up, and those of clients that are gone.
    pub(super) fn expire<N: Nic>(&mut self, port: &mut P, worker: &mut Worker<N>) {
        if self.departures.is_look_due(port.departures(), self.now_ns) {
            self.depart(port, worker);
        }
        self.end_given_up(port.replies(), worker);
        if self.departures.has_untold() {
            self.departures.tell(&mut self.thread_handle);
        }
        self.services.claim_shared();
        self.introductions.sessions.expire(self.now_ns);
        let replies = port.replies();
        for key in self.provider_calls.late(self.now_ns) {
            self.tally.add(Counter::Deadlines, 1);
            self.cancel_provider_call(replies, worker, key, Status::DeadlineExceeded);
        }
        let late = self.waiting.take_late(&mut self.held, self.now_ns);
        self.end_waiting(replies, late, Status::DeadlineExceeded);
    }

    /// Bytes that are held for others.
    pub(super) fn held_bytes(&self) -> usize {
        self.held.bytes()
    }

    /// Requests that wait for room at a peer.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
