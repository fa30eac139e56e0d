//! The client's end of a session: up to [`WINDOW`] calls in flight, and more that wait.
//!
//! A call uses one slot. Its packets are numbered in both directions together
//! ([`Numbering`]), and the client accepts them in order only. A packet that gets
//! lost is sent again from the first packet without an answer (*go-back-N*).

mod active;

use alloc::collections::VecDeque;

use active::Active;

use super::{
    Ignored,
    geometry::{CREDITS, Geometry, Numbering, Span, WINDOW, WINDOW_STEP},
    packet::{Header, PacketKind, REQ_NUM_MAX, REQ_TYPE_INVALID},
};
use crate::Status;

/// Limits of a client's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Sizes that both sides agree on.
    pub geometry: Geometry,
    /// Packets in flight, at most what the server has receives for: [`CREDITS`] in the original.
    pub credits: u32,
    /// Calls that may wait for a slot.
    pub backlog_max: usize,
    /// Time without progress after which packets are sent again.
    pub retransmit_ns: u64,
}

impl ClientConfig {
    /// Values of the original.
    #[must_use]
    pub const fn new(geometry: Geometry) -> Self {
        Self { geometry, credits: CREDITS, backlog_max: 1024, retransmit_ns: 5_000_000 }
    }
}

/// A call to be made. Its bytes stay with the driver, which finds them by `cookie`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The caller's name of the call.
    pub cookie: u64,
    /// Names the handler.
    pub req_type: u8,
    /// Length of the request.
    pub request_bytes: u32,
    /// Room for the response. A longer one ends the call with [`Status::OutOfRange`].
    pub response_bytes_max: u32,
    /// When the call ends without a response.
    pub deadline_ns: u64,
}

/// Why a call was not accepted. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CallError {
    /// As many calls wait as may; poll, and try again.
    #[error("{0} calls wait for a slot of the session, which is the limit")]
    Busy(usize),
    /// No packets can number it.
    #[error("a request of {bytes} B exceeds the longest message, {max} B")]
    TooLong {
        /// Of the request.
        bytes: u32,
        /// Of a message.
        max: u32,
    },
    /// 255 means "no type".
    #[error("request type 255 names no handler")]
    ReqType,
    /// The session failed, or all its 2⁴⁴ request numbers are used up.
    #[error("the session is closed; connect again")]
    Closed,
}

/// A packet to send: its header, and bytes of the request of `cookie` (none if the span is empty).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The header.
    pub header: Header,
    /// The call.
    pub cookie: u64,
    /// Data behind the header.
    pub span: Span,
}

/// The effect of a packet from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// It was acknowledged that a packet of a request arrived.
    Credit,
    /// Bytes of a response, to be copied to `span` of the room of `cookie`.
    Data {
        /// The call.
        cookie: u64,
        /// Place of the bytes in the message.
        span: Span,
        /// Length of the response, if these were its last bytes; the call has ended.
        complete: Option<u32>,
    },
    /// The call ended without data: see [`Client::poll_ended`].
    Ended,
    /// The packet changed nothing.
    Ignored(Ignored),
}

/// A call that ended without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The call.
    pub cookie: u64,
    /// Status that the call ends with.
    pub status: Status,
    /// Whether a packet of it was ever sent; if not, it was certainly not executed.
    pub was_sent: bool,
}

/// Counts since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Calls whose packets were sent again.
    pub retransmissions: u64,
    /// Packets that changed nothing.
    pub ignored: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    req_num: u64,
    active: Option<Active>,
}

/// The client's end of a connected session.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    /// Of the server.
    dest_session: u16,
    slots: [Slot; WINDOW],
    /// Slots without a call. The original takes the slot that was freed last, too.
    free: [u8; WINDOW],
    free_len: usize,
    credits: u32,
    backlog: VecDeque<Call>,
    /// No deadline of a call that waits is earlier: a lower bound, made exact when it has passed.
    backlog_earliest_ns: u64,
    ended: VecDeque<Ended>,
    /// Slots that may have a packet to send, a bit each. Others have none.
    sending: u8,
    /// Slot that transmits next, so that a long message does not hold up the others.
    turn: usize,
    is_closed: bool,
    counters: ClientCounters,
}

impl Client {
    /// A session that the server calls `dest_session`.
    #[must_use]
    pub fn new(config: ClientConfig, dest_session: u16) -> Self {
        let mut req_num = 0;
        let slots = [(); WINDOW].map(|()| {
            let slot = Slot { req_num, active: None };
            req_num += 1;
            slot
        });
        let mut free = [0; WINDOW];
        for (index, slot) in (0u8..).zip(free.iter_mut().rev()) {
            *slot = index;
        }
        Self {
            config,
            dest_session,
            slots,
            free,
            free_len: WINDOW,
            credits: config.credits,
            backlog: VecDeque::new(),
            backlog_earliest_ns: u64::MAX,
            ended: VecDeque::new(),
            sending: 0,
            turn: 0,
            is_closed: false,
            counters: ClientCounters::default(),
        }
    }

    /// Calls in flight or waiting whose callers do not know how they ended.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let is_open = |slot: &&Slot| slot.active.is_some_and(|active| !active.is_abandoned);
        self.backlog.len() + self.slots.iter().filter(is_open).count()
    }

    /// Whether all slots are free: the session can be disconnected.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.free_len == WINDOW && self.backlog.is_empty()
    }

    /// Counts since the session began.
    #[must_use]
    pub fn counters(&self) -> ClientCounters {
        self.counters
    }

    /// Whether packets of the call may still be sent, also after it has ended: its bytes are needed.
    #[must_use]
    pub fn holds(&self, cookie: u64) -> bool {
        let is_it = |slot: &Slot| slot.active.is_some_and(|active| active.call.cookie == cookie);
        self.slots.iter().any(is_it)
    }

    /// Whether there may be a packet to send.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        let sends = |slot: &Slot| slot.active.is_some_and(|active| active.is_sending());
        let is_any = || self.sending != 0 && self.slots.iter().any(sends);
        !self.is_closed
            && self.credits > 0
            && (is_any() || self.free_len > 0 && !self.backlog.is_empty())
    }

    /// Makes a call, or lets it wait for a slot.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn call(&mut self, call: Call, now_ns: u64) -> Result<(), CallError> {
        let max = self.config.geometry.msg_bytes_max();
        if self.is_closed {
            return Err(CallError::Closed);
        }
        if call.req_type == REQ_TYPE_INVALID {
            return Err(CallError::ReqType);
        }
        if call.request_bytes > max {
            return Err(CallError::TooLong { bytes: call.request_bytes, max });
        }
        // Ends that were not taken yet count too, so that `ended` never holds more than that.
        let limit = WINDOW + self.config.backlog_max;
        if !self.ended.is_empty() && self.ended.len() + self.outstanding() >= limit {
            return Err(CallError::Busy(self.config.backlog_max));
        }
        if self.free_len > 0 && self.backlog.is_empty() {
            self.begin(call, now_ns);
            return Ok(());
        }
        if self.backlog.len() == self.config.backlog_max {
            return Err(CallError::Busy(self.backlog.len()));
        }
        self.backlog_earliest_ns = self.backlog_earliest_ns.min(call.deadline_ns);
        self.backlog.push_back(call);
        Ok(())
    }

    /// Gives a call the slot that was freed last.
    fn begin(&mut self, call: Call, now_ns: u64) {
        self.free_len -= 1;
        let index = usize::from(self.free[self.free_len]);
        self.sending |= 1 << index;
        let slot = &mut self.slots[index];
        slot.req_num += WINDOW_STEP;
        if slot.req_num > REQ_NUM_MAX {
            self.end(call.cookie, Status::Unavailable, false);
            self.close(Status::Unavailable);
            return;
        }
        let request_packets = self.config.geometry.packets(call.request_bytes);
        slot.active = Some(Active {
            call,
            numbering: Numbering { request_packets, response_packets: 1 },
            response_bytes: None,
            sent: 0,
            received: 0,
            progress_ns: now_ns,
            resend_from_ns: now_ns,
            is_resending: false,
            is_abandoned: false,
            was_sent: false,
        });
    }

    /// Ends a call early. Its slot stays taken until the server answers, because the server counts requests
    /// by slot. `false`: there is no such call.
    pub fn cancel(&mut self, cookie: u64) -> bool {
        if let Some(at) = self.backlog.iter().position(|call| call.cookie == cookie) {
            self.backlog.remove(at);
            self.end(cookie, Status::Cancelled, false);
            return true;
        }
        let is_it = |slot: &Slot| {
            slot.active.is_some_and(|active| active.call.cookie == cookie && !active.is_abandoned)
        };
        let Some(index) = self.slots.iter().position(is_it) else { return false };
        self.abandon(index, Status::Cancelled);
        true
    }

    fn end(&mut self, cookie: u64, status: Status, was_sent: bool) {
        self.ended.push_back(Ended { cookie, status, was_sent });
    }

    /// Tells the caller how the call ended. The slot is free at once if the server has not seen the request,
    /// or has answered it; further packets of the answer come late.
    fn abandon(&mut self, index: usize, status: Status) {
        let slot = &mut self.slots[index];
        let Some(active) = slot.active.as_mut() else { return };
        active.is_abandoned = true;
        let cookie = active.call.cookie;
        let was_sent = active.was_sent;
        let is_answered = active.response_bytes.is_some();
        if !was_sent {
            slot.req_num -= WINDOW_STEP;
        }
        if !was_sent || is_answered {
            self.release(index);
        }
        self.end(cookie, status, was_sent);
    }

    fn release(&mut self, index: usize) {
        if let Some(active) = self.slots[index].active.take() {
            self.credits += active.sent - active.received;
            #[expect(clippy::cast_possible_truncation, reason = "there are eight slots")]
            let freed = index as u8;
            self.free[self.free_len] = freed;
            self.free_len += 1;
        }
    }

    /// The next call that ended without a response.
    pub fn poll_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// The next packet to send. Nothing of it may be kept behind the driver's back: a packet is sent again
    /// from the same buffer, so the driver lets its NIC finish with the old one first.
    pub fn poll_transmit(&mut self, now_ns: u64) -> Option<Transmit> {
        while self.free_len > 0
            && let Some(call) = self.backlog.pop_front()
        {
            self.begin(call, now_ns);
        }
        if self.credits == 0 || self.is_closed {
            return None;
        }
        while let Some(index) = self.next_sending() {
            let slot = &mut self.slots[index];
            let Some(active) = slot.active.as_mut().filter(|active| active.is_sending()) else {
                self.sending &= !(1 << index);
                continue;
            };
            if !active.is_unanswered() && !active.is_resending {
                active.progress(now_ns);
            }
            self.credits -= 1;
            self.turn = (index + 1) % WINDOW;
            let transmit = active.transmit(slot.req_num, self.dest_session, self.config.geometry);
            if !active.is_sending() {
                self.sending &= !(1 << index);
            }
            return Some(transmit);
        }
        None
    }

    /// The next slot that may have a packet to send, from the one whose turn it is on.
    fn next_sending(&self) -> Option<usize> {
        const { assert!(WINDOW == u8::BITS as usize, "a bit per slot") };
        // Lossless: there are eight slots.
        let [turn, ..] = self.turn.to_le_bytes();
        let ahead = self.sending.rotate_right(turn.into()).trailing_zeros() as usize;
        (self.sending != 0).then_some((self.turn + ahead) % WINDOW)
    }

    /// Takes the header of a credit return or a response that was followed by `data_bytes`.
    pub fn receive(&mut self, header: &Header, data_bytes: u32, now_ns: u64) -> Received {
        match self.accept(header, data_bytes, now_ns) {
            Ok(received) => received,
            Err(ignored) => {
                self.counters.ignored += 1;
                Received::Ignored(ignored)
            }
        }
    }

    fn accept(
        &mut self,
        header: &Header,
        data_bytes: u32,
        now_ns: u64,
    ) -> Result<Received, Ignored> {
        let index = (header.req_num % WINDOW_STEP) as usize;
        let slot = &mut self.slots[index];
        let active = slot.active.as_mut().ok_or(Ignored::Late)?;
        if header.req_num != slot.req_num {
            return Err(Ignored::Late);
        }
        let number = u32::from(header.pkt_num);
        if number != active.received || number >= active.sent {
            return Err(Ignored::OutOfOrder);
        }
        let last_request = active.numbering.request_packets - 1;
        match header.kind {
            PacketKind::CreditReturn if number < last_request => {
                self.credits += 1;
                active.received += 1;
                active.progress(now_ns);
                Ok(Received::Credit)
            }
            PacketKind::Response if number >= last_request => {
                self.data(index, header, data_bytes, now_ns)
            }
            _ => Err(Ignored::Unexpected),
        }
    }

    /// Takes a packet of a response that came in order.
    fn data(
        &mut self,
        index: usize,
        header: &Header,
        data_bytes: u32,
        now_ns: u64,
    ) -> Result<Received, Ignored> {
        let geometry = self.config.geometry;
        let active = self.slots[index].active.as_mut().ok_or(Ignored::Late)?;
        let bytes = active.response_bytes.unwrap_or(header.msg_bytes);
        let nth = u32::from(header.pkt_num) + 1 - active.numbering.request_packets;
        let span = geometry.span(bytes, nth);
        if bytes != header.msg_bytes || bytes > geometry.msg_bytes_max() {
            return Err(Ignored::Unexpected);
        }
        if data_bytes < span.len_bytes {
            return Err(Ignored::Truncated);
        }
        self.credits += 1;
        active.received += 1;
        active.progress(now_ns);
        active.response_bytes = Some(bytes);
        active.numbering.response_packets = geometry.packets(bytes);
        if active.is_sending() {
            self.sending |= 1 << index;
        }
        let cookie = active.call.cookie;
        let was_abandoned = active.is_abandoned;
        let is_too_long = bytes > active.call.response_bytes_max;
        let is_complete = active.received == active.numbering.total();
        if was_abandoned || is_too_long || is_complete {
            self.release(index);
        }
        if was_abandoned {
            return Err(Ignored::Late);
        }
        if is_too_long {
            self.end(cookie, Status::OutOfRange, true);
            return Ok(Received::Ended);
        }
        Ok(Received::Data { cookie, span, complete: is_complete.then_some(bytes) })
    }

    /// Since when the server has left packets unanswered, if it has. A handler that takes long looks the same
    /// as a dead server: the driver asks whether the server is alive, and [closes](Self::close) if not.
    #[must_use]
    pub fn unanswered_since_ns(&self) -> Option<u64> {
        let waits = |active: &&Active| active.is_unanswered() || active.is_resending;
        let active = self.slots.iter().filter_map(|slot| slot.active.as_ref()).filter(waits);
        active.map(|active| active.progress_ns).min()
    }

    /// Ends calls whose deadline has passed, and resends packets that were not answered in time. Returns when it has
    /// to be called again at the latest.
    pub fn handle_timeout(&mut self, now_ns: u64) -> Option<u64> {
        if self.backlog_earliest_ns <= now_ns {
            self.expire_backlog(now_ns);
        }
        for index in 0..WINDOW {
            self.look_at(index, now_ns);
        }
        self.earliest_ns()
    }

    fn expire_backlog(&mut self, now_ns: u64) {
        self.backlog_earliest_ns = u64::MAX;
        for _ in 0..self.backlog.len() {
            let Some(call) = self.backlog.pop_front() else { break };
            if call.deadline_ns <= now_ns {
                self.end(call.cookie, Status::DeadlineExceeded, false);
            } else {
                self.backlog_earliest_ns = self.backlog_earliest_ns.min(call.deadline_ns);
                self.backlog.push_back(call);
            }
        }
    }

    fn look_at(&mut self, index: usize, now_ns: u64) {
        let Some(active) = &self.slots[index].active else { return };
        if !active.is_abandoned && active.call.deadline_ns <= now_ns {
            self.abandon(index, Status::DeadlineExceeded);
        }
        let Some(active) = self.slots[index].active.as_mut() else { return };
        let waited_ns = now_ns.saturating_sub(active.resend_from_ns);
        if active.is_unanswered() && waited_ns >= self.config.retransmit_ns {
            self.credits += active.sent - active.received;
            active.sent = active.received;
            self.sending |= 1 << index;
            (active.resend_from_ns, active.is_resending) = (now_ns, true);
            self.counters.retransmissions += 1;
        }
    }

    fn earliest_ns(&self) -> Option<u64> {
        let retransmit_ns = self.config.retransmit_ns;
        let of_slot = |active: &Active| {
            let deadline_ns = if active.is_abandoned { u64::MAX } else { active.call.deadline_ns };
            let resend_ns = match active.is_unanswered() {
                true => active.resend_from_ns.saturating_add(retransmit_ns),
                false => u64::MAX,
            };
            deadline_ns.min(resend_ns)
        };
        let slots = self.slots.iter().filter_map(|slot| slot.active.as_ref()).map(of_slot);
        let earliest_ns = slots.min().unwrap_or(u64::MAX).min(self.backlog_earliest_ns);
        (earliest_ns < u64::MAX).then_some(earliest_ns)
    }

    /// Ends every call with `status`: the session is of no more use.
    pub fn close(&mut self, status: Status) {
        self.is_closed = true;
        for index in 0..WINDOW {
            if let Some(active) = self.slots[index].active {
                if !active.is_abandoned {
                    self.end(active.call.cookie, status, active.was_sent);
                }
                self.release(index);
            }
        }
        while let Some(call) = self.backlog.pop_front() {
            self.end(call.cookie, status, false);
        }
    }
}
