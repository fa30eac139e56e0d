//! What arrives: batches, completions, deadlines.

use proto::{
    Status,
    copyrpc::{Arrival, BATCH_HEADER_BYTES, Body, Imm, Incoming, Messages, Violation},
};
use verbs::{AsyncEvent, Completion, CompletionQueue as _, MemoryRegion as _, Nic, QueuePair as _};

use super::{Worker, dispatch::Arrivals};
use crate::{
    CloseReason, Handler, PeerId, TransportKind,
    peer::Link,
    queue::{Queue, What},
};

/// How often deadlines and credit are looked at.
const TIMERS_NS: u64 = 250_000;

/// A poll. It ends also when a callback panics.
struct Polling<'w, N: Nic>(&'w mut Worker<N>);

impl<N: Nic> Drop for Polling<'_, N> {
    fn drop(&mut self) {
        self.0.is_polling = false;
    }
}

impl<N: Nic> Worker<N> {
    /// Does everything that can be done now, and returns how many messages were handled and calls
    /// ended. `now_ns` is any clock that does not go back.
    ///
    /// # Panics
    ///
    /// If a callback panics. The next poll goes on behind what that callback was told.
    pub fn poll<H: Handler<N> + ?Sized>(&mut self, now_ns: u64, handler: &mut H) -> usize {
        if core::mem::replace(&mut self.is_polling, true) {
            return 0; // from inside a callback
        }
        Polling(self).0.poll_all(now_ns, handler)
    }

    #[inline]
    fn poll_all<H: Handler<N> + ?Sized>(&mut self, now_ns: u64, handler: &mut H) -> usize {
        self.now_ns = self.now_ns.max(now_ns);
        self.stats.polls += 1;
        let mut handled = 0;
        if !self.is_coalescing() {
            handled += self.poll_receives(handler);
        }
        handled += self.poll_sends(handler);
        if self.now_ns >= self.timers_ns {
            self.timers_ns = self.now_ns + TIMERS_NS;
            self.poll_events();
            self.look_at_timers();
        }
        self.answer_dropped();
        if !self.ended.is_empty() || !self.closed.is_empty() {
            handled += self.tell_ends(handler);
        }
        if !self.dirty.is_empty() || !self.unrung.is_empty() {
            handler.posting();
            self.flush();
        }
        handled
    }

    fn poll_receives<H: Handler<N> + ?Sized>(&mut self, handler: &mut H) -> usize {
        let mut handled = 0;
        if self.interrupted.is_some() {
            handled += self.resume(handler);
        }
        for _ in 0..self.early.len() {
            let Some(imm) = self.early.pop_front() else { break };
            handled += self.take(imm, None, handler);
        }
        let next = self.next_arrival();
        let Arrivals { worker, next } = &mut Arrivals { worker: self, next };
        for left in (0..worker.config.poll_budget).rev() {
            let Some(completion) = next.take() else { break };
            if left > 0 {
                *next = worker.recv_cq.poll();
            }
            worker.is_last_arrival = next.is_none();
            worker.stats.arrivals += 1;
            worker.retire_receive(&completion);
            match (completion.failure, completion.imm) {
                (None, Some(imm)) => handled += worker.take(imm, Some(&completion), handler),
                // A flushed receive: the send side of the queue pair tells what happened.
                _ => worker.stats.unknown_imms += u64::from(completion.failure.is_none()),
            }
        }
        handled
    }

    /// The receive goes back before the peer is told that its batch was handled (rule C3.6).
    #[inline]
    fn retire_receive(&mut self, completion: &Completion) {
        if let Some(receives) = &mut self.receives {
            receives.retire(completion);
            if let Err(error) = receives.fill() {
                tracing::error!(%error, "cannot post receives");
            }
        } else if let Some(queue) = self.queue(completion) {
            queue.qp.retire(completion);
            if let Some(refill) = &mut queue.refill {
                refill.consumed();
                // It fails only when the queue pair is in error, which a send will tell.
                let _ = refill.fill_own(&mut queue.qp);
            }
        }
    }

    /// RC: whether the queue pair of a completion serves the peer in this place.
    #[inline]
    fn is_of(&self, completion: &Completion, slot: u16) -> bool {
        let queue = self.queues.get(usize::from(slot)).and_then(Option::as_ref);
        queue.is_some_and(|queue| queue.qp.qpn() == completion.qpn)
    }

    #[inline]
    fn queue(&mut self, completion: &Completion) -> Option<&mut Queue<N>> {
        let index = *self.queue_of.get(&completion.qpn)?;
        self.queues.get_mut(usize::from(index))?.as_mut()
    }

    /// Handles what an immediate announces; returns how many messages.
    fn take<H: Handler<N> + ?Sized>(
        &mut self,
        imm: u32,
        completion: Option<&Completion>,
        handler: &mut H,
    ) -> usize {
        let decoded = Imm::decode(imm);
        let Some(place) = self.peers.get(usize::from(decoded.slot)) else {
            self.stats.unknown_imms += 1;
            return 0;
        };
        let id = place.id(decoded.slot);
        // On RC a peer can only name its own connection: the queue pair says who it is.
        let is_other = self.config.transport == TransportKind::Rc
            && completion.is_some_and(|completion| !self.is_of(completion, decoded.slot));
        let Some(peer) = self.peer(id).filter(|_| !is_other) else {
            self.stats.unknown_imms += 1;
            return 0;
        };
        if matches!(peer.link, Link::Invited { .. }) {
            self.keep_early(id, imm);
            return 0;
        }
        let outcome = self.take_batch(id, decoded, handler);
        self.conclude(id, outcome)
    }

    /// A batch was handled, or not.
    #[inline]
    pub(super) fn conclude(&mut self, id: PeerId, outcome: Result<usize, Violation>) -> usize {
        match outcome {
            Ok(handled) => {
                self.mark_dirty(id);
                self.flush_early(id);
                handled
            }
            Err(violation) => {
                self.end(id, CloseReason::Violation(violation));
                0
            }
        }
    }

    /// Whether what was announced may not be the peer's doing. On DC anybody who may send to the
    /// target can name any connection in an immediate; only the peer can write its ring.
    fn is_anonymous(&self, violation: Violation) -> bool {
        self.config.transport == TransportKind::Dc && violation.is_of_announcement()
    }

    fn disregard(&mut self, id: PeerId) {
        self.stats.unknown_imms += 1;
        if let Some(live) = self.live(id) {
            live.connection.disregard();
        }
    }

    fn take_batch<H: Handler<N> + ?Sized>(
        &mut self,
        id: PeerId,
        imm: Imm,
        handler: &mut H,
    ) -> Result<usize, Violation> {
        let mut scratch = core::mem::take(&mut self.scratch);
        let outcome = match self.copy_batch(id, imm, &mut scratch) {
            Ok(Some((arrival, messages))) => {
                let second_half = self.second_half(id, messages.claimed());
                let offset_bytes = arrival.offset_bytes + BATCH_HEADER_BYTES;
                self.dispatch(id, messages, (offset_bytes, second_half), handler)
            }
            outcome => outcome.map(|_| 0),
        };
        self.scratch = scratch;
        outcome
    }

    /// Copies a batch once, out of memory that the peer can write. `None`: there is nothing to handle.
    #[inline(always)]
    fn copy_batch<'a>(
        &mut self,
        id: PeerId,
        imm: Imm,
        scratch: &'a mut [u8],
    ) -> Result<Option<(Arrival, Messages<'a>)>, Violation> {
        let now_ns = self.now_ns;
        let Some(peer) = self.peer(id) else { return Ok(None) };
        let Link::Live(live) = &mut peer.link else { return Ok(None) };
        let opened = live.connection.arrive(imm).and_then(|arrival| {
            let copy = &mut scratch[..arrival.len_bytes];
            peer.ring.read(arrival.offset_bytes, copy);
            live.connection.open_batch(copy, now_ns).map(|messages| (arrival, messages))
        });
        match opened {
            Err(violation) if self.is_anonymous(violation) => {
                self.disregard(id);
                Ok(None)
            }
            opened => opened.map(Some),
        }
    }

    /// Takes what is not frequent.
    #[cold]
    pub(super) fn take_rare(&mut self, id: PeerId, incoming: Incoming<'_>) {
        if let Incoming::Request { id: request, method, timeout_us, body: Body::Large(large) } =
            incoming
        {
            return self.fetch_request(id, request, large, (method, timeout_us));
        }
        let Some(live) = self.live(id) else { return };
        match incoming {
            Incoming::LargeResponse { call, large } => {
                live.answered(call);
                self.fetch_response(id, call, large);
            }
            Incoming::Late(call) => live.answered(call),
            Incoming::Released(request) => live.released(request),
            Incoming::Cancelled(_) | Incoming::Crossed => {}
            Incoming::Request { .. } | Incoming::Response { .. } => {
                unreachable!("taken where it is quicker")
            }
        }
    }

    /// Before which of `count` messages, counted from 1, what was answered so far is posted, if any.
    ///
    /// Two sides whose calls travel in one batch would take turns: each waits while the other one
    /// works. So if this peer alone is active and has little to do until this side answers, it gets
    /// half of the answers early, and from then on two batches are under way.
    #[inline]
    fn second_half(&mut self, id: PeerId, count: u16) -> u16 {
        const NONE: u16 = 0;
        let is_alone = self.last_peer.replace(id) == Some(id) && self.is_last_arrival;
        if count < self.config.halve_from || !is_alone {
            return NONE;
        }
        let unconsumed = self.live(id).map_or(u32::MAX, |live| live.connection.unconsumed());
        if unconsumed < u32::from(count / 2) { count / 2 + 1 } else { NONE }
    }

    // Completions of sends

    /// Returns how many transfers have ended.
    fn poll_sends<H: Handler<N> + ?Sized>(&mut self, handler: &mut H) -> usize {
        let mut handled = 0;
        for _ in 0..self.config.poll_budget {
            let Some(completion) = self.send_cq.poll() else { break };
            if let Some(failure) = completion.failure {
                self.send_failed(&completion, failure);
            } else {
                self.send_finished(&completion);
            }
        }
        for _ in 0..self.transferred.len() {
            let Some(index) = self.transferred.pop_front() else { break };
            self.transferred(index, handler);
            handled += 1;
        }
        if !self.unposted.is_empty() {
            self.post_transfers();
        }
        handled
    }

    #[inline]
    fn send_finished(&mut self, completion: &Completion) {
        let Self { peers, queues, queue_of, transferred, .. } = self;
        let Some(index) = queue_of.get(&completion.qpn) else { return };
        let Some(queue) = &mut queues[usize::from(*index)] else { return };
        queue.qp.retire(completion);
        while let Some(work) = queue.finish() {
            let place = &mut peers[usize::from(work.peer.slot)];
            match work.what {
                What::Batch(batch) => {
                    if let Some(live) = place.live(work.peer) {
                        live.connection.finished(batch.number);
                    }
                }
                What::Transfer(index) => transferred.push_back(index),
                What::Credit => {}
            }
            if Queue::<N>::is_last(&work, completion.wqe) {
                return;
            }
        }
    }

    fn send_failed(&mut self, completion: &Completion, failure: verbs::Failure) {
        let Some(index) = self.queue_of.get(&completion.qpn).copied() else { return };
        let Some(queue) = &mut self.queues[usize::from(index)] else { return };
        queue.qp.retire(completion);
        let (mut failed, mut abandoned) = (None, None);
        while let Some(work) = queue.finish() {
            let is_last = Queue::<N>::is_last(&work, completion.wqe);
            match work.what {
                What::Transfer(index) if is_last => abandoned = Some(index),
                What::Transfer(index) => self.transferred.push_back(index),
                What::Batch(_) | What::Credit => {}
            }
            if is_last {
                failed = Some(work.peer);
                break;
            }
        }
        if let Some(index) = abandoned {
            self.abandon(index);
        }
        // On RC the queue pair serves one peer only, even if its request cannot be told.
        let failed = failed.unwrap_or_else(|| self.peers[usize::from(index)].id(index));
        self.end(failed, CloseReason::Failed(failure));
        if self.config.transport == TransportKind::Dc {
            self.restart_initiator(index);
        }
    }

    /// An initiator that failed for one peer goes on for the others: what it had not started is
    /// posted again.
    fn restart_initiator(&mut self, index: u16) {
        let Some(mut queue) = self.queues[usize::from(index)].take() else { return };
        let left = queue.reset();
        let restarted =
            queue.qp.modify(&verbs::Transition::Reset).and_then(|()| self.start_dci(&mut queue.qp));
        self.queues[usize::from(index)] = Some(queue);
        if let Err(error) = restarted {
            tracing::error!(%error, "cannot restart an initiator");
            for work in left {
                self.end(work.peer, CloseReason::QueuePair);
            }
            return;
        }
        for work in left {
            if let What::Transfer(transfer) = work.what {
                self.transfer_again(transfer);
            } else if let Err(error) = self.post_again(index, &work) {
                tracing::warn!(peer = work.peer.slot, %error, "cannot post a batch again");
                self.end(work.peer, CloseReason::QueuePair);
            }
        }
    }

    // Time

    /// What the NIC tells besides completions.
    fn poll_events(&mut self) {
        for _ in 0..self.config.poll_budget {
            let Some(event) = self.nic.poll_event() else { break };
            match event {
                AsyncEvent::PeerGone(lid) => self.end_port(lid),
                AsyncEvent::QpFatal(qpn) => {
                    let slot = self.queue_of.get(&qpn).copied();
                    if let Some(slot) = slot.filter(|_| self.config.transport == TransportKind::Rc)
                    {
                        self.end(self.peers[usize::from(slot)].id(slot), CloseReason::QueuePair);
                    }
                }
                // Follows the end of a queue pair, which was told.
                AsyncEvent::LastWqeReached(_) => {}
                event => tracing::warn!(?event, "the NIC reports an event"),
            }
        }
    }

    fn end_port(&mut self, lid: verbs::Lid) {
        for slot in 0..self.config.peers_max {
            let place = &mut self.peers[usize::from(slot)];
            let id = place.id(slot);
            let live = place.peer.as_mut().and_then(|peer| peer.live());
            if live.is_some_and(|live| live.lid == Some(lid)) {
                self.end(id, CloseReason::PeerGone(lid));
            }
        }
    }

    fn look_at_timers(&mut self) {
        let queues = &self.queues;
        self.departed.retain(|departed| {
            let queue = queues[usize::from(departed.queue)].as_ref();
            queue.is_some_and(|queue| queue.has_work(departed.id))
        });
        let now_ns = self.now_ns;
        for slot in 0..self.config.peers_max {
            let place = &mut self.peers[usize::from(slot)];
            let id = place.id(slot);
            let Some(peer) = &mut place.peer else { continue };
            let awaits = peer.live().is_some_and(|live| live.connection.awaits_credit());
            if awaits && let Err(violation) = peer.look(now_ns) {
                self.end(id, CloseReason::Violation(violation));
                continue;
            }
            let Some(live) = peer.live() else { continue };
            let ended = &mut self.ended;
            live.connection
                .expire(now_ns, |cookie| ended.push_back((cookie, Status::DeadlineExceeded)));
            let is_due =
                live.connection.has_gathered() || live.connection.credit_due(now_ns).is_some();
            if is_due {
                self.mark_dirty(id);
            }
        }
    }

    /// Tells of calls and connections that ended otherwise than by a message.
    fn tell_ends<H: Handler<N> + ?Sized>(&mut self, handler: &mut H) -> usize {
        let (ended, closed) = (self.ended.len(), self.closed.len());
        for _ in 0..ended {
            let Some((cookie, status)) = self.ended.pop_front() else { break };
            handler.response(self, cookie, status, &[]);
        }
        for _ in 0..closed {
            let Some((peer, reason)) = self.closed.pop_front() else { break };
            handler.closed(self, peer, reason);
        }
        ended + closed
    }
}
