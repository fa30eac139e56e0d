//! Where management packets go and come from: a UDP socket, or what a program has in its place.

use std::{
    fmt::Debug,
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
};

use proto::erpc::management::{
    HostName, MANAGEMENT_BYTES, MANAGEMENT_PORT, MANAGEMENT_PORTS, Management,
};

/// Management packets taken per poll.
const BURST: usize = 16;

/// Carries management packets, which may be lost, repeated and overtaken. Its methods never block.
pub trait ManagementPort: Debug {
    /// Where others reach it.
    fn address(&self) -> SocketAddr;

    /// The address by which a peer at `to` reaches it.
    fn host_towards(&self, to: SocketAddr) -> IpAddr {
        let _ = to;
        self.address().ip()
    }

    /// Sends a packet. One that cannot be sent is lost.
    fn send(&self, packet: &[u8], to: SocketAddr);

    /// The next packet that has arrived, cut off at the end of `into`: its length, and its sender.
    fn receive(&self, into: &mut [u8]) -> Option<(usize, SocketAddr)>;
}

#[derive(Debug)]
struct UdpPort {
    socket: UdpSocket,
    address: SocketAddr,
}

impl UdpPort {
    /// Port 0: the first free one of the original's range.
    fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.port() == 0 {
            let ports = MANAGEMENT_PORT..MANAGEMENT_PORT + MANAGEMENT_PORTS;
            let free = ports.filter_map(|port| UdpSocket::bind((address.ip(), port)).ok()).next();
            free.map_or_else(|| UdpSocket::bind(address), Ok)?
        } else {
            UdpSocket::bind(address)?
        };
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }
}

impl ManagementPort for UdpPort {
    fn address(&self) -> SocketAddr {
        self.address
    }

    /// A socket that listens on all addresses has none to announce: it is the one from which packets leave.
    fn host_towards(&self, to: SocketAddr) -> IpAddr {
        let own = self.address.ip();
        if !own.is_unspecified() {
            return own;
        }
        let leaving = UdpSocket::bind((own, 0)).and_then(|socket| {
            socket.connect(to)?;
            socket.local_addr()
        });
        leaving.map_or(own, |address| address.ip())
    }

    /// A packet that is lost is sent again, so errors are losses.
    fn send(&self, packet: &[u8], to: SocketAddr) {
        let _ = self.socket.send_to(packet, to);
    }

    fn receive(&self, into: &mut [u8]) -> Option<(usize, SocketAddr)> {
        for _ in 0..BURST {
            match self.socket.recv_from(into) {
                Ok(received) => return Some(received),
                // A peer's closed port is reported once; others may have written meanwhile.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(_) => break,
            }
        }
        None
    }
}

/// Management packets of an endpoint.
#[derive(Debug)]
pub(crate) struct ManagementSocket {
    port: Box<dyn ManagementPort>,
    /// Datagrams that were no management packets.
    malformed: u64,
}

impl ManagementSocket {
    pub(crate) fn open(address: SocketAddr) -> io::Result<Self> {
        Ok(Self::on(Box::new(UdpPort::open(address)?)))
    }

    pub(crate) fn on(port: Box<dyn ManagementPort>) -> Self {
        Self { port, malformed: 0 }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub(crate) fn malformed(&self) -> u64 {
        self.malformed
    }

    /// The address as text, which every resolver understands, for a peer at `to`.
    pub(crate) fn host_towards(&self, to: SocketAddr) -> HostName {
        let ip = match self.port.host_towards(to) {
            IpAddr::V4(ip) => ip,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        HostName::new(&ip.to_string()).unwrap_or_else(|| unreachable!("an address is short"))
    }

    pub(crate) fn send(&self, packet: &Management, to: SocketAddr) {
        self.port.send(&packet.encode(), to);
    }

    /// The datagram that has arrived, and its sender.
    pub(crate) fn receive(&mut self) -> Vec<(Management, SocketAddr)> {
        let mut arrived = Vec::new();
        let mut bytes = [0; MANAGEMENT_BYTES + 1];
        for _ in 0..BURST {
            let Some((len, from)) = self.port.receive(&mut bytes) else { break };
            match Management::decode(&bytes[..len]) {
                Ok(packet) => arrived.push((packet, from)),
                Err(_) => self.malformed += 1,
            }
        }
        arrived
    }
}
