//! A call that has a slot: which of its packets were sent and answered, and the next one.

use super::{Call, Transmit};
use crate::erpc::{
    geometry::{Geometry, Numbering, PKT_NUM_MAX, Span},
    packet::{Header, PacketKind},
};

#[derive(Clone, Copy, Debug)]
pub(super) struct Active {
    pub(super) call: Call,
    pub(super) numbering: Numbering,
    /// Length of the response, once its first packet arrived.
    pub(super) response_bytes: Option<u32>,
    /// Packets sent and answered: `received ≤ sent ≤ numbering.total()`.
    pub(super) sent: u32,
    pub(super) received: u32,
    /// When the latest answer came, or the first packet without one was sent for the first time.
    pub(super) progress_ns: u64,
    /// `progress_ns`, or when packets were last sent again.
    pub(super) resend_from_ns: u64,
    /// Packets from `sent` on may have been sent before.
    pub(super) is_resending: bool,
    /// The caller knows how it ended; the slot waits for the server, which may still execute it.
    pub(super) is_abandoned: bool,
    pub(super) was_sent: bool,
}

impl Active {
    pub(super) fn is_unanswered(&self) -> bool {
        self.sent > self.received
    }

    /// Whether there is a packet that may be sent as soon as there is credit. An abandoned call sends what
    /// the server needs in order to answer, and asks for no more.
    pub(super) fn is_sending(&self) -> bool {
        let end = match self.is_abandoned {
            true => self.numbering.request_packets,
            false => self.numbering.total(),
        };
        self.sent < end
    }

    pub(super) fn progress(&mut self, now_ns: u64) {
        (self.progress_ns, self.resend_from_ns, self.is_resending) = (now_ns, now_ns, false);
    }

    /// The next packet.
    pub(super) fn transmit(
        &mut self,
        req_num: u64,
        dest_session: u16,
        geometry: Geometry,
    ) -> Transmit {
        let number = self.sent;
        let is_request = number < self.numbering.request_packets;
        let (kind, msg_bytes, span) = if is_request {
            let bytes = self.call.request_bytes;
            (PacketKind::Request, bytes, geometry.span(bytes, number))
        } else {
            (PacketKind::RequestForResponse, 0, Span::default())
        };
        let header = Header {
            req_type: self.call.req_type,
            msg_bytes,
            dest_session,
            kind,
            pkt_num: pkt_num(number),
            req_num,
        };
        self.sent += 1;
        self.was_sent = true;
        Transmit { header, cookie: self.call.cookie, span }
    }
}

/// `Geometry::msg_bytes_max` leaves numbers for the longest messages of both directions.
#[expect(clippy::cast_possible_truncation, reason = "packet numbers have 14 bits")]
fn pkt_num(number: u32) -> u16 {
    debug_assert!(number <= u32::from(PKT_NUM_MAX), "packet {number} has no number");
    number as u16
}
