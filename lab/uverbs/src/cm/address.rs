//! IP addresses as programs name them to the connection manager: `struct sockaddr_in` or `sockaddr_in6`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

/// Bytes of `struct sockaddr_in6`, in which either kind lies.
pub(super) const BYTES: usize = 28;

const INET: u16 = 2;
const INET6: u16 = 10;

/// An address, or what is unspecified.
pub(super) fn parse(bytes: &[u8; BYTES]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    match u16::from_ne_bytes([bytes[0], bytes[1]]) {
        INET => {
            let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            Some(SocketAddr::new(IpAddr::V4(ip), port))
        }
        INET6 => {
            let flow = u32::from_be_bytes(bytes[4..8].try_into().ok()?);
            let ip: [u8; 16] = bytes[8..24].try_into().ok()?;
            // Of a link-local address: the interface.
            let scope = u32::from_ne_bytes(bytes[24..28].try_into().ok()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into())
        }
        _ => None,
    }
}

pub(super) fn encode(address: SocketAddr) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => {
            bytes[..2].copy_from_slice(&INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&address.ip().octets());
        }
        SocketAddr::V6(address) => {
            bytes[..2].copy_from_slice(&INET6.to_ne_bytes());
            bytes[4..8].copy_from_slice(&address.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&address.ip().octets());
            bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
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
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(parse(&encode(address)), Some(address));
        }
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
}
