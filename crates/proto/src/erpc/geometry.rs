//! Sizes that follow from the link, and the numbers of the packets of a call.

/// Bytes of a header without headroom.
pub const HEADER_BYTES: usize = 16;
/// Longest message that the header can name.
pub const MSG_BYTES_MAX: u32 = (1 << 24) - 1;
/// Largest packet number.
pub const PKT_NUM_MAX: u16 = (1 << 14) - 1;

/// Requests that a session can have in flight. Both sides derive a request's slot from it.
pub const WINDOW: usize = 8;
/// [`WINDOW`], as what a slot's request number grows by.
pub(super) const WINDOW_STEP: u64 = WINDOW as u64;
/// Packets of a session that a server has receives for.
pub const CREDITS: u32 = 32;
/// Largest allocation of the original, which holds a message and the headers of its packets.
const ALLOCATION_BYTES: u32 = 8 << 20;

/// The link below packets. Decides header, packet size, and with them the number of packets of a message:
/// two sides must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// UD over InfiniBand: packets of up to 3840 B, headers of 16.
    InfiniBand,
    /// UD over RoCE: packets of up to 1024 B, headers of 56.
    Roce,
}

impl Link {
    /// Unread bytes before the header.
    #[must_use]
    pub const fn headroom_bytes(self) -> usize {
        self.header_bytes() - HEADER_BYTES
    }

    /// Bytes of a header, headroom included.
    #[must_use]
    pub const fn header_bytes(self) -> usize {
        self.header() as usize
    }

    const fn header(self) -> u32 {
        match self {
            Self::InfiniBand => 16,
            Self::Roce => 56,
        }
    }

    /// Longest packet of the original on this link, header included.
    #[must_use]
    pub const fn mtu_bytes(self) -> u32 {
        match self {
            Self::InfiniBand => 3840,
            Self::Roce => 1024,
        }
    }
}

/// A link and its longest packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    link: Link,
    data_bytes: u32,
}

impl Geometry {
    /// As the original has it on `link`, for peers that run it.
    #[must_use]
    pub const fn of(link: Link) -> Self {
        Self { link, data_bytes: link.mtu_bytes() - link.header() }
    }

    /// With packets of up to `mtu_bytes`, header included, which both sides have to choose alike.
    /// `None` if a packet has no room for eight bytes of data, or is longer than a message can be.
    #[must_use]
    pub fn with_mtu(link: Link, mtu_bytes: u32) -> Option<Self> {
        let data_bytes = mtu_bytes.checked_sub(link.header())?;
        (8..=MSG_BYTES_MAX).contains(&data_bytes).then_some(Self { link, data_bytes })
    }

    /// The link layer that carries packets.
    #[must_use]
    pub const fn link(self) -> Link {
        self.link
    }

    /// Data bytes of a full packet.
    #[must_use]
    pub const fn data_bytes(self) -> u32 {
        self.data_bytes
    }

    /// Longest message: what fits the largest allocation of the original beside its headers, and whose
    /// packets can be numbered when the other direction has as many.
    #[must_use]
    pub fn msg_bytes_max(self) -> u32 {
        let headers = ALLOCATION_BYTES / self.data_bytes * self.link.header();
        let allocation = ALLOCATION_BYTES.saturating_sub(headers);
        let numbered = u32::from(PKT_NUM_MAX).div_ceil(2).saturating_mul(self.data_bytes);
        allocation.min(numbered).min(MSG_BYTES_MAX)
    }

    /// Packets of a message. An empty one takes one, too.
    #[must_use]
    pub const fn packets(self, msg_bytes: u32) -> u32 {
        if msg_bytes <= self.data_bytes { 1 } else { msg_bytes.div_ceil(self.data_bytes) }
    }

    /// First byte and number of bytes of packet `index` of a message; empty beyond its end.
    #[must_use]
    pub fn span(self, msg_bytes: u32, index: u32) -> Span {
        let at = index.saturating_mul(self.data_bytes).min(msg_bytes);
        Span { at_bytes: at, len_bytes: (msg_bytes - at).min(self.data_bytes) }
    }
}

/// Bytes of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset of the first one.
    pub at_bytes: u32,
    /// Length of the range.
    pub len_bytes: u32,
}

/// How the packets of one call are numbered: `R` of the request, `S` of the response.
///
/// ```text
/// client   REQ 0   REQ 1 … REQ R-1      RFR R      … RFR R+S-2
/// server   CR 0    CR 1  … RESP R-1     RESP R     … RESP R+S-2
///                          (packet 0)   (packet 1)   (packet S-1)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// `R`.
    pub request_packets: u32,
    /// `S`; 1 as long as the client does not know it.
    pub response_packets: u32,
}

impl Numbering {
    /// Packets that each side sends: `R + S - 1`.
    #[must_use]
    pub const fn total(self) -> u32 {
        self.request_packets + self.response_packets - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule E1.4: sizes of the original.
    #[test]
    fn sizes_are_those_of_the_original() {
        let infiniband = Geometry::of(Link::InfiniBand);
        assert_eq!((infiniband.data_bytes(), infiniband.msg_bytes_max()), (3824, 8_353_520));
        let roce = Geometry::of(Link::Roce);
        assert_eq!((roce.data_bytes(), roce.msg_bytes_max()), (968, 7_903_368));
    }

    #[test]
    fn packets_cover_a_message_once() {
        for link in [Link::InfiniBand, Link::Roce] {
            let geometry = Geometry::of(link);
            let data = geometry.data_bytes();
            for bytes in [0, 1, data - 1, data, data + 1, 3 * data, geometry.msg_bytes_max()] {
                let mut end = 0;
                for index in 0..geometry.packets(bytes) {
                    let span = geometry.span(bytes, index);
                    assert_eq!(span.at_bytes, end);
                    end += span.len_bytes;
                }
                assert_eq!(end, bytes);
                assert_eq!(geometry.span(bytes, geometry.packets(bytes)).len_bytes, 0);
                let number = Numbering {
                    request_packets: geometry.packets(bytes),
                    response_packets: geometry.packets(bytes),
                };
                assert!(number.total() <= u32::from(PKT_NUM_MAX) + 1);
            }
        }
    }

    #[test]
    fn packets_have_room_for_data() {
        assert_eq!(Geometry::with_mtu(Link::Roce, 63), None);
        assert_eq!(Geometry::with_mtu(Link::Roce, 64).map(Geometry::data_bytes), Some(8));
        assert_eq!(
            Geometry::with_mtu(Link::InfiniBand, 4096).map(Geometry::data_bytes),
            Some(4080)
        );
        assert_eq!(Geometry::with_mtu(Link::InfiniBand, u32::MAX), None);
    }
}
