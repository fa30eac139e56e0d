//! The server's end of a session. It sends nothing that the client did not ask for, so it has neither
//! timers nor credits: a packet that is lost comes again.

use alloc::collections::VecDeque;

use super::{
    Ignored,
    geometry::{CREDITS, Geometry, Numbering, Span, WINDOW, WINDOW_STEP},
    packet::{Header, PacketKind},
};

/// Names a request that was received, among all of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

impl RequestId {
    /// Slot of the request: its number modulo the [window](WINDOW).
    #[must_use]
    pub const fn slot(self) -> usize {
        (self.0 % WINDOW_STEP) as usize
    }

    /// Its number within the session.
    #[must_use]
    pub const fn req_num(self) -> u64 {
        self.0
    }
}

/// A packet to send: its header, and bytes of the response to `request` (none if the span is empty).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The header.
    pub header: Header,
    /// The request that the packet answers.
    pub request: RequestId,
    /// Data behind the header.
    pub span: Span,
}

/// The effect of a packet from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes of a request, to be copied to `span` of its buffer. The response to the request that had this
    /// slot before is of no more use.
    Data {
        /// The request.
        request: RequestId,
        /// Names the handler.
        req_type: u8,
        /// Where the bytes belong.
        span: Span,
        /// Length of the request.
        msg_bytes: u32,
        /// Whether these were the first bytes: a buffer is needed.
        is_first: bool,
        /// Whether these were the last bytes: the handler runs, once.
        is_last: bool,
    },
    /// The client asked for a packet that [`Server::poll_transmit`] has.
    Asked,
    /// The packet changed nothing.
    Ignored(Ignored),
}

/// Why an answer was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RespondError {
    /// The request was answered before, or the client has given it up and made another one.
    #[error("request {0} waits for no answer")]
    NotWaiting(u64),
    /// No packets can number it.
    #[error("a response of {bytes} B exceeds the longest message, {max} B")]
    TooLong {
        /// Of the response.
        bytes: u32,
        /// Of a message.
        max: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No request yet.
    Empty,
    /// Packets of a request are missing.
    Receiving,
    /// The handler has the request.
    Serving,
    /// There is a response of that length.
    Answered { bytes: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    req_num: u64,
    req_type: u8,
    msg_bytes: u32,
    /// Packets of the client that came in order.
    received: u32,
    state: State,
}

impl Slot {
    fn request_packets(&self, geometry: Geometry) -> u32 {
        geometry.packets(self.msg_bytes)
    }
}

/// The packet to send: of this number, of the slot's call.
#[derive(Clone, Copy, Debug)]
struct Due {
    request: RequestId,
    number: u16,
}

/// The server's end of a connected session.
#[derive(Debug)]
pub struct Server {
    geometry: Geometry,
    /// Of the client.
    dest_session: u16,
    slots: [Slot; WINDOW],
    due: VecDeque<Due>,
    ignored: u64,
}

impl Server {
    /// A session that the client calls `dest_session`.
    #[must_use]
    pub fn new(geometry: Geometry, dest_session: u16) -> Self {
        let mut req_num = 0;
        let slots = [(); WINDOW].map(|()| {
            let state = State::Empty;
            let slot = Slot { req_num, req_type: 0, msg_bytes: 0, received: 0, state };
            req_num += 1;
            slot
        });
        Self { geometry, dest_session, slots, due: VecDeque::new(), ignored: 0 }
    }

    /// Packets that changed nothing.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Takes the header of a request or a request for response that was followed by `data_bytes`.
    pub fn receive(&mut self, header: &Header, data_bytes: u32) -> Received {
        let accepted = match header.kind {
            PacketKind::Request => self.request(header, data_bytes),
            PacketKind::RequestForResponse => self.request_for_response(header),
            PacketKind::CreditReturn | PacketKind::Response => Err(Ignored::Unexpected),
        };
        accepted.unwrap_or_else(|ignored| {
            self.ignored += 1;
            Received::Ignored(ignored)
        })
    }

    fn request(&mut self, header: &Header, data_bytes: u32) -> Result<Received, Ignored> {
        let geometry = self.geometry;
        let index = (header.req_num % WINDOW_STEP) as usize;
        let slot = &mut self.slots[index];
        let number = u32::from(header.pkt_num);
        let is_next_request = header.req_num == slot.req_num + WINDOW_STEP;
        if header.req_num != slot.req_num && !is_next_request {
            return Err(Ignored::Late);
        }
        if is_next_request
            && (number != 0 || matches!(slot.state, State::Receiving | State::Serving))
        {
            // A client that speaks the protocol waits for the answer before it uses a slot again.
            return Err(Ignored::OutOfOrder);
        }
        if header.msg_bytes > geometry.msg_bytes_max() {
            return Err(Ignored::Unexpected);
        }
        if !is_next_request && (slot.state != State::Receiving || number < slot.received) {
            return self.again(index, header);
        }
        let msg_bytes = if is_next_request { header.msg_bytes } else { slot.msg_bytes };
        if !is_next_request && (number > slot.received || header.msg_bytes != msg_bytes) {
            return Err(Ignored::OutOfOrder);
        }
        let span = geometry.span(msg_bytes, number);
        if data_bytes < span.len_bytes {
            return Err(Ignored::Truncated);
        }
        if is_next_request {
            (slot.req_num, slot.req_type, slot.msg_bytes) =
                (header.req_num, header.req_type, msg_bytes);
            slot.received = 0;
        }
        slot.received += 1;
        let is_last = slot.received == geometry.packets(msg_bytes);
        slot.state = if is_last { State::Serving } else { State::Receiving };
        let request = RequestId(header.req_num);
        if !is_last {
            self.owe(request, header.pkt_num);
        }
        let req_type = self.slots[index].req_type;
        let is_first = number == 0;
        Ok(Received::Data { request, req_type, span, msg_bytes, is_first, is_last })
    }

    /// A packet of a request that has arrived before: its answer got lost.
    fn again(&mut self, index: usize, header: &Header) -> Result<Received, Ignored> {
        let slot = &self.slots[index];
        let number = u32::from(header.pkt_num);
        let last = slot.request_packets(self.geometry).wrapping_sub(1);
        let is_answered = matches!(slot.state, State::Answered { .. });
        if slot.state == State::Empty || number > last || (number == last && !is_answered) {
            return Err(Ignored::OutOfOrder);
        }
        self.owe(RequestId(header.req_num), header.pkt_num);
        Ok(Received::Asked)
    }

    fn request_for_response(&mut self, header: &Header) -> Result<Received, Ignored> {
        let slot = &mut self.slots[(header.req_num % WINDOW_STEP) as usize];
        let number = u32::from(header.pkt_num);
        if header.req_num != slot.req_num {
            return Err(Ignored::Late);
        }
        let State::Answered { bytes } = slot.state else { return Err(Ignored::OutOfOrder) };
        let numbering = Numbering {
            request_packets: slot.request_packets(self.geometry),
            response_packets: self.geometry.packets(bytes),
        };
        if number < numbering.request_packets || number >= numbering.total() {
            return Err(Ignored::Unexpected);
        }
        if number > slot.received {
            return Err(Ignored::OutOfOrder);
        }
        slot.received = slot.received.max(number + 1);
        self.owe(RequestId(header.req_num), header.pkt_num);
        Ok(Received::Asked)
    }

    /// Notes a packet to be sent. A client has at most [`CREDITS`] without an answer, so the excess
    /// was requested twice.
    fn owe(&mut self, request: RequestId, number: u16) {
        if self.due.len() < CREDITS as usize {
            self.due.push_back(Due { request, number });
        }
    }

    /// Answers a request with a response of `bytes`, whose bytes stay with the driver until the next request
    /// of that slot.
    ///
    /// # Errors
    ///
    /// [`RespondError`].
    pub fn respond(&mut self, request: RequestId, bytes: u32) -> Result<(), RespondError> {
        let max = self.geometry.msg_bytes_max();
        if bytes > max {
            return Err(RespondError::TooLong { bytes, max });
        }
        let slot = &mut self.slots[request.slot()];
        if slot.req_num != request.0 || slot.state != State::Serving {
            return Err(RespondError::NotWaiting(request.0));
        }
        slot.state = State::Answered { bytes };
        // The last packet of the request arrived, so its number has 14 bits.
        let last = u16::try_from(slot.request_packets(self.geometry) - 1).unwrap_or(u16::MAX);
        self.owe(request, last);
        Ok(())
    }

    /// The next packet to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        while let Some(Due { request, number: pkt_num }) = self.due.pop_front() {
            let slot = &self.slots[request.slot()];
            let number = u32::from(pkt_num);
            if slot.req_num != request.0 {
                continue;
            }
            let last = slot.request_packets(self.geometry) - 1;
            let (kind, msg_bytes, span) = match slot.state {
                State::Answered { bytes } if number >= last => {
                    (PacketKind::Response, bytes, self.geometry.span(bytes, number - last))
                }
                _ if number < last => (PacketKind::CreditReturn, 0, Span::default()),
                _ => continue,
            };
            let header = Header {
                req_type: slot.req_type,
                msg_bytes,
                dest_session: self.dest_session,
                kind,
                pkt_num,
                req_num: request.0,
            };
            return Some(Transmit { header, request, span });
        }
        None
    }
}
