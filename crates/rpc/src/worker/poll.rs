//! What arrives: batches, completions, deadlines.

use proto::{
    Status,
    copyrpc::{Arrival, Body, Imm, Incoming, Messages, Sort, Violation},
};
use verbs::{AsyncEvent, Completion, CompletionQueue as _, MemoryRegion as _, Nic, QueuePair as _};

use super::Worker;
use crate::{
    CloseReason, Handler, PeerId, Request, Token, TransportKind,
    peer::Link,
    queue::{Queue, What},
    token::Place,
};

/// How often deadlines and credit are looked at.
const TIMERS_NS: u64 = 250_000;

impl<N: Nic> Worker<N> {
    /// Does everything that can be done now, and returns how many messages were handled and calls
    /// ended. `now_ns` is any clock that does not go back.
    pub fn poll<H: Handler<N> + ?Sized>(&mut self, now_ns: u64, handler: &mut H) -> usize {
        if core::mem::replace(&mut self.is_polling, true) {
            return 0; // from inside a callback
        }
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
        self.is_polling = false;
        handled
    }

    fn poll_receives<H: Handler<N> + ?Sized>(&mut self, handler: &mut H) -> usize {
        let mut handled = 0;
        if !self.early.is_empty() {
            for imm in core::mem::take(&mut self.early) {
                handled += self.take(imm, None, handler);
            }
        }
        let mut next = self.recv_cq.poll();
        for left in (0..self.config.poll_budget).rev() {
            let Some(completion) = next.take() else { break };
            if left > 0 {
                next = self.recv_cq.poll();
            }
            self.is_last_arrival = next.is_none();
            self.stats.arrivals += 1;
            self.retire_receive(&completion);
            match (completion.failure, completion.imm) {
                (None, Some(imm)) => handled += self.take(imm, Some(&completion), handler),
                // A flushed receive: the send side of the queue pair tells what happened.
                _ => self.stats.unknown_imms += u64::from(completion.failure.is_none()),
            }
        }
        self.refill();
        handled
    }

    #[inline]
    fn retire_receive(&mut self, completion: &Completion) {
        if let Some(receives) = &mut self.receives {
            receives.retire(completion);
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
    fn refill(&mut self) {
        if let Some(receives) = &mut self.receives
            && let Err(error) = receives.fill()
        {
            tracing::error!(%error, "cannot post receives");
        }
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
        let outcome = if decoded.lines == 0 {
            self.take_credit(id).map(|()| 0)
        } else {
            self.take_batch(id, decoded, handler)
        };
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

    fn take_credit(&mut self, id: PeerId) -> Result<(), Violation> {
        let now_ns = self.now_ns;
        let Some(peer) = self.peer(id) else { return Ok(()) };
        let word = peer.read_credit().to_ne_bytes();
        let Some(live) = peer.live() else { return Ok(()) };
        match live.connection.credit(word, now_ns) {
            Err(violation) if self.is_anonymous(violation) => self.stats.unknown_imms += 1,
            outcome => outcome?,
        }
        Ok(())
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
        let outcome = self.dispatch(id, imm, &mut scratch, handler);
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

    /// Handles a batch; uses a copy of it.
    fn dispatch<H: Handler<N> + ?Sized>(
        &mut self,
        id: PeerId,
        imm: Imm,
        scratch: &mut [u8],
        handler: &mut H,
    ) -> Result<usize, Violation> {
        let now_ns = self.now_ns;
        let start = scratch.as_ptr().addr();
        let Some((arrival, mut messages)) = self.copy_batch(id, imm, scratch)? else {
            return Ok(0);
        };
        let mut handled = 0;
        let second_half = self.second_half(id, messages.claimed());
        while let Some(message) = messages.next() {
            if messages.taken() == second_half {
                self.flush_early(id);
            }
            let message = message?;
            // A callback may have closed the connection.
            let Some(live) = self.live(id) else { return Ok(handled) };
            match message.sort() {
                Sort::Request => {
                    let request = live.connection.take_request(&message)?;
                    let (body, method) = (message.body(), message.method());
                    let place = Place {
                        offset_bytes: arrival.offset_bytes + (body.as_ptr().addr() - start),
                        len_bytes: body.len(),
                    };
                    let token = Token::new(id, request, Some(place), &self.dropped);
                    let timeout_us = message.timeout_us();
                    handler.request(self, Request { token, method, body, timeout_us });
                    handled += 1;
                }
                Sort::Response => {
                    let ended = live.connection.take_response(&message)?;
                    live.answered(message.call());
                    if let Some((cookie, status)) = ended {
                        handler.response(self, cookie, status, message.body());
                        handled += 1;
                    }
                }
                Sort::Other => {
                    let incoming = live.connection.message(&message)?;
                    self.take_rare(id, incoming);
                }
            }
        }
        if let Some(live) = self.live(id) {
            live.connection.close_batch(now_ns);
        }
        Ok(handled)
    }

    /// Takes what is not frequent.
    #[cold]
    fn take_rare(&mut self, id: PeerId, incoming: Incoming<'_>) {
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
            let Some(live) = place.peer.as_mut().and_then(|peer| peer.live()) else { continue };
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
