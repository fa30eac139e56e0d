//! Calls to other nodes, and what comes of them.

use std::{mem, time::Duration};

use rpc::{Call, CallError, CloseReason, PeerId, Request, Status, Worker};
use verbs::Nic;
use zerocopy::IntoBytes as _;

use crate::{
    daemon::{
        copy::copied,
        front::Front,
        office::{
            Asker, Claim, Office, Outgoing, Pending, Stopwatch, Visit, WAITING_BYTES_MAX, Waiting,
        },
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
    ) -> Option<Status> {
        let call = Outgoing {
            service: head.service.get(),
            method: head.method.get(),
            timeout_ns: self.timeout_ns(head.timeout_us.get()),
            response_bytes: (head.response_bytes.get() as usize).min(self.body_bytes_max),
            taken_ns: self.now_ns,
        };
        match self.route(worker, rank, call, payload) {
            Ok(claim) => {
                self.claim = Some(claim);
                None
            }
            Err(refused) => Some(refused),
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
                Ok(name) => return Ok(Claim::Call(name)),
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
            let counter = match refused {
                Status::Unavailable => Counter::PeerGone,
                Status::DeadlineExceeded => Counter::Deadlines,
                _ => Counter::Exhausted,
            };
            self.recorder.add(counter, 1);
            return Err(refused);
        };
        *bytes += payload.len();
        if self.waiting[rank as usize].is_empty() {
            self.blocked.push(rank);
        }
        let deadline_ns = call.taken_ns.saturating_add(call.timeout_ns);
        let asker = Asker::Client(None);
        let waiting = Waiting { asker, call, body, deadline_ns };
        self.waiting[rank as usize].push_back(waiting);
        Ok(Claim::Waiting(rank))
    }

    /// Calls another node. [`Status::ResourceExhausted`]: there is no room now.
    pub(super) fn call<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        rank: u32,
        call: &Outgoing,
        payload: &[u8],
    ) -> Result<u64, Status> {
        // What waited for room has less time left.
        let waited_ns = self.now_ns.saturating_sub(call.taken_ns);
        let left_ns = call.timeout_ns.saturating_sub(waited_ns);
        if left_ns == 0 {
            return Err(Status::DeadlineExceeded);
        }
        if let Some(thread) = self.seat.owner(rank) {
            return self.call_by(thread, rank, call, payload);
        }
        let Some(peer) = self.peers[rank as usize] else { return Err(Status::Unavailable) };
        let (taken_ns, called_ns, asker) = (call.taken_ns, self.now_ns, Asker::Client(None));
        let name = self.pending.insert(Pending { asker, taken_ns, called_ns });
        let request = Call {
            method: call.service,
            response_bytes: call.response_bytes,
            timeout: Duration::from_nanos(left_ns),
            cookie: name,
        };
        let len_bytes = PEER_HEAD_BYTES + payload.len();
        let called = worker.call_with(peer, &request, len_bytes, |to| {
            let (head, body) = to.split_at_mut(PEER_HEAD_BYTES);
            head.copy_from_slice(PeerHead::new(call.method).as_bytes());
            body.copy_from_slice(payload);
        });
        let refused = match called {
            Ok(_) => {
                self.recorder.add(Counter::BytesOut, payload.len() as u64);
                return Ok(name);
            }
            Err(CallError::Busy(_) | CallError::NoMemory { .. }) => Status::ResourceExhausted,
            Err(CallError::NotConnected | CallError::Nested) => Status::Unavailable,
            Err(CallError::TooLong { .. } | CallError::NoPlace { .. }) => Status::OutOfRange,
        };
        self.pending.remove(name);
        Err(refused)
    }
}

impl<N: Nic, F: Front> rpc::Handler<N> for Visit<'_, F> {
    fn request(&mut self, worker: &mut Worker<N>, request: Request<'_>) {
        let office = &mut *self.office;
        let Request { token, method: service, body, timeout_us } = request;
        office.recorder.add(Counter::Incoming, 1);
        office.recorder.add(Counter::BytesIn, body.len() as u64);
        let mut answer = mem::take(&mut office.body);
        answer.clear();
        let status = office.serve_peer(token, service, timeout_us, body, &mut answer);
        if let Some((token, status)) = status {
            office.recorder.record(Timing::Turnaround, 0);
            office.recorder.add(Counter::BytesOut, answer.len() as u64);
            // A caller that is gone needs no answer; one that expected less is told so.
            let _ = worker.reply(token, status, &answer);
        }
        office.body = answer;
    }

    fn response(&mut self, _: &mut Worker<N>, cookie: u64, status: Status, body: &[u8]) {
        let Visit { office, front, .. } = self;
        let Some(pending) = office.pending.remove(cookie) else {
            office.recorder.add(Counter::Stale, 1);
            return;
        };
        office.recorder.add(Counter::Responses, 1);
        office.recorder.add(Counter::BytesIn, body.len() as u64);
        let status = match status {
            // The daemon cancels nothing: it closed the connection to a peer that is gone.
            Status::Cancelled => Status::Unavailable,
            status => status,
        };
        match status {
            Status::Unavailable => office.recorder.add(Counter::PeerGone, 1),
            Status::DeadlineExceeded => office.recorder.add(Counter::Deadlines, 1),
            _ => {
                office.recorder.record(Timing::Rtt, office.now_ns.saturating_sub(pending.called_ns))
            }
        }
        office.answer(front, pending.asker, status, body, pending.taken_ns);
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
        if let Some(Stopwatch { lap, clock }) = &mut self.stopwatch {
            lap.phase(&mut self.office.recorder, Phase::Nic, clock());
        }
    }
}
