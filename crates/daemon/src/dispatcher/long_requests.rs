//! Long requests to other nodes on their way from where their clients put them to registered memory, piece by piece, so
//! that no request keeps the calls of others for longer than a piece takes.
//!
//! A request that is copied is one of the [calls that wait](super::waiting), so it ends once, by whatever comes first:
//! its call is made, its deadline, or the loss of its client or its peer. What its client calls of the same peer
//! afterwards waits behind it. Its memory goes with it.

use client::message::{CALL_HEAD_BYTES, CallExtra, CallHead, HAS_EXTRA, PeerHead};
use rpc::{Call, CallError, Status, Worker};
use verbs::Nic;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    client_port::{ClientPort, Outgoing, Replies},
    dispatcher::{
        Answer, Dispatcher, Refusal, ReplyTo, STRIP_BYTES,
        incoming::caller_head,
        waiting::{Body, LongRequest, Waiting},
    },
    metrics::Counter,
    rights::Act,
};

/// Bytes that are copied in one turn, of all requests: some tens of microseconds. A shorter request is one piece.
const PIECE_BYTES: usize = 128 << 10;

/// What is copied in this turn.
#[derive(Default)]
pub(super) struct RequestCopies {
    left_bytes: usize,
    pieces: usize,
    /// Through which pieces go.
    strip: Vec<u8>,
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

    /// Whether a call that waits is to be copied in a later turn, because this one has copied enough.
    pub(super) fn is_to_be_copied_later(&self, waiting: &Waiting<P>) -> bool {
        let is_copied = |body: &Body<P>| match body {
            Body::Private(_) => true,
            Body::Left(request) => request.is_copied(),
        };
        self.request_copies.left_bytes == 0 && !is_copied(&waiting.body)
    }

    /// A long request that lies where its client put it.
    #[cold]
    pub(super) fn serve_left_request<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        (client, from): (P::Client, P::ReplyTo),
        (head, len_bytes): (&[u8], usize),
        replies: &mut P::Replies,
    ) -> Answer {
        let Ok((mut head, rest)) = CallHead::read_from_prefix(head) else {
            return Answer::Now(Status::InvalidArgument);
        };
        let rank = head.rank.get();
        let (tag, is_of_peer) = (self.outgoing(client, &head).client, self.own_peers().has(rank));
        if !is_of_peer || len_bytes <= STRIP_BYTES && self.waiting.may_try(rank, tag) {
            return self.copy_request_at_once(worker, (client, from), len_bytes, replies);
        }
        self.who = caller_head(replies.process_of(from), 0);
        let mut head_bytes = CALL_HEAD_BYTES;
        if head.response_bytes.get() & HAS_EXTRA != 0 {
            let Ok((extra, _)) = CallExtra::read_from_prefix(rest) else {
                return Answer::Now(Status::InvalidArgument);
            };
            head.response_bytes = (head.response_bytes.get() & !HAS_EXTRA).into();
            self.who.trace = extra.trace;
            head_bytes += size_of::<CallExtra>();
        }
        self.tally.add(Counter::RequestsRemote, 1);
        let rights = self.services.rights();
        let service = head.service.get();
        if rights.is_limited(Act::Call, service)
            && !rights.allows(Act::Call, service, replies.process_of(from))
        {
            return self.refuse(Status::PermissionDenied);
        }
        if self.is_draining {
            return self.refuse(Status::Unavailable);
        }
        let (body_bytes, done_bytes) = (len_bytes.saturating_sub(head_bytes), 0);
        let (begun, is_beyond_memory) = (None, false);
        let request =
            LongRequest { from, head_bytes, body_bytes, done_bytes, begun, is_beyond_memory };
        let call = self.outgoing(client, &head);
        match self.call_long_or_wait(worker, rank, call, request, replies) {
            Ok(()) => Answer::Later,
            Err(status) => self.refuse(status),
        }
    }

    /// A request that fits the ring of its peer, or is for somebody else.
    fn copy_request_at_once<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        (client, from): (P::Client, P::ReplyTo),
        len_bytes: usize,
        replies: &mut P::Replies,
    ) -> Answer {
        let mut copy = core::mem::take(&mut self.copy);
        copy.clear();
        let has_room = copy.try_reserve(len_bytes).is_ok();
        let answer = if has_room && replies.read_left(from, 0..len_bytes, &mut copy) {
            self.serve(worker, client, from, &copy, replies)
        } else {
            self.refuse(Status::ResourceExhausted)
        };
        self.copy = copy;
        answer
    }

    /// Copies the first piece at once if no other request is being copied.
    fn call_long_or_wait<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        rank: u32,
        call: Outgoing,
        mut request: LongRequest<P>,
        replies: &mut P::Replies,
    ) -> Result<(), Status> {
        let reply_to = ReplyTo::Client(request.from);
        let is_its_turn = !self.waiting.is_copying() && self.waiting.may_try(rank, call.client);
        let refusal = if is_its_turn {
            match self.call_long(replies, worker, rank, reply_to, &call, &mut request) {
                Ok(()) => return Ok(()),
                Err(refusal) => refusal,
            }
        } else {
            Refusal { status: Status::ResourceExhausted, reply_to }
        };
        // Else it waits for what the peer has not got, as short ones do.
        let is_to_be_copied = !is_its_turn || request.is_under_way();
        let waited = self.wait_for_room(refusal, rank, call, || Some(Body::Left(request)));
        waited.map_err(|refusal| refusal.status)?;
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
        rank: u32,
        reply_to: ReplyTo<P>,
        call: &Outgoing,
        request: &mut LongRequest<P>,
    ) -> Result<(), Refusal<ReplyTo<P>>> {
        if call.deadline_ns <= self.now_ns {
            return Err(Refusal { status: Status::DeadlineExceeded, reply_to });
        }
        if let Err(status) = self.copy_request(replies, worker, rank, call, request) {
            return Err(Refusal { status, reply_to });
        }
        let Some(begun) = &request.begun else {
            return Err(Refusal { status: Status::ResourceExhausted, reply_to });
        };
        let charge = self.shares.charge(rank, call.client, call.service, call.response_bytes);
        if !self.admit(&charge) {
            return Err(Refusal { status: Status::ResourceExhausted, reply_to });
        }
        let make = |worker: &mut Worker<N>, call: &Call| worker.finish_call(begun, call);
        self.make(worker, charge, reply_to, call, request.body_bytes, make)
    }

    fn copy_request<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        rank: u32,
        call: &Outgoing,
        request: &mut LongRequest<P>,
    ) -> Result<(), Status> {
        let (head, caller) = PeerHead::new(call.method, &call.who);
        let head_bytes = head.as_bytes().len() + caller.len();
        let body_bytes = request.body_bytes;
        if request.begun.is_none() && self.request_copies.left_bytes > 0 {
            let peer = self.peers.get(rank);
            let peer = peer.ok_or_else(|| self.peers.absence(rank, self.now_ns))?;
            let caller_number = Some(call.client.number());
            let first = Call { method: call.service, caller: caller_number, ..Call::default() };
            let begun = worker.begin_call(peer, &first, head_bytes + body_bytes);
            request.is_beyond_memory = matches!(begun, Err(CallError::NoMemory { .. }))
                && worker.large_memory().used_bytes == 0;
            let begun = begun.map_err(|error| self.status_of(rank, &error))?;
            let put = worker.put_call(&begun, 0, &[head.as_bytes(), caller].concat());
            put.map_err(|error| self.status_of(rank, &error))?;
            request.begun = Some(begun);
        }
        let LongRequest { from, done_bytes, begun: Some(begun), .. } = request else {
            return Err(Status::ResourceExhausted);
        };
        let RequestCopies { left_bytes, pieces, strip } = &mut self.request_copies;
        let end = body_bytes.min(*done_bytes + *left_bytes);
        *pieces += usize::from(end > *done_bytes);
        for at in (*done_bytes..end).step_by(STRIP_BYTES) {
            let start = request.head_bytes + at;
            strip.clear();
            // Its client is gone, and whatever it is told reaches nobody.
            if !replies.read_left(*from, start..start + STRIP_BYTES.min(end - at), strip) {
                return Err(Status::Cancelled);
            }
            // The connection has ended.
            let put = worker.put_call(begun, head_bytes + at, strip);
            put.map_err(|_| Status::Unavailable)?;
        }
        *left_bytes -= end - *done_bytes;
        *done_bytes = end;
        if end < body_bytes { Err(Status::ResourceExhausted) } else { Ok(()) }
    }
}
