//! Addresses of this machine, by the way to others.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket},
};

/// An address of TEST-NET-1 (RFC 5737), where the default route leads: only the route counts, nothing is sent.
pub const ANYWHERE: &str = "192.0.2.1:9";

/// The address of this machine on the way to `target`: of IPv4 if that has one and there is a route.
///
/// # Errors
///
/// The kernel's reason why there is no way.
pub fn towards(target: &str) -> io::Result<IpAddr> {
    let mut candidates: Vec<_> = target.to_socket_addrs()?.collect();
    candidates.sort_by_key(SocketAddr::is_ipv6);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in candidates {
        let any = match candidate {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let local = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(candidate)?;
            socket.local_addr()
        });
        match local {
            Ok(address) => return Ok(address.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}
