//! The header that travels with a datagram beyond its subnet, and lies before it in its receive.
//!
//! ```text
//!  bytes 0 to 39   InfiniBand, RoCE v1: global route header    RoCE v2 over IPv6: IPv6 header
//!  bytes 20 to 39  RoCE v2 over IPv4: IPv4 header, behind 20 bytes without meaning
//! ```
//!
//! Source: IBTA 8.3, A16.5.2, A17.4.5.2; RFC 791, RFC 8200. Ports have their LID in the last bytes of each GID.

use verbs::{Gid, Lid};
use wire::wqe::AvExtension;

use crate::nic::gid::{gid_of, ipv4_gid_of};

/// Bytes before a datagram's payload in its receive buffer.
pub(super) const GRH_BYTES: u32 = 40;

/// Headers of a packet between this one and the payload, and behind that: UDP, BTH, DETH, invariant CRC.
const UDP_BYTES: u16 = 8;
const OTHER_BYTES: u16 = 12 + 8 + 4;

/// `nextHdr` of InfiniBand, and IP's number of UDP.
const NEXT_BTH: u8 = 0x1b;
const NEXT_UDP: u8 = 17;

/// Rows of a GID table that a word tells apart.
const ROWS_MAX: u8 = 64;

/// What the header says, beside its source; as a word in [`Request::addr`](super::Request::addr).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GlobalRoute {
    to: Lid,
    /// Row of the sender's GID table that it leaves from.
    source_row: u8,
    /// RoCE v2.
    is_udp: bool,
    /// GIDs are IPv4 addresses.
    is_ipv4: bool,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
}

impl GlobalRoute {
    /// That of an address vector; rows of a RoCE port's GID table are v1 and v2 by turns.
    pub(super) fn new(to: Lid, is_roce: bool, extension: &AvExtension) -> Self {
        Self {
            to,
            source_row: extension.source_gid_index().min(ROWS_MAX - 1),
            is_udp: is_roce && extension.source_gid_index() % 2 == 1,
            is_ipv4: extension.rgid.to_bytes()[..12] == ipv4_gid_of(to).to_bytes()[..12],
            traffic_class: extension.tclass,
            hop_limit: extension.hop_limit,
            flow_label: extension.grh_gid_fl & 0xf_ffff,
        }
    }

    pub(super) fn to_word(self) -> u64 {
        u64::from(self.is_udp)
            | u64::from(self.is_ipv4) << 1
            | u64::from(self.source_row) << 2
            | u64::from(self.hop_limit) << 8
            | u64::from(self.traffic_class) << 16
            | u64::from(self.flow_label) << 24
            | u64::from(self.to.get()) << 48
    }

    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
    pub(super) fn of_word(word: u64) -> Self {
        Self {
            to: Lid::new((word >> 48) as u16),
            is_udp: word & 1 != 0,
            is_ipv4: word & 2 != 0,
            source_row: (word >> 2) as u8 & (ROWS_MAX - 1),
            hop_limit: (word >> 8) as u8,
            traffic_class: (word >> 16) as u8,
            flow_label: (word >> 24) as u32 & 0xf_ffff,
        }
    }

    pub(super) fn source_row(self) -> u8 {
        self.source_row
    }

    /// What completions say of the header, beside that there is one: 0, 1 and 2 for GRH, IPv6 and IPv4.
    /// Source: Linux `include/linux/mlx5/device.h`, `MLX5_CQE_ROCE_L3_HEADER_TYPE_*`.
    pub(super) fn kind(self) -> u8 {
        match (self.is_udp, self.is_ipv4) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        }
    }

    fn gid(self, of: Lid) -> Gid {
        if self.is_ipv4 { ipv4_gid_of(of) } else { gid_of(of) }
    }

    /// The header of a datagram of `len_bytes` that port `from` has sent.
    pub(super) fn header(self, from: Lid, len_bytes: u32) -> [u8; GRH_BYTES as usize] {
        let padded = u16::try_from(len_bytes.next_multiple_of(4)).unwrap_or(u16::MAX);
        let behind = padded.saturating_add(OTHER_BYTES);
        let [source, destination] = [from, self.to].map(|lid| self.gid(lid).to_bytes());
        let mut bytes = [0; GRH_BYTES as usize];
        if self.kind() == 2 {
            let header = &mut bytes[20..];
            let total = behind.saturating_add(UDP_BYTES + 20);
            header[..2].copy_from_slice(&[0x45, self.traffic_class]);
            header[2..4].copy_from_slice(&total.to_be_bytes());
            // Don't fragment.
            header[6..10].copy_from_slice(&[0x40, 0, self.hop_limit, NEXT_UDP]);
            header[12..16].copy_from_slice(&source[12..]);
            header[16..20].copy_from_slice(&destination[12..]);
            let sum = checksum(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            return bytes;
        }
        let (next, udp) = if self.is_udp { (NEXT_UDP, UDP_BYTES) } else { (NEXT_BTH, 0) };
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label;
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        bytes[4..6].copy_from_slice(&behind.saturating_add(udp).to_be_bytes());
        bytes[6..8].copy_from_slice(&[next, self.hop_limit]);
        bytes[8..24].copy_from_slice(&source);
        bytes[24..].copy_from_slice(&destination);
        bytes
    }
}

/// Of an IPv4 header whose checksum is zero: RFC 1071.
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    let sum = words.fold(0u16, |sum, word| {
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    });
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(is_roce: bool, row: u32, rgid: Gid) -> GlobalRoute {
        let grh_gid_fl = row << 20 | 0x54321;
        let extension =
            AvExtension { tclass: 0xb8, hop_limit: 64, grh_gid_fl, rgid, ..AvExtension::default() };
        GlobalRoute::new(Lid::new(2), is_roce, &extension)
    }

    #[test]
    fn a_route_survives_as_a_word() {
        for (is_roce, row) in [(false, 0), (true, 0), (true, 1), (true, 2), (true, 63)] {
            for rgid in [gid_of(Lid::new(2)), ipv4_gid_of(Lid::new(2))] {
                let route = route(is_roce, row, rgid);
                assert_eq!(GlobalRoute::of_word(route.to_word()), route);
            }
        }
    }

    /// The words of a right IPv4 header add up to all ones.
    #[test]
    fn roce_v2_over_ipv4_has_its_header_in_the_last_twenty_bytes() {
        let route = route(true, 3, ipv4_gid_of(Lid::new(2)));
        let header = route.header(Lid::new(1), 61);
        assert_eq!(header[..20], [0; 20]);
        let header = &header[20..];
        assert_eq!(checksum(header), 0);
        assert_eq!(header[..4], [0x45, 0xb8, 0, 20 + 8 + 12 + 8 + 64 + 4]);
        assert_eq!(header[8..10], [64, 17]);
        assert_eq!(header[12..], [198, 18, 0, 1, 198, 18, 0, 2]);
        assert_eq!(route.kind(), 2);
    }

    #[test]
    fn other_headers_have_gids_and_tell_what_follows() {
        let gids = [1, 2].map(|lid| gid_of(Lid::new(lid)));
        for (is_roce, row, next, len, kind) in
            [(false, 1, 0x1b, 88, 0), (true, 0, 0x1b, 88, 0), (true, 1, 17, 96, 1)]
        {
            let route = route(is_roce, row, gids[1]);
            let header = route.header(Lid::new(1), 64);
            assert_eq!(header[..8], [0x6b, 0x85, 0x43, 0x21, 0, len, next, 64]);
            assert_eq!(header[8..24], gids[0].to_bytes());
            assert_eq!(header[24..], gids[1].to_bytes());
            assert_eq!(route.kind(), kind);
        }
    }
}
