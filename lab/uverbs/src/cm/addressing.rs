//! Where an identifier is, and whom it will ask: commands that take addresses.
//!
//! Source: Linux `drivers/infiniband/core/cma.c`, `rdma_bind_addr`, `rdma_resolve_addr`, `cma_resolve_ib_dev`.

use std::net::SocketAddr;

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with},
};
use verbs::LinkLayer;

use super::{
    address::{self, Address, IbAddress},
    attributes::{PKEY, PortIdentity},
    event::kind,
    id::State,
    manager::{Manager, REJECT_BY_PROGRAM, REJECT_NO_LISTENER},
    socket::name,
};
use crate::descriptors::hide;

/// Ports that are given out where a program asks for any.
const ANY_PORTS: core::ops::Range<u16> = 32_768..61_000;

/// Connections that a listener holds for its program, in the socket.
const BACKLOG_MAX: u32 = 1024;

/// Whether the port may be an identifier's own at an address that is not that of all.
fn check_own(port: &PortIdentity, address: &Address) -> Result<(), Errno> {
    match address {
        Address::Ip(address) if !address::is_here(*address) => Err(Errno::ADDRNOTAVAIL),
        Address::Ip(_) => Ok(()),
        Address::Ib(address) if port.has_ib_addresses() && port.has_gid(&address.gid) => Ok(()),
        Address::Ib(_) => Err(Errno::NODEV),
    }
}

impl PortIdentity {
    /// Linux `rdma_cap_af_ib`.
    fn has_ib_addresses(&self) -> bool {
        self.link == LinkLayer::InfiniBand
    }

    /// Whether the port leads to a GID: it has the same prefix, and the partition is that of the port.
    fn check_way(&self, pkey: u16, gid: &[u8; 16]) -> Result<(), Errno> {
        const PREFIX_BYTES: usize = 8;
        const MEMBERSHIP: u16 = 1 << 15;
        let is_near =
            self.gids.iter().any(|own| own.to_bytes()[..PREFIX_BYTES] == gid[..PREFIX_BYTES]);
        let is_partition = (pkey ^ PKEY) & !MEMBERSHIP == 0;
        if self.has_ib_addresses() && is_near && is_partition { Ok(()) } else { Err(Errno::NODEV) }
    }
}

impl PortIdentity {
    /// Source and destination of a request that has come to a listener; or the reason why it is refused.
    ///
    /// Source: Linux `cma_save_net_info`; a request to a GID reaches the listeners of that port alone.
    pub(super) fn ends_of(
        &self,
        listener: Option<Address>,
        (from, lid): (Address, u16),
        to: Address,
        port_space: u16,
    ) -> Result<(Address, Address), u8> {
        if let Address::Ib(to) = to
            && !self.has_gid(&to.gid)
        {
            return Err(REJECT_NO_LISTENER);
        }
        if !listener.is_some_and(|listener| listener.is_ib()) {
            // Without a header there are no IP addresses.
            return if to.is_ib() { Err(REJECT_BY_PROGRAM) } else { Ok((to, from)) };
        }
        let (service, asks) = (to.service(port_space), from.service(port_space));
        let own = IbAddress::of(self.gid(), PKEY, service);
        let peer = IbAddress::of(self.gid_of(lid), PKEY, asks);
        Ok((Address::Ib(own), Address::Ib(peer)))
    }
}

impl Manager {
    /// Takes a port, and with it the name of a socket.
    pub(super) fn bind(&mut self, handle: u32, address: impl Into<Address>) -> Result<(), Errno> {
        let (fabric, port, mut source) = (self.fabric.clone(), self.port.clone(), address.into());
        let id = self.get_mut(handle)?;
        if id.state != State::Idle || id.socket.is_some() {
            return Err(Errno::INVAL);
        }
        if !source.is_any() {
            check_own(&port, &source)?;
        }
        let space = source.select_port_space(id.port_space).ok_or(Errno::PROTONOSUPPORT)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let take = |port| bind(&socket, &name(&fabric, space, port)?);
        let port = match source.port() {
            0 => ANY_PORTS.into_iter().find(|port| take(*port).is_ok()).ok_or(Errno::ADDRINUSE)?,
            port => take(port).map(|()| port)?,
        };
        hide(&socket);
        id.has_device = !source.is_any();
        source.set_port(port);
        id.source = Some(source);
        id.port_space = space;
        id.socket = Some(socket);
        Ok(())
    }

    pub(super) fn listen(&mut self, handle: u32, backlog: u32) -> Result<(), Errno> {
        if self.get(handle)?.socket.is_none() {
            let any = SocketAddr::from(([0, 0, 0, 0], 0));
            self.bind(handle, any)?;
        }
        let id = self.get_mut(handle)?;
        let socket = id.socket.as_ref().filter(|_| id.state == State::Idle).ok_or(Errno::INVAL)?;
        // Who names none takes as many as there may be.
        let backlog = if backlog == 0 { BACKLOG_MAX } else { backlog.min(BACKLOG_MAX) };
        listen(socket, i32::try_from(backlog).unwrap_or(1))?;
        id.state = State::Listening;
        Ok(())
    }

    /// Finds out whether an address is of this machine, or a GID near this port; the answer is an event.
    pub(super) fn resolve_address(
        &mut self,
        handle: u32,
        source: Option<Address>,
        destination: impl Into<Address>,
    ) -> Result<(), Errno> {
        let mut destination = destination.into();
        if let Address::Ip(ip) = destination
            && !address::is_here(ip)
        {
            self.get_mut(handle)?;
            self.raise(handle, kind::ADDR_ERROR, -Errno::HOSTUNREACH.raw_os_error(), Vec::new());
            return Ok(());
        }
        if self.get(handle)?.socket.is_none() {
            self.bind(handle, source.unwrap_or_else(|| destination.unbound()))?;
        }
        let (port, id) = (self.port.clone(), self.get_mut(handle)?);
        let own = id.source.as_mut().ok_or(Errno::INVAL)?;
        match (own, &mut destination) {
            (Address::Ip(own), Address::Ip(to)) => {
                if own.ip().is_unspecified() {
                    own.set_ip(to.ip());
                }
            }
            (Address::Ib(own), Address::Ib(to)) => {
                // Linux `cma_resolve_loopback`
                if to.gid == [0; 16] {
                    to.gid = port.gid();
                }
                port.check_way(to.pkey, &to.gid)?;
                own.gid = port.gid();
            }
            _ => return Err(Errno::INVAL),
        }
        id.has_device = true;
        id.destination = Some(destination);
        self.raise(handle, kind::ADDR_RESOLVED, 0, Vec::new());
        Ok(())
    }

    pub(super) fn resolve_route(&mut self, handle: u32) -> Result<(), Errno> {
        let id = self.get_mut(handle)?;
        if id.destination.is_none() {
            return Err(Errno::INVAL);
        }
        id.has_route = true;
        self.raise(handle, kind::ROUTE_RESOLVED, 0, Vec::new());
        Ok(())
    }
}
