//! IP addresses as programs name them to the connection manager: `struct sockaddr_in` or `sockaddr_in6`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Bytes of `struct sockaddr_in6`, in which either kind lies.
pub(super) const BYTES: usize = 28;

const INET: u16 = 2;
const INET6: u16 = 10;

/// An address, or what is unspecified.
pub(super) fn parse(bytes: &[u8; BYTES]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let ip = match u16::from_ne_bytes([bytes[0], bytes[1]]) {
        INET => IpAddr::V4(Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7])),
        INET6 => {
            let ip: [u8; 16] = bytes[8..24].try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(ip))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

pub(super) fn encode(address: SocketAddr) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            bytes[..2].copy_from_slice(&INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes[..2].copy_from_slice(&INET6.to_ne_bytes());
            bytes[8..24].copy_from_slice(&ip.octets());
        }
    }
    bytes
}

/// Addresses of ports on RoCE, whichever of them it is.
const PORTS: [u8; 2] = [198, 18];

/// Whether a port of this machine has the address: every process that is to be reached is on it.
pub(super) fn is_here(ip: IpAddr) -> bool {
    let is_port = matches!(ip, IpAddr::V4(ip) if ip.octets()[..2] == PORTS);
    is_port || UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_as_bytes() {
        for text in ["127.0.0.1:7174", "[::1]:65535", "0.0.0.0:0"] {
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
            assert_eq!(is_here(IpAddr::from(ip)), expected);
        }
    }
}
