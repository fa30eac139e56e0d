//! The UDP socket of management packets.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
};

use proto::erpc::management::{
    HostName, MANAGEMENT_BYTES, MANAGEMENT_PORT, MANAGEMENT_PORTS, Management,
};

/// Management packets taken per poll.
const BURST: usize = 16;

/// Never blocks.
#[derive(Debug)]
pub(crate) struct ManagementSocket {
    socket: UdpSocket,
    address: SocketAddr,
    /// Datagrams that were no management packets.
    malformed: u64,
}

impl ManagementSocket {
    /// Port 0: the first free one of the original's range.
    pub(crate) fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.port() == 0 {
            let ports = MANAGEMENT_PORT..MANAGEMENT_PORT + MANAGEMENT_PORTS;
            let free = ports.filter_map(|port| UdpSocket::bind((address.ip(), port)).ok()).next();
            free.map_or_else(|| UdpSocket::bind(address), Ok)?
        } else {
            UdpSocket::bind(address)?
        };
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address, malformed: 0 })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn malformed(&self) -> u64 {
        self.malformed
    }

    /// The address as text, which every resolver understands.
    pub(crate) fn host(&self) -> HostName {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) => ip,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        HostName::new(&ip.to_string()).unwrap_or_else(|| unreachable!("an address is short"))
    }

    /// A packet that is lost is sent again, so errors are losses.
    pub(crate) fn send(&self, packet: &Management, to: SocketAddr) {
        let _ = self.socket.send_to(&packet.encode(), to);
    }

    /// What has arrived, and from where.
    pub(crate) fn receive(&mut self) -> Vec<(Management, SocketAddr)> {
        let mut arrived = Vec::new();
        let mut bytes = [0; MANAGEMENT_BYTES + 1];
        for _ in 0..BURST {
            match self.socket.recv_from(&mut bytes) {
                Ok((len, from)) => match Management::decode(&bytes[..len]) {
                    Ok(packet) => arrived.push((packet, from)),
                    Err(_) => self.malformed += 1,
                },
                // A peer's closed port is reported once; others may have written meanwhile.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(_) => break,
            }
        }
        arrived
    }
}
