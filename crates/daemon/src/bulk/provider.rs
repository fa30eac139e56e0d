//! Calls that processes of this node answer, and what they may access meanwhile.

use std::collections::{VecDeque, btree_map::Entry};

use client::{
    bulk::message::{
        BODY_BYTES_MAX, BulkServeHead, BulkWorkExtra, BulkWorkHead, HAS_EXTRA, IS_LATE,
        IS_WRITABLE, PeerCallHead, PeerSlice, SliceInfo, WANTS_EXTRA, WANTS_NO_CALL, entries,
    },
    message::{CallerHead, LENDS_MEMORY, ServiceRecord, ServiceReport},
    name::NAME_BYTES_MAX,
};
use ids::slots::Key;
use proto::bulk::{Borrowing, Extent, Slice};
use rpc::{PeerId, RemoteRegion, Status, Token};
use verbs::Nic;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{Answer, Bulk, Turn};
use crate::{
    bulk_inbox::BulkMessage,
    client_port::ClientPort,
    dispatcher::{mark_service, not_executed},
    metrics::Counter,
    request::{Body, Caller, Request},
    request_head::RequestHead,
    services::LendingService,
};

/// Time between two reports about services: each costs as much as there are.
const REPORT_NS: u64 = 50_000_000;

/// Calls that wait for one provider.
const QUEUE_MAX: usize = 256;

/// A process that offers a service.
pub(super) struct Offer<P: ClientPort> {
    client: P::Client,
    /// Its polls that are not answered.
    polls: VecDeque<P::ReplyTo>,
    /// It is told of deadlines and callers.
    wants_extra: bool,
    /// Calls that it has not seen.
    queue: VecDeque<Key>,
    name: Vec<u8>,
    /// Calls that ever came for it.
    requests: u64,
    /// Calls that it was given and whose lenders were not told yet.
    given: u32,
}

impl<P: ClientPort> Offer<P> {
    fn new(client: P::Client, name: &[u8]) -> Self {
        let (polls, queue, wants_extra) = Default::default();
        Self { client, polls, wants_extra, queue, name: name.to_vec(), requests: 0, given: 0 }
    }

    /// What is told of it.
    fn report(&self, service: u16) -> LendingService {
        let service = ServiceRecord {
            service: service.into(),
            providers: 1.into(),
            waiting: u32::try_from(self.queue.len()).unwrap_or(u32::MAX).into(),
            given: self.given.into(),
            name_bytes: u16::try_from(self.name.len()).unwrap_or(u16::MAX).into(),
            flags: LENDS_MEMORY.into(),
        };
        let report = ServiceReport { service, requests: self.requests.into() };
        LendingService { report, name: self.name.clone() }
    }
}

/// Where the memory of a slice is.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// In a region of a client of this node.
    Here(Key),
    There(PeerId, RemoteRegion),
}

/// A slice that a call carries.
#[derive(Clone, Copy)]
pub(super) struct Granted {
    pub(super) slice: Slice,
    pub(super) source: Source,
}

/// Whoever waits for the answer.
pub(super) enum Lender {
    /// A call of a client of this node.
    Here(Key),
    There {
        token: Token,
        peer: PeerId,
        set: u64,
    },
    Nobody,
}

/// A call that a provider is to answer.
pub(super) struct Work<P: ClientPort> {
    lender: Lender,
    /// Requests of the lender's daemon to close the slices: answered when that is done.
    closers: Vec<Token>,
    pub(super) provider: P::Client,
    pub(super) slices: Vec<Granted>,
    pub(super) borrowing: Borrowing,
    /// Status and body that the call ended with.
    answer: (Status, Vec<u8>),
    head: RequestHead,
    body: Vec<u8>,
    /// The provider was told of it.
    pub(super) is_given: bool,
}

impl<P: ClientPort> Work<P> {
    /// The slices, without their places.
    pub(super) fn ranges(&self) -> Vec<Slice> {
        self.slices.iter().map(|granted| granted.slice).collect()
    }

    /// Whether its deadline is met.
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        self.head.deadline_ns <= now_ns
    }

    /// What its provider is told.
    fn describe(&self, key: Key, extra_at_ns: Option<u64>) -> Vec<u8> {
        let slices = u16::try_from(self.slices.len()).unwrap_or(HAS_EXTRA - 1);
        let flag = if extra_at_ns.is_some() { HAS_EXTRA } else { 0 };
        let head = BulkWorkHead {
            work: key.to_u64().into(),
            rank: self.head.from_rank.into(),
            method: self.head.method.into(),
            slices: (slices | flag).into(),
        };
        let mut bytes = head.as_bytes().to_vec();
        if let Some(now_ns) = extra_at_ns {
            let CallerHead { uid, pid, trace } = self.head.caller;
            let left_us = self.head.deadline_ns.saturating_sub(now_ns) / 1000;
            let extra = BulkWorkExtra { left_us: left_us.into(), uid, pid, trace };
            bytes.extend_from_slice(extra.as_bytes());
        }
        for Granted { slice, .. } in &self.slices {
            let info = SliceInfo {
                len_bytes: slice.extent.len_bytes().into(),
                flags: if slice.is_writable { IS_WRITABLE } else { 0 }.into(),
                reserved: 0.into(),
            };
            bytes.extend_from_slice(info.as_bytes());
        }
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

impl<N: Nic, P: ClientPort> Bulk<N, P> {
    /// A client offers a service.
    pub(super) fn offer(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        client: P::Client,
        BulkMessage { request, body }: &BulkMessage<P>,
    ) -> Status {
        let Some((service, name)) = body.split_first_chunk() else {
            return Status::InvalidArgument;
        };
        if name.len() > NAME_BYTES_MAX {
            return Status::InvalidArgument;
        }
        let service = u16::from_le_bytes(*service);
        if self.offers.get(&service).is_some_and(|offer| !turn.port.is_there(offer.client)) {
            self.providers_gone(turn);
        }
        let (admission, tag) = (&mut turn.dispatcher.admission, P::tag(client));
        if let Err(error) = admission.admit_offer(service, tag, &request.head.caller) {
            return error.status();
        }
        let Entry::Vacant(entry) = self.offers.entry(service) else {
            return Status::AlreadyExists;
        };
        entry.insert(Offer::new(client, name));
        admission.offered(tag);
        // Who asks after the answer finds it.
        self.report_ns = 0;
        self.report_offers(turn);
        Status::Ok
    }

    /// Another node calls.
    pub(super) fn peer_call(&mut self, turn: &mut Turn<'_, N, P>, message: BulkMessage<P>) {
        let BulkMessage { request, body } = message;
        let Caller::Peer(token) = &request.reply_to else { return };
        let peer = token.peer();
        let Some((head, slices, body)) = parse(peer, &body) else {
            return answer_caller(turn, request.reply_to, Status::InvalidArgument, &[]);
        };
        let set = head.set.get();
        let service = head.service.get();
        let head = RequestHead { service, method: head.method.get(), ..request.head };
        let request = Request { head, body: Body::WithSlices(body), ..request };
        let admitted = turn.dispatcher.admit(&request);
        if let Err(refusal) = admitted {
            let status = refusal.status();
            return answer_caller(turn, request.reply_to, status, not_executed(status));
        }
        match (self.add_work(&request, slices), request.reply_to) {
            (Ok(work), Caller::Peer(token)) => {
                self.set_lender(work, Lender::There { token, peer, set });
                self.give_works(turn, service);
            }
            (Err(status), reply_to) => answer_caller(turn, reply_to, status, &[]),
            (Ok(_), _) => {}
        }
    }

    /// Another node wants the slices of a call closed.
    pub(super) fn peer_close(&mut self, turn: &mut Turn<'_, N, P>, message: BulkMessage<P>) {
        let BulkMessage { request, body } = message;
        let Caller::Peer(token) = request.reply_to else { return };
        let closing = body.as_slice().try_into().map(u64::from_le_bytes);
        let Ok(closing) = closing else {
            return answer(turn, token, Status::InvalidArgument, &[]);
        };
        let from = token.peer();
        let is_meant = |work: &Work<P>| matches!(work.lender, Lender::There { peer, set, .. } if peer == from && set == closing);
        // One that is unknown has been answered, and is closed.
        let Some(&key) = self.work_keys(is_meant).first() else {
            return answer(turn, token, Status::Ok, &[]);
        };
        if let Some(work) = self.works.get_mut(key) {
            work.closers.push(token);
        }
        self.end_work(turn, key, Status::Cancelled, Vec::new());
    }

    /// Adds a call, which waits for its provider; or says why not. It has no lender yet.
    pub(super) fn add_work(
        &mut self,
        request: &Request<'_, P>,
        slices: Vec<Granted>,
    ) -> Result<Key, Status> {
        let head = request.head;
        let offer = self.offers.get_mut(&head.service).ok_or(Status::Unimplemented)?;
        if offer.queue.len() >= QUEUE_MAX {
            return Err(Status::ResourceExhausted);
        }
        let work = Work {
            lender: Lender::Nobody,
            closers: Vec::new(),
            provider: offer.client,
            slices,
            borrowing: Borrowing::default(),
            answer: (Status::Unknown, Vec::new()),
            head,
            body: request.body.private().to_vec(),
            is_given: false,
        };
        let key = self.works.insert(work).map_err(|_| Status::ResourceExhausted)?;
        offer.queue.push_back(key);
        offer.requests += 1;
        self.work_deadlines.add(head.deadline_ns, key);
        Ok(key)
    }

    pub(super) fn set_lender(&mut self, key: Key, lender: Lender) {
        if let Some(work) = self.works.get_mut(key) {
            work.lender = lender;
        }
    }

    /// Removes a call, and what its provider has not seen of it.
    pub(super) fn drop_work(&mut self, key: Key) -> Option<Work<P>> {
        let work = self.works.remove(key)?;
        // Another process may offer the service by now.
        let offer = self.offers.get_mut(&work.head.service);
        match offer.filter(|offer| offer.client == work.provider) {
            Some(offer) if work.is_given => offer.given = offer.given.saturating_sub(1),
            Some(offer) => offer.queue.retain(|queued| *queued != key),
            None => {}
        }
        Some(work)
    }

    /// Tells of the services as they are, if it is time to.
    pub(super) fn report_offers(&mut self, turn: &mut Turn<'_, N, P>) {
        let is_nothing_told = self.offers.is_empty() && !self.has_reported;
        if turn.now_ns() < self.report_ns || is_nothing_told {
            return;
        }
        self.has_reported = !self.offers.is_empty();
        self.report_ns = turn.now_ns() + REPORT_NS;
        let reports = self.offers.iter().map(|(service, offer)| offer.report(*service));
        turn.dispatcher.services.set_lending(reports.collect());
    }

    /// Gives a provider the calls that wait for it, one for each of its polls.
    pub(super) fn give_works(&mut self, turn: &mut Turn<'_, N, P>, service: u16) {
        let Some(offer) = self.offers.get_mut(&service) else { return };
        while !offer.polls.is_empty()
            && let Some(key) = offer.queue.pop_front()
        {
            // It may have ended meanwhile.
            let Some(work) = self.works.get_mut(key).filter(|work| !work.borrowing.is_ended())
            else {
                continue;
            };
            work.is_given = true;
            offer.given += 1;
            let bytes = work.describe(key, offer.wants_extra.then(|| turn.now_ns()));
            work.body = Vec::new();
            if let Some(poll) = offer.polls.pop_front() {
                turn.reply(poll, Status::Ok, &bytes);
            }
        }
    }

    /// A provider answers a call, and may ask for the next.
    pub(super) fn serve(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        client: P::Client,
        reply_to: P::ReplyTo,
        bytes: &[u8],
    ) -> Result<Answer, Status> {
        let (head, body) =
            BulkServeHead::read_from_prefix(bytes).map_err(|_| Status::InvalidArgument)?;
        let service = head.service.get();
        let offer = self.offers.get_mut(&service).filter(|offer| offer.client == client);
        let offer = offer.ok_or(Status::FailedPrecondition)?;
        offer.wants_extra = head.flags & WANTS_EXTRA != 0;
        let answer = if head.flags & WANTS_NO_CALL == 0 {
            offer.polls.push_back(reply_to);
            Answer::Later
        } else {
            Status::Ok.into()
        };
        if head.work.get() != 0 {
            match self.own_work(client, head.work.get()) {
                Some(key) if body.len() > BODY_BYTES_MAX => {
                    self.end_work(turn, key, Status::OutOfRange, Vec::new());
                }
                Some(key) => {
                    let status = Status::from_code(head.status).unwrap_or(Status::Unknown);
                    let mut body = body.to_vec();
                    let is_late = head.flags & IS_LATE != 0
                        || self.works.get(key).is_some_and(|it| it.is_over(turn.now_ns()));
                    if status != Status::Ok && is_late {
                        // The deadline is what failed, and not the service's word.
                        self.end_work(turn, key, Status::DeadlineExceeded, Vec::new());
                    } else {
                        mark_service(&mut body, status);
                        self.end_work(turn, key, status, body);
                    }
                }
                None => turn.count(Counter::Stale, 1),
            }
        }
        self.give_works(turn, service);
        Ok(answer)
    }

    /// Whether a call that a provider was given still waits.
    pub(super) fn waits(&self, client: P::Client, word: u64) -> Result<Answer, Status> {
        self.own_work(client, word).map(|_| Status::Ok.into()).ok_or(Status::Cancelled)
    }

    /// A call that a provider was given and that has not ended, by an alleged key.
    pub(super) fn own_work(&self, client: P::Client, word: u64) -> Option<Key> {
        let key = Key::from_u64(word)?;
        let work = self.works.get(key)?;
        let is_its_own = work.provider == client && work.is_given;
        (is_its_own && !work.borrowing.is_ended()).then_some(key)
    }

    /// A call ends: no range is moved any more. Its lender is told when none is under way.
    pub(super) fn end_work(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        key: Key,
        status: Status,
        body: Vec<u8>,
    ) {
        let Some(work) = self.works.get_mut(key) else { return };
        if !work.borrowing.is_ended() {
            work.borrowing.end();
            work.answer = (status, body);
            self.stop_transfers(turn, key);
        }
        self.settle(turn, key);
    }

    /// Tells the lender, once nothing is under way, that its slices are its own again.
    pub(super) fn settle(&mut self, turn: &mut Turn<'_, N, P>, key: Key) {
        if !self.works.get(key).is_some_and(|work| work.borrowing.is_drained()) {
            return;
        }
        let Some(work) = self.drop_work(key) else { return };
        let (status, body) = work.answer;
        match work.lender {
            Lender::Here(set) => self.answered_here(turn, set, status, &body),
            Lender::There { token, .. } => answer(turn, token, status, &body),
            Lender::Nobody => {}
        }
        for token in work.closers {
            answer(turn, token, Status::Ok, &[]);
        }
    }

    pub(super) fn works_disconnected(&mut self, turn: &mut Turn<'_, N, P>, gone: PeerId) {
        let is_of =
            |work: &Work<P>| matches!(work.lender, Lender::There { peer, .. } if peer == gone);
        for key in self.work_keys(is_of) {
            self.end_work(turn, key, Status::Unavailable, Vec::new());
        }
    }

    pub(super) fn providers_gone(&mut self, turn: &mut Turn<'_, N, P>) {
        self.offers.retain(|_, offer| {
            let stays = turn.port.is_there(offer.client);
            if !stays {
                turn.dispatcher.admission.withdrawn(P::tag(offer.client));
            }
            stays
        });
        for key in self.work_keys(|work| !turn.port.is_there(work.provider)) {
            self.end_work(turn, key, Status::Unavailable, Vec::new());
        }
    }

    pub(super) fn expire_works(&mut self, turn: &mut Turn<'_, N, P>) {
        let Self { works, work_deadlines, .. } = self;
        let is_open = |key| works.get(key).is_some_and(|work| !work.borrowing.is_ended());
        for key in work_deadlines.take_due(turn.now_ns(), is_open) {
            self.end_work(turn, key, Status::DeadlineExceeded, Vec::new());
        }
    }

    fn work_keys(&self, is_wanted: impl Fn(&Work<P>) -> bool) -> Vec<Key> {
        self.works.iter().filter(|(_, work)| is_wanted(work)).map(|(key, _)| key).collect()
    }
}

/// Answers another daemon.
fn answer<N: Nic, P: ClientPort>(
    turn: &mut Turn<'_, N, P>,
    token: Token,
    status: Status,
    body: &[u8],
) {
    // A caller that is gone needs no answer.
    let _ = turn.worker.reply(token, status, body);
}

/// Answers the daemon that made a request.
fn answer_caller<N: Nic, P: ClientPort>(
    turn: &mut Turn<'_, N, P>,
    caller: Caller<P>,
    status: Status,
    body: &[u8],
) {
    if let Caller::Peer(token) = caller {
        answer(turn, token, status, body);
    }
}

/// A call of another node, if it is one. That its slices lie inside their regions, the peer's NIC checks.
fn parse(peer: PeerId, bytes: &[u8]) -> Option<(PeerCallHead, Vec<Granted>, &[u8])> {
    let (head, rest) = PeerCallHead::read_from_prefix(bytes).ok()?;
    let (heads, body) = entries::<PeerSlice>(rest, head.slices.get())?;
    let granted = |head: &PeerSlice| {
        let region = RemoteRegion::from_bytes(head.region);
        let extent = Extent::new(head.offset.get(), head.len_bytes.get(), region.len_bytes())?;
        let is_writable = head.flags.get() & IS_WRITABLE != 0;
        let slice = Slice { extent, is_writable };
        Some(Granted { slice, source: Source::There(peer, region) })
    };
    let slices: Option<Vec<_>> = heads.iter().map(granted).collect();
    Some((head, slices?, body))
}
