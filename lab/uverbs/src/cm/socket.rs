//! Sockets of connection managers: their names, who is at the other end, and what is said on them.

use os::unix::is_own_user;
use rustix::{
    fd::OwnedFd,
    io::Errno,
    net::{SendFlags, SocketAddrUnix, connect, send},
};

use super::{address, id::Id, message::Message};

pub(super) fn name(fabric: &str, port_space: u16, port: u16) -> Result<SocketAddrUnix, Errno> {
    let uid = rustix::process::geteuid().as_raw();
    let name = format!("copyrpc-uverbs-cm-{uid}-{fabric}-{port_space:x}-{port}");
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

pub(super) fn is_own(socket: &OwnedFd) -> bool {
    is_own_user(socket)
}

/// Sends the request of an identifier.
///
/// # Errors
///
/// [`Errno::AGAIN`]: the listener has no room for one more.
pub(super) fn ask(fabric: &str, id: &Id) -> Result<(), Errno> {
    let (Some(to), Some(from), Some(socket)) = (id.destination, id.source, &id.socket) else {
        return Err(Errno::INVAL);
    };
    let service = to.service(id.port_space);
    let (port_space, port) = address::space_and_port(service).ok_or(Errno::CONNREFUSED)?;
    connect(socket, &name(fabric, port_space, port)?)?;
    if !is_own(socket) {
        return Err(Errno::PERM);
    }
    let side = id.own.clone();
    tell(socket, &Message::Request { side, port_space, from, to })
}

pub(super) fn tell(socket: &OwnedFd, message: &Message) -> Result<(), Errno> {
    send(socket, &message.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
}
