//! How a port on TCP is addressed: a GID that says where it listens, and which life of it that is.
//!
//! ```text
//!  fd 63 70 72 │ life: 4 │ LID: 2 │ TCP port: 2 │ IPv4 address: 4      big endian
//! ```
//!
//! The first byte makes it a unique local IPv6 address (RFC 4193), which no RoCE port has by accident.

use core::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use verbs::{Gid, GidRoute, PortRoute};

/// Bytes of a name.
pub(crate) const NAME_BYTES: usize = 16;

const PREFIX: [u8; 4] = [0xfd, b'c', b'p', b'r'];

/// Where a port listens, and which of the ports that listened there it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName {
    /// Address that it listens at.
    pub address: SocketAddrV4,
    /// A random number of this port's life: its successor at the same address has another one.
    pub life: u32,
    /// Its LID on the shared memory of its host; 0: it is reached over TCP only.
    pub lid: u16,
}

impl PortName {
    /// As bytes of a GID.
    #[must_use]
    pub fn to_bytes(self) -> [u8; NAME_BYTES] {
        let mut bytes = [0; NAME_BYTES];
        bytes[..4].copy_from_slice(&PREFIX);
        bytes[4..8].copy_from_slice(&self.life.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.lid.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.address.port().to_be_bytes());
        bytes[12..].copy_from_slice(&self.address.ip().octets());
        bytes
    }

    /// The name of these bytes; `None` if they are no name.
    #[must_use]
    pub fn from_bytes(bytes: [u8; NAME_BYTES]) -> Option<Self> {
        let [a, b, c, d, l0, l1, l2, l3, n0, n1, p0, p1, ip @ ..] = bytes;
        let port = u16::from_be_bytes([p0, p1]);
        let address = SocketAddrV4::new(Ipv4Addr::from(ip), port);
        let life = u32::from_be_bytes([l0, l1, l2, l3]);
        let lid = u16::from_be_bytes([n0, n1]);
        ([a, b, c, d] == PREFIX && port != 0).then_some(Self { address, life, lid })
    }

    /// Distinguishes it from earlier or foreign ports with the same LID.
    #[must_use]
    pub(crate) fn instance(self) -> u64 {
        u64::from(self.life) << 32 | u64::from(self.address.ip().to_bits())
    }

    /// As what peers send to.
    #[must_use]
    pub fn route(self) -> PortRoute {
        let gid = Gid::new(self.to_bytes());
        PortRoute::Gid(GidRoute { gid, hop_limit: 64, traffic_class: 0, flow_label: 0 })
    }

    /// Of a route; `None` if it leads to no port on TCP.
    #[must_use]
    pub fn of_route(route: &PortRoute) -> Option<Self> {
        match route {
            PortRoute::Gid(route) | PortRoute::Global(_, route) => {
                Self::from_bytes(route.gid.to_bytes())
            }
            PortRoute::Lid(_) => None,
        }
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:08x})", self.address, self.life)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, cases: if cfg!(miri) { 4 } else { 256 }, ..Default::default()
        })]

        #[test]
        fn a_name_is_what_its_bytes_say(
            ip in any::<u32>(), port in 1u16.., life in any::<u32>(), lid in any::<u16>(),
        ) {
            let name = PortName { address: SocketAddrV4::new(ip.into(), port), life, lid };
            prop_assert_eq!(PortName::from_bytes(name.to_bytes()), Some(name));
            prop_assert_eq!(PortName::of_route(&name.route()), Some(name));
        }

        #[test]
        fn other_bytes_are_no_name_or_are_that_name(bytes in any::<[u8; NAME_BYTES]>()) {
            if let Some(name) = PortName::from_bytes(bytes) {
                prop_assert_eq!(name.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn the_layout_is_fixed() {
        let address = "10.1.2.3:700".parse().unwrap();
        let name = PortName { address, life: 0x0102_0304, lid: 0x0506 };
        let bytes = [0xfd, 0x63, 0x70, 0x72, 1, 2, 3, 4, 5, 6, 0x02, 0xbc, 10, 1, 2, 3];
        assert_eq!(name.to_bytes(), bytes);
    }
}
