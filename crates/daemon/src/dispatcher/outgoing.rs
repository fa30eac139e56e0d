//! Calls to other nodes, and their ends.

use std::time::Duration;

use client::message::{PEER_HEAD_BYTES, PeerHead};
use ids::slots::Key;
use rpc::{
    BodyForm, BodyPiece, Call, CallEnd, CallError, CallId, CloseReason, Delivery, Fetch, PeerId,
    RequestId, Status, Worker,
};
use verbs::Nic;
use zerocopy::IntoBytes as _;

use crate::{
    client_port::{ClientPort, Replies as _},
    dispatcher::{
        Answer, Dispatcher, Outgoing, PendingCall, PollHandler, ReplyTo, Returned, Scratch,
        departures::tag_of,
        pieces::PIECE_BYTES,
        said::not_executed,
        shares::Charge,
        waiting::{Body, Waiting},
    },
    fair_queue::NextTurn,
    metrics::{Counter, Phase, Timing},
    request::Request,
    request_head::RequestHead,
    source::copied,
    threads::ThreadHandle,
};

/// A peer, and the heads of a request to it.
pub(super) type Addressed<'a> = (PeerId, [&'a [u8]; 2]);

impl<P: ClientPort> Dispatcher<P> {
    /// Sends a client's request to another node, or lets it wait for room.
    #[inline]
    pub(super) fn forward<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        reply_to: P::ReplyTo,
        request: &Request<'_, P>,
    ) -> Answer {
        let (call, payload) = (self.outgoing(reply_to, request), request.body.private());
        self.call_or_wait(worker, ReplyTo::Client(reply_to), call, payload).into()
    }

    #[inline]
    pub(super) fn outgoing(&self, reply_to: P::ReplyTo, request: &Request<'_, P>) -> Outgoing {
        let response_bytes = request.head.response_bytes.min(self.admission.body_bytes_max());
        let head = RequestHead { response_bytes, ..request.head };
        let client = tag_of::<P>(self.client_base, reply_to);
        Outgoing { head, client, taken_ns: self.now_ns }
    }

    /// Calls another node, or lets the call wait for room; refuses it if there is none, or no such
    /// peer.
    #[inline(always)]
    pub(super) fn call_or_wait<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        reply_to: ReplyTo<P>,
        call: Outgoing,
        payload: &[u8],
    ) -> Result<(), Returned<ReplyTo<P>>> {
        // First come, first served, among the calls of a client.
        let refusal = if self.waiting.is_idle() || self.waiting.may_try(call.head.rank, call.client)
        {
            match self.call(worker, reply_to, &call, payload) {
                Ok(()) => return Ok(()),
                Err(refusal) => refusal,
            }
        } else {
            Returned { status: Status::ResourceExhausted, reply_to }
        };
        self.wait_for_room(refusal, call, || copied(payload).map(Body::Private))
    }

    /// Lets a call wait that was refused for want of room.
    pub(super) fn wait_for_room(
        &mut self,
        refusal: Returned<ReplyTo<P>>,
        call: Outgoing,
        body: impl FnOnce() -> Option<Body<P>>,
    ) -> Result<(), Returned<ReplyTo<P>>> {
        let Returned { status, reply_to } = refusal;
        let is_short = || self.peers.is_short(call.head.rank, self.now_ns);
        let may_wait = status == Status::ResourceExhausted && !is_short();
        let body = may_wait.then(body).flatten().filter(Body::may_wait);
        let Some(body) = body else {
            self.count_end(status);
            return Err(Returned { status, reply_to });
        };
        let waiting = Waiting { reply_to, call, body };
        self.waiting.push(&mut self.held, waiting).map_err(|Waiting { reply_to, .. }| {
            self.count_end(status);
            Returned { status, reply_to }
        })
    }

    /// Makes the calls that waited, for peers that may have room now.
    #[inline(never)]
    pub(super) fn retry<N: Nic>(&mut self, replies: &mut P::Replies, worker: &mut Worker<N>) {
        let has_memory = worker.take_freed_memory() | self.long_bodies.private.take_freed();
        for rank in self.waiting.take_listed() {
            let is_copying = self.waiting.take_copying(rank);
            let has_room = self.calls.take_freed(rank) || self.waiting.is_blocked(rank);
            if has_room || has_memory || is_copying {
                self.unblock(replies, worker, rank);
            } else {
                self.waiting.relist(rank);
            }
        }
    }

    /// Makes the calls that waited for one peer, as far as that has room, and as far as their clients have
    /// not got their shares.
    fn unblock<N: Nic>(&mut self, replies: &mut P::Replies, worker: &mut Worker<N>, rank: u32) {
        // A client that has its share is asked for one call, and then it is the turn of the next.
        let mut refusals = self.waiting.clients(rank);
        while let Some((trial, waiting)) = self.waiting.next(rank) {
            if self.is_to_be_copied_later(&waiting) {
                self.waiting.put_back(rank, trial, waiting, NextTurn::Own);
                return self.waiting.mark_copying(rank);
            }
            let Waiting { reply_to, call, mut body } = waiting;
            let made = match &mut body {
                Body::Private(body) => self.call_again(worker, reply_to, &call, body),
                Body::Long(request) => self.call_long(replies, worker, reply_to, &call, request),
            };
            match made {
                Ok(()) => self.waiting.done(&mut self.held, trial),
                Err(Returned { status: Status::ResourceExhausted, reply_to })
                    if body.may_wait() =>
                {
                    if matches!(&body, Body::Long(request) if request.is_under_way()) {
                        self.waiting.mark_copying(rank);
                    }
                    self.waiting.put_back(
                        rank,
                        trial,
                        Waiting { reply_to, call, body },
                        NextTurn::Others,
                    );
                    refusals = refusals.saturating_sub(1);
                    if refusals == 0 || self.waiting.is_blocked(rank) {
                        return;
                    }
                }
                Err(Returned { status, reply_to }) => {
                    self.waiting.done(&mut self.held, trial);
                    self.count_end(status);
                    let said = not_executed(status);
                    self.answer(replies, reply_to, status, said, call.taken_ns);
                }
            }
        }
    }

    /// The call that has ended, if it is one of this dispatcher.
    #[inline]
    fn take_call(&mut self, cookie: u64) -> Option<PendingCall<P>> {
        let Some(call) = Key::from_u64(cookie).and_then(|key| self.calls.end(key)) else {
            self.tally.add(Counter::Stale, 1);
            return None;
        };
        Some(call)
    }

    /// Counts a call that ended here, without an answer of the other node.
    pub(super) fn count_end(&mut self, status: Status) {
        self.count_ends(status, 1);
    }

    /// The same, of several.
    pub(crate) fn count_ends(&mut self, status: Status, count: u64) {
        let counter = match status {
            Status::Unavailable => Counter::PeerGone,
            Status::DeadlineExceeded => Counter::Deadlines,
            Status::ResourceExhausted => Counter::Exhausted,
            Status::Cancelled => Counter::Abandoned,
            _ => return,
        };
        self.tally.add(counter, count);
    }

    /// As [`call`](Self::call), for a call that waited.
    #[inline(never)]
    fn call_again<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        reply_to: ReplyTo<P>,
        call: &Outgoing,
        payload: &[u8],
    ) -> Result<(), Returned<ReplyTo<P>>> {
        self.call(worker, reply_to, call, payload)
    }

    /// Calls another node. [`Status::ResourceExhausted`]: there is no room now. Inlined where clients call.
    #[inline(always)]
    fn call<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        reply_to: ReplyTo<P>,
        call: &Outgoing,
        payload: &[u8],
    ) -> Result<(), Returned<ReplyTo<P>>> {
        let RequestHead { rank, deadline_ns, .. } = call.head;
        if deadline_ns <= self.now_ns {
            return Err(Returned { status: Status::DeadlineExceeded, reply_to });
        }
        let charge = self.calls.charge(call);
        if let Some(thread) = self.thread_handle.owner(rank) {
            let send =
                |threads: &mut ThreadHandle, key| threads.request_call(thread, key, call, payload);
            return self.call_by(charge, reply_to, call, send);
        }
        let make = |worker: &mut Worker<N>, (peer, [head, caller]): Addressed<'_>, call: &Call| {
            worker.call_parts(peer, call, &[head, caller, payload])
        };
        self.call_peer(worker, charge, (reply_to, call), payload.len(), make)
    }

    /// Calls a node whose connection this thread has, with a body that `make` puts behind the heads.
    #[inline(always)]
    pub(super) fn call_peer<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        charge: Charge,
        (reply_to, call): (ReplyTo<P>, &Outgoing),
        len_bytes: usize,
        make: impl FnOnce(&mut Worker<N>, Addressed<'_>, &Call) -> Result<CallId, CallError>,
    ) -> Result<(), Returned<ReplyTo<P>>> {
        let rank = charge.rank;
        let Some(peer) = self.peers.get(rank) else {
            return Err(Returned { status: self.peers.absence(rank, self.now_ns), reply_to });
        };
        if !self.calls.takes_share(&charge) {
            return Err(Returned { status: Status::ResourceExhausted, reply_to });
        }
        let (head, caller) = PeerHead::new(call.head.method, &call.head.caller);
        let to = (peer, [head.as_bytes(), caller]);
        let make = |worker: &mut Worker<N>, call: &Call| make(worker, to, call);
        self.make(worker, charge, reply_to, call, len_bytes, make)
    }

    /// Stores a call that was admitted, and makes it.
    #[inline(always)]
    pub(super) fn make<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        charge: Charge,
        reply_to: ReplyTo<P>,
        call: &Outgoing,
        len_bytes: usize,
        make: impl FnOnce(&mut Worker<N>, &Call) -> Result<CallId, CallError>,
    ) -> Result<(), Returned<ReplyTo<P>>> {
        // What waited for room has less time left.
        let left_ns = call.head.deadline_ns.saturating_sub(self.now_ns);
        let key = self.calls.begin(charge, reply_to, (call.taken_ns, self.now_ns))?;
        let request = Call {
            method: call.head.service,
            response_bytes: charge.answer_bytes(),
            timeout: Duration::from_nanos(left_ns),
            cookie: key.to_u64(),
            caller: Some(call.client.number()),
        };
        match make(worker, &request) {
            Ok(_) => {
                self.tally.add(Counter::BytesOut, len_bytes as u64);
                self.peers.counts_mut(charge.rank).calls += 1;
                Ok(())
            }
            Err(error) => {
                let status = self.status_of(charge.rank, &error);
                Err(self.take_back(key, status))
            }
        }
    }

    /// A call that was stored was not made.
    #[cold]
    pub(super) fn take_back(&mut self, key: Key, status: Status) -> Returned<ReplyTo<P>> {
        let Some(PendingCall { reply_to, .. }) = self.calls.end(key) else {
            unreachable!("the call was stored just now")
        };
        Returned { status, reply_to }
    }

    /// What a call ends with that the worker refused, unless it waits for room.
    #[cold]
    pub(super) fn status_of(&mut self, rank: u32, error: &CallError) -> Status {
        match error {
            CallError::Busy(_) => {
                self.waiting.block(rank);
                Status::ResourceExhausted
            }
            CallError::NoMemory { .. } => Status::ResourceExhausted,
            CallError::NotConnected | CallError::Nested => Status::Unavailable,
            CallError::TooLong { .. } | CallError::NoPlace { .. } => Status::OutOfRange,
        }
    }
}

impl<P: ClientPort> PollHandler<'_, P> {
    /// A call was answered by the other node: counts that, and returns it.
    fn answered(
        &mut self,
        cookie: u64,
        status: Status,
        len_bytes: usize,
    ) -> Option<PendingCall<P>> {
        let dispatcher = &mut *self.dispatcher;
        let call = dispatcher.take_call(cookie)?;
        if status == Status::Ok {
            dispatcher.calls.learn(&call.charge, len_bytes);
        }
        dispatcher.tally.add(Counter::Responses, 1);
        dispatcher.tally.add(Counter::BytesIn, len_bytes as u64);
        if status == Status::DeadlineExceeded {
            dispatcher.tally.add(Counter::Deadlines, 1);
        }
        let trip_ns = dispatcher.now_ns.saturating_sub(call.called_ns);
        dispatcher.tally.record(Timing::Rtt, trip_ns);
        Some(call)
    }

    /// An answer of another node goes to its caller.
    #[inline(always)]
    fn pass_answer<N: Nic>(&mut self, cookie: u64, status: Status, body: rpc::Body<'_, N>) {
        if self.dispatcher.bulk.outcome(cookie, status, Some(&body.bytes())) {
            return;
        }
        let Some(call) = self.answered(cookie, status, body.len_bytes()) else { return };
        let Self { dispatcher, replies, .. } = self;
        match (call.reply_to, body) {
            (ReplyTo::Thread(token), rpc::Body::Owned(memory)) => {
                dispatcher.thread_handle.answer_with(token, status, core::mem::take(memory));
            }
            (to, body) => {
                if let Some(holding) = &mut dispatcher.holding
                    && matches!(to, ReplyTo::Client(_))
                {
                    let now_ns = dispatcher.now_ns;
                    return holding.take(now_ns, to, status, &body.bytes(), call.taken_ns);
                }
                dispatcher.answer(replies, to, status, &body.bytes(), call.taken_ns);
            }
        }
    }

    /// All pieces of an answer of another node were put where its caller reads it.
    #[cold]
    fn finish_answer(&mut self, cookie: u64, len_bytes: usize) {
        let Some(call) = self.answered(cookie, Status::Ok, len_bytes) else { return };
        let Self { dispatcher, replies, .. } = self;
        match call.reply_to {
            ReplyTo::Client(to) if !call.is_torn => {
                replies.reply_stored(to, len_bytes);
                dispatcher.count_reply(Status::Ok, call.taken_ns);
            }
            // There was no memory for it, or its client is gone. It was executed, which
            // `Status::ResourceExhausted` would deny.
            to => {
                let status = Status::Unavailable;
                dispatcher.answer(replies, to, status, &[], call.taken_ns);
            }
        }
    }

    /// A call has ended without an answer of the other node.
    #[cold]
    fn end_unanswered(&mut self, cookie: u64, status: Status) {
        let Self { dispatcher, replies, .. } = self;
        if dispatcher.bulk.outcome(cookie, status, None) {
            return;
        }
        let Some(call) = dispatcher.take_call(cookie) else { return };
        let status = match status {
            // The latter: there was no memory to reach the peer.
            Status::DeadlineExceeded | Status::ResourceExhausted => status,
            // Its client is gone, and whatever it is told reaches nobody.
            Status::Cancelled if matches!(call.reply_to, ReplyTo::Nobody) => status,
            // The connection ended, whoever ended it. The peer may have executed the request.
            _ => Status::Unavailable,
        };
        dispatcher.count_end(status);
        dispatcher.peers.counts_mut(call.charge.rank).unanswered += 1;
        dispatcher.answer(replies, call.reply_to, status, &[], call.taken_ns);
    }
}

impl<N: Nic, P: ClientPort> rpc::Handler<N> for PollHandler<'_, P> {
    // Inlined, a caller that has one kind of body has one arm, and nothing to drop.
    #[inline(always)]
    fn request(&mut self, worker: &mut Worker<N>, request: rpc::Request, body: rpc::Body<'_, N>) {
        let Self { dispatcher, replies, scratch: Scratch { answer, .. }, .. } = self;
        dispatcher.tally.add(Counter::Incoming, 1);
        let len_bytes = body.len_bytes().saturating_sub(PEER_HEAD_BYTES);
        dispatcher.tally.add(Counter::BytesIn, len_bytes as u64);
        match body {
            rpc::Body::Copied(body) => {
                dispatcher.serve_peer(replies, worker, request, body, answer);
            }
            rpc::Body::Owned(memory) => {
                dispatcher.serve_peer_in_pieces(replies, worker, request, memory, answer);
            }
            rpc::Body::Landed(landed) => {
                dispatcher.serve_landed(replies, worker, request, landed);
            }
        }
    }

    #[inline(always)]
    fn ended(&mut self, _: &mut Worker<N>, cookie: u64, end: CallEnd<'_, N>) {
        match end {
            CallEnd::Answered(status, body) => self.pass_answer(cookie, status, body),
            CallEnd::InPieces(len_bytes) => self.finish_answer(cookie, len_bytes),
            CallEnd::Unanswered(status) => self.end_unanswered(cookie, status),
        }
    }

    /// Long bodies go on from where they land if somebody waits for them there.
    fn wants(&mut self, fetch: Fetch) -> Delivery {
        let mut delivery = Delivery::default();
        match fetch {
            Fetch::Request(service, len_bytes) => {
                if len_bytes > PIECE_BYTES
                    && self.replies.takes_parts(len_bytes)
                    && self.dispatcher.services.is_polled(service)
                {
                    delivery.form = BodyForm::Landed;
                }
            }
            Fetch::Answer(cookie, len_bytes) => {
                if let Some(call) = self.dispatcher.calls.get(cookie) {
                    delivery.account = call.charge.account();
                    if matches!(call.reply_to, ReplyTo::Client(_))
                        && self.replies.takes_parts(len_bytes)
                    {
                        delivery.form = BodyForm::Pieces;
                    }
                }
            }
        }
        delivery
    }

    fn piece(&mut self, cookie: u64, piece: &BodyPiece<'_, N>) {
        let Self { dispatcher, replies, .. } = self;
        let Some(call) = dispatcher.calls.get_mut(cookie) else { return };
        let ReplyTo::Client(to) = call.reply_to else { return };
        // If this panics, the part is missing.
        let was_torn = core::mem::replace(&mut call.is_torn, true);
        let put = replies.put_part(to, piece.body_bytes(), piece.range(), |answer| {
            // There is room for the whole piece.
            let _ = piece.put_to(answer);
        });
        call.is_torn = was_torn || put.is_err();
        dispatcher.mover.copied_bytes += piece.range().len() as u64;
    }

    fn cancelled(&mut self, worker: &mut Worker<N>, peer: PeerId, request: RequestId) {
        self.dispatcher.cancel(self.replies, worker, peer, request);
    }

    fn closed(&mut self, worker: &mut Worker<N>, peer: PeerId, reason: CloseReason) {
        self.dispatcher.bulk.disconnected(peer);
        self.dispatcher.cancel_all_of(self.replies, worker, peer);
        // One that this side closed is forgotten already.
        if let Some(rank) = self.dispatcher.peers.rank_of(peer) {
            if matches!(reason, CloseReason::NoMemory(_)) {
                self.dispatcher.lack_memory(rank);
            }
            self.dispatcher.broken.push((rank, reason));
        }
    }

    fn posting(&mut self) {
        self.has_posted = true;
        self.watch.ended(&mut self.dispatcher.tally, &[Phase::Nic]);
    }
}
