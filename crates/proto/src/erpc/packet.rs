//! The header of every datapath packet.
//!
//! ```text
//!  headroom      0     2          3               6                  8
//!  │ 0 or 40 B   │ pad │ req type │ msg bytes u24 │ dest session u16 │ 63 magic 60 │ 59 req num 16 │ 15 pkt num 2 │ 1 kind 0 │
//! ```
//!
//! All integers are little-endian. On RoCE the header starts with 40 unread bytes, because
//! the original shares one layout with raw Ethernet, where they hold the Ethernet, IPv4 and UDP headers.
//!
//! Source: eRPC (Kalia, Kaminsky, Andersen, NSDI 2019), commit de83dab3, `pkthdr.h`.

use super::geometry::{HEADER_BYTES, Link, MSG_BYTES_MAX, PKT_NUM_MAX};

/// Largest header: that of RoCE.
pub const HEADER_BYTES_MAX: usize = HEADER_BYTES + 40;
/// Bits 60 to 63 of the last word.
const MAGIC: u64 = 11;
/// The type that no handler can have.
pub const REQ_TYPE_INVALID: u8 = 255;
/// Largest request number.
pub const REQ_NUM_MAX: u64 = (1 << 44) - 1;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketKind {
    /// Bytes of a request, from the client.
    Request = 0,
    /// *Request for response*: the client asks for one more packet of a response.
    RequestForResponse = 1,
    /// *Explicit credit return*: the server acknowledges a packet of a request that is not its last.
    CreditReturn = 2,
    /// Bytes of a response, from the server.
    Response = 3,
}

impl PacketKind {
    const fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::Request,
            1 => Self::RequestForResponse,
            2 => Self::CreditReturn,
            _ => Self::Response,
        }
    }
}

/// A packet without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Names the handler.
    pub req_type: u8,
    /// Bytes of the whole message, without headers; 0 in credit returns and requests for response.
    pub msg_bytes: u32,
    /// Number of the session at the receiver.
    pub dest_session: u16,
    /// The kind of the packet.
    pub kind: PacketKind,
    /// Number within the call, in both directions together; see [`Numbering`](super::geometry::Numbering).
    pub pkt_num: u16,
    /// Number of the call within its session.
    pub req_num: u64,
}

/// Why bytes are no packet. The receiver drops them and counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PacketError {
    /// Shorter than a header.
    #[error("{found} B are shorter than the header of {header} B")]
    Truncated {
        /// Length.
        found: usize,
        /// Of a header on this link.
        header: usize,
    },
    /// The magic number is missing.
    #[error("the magic number is {0}, not 11")]
    Magic(u8),
}

impl Header {
    /// Writes the header, headroom included.
    ///
    /// # Panics
    ///
    /// If a number exceeds its field, or `to` is not as long as a header of `link`.
    pub fn encode(&self, link: Link, to: &mut [u8]) {
        assert_eq!(to.len(), link.header_bytes(), "the buffer holds exactly a header");
        assert!(self.msg_bytes <= MSG_BYTES_MAX, "{} B exceed 24 bits", self.msg_bytes);
        assert!(self.pkt_num <= PKT_NUM_MAX, "packet {} exceeds 14 bits", self.pkt_num);
        assert!(self.req_num <= REQ_NUM_MAX, "request {} exceeds 44 bits", self.req_num);
        let word =
            self.kind as u64 | u64::from(self.pkt_num) << 2 | self.req_num << 16 | MAGIC << 60;
        let (headroom, header) = to.split_at_mut(link.headroom_bytes());
        // A call of `memset` for nothing takes as long as the rest.
        if !headroom.is_empty() {
            headroom.fill(0);
        }
        let [m0, m1, m2, _] = self.msg_bytes.to_le_bytes();
        let [s0, s1] = self.dest_session.to_le_bytes();
        header[..8].copy_from_slice(&[0, 0, self.req_type, m0, m1, m2, s0, s1]);
        header[8..].copy_from_slice(&word.to_le_bytes());
    }

    /// Reads the header of a packet. The rest of `packet` is data.
    ///
    /// # Errors
    ///
    /// [`PacketError`].
    pub fn decode(link: Link, packet: &[u8]) -> Result<Self, PacketError> {
        let truncated = PacketError::Truncated { found: packet.len(), header: link.header_bytes() };
        let header: &[u8; HEADER_BYTES] =
            packet.get(link.headroom_bytes()..).and_then(<[u8]>::first_chunk).ok_or(truncated)?;
        let [_, _, req_type, m0, m1, m2, s0, s1, word @ ..] = *header;
        let word = u64::from_le_bytes(word);
        if word >> 60 != MAGIC {
            return Err(PacketError::Magic(word.to_le_bytes()[7] >> 4));
        }
        let [low, high, ..] = word.to_le_bytes();
        Ok(Self {
            req_type,
            msg_bytes: u32::from_le_bytes([m0, m1, m2, 0]),
            dest_session: u16::from_le_bytes([s0, s1]),
            kind: PacketKind::from_bits(word),
            pkt_num: u16::from_le_bytes([low, high]) >> 2,
            req_num: word >> 16 & REQ_NUM_MAX,
        })
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;
    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        Header {
            req_type: 0xab,
            msg_bytes: 0x12_3456,
            dest_session: 0xcdef,
            kind: PacketKind::CreditReturn,
            pkt_num: 0x1555,
            req_num: 0xabc_def1_2345,
        }
    }

    const GOLDEN: [u8; 16] = hex!("0000ab563412efcd56554523f1debcba");

    /// Rule E1.1: bytes computed by hand from the bit fields of the original.
    #[test]
    fn golden_bytes_of_a_header() {
        let mut bytes = [0xee; HEADER_BYTES];
        header().encode(Link::InfiniBand, &mut bytes);
        assert_eq!(bytes, GOLDEN);
        assert_eq!(Header::decode(Link::InfiniBand, &bytes), Ok(header()));
    }

    /// Rule E1.2.
    #[test]
    fn roce_has_forty_bytes_before_it() {
        let mut bytes = [0xee; HEADER_BYTES_MAX];
        header().encode(Link::Roce, &mut bytes);
        assert_eq!(bytes[..40], [0; 40]);
        assert_eq!(bytes[40..], GOLDEN);
        bytes[..42].fill(0x77);
        assert_eq!(
            Header::decode(Link::Roce, &bytes),
            Ok(header()),
            "headroom and pad are not read"
        );
    }

    /// Rule E1.3.
    #[test]
    fn what_is_no_packet_is_refused() {
        let mut bytes = GOLDEN;
        bytes[15] = 0xab;
        assert_eq!(Header::decode(Link::InfiniBand, &bytes), Err(PacketError::Magic(10)));
        assert_eq!(
            Header::decode(Link::InfiniBand, &GOLDEN[..15]),
            Err(PacketError::Truncated { found: 15, header: 16 })
        );
        assert_eq!(
            Header::decode(Link::Roce, &[0; 55]),
            Err(PacketError::Truncated { found: 55, header: 56 })
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..Default::default()
        })]

        #[test]
        fn any_header_survives_its_bytes(
            req_type: u8, msg_bytes in 0..=MSG_BYTES_MAX, dest_session: u16, kind in 0..4u64,
            pkt_num in 0..=PKT_NUM_MAX, req_num in 0..=REQ_NUM_MAX,
        ) {
            let kind = PacketKind::from_bits(kind);
            let header = Header { req_type, msg_bytes, dest_session, kind, pkt_num, req_num };
            for link in [Link::InfiniBand, Link::Roce] {
                let mut bytes = [0xee; HEADER_BYTES_MAX];
                let bytes = &mut bytes[..link.header_bytes()];
                header.encode(link, bytes);
                prop_assert_eq!(Header::decode(link, bytes), Ok(header));
            }
        }

        #[test]
        fn no_bytes_make_decoding_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            for link in [Link::InfiniBand, Link::Roce] {
                let _ = Header::decode(link, &bytes);
            }
        }
    }
}
