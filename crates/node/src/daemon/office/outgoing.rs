//! Calls to other nodes, and what comes of them.

use std::time::Duration;

use rpc::{Call, CallError, CloseReason, PeerId, Request, Status, Worker};
use verbs::Nic;
use zerocopy::IntoBytes as _;

use crate::{
    daemon::{
        copy::copied,
        front::{Answer, Front},
        office::{Asker, Claim, Office, Outgoing, Pending, Visit, WAITING_BYTES_MAX, Waiting},
        wire::{CallHead, PEER_HEAD_BYTES, PeerHead},
    },
    metrics::{Counter, Phase, Timing},
};

impl<F: Front> Office<F> {
    /// Sends a client's request to another node, or lets it wait for room.
    pub(super) fn forward<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        rank: u32,
        head: &CallHead,
        payload: &[u8],
    ) -> Answer<Claim> {
        let call = Outgoing {
            service: head.service.get(),
            method: head.method.get(),
            response_bytes: (head.response_bytes.get() as usize).min(self.body_bytes_max),
            taken_ns: self.now_ns,
            deadline_ns: self.now_ns.saturating_add(self.timeout_ns(head.timeout_us.get())),
        };
        match self.route(worker, rank, call, payload) {
            Ok(claim) => Answer::Later(claim),
            Err(refused) => Answer::Now(refused),
        }
    }

    /// Sends a request to another node, or lets it wait for room; refuses it if there is none, or
    /// nobody to send it to.
    #[inline(always)]
    pub(super) fn route<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        rank: u32,
        call: Outgoing,
        payload: &[u8],
    ) -> Result<Claim, Status> {
        // First come, first served.
        let refused = if self.waiting[rank as usize].is_empty() {
            match self.call(worker, rank, &call, payload) {
                Ok(()) => return Ok(Claim::Call),
                Err(refused) => refused,
            }
        } else {
            Status::ResourceExhausted
        };
        self.wait_for_room(refused, rank, call, payload)
    }

    /// Lets a request wait that was refused for want of room.
    fn wait_for_room(
        &mut self,
        refused: Status,
        rank: u32,
        call: Outgoing,
        payload: &[u8],
    ) -> Result<Claim, Status> {
        let bytes = &mut self.waiting_bytes[rank as usize];
        let may_wait =
            refused == Status::ResourceExhausted && *bytes + payload.len() <= WAITING_BYTES_MAX;
        let Some(body) = may_wait.then(|| copied(payload)).flatten() else {
            self.count_end(refused);
            return Err(refused);
        };
        *bytes += payload.len();
        if self.waiting[rank as usize].is_empty() {
            self.blocked.push(rank);
        }
        let waiting = Waiting { asker: Asker::Client(None), call, body };
        self.waiting[rank as usize].push_back(waiting);
        Ok(Claim::Waiting(rank))
    }

    /// Who waits for the call that has ended, if anybody does.
    fn take_pending(&mut self, cookie: u64) -> Option<Pending<F>> {
        let pending = self.pending.remove(cookie);
        if pending.is_none() {
            self.tally.add(Counter::Stale, 1);
        }
        pending
    }

    /// Counts a call that ended here, without an answer of the other node.
    pub(super) fn count_end(&mut self, status: Status) {
        let counter = match status {
            Status::Unavailable => Counter::PeerGone,
            Status::DeadlineExceeded => Counter::Deadlines,
            Status::ResourceExhausted => Counter::Exhausted,
            _ => return,
        };
        self.tally.add(counter, 1);
    }

    /// Calls another node; who waits for that is [settled](Self::settle) before the next call.
    /// [`Status::ResourceExhausted`]: there is no room now.
    pub(super) fn call<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        rank: u32,
        call: &Outgoing,
        payload: &[u8],
    ) -> Result<(), Status> {
        // What waited for room has less time left.
        let left_ns = call.deadline_ns.saturating_sub(self.now_ns);
        if left_ns == 0 {
            return Err(Status::DeadlineExceeded);
        }
        if let Some(thread) = self.seat.owner(rank) {
            return self.call_by(thread, rank, call, payload);
        }
        let Some(peer) = self.peers[rank as usize] else { return Err(Status::Unavailable) };
        let request = Call {
            method: call.service,
            response_bytes: call.response_bytes,
            timeout: Duration::from_nanos(left_ns),
            cookie: self.pending.next_name(),
        };
        let len_bytes = PEER_HEAD_BYTES + payload.len();
        let called = worker.call_with(peer, &request, len_bytes, |to| {
            let (head, body) = to.split_at_mut(PEER_HEAD_BYTES);
            head.copy_from_slice(PeerHead::new(call.method).as_bytes());
            body.copy_from_slice(payload);
        });
        match called {
            Ok(_) => {
                self.tally.add(Counter::BytesOut, payload.len() as u64);
                Ok(())
            }
            Err(CallError::Busy(_) | CallError::NoMemory { .. }) => Err(Status::ResourceExhausted),
            Err(CallError::NotConnected | CallError::Nested) => Err(Status::Unavailable),
            Err(CallError::TooLong { .. } | CallError::NoPlace { .. }) => Err(Status::OutOfRange),
        }
    }
}

impl<N: Nic, F: Front> rpc::Handler<N> for Visit<'_, F> {
    fn request(&mut self, worker: &mut Worker<N>, request: Request<'_>) {
        let Visit { office, .. } = self;
        office.tally.add(Counter::Incoming, 1);
        let len_bytes = request.body.len().saturating_sub(PEER_HEAD_BYTES);
        office.tally.add(Counter::BytesIn, len_bytes as u64);
        match office.serve_peer(&request) {
            Answer::Now(status) => office.reply_peer(worker, request.token, status),
            Answer::Later((inbound, served)) => {
                office.hand_over_peer(worker, request, &inbound, served);
            }
        }
    }

    fn response(&mut self, _: &mut Worker<N>, cookie: u64, status: Status, body: &[u8]) {
        let Visit { office, front, .. } = self;
        let Some(pending) = office.take_pending(cookie) else { return };
        office.tally.add(Counter::Responses, 1);
        office.tally.add(Counter::BytesIn, body.len() as u64);
        if status == Status::DeadlineExceeded {
            office.tally.add(Counter::Deadlines, 1);
        }
        let trip_ns = office.now_ns.saturating_sub(pending.called_ns);
        office.tally.record(Timing::Rtt, trip_ns);
        office.answer(front, pending.asker, status, body, pending.taken_ns);
    }

    fn ended(&mut self, _: &mut Worker<N>, cookie: u64, status: Status) {
        let Visit { office, front, .. } = self;
        let Some(pending) = office.take_pending(cookie) else { return };
        let status = match status {
            Status::DeadlineExceeded => status,
            // The daemon cancels nothing, so the connection ended, whoever ended it. What the peer was
            // asked may have been executed.
            _ => Status::Unavailable,
        };
        office.count_end(status);
        office.answer(front, pending.asker, status, &[], pending.taken_ns);
    }

    fn closed(&mut self, _: &mut Worker<N>, peer: PeerId, reason: CloseReason) {
        // One that this side closed is forgotten already.
        if let Some(rank) = self.office.rank_of(peer) {
            tracing::warn!(rank, %reason, "a connection ended");
            self.office.broken.push(rank);
        }
    }

    fn posting(&mut self) {
        self.has_posted = true;
        self.watch.ended(&mut self.office.tally, &[Phase::Nic]);
    }
}
