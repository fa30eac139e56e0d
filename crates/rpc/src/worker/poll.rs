//! A poll, and what arrives in it.

use proto::copyrpc::{Arrival, BATCH_HEADER_BYTES, Connection, Imm, Messages, Rare, Violation};
use verbs::{Completion, MemoryRegion, Nic, Qpn};

use super::{Worker, access::LargeRequest, dispatch::Pending};
use crate::{CloseReason, Handler, PeerId, peer::PeerState};

/// The sender of a receive, as far as the NIC tells.
#[derive(Clone, Copy)]
enum Sender {
    /// RC: the peer in this slot, by its queue pair.
    Peer(u16),
    /// RC: a queue pair that is gone.
    Nobody,
    /// DC: any process that may send to the target.
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
        self.timers.observe(now_ns);
        if let Some(window) = &mut self.window {
            window.polled(self.timers.now_ns());
        }
        self.stats.polls += 1;
        let mut handled = 0;
        if !self.timers.is_coalescing(self.config().flush) {
            handled += self.poll_receives(handler);
        }
        handled += self.poll_sends(handler);
        if self.timers.take_look() {
            self.look_at_timers();
        }
        self.answer_dropped();
        self.forget_ended_calls();
        if !self.notices.is_empty() {
            handled += self.tell_notices(handler);
        }
        if self.peers.has_dirty() || self.send.has_unrung() {
            handler.posting();
            self.flush();
        }
        handled
    }

    fn poll_receives<H: Handler<N> + ?Sized>(&mut self, handler: &mut H) -> usize {
        let mut handled = 0;
        if self.receive.is_interrupted() {
            handled += self.resume(handler);
        }
        for _ in 0..self.receive.early_len() {
            let Some(imm) = self.receive.next_early() else { break };
            handled += self.take(imm, handler);
        }
        if !self.receive.look() {
            return handled;
        }
        for left in (0..self.config().poll_budget).rev() {
            let Some(completion) = self.receive.next(left > 0) else { break };
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
        if let Some(completion) = self.receive.forget_ahead(gone) {
            self.retire_receive(&completion, Sender::Nobody);
        }
    }

    /// The receive goes back before the peer is told that its batch was handled (rule C3.6).
    #[inline]
    fn retire_receive(&mut self, completion: &Completion, from: Sender) {
        let Self { receive, send, .. } = self;
        let own = match from {
            Sender::Peer(slot) => send.queue(slot),
            Sender::Nobody | Sender::Anybody => None,
        };
        receive.retire(completion, own);
    }

    /// The sender of a completion, as far as its queue pair tells. Most often it is the peer that the
    /// immediate names.
    #[inline]
    fn sender(&self, completion: &Completion) -> Sender {
        if self.resources.is_dc() {
            return Sender::Anybody;
        }
        let slot = completion.imm.map_or(0, |imm| Imm::decode(imm).slot);
        if self.send.peek(slot).is_some_and(|queue| queue.qpn() == completion.qpn) {
            return Sender::Peer(slot);
        }
        self.send.index_of(completion.qpn).map_or(Sender::Nobody, Sender::Peer)
    }

    /// Handles what an immediate announces; returns how many messages.
    fn take<H: Handler<N> + ?Sized>(&mut self, imm: u32, handler: &mut H) -> usize {
        let imm = Imm::decode(imm);
        let is_dc = self.resources.is_dc();
        let Self { peers, receive, timers, .. } = self;
        let Some((id, peer)) = peers.at(imm.slot) else {
            self.stats.unknown_imms += 1;
            return 0;
        };
        let PeerState::Live(live) = &mut peer.state else {
            self.keep_early(id, imm);
            return 0;
        };
        let mut scratch = receive.lend_scratch();
        let announced = Announced { imm, is_dc, now_ns: timers.now_ns() };
        let opened = announced.open(&mut live.connection, &peer.ring, &mut scratch);
        let outcome = match opened {
            Ok((offset_bytes, messages)) => {
                let unconsumed = live.connection.unconsumed();
                let second_half = self.second_half(id, messages.claimed(), unconsumed);
                self.dispatch(id, Pending { messages, offset_bytes, second_half }, handler)
            }
            // Whoever may send to the target can name any connection; only the peer can write its ring.
            Err(violation) if is_dc && violation.is_of_announcement() => {
                live.connection.disregard();
                self.stats.unknown_imms += 1;
                Ok(0)
            }
            Err(violation) => Err(violation),
        };
        self.receive.return_scratch(scratch);
        self.conclude(id, outcome)
    }

    /// A batch was handled, or not.
    #[inline]
    pub(super) fn conclude(&mut self, id: PeerId, outcome: Result<usize, Violation>) -> usize {
        match outcome {
            Ok(handled) => {
                match self.live(id) {
                    Some(live) if live.connection.is_quiet() => self.peers.mark_timed(id),
                    Some(_) => {
                        self.peers.mark_dirty(id);
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
    pub(super) fn take_rare<H: Handler<N> + ?Sized>(
        &mut self,
        id: PeerId,
        rare: Rare,
        handler: &mut H,
    ) {
        if let Rare::LargeRequest { id: request, method, timeout_us, large } = rare {
            let request = LargeRequest { id: request, method, timeout_us, large };
            return self.fetch_request(id, request, handler);
        }
        let Some(live) = self.live(id) else { return };
        match rare {
            Rare::LargeResponse { call, large } => {
                live.bodies.answered(call);
                self.fetch_response(id, call, large, handler);
            }
            Rare::Late(call) => live.bodies.answered(call),
            Rare::Released(request) => live.bodies.released(request),
            Rare::LargeRequest { .. } | Rare::Cancelled(_) | Rare::Crossed => {}
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
        let is_alone = self.receive.is_alone(id);
        let is_waiting = unconsumed < u32::from(count / 2);
        if count >= self.config().halve_from && is_alone && is_waiting {
            count / 2 + 1
        } else {
            NONE
        }
    }
}

/// An announcement of a batch.
struct Announced {
    imm: Imm,
    /// Anybody may have announced it.
    is_dc: bool,
    now_ns: u64,
}

impl Announced {
    /// Copies the batch once, out of memory that the peer can write. Returns where its messages lie in the
    /// ring, and the messages.
    #[inline(always)]
    fn open<'a>(
        self,
        connection: &mut Connection,
        ring: &impl MemoryRegion,
        scratch: &'a mut [u8],
    ) -> Result<(usize, Messages<'a>), Violation> {
        let Arrival { offset_bytes, len_bytes, .. } = connection.arrive(self.imm)?;
        let copy = &mut scratch[..len_bytes];
        ring.read(offset_bytes, copy);
        if self.is_dc {
            Messages::check_extent(copy)?;
        }
        let messages = connection.open_batch(copy, self.now_ns)?;
        Ok((offset_bytes + BATCH_HEADER_BYTES, messages))
    }
}
