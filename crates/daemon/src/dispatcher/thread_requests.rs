//! Requests that threads of the daemon have for each other.

use client::message::DAEMON;
use rpc::{Status, Worker};
use verbs::Nic;

use crate::{
    client_port::ClientPort,
    dispatcher::{
        Caller, Dispatcher, Outgoing, PendingCall, Refusal, ReplyTo,
        said::{context_of, mark_service, not_executed},
        shares::Charge,
    },
    limits::CallerId,
    metrics::Counter,
    services::{Inbound, QueuedRequest, Served, dequeue, requeue},
    threads::{AskedBy, ThreadCall, ThreadEvent, ThreadRequest},
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
                    let made = self.call_or_wait(worker, rank, reply_to, call, &body);
                    if let Err(Refusal { status, reply_to: ReplyTo::Thread(token) }) = made {
                        self.thread_handle.answer(token, status, not_executed(status));
                    }
                    self.thread_handle.keep(body);
                }
                ThreadEvent::Request(
                    ThreadRequest::Serve {
                        service,
                        caller,
                        rank,
                        method,
                        deadline_ns,
                        who,
                        asked,
                        body,
                    },
                    token,
                ) => {
                    let context = context_of(&who);
                    let inbound =
                        Inbound { rank, method, body: &body, context, cancellation: None };
                    self.who = who;
                    let token = (token, asked);
                    self.serve_thread(replies, token, (service, caller), &inbound, deadline_ns);
                    self.thread_handle.keep(body);
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
        thread: usize,
        charge: Charge,
        reply_to: ReplyTo<P>,
        call: &Outgoing,
        payload: &[u8],
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
        match self.thread_handle.request_call(thread, key, charge.rank, call, payload) {
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
            let Some(call) = self.provider_calls.unqueued(key) else { continue };
            let (deadline_ns, who) = (call.deadline_ns, call.who);
            let Some(thread) = self.services.elsewhere(service) else {
                self.end_provider_call(replies, worker, key, Status::Unavailable, &[]);
                continue;
            };
            let asked = AskedBy { thread: self.thread_handle.number(), key };
            let request = ThreadRequest::Serve {
                service,
                caller,
                rank,
                method,
                deadline_ns,
                who,
                asked,
                body,
            };
            let to = ThreadCall::Provider { key, service };
            match self.thread_handle.request_serve(thread, to, request) {
                Ok(()) => self.tally.add(Counter::ThreadRequests, 1),
                Err((ThreadRequest::Serve { body, .. }, status @ Status::ResourceExhausted)) => {
                    self.count_refusal(status);
                    let request = QueuedRequest { key, caller, rank, method, body };
                    let is_queued = requeue(&mut queue, &mut self.held, request);
                    self.provider_calls.put_queue_back(service, queue);
                    if is_queued {
                        self.provider_calls.queued(key);
                    } else {
                        self.end_provider_call(replies, worker, key, status, &[]);
                    }
                    return;
                }
                Err((_, status)) => self.end_provider_call(replies, worker, key, status, &[]),
            }
        }
    }

    fn count_refusal(&mut self, status: Status) {
        if status == Status::ResourceExhausted {
            self.tally.add(Counter::LaneFull, 1);
        }
    }

    /// A request that another thread took, for a service of this one.
    fn serve_thread(
        &mut self,
        replies: &mut P::Replies,
        (token, asked): (inproc::Token, AskedBy),
        (service, caller_id): (u16, CallerId),
        inbound: &Inbound<'_>,
        deadline_ns: u64,
    ) {
        self.body.clear();
        if service == DAEMON {
            let status = self.report(inbound.body, replies);
            self.thread_handle.answer(token, status, &self.body);
            return;
        }
        match self.services.serve(service, inbound, &mut self.body) {
            Some(Served::Answered(status)) => {
                self.count_status(status);
                mark_service(&mut self.body, status);
                if self.may_be_in_pieces(status) {
                    let body = core::mem::take(&mut self.body);
                    return self.thread_handle.answer_with(token, status, body);
                }
                self.thread_handle.answer(token, status, &self.body);
            }
            Some(served @ Served::Provided) => {
                let caller = (Caller::Thread(token, asked), caller_id);
                let handed = self.hand_over(replies, service, inbound, caller, deadline_ns, served);
                if let Err(Refusal { status, reply_to: Caller::Thread(token, _) }) = handed {
                    self.thread_handle.answer(token, status, not_executed(status));
                }
            }
            // Its provider is gone. That another thread offers it by now is no reason to send the
            // request around.
            Some(Served::Elsewhere) | None => {
                self.thread_handle.answer(token, Status::Unavailable, &[]);
            }
        }
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
                if let Some(call) = self.calls.remove(key) {
                    self.shares.release(&call.charge);
                    self.answer(replies, call.reply_to, status, &body, call.taken_ns);
                }
                self.thread_handle.keep(body);
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
