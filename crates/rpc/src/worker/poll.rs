//! What arrives: batches, completions, deadlines.

use std::collections::VecDeque;

use proto::{
    Status,
    copyrpc::{Arrival, BATCH_HEADER_BYTES, Body, Connection, Imm, Incoming, Messages, Violation},
};
use verbs::{AsyncEvent, Completion, CompletionQueue as _, MemoryRegion, Nic, Qpn, QueuePair as _};

use super::Worker;
use crate::{
    CloseReason, Handler, PeerId, TransportKind,
    peer::{Link, Peer},
    queue::{Queue, What, Work},
};

/// How often deadlines and credit are looked at.
const TIMERS_NS: u64 = 250_000;

/// Whom a receive is from, as far as the NIC tells.
#[derive(Clone, Copy)]
enum Sender {
    /// RC: whoever has this place, and its queue pair.
    Peer(u16),
    /// RC: a queue pair that is gone.
    Nobody,
    /// DC: whoever may send to the target.
    Anybody,
}

impl Sender {
    /// Whether it may announce what an immediate says: on RC a peer can only name itself.
    #[inline]
    fn may_name(self, imm: u32) -> bool {
        match self {
            Self::Peer(slot) => slot == Imm::decode(imm).slot,
            Self::Nobody => false,
            Self::Anybody => true,
        }
    }
}

/// A poll. It ends also when a callback panics.
struct Polling<'w, N: Nic>(&'w mut Worker<N>);

impl<N: Nic> Drop for Polling<'_, N> {
    fn drop(&mut self) {
        self.0.is_polling = false;
    }
}

impl<N: Nic> Worker<N> {
    /// Does everything that can be done now, and returns how many messages were handled and calls
    /// ended. `now_ns` is any clock that does not go back; it may be some turns late
    /// (`os::clock::PollClock`).
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
            self.timers_ns = self.now_ns.saturating_add(TIMERS_NS);
            self.poll_events();
            self.look_at_timers();
        }
        self.answer_dropped();
        if !self.ended.is_empty() || !self.closed.is_empty() {
            handled += self.tell_ends(handler);
        }
        if !self.agenda.dirty.is_empty() || !self.unrung.is_empty() {
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
            handled += self.take(imm, handler);
        }
        if self.ahead.is_none() {
            let Some(completion) = self.recv_cq.poll() else { return handled };
            self.ahead = Some(completion);
        }
        for left in (0..self.config.poll_budget).rev() {
            let Some(completion) = self.ahead.take() else { break };
            if left > 0 {
                self.ahead = self.recv_cq.poll();
            }
            self.is_last_arrival = self.ahead.is_none();
            self.stats.arrivals += 1;
            let from = self.sender(&completion);
            self.retire_receive(&completion, from);
            match (completion.failure, completion.imm) {
                (None, Some(imm)) if from.may_name(imm) => handled += self.take(imm, handler),
                // A flushed receive: the send side of the queue pair tells what happened.
                _ => self.stats.unknown_imms += u64::from(completion.failure.is_none()),
            }
        }
        handled
    }

    /// Drops what was taken ahead if it is of a queue pair that is gone: another one may get its number.
    #[cold]
    pub(super) fn forget_arrival(&mut self, gone: Qpn) {
        if let Some(completion) = self.ahead.take_if(|ahead| ahead.qpn == gone) {
            self.retire_receive(&completion, Sender::Nobody);
        }
    }

    /// The receive goes back before the peer is told that its batch was handled (rule C3.6).
    #[inline]
    fn retire_receive(&mut self, completion: &Completion, from: Sender) {
        if let Some(receives) = &mut self.receives {
            receives.retire(completion);
            if let Err(error) = receives.fill() {
                tracing::error!(%error, "cannot post receives");
            }
        } else if let Sender::Peer(index) = from
            && let Some(queue) = &mut self.queues[usize::from(index)]
        {
            queue.qp.retire(completion);
            if let Some(refill) = &mut queue.refill {
                refill.consumed();
                // It fails only when the queue pair is in error, which a send will tell.
                let _ = refill.fill_own(&mut queue.qp);
            }
        }
    }

    /// Whom a completion is from, as far as its queue pair tells. Most often it is whom the immediate
    /// names.
    #[inline]
    fn sender(&self, completion: &Completion) -> Sender {
        if self.config.transport == TransportKind::Dc {
            return Sender::Anybody;
        }
        let slot = completion.imm.map_or(0, |imm| Imm::decode(imm).slot);
        let queue = self.queues.get(usize::from(slot)).and_then(Option::as_ref);
        if queue.is_some_and(|queue| queue.qp.qpn() == completion.qpn) {
            return Sender::Peer(slot);
        }
        self.queue_of.get(&completion.qpn).map_or(Sender::Nobody, |slot| Sender::Peer(*slot))
    }

    /// Handles what an immediate announces; returns how many messages.
    fn take<H: Handler<N> + ?Sized>(&mut self, imm: u32, handler: &mut H) -> usize {
        let imm = Imm::decode(imm);
        let is_dc = self.config.transport == TransportKind::Dc;
        let place = self.peers.get_mut(usize::from(imm.slot));
        let Some((id, peer)) = place.and_then(|place| place.named(imm.slot)) else {
            self.stats.unknown_imms += 1;
            return 0;
        };
        let Link::Live(live) = &mut peer.link else {
            self.keep_early(id, imm);
            return 0;
        };
        let mut scratch = core::mem::take(&mut self.scratch);
        let (connection, ring) = (&mut live.connection, &peer.ring);
        let opened = open_batch(connection, ring, (imm, is_dc), &mut scratch, self.now_ns);
        let outcome = match opened {
            Ok((offset_bytes, messages)) => {
                let unconsumed = live.connection.unconsumed();
                let second_half = self.second_half(id, messages.claimed(), unconsumed);
                self.dispatch(id, messages, (offset_bytes, second_half), handler)
            }
            // Whoever may send to the target can name any connection; only the peer can write its ring.
            Err(violation) if is_dc && violation.is_of_announcement() => {
                live.connection.disregard();
                self.stats.unknown_imms += 1;
                Ok(0)
            }
            Err(violation) => Err(violation),
        };
        self.scratch = scratch;
        self.conclude(id, outcome)
    }

    /// A batch was handled, or not.
    #[inline]
    pub(super) fn conclude(&mut self, id: PeerId, outcome: Result<usize, Violation>) -> usize {
        match outcome {
            Ok(handled) => {
                match self.live(id) {
                    Some(live) if live.connection.is_quiet() => self.mark_timed(id),
                    Some(_) => {
                        self.mark_dirty(id);
                        self.flush_early(id);
                    }
                    None => {}
                }
                handled
            }
            Err(violation) => {
                self.end(id, CloseReason::Violation(violation));
                0
            }
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
    fn second_half(&mut self, id: PeerId, count: u16, unconsumed: u32) -> u16 {
        const NONE: u16 = 0;
        let is_alone = self.last_peer.replace(id) == Some(id) && self.is_last_arrival;
        let is_waiting = unconsumed < u32::from(count / 2);
        if count >= self.config.halve_from && is_alone && is_waiting { count / 2 + 1 } else { NONE }
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
        if let Err(error) = restarted {
            tracing::error!(%error, "cannot restart an initiator");
            return self.lose_initiator(index, queue, left);
        }
        self.queues[usize::from(index)] = Some(queue);
        for work in left {
            if let What::Transfer(transfer) = work.what {
                self.transfer_again(transfer);
            } else if let Err(error) = self.post_again(index, &work) {
                tracing::warn!(peer = work.peer.slot, %error, "cannot post a batch again");
                self.end(work.peer, CloseReason::QueuePair);
            }
        }
    }

    /// Ends what an initiator served that is of no use any more. The next connection makes another one.
    #[cold]
    fn lose_initiator(&mut self, index: u16, queue: Queue<N>, left: VecDeque<Work>) {
        self.queue_of.remove(&queue.qp.qpn());
        // The queue pair goes before the memory that its requests use.
        drop(queue);
        for work in left {
            if let What::Transfer(transfer) = work.what {
                self.abandon(transfer);
            }
        }
        for slot in 0..self.config.peers_max {
            let place = &mut self.peers[usize::from(slot)];
            let id = place.id(slot);
            if place.peer.as_mut().is_some_and(|peer| peer.queue == index && peer.live().is_some())
            {
                self.end(id, CloseReason::QueuePair);
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
        if let Some(receives) = &mut self.receives {
            receives.top_up();
        }
        let mut index = 0;
        while let Some(id) = self.agenda.timed.get(index).copied() {
            if self.look_at(id) {
                index += 1;
                continue;
            }
            self.agenda.timed.swap_remove(index);
            if let Some(peer) = self.peer(id) {
                peer.marks.is_timed = false;
            }
        }
    }

    /// Does what is due to a peer by now. Returns whether something may become due later.
    fn look_at(&mut self, id: PeerId) -> bool {
        let now_ns = self.now_ns;
        let Self { peers, ended, .. } = self;
        let Some(peer) = peers[usize::from(id.slot)].at(id) else { return false };
        let Peer { link: Link::Live(live), ring, marks, .. } = peer else { return false };
        if live.connection.awaits_credit()
            && let Err(violation) = live.look(ring, now_ns)
        {
            self.end(id, CloseReason::Violation(violation));
            return false;
        }
        let connection = &mut live.connection;
        connection.expire(now_ns, |cookie| ended.push_back((cookie, Status::DeadlineExceeded)));
        let is_idle = connection.is_idle() && !marks.is_dirty;
        if connection.has_gathered() || connection.credit_due(now_ns).is_some() {
            self.mark_dirty(id);
        }
        !is_idle
    }

    /// Tells of calls and connections that ended otherwise than by a message.
    fn tell_ends<H: Handler<N> + ?Sized>(&mut self, handler: &mut H) -> usize {
        let (ended, closed) = (self.ended.len(), self.closed.len());
        for _ in 0..ended {
            let Some((cookie, status)) = self.ended.pop_front() else { break };
            handler.ended(self, cookie, status);
        }
        for _ in 0..closed {
            let Some((peer, reason)) = self.closed.pop_front() else { break };
            handler.closed(self, peer, reason);
        }
        ended + closed
    }
}

/// Copies a batch once, out of memory that the peer can write. Returns where its messages lie in the
/// ring, and the messages. On DC anybody may have announced it.
#[inline(always)]
fn open_batch<'a>(
    connection: &mut Connection,
    ring: &impl MemoryRegion,
    (imm, is_dc): (Imm, bool),
    scratch: &'a mut [u8],
    now_ns: u64,
) -> Result<(usize, Messages<'a>), Violation> {
    let Arrival { offset_bytes, len_bytes, .. } = connection.arrive(imm)?;
    let copy = &mut scratch[..len_bytes];
    ring.read(offset_bytes, copy);
    if is_dc {
        Messages::check_extent(copy)?;
    }
    Ok((offset_bytes + BATCH_HEADER_BYTES, connection.open_batch(copy, now_ns)?))
}
