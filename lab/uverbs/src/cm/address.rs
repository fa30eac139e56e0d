//! Addresses as programs name them to the connection manager: `struct sockaddr_in`, `sockaddr_in6` or `sockaddr_ib`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

/// Bytes of `struct sockaddr_ib`, in which each kind lies.
pub(super) const BYTES: usize = 48;

const INET: u16 = 2;
const INET6: u16 = 10;
/// `AF_IB`
const IB: u16 = 27;

/// `enum rdma_ucm_port_space`
pub(super) const PORT_SPACE_IPOIB: u16 = 0x2;
pub(super) const PORT_SPACE_TCP: u16 = 0x106;
pub(super) const PORT_SPACE_UDP: u16 = 0x111;
pub(super) const PORT_SPACE_IB: u16 = 0x13f;

/// `RDMA_IB_IP_PS_MASK` and `RDMA_IB_IP_PORT_MASK`: the parts of a service's number.
const SPACE_MASK: u64 = !0xffff;
const PORT_MASK: u64 = 0xffff;

/// An address, or what is unspecified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Ip(SocketAddr),
    Ib(IbAddress),
}

/// `struct sockaddr_ib`: a port of InfiniBand by its GID, and a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IbAddress {
    pub(super) pkey: u16,
    pub(super) flow_info: u32,
    pub(super) gid: [u8; 16],
    /// Port space and port, so far as the mask says.
    pub(super) service: u64,
    pub(super) service_mask: u64,
    pub(super) scope: u64,
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

impl IbAddress {
    /// That of a service of a port.
    pub(super) fn of(gid: [u8; 16], pkey: u16, service: u64) -> Self {
        Self { pkey, gid, service, service_mask: u64::MAX, ..Self::default() }
    }
}

impl Address {
    pub(super) const fn is_ib(&self) -> bool {
        matches!(self, Self::Ib(_))
    }

    /// Linux `cma_any_addr`.
    pub(super) fn is_any(&self) -> bool {
        match self {
            Self::Ip(address) => address.ip().is_unspecified(),
            Self::Ib(address) => address.gid == [0; 16],
        }
    }

    /// Linux `cma_port`.
    pub(super) fn port(&self) -> u16 {
        match self {
            Self::Ip(address) => address.port(),
            Self::Ib(address) => low(address.service & address.service_mask),
        }
    }

    /// Linux `cma_bind_port`.
    pub(super) fn set_port(&mut self, port: u16) {
        match self {
            Self::Ip(address) => address.set_port(port),
            Self::Ib(address) => {
                address.service =
                    address.service & address.service_mask & SPACE_MASK | u64::from(port);
                address.service_mask = u64::MAX;
            }
        }
    }

    /// The address that an identifier begins with which goes there and is not bound yet. Source: Linux `cma_bind_addr`; an
    /// IP address is that of the same host.
    pub(super) fn unbound(&self) -> Self {
        match *self {
            Self::Ip(mut same) => {
                same.set_port(0);
                Self::Ip(same)
            }
            Self::Ib(to) => Self::Ib(IbAddress { pkey: to.pkey, ..IbAddress::default() }),
        }
    }

    /// The port space that an identifier of another one takes with this address, which it is told in; `None`: there is
    /// none.
    ///
    /// Source: Linux `cma_select_inet_ps` and `cma_select_ib_ps`.
    pub(super) fn select_port_space(&mut self, of: u16) -> Option<u16> {
        let Self::Ib(address) = self else { return Some(of) };
        let mask = address.service_mask & SPACE_MASK;
        let names = |space: &u16| (u64::from(*space) << 16 ^ address.service) & mask == 0;
        let may_be = |space: &u16| of == PORT_SPACE_IB || of == *space;
        let spaces = [PORT_SPACE_IB, PORT_SPACE_TCP, PORT_SPACE_UDP];
        let space = spaces.into_iter().find(|space| may_be(space) && names(space))?;
        let port = address.service & address.service_mask & PORT_MASK;
        address.service = u64::from(space) << 16 | port;
        address.service_mask |= SPACE_MASK;
        Some(space)
    }

    /// Number of the service that is connected to: port space and port. Source: Linux `rdma_get_service_id`.
    pub(super) fn service(&self, port_space: u16) -> u64 {
        match self {
            Self::Ip(address) => u64::from(port_space) << 16 | u64::from(address.port()),
            Self::Ib(address) => address.service,
        }
    }

    /// Bytes of its structure: Linux `rdma_addr_size`.
    pub(super) const fn len(&self) -> u16 {
        match self {
            Self::Ip(SocketAddr::V4(_)) => 16,
            Self::Ip(SocketAddr::V6(_)) => 28,
            Self::Ib(_) => 48,
        }
    }
}

/// The lowest 16 bits.
fn low(number: u64) -> u16 {
    let [low, high, ..] = number.to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// Port space and port of the number of a service; `None`: it has more bits.
pub(super) fn space_and_port(service: u64) -> Option<(u16, u16)> {
    let space = u16::try_from(service >> 16).ok()?;
    Some((space, low(service)))
}

/// An address, or what is unspecified.
pub(super) fn parse(bytes: &[u8; BYTES]) -> Option<Address> {
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let word = |at: usize| -> Option<u64> {
        Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
    };
    match u16::from_ne_bytes([bytes[0], bytes[1]]) {
        INET => {
            let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            Some(SocketAddr::new(IpAddr::V4(ip), port).into())
        }
        INET6 => {
            let flow = u32::from_be_bytes(bytes[4..8].try_into().ok()?);
            let ip: [u8; 16] = bytes[8..24].try_into().ok()?;
            // Of a link-local address: the interface.
            let scope = u32::from_ne_bytes(bytes[24..28].try_into().ok()?);
            Some(Address::Ip(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into()))
        }
        IB => Some(Address::Ib(IbAddress {
            pkey: port,
            flow_info: u32::from_be_bytes(bytes[4..8].try_into().ok()?),
            gid: bytes[8..24].try_into().ok()?,
            service: word(24)?,
            service_mask: word(32)?,
            scope: word(40)?,
        })),
        _ => None,
    }
}

pub(super) fn encode(address: Address) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        Address::Ip(SocketAddr::V4(address)) => {
            bytes[..2].copy_from_slice(&INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&address.ip().octets());
        }
        Address::Ip(SocketAddr::V6(address)) => {
            bytes[..2].copy_from_slice(&INET6.to_ne_bytes());
            bytes[4..8].copy_from_slice(&address.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&address.ip().octets());
            bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
        }
        Address::Ib(address) => {
            bytes[..2].copy_from_slice(&IB.to_ne_bytes());
            bytes[2..4].copy_from_slice(&address.pkey.to_be_bytes());
            bytes[4..8].copy_from_slice(&address.flow_info.to_be_bytes());
            bytes[8..24].copy_from_slice(&address.gid);
            bytes[24..32].copy_from_slice(&address.service.to_be_bytes());
            bytes[32..40].copy_from_slice(&address.service_mask.to_be_bytes());
            bytes[40..48].copy_from_slice(&address.scope.to_be_bytes());
        }
    }
    bytes
}

/// Addresses of ports on RoCE, whichever of them it is.
const PORTS: [u8; 2] = [198, 18];

/// Whether a port of this machine has the address: every process that is to be reached is on it.
pub(super) fn is_here(mut address: SocketAddr) -> bool {
    let is_port = matches!(address.ip(), IpAddr::V4(ip) if ip.octets()[..2] == PORTS);
    address.set_port(0);
    is_port || UdpSocket::bind(address).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_as_bytes() {
        for text in ["127.0.0.1:7174", "[::1]:65535", "0.0.0.0:0", "[fe80::1%7]:1"] {
            let address = Address::Ip(text.parse().unwrap());
            assert_eq!(parse(&encode(address)), Some(address));
        }
        let service = u64::from(PORT_SPACE_TCP) << 16 | 7174;
        let address = Address::Ib(IbAddress {
            flow_info: 5,
            scope: 9,
            ..IbAddress::of([3; 16], 0xffff, service)
        });
        assert_eq!(parse(&encode(address)), Some(address));
        assert_eq!((address.port(), address.len()), (7174, 48));
        assert_eq!(parse(&[0; BYTES]), None);
    }

    #[test]
    fn only_addresses_of_this_machine_are_here() {
        for (ip, expected) in
            [([127, 0, 0, 1], true), ([198, 18, 0, 9], true), ([192, 0, 2, 1], false)]
        {
            assert_eq!(is_here(SocketAddr::new(IpAddr::from(ip), 9)), expected);
        }
    }

    #[test]
    fn a_service_names_its_port_space_as_far_as_its_mask_goes() {
        let select = |of: u16, service: u64, service_mask: u64| {
            let mut address =
                Address::Ib(IbAddress { service, service_mask, ..IbAddress::default() });
            let selected = address.select_port_space(of);
            (selected, address.port())
        };
        let tcp = u64::from(PORT_SPACE_TCP) << 16;
        // The first question of librdmacm.
        assert_eq!(select(PORT_SPACE_IB, tcp, SPACE_MASK), (Some(PORT_SPACE_TCP), 0));
        assert_eq!(select(PORT_SPACE_TCP, tcp | 9, u64::MAX), (Some(PORT_SPACE_TCP), 9));
        assert_eq!(select(PORT_SPACE_UDP, tcp, SPACE_MASK).0, None, "another port space");
        assert_eq!(select(PORT_SPACE_UDP, 0, 0).0, Some(PORT_SPACE_UDP), "no question of it");
        assert_eq!(select(PORT_SPACE_IB, 0, 0).0, Some(PORT_SPACE_IB));
        assert_eq!(space_and_port(tcp | 9), Some((PORT_SPACE_TCP, 9)));
        assert_eq!(space_and_port(1 << 32), None);
    }
}
