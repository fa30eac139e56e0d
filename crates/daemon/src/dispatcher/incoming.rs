//! Requests for this node: for functions of the embedding program, for processes that provide a
//! service, and for the daemon itself.

use client::bulk::message::method as bulk;
use client::message::{
    CallHead, CallerHead, DAEMON, DETAIL_BYTES_MAX, PeerHead, ServeHead, method,
};
use rpc::{Request, Status, Token, Worker};
use slots::Key;
use verbs::Nic;
use zerocopy::FromBytes as _;

use crate::{
    client_port::{ClientPort, Replies as _},
    dispatcher::{
        Answer, Caller, Dispatcher, Refusal, ReplyTo,
        giving::Requester,
        provider_calls::Server,
        said::{context_of, mark_service, not_executed},
    },
    limits::CallerId,
    members::{OfferError, Offered},
    metrics::{Counter, Timing},
    rights::Act,
    services::{Inbound, Served},
};

impl<P: ClientPort> Dispatcher<P> {
    /// A request for a service of this node, by a client of this node: no NIC is involved.
    pub(super) fn serve_local(
        &mut self,
        reply_to: P::ReplyTo,
        head: &CallHead,
        payload: &[u8],
        replies: &mut P::Replies,
    ) -> Answer {
        let service = head.service.get();
        let context = context_of(&self.who);
        let (rank, method) = (self.rank_info.rank(), head.method.get());
        let inbound = Inbound { rank, method, body: payload, context, cancellation: None };
        match self.services.serve(service, &inbound, &mut self.body) {
            Some(Served::Answered(status)) => {
                self.count_status(status);
                mark_service(&mut self.body, status);
                if let Some(share) = self.room_for_pieces(status)
                    && replies.takes_parts(self.body.len())
                    && self.answer_client_in_pieces(reply_to, head, share)
                {
                    return Answer::Later;
                }
                Answer::Now(status)
            }
            Some(served) => {
                let from = self.requester(reply_to, head);
                match self.hand_over(replies, service, &inbound, from, &served) {
                    Ok(()) => Answer::Later,
                    Err(Refusal { status, .. }) => self.refuse(status),
                }
            }
            None => {
                self.tally.add(Counter::NoService, 1);
                Answer::Now(Status::Unimplemented)
            }
        }
    }

    /// The answer to a request that was not handed on.
    pub(super) fn refuse(&mut self, status: Status) -> Answer {
        self.body.clear();
        self.body.extend_from_slice(not_executed(status));
        Answer::Now(status)
    }

    pub(super) fn deadline_ns(&self, timeout_us: u32) -> u64 {
        self.now_ns.saturating_add(self.timeout_ns(timeout_us))
    }

    /// A request of another node: answered now, or by a provider or another thread.
    #[inline]
    pub(super) fn serve_peer<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        request: Request<'_>,
    ) {
        let Request { token, method: service, timeout_us, body, .. } = request;
        self.body.clear();
        let status = match self.inbound_of_peer(&token, body) {
            Err(status) => status,
            Ok(inbound) if service == DAEMON && is_bulk(inbound.method) => {
                let Inbound { rank, method, body, .. } = inbound;
                return self.bulk.peer_request(token, rank, method, timeout_us, body);
            }
            Ok(inbound) if service == DAEMON => {
                if inbound.method == method::PING {
                    return self.reply_peer(worker, token, Status::Ok, inbound.body, self.now_ns);
                }
                match inbound.method {
                    method::DESCRIBE => self.describe(inbound.body),
                    _ => Status::PermissionDenied,
                }
            }
            Ok(_) if !self.may_come(service) => {
                self.body.extend_from_slice(not_executed(Status::PermissionDenied));
                Status::PermissionDenied
            }
            Ok(_) if self.is_draining => {
                self.body.extend_from_slice(not_executed(Status::Unavailable));
                Status::Unavailable
            }
            Ok(inbound) => match self.services.serve(service, &inbound, &mut self.body) {
                Some(Served::Answered(status)) => {
                    if let Some(share) = self.room_for_pieces(status) {
                        let (of, deadline_ns) =
                            ((inbound.rank, service), self.deadline_ns(timeout_us));
                        return self.answer_peer_in_pieces(worker, token, of, deadline_ns, share);
                    }
                    self.count_status(status);
                    mark_service(&mut self.body, status);
                    status
                }
                Some(served) => {
                    let (caller, caller_id) = (Caller::Peer(token), CallerId::Rank(inbound.rank));
                    let from =
                        Requester { caller, caller_id, deadline_ns: self.deadline_ns(timeout_us) };
                    let handed = self.hand_over(replies, service, &inbound, from, &served);
                    return self.refuse_peer(worker, handed);
                }
                None => {
                    self.tally.add(Counter::NoService, 1);
                    Status::Unimplemented
                }
            },
        };
        let body = core::mem::take(&mut self.body);
        self.reply_peer(worker, token, status, &body, self.now_ns);
        self.body = body;
    }

    #[inline]
    pub(super) fn inbound_of_peer<'a>(
        &mut self,
        token: &Token,
        body: &'a [u8],
    ) -> Result<Inbound<'a>, Status> {
        let (method, who, body) = PeerHead::read(body).ok_or(Status::InvalidArgument)?;
        let rank = self.peers.rank_of(token.peer()).ok_or(Status::Unavailable)?;
        self.peers.counts_mut(rank).requests += 1;
        self.who = who;
        let context = context_of(&self.who);
        Ok(Inbound { rank, method, body, context, cancellation: None })
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
        client: P::Client,
        reply_to: P::ReplyTo,
        head: &CallHead,
        payload: &[u8],
        replies: &mut P::Replies,
    ) -> Answer {
        let method = head.method.get();
        Answer::Now(match method {
            method::PING => {
                self.body.extend_from_slice(payload);
                Status::Ok
            }
            method::WHO => {
                self.body.extend_from_slice(&self.rank_info.rank().to_le_bytes());
                self.body.extend_from_slice(&self.rank_info.size().to_le_bytes());
                Status::Ok
            }
            method::REGISTER => match Offered::read(payload) {
                Some(offered) => {
                    match self.provide(offered, client, replies.process_of(reply_to)) {
                        Ok(()) => Status::Ok,
                        Err(OfferError::Denied(_)) => Status::PermissionDenied,
                        Err(OfferError::Mismatch(_)) => Status::FailedPrecondition,
                        Err(OfferError::TooMany(_)) => Status::ResourceExhausted,
                        Err(_) => Status::AlreadyExists,
                    }
                }
                None => Status::InvalidArgument,
            },
            method::DESCRIBE => self.describe(payload),
            method::REPORT => return self.serve_report(reply_to, head, payload, replies),
            method::SERVE => {
                return match self.serve_provider(worker, client, reply_to, payload, replies) {
                    Ok(()) => Answer::Later,
                    Err(refused) => Answer::Now(refused),
                };
            }
            method::WATCH => {
                return match self.watch(client, reply_to, payload, replies) {
                    Ok(()) => Answer::Later,
                    Err(refused) => Answer::Now(refused),
                };
            }
            _ if is_bulk(method) => {
                self.bulk.request(client, reply_to, method, payload);
                return Answer::Later;
            }
            _ => Status::Unimplemented,
        })
    }

    /// Says what a service is.
    fn describe(&mut self, payload: &[u8]) -> Status {
        match payload.try_into().map(u16::from_le_bytes) {
            Ok(service) if self.services.describe(service, &mut self.body) => Status::Ok,
            Ok(_) => Status::Unimplemented,
            Err(_) => Status::InvalidArgument,
        }
    }

    fn provide(
        &mut self,
        offered: Offered,
        client: P::Client,
        process: Option<ipc::ClientProcess>,
    ) -> Result<(), OfferError> {
        if !self.services.rights().allows(Act::Offer, offered.service, process) {
            return Err(OfferError::Denied(offered.service));
        }
        self.services.provide(offered, client, self.held.limits().services_per_client)
    }

    /// A provider answers, and polls for the next request.
    fn serve_provider<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        client: P::Client,
        reply_to: P::ReplyTo,
        payload: &[u8],
        replies: &mut P::Replies,
    ) -> Result<(), Status> {
        let (head, answer) =
            ServeHead::read_from_prefix(payload).map_err(|_| Status::InvalidArgument)?;
        let service = head.service.get();
        if let Some(key) = self.answered_by(client, &head)? {
            let status = Status::from_code(head.status).unwrap_or(Status::Unknown);
            self.count_status(status);
            if status == Status::Ok {
                self.end_provider_call(replies, worker, key, status, answer);
            } else {
                let mut said = answer[..answer.len().min(DETAIL_BYTES_MAX)].to_vec();
                mark_service(&mut said, status);
                self.end_provider_call(replies, worker, key, status, &said);
            }
        } else if head.work.get() != 0 {
            self.tally.add(Counter::Stale, 1);
        }
        self.poll_again(replies, service, (client, reply_to), head.work.get() != 0);
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
        (client, reply_to): (P::Client, P::ReplyTo),
        has_answered: bool,
    ) {
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
            let queue = (call.service, call.server);
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

/// Whether a method of the daemon is about bulk memory.
fn is_bulk(method: u16) -> bool {
    (bulk::FIRST..=bulk::LAST).contains(&method)
}

/// A client as the kernel knows it, and its trace.
pub(super) fn caller_head(process: Option<ipc::ClientProcess>, trace: u64) -> CallerHead {
    let (uid, pid) = process.map_or((0, 0), |process| (process.uid, process.pid));
    CallerHead { uid: uid.into(), pid: pid.into(), trace: trace.into() }
}
