//! Where calls are: taken from clients, on their way to other nodes or threads, waiting for a
//! provider. Answers find their callers here.

mod errands;
mod incoming;
mod outgoing;

use std::{
    collections::{HashMap, VecDeque},
    mem,
    time::Duration,
};

use rpc::{PeerId, Status, Token, Worker};
use verbs::Nic;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    bootstrap::Place,
    daemon::{
        crew::Seat,
        front::{Answer, Front, Next},
        services::{Job, Services},
        slab::Slab,
        wire::{self, CallHead, DAEMON, HERE, WORK_HEAD_BYTES, WorkHead},
    },
    metrics::{Counter, Lap, Phase, Tally, Timing},
};

/// Bytes of requests that may wait for room in the ring of one peer.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// Who inside this daemon made a call.
enum Asker<F: Front> {
    /// A client of this thread; `None` until its request was deferred.
    Client(Option<F::Token>),
    /// Another thread.
    Thread(inproc::Token),
}

/// A call to another node.
struct Pending<F: Front> {
    asker: Asker<F>,
    taken_ns: u64,
    called_ns: u64,
}

/// A call that waits for room in the peer's ring, or at the thread that owns it.
struct Waiting<F: Front> {
    asker: Asker<F>,
    call: Outgoing,
    body: Vec<u8>,
}

/// A call to another node, without its body.
#[derive(Clone, Copy)]
pub(super) struct Outgoing {
    service: u16,
    method: u16,
    response_bytes: usize,
    taken_ns: u64,
    deadline_ns: u64,
}

/// Who waits for the answer of a provider.
enum Caller<F: Front> {
    /// Somebody of this node.
    Inside(Asker<F>),
    /// Another node.
    Peer(Token),
}

/// Who is to answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Server<C> {
    /// A client of this thread.
    Client(C),
    /// The thread that offers the service.
    Thread,
}

/// A request that somebody else is to answer.
struct Work<F: Front> {
    caller: Caller<F>,
    server: Server<F::Client>,
    deadline_ns: u64,
    came_ns: u64,
}

/// What a request that is answered later waits for.
enum Claim {
    /// A response to the call that was made, which has the next name of those pending.
    Call,
    /// Room in the ring of a peer.
    Waiting(u32),
    /// An answer to the work of this name.
    Work(u64),
    /// Work, for the provider of a service.
    Take(u16),
}

/// What the daemon keeps between turns.
pub(super) struct Office<F: Front> {
    pub(super) place: Place,
    pub(super) services: Services<F>,
    pub(super) tally: Tally,
    pub(super) now_ns: u64,
    pub(super) is_draining: bool,
    /// Requests that were answered at once when clients asked for something last.
    pub(super) fed: u64,
    /// Peers whose connection broke.
    pub(super) broken: Vec<u32>,
    call_timeout_ns: u64,
    body_bytes_max: usize,
    /// What this thread has of the others.
    pub(super) seat: Seat,
    /// By rank: peers that can be called.
    pub(super) peers: Vec<Option<PeerId>>,
    /// By slot of the peer.
    ranks: Vec<Option<(PeerId, u32)>>,
    pending: Slab<Pending<F>>,
    waiting: Vec<VecDeque<Waiting<F>>>,
    /// By rank.
    waiting_bytes: Vec<usize>,
    /// Ranks for which something waits, each once.
    blocked: Vec<u32>,
    work: Slab<Work<F>>,
    /// By service: requests for services of other threads that these have no room for, oldest first.
    abroad: HashMap<u16, VecDeque<Job>>,
    /// Answers for clients that could not be given while one of their requests was being taken.
    answers: Vec<(F::Token, Status, Vec<u8>)>,
    /// Services whose provider may get something.
    ready: Vec<u16>,
    body: Vec<u8>,
    departures: u64,
}

/// The office while a worker polls.
pub(super) struct Visit<'a, F: Front> {
    pub(super) office: &'a mut Office<F>,
    pub(super) front: &'a mut F,
    pub(super) watch: &'a mut Stopwatch,
    /// Batches were posted.
    pub(super) has_posted: bool,
}

/// Times the phases of a turn, if it is one of those that are timed.
pub(super) struct Stopwatch {
    pub(super) lap: Option<Lap>,
    pub(super) clock: fn() -> u64,
}

impl Stopwatch {
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
    pub(super) fn stop(self, tally: &mut Tally) {
        if let Some(lap) = self.lap {
            lap.end(tally.recorder());
        }
    }
}

impl<F: Front> Office<F> {
    pub(super) fn new(
        place: Place,
        mut services: Services<F>,
        seat: Seat,
        tally: Tally,
        call_timeout: Duration,
        body_bytes_max: usize,
    ) -> Self {
        let size = place.size() as usize;
        services.share(seat.offers());
        Self {
            place,
            services,
            tally,
            now_ns: 0,
            is_draining: false,
            fed: 0,
            broken: Vec::new(),
            call_timeout_ns: u64::try_from(call_timeout.as_nanos()).unwrap_or(u64::MAX),
            body_bytes_max,
            seat,
            peers: vec![None; size],
            ranks: Vec::new(),
            pending: Slab::default(),
            waiting: (0..size).map(|_| VecDeque::new()).collect(),
            waiting_bytes: vec![0; size],
            blocked: Vec::new(),
            work: Slab::default(),
            abroad: HashMap::new(),
            answers: Vec::new(),
            ready: Vec::new(),
            body: Vec::new(),
            departures: 0,
        }
    }

    /// Calls in flight: to other nodes, and to providers. Those of other threads are theirs.
    pub(super) fn outstanding(&self) -> usize {
        self.open() - self.seat.guests()
    }

    /// Calls in flight, of whomever.
    pub(super) fn open(&self) -> usize {
        let waiting: usize =
            self.blocked.iter().map(|rank| self.waiting[*rank as usize].len()).sum();
        self.pending.len() + self.work.len() + waiting
    }

    /// Whether calls to other nodes are under way.
    pub(super) fn is_calling(&self) -> bool {
        self.pending.len() > 0
    }

    /// A peer came up.
    pub(super) fn connect(&mut self, rank: u32, peer: PeerId) {
        self.peers[rank as usize] = Some(peer);
        let slot = usize::from(peer.slot());
        self.ranks.resize(self.ranks.len().max(slot + 1), None);
        self.ranks[slot] = Some((peer, rank));
    }

    /// The rank of a peer that is up.
    #[inline]
    pub(super) fn rank_of(&self, peer: PeerId) -> Option<u32> {
        let (known, rank) = (*self.ranks.get(usize::from(peer.slot()))?)?;
        (known == peer).then_some(rank)
    }

    /// A peer is gone: what waits for its ring ends. Calls in flight end with the connection.
    pub(super) fn disconnect(&mut self, rank: u32, front: &mut F) {
        if let Some(peer) = self.peers[rank as usize].take() {
            self.ranks[usize::from(peer.slot())].take_if(|(known, _)| *known == peer);
        }
        self.waiting_bytes[rank as usize] = 0;
        for waiting in mem::take(&mut self.waiting[rank as usize]) {
            self.tally.add(Counter::PeerGone, 1);
            self.answer(front, waiting.asker, Status::Unavailable, &[], waiting.call.taken_ns);
        }
    }

    /// Ends a call. Inlined, as all that is done for every call of a client is.
    #[inline(always)]
    fn answer(
        &mut self,
        front: &mut F,
        asker: Asker<F>,
        status: Status,
        body: &[u8],
        taken_ns: u64,
    ) {
        match asker {
            Asker::Client(Some(token)) => {
                front.reply(token, status, body);
                self.tally.add(Counter::Replies, 1);
                self.tally.record(Timing::Call, self.now_ns.saturating_sub(taken_ns));
            }
            Asker::Client(None) => {}
            Asker::Thread(token) => self.seat.answer(token, status, body),
        }
    }

    // Requests of clients

    /// Takes requests of clients, one turn of all; returns how many.
    pub(super) fn take<N: Nic>(&mut self, front: &mut F, worker: &mut Worker<N>) -> u64 {
        let (mut taken, mut answered) = (0, 0);
        loop {
            let serve = |client, request: &[u8], body: &mut Vec<u8>| {
                self.serve(worker, client, request, body)
            };
            match front.next(serve) {
                Next::End => break,
                Next::Answered => answered += 1,
                Next::Deferred(token, claim) => {
                    self.settle(claim, Asker::Client(Some(token)), self.now_ns);
                }
            }
            taken += 1;
        }
        if taken > 0 {
            self.fed = answered;
            self.tally.add(Counter::RequestsIpc, taken);
            self.tally.record(Timing::RequestsPerLoop, taken);
        }
        if answered > 0 {
            self.tally.add(Counter::Replies, answered);
            self.tally.record_all(Timing::Call, 0, answered);
        }
        if !self.answers.is_empty() {
            self.give_answers(front);
        }
        taken
    }

    /// Gives answers that could not be given when they were known.
    fn give_answers(&mut self, front: &mut F) {
        for (token, status, body) in self.answers.drain(..) {
            front.reply(token, status, &body);
        }
    }

    fn serve<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        client: F::Client,
        request: &[u8],
        body: &mut Vec<u8>,
    ) -> Answer<Claim> {
        let Ok((head, payload)) = CallHead::read_from_prefix(request) else {
            return Answer::Now(Status::InvalidArgument);
        };
        let rank = if head.rank.get() == HERE { self.place.rank() } else { head.rank.get() };
        if rank == self.place.rank() {
            if head.service.get() == DAEMON {
                return self.serve_daemon(worker, client, head.method.get(), payload, body);
            }
            self.tally.add(Counter::RequestsLocal, 1);
            if self.is_draining {
                return Answer::Now(Status::Unavailable);
            }
            return self.serve_local(&head, payload, body);
        }
        self.tally.add(Counter::RequestsRemote, 1);
        if rank >= self.place.size() {
            return Answer::Now(Status::NotFound);
        }
        if self.is_draining {
            Answer::Now(Status::Unavailable)
        } else {
            self.forward(worker, rank, &head, payload)
        }
    }

    fn timeout_ns(&self, timeout_us: u32) -> u64 {
        match timeout_us {
            0 => self.call_timeout_ns,
            timeout_us => u64::from(timeout_us) * 1000,
        }
    }

    /// A request is answered later: who waits for it goes where the answer will look.
    #[inline(always)]
    fn settle(&mut self, claim: Claim, asker: Asker<F>, taken_ns: u64) {
        if let Claim::Call = claim {
            // Nothing can have answered it yet: the worker has not polled.
            self.pending.insert(Pending { asker, taken_ns, called_ns: self.now_ns });
        } else {
            self.settle_rest(claim, asker);
        }
    }

    fn settle_rest(&mut self, claim: Claim, asker: Asker<F>) {
        match (claim, asker) {
            (Claim::Waiting(rank), asker) => {
                if let Some(waiting) = self.waiting[rank as usize].back_mut() {
                    waiting.asker = asker;
                }
            }
            (Claim::Work(name), asker) => {
                if let Some(work) = self.work.get_mut(name) {
                    work.caller = Caller::Inside(asker);
                }
            }
            (Claim::Take(service), Asker::Client(Some(token))) => {
                if let Some(provider) = self.services.provider(service) {
                    provider.takes.push_back(token);
                    self.ready.push(service);
                }
            }
            (Claim::Call | Claim::Take(_), _) => unreachable!("only clients provide"),
        }
    }

    // What waits

    /// Gives providers what waits for them, and calls what waited for room.
    #[inline]
    pub(super) fn advance<N: Nic>(&mut self, front: &mut F, worker: &mut Worker<N>) {
        if !self.ready.is_empty() {
            self.advance_providers(front, worker);
        }
        if !self.blocked.is_empty() {
            for rank in mem::take(&mut self.blocked) {
                self.unblock(front, worker, rank);
            }
        }
    }

    /// Gives providers what waits for them.
    fn advance_providers<N: Nic>(&mut self, front: &mut F, worker: &mut Worker<N>) {
        for service in mem::take(&mut self.ready) {
            while let Some((token, job)) = self.next_job(service) {
                let head = WorkHead {
                    work: job.work.into(),
                    rank: job.rank.into(),
                    method: job.method.into(),
                    reserved: 0.into(),
                };
                self.body.clear();
                self.body.extend_from_slice(head.as_bytes());
                self.body.extend_from_slice(&job.body);
                debug_assert_eq!(self.body.len(), WORK_HEAD_BYTES + job.body.len());
                front.reply(token, Status::Ok, &self.body);
            }
            self.hand_on(worker, service);
        }
    }

    /// Calls what waited for room in the ring of one peer, as far as there is room.
    fn unblock<N: Nic>(&mut self, front: &mut F, worker: &mut Worker<N>, rank: u32) {
        while let Some(waiting) = self.waiting[rank as usize].pop_front() {
            let called = self.call(worker, rank, &waiting.call, &waiting.body);
            if called == Err(Status::ResourceExhausted) {
                self.waiting[rank as usize].push_front(waiting);
                self.blocked.push(rank);
                return;
            }
            self.waiting_bytes[rank as usize] -= waiting.body.len();
            match called {
                Ok(()) => self.settle(Claim::Call, waiting.asker, waiting.call.taken_ns),
                Err(status) => {
                    self.count_end(status);
                    self.answer(front, waiting.asker, status, &[], waiting.call.taken_ns);
                }
            }
        }
    }

    /// A request that still waits, and the provider's wish for one.
    fn next_job(&mut self, service: u16) -> Option<(F::Token, Job)> {
        loop {
            let work = &self.work;
            let provider = self.services.provider(service)?;
            if provider.takes.is_empty() {
                return None;
            }
            let job = provider.queue.pop_front()?;
            // Its caller may have given up.
            if work.get(job.work).is_some() {
                return Some((provider.takes.pop_front()?, job));
            }
        }
    }

    /// Forgets requests that nobody waits for any more: they keep no others out of the queues.
    fn forget_jobs(&mut self) {
        let Self { work, services, abroad, .. } = self;
        let is_wanted = |job: &Job| work.get(job.work).is_some();
        services.retain_jobs(is_wanted);
        abroad.values_mut().for_each(|queue| queue.retain(is_wanted));
    }

    /// Ends what has passed its deadline, and what waits for processes that are gone.
    pub(super) fn expire<N: Nic>(&mut self, front: &mut F, worker: &mut Worker<N>) {
        let now_ns = self.now_ns;
        let departures = front.departures();
        if mem::replace(&mut self.departures, departures) != departures {
            self.services.withdraw(|client| front.is_there(client));
            let is_gone = |work: &Work<F>| match work.server {
                Server::Client(client) => !front.is_there(client),
                Server::Thread => false,
            };
            for name in self.work.names(is_gone) {
                self.finish_work(worker, name, Status::Unavailable, &[]);
            }
        }
        let late = self.work.names(|work| work.deadline_ns <= now_ns);
        if !late.is_empty() {
            for name in late {
                self.tally.add(Counter::Deadlines, 1);
                self.finish_work(worker, name, Status::DeadlineExceeded, &[]);
            }
            self.forget_jobs();
        }
        self.give_answers(front);
        for index in 0..self.blocked.len() {
            let rank = self.blocked[index] as usize;
            let (late, rest) = mem::take(&mut self.waiting[rank])
                .into_iter()
                .partition(|waiting| waiting.call.deadline_ns <= now_ns);
            self.waiting[rank] = rest;
            let late: VecDeque<Waiting<F>> = late;
            for waiting in late {
                self.waiting_bytes[rank] -= waiting.body.len();
                self.tally.add(Counter::Deadlines, 1);
                let (asker, taken_ns) = (waiting.asker, waiting.call.taken_ns);
                self.answer(front, asker, Status::DeadlineExceeded, &[], taken_ns);
            }
        }
    }
}

/// Longest message of a client, for a longest body.
pub(super) fn message_bytes_max(body_bytes: u32) -> u32 {
    wire::message_bytes_max(body_bytes)
}
