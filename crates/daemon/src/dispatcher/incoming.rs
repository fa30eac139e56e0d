//! Requests for this node: for functions of the embedding program, for processes that provide a
//! service, and for the daemon itself.

use client::bulk::message::method as bulk;
use client::message::{DETAIL_BYTES_MAX, HERE, PeerHead, ServeHead, method, origin};
use ids::slots::Key;
use rpc::{Status, Token, Worker};
use verbs::Nic;
use zerocopy::FromBytes as _;

use crate::{
    admission::Route,
    client_port::{ClientPort, Replies as _},
    dispatcher::{
        Answer, Dispatcher, ReplyTo,
        departures::tag_of,
        introductions::Introductions,
        provider_calls::Server,
        said::{mark_service, not_executed},
    },
    limits::CallerId,
    members::{OfferError, Offered},
    metrics::{Counter, Timing},
    request::{Body, CallHeads, Caller, Request, caller_head},
    request_head::RequestHead,
    services::Served,
    threads::ThreadNotice,
};

impl<P: ClientPort> Dispatcher<P> {
    /// A request for a service of this node, by a client of this node: no NIC is involved.
    #[inline]
    pub(super) fn serve_local(
        &mut self,
        reply_to: P::ReplyTo,
        request: &Request<'_, P>,
        replies: &mut P::Replies,
        answer: &mut Vec<u8>,
    ) -> Answer {
        let inbound = request.inbound(request.body.private());
        match self.services.serve(request.head.service, &inbound, answer) {
            Some(Served::Answered(status)) => {
                self.count_status(status);
                mark_service(answer, status);
                if let Some(share) = self.room_for_pieces(status, answer.len())
                    && replies.takes_parts(answer.len())
                    && self.answer_in_pieces(request.of_client(reply_to), answer, share).is_ok()
                {
                    return Answer::Later;
                }
                Answer::Now(status)
            }
            Some(served) => self.hand_over(replies, request.of_client(reply_to), &served).into(),
            None => {
                self.tally.add(Counter::NoService, 1);
                Answer::Now(Status::Unimplemented)
            }
        }
    }

    /// The request of a client of this thread.
    #[inline(always)]
    pub(super) fn request_of<'a>(
        &self,
        replies: &P::Replies,
        reply_to: P::ReplyTo,
        heads: &CallHeads,
        body: Body<'a, P>,
    ) -> Request<'a, P> {
        let own = self.rank_info.rank();
        let CallHeads { head, trace, .. } = heads;
        let head = RequestHead {
            caller_id: CallerId::Client(tag_of::<P>(self.client_base, reply_to)),
            caller: caller_head(replies.process_of(reply_to), *trace),
            from_rank: own,
            rank: if head.rank.get() == HERE { own } else { head.rank.get() },
            service: head.service.get(),
            method: head.method.get(),
            deadline_ns: self.deadline_ns(head.timeout_us.get()),
            response_bytes: head.response_bytes.get() as usize,
        };
        Request { reply_to: Caller::Client(reply_to), head, body }
    }

    pub(crate) fn deadline_ns(&self, timeout_us: u32) -> u64 {
        self.now_ns.saturating_add(self.timeout_ns(timeout_us))
    }

    /// A request of another node: answered now, or by a provider or another thread.
    #[inline]
    pub(super) fn serve_peer<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        request: rpc::Request,
        message: &[u8],
        answer: &mut Vec<u8>,
    ) {
        let Some((request, _)) = self.request_of_peer(worker, request, message) else { return };
        answer.clear();
        let service = request.head.service;
        let status = match self.admit(&request) {
            Err(refusal) => {
                let status = refusal.status();
                answer.extend_from_slice(not_executed(status));
                status
            }
            Ok(Route::Daemon) => return self.serve_daemon_of_peer(worker, request, answer),
            Ok(_) => {
                match self.services.serve(service, &request.inbound(request.body.private()), answer)
                {
                    Some(Served::Answered(status)) => {
                        if let Some(share) = self.room_for_pieces(status, answer.len()) {
                            return self.answer_peer_in_pieces(worker, request, answer, share);
                        }
                        self.count_status(status);
                        mark_service(answer, status);
                        status
                    }
                    Some(served) => {
                        let handed = self.hand_over(replies, request, &served);
                        return self.refuse_peer(worker, handed);
                    }
                    None => {
                        self.tally.add(Counter::NoService, 1);
                        Status::Unimplemented
                    }
                }
            }
        };
        if let Caller::Peer(token) = request.reply_to {
            self.reply_peer(worker, token, status, answer, self.now_ns);
        }
    }

    /// Another node asks this daemon itself.
    #[inline(never)]
    fn serve_daemon_of_peer<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        request: Request<'_, P>,
        answer: &mut Vec<u8>,
    ) {
        let (method, body) = (request.head.method, request.body.private());
        if is_bulk(method) {
            return self.bulk.request(request);
        }
        let Caller::Peer(token) = request.reply_to else { return };
        if method == method::PING {
            return self.reply_peer(worker, token, Status::Ok, body, self.now_ns);
        }
        let status = match method {
            method::DESCRIBE => self.describe(body, answer),
            _ => Status::PermissionDenied,
        };
        self.reply_peer(worker, token, status, answer, self.now_ns);
    }

    /// A request of another node, with a private copy of its body, and the length of its heads; `None`: it has no heads,
    /// or that node is no peer any more, and it was told so.
    #[inline]
    pub(super) fn request_of_peer<'r, N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        request: rpc::Request,
        message: &'r [u8],
    ) -> Option<(Request<'r, P>, usize)> {
        let rpc::Request { token, method: service, timeout_us } = request;
        let heads = PeerHead::read(message).ok_or(Status::InvalidArgument);
        let from_rank = self.peers.rank_of(token.peer()).ok_or(Status::Unavailable);
        let ((method, caller, body), from_rank) = match (heads, from_rank) {
            (Ok(heads), Ok(from_rank)) => (heads, from_rank),
            (Err(status), _) | (_, Err(status)) => {
                self.reply_peer(worker, token, status, &[], self.now_ns);
                return None;
            }
        };
        self.peers.counts_mut(from_rank).requests += 1;
        let head = RequestHead {
            caller_id: CallerId::Rank(from_rank),
            caller,
            from_rank,
            rank: self.rank_info.rank(),
            service,
            method,
            deadline_ns: self.deadline_ns(timeout_us),
            response_bytes: 0,
        };
        let head_bytes = message.len() - body.len();
        let reply_to = Caller::Peer(token);
        Some((Request { reply_to, head, body: Body::Private(body) }, head_bytes))
    }

    /// Answers a request of another node that came at `came_ns`.
    #[inline]
    pub(super) fn reply_peer<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        token: Token,
        status: Status,
        body: &[u8],
        came_ns: u64,
    ) {
        self.tally.record(Timing::Turnaround, self.now_ns.saturating_sub(came_ns));
        let room = if status == Status::Ok { usize::MAX } else { worker.answer_bytes_max(&token) };
        let body = &body[..body.len().min(room)];
        self.tally.add(Counter::BytesOut, body.len() as u64);
        // A caller that is gone needs no answer; one that expected less is told so.
        let _ = worker.reply(token, status, body);
    }

    pub(super) fn count_status(&mut self, status: Status) {
        if status != Status::Ok {
            self.tally.add(Counter::HandlerErrors, 1);
        }
    }

    /// A client's request for the daemon itself.
    pub(super) fn serve_daemon<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        reply_to: P::ReplyTo,
        request: Request<'_, P>,
        replies: &mut P::Replies,
        answer: &mut Vec<u8>,
    ) -> Answer {
        let payload = request.body.private();
        Answer::Now(match request.head.method {
            method::PING => {
                answer.extend_from_slice(payload);
                Status::Ok
            }
            method::WHO => {
                answer.extend_from_slice(&self.rank_info.rank().to_le_bytes());
                answer.extend_from_slice(&self.rank_info.size().to_le_bytes());
                Status::Ok
            }
            method::REGISTER => match Offered::read(payload) {
                Some(offered) => match self.provide(offered, &request, P::client_of(reply_to)) {
                    Ok(()) => {
                        answer.extend_from_slice(&self.now_ns.to_le_bytes());
                        Status::Ok
                    }
                    Err(error) => error.status(),
                },
                None => Status::InvalidArgument,
            },
            method::DESCRIBE => self.describe(payload, answer),
            method::REPORT => return self.serve_report(request, replies, answer),
            method::SERVE => {
                return match self.serve_provider(worker, reply_to, payload, replies) {
                    Ok(()) => Answer::Later,
                    Err(refused) => Answer::Now(refused),
                };
            }
            method::WATCH => {
                return match self.watch(reply_to, payload, replies) {
                    Ok(()) => Answer::Later,
                    Err(refused) => Answer::Now(refused),
                };
            }
            method::CANCEL => self.give_up_calls(reply_to, payload, replies),
            method if Introductions::<P>::is_about(method) => {
                self.introductions.request(request);
                return Answer::Later;
            }
            method if is_bulk(method) => {
                self.bulk.request(request);
                return Answer::Later;
            }
            _ => Status::Unimplemented,
        })
    }

    /// Says what a service is.
    fn describe(&mut self, payload: &[u8], answer: &mut Vec<u8>) -> Status {
        match payload.try_into().map(u16::from_le_bytes) {
            Ok(service) if self.services.describe(service, answer) => Status::Ok,
            Ok(_) => Status::Unimplemented,
            Err(_) => Status::InvalidArgument,
        }
    }

    fn provide(
        &mut self,
        offered: Offered,
        request: &Request<'_, P>,
        client: P::Client,
    ) -> Result<(), OfferError> {
        let tag = P::tag(client);
        self.admission.admit_offer(offered.service, tag, &request.head.caller)?;
        let (service, is_shared) = (offered.service, offered.is_shared());
        self.services.provide(offered, client)?;
        self.introductions.sessions.share(service);
        for thread in self.thread_handle.others().filter(|_| is_shared) {
            self.departures.tell_later(thread, [ThreadNotice::Shared(service)]);
        }
        self.admission.offered(tag);
        Ok(())
    }

    /// A provider answers, and polls for the next request.
    fn serve_provider<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        reply_to: P::ReplyTo,
        payload: &[u8],
        replies: &mut P::Replies,
    ) -> Result<(), Status> {
        let client = P::client_of(reply_to);
        let (head, answer) =
            ServeHead::read_from_prefix(payload).map_err(|_| Status::InvalidArgument)?;
        let service = head.service.get();
        if let Some(key) = self.answered_by(client, &head)? {
            let status = Status::from_code(head.status).unwrap_or(Status::Unknown);
            if status == Status::Ok {
                self.end_provider_call(replies, worker, key, status, answer);
            } else if let Some(said) = ended_at_provider(&head, status) {
                self.count_end(status);
                self.end_provider_call(replies, worker, key, status, said);
            } else {
                self.count_status(status);
                let mut said = answer[..answer.len().min(DETAIL_BYTES_MAX)].to_vec();
                mark_service(&mut said, status);
                self.end_provider_call(replies, worker, key, status, &said);
            }
        } else if head.work.get() != 0 {
            self.tally.add(Counter::Stale, 1);
        }
        self.poll_again(replies, service, reply_to, head.work.get() != 0);
        Ok(())
    }

    /// The request that a client answers: only what this very client was given, and once. It must offer the
    /// service.
    pub(super) fn answered_by(
        &mut self,
        client: P::Client,
        head: &ServeHead,
    ) -> Result<Option<Key>, Status> {
        let provider = self.services.provider(head.service.get());
        if !provider.is_some_and(|provider| provider.members.has(client)) {
            return Err(Status::FailedPrecondition);
        }
        Ok(Key::from_u64(head.work.get()).filter(|key| {
            let call = self.provider_calls.get(*key);
            call.is_some_and(|call| call.server == Server::Client(client))
        }))
    }

    /// A process waits for its next request; it may have answered one.
    pub(super) fn poll_again(
        &mut self,
        replies: &mut P::Replies,
        service: u16,
        reply_to: P::ReplyTo,
        has_answered: bool,
    ) {
        let client = P::client_of(reply_to);
        let Some(provider) = self.services.provider(service) else { return };
        if has_answered {
            provider.members.answered(client);
        }
        provider.members.add_poll(client, reply_to);
        self.give_to_provider(replies, service);
    }

    /// Answers the caller that waits for a provider.
    pub(super) fn end_provider_call<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        key: Key,
        status: Status,
        body: &[u8],
    ) {
        let Some(call) = self.provider_calls.remove(key) else { return };
        if call.is_queued {
            let queue = (call.head.service, call.server);
            self.provider_calls.forget_queued(&mut self.services, &mut self.held, queue);
        }
        match call.caller {
            Caller::Client(to) => {
                self.answer(replies, ReplyTo::Client(to), status, body, call.came_ns);
            }
            Caller::Thread(token, _) => self.thread_handle.answer(token, status, body),
            Caller::Peer(token) => self.reply_peer(worker, token, status, body, call.came_ns),
        }
    }
}

/// What is said of a request that ended at its provider without a word of the service: its caller did not wait any more.
/// `None`: the service speaks.
fn ended_at_provider(head: &ServeHead, status: Status) -> Option<&'static [u8]> {
    let is_over = matches!(status, Status::DeadlineExceeded | Status::Cancelled);
    match head.origin {
        origin::NOT_EXECUTED if is_over => Some(not_executed(status)),
        origin::ENDED if is_over => Some(&[]),
        _ => None,
    }
}

/// Whether a method of the daemon is about bulk memory.
fn is_bulk(method: u16) -> bool {
    (bulk::FIRST..=bulk::LAST).contains(&method)
}
