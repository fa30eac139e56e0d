//! A client's connection: the handshake, wakeups in both directions, and notice of the server's death.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use memory::{MapError, Protection, Region};
use os::{
    clock,
    fdpass::{RecvError, SendError},
    process::Process,
    unix::{Address, SocketError, UnixConnection},
};

use crate::{
    endpoint::{
        fork::ForkGuard,
        handshake::{
            self, DATAGRAM_BYTES_MAX, DESCRIPTOR, HandshakeAnswer, HandshakeError, RefuseReason,
            WAKEUP, WELCOME_FDS, Welcome,
        },
        lifeline::Lifeline,
        memory::{ClientMemory, SLEEP_FLAG_BYTES, ServerMemory},
        poller::Poller,
    },
    wakeup,
};

const KEY_SOCKET: u64 = 0;
const KEY_SERVER: u64 = 1;
const KEY_OTHER: u64 = 2;

/// How long a process whose sockets are closed may take to be dead.
const DEATH_WAIT: Duration = Duration::from_millis(20);

/// Why there is no connection to a server.
///
/// ```
/// use copyrpc_ipc::BlockingClient;
///
/// # #[cfg(not(miri))] // Miri has no Unix sockets
/// # {
/// let nowhere = std::path::Path::new("/proc/no-daemon.sock");
/// assert!(BlockingClient::connect(nowhere, Default::default()).is_err());
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No server listens, or a process of another user does.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The server did not answer in time.
    #[error("the server at {} did not answer within {timeout:?}; is it stopped?", path.display())]
    TimedOut {
        /// The path on which it listens.
        path: PathBuf,
        /// The time that it had.
        timeout: Duration,
    },
    /// The server closed the connection without an answer.
    #[error("the server closed the connection without an answer; its log says why")]
    Closed,
    /// The server said no.
    #[error("the server refused: {0}")]
    Refused(RefuseReason),
    /// The server said something else.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// A variable of the environment says something that has no meaning.
    #[error("{variable} = `{value}` has no meaning; say {accepted}, or unset it")]
    Variable {
        /// Its name.
        variable: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        accepted: &'static str,
    },
    /// The memory that the server sent cannot be used.
    #[error("the server's memory cannot be mapped: {0}")]
    Map(#[from] MapError),
    /// The kernel refused something else.
    #[error("{call} failed: {source}")]
    Os {
        /// The system call that failed.
        call: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// The state of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerLife {
    Alive,
    Gone,
}

#[derive(Debug)]
pub(crate) struct ServerConnection {
    connection: Arc<UnixConnection>,
    poller: Poller,
    /// Watched by `poller`, which does not own it.
    server: Option<Arc<Process>>,
    fork: ForkGuard,
    is_gone: bool,
    has_other: bool,
}

/// A connection, and what came with it.
pub(crate) struct Connected {
    pub(crate) connection: ServerConnection,
    pub(crate) welcome: Welcome,
    pub(crate) memory: ClientMemory,
}

/// Connects and shakes hands.
pub(crate) fn connect(path: &Path, timeout: Duration) -> Result<Connected, ConnectError> {
    let deadline_ns = clock::deadline_ns(timeout);
    let timed_out = || ConnectError::TimedOut { path: path.to_owned(), timeout };
    let connection = UnixConnection::connect(&Address::from(path), deadline_ns).map_err(
        |error| match error {
            SocketError::TimedOut => timed_out(),
            error => error.into(),
        },
    )?;
    match connection.send(&handshake::write_hello(), &[], deadline_ns) {
        // A server that is out of descriptors has closed by now; its answer says so.
        Ok(()) | Err(SendError::Closed) => {}
        Err(SendError::TimedOut) => return Err(timed_out()),
        Err(error) => {
            return Err(ConnectError::Os { call: "sendmsg", source: io::Error::other(error) });
        }
    }
    let (welcome, fds) =
        receive_welcome(&connection, deadline_ns).map_err(|error| match error {
            ConnectError::TimedOut { .. } => timed_out(),
            error => error,
        })?;
    let fds: [_; WELCOME_FDS] = fds.try_into().map_err(|_| HandshakeError::Foreign)?;
    let memory = map_memory(&welcome, fds)?;
    // Without a handle the socket alone tells of death.
    let server = connection.peer_process().ok();
    ServerConnection::open(connection, server).map(|connection| Connected {
        connection,
        welcome,
        memory,
    })
}

/// The welcome of a server to which this client was introduced; `None`: not yet.
pub(crate) fn introduced(connection: UnixConnection) -> Result<Introduced, ConnectError> {
    let (welcome, mut fds) = match receive_welcome(&connection, clock::NOW) {
        Err(ConnectError::TimedOut { .. }) => return Ok(Introduced::NotYet(connection)),
        received => received?,
    };
    crate::pause::at("welcome.read");
    let server = fds.pop().ok_or(HandshakeError::Foreign)?;
    let fds: [_; WELCOME_FDS] = fds.try_into().map_err(|_| HandshakeError::Foreign)?;
    let memory = map_memory(&welcome, fds)?;
    memory.keep_pages(&welcome)?;
    let server = Some(Process::of_pidfd(server));
    let connection = ServerConnection::open(connection, server)?;
    Ok(Introduced::Connected(Box::new(Connected { connection, welcome, memory })))
}

/// How far an introduction has come.
pub(crate) enum Introduced {
    NotYet(UnixConnection),
    Connected(Box<Connected>),
}

/// The answer to a hello, and what came with it. That it did not come in time is told without place and time.
fn receive_welcome(
    connection: &UnixConnection,
    deadline_ns: u64,
) -> Result<(Welcome, Vec<OwnedFd>), ConnectError> {
    let timed_out = || ConnectError::TimedOut { path: PathBuf::new(), timeout: Duration::ZERO };
    let mut buffer = [0; DATAGRAM_BYTES_MAX];
    let mut recv = || connection.recv(&mut buffer, WELCOME_FDS + 1, deadline_ns);
    // That a hello was not read is told before the answer.
    let datagram = match recv() {
        Err(RecvError::Closed) => recv(),
        first => first,
    };
    let datagram = datagram.map_err(|error| match error {
        RecvError::TimedOut => timed_out(),
        RecvError::Closed => ConnectError::Closed,
        error => ConnectError::Os { call: "recvmsg", source: io::Error::other(error) },
    })?;
    let welcome = match handshake::read_answer(&buffer[..datagram.len_bytes])? {
        HandshakeAnswer::Welcome(welcome) => welcome,
        HandshakeAnswer::Refused(reason) => return Err(ConnectError::Refused(reason)),
    };
    Ok((welcome, datagram.fds))
}

fn map_memory(
    welcome: &Welcome,
    [up, down, wakeup_bits, sleep_flag]: [OwnedFd; WELCOME_FDS],
) -> Result<ClientMemory, ConnectError> {
    let map = |fd, len_bytes, access| Region::map_base_pages(fd, len_bytes, access).map(Arc::new);
    let bits_bytes = wakeup::bits_bytes(welcome.slot + 1);
    Ok(ClientMemory {
        up: map(up, welcome.up.len_bytes(), Protection::ReadWrite)?,
        down: map(down, welcome.down.len_bytes(), Protection::ReadOnly)?,
        server: ServerMemory {
            wakeup_bits: map(wakeup_bits, bits_bytes, Protection::ReadWrite)?,
            sleep_flag: map(sleep_flag, SLEEP_FLAG_BYTES, Protection::ReadOnly)?,
        },
    })
}

impl ServerConnection {
    fn open(connection: UnixConnection, server: Option<Process>) -> Result<Self, ConnectError> {
        let os = |call| move |source| ConnectError::Os { call, source };
        let poller = Poller::new().map_err(os("epoll_create1"))?;
        poller.add(&connection, KEY_SOCKET).map_err(os("epoll_ctl"))?;
        if let Some(server) = &server {
            poller.add(server, KEY_SERVER).map_err(os("epoll_ctl"))?;
        }
        Ok(Self {
            connection: Arc::new(connection),
            poller,
            server: server.map(Arc::new),
            fork: ForkGuard::new(),
            is_gone: false,
            has_other: false,
        })
    }

    /// Whether the server's process has ended. The kernel closes its sockets a moment before it says so.
    #[cold]
    pub(crate) fn is_server_dead(&self) -> bool {
        let deadline_ns = clock::deadline_ns(DEATH_WAIT);
        self.server.as_ref().is_some_and(|it| it.wait_dead(deadline_ns).unwrap_or(false))
    }

    /// Tells other threads of the end of this connection.
    pub(crate) fn lifeline(&self) -> Lifeline {
        Lifeline::of(&self.connection, self.server.as_ref())
    }

    /// From now on the descriptor is readable, too, when another one is.
    pub(crate) fn watch(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        self.poller.add(other, KEY_OTHER)
    }

    pub(crate) fn unwatch(&self, other: BorrowedFd<'_>) {
        self.poller.remove(other);
    }

    /// Whether another descriptor was readable at a look since the last question.
    pub(crate) fn take_other(&mut self) -> bool {
        core::mem::take(&mut self.has_other)
    }

    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_forked()
    }

    /// Wakes a server that sleeps.
    #[cold]
    pub(crate) fn wake(&self) {
        // A full queue holds wakeups already, and a closed one is noticed by `look`.
        let _ = self.connection.send(&[WAKEUP], &[], clock::NOW);
    }

    /// Sends a descriptor.
    pub(crate) fn send(&self, fd: BorrowedFd<'_>, deadline_ns: u64) -> Result<(), SendError> {
        self.connection.send(&[DESCRIPTOR], &[fd], deadline_ns)
    }

    /// Waits for a wakeup or the server's death.
    pub(crate) fn look(&mut self, timeout_ns: u64) -> ServerLife {
        for ready in self.poller.wait(timeout_ns) {
            match ready.key {
                KEY_SERVER => self.is_gone = true,
                KEY_OTHER => self.has_other = true,
                _ => self.drain(ready.hung_up),
            }
        }
        if self.is_gone { ServerLife::Gone } else { ServerLife::Alive }
    }

    /// Takes one wakeup: the server rings once per nap. What is left wakes the next nap in vain.
    fn drain(&mut self, hung_up: bool) {
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        match self.connection.recv(&mut datagram, 0, clock::NOW) {
            Ok(_) | Err(RecvError::TimedOut) => self.is_gone |= hung_up,
            Err(_) => self.is_gone = true,
        }
    }
}

impl AsFd for ServerConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        if !self.is_forked() {
            // Closing alone would not be noticed while a forked child holds a copy.
            let _ = rustix::net::shutdown(&self.connection, rustix::net::Shutdown::Both);
        }
    }
}
