//! Long answers of this node: those of functions wait in private memory while they are copied, those of processes where
//! these put them.

use std::mem;

use ids::slots::Key;
use rpc::{Status, Worker};
use verbs::Nic;

use crate::{
    client_port::{AnswerHead, ClientPort, Replies},
    dispatcher::{
        Answer, Dispatcher, PendingCall, ReplyTo,
        departures::tag_of,
        long_bodies::Recipient,
        pieces::{PIECE_BYTES, STRIP_BYTES},
        provider_calls::{ProviderCall, Server},
        said::NOBODY,
    },
    limits::CallerId,
    metrics::Counter,
    request::{Caller, Request},
    request_head::RequestHead,
    source::{LeftBody, PrivateShare, Source},
};

/// An answer in private memory, and its share of that.
type PrivateAnswer = (Vec<u8>, PrivateShare);

impl<P: ClientPort> Dispatcher<P> {
    /// Room for an answer that is longer than a piece.
    #[inline]
    pub(super) fn room_for_pieces(&self, status: Status, len_bytes: usize) -> Option<PrivateShare> {
        let is_long = status == Status::Ok && len_bytes > PIECE_BYTES;
        if is_long { self.long_bodies.private.take(len_bytes) } else { None }
    }

    /// A function has answered another node at length.
    #[cold]
    pub(super) fn answer_peer_in_pieces<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        request: Request<'_, P>,
        answer: &mut Vec<u8>,
        share: PrivateShare,
    ) {
        let Caller::Peer(token) = &request.reply_to else { return };
        let caller = if answer.len() > worker.answer_bytes_max(token) {
            match self.answer_in_pieces(request, answer, share) {
                Ok(()) => return,
                Err(caller) => caller,
            }
        } else {
            request.reply_to
        };
        if let Caller::Peer(token) = caller {
            self.reply_peer(worker, token, Status::Ok, answer, self.now_ns);
        }
    }

    /// Stores the call of a request whose answer was made, and queues that, which is to be copied in pieces; hands the
    /// caller back if there are too many calls.
    #[cold]
    pub(super) fn answer_in_pieces(
        &mut self,
        request: Request<'_, P>,
        answer: &mut Vec<u8>,
        share: PrivateShare,
    ) -> Result<(), Caller<P>> {
        let head = request.head;
        let call = ProviderCall::new(request, Server::Answered, self.now_ns);
        let key = self.provider_calls.insert(call)?;
        let spare = self.long_bodies.take_spare();
        self.queue_answer((key, head), (mem::replace(answer, spare), share));
        Ok(())
    }

    fn queue_answer(&mut self, call: (Key, RequestHead), (body, share): PrivateAnswer) {
        let source = Source::Private(body.into());
        self.long_bodies.push(call, source, Some(share), Recipient::Caller(None));
    }

    /// Another thread has answered a request; hands the answer back if that is to be copied at once.
    pub(super) fn end_in_pieces<N: Nic>(
        &mut self,
        replies: &P::Replies,
        worker: &mut Worker<N>,
        key: Key,
        status: Status,
        body: Vec<u8>,
    ) -> Result<(), Vec<u8>> {
        let len_bytes = body.len();
        let Some(share) = self.room_for_pieces(status, len_bytes) else { return Err(body) };
        let call = self.provider_calls.get_mut(key);
        match call.filter(|call| takes_pieces(&call.caller, replies, worker, len_bytes)) {
            Some(call) => {
                call.server = Server::Answered;
                let head = call.head;
                self.queue_answer((key, head), (body, share));
                Ok(())
            }
            None => Err(body),
        }
    }

    /// Another thread has told what another node answered; hands call and answer back if that is to be copied at once.
    pub(super) fn end_call_in_pieces(
        &mut self,
        replies: &P::Replies,
        call: PendingCall<P>,
        status: Status,
        body: Vec<u8>,
    ) -> Result<(), (PendingCall<P>, Vec<u8>)> {
        let ReplyTo::Client(to) = call.reply_to else { return Err((call, body)) };
        let room = self.room_for_pieces(status, body.len());
        let Some(share) = room.filter(|_| replies.takes_parts(body.len())) else {
            return Err((call, body));
        };
        let head = RequestHead {
            caller_id: CallerId::Client(tag_of::<P>(self.client_base, to)),
            caller: NOBODY,
            from_rank: self.rank_info.rank(),
            rank: call.charge.rank,
            service: call.charge.service(),
            method: 0,
            // The other thread has met its deadline.
            deadline_ns: self.deadline_ns(0),
            response_bytes: 0,
        };
        let stored = ProviderCall {
            caller: Caller::Client(to),
            head,
            server: Server::Answered,
            is_queued: false,
            came_ns: call.taken_ns,
        };
        match self.provider_calls.insert(stored) {
            Ok(key) => {
                self.queue_answer((key, head), (body, share));
                Ok(())
            }
            Err(_) => Err((call, body)),
        }
    }

    /// A process answers, and polls for the next request, or calls somebody. The message lies where the process put it.
    #[cold]
    pub(super) fn serve_left<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        from: P::ReplyTo,
        (head, len_bytes): (&[u8], usize),
        replies: &mut P::Replies,
        (copy, answer): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Answer {
        let Some(AnswerHead(head)) = AnswerHead::read(head) else {
            let left = (head, len_bytes);
            return self.serve_left_request(worker, from, left, replies, (copy, answer));
        };
        let key = match self.answered_by(P::client_of(from), &head) {
            Ok(key) => key,
            Err(status) => return Answer::Now(status),
        };
        let service = head.service.get();
        let Some((key, call)) = key.and_then(|key| Some((key, self.provider_calls.get_mut(key)?)))
        else {
            self.tally.add(Counter::Stale, 1);
            self.poll_again(replies, service, from, true);
            return Answer::Later;
        };
        call.server = Server::Answered;
        let head_bytes = AnswerHead::BYTES;
        let len_bytes = len_bytes.saturating_sub(head_bytes);
        let body = LeftBody { from, head_bytes, len_bytes };
        if len_bytes > STRIP_BYTES && takes_pieces(&call.caller, replies, worker, len_bytes) {
            let call = (key, call.head);
            let recipient = Recipient::Caller(Some(service));
            self.long_bodies.push(call, Source::Left(body), None, recipient);
        } else if !call.is_queued
            && let Some(lent) = body.lend(replies, 0..len_bytes)
            && self.end_lent(worker, key, lent)
        {
            self.poll_again(replies, service, from, true);
        } else {
            copy.clear();
            let is_copied = copy.try_reserve(len_bytes).is_ok()
                && body.read(replies, 0..len_bytes, copy).is_ok();
            self.mover.copied_bytes += len_bytes as u64;
            let (status, body) =
                if is_copied { (Status::Ok, &**copy) } else { (Status::Unavailable, &[][..]) };
            self.end_provider_call(replies, worker, key, status, body);
            self.poll_again(replies, service, from, true);
        }
        Answer::Later
    }
}

/// Whether an answer can reach a caller in pieces.
fn takes_pieces<N: Nic, P: ClientPort>(
    caller: &Caller<P>,
    replies: &P::Replies,
    worker: &mut Worker<N>,
    len_bytes: usize,
) -> bool {
    match caller {
        Caller::Client(_) => replies.takes_parts(len_bytes),
        Caller::Thread(..) => true,
        Caller::Peer(token) => len_bytes > worker.answer_bytes_max(token),
    }
}
