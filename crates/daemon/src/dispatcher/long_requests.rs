//! Long requests to other nodes on their way from where their clients put them to registered memory, piece by piece, so
//! that no request keeps the calls of others for longer than a piece takes. If another thread has the peer, they go to
//! private memory first, which that thread gets, and from there in the same way.
//!
//! A request that is copied is one of the [calls that wait](super::waiting), so it ends once, by whatever comes first:
//! its call is made, its deadline, or the loss of its client or its peer. What its client calls of the same peer
//! afterwards waits behind it. Its memory goes with it.

use client::message::PeerHead;
use rpc::{Call, CallError, Status, Worker};
use verbs::Nic;
use zerocopy::IntoBytes as _;

use crate::{
    admission::Route,
    client_port::{ClientPort, LeftRequests, Replies as _},
    dispatcher::{
        Answer, Dispatcher, ReplyTo, Returned,
        departures::tag_of,
        pieces::{PIECE_BYTES, Place, Progress, STRIP_BYTES},
        waiting::{self, Begun, LongRequest, Waiting},
    },
    request::{Body, CallHeads, Request},
    request_head::{Outgoing, RequestHead},
    source::{LeftBody, Source},
    threads::ThreadHandle,
};

/// What is copied in this turn.
#[derive(Default)]
pub(super) struct RequestCopies {
    /// A shorter request is one piece.
    left_bytes: usize,
    pieces: usize,
}

impl RequestCopies {
    /// A turn begins.
    #[inline]
    pub(super) fn begin_turn(&mut self) {
        self.left_bytes = PIECE_BYTES;
    }
}

impl<P: ClientPort> Dispatcher<P> {
    /// Pieces of requests that were copied since the last question.
    #[inline]
    pub(crate) fn take_request_pieces(&mut self) -> usize {
        core::mem::take(&mut self.request_copies.pieces)
    }

    /// The requests that this thread copies itself if they are long.
    pub(crate) fn left_requests(&self) -> LeftRequests {
        let functions = self.services.functions();
        LeftRequests { own: self.rank_info.rank(), size: self.rank_info.size(), functions }
    }

    /// Whether a call that waits is to be copied in a later turn, because this one has copied enough.
    pub(super) fn is_to_be_copied_later(&self, waiting: &Waiting<P>) -> bool {
        let is_copied = |body: &waiting::Body<P>| match body {
            waiting::Body::Private(_) => true,
            waiting::Body::Long(request) => request.moving.is_copied(),
        };
        self.request_copies.left_bytes == 0 && !is_copied(&waiting.body)
    }

    /// A long request that lies where its client put it.
    #[cold]
    pub(super) fn serve_left_request<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        from: P::ReplyTo,
        (head, len_bytes): (&[u8], usize),
        replies: &mut P::Replies,
        (copy, answer): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Answer {
        let Some(heads) = CallHeads::read(head) else {
            return Answer::Now(Status::InvalidArgument);
        };
        let head_bytes = heads.len_bytes;
        let len_bytes = len_bytes.saturating_sub(head_bytes);
        let left = || Source::Left(LeftBody { from, head_bytes, len_bytes });
        let request = self.request_of(replies, from, &heads, Body::Long(left()));
        let route = match self.admit(&request) {
            Ok(route) => route,
            Err(refusal) => return refusal.into(),
        };
        if self.is_copied_at_once(from, route, &request) {
            let whole: LeftBody<P> = LeftBody { from, head_bytes, len_bytes };
            if route == Route::There
                && self.has_connection(request.head.rank)
                && let Some(body) = whole.lend(replies, 0..len_bytes)
            {
                return self.forward_lent(worker, from, &request, body).into();
            }
            copy.clear();
            let part = head_bytes..head_bytes + len_bytes;
            if copy.try_reserve(len_bytes).is_err() || replies.read_left(from, part, copy).is_err()
            {
                return Answer::Refused(Status::ResourceExhausted);
            }
            self.mover.copied_bytes += len_bytes as u64;
            let request = Request { body: Body::Private(copy), ..request };
            return self.serve_admitted(worker, from, route, &request, replies, answer);
        }
        if route != Route::There {
            return self.serve_long(replies, request).into();
        }
        let call = self.outgoing(from, &request);
        let long = LongRequest::new(left(), None);
        let reply_to = ReplyTo::Client(from);
        self.call_long_or_wait(worker, (reply_to, call), long, replies).into()
    }

    /// Whether a request is copied as a whole: it is short and need not wait for others, or a function, or the daemon,
    /// gets it.
    fn is_copied_at_once(
        &mut self,
        from: P::ReplyTo,
        route: Route,
        request: &Request<'_, P>,
    ) -> bool {
        let is_short = request.body.len_bytes() <= STRIP_BYTES;
        match route {
            Route::Daemon => true,
            Route::Here => is_short || self.services.has_function(request.head.service),
            Route::There => {
                let client = tag_of::<P>(self.client_base, from);
                is_short && self.waiting.may_try(request.head.rank, client)
            }
        }
    }

    /// Another thread asks for a call to a node, with a body that it gathered.
    pub(super) fn call_for_thread<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        (reply_to, call): (ReplyTo<P>, Outgoing),
        body: Vec<u8>,
        replies: &mut P::Replies,
    ) -> Result<(), Returned<ReplyTo<P>>> {
        let is_long = body.len() > PIECE_BYTES;
        let share = if is_long { self.long_bodies.private.take(body.len()) } else { None };
        if share.is_some() {
            let request = LongRequest::new(Source::Private(body.into()), share);
            return self.call_long_or_wait(worker, (reply_to, call), request, replies);
        }
        let made = self.call_or_wait(worker, reply_to, call, &body);
        self.thread_handle.keep(body);
        made
    }

    /// Copies the first piece at once if no other request is being copied.
    fn call_long_or_wait<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        (reply_to, call): (ReplyTo<P>, Outgoing),
        mut request: LongRequest<P>,
        replies: &mut P::Replies,
    ) -> Result<(), Returned<ReplyTo<P>>> {
        let rank = call.head.rank;
        let is_its_turn = !self.waiting.is_copying() && self.waiting.may_try(rank, call.client);
        let refusal = if is_its_turn {
            match self.call_long(replies, worker, reply_to, &call, &mut request) {
                Ok(()) => return Ok(()),
                Err(refusal) => refusal,
            }
        } else {
            Returned { status: Status::ResourceExhausted, reply_to }
        };
        // Else it waits for what the peer has not got, as short ones do.
        let is_to_be_copied = !is_its_turn || request.is_under_way();
        self.wait_for_room(refusal, call, || Some(waiting::Body::Long(Box::new(request))))?;
        if is_to_be_copied {
            self.waiting.mark_copying(rank);
        }
        Ok(())
    }

    /// Copies what this turn may of a request, and calls the peer when that was the last piece.
    /// [`Status::ResourceExhausted`]: it was not, or there is no room now.
    pub(super) fn call_long<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        reply_to: ReplyTo<P>,
        call: &Outgoing,
        request: &mut LongRequest<P>,
    ) -> Result<(), Returned<ReplyTo<P>>> {
        if call.head.deadline_ns <= self.now_ns {
            return Err(Returned { status: Status::DeadlineExceeded, reply_to });
        }
        if let Err(status) = self.copy_request(replies, worker, call, request) {
            return Err(Returned { status, reply_to });
        }
        let len_bytes = request.moving.source.len_bytes();
        let charge = self.calls.charge(call);
        match (&mut request.begun, self.thread_handle.owner(call.head.rank)) {
            (Some(Begun::Thread(body)), Some(thread)) => {
                let send = |threads: &mut ThreadHandle, key| {
                    threads.request_call_with(thread, key, call, body)
                };
                self.call_by(charge, reply_to, call, send)
            }
            (Some(Begun::Peer(begun)), _) if self.calls.takes_share(&charge) => {
                let make = |worker: &mut Worker<N>, call: &Call| worker.finish_call(begun, call);
                self.make(worker, charge, reply_to, call, len_bytes, make)
            }
            _ => Err(Returned { status: Status::ResourceExhausted, reply_to }),
        }
    }

    /// Takes the memory that a request is copied to.
    fn begin_request<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        (call, heads): (&Outgoing, &[u8]),
        request: &mut LongRequest<P>,
    ) -> Result<(), Status> {
        let RequestHead { rank, service, .. } = call.head;
        if self.thread_handle.owner(rank).is_some() {
            return request.begin_private(&self.long_bodies.private);
        }
        let peer = self.peers.get(rank);
        let peer = peer.ok_or_else(|| self.peers.absence(rank, self.now_ns))?;
        let caller_number = Some(call.client.number());
        let first = Call { method: service, caller: caller_number, ..Call::default() };
        let begun =
            worker.begin_call(peer, &first, heads.len() + request.moving.source.len_bytes());
        request.is_beyond_memory = matches!(begun, Err(CallError::NoMemory { .. }))
            && worker.large_memory().used_bytes == 0;
        let begun = begun.map_err(|error| self.status_of(rank, &error))?;
        worker.put_call(&begun, 0, heads).map_err(|error| self.status_of(rank, &error))?;
        request.begun = Some(Begun::Peer(begun));
        Ok(())
    }

    fn copy_request<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        call: &Outgoing,
        request: &mut LongRequest<P>,
    ) -> Result<(), Status> {
        let (head, caller) = PeerHead::new(call.head.method, &call.head.caller);
        let heads = [head.as_bytes(), caller].concat();
        if request.begun.is_none() && self.request_copies.left_bytes > 0 {
            self.begin_request(worker, (call, &heads), request)?;
        }
        let LongRequest { moving, begun: Some(begun), .. } = request else {
            return Err(Status::ResourceExhausted);
        };
        let place = match begun {
            Begun::Peer(begun) => Place::Call(begun, heads.len()),
            Begun::Thread(memory) => Place::Memory(memory),
        };
        let RequestCopies { left_bytes, pieces } = &mut self.request_copies;
        *pieces += usize::from(*left_bytes > 0 && !moving.is_copied());
        match self.mover.copy((replies, worker), moving, place, left_bytes)? {
            Progress::Whole => Ok(()),
            Progress::Part => Err(Status::ResourceExhausted),
        }
    }
}
