//! Where calls are: taken from clients, on their way to other nodes, waiting for a provider. Answers
//! find their callers here.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    time::Duration,
};

use rpc::{Call, CallError, CloseReason, PeerId, Request, Status, Token, Worker};
use verbs::Nic;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    bootstrap::Place,
    daemon::{
        front::{Front, Next},
        services::{Inbound, Job, Served, Services},
        slab::Slab,
        wire::{
            self, CallHead, DAEMON, HERE, PEER_HEAD_BYTES, PeerHead, ServeHead, WORK_HEAD_BYTES,
            WorkHead, method,
        },
    },
    metrics::{Counter, Recorder, Timing},
};

/// Bytes of requests that may wait for room in the ring of one peer.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// A call to another node.
struct Pending<F: Front> {
    /// Set once the client's request was deferred.
    token: Option<F::Token>,
    taken_ns: u64,
    called_ns: u64,
}

/// A call that waits for room in the peer's ring.
struct Waiting<F: Front> {
    token: Option<F::Token>,
    call: Outgoing,
    body: Vec<u8>,
    deadline_ns: u64,
}

/// A call to another node, without its body.
#[derive(Clone, Copy)]
struct Outgoing {
    service: u16,
    method: u16,
    timeout_ns: u64,
    response_bytes: usize,
    taken_ns: u64,
}

/// Who waits for the answer of a provider.
enum Caller<F: Front> {
    /// A client of this node; `None` until its request was deferred.
    Client(Option<F::Token>),
    /// Another node.
    Peer(Token),
}

/// A request that a provider is to answer.
struct Work<F: Front> {
    caller: Caller<F>,
    provider: F::Client,
    deadline_ns: u64,
    came_ns: u64,
}

/// What the token of a request that was just deferred is for.
enum Claim {
    Call(u64),
    Waiting(u32),
    Work(u64),
    Take(u16),
}

/// What the daemon keeps between turns.
pub(super) struct Office<F: Front> {
    pub(super) place: Place,
    pub(super) services: Services<F>,
    pub(super) recorder: Recorder,
    pub(super) now_ns: u64,
    pub(super) is_draining: bool,
    /// Peers whose connection broke.
    pub(super) broken: Vec<u32>,
    call_timeout: Duration,
    body_bytes_max: usize,
    /// By rank: peers that can be called.
    peers: Vec<Option<PeerId>>,
    ranks: HashMap<PeerId, u32>,
    pending: Slab<Pending<F>>,
    waiting: Vec<VecDeque<Waiting<F>>>,
    /// By rank.
    waiting_bytes: Vec<usize>,
    work: Slab<Work<F>>,
    claim: Option<Claim>,
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
}

impl<F: Front> Office<F> {
    pub(super) fn new(
        place: Place,
        services: Services<F>,
        recorder: Recorder,
        call_timeout: Duration,
        body_bytes_max: usize,
    ) -> Self {
        let size = place.size() as usize;
        Self {
            place,
            services,
            recorder,
            now_ns: 0,
            is_draining: false,
            broken: Vec::new(),
            call_timeout,
            body_bytes_max,
            peers: vec![None; size],
            ranks: HashMap::new(),
            pending: Slab::default(),
            waiting: (0..size).map(|_| VecDeque::new()).collect(),
            waiting_bytes: vec![0; size],
            work: Slab::default(),
            claim: None,
            answers: Vec::new(),
            ready: Vec::new(),
            body: Vec::new(),
            departures: 0,
        }
    }

    /// Calls in flight: to other nodes, and to providers.
    pub(super) fn outstanding(&self) -> usize {
        let waiting: usize = self.waiting.iter().map(VecDeque::len).sum();
        self.pending.len() + self.work.len() + waiting
    }

    /// A peer came up.
    pub(super) fn connect(&mut self, rank: u32, peer: PeerId) {
        self.peers[rank as usize] = Some(peer);
        self.ranks.insert(peer, rank);
    }

    /// A peer is gone: what waits for its ring ends. Calls in flight end with the connection.
    pub(super) fn disconnect(&mut self, rank: u32, front: &mut F) {
        if let Some(peer) = self.peers[rank as usize].take() {
            self.ranks.remove(&peer);
        }
        self.waiting_bytes[rank as usize] = 0;
        for waiting in mem::take(&mut self.waiting[rank as usize]) {
            self.recorder.add(Counter::PeerGone, 1);
            self.answer_client(
                front,
                waiting.token,
                Status::Unavailable,
                &[],
                waiting.call.taken_ns,
            );
        }
    }

    fn answer_client(
        &mut self,
        front: &mut F,
        token: Option<F::Token>,
        status: Status,
        body: &[u8],
        taken_ns: u64,
    ) {
        if let Some(token) = token {
            front.reply(token, status, body);
            self.recorder.add(Counter::Replies, 1);
            self.recorder.record(Timing::Call, self.now_ns.saturating_sub(taken_ns));
        }
    }

    // Requests of clients

    /// Takes requests of clients, one turn of all; returns how many.
    pub(super) fn take<N: Nic>(&mut self, front: &mut F, worker: &mut Worker<N>) -> u64 {
        let mut taken = 0;
        loop {
            let serve = |client, request: &[u8], body: &mut Vec<u8>| {
                self.serve(worker, client, request, body)
            };
            match front.next(serve) {
                Next::End => break,
                Next::Answered => {
                    self.recorder.add(Counter::Replies, 1);
                    self.recorder.record(Timing::Call, 0);
                }
                Next::Deferred(token) => self.claim(token),
            }
            taken += 1;
        }
        if taken > 0 {
            self.recorder.add(Counter::RequestsIpc, taken);
            self.recorder.record(Timing::RequestsPerLoop, taken);
        }
        for (token, status, body) in mem::take(&mut self.answers) {
            front.reply(token, status, &body);
        }
        taken
    }

    fn serve<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        client: F::Client,
        request: &[u8],
        body: &mut Vec<u8>,
    ) -> Option<Status> {
        self.claim = None;
        let Ok((head, payload)) = CallHead::read_from_prefix(request) else {
            return Some(Status::InvalidArgument);
        };
        let rank = if head.rank.get() == HERE { self.place.rank() } else { head.rank.get() };
        if rank == self.place.rank() {
            if head.service.get() == DAEMON {
                return self.serve_daemon(worker, client, head.method.get(), payload, body);
            }
            self.recorder.add(Counter::RequestsLocal, 1);
            if self.is_draining {
                return Some(Status::Unavailable);
            }
            return self.serve_local(&head, payload, body);
        }
        self.recorder.add(Counter::RequestsRemote, 1);
        if rank >= self.place.size() {
            return Some(Status::NotFound);
        }
        if self.is_draining {
            Some(Status::Unavailable)
        } else {
            self.forward(worker, rank, &head, payload)
        }
    }

    /// A request for a service of this node, by a client of this node: no NIC is involved.
    fn serve_local(
        &mut self,
        head: &CallHead,
        payload: &[u8],
        body: &mut Vec<u8>,
    ) -> Option<Status> {
        let service = head.service.get();
        let inbound = Inbound { rank: self.place.rank(), method: head.method.get(), body: payload };
        match self.services.serve(service, &inbound, body) {
            Some(Served::Answered(status)) => {
                self.count_status(status);
                Some(status)
            }
            Some(Served::Provided) => {
                let timeout_ns = self.timeout_ns(head.timeout_us.get());
                match self.hand_over(service, &inbound, Caller::Client(None), timeout_ns) {
                    Ok(name) => {
                        self.claim = Some(Claim::Work(name));
                        None
                    }
                    Err((status, _)) => Some(status),
                }
            }
            None => {
                self.recorder.add(Counter::NoService, 1);
                Some(Status::Unimplemented)
            }
        }
    }

    fn count_status(&mut self, status: Status) {
        if status != Status::Ok {
            self.recorder.add(Counter::HandlerErrors, 1);
        }
    }

    fn timeout_ns(&self, timeout_us: u32) -> u64 {
        match timeout_us {
            0 => u64::try_from(self.call_timeout.as_nanos()).unwrap_or(u64::MAX),
            timeout_us => u64::from(timeout_us) * 1000,
        }
    }

    /// A request for the daemon itself.
    fn serve_daemon<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        client: F::Client,
        what: u16,
        payload: &[u8],
        body: &mut Vec<u8>,
    ) -> Option<Status> {
        match what {
            method::PING => {
                body.extend_from_slice(payload);
                Some(Status::Ok)
            }
            method::WHO => {
                body.extend_from_slice(&self.place.rank().to_le_bytes());
                body.extend_from_slice(&self.place.size().to_le_bytes());
                Some(Status::Ok)
            }
            method::REGISTER => Some(match payload.try_into().map(u16::from_le_bytes) {
                Ok(service) => match self.services.provide(service, client) {
                    Ok(()) => Status::Ok,
                    Err(_) => Status::AlreadyExists,
                },
                Err(_) => Status::InvalidArgument,
            }),
            method::SERVE => self.serve_provider(worker, client, payload),
            _ => Some(Status::Unimplemented),
        }
    }

    /// A provider answers, and asks for the next request.
    fn serve_provider<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        client: F::Client,
        payload: &[u8],
    ) -> Option<Status> {
        let Ok((head, answer)) = ServeHead::read_from_prefix(payload) else {
            return Some(Status::InvalidArgument);
        };
        let service = head.service.get();
        let is_its_own =
            self.services.provider(service).is_some_and(|provider| provider.client == client);
        if !is_its_own {
            return Some(Status::FailedPrecondition);
        }
        let name = head.work.get();
        // Only what this very client was given, and once.
        if self.work.get(name).is_some_and(|work| work.provider == client) {
            let status = Status::from_code(head.status).unwrap_or(Status::Unknown);
            self.count_status(status);
            self.finish_work(worker, name, status, answer);
        } else if name != 0 {
            self.recorder.add(Counter::Stale, 1);
        }
        self.claim = Some(Claim::Take(service));
        None
    }

    /// Answers whoever waits for a provider.
    fn finish_work<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        name: u64,
        status: Status,
        body: &[u8],
    ) {
        let Some(work) = self.work.remove(name) else { return };
        let took_ns = self.now_ns.saturating_sub(work.came_ns);
        match work.caller {
            Caller::Client(Some(token)) => {
                self.recorder.add(Counter::Replies, 1);
                self.recorder.record(Timing::Call, took_ns);
                self.answers.push((token, status, body.to_vec()));
            }
            Caller::Client(None) => {}
            Caller::Peer(token) => {
                self.recorder.record(Timing::Turnaround, took_ns);
                self.recorder.add(Counter::BytesOut, body.len() as u64);
                // A caller that is gone needs no answer; one that expected less is told so.
                let _ = worker.reply(token, status, body);
            }
        }
    }

    /// Gives a request to the process that provides the service, as soon as it asks for one.
    fn hand_over(
        &mut self,
        service: u16,
        inbound: &Inbound<'_>,
        caller: Caller<F>,
        timeout_ns: u64,
    ) -> Result<u64, (Status, Caller<F>)> {
        let Some(provider) = self.services.provider(service).map(|provider| provider.client) else {
            return Err((Status::Unimplemented, caller));
        };
        if inbound.body.len() > self.body_bytes_max {
            return Err((Status::OutOfRange, caller));
        }
        let deadline_ns = self.now_ns.saturating_add(timeout_ns);
        let name = self.work.insert(Work { caller, provider, deadline_ns, came_ns: self.now_ns });
        let &Inbound { rank, method, body } = inbound;
        if self.services.enqueue(service, Job { work: name, rank, method, body: body.to_vec() }) {
            self.ready.push(service);
            return Ok(name);
        }
        self.recorder.add(Counter::Exhausted, 1);
        match self.work.remove(name) {
            Some(work) => Err((Status::ResourceExhausted, work.caller)),
            None => unreachable!("it was inserted just now"),
        }
    }

    /// Sends a client's request to another node, or lets it wait for room.
    fn forward<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        rank: u32,
        head: &CallHead,
        payload: &[u8],
    ) -> Option<Status> {
        let call = Outgoing {
            service: head.service.get(),
            method: head.method.get(),
            timeout_ns: self.timeout_ns(head.timeout_us.get()),
            response_bytes: (head.response_bytes.get() as usize).min(self.body_bytes_max),
            taken_ns: self.now_ns,
        };
        // First come, first served.
        let refused = if self.waiting[rank as usize].is_empty() {
            match self.call(worker, rank, &call, payload) {
                Ok(name) => {
                    self.claim = Some(Claim::Call(name));
                    return None;
                }
                Err(refused) => refused,
            }
        } else {
            Status::ResourceExhausted
        };
        let bytes = &mut self.waiting_bytes[rank as usize];
        if refused != Status::ResourceExhausted || *bytes + payload.len() > WAITING_BYTES_MAX {
            let counter = match refused {
                Status::Unavailable => Counter::PeerGone,
                _ => Counter::Exhausted,
            };
            self.recorder.add(counter, 1);
            return Some(refused);
        }
        *bytes += payload.len();
        let deadline_ns = self.now_ns.saturating_add(call.timeout_ns);
        let waiting = Waiting { token: None, call, body: payload.to_vec(), deadline_ns };
        self.waiting[rank as usize].push_back(waiting);
        self.claim = Some(Claim::Waiting(rank));
        None
    }

    /// Calls another node. [`Status::ResourceExhausted`]: there is no room now.
    fn call<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        rank: u32,
        call: &Outgoing,
        payload: &[u8],
    ) -> Result<u64, Status> {
        let Some(peer) = self.peers[rank as usize] else { return Err(Status::Unavailable) };
        let (taken_ns, called_ns) = (call.taken_ns, self.now_ns);
        let name = self.pending.insert(Pending { token: None, taken_ns, called_ns });
        let request = Call {
            method: call.service,
            response_bytes: call.response_bytes,
            timeout: Duration::from_nanos(call.timeout_ns),
            cookie: name,
        };
        let len_bytes = PEER_HEAD_BYTES + payload.len();
        let called = worker.call_with(peer, &request, len_bytes, |to| {
            let (head, body) = to.split_at_mut(PEER_HEAD_BYTES);
            head.copy_from_slice(PeerHead::new(call.method).as_bytes());
            body.copy_from_slice(payload);
        });
        let refused = match called {
            Ok(_) => {
                self.recorder.add(Counter::BytesOut, payload.len() as u64);
                return Ok(name);
            }
            Err(CallError::Busy(_) | CallError::NoMemory { .. }) => Status::ResourceExhausted,
            Err(CallError::NotConnected | CallError::Nested) => Status::Unavailable,
            Err(CallError::TooLong { .. } | CallError::NoPlace { .. }) => Status::OutOfRange,
        };
        self.pending.remove(name);
        Err(refused)
    }

    /// A request was deferred: its token goes where the answer will look for it.
    fn claim(&mut self, token: F::Token) {
        match self.claim.take() {
            Some(Claim::Call(name)) => {
                // Nothing can have answered it yet: the worker has not polled.
                if let Some(pending) = self.pending.get_mut(name) {
                    pending.token = Some(token);
                }
            }
            Some(Claim::Waiting(rank)) => {
                if let Some(waiting) = self.waiting[rank as usize].back_mut() {
                    waiting.token = Some(token);
                }
            }
            Some(Claim::Work(name)) => {
                if let Some(work) = self.work.get_mut(name) {
                    work.caller = Caller::Client(Some(token));
                }
            }
            Some(Claim::Take(service)) => {
                if let Some(provider) = self.services.provider(service) {
                    provider.takes.push_back(token);
                    self.ready.push(service);
                }
            }
            None => unreachable!("whoever defers claims"),
        }
    }

    // What waits

    /// Gives providers what waits for them, and calls what waited for room.
    pub(super) fn advance<N: Nic>(&mut self, front: &mut F, worker: &mut Worker<N>) {
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
        }
        for rank in 0..self.place.size() {
            while let Some(mut waiting) = self.waiting[rank as usize].pop_front() {
                let called = self.call(worker, rank, &waiting.call, &waiting.body);
                if called == Err(Status::ResourceExhausted) {
                    self.waiting[rank as usize].push_front(waiting);
                    break;
                }
                self.waiting_bytes[rank as usize] -= waiting.body.len();
                let token = waiting.token.take();
                match called {
                    Ok(name) => {
                        if let Some(pending) = self.pending.get_mut(name) {
                            pending.token = token;
                        }
                    }
                    Err(status) => {
                        self.answer_client(front, token, status, &[], waiting.call.taken_ns);
                    }
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

    /// Ends what has passed its deadline, and what waits for processes that are gone.
    pub(super) fn expire<N: Nic>(&mut self, front: &mut F, worker: &mut Worker<N>) {
        let now_ns = self.now_ns;
        let departures = front.departures();
        if mem::replace(&mut self.departures, departures) != departures {
            self.services.withdraw(|client| front.is_there(client));
            for name in self.work.names(|work| !front.is_there(work.provider)) {
                self.finish_work(worker, name, Status::Unavailable, &[]);
            }
        }
        for name in self.work.names(|work| work.deadline_ns <= now_ns) {
            self.recorder.add(Counter::Deadlines, 1);
            self.finish_work(worker, name, Status::DeadlineExceeded, &[]);
        }
        for (token, status, body) in mem::take(&mut self.answers) {
            front.reply(token, status, &body);
        }
        for rank in 0..self.waiting.len() {
            let (late, rest) = mem::take(&mut self.waiting[rank])
                .into_iter()
                .partition(|waiting| waiting.deadline_ns <= now_ns);
            self.waiting[rank] = rest;
            let late: VecDeque<Waiting<F>> = late;
            for waiting in late {
                self.waiting_bytes[rank] -= waiting.body.len();
                self.recorder.add(Counter::Deadlines, 1);
                let (token, taken_ns) = (waiting.token, waiting.call.taken_ns);
                self.answer_client(front, token, Status::DeadlineExceeded, &[], taken_ns);
            }
        }
    }
}

impl<N: Nic, F: Front> rpc::Handler<N> for Visit<'_, F> {
    fn request(&mut self, worker: &mut Worker<N>, request: Request<'_>) {
        let office = &mut *self.office;
        let Request { token, method: service, body, timeout_us } = request;
        office.recorder.add(Counter::Incoming, 1);
        office.recorder.add(Counter::BytesIn, body.len() as u64);
        let mut answer = mem::take(&mut office.body);
        answer.clear();
        let status = office.serve_peer(token, service, timeout_us, body, &mut answer);
        if let Some((token, status)) = status {
            office.recorder.record(Timing::Turnaround, 0);
            office.recorder.add(Counter::BytesOut, answer.len() as u64);
            // A caller that is gone needs no answer; one that expected less is told so.
            let _ = worker.reply(token, status, &answer);
        }
        office.body = answer;
    }

    fn response(&mut self, _: &mut Worker<N>, cookie: u64, status: Status, body: &[u8]) {
        let Visit { office, front } = self;
        let Some(pending) = office.pending.remove(cookie) else {
            office.recorder.add(Counter::Stale, 1);
            return;
        };
        office.recorder.add(Counter::Responses, 1);
        office.recorder.add(Counter::BytesIn, body.len() as u64);
        let status = match status {
            // The daemon cancels nothing: it closed the connection to a peer that is gone.
            Status::Cancelled => Status::Unavailable,
            status => status,
        };
        match status {
            Status::Unavailable => office.recorder.add(Counter::PeerGone, 1),
            Status::DeadlineExceeded => office.recorder.add(Counter::Deadlines, 1),
            _ => {
                office.recorder.record(Timing::Rtt, office.now_ns.saturating_sub(pending.called_ns))
            }
        }
        office.answer_client(front, pending.token, status, body, pending.taken_ns);
    }

    fn closed(&mut self, _: &mut Worker<N>, peer: PeerId, reason: CloseReason) {
        // One that this side closed is forgotten already.
        if let Some(rank) = self.office.ranks.get(&peer) {
            tracing::warn!(rank, %reason, "a connection ended");
            self.office.broken.push(*rank);
        }
    }
}

impl<F: Front> Office<F> {
    /// A request of another node: answered now, or `None` if a provider will.
    fn serve_peer(
        &mut self,
        token: Token,
        service: u16,
        timeout_us: u32,
        body: &[u8],
        answer: &mut Vec<u8>,
    ) -> Option<(Token, Status)> {
        let Ok((head, payload)) = PeerHead::read_from_prefix(body) else {
            return Some((token, Status::InvalidArgument));
        };
        let Some(&rank) = self.ranks.get(&token.peer()) else {
            return Some((token, Status::Unavailable));
        };
        if service == DAEMON {
            let is_ping = head.method.get() == method::PING;
            answer.extend_from_slice(if is_ping { payload } else { &[] });
            return Some((token, if is_ping { Status::Ok } else { Status::PermissionDenied }));
        }
        if self.is_draining {
            return Some((token, Status::Unavailable));
        }
        let inbound = Inbound { rank, method: head.method.get(), body: payload };
        match self.services.serve(service, &inbound, answer) {
            Some(Served::Answered(status)) => {
                self.count_status(status);
                Some((token, status))
            }
            Some(Served::Provided) => {
                let timeout_ns = self.timeout_ns(timeout_us);
                match self.hand_over(service, &inbound, Caller::Peer(token), timeout_ns) {
                    Err((status, Caller::Peer(token))) => Some((token, status)),
                    Ok(_) | Err(_) => None,
                }
            }
            None => {
                self.recorder.add(Counter::NoService, 1);
                Some((token, Status::Unimplemented))
            }
        }
    }
}

/// Longest message of a client, for a longest body.
pub(super) fn message_bytes_max(body_bytes: u32) -> u32 {
    wire::message_bytes_max(body_bytes)
}
