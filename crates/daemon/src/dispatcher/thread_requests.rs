//! Requests that threads of the daemon have for each other.

use client::message::DAEMON;
use rpc::{Status, Worker};
use slots::Key;
use verbs::Nic;

use crate::{
    client_port::ClientPort,
    dispatcher::{
        Caller, Dispatcher, Outgoing, PendingCall, Refusal, ReplyTo,
        giving::Requester,
        long_bodies::{PIECE_BYTES, Recipient},
        said::{context_of, mark_service, not_executed},
        shares::Charge,
    },
    metrics::Counter,
    services::{Inbound, QueuedRequest, Served, dequeue, requeue},
    source::{PrivateBody, Source},
    threads::{ThreadCall, ThreadEvent, ThreadHandle, ThreadRequest},
};

/// Requests and replies of other threads taken per turn.
const PER_TURN: usize = 256;

impl<P: ClientPort> Dispatcher<P> {
    /// Handles requests of other threads, and their replies; returns how many.
    #[inline]
    pub(crate) fn take_from_threads<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
    ) -> usize {
        if self.thread_handle.is_alone() { 0 } else { self.take_thread_events(replies, worker) }
    }

    #[inline(never)]
    fn take_thread_events<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
    ) -> usize {
        let mut taken = 0;
        while taken < PER_TURN
            && let Some(event) = self.thread_handle.poll()
        {
            taken += 1;
            match event {
                ThreadEvent::Request(ThreadRequest::Call { rank, call, body }, token) => {
                    let reply_to = ReplyTo::Thread(token);
                    let made = self.call_for_thread(worker, rank, (reply_to, call), body, replies);
                    if let Err(Refusal { status, reply_to: ReplyTo::Thread(token) }) = made {
                        self.thread_handle.answer(token, status, not_executed(status));
                    }
                }
                ThreadEvent::Request(
                    ThreadRequest::Serve {
                        service,
                        caller: caller_id,
                        rank,
                        method,
                        deadline_ns,
                        who,
                        asked,
                        body,
                    },
                    token,
                ) => {
                    self.who = who;
                    let caller = Caller::Thread(token, asked);
                    let from = Requester { caller, caller_id, deadline_ns };
                    self.serve_thread(replies, from, (service, rank, method), body);
                }
                // Only a notice says so.
                ThreadEvent::Request(ThreadRequest::Notice(_), token) => {
                    self.thread_handle.answer(token, Status::Unimplemented, &[]);
                }
                ThreadEvent::Notice(notice) => self.take_notice(replies, worker, notice),
                ThreadEvent::Reply { to, status, body } => {
                    self.end_thread_call(replies, worker, to, status, body);
                }
            }
        }
        taken
    }

    /// Asks the thread that owns the connection to call a node. [`Status::ResourceExhausted`]: it has no
    /// room now.
    #[inline(never)]
    pub(super) fn call_by(
        &mut self,
        charge: Charge,
        reply_to: ReplyTo<P>,
        call: &Outgoing,
        send: impl FnOnce(&mut ThreadHandle, Key) -> Result<(), Status>,
    ) -> Result<(), Refusal<ReplyTo<P>>> {
        if !self.admit(&charge) {
            return Err(Refusal { status: Status::ResourceExhausted, reply_to });
        }
        let (taken_ns, called_ns) = (call.taken_ns, self.now_ns);
        let pending = PendingCall { reply_to, charge, taken_ns, called_ns, is_torn: false };
        let key = match self.calls.insert(pending) {
            Ok(key) => key,
            Err(PendingCall { reply_to, .. }) => {
                self.shares.release(&charge);
                return Err(Refusal { status: Status::ResourceExhausted, reply_to });
            }
        };
        match send(&mut self.thread_handle, key) {
            Ok(()) => {
                self.tally.add(Counter::ThreadRequests, 1);
                Ok(())
            }
            Err(status) => {
                self.count_refusal(status);
                self.shares.release(&charge);
                if status == Status::ResourceExhausted {
                    self.waiting.block(charge.rank);
                }
                match self.calls.remove(key) {
                    Some(PendingCall { reply_to, .. }) => Err(Refusal { status, reply_to }),
                    None => unreachable!("the call was stored just now"),
                }
            }
        }
    }

    /// Asks the thread that offers a service to answer the requests that wait for it, as far as it has
    /// room.
    pub(super) fn give_to_thread<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        service: u16,
    ) {
        let Some(mut queue) = self.provider_calls.take_queue(service) else { return };
        while let Some(request) = dequeue(&mut queue, &mut self.held) {
            let QueuedRequest { key, caller, rank, method, body } = request;
            // Its caller may have given up.
            if self.provider_calls.unqueued(key).is_none() {
                continue;
            }
            let body = match body {
                Source::Private(body) => body,
                left @ Source::Left(_) => {
                    let recipient = Recipient::Thread { service, rank, method };
                    self.long_bodies.push((key, caller), left, None, recipient);
                    continue;
                }
            };
            match self.ask_thread((key, caller), service, (rank, method), body) {
                Ok(()) => {}
                Err((body, status @ Status::ResourceExhausted)) => {
                    let body = Source::Private(body);
                    let request = QueuedRequest { key, caller, rank, method, body };
                    let is_queued = requeue(&mut queue, &mut self.held, request);
                    self.provider_calls.put_queue_back(service, queue);
                    if is_queued {
                        self.provider_calls.queued(key);
                    } else {
                        let said = not_executed(status);
                        self.end_provider_call(replies, worker, key, status, said);
                    }
                    return;
                }
                Err((_, status)) => {
                    self.end_provider_call(replies, worker, key, status, not_executed(status));
                }
            }
        }
    }

    pub(super) fn count_refusal(&mut self, status: Status) {
        if status == Status::ResourceExhausted {
            self.tally.add(Counter::LaneFull, 1);
        }
    }

    /// A request that another thread took, for a service of this one.
    fn serve_thread(
        &mut self,
        replies: &mut P::Replies,
        from: Requester<P>,
        (service, rank, method): (u16, u32, u16),
        body: PrivateBody,
    ) {
        let Caller::Thread(token, asked) = from.caller else { return };
        self.body.clear();
        if service == DAEMON {
            let status = self.report(&body, replies);
            self.thread_handle.answer(token, status, &self.body);
            return;
        }
        let context = context_of(&self.who);
        let inbound = Inbound { rank, method, body: &body, context, cancellation: None };
        match self.services.serve(service, &inbound, &mut self.body) {
            Some(Served::Answered(status)) => {
                self.count_status(status);
                mark_service(&mut self.body, status);
                if status == Status::Ok && self.body.len() > PIECE_BYTES {
                    let body = core::mem::take(&mut self.body);
                    self.thread_handle.answer_with(token, status, body);
                } else {
                    self.thread_handle.answer(token, status, &self.body);
                }
            }
            Some(served @ Served::Provided) => {
                let from = Requester { caller: Caller::Thread(token, asked), ..from };
                let handed = if body.len() > PIECE_BYTES {
                    let (what, body) = ((service, rank, method), Source::Private(body));
                    self.hand_over_in_pieces(replies, what, body, from, &served)
                } else {
                    let handed = self.hand_over(replies, service, &inbound, from, &served);
                    self.thread_handle.keep(body.into_memory());
                    handed
                };
                if let Err(Refusal { status, reply_to: Caller::Thread(token, _) }) = handed {
                    self.thread_handle.answer(token, status, not_executed(status));
                }
                return;
            }
            // Its provider is gone. That another thread offers it by now is no reason to send the
            // request around.
            Some(Served::Elsewhere) | None => {
                let status = Status::Unavailable;
                self.thread_handle.answer(token, status, not_executed(status));
            }
        }
        self.thread_handle.keep(body.into_memory());
    }

    /// Another thread has answered, or refused, a request of this one.
    fn end_thread_call<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        to: ThreadCall,
        status: Status,
        body: Vec<u8>,
    ) {
        match to {
            ThreadCall::Peer { key, .. } => {
                let Some(call) = self.calls.remove(key) else { return };
                self.shares.release(&call.charge);
                if let Err((call, body)) = self.end_call_in_pieces(replies, call, status, body) {
                    self.answer(replies, call.reply_to, status, &body, call.taken_ns);
                    self.thread_handle.keep(body);
                }
            }
            // This thread may have met the deadline first.
            ThreadCall::Provider { key, .. } => {
                if let Err(body) = self.end_in_pieces(replies, worker, key, status, body) {
                    self.end_provider_call(replies, worker, key, status, &body);
                    self.thread_handle.keep(body);
                }
            }
        }
    }
}
