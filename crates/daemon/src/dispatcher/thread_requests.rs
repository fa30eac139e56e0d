//! Requests that threads of the daemon have for each other.

use ids::slots::Key;
use rpc::{Status, Worker};
use verbs::Nic;

use crate::{
    admission::Route,
    client_port::ClientPort,
    dispatcher::{
        Dispatcher, Outgoing, ReplyTo, Returned, Scratch,
        pieces::PIECE_BYTES,
        said::{mark_service, not_executed},
        shares::Charge,
    },
    metrics::Counter,
    request::{Body, Caller, Request},
    services::{Served, dequeue, requeue},
    source::{PrivateBody, Source},
    threads::{ThreadCall, ThreadEvent, ThreadHandle, ThreadRequest},
};

/// Requests and replies of other threads taken per turn.
const PER_TURN: usize = 256;

impl<P: ClientPort> Dispatcher<P> {
    /// Leads the other threads to all that they were told in this phase of the turn.
    #[inline]
    pub(crate) fn announce_to_threads(&mut self) {
        self.thread_handle.announce();
    }

    /// Handles requests of other threads, and their replies; returns how many.
    #[inline]
    pub(crate) fn take_from_threads<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        scratch: &mut Scratch,
    ) -> usize {
        if self.thread_handle.is_alone() {
            return 0;
        }
        self.take_thread_events(replies, worker, &mut scratch.answer)
    }

    #[inline(never)]
    fn take_thread_events<N: Nic>(
        &mut self,
        replies: &mut P::Replies,
        worker: &mut Worker<N>,
        answer: &mut Vec<u8>,
    ) -> usize {
        let mut taken = 0;
        while taken < PER_TURN
            && let Some(event) = self.thread_handle.poll()
        {
            taken += 1;
            match event {
                ThreadEvent::Request(ThreadRequest::Call { call, body }, token) => {
                    let reply_to = ReplyTo::Thread(token);
                    let made = self.call_for_thread(worker, (reply_to, call), body, replies);
                    if let Err(Returned { status, reply_to: ReplyTo::Thread(token) }) = made {
                        self.thread_handle.answer(token, status, not_executed(status));
                    }
                }
                ThreadEvent::Request(ThreadRequest::Serve { head, asked, body }, token) => {
                    let reply_to = Caller::Thread(token, asked);
                    let request = Request { reply_to, head, body: Body::Private(&[]) };
                    self.serve_thread(replies, request, body, answer);
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
    ) -> Result<(), Returned<ReplyTo<P>>> {
        if !self.calls.takes_share(&charge) {
            return Err(Returned { status: Status::ResourceExhausted, reply_to });
        }
        let key = self.calls.begin(charge, reply_to, (call.taken_ns, self.now_ns))?;
        match send(&mut self.thread_handle, key) {
            Ok(()) => {
                self.tally.add(Counter::ThreadRequests, 1);
                Ok(())
            }
            Err(status) => {
                self.count_refusal(status);
                if status == Status::ResourceExhausted {
                    self.waiting.block(charge.rank);
                }
                Err(self.take_back(key, status))
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
            let key = request.key;
            // Its caller may have given up.
            if self.provider_calls.unqueued(key).is_none() {
                continue;
            }
            let Err((request, status)) = self.ask_thread(request) else { continue };
            let is_full = status == Status::ResourceExhausted;
            if is_full && requeue(&mut queue, &mut self.held, request).is_ok() {
                self.provider_calls.queued(key);
            } else {
                self.end_provider_call(replies, worker, key, status, not_executed(status));
            }
            if is_full {
                return self.provider_calls.put_queue_back(service, queue);
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
        request: Request<'_, P>,
        body: PrivateBody,
        answer: &mut Vec<u8>,
    ) {
        answer.clear();
        let admitted = self.admit(&request);
        let status = match admitted {
            Err(refusal) => {
                answer.extend_from_slice(not_executed(refusal.status()));
                refusal.status()
            }
            Ok(Route::Daemon) => self.report(&body, replies, answer),
            Ok(_) => {
                match self.services.serve(request.head.service, &request.inbound(&body), answer) {
                    Some(Served::Answered(status)) => {
                        self.count_status(status);
                        mark_service(answer, status);
                        status
                    }
                    Some(served @ Served::Provided) => {
                        let handed = self.hand_over_of_thread(replies, request, body, &served);
                        if let Err(Returned { status, reply_to: Caller::Thread(token, _) }) = handed
                        {
                            self.thread_handle.answer(token, status, not_executed(status));
                        }
                        return;
                    }
                    // Its provider is gone. That another thread offers it by now is no reason to send the
                    // request around.
                    Some(Served::Elsewhere) | None => {
                        answer.extend_from_slice(not_executed(Status::Unavailable));
                        Status::Unavailable
                    }
                }
            }
        };
        self.thread_handle.keep(body.into_memory());
        let Caller::Thread(token, _) = request.reply_to else { return };
        if status == Status::Ok && answer.len() > PIECE_BYTES {
            self.thread_handle.answer_with(token, status, core::mem::take(answer));
        } else {
            self.thread_handle.answer(token, status, answer);
        }
    }

    fn hand_over_of_thread(
        &mut self,
        replies: &mut P::Replies,
        request: Request<'_, P>,
        body: PrivateBody,
        to: &Served,
    ) -> Result<(), Returned<Caller<P>>> {
        if body.len() > PIECE_BYTES {
            let request = Request { body: Body::Long(Source::Private(body)), ..request };
            return self.hand_over_in_pieces(replies, request, to);
        }
        let request = Request { body: Body::Private(&body), ..request };
        let handed = self.hand_over(replies, request, to);
        self.thread_handle.keep(body.into_memory());
        handed
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
                let Some(call) = self.calls.end(key) else { return };
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
