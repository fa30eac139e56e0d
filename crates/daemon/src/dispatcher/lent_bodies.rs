//! Requests to other nodes, and answers to such requests, that are copied once from the memory of their processes: to
//! the batch of the peer, or to memory that the peer reads. No byte of them is looked at, because it may change meanwhile.

use client::LentBytes;
use ids::slots::Key;
use rpc::{Call, Status, Worker};
use verbs::Nic;

use crate::{
    client_port::ClientPort,
    dispatcher::{
        Dispatcher, ReplyTo, Returned, outgoing::Addressed, provider_calls::ProviderCall,
        waiting::Body,
    },
    metrics::{Counter, Timing},
    request::{Caller, Request},
    request_head::Outgoing,
    source::copied,
};

impl<P: ClientPort> Dispatcher<P> {
    /// Whether a rank is a node whose connection this thread has, or is to have.
    pub(super) fn has_connection(&self, rank: u32) -> bool {
        rank < self.rank_info.size() && self.thread_handle.owner(rank).is_none()
    }

    /// Sends a client's request to a node whose [connection](Self::has_connection) this thread has. A request
    /// that waits for room is copied, because lent bytes are valid until the next request is taken.
    pub(super) fn forward_lent<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        reply_to: P::ReplyTo,
        request: &Request<'_, P>,
        body: LentBytes<'_>,
    ) -> Result<(), Returned<ReplyTo<P>>> {
        let call = self.outgoing(reply_to, request);
        let reply_to = ReplyTo::Client(reply_to);
        // First come, first served, among the calls of a client.
        let refusal = if self.waiting.is_idle() || self.waiting.may_try(call.head.rank, call.client)
        {
            match self.call_lent(worker, (reply_to, &call), body) {
                Ok(()) => return Ok(()),
                Err(refusal) => refusal,
            }
        } else {
            Returned { status: Status::ResourceExhausted, reply_to }
        };
        self.wait_for_room(refusal, call, || copied(body).map(Body::Private))
    }

    fn call_lent<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        (reply_to, call): (ReplyTo<P>, &Outgoing),
        body: LentBytes<'_>,
    ) -> Result<(), Returned<ReplyTo<P>>> {
        if call.head.deadline_ns <= self.now_ns {
            return Err(Returned { status: Status::DeadlineExceeded, reply_to });
        }
        let charge = self.calls.charge(call);
        let make = |worker: &mut Worker<N>, (peer, heads): Addressed<'_>, call: &Call| {
            worker.call_lent(peer, call, &heads, body)
        };
        self.call_peer(worker, charge, (reply_to, call), body.len(), make)
    }

    /// A process has answered a request of another node; `false`: its caller is none, and nothing has changed.
    pub(super) fn end_lent<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        key: Key,
        answer: LentBytes<'_>,
    ) -> bool {
        let is_of_peer = |call: &ProviderCall<P>| matches!(call.caller, Caller::Peer(_));
        if !self.provider_calls.get(key).is_some_and(is_of_peer) {
            return false;
        }
        if let Some(ProviderCall { caller: Caller::Peer(token), came_ns, .. }) =
            self.provider_calls.remove(key)
        {
            self.tally.record(Timing::Turnaround, self.now_ns.saturating_sub(came_ns));
            self.tally.add(Counter::BytesOut, answer.len() as u64);
            // A caller that is gone needs no answer; one that expected less is told so.
            let _ = worker.reply_lent(token, Status::Ok, answer);
        }
        true
    }
}
