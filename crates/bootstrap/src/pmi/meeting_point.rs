//! The address of rank 0 and the secret of the launch, as a text for the launcher.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};

use super::PmiError;
use crate::{Secret, entropy::NONCE_BYTES, route};

/// Changes whenever the words behind the first change their meaning.
pub(super) const VERSION: u32 = 1;

/// The first word of the text, before the version.
const NAME: &str = "copyrpc";

/// The version that a text names first.
pub(super) fn version_of(text: &str) -> Option<u32> {
    text.split(',').next()?.strip_prefix(NAME)?.parse().ok()
}

/// Where the ranks of a launch meet, and their secret.
#[derive(Clone, Debug)]
pub struct MeetingPoint {
    /// Where rank 0 listens.
    pub address: SocketAddr,
    /// The secret, in hexadecimal digits: what a secret file holds.
    pub secret: Secret,
}

impl MeetingPoint {
    /// A new secret for an address.
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, secret: Secret::random_digits() }
    }

    /// No spaces and no `=`, which PMI-1 uses itself.
    pub(super) fn to_text(&self) -> String {
        let secret = String::from_utf8_lossy(self.secret.as_bytes());
        format!("{NAME}{VERSION},{},{secret}", self.address)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(',');
        let [Some(_), Some(address), Some(secret)] = [words.next(), words.next(), words.next()]
        else {
            return None;
        };
        let is_secret =
            secret.len() == 2 * NONCE_BYTES && secret.bytes().all(|byte| byte.is_ascii_hexdigit());
        if version_of(text) != Some(VERSION) || !is_secret || words.next().is_some() {
            return None;
        }
        let secret = Secret::from_bytes(secret.as_bytes());
        Some(Self { address: address.parse().ok()?, secret })
    }
}

/// A TCP port of this machine that is kept for a listener of this process. The kernel gives it to nobody else, and
/// lets a listener bind it, as both allow their address to be reused.
#[derive(Debug)]
pub struct ReservedPort {
    _socket: OwnedFd,
    address: SocketAddr,
}

impl ReservedPort {
    /// A port of the address that others reach.
    pub(super) fn new() -> Result<Self, PmiError> {
        let ip = route::towards(route::ANYWHERE).unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "no route: daemons on other machines will not find rank 0. Set COPYRPC_RENDEZVOUS to an address of it"
            );
            IpAddr::V4(Ipv4Addr::LOCALHOST)
        });
        Self::at(ip)
    }

    fn at(ip: IpAddr) -> Result<Self, PmiError> {
        let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let reserve = || {
            let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &SocketAddr::new(ip, 0))?;
            let address = SocketAddr::try_from(getsockname(&socket)?)?;
            Ok(Self { _socket: socket, address })
        };
        reserve().map_err(|errno: rustix::io::Errno| PmiError::Os {
            step: "reserve a port for rank 0",
            source: errno.into(),
        })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_contact_is_read_as_it_was_written() {
        for address in ["10.0.0.1:7000", "[fe80::1]:9"] {
            let point = MeetingPoint::new(address.parse().unwrap());
            let text = point.to_text();
            assert!(!text.contains([' ', '=', '\n']), "PMI-1 uses them");
            let read = MeetingPoint::parse(&text).unwrap();
            assert_eq!(read.address, point.address);
            assert_eq!(read.secret.as_bytes(), point.secret.as_bytes());
            for end in 0..text.len() {
                assert!(MeetingPoint::parse(&text[..end]).is_none(), "{end}");
            }
            assert!(MeetingPoint::parse(&format!("{text},")).is_none());
            assert!(MeetingPoint::parse(&text.replace("copyrpc1", "copyrpc2")).is_none());
        }
    }

    /// Another build may be rank 0: whoever changes these words raises [`VERSION`].
    #[test]
    fn fault_e7_a_contact_has_the_words_that_builds_in_use_have() {
        let digits = "0123456789abcdef".repeat(4);
        let secret = Secret::from_bytes(digits.as_bytes());
        let point = MeetingPoint { address: "10.0.0.1:7000".parse().unwrap(), secret };
        assert_eq!(point.to_text(), format!("copyrpc1,10.0.0.1:7000,{digits}"));
        assert_eq!(version_of("copyrpc2,who knows"), Some(2));
        assert_eq!(["", "copyrpc", "something,else", "copyrpc-1,"].map(version_of), [None; 4]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "sockets")]
    fn a_reserved_port_is_free_for_a_listener() {
        let reserved = ReservedPort::at(Ipv4Addr::LOCALHOST.into()).unwrap();
        let listener = TcpListener::bind(reserved.address()).unwrap();
        assert_eq!(listener.local_addr().unwrap(), reserved.address());
    }
}
