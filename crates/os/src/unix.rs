//! Unix sockets between processes of one user on one machine: listeners and connections.
//!
//! An *abstract* name belongs to the network namespace and vanishes with its last descriptor, so a killed
//! process leaves nothing behind; but any user may claim it. A *path* lies in a
//! [private directory](crate::private_dir). With both kinds of name each side asks the kernel for the user
//! of the other side (`SO_PEERCRED`) and refuses other users.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    event::PollFlags,
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
        sockopt::{self, Timeout, set_socket_timeout},
    },
    process::geteuid,
};

pub use crate::peercred::PeerCredentials;
use crate::{
    clock,
    fdpass::{self, Datagram, RecvError, SendError},
    peercred,
    private_dir::{self, PrivateDirError},
    process::{Process, ProcessError},
    ready,
};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 256;

/// Effective user of this process, the only user that its sockets accept.
#[must_use]
pub fn user_id() -> u32 {
    geteuid().as_raw()
}

/// Whether the process at the other end of a Unix socket runs as this user, in whichever PID namespace. Anybody may
/// claim an abstract name.
pub fn is_own_user(socket: impl AsFd) -> bool {
    peercred::of(socket).is_ok_and(|peer| peer.uid == user_id())
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A name of the abstract namespace, at most 107 bytes.
    Abstract(String),
    /// A socket in a private directory, which [`Listener::bind`] creates if need be; at most 107
    /// bytes in all.
    Path(PathBuf),
}

impl From<&Path> for Address {
    /// `@name` is an abstract name, as it is printed; anything else is a path.
    fn from(path: &Path) -> Self {
        let name = path.to_str().and_then(|text| text.strip_prefix('@'));
        name.map_or_else(|| Self::Path(path.to_owned()), |name| Self::Abstract(name.to_owned()))
    }
}

impl core::fmt::Display for Address {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Abstract(name) => write!(f, "@{name}"),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Why there is no listener or no connection.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens there already.
    #[error("another process already listens at {0}; stop that first, or choose another name")]
    InUse(Address),
    /// No process listens there.
    #[error("no process listens at {0}; start the daemon first")]
    NobodyListens(Address),
    /// Empty, or longer than a socket address.
    #[error("{0} cannot be a socket address (at most 107 bytes); choose a shorter one")]
    BadAddress(Address),
    /// Other users could replace the socket, or its directory cannot be made.
    #[error(transparent)]
    Directory(#[from] PrivateDirError),
    /// The other side belongs to another user. The connection was closed.
    #[error("the peer runs as user {peer_uid}, but only user {uid} is allowed{}", hint(*peer_uid))]
    ForeignUser {
        /// User of the other side.
        peer_uid: u32,
        /// User of this process.
        uid: u32,
    },
    /// No peer connected, or the listener did not accept.
    #[error("no connection before the deadline")]
    TimedOut,
    /// The other side closed the connection meanwhile, or died.
    #[error("the peer is gone")]
    PeerGone,
    /// Anything else the kernel says.
    #[error("{call} failed: {source}")]
    Os {
        /// The system call that failed.
        call: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
}

fn os(call: &'static str) -> impl FnOnce(Errno) -> SocketError {
    move |errno| SocketError::Os { call, source: errno.into() }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// Removed again on drop.
    path: Option<PathBuf>,
}

impl Listener {
    /// Begins to listen. Takes over a path whose listener is dead.
    ///
    /// # Errors
    ///
    /// [`SocketError`].
    pub fn bind(address: &Address) -> Result<Self, SocketError> {
        let name = socket_address(address)?;
        let path = if let Address::Path(path) = address { Some(path.clone()) } else { None };
        if let Some(path) = &path {
            private_dir::ensure(path.parent().unwrap_or(Path::new(".")))?;
        }
        let socket = new_socket(SocketFlags::NONBLOCK)?;
        match rustix::net::bind(&socket, &name) {
            Err(Errno::ADDRINUSE) => {
                let Some(path) = path.as_ref().filter(|_| is_stale(&socket, &name)) else {
                    return Err(SocketError::InUse(address.clone()));
                };
                fs::remove_file(path)
                    .map_err(|source| SocketError::Os { call: "unlink", source })?;
                rustix::net::bind(&socket, &name).map_err(os("bind"))?;
            }
            bound => bound.map_err(os("bind"))?,
        }
        let listener = Self { socket, path };
        rustix::net::listen(&listener.socket, BACKLOG).map_err(os("listen"))?;
        Ok(listener)
    }

    /// Takes the next connection of a process of the same user.
    ///
    /// # Errors
    ///
    /// [`SocketError`]; after [`SocketError::ForeignUser`] and
    /// [`SocketError::PeerGone`] just go on accepting.
    pub fn accept(&self, deadline_ns: u64) -> Result<UnixConnection, SocketError> {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => return UnixConnection::of(socket),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let ready = ready::wait(&self.socket, PollFlags::IN, deadline_ns);
                    if !ready.map_err(os("poll"))? {
                        return Err(SocketError::TimedOut);
                    }
                }
                Err(Errno::CONNABORTED) => return Err(SocketError::PeerGone),
                Err(errno) => return Err(os("accept4")(errno)),
            }
        }
    }
}

impl AsFd for Listener {
    /// Readable while a connection waits to be accepted.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // A file that is gone already, or that belongs to another listener by now, needs nothing.
            let _ = fs::remove_file(path);
        }
    }
}

/// A connected socket to a process of the same user.
#[derive(Debug)]
pub struct UnixConnection {
    socket: OwnedFd,
    peer: PeerCredentials,
}

impl UnixConnection {
    /// Connects to a listener of the same user.
    ///
    /// # Errors
    ///
    /// [`SocketError`].
    pub fn connect(address: &Address, deadline_ns: u64) -> Result<Self, SocketError> {
        let name = socket_address(address)?;
        let socket = new_socket(SocketFlags::empty())?;
        // A full backlog makes `connect(2)` wait, as long as this allows.
        let timeout = clock::left(deadline_ns).max(core::time::Duration::from_micros(1));
        set_socket_timeout(&socket, Timeout::Send, Some(timeout)).map_err(os("setsockopt"))?;
        let connected = rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &name));
        connected.map_err(|errno| match errno {
            Errno::CONNREFUSED | Errno::NOENT => SocketError::NobodyListens(address.clone()),
            Errno::AGAIN | Errno::TIMEDOUT => SocketError::TimedOut,
            errno => os("connect")(errno),
        })?;
        Self::of(socket)
    }

    /// Two sockets that are connected with each other: one for this process, and one to be given away. Whoever gets
    /// that sees this process at the other end.
    ///
    /// # Errors
    ///
    /// [`SocketError`].
    pub fn pair() -> Result<(Self, OwnedFd), SocketError> {
        let flags = SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (own, given) = pair.map_err(os("socketpair"))?;
        Ok((Self::of(own)?, given))
    }

    /// A connected socket that another process gave to this one.
    ///
    /// # Errors
    ///
    /// [`SocketError::PeerGone`] if it is no such socket, and other [`SocketError`]s.
    pub fn adopt(socket: OwnedFd) -> Result<Self, SocketError> {
        let is_packet = sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET);
        if !is_packet || sockopt::socket_domain(&socket) != Ok(AddressFamily::UNIX) {
            return Err(SocketError::PeerGone);
        }
        Self::of(socket)
    }

    /// Ends the connection, whoever else has a copy of a descriptor of it.
    pub fn shut_down(&self) {
        // It fails if the other side was faster.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    fn of(socket: OwnedFd) -> Result<Self, SocketError> {
        let peer = peercred::of(&socket)
            .map_err(|source| SocketError::Os { call: "getsockopt(SO_PEERCRED)", source })?;
        check_user(peer.uid, user_id())?;
        Ok(Self { socket, peer })
    }

    /// Credentials of the peer.
    #[must_use]
    pub fn peer_credentials(&self) -> PeerCredentials {
        self.peer
    }

    /// A handle of the peer's process, which may be in a PID namespace that this process does not see. Call it
    /// right after connecting: the peer's process id is not reused while the peer lives, and the peer lives while
    /// the connection is open, unless it gave its socket away.
    ///
    /// # Errors
    ///
    /// [`SocketError::PeerGone`] if the peer is dead or has closed the connection, or if Linux is older than 6.5
    /// and the peer is in such a namespace: then the socket alone tells of its death.
    pub fn peer_process(&self) -> Result<Process, SocketError> {
        let process = match self.peer.pid {
            0 => peercred::pidfd(&self.socket)
                .map(Process::unseen)
                .map_err(|_| SocketError::PeerGone)?,
            pid => Process::open(pid).map_err(|error| match error {
                ProcessError::Gone { .. } => SocketError::PeerGone,
                other => SocketError::Os { call: "pidfd_open", source: io::Error::other(other) },
            })?,
        };
        if self.is_closed()? { Err(SocketError::PeerGone) } else { Ok(process) }
    }

    /// Whether the other end closed the connection; what it sent before can still be received.
    ///
    /// # Errors
    ///
    /// [`SocketError::Os`].
    pub fn is_closed(&self) -> Result<bool, SocketError> {
        // No event is asked for, so only a hang-up (or an error) is reported.
        ready::wait(&self.socket, PollFlags::empty(), clock::NOW).map_err(os("poll"))
    }

    /// Whether a datagram, or the connection's end, waits to be received.
    ///
    /// # Errors
    ///
    /// [`SocketError::Os`].
    pub fn is_readable(&self) -> Result<bool, SocketError> {
        ready::wait(&self.socket, PollFlags::IN, clock::NOW).map_err(os("poll"))
    }

    /// Sends one datagram; see [`fdpass::send`].
    ///
    /// # Errors
    ///
    /// [`SendError`].
    pub fn send(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline_ns: u64,
    ) -> Result<(), SendError> {
        fdpass::send(&self.socket, bytes, fds, deadline_ns)
    }

    /// Receives one datagram; see [`fdpass::recv`].
    ///
    /// # Errors
    ///
    /// [`RecvError`].
    pub fn recv(
        &self,
        buffer: &mut [u8],
        fds_max: usize,
        deadline_ns: u64,
    ) -> Result<Datagram, RecvError> {
        fdpass::recv(&self.socket, buffer, fds_max, deadline_ns)
    }
}

impl AsFd for UnixConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn new_socket(flags: SocketFlags) -> Result<OwnedFd, SocketError> {
    let flags = flags | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(os("socket"))
}

fn socket_address(address: &Address) -> Result<SocketAddrUnix, SocketError> {
    let made = match address {
        Address::Abstract(name) if name.is_empty() => Err(Errno::INVAL),
        Address::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
        Address::Path(path) => SocketAddrUnix::new(path),
    };
    made.map_err(|_| SocketError::BadAddress(address.clone()))
}

/// Whether a socket file has no listener any more. `socket` is not bound, and nonblocking. It can still be bound
/// then: one of its own for this could fail for want of descriptors, which says nothing of a listener.
fn is_stale(socket: &OwnedFd, name: &SocketAddrUnix) -> bool {
    let connected = rustix::io::retry_on_intr(|| rustix::net::connect(socket, name));
    connected == Err(Errno::CONNREFUSED)
}

/// What a user id means that stands for all users without a number in this user namespace.
///
/// Source: `user_namespaces(7)`; the number is `/proc/sys/kernel/overflowuid`, which by default is 65534.
fn hint(peer_uid: u32) -> &'static str {
    const OVERFLOW_UID: u32 = 65534;
    if peer_uid == OVERFLOW_UID {
        "; this number stands for each user that has none in this user namespace: map the user into it, or run \
         both sides in one"
    } else {
        ""
    }
}

fn check_user(peer_uid: u32, uid: u32) -> Result<(), SocketError> {
    if peer_uid == uid { Ok(()) } else { Err(SocketError::ForeignUser { peer_uid, uid }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_printed() {
        for text in ["@copyrpc/1", "/run/user/1/sock", "./@file"] {
            let address = Address::from(Path::new(text));
            assert_eq!(address.to_string(), text);
            assert_eq!(matches!(address, Address::Abstract(_)), text.starts_with('@'));
        }
    }

    #[test]
    fn another_user_is_refused_by_name() {
        assert!(check_user(1000, 1000).is_ok());
        let refused = check_user(1001, 1000).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the peer runs as user 1001, but only user 1000 is allowed"
        );
        let refused = check_user(65534, 0).unwrap_err().to_string();
        assert!(refused.contains("in this user namespace: map"), "{refused}");
    }
}
