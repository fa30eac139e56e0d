//! The listener of a server: a lock, a socket, and connections that have not said hello.

use std::{cmp::Reverse, collections::VecDeque, ffi::OsString, io, path::Path};

use os::{
    clock,
    event::EventFd,
    fdpass::RecvError,
    lock::{LockError, LockFile},
    private_dir::{self, PrivateDirError},
    unix::{Address, Listener, SocketError, UnixConnection},
};

use crate::endpoint::{
    handshake::{self, DATAGRAM_BYTES_MAX, HandshakeAnswer, HandshakeError, RefuseReason},
    poller::Poller,
    server::{
        poll_key::PollKey,
        stats::{Rejection, Rejections},
    },
};

/// Connections that may wait for their hello; a newer one displaces the oldest.
const PENDING_MAX: usize = 64;

/// The longest silence of a connection. One that has said hello waits until the server has time to read it.
const HELLO_TIMEOUT_NS: u64 = 1_000_000_000;

/// Connections accepted per look.
const ACCEPTS_PER_LOOK: usize = 8;

/// The pause of accepting when descriptors run out.
const BACKOFF_NS: u64 = 100_000_000;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another server is there.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// The directory of the socket cannot be used.
    #[error(transparent)]
    Directory(#[from] PrivateDirError),
    /// The socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The memory cannot be made.
    #[error(transparent)]
    Map(#[from] memory::MapError),
    /// The memory cannot be sealed.
    #[error(transparent)]
    Seal(#[from] memory::SealError),
    /// The configuration is impossible.
    #[error(transparent)]
    Config(#[from] super::config::ConfigError),
    /// The servers cannot wake each other.
    #[error(transparent)]
    Event(#[from] os::event::EventError),
    /// The kernel refused something else.
    #[error("{call} failed: {source}")]
    Os {
        /// The system call that failed.
        call: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
}

#[derive(Debug)]
struct Pending {
    connection: UnixConnection,
    deadline_ns: u64,
    number: u64,
}

#[derive(Debug)]
pub(crate) struct ClientListener {
    /// Before the lock: the socket's file is removed while the lock is held.
    listener: Option<Listener>,
    /// An abstract name needs none: the kernel gives it to one listener, and takes it back.
    _lock: Option<LockFile>,
    /// Oldest first.
    pending: VecDeque<Pending>,
    count: u64,
    /// Connections that did not get as far as a hello that is understood.
    rejections: Rejections,
    /// While accepting is suspended.
    resume_ns: Option<u64>,
    spare: SpareDescriptor,
}

/// A descriptor that is kept for the moment when no other is left: it is given back so that a newcomer can be
/// accepted, told so and closed.
#[derive(Debug)]
struct SpareDescriptor(Option<EventFd>);

impl SpareDescriptor {
    fn new() -> Self {
        Self(EventFd::new().ok())
    }

    /// Accepts a connection in place of the spare and refuses it; `None`: there was no spare, or another thread of this
    /// process took its place.
    fn refuse_next(&mut self, listener: &Listener) -> Option<()> {
        drop(self.0.take()?);
        let refused = listener.accept(clock::NOW).map(|connection| {
            // What is not read would be told to the client in place of the answer.
            let _ = connection.recv(&mut [0; DATAGRAM_BYTES_MAX], 0, clock::NOW);
            refuse(&connection, RefuseReason::Descriptors);
        });
        *self = Self::new();
        refused.ok()
    }
}

impl ClientListener {
    pub(crate) fn open(path: &Path, poller: &Poller) -> Result<Self, BindError> {
        let address = Address::from(path);
        let lock = match &address {
            Address::Abstract(_) => None,
            Address::Path(path) => Some(lock_beside(path)?),
        };
        let listener = Listener::bind(&address)?;
        poller
            .add(&listener, PollKey::LISTENER.to_word())
            .map_err(|source| BindError::Os { call: "epoll_ctl", source })?;
        let pending = VecDeque::with_capacity(PENDING_MAX);
        Ok(Self {
            listener: Some(listener),
            _lock: lock,
            pending,
            count: 0,
            rejections: Rejections::default(),
            resume_ns: None,
            spare: SpareDescriptor::new(),
        })
    }

    /// In a forked child: the socket's file belongs to the parent.
    pub(crate) fn forget(&mut self) {
        core::mem::forget(self.listener.take());
    }

    pub(crate) fn rejections(&self) -> Rejections {
        self.rejections
    }

    pub(crate) fn pending_of(&self, uid: u32) -> usize {
        let uids = self.pending.iter().map(|pending| pending.connection.peer_credentials().uid);
        uids.filter(|candidate| *candidate == uid).count()
    }

    /// Takes new connections; returns whether descriptors ran out. Then a newcomer is refused, or waits if that cannot
    /// be done either.
    pub(crate) fn accept(&mut self, poller: &Poller) -> bool {
        let mut ran_out = false;
        for _ in 0..ACCEPTS_PER_LOOK {
            let Some(listener) = &self.listener else { return ran_out };
            match listener.accept(clock::NOW) {
                Ok(connection) => {
                    if self.pending.len() == PENDING_MAX {
                        self.displace(poller);
                    }
                    self.count += 1;
                    let number = self.count;
                    if poller.add(&connection, PollKey::pending(number).to_word()).is_ok() {
                        let deadline_ns =
                            clock::deadline_ns(core::time::Duration::from_nanos(HELLO_TIMEOUT_NS));
                        self.pending.push_back(Pending { connection, deadline_ns, number });
                    }
                }
                Err(SocketError::TimedOut) => return ran_out,
                Err(SocketError::Os { .. }) if self.spare.refuse_next(listener).is_some() => {
                    self.rejections.add(Rejection::Descriptors);
                    ran_out = true;
                }
                Err(SocketError::Os { .. }) => {
                    // A level-triggered listener that cannot be served would keep the server awake.
                    poller.remove(listener);
                    self.resume_ns = Some(clock::now_ns() + BACKOFF_NS);
                    return true;
                }
                Err(SocketError::ForeignUser { .. }) => self.rejections.add(Rejection::ForeignUser),
                // The other process left.
                Err(_) => self.rejections.add(Rejection::NoHello),
            }
        }
        ran_out
    }

    /// Ends what has waited too long.
    pub(crate) fn expire(&mut self, now_ns: u64, poller: &Poller) {
        if let Some(listener) = &self.listener
            && self.resume_ns.is_some_and(|resume_ns| resume_ns <= now_ns)
        {
            if self.spare.0.is_none() {
                self.spare = SpareDescriptor::new();
            }
            let added = poller.add(listener, PollKey::LISTENER.to_word());
            self.resume_ns = added.is_err().then_some(now_ns + BACKOFF_NS);
        }
        let mut index = 0;
        while let Some(pending) = self.pending.get_mut(index) {
            if pending.deadline_ns > now_ns {
                index += 1;
            } else if pending.connection.is_readable().unwrap_or(false) {
                pending.deadline_ns = now_ns.saturating_add(HELLO_TIMEOUT_NS);
                index += 1;
            } else {
                self.drop_at(index, poller);
            }
        }
    }

    fn drop_at(&mut self, index: usize, poller: &Poller) {
        if let Some(dropped) = self.pending.remove(index) {
            poller.remove(&dropped.connection);
            self.rejections.add(Rejection::NoHello);
        }
    }

    /// Makes room for another connection.
    fn displace(&mut self, poller: &Poller) {
        let pid_of = |pending: &Pending| pending.connection.peer_credentials().pid;
        let pids: Vec<_> = self.pending.iter().map(pid_of).collect();
        if let Some(index) = displaced(&pids) {
            self.drop_at(index, poller);
        }
    }

    /// Takes a connection whose first datagram is a hello; `None` if it must wait or was dropped.
    pub(crate) fn read_hello(&mut self, number: u64, poller: &Poller) -> Option<UnixConnection> {
        let index = self.pending.iter().position(|pending| pending.number == number)?;
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        let hello = self.pending[index].connection.recv(&mut buffer, 0, clock::NOW);
        if matches!(hello, Err(RecvError::TimedOut)) {
            return None;
        }
        let connection = self.pending.remove(index)?.connection;
        poller.remove(&connection);
        let cause = match hello.map(|hello| handshake::read_hello(&buffer[..hello.len_bytes])) {
            Ok(Ok(())) => return Some(connection),
            Ok(Err(HandshakeError::Version { .. })) => {
                refuse(&connection, RefuseReason::Version);
                Rejection::Version
            }
            _ => Rejection::NoHello,
        };
        self.rejections.add(cause);
        None
    }
}

/// The oldest connection of the process that has most: one process displaces its own. `pids` are those of the
/// connections, oldest first.
fn displaced(pids: &[u32]) -> Option<usize> {
    let count = |pid: &u32| pids.iter().filter(|other| *other == pid).count();
    (0..pids.len()).max_by_key(|index| (count(&pids[*index]), Reverse(*index)))
}

/// Refuses a connection. A client that does not read the refusal does not need it.
pub(crate) fn refuse(connection: &UnixConnection, reason: RefuseReason) {
    let answer = handshake::write_answer(HandshakeAnswer::Refused(reason));
    let _ = connection.send(&answer, &[], clock::NOW);
}

/// Holds the lock file beside a socket, and makes their private directory if need be.
fn lock_beside(socket: &Path) -> Result<LockFile, BindError> {
    private_dir::ensure(socket.parent().unwrap_or(Path::new(".")))?;
    // The dot tells it from the lock files that the server's program may have here.
    let mut name = OsString::from(".");
    name.push(socket.file_name().unwrap_or_default());
    name.push(".lock");
    Ok(LockFile::acquire(&socket.with_file_name(name))?)
}

#[cfg(test)]
mod tests {
    #[cfg(not(miri))]
    use std::path::PathBuf;

    use super::*;

    /// A server that is busy, or whose thread does not run, reads late: its newcomers were closed before.
    #[test]
    #[cfg(not(miri))]
    fn who_has_said_hello_waits_for_a_server_that_reads_late_and_the_silent_leave() {
        let path = PathBuf::from(format!("@copyrpc-listener-{}", std::process::id()));
        let poller = Poller::new().unwrap();
        let mut listener = ClientListener::open(&path, &poller).unwrap();
        let soon = || clock::deadline_ns(core::time::Duration::from_secs(60));
        let connect = || UnixConnection::connect(&Address::from(path.as_path()), soon()).unwrap();
        let [polite, silent] = [(); 2].map(|()| connect());
        polite.send(&handshake::write_hello(), &[], soon()).unwrap();
        listener.accept(&poller);
        assert_eq!(listener.pending.len(), 2);
        for late in 2..5 {
            listener.expire(clock::now_ns() + late * HELLO_TIMEOUT_NS, &poller);
            assert_eq!(listener.pending.len(), 1);
        }
        assert!(silent.is_closed().unwrap() && !polite.is_closed().unwrap());
        let number = listener.pending[0].number;
        assert!(listener.read_hello(number, &poller).is_some());
    }

    #[test]
    fn fault_b9_a_process_displaces_its_own_connections_first() {
        assert_eq!(displaced(&[7, 8, 9]), Some(0), "of equals, the oldest");
        assert_eq!(displaced(&[7, 9, 8, 9]), Some(1));
        assert_eq!(displaced(&[]), None);
    }
}
