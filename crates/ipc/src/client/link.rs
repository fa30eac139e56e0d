//! A client's connection: what it was given, and how it tells and is told that there is work.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use memory::{Access, MapError, Region, sync::AtomicU32};
use os::{
    clock,
    fdpass::{RecvError, SendError},
    process::Process,
    rendezvous::{Address, Connection, RendezvousError},
};

use crate::{
    bell::{self, Asleep, Bits},
    fork::ForkGuard,
    half::Half,
    handshake::{
        self, Answer, DATAGRAM_BYTES_MAX, DOORBELL, HandshakeError, RefuseReason, WELCOME_FDS,
    },
    poller::Poller,
};

const KEY_SOCKET: u64 = 0;
const KEY_SERVER: u64 = 1;

/// Why there is no connection to a server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens, or somebody who must not.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The server did not answer in time.
    #[error("the server at {} did not answer within {timeout:?}; is it stopped?", path.display())]
    TimedOut {
        /// Where it listens.
        path: PathBuf,
        /// How long it had.
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
    /// The memory that the server sent cannot be used.
    #[error("the server's memory cannot be mapped: {0}")]
    Map(#[from] MapError),
    /// The kernel refused something else.
    #[error("{call} failed: {source}")]
    Os {
        /// What was tried.
        call: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// What happened to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Alive,
    Gone,
}

#[derive(Debug)]
pub(crate) struct Link {
    connection: Connection,
    poller: Poller,
    /// Watched by `poller`, which does not own it.
    _server: Option<Process>,
    bell: Region,
    beacon: Region,
    place: u16,
    server_generation: u64,
    fork: ForkGuard,
    is_gone: bool,
}

/// A link, both halves, and the position at which their rings begin.
pub(crate) struct Connected {
    pub(crate) link: Link,
    pub(crate) up: Half,
    pub(crate) down: Half,
    pub(crate) position: u64,
}

/// Connects and shakes hands.
pub(crate) fn connect(path: &Path, timeout: Duration) -> Result<Connected, ConnectError> {
    let deadline_ns = clock::deadline_ns(timeout);
    let timed_out = || ConnectError::TimedOut { path: path.to_owned(), timeout };
    let os = |call| move |source| ConnectError::Os { call, source };
    let connection =
        Connection::connect(&Address::from(path), deadline_ns).map_err(|error| match error {
            RendezvousError::TimedOut => timed_out(),
            error => error.into(),
        })?;
    connection.send(&handshake::write_hello(), &[], deadline_ns).map_err(|error| match error {
        SendError::TimedOut => timed_out(),
        SendError::Closed => ConnectError::Closed,
        error => ConnectError::Os { call: "sendmsg", source: io::Error::other(error) },
    })?;
    let mut buffer = [0; DATAGRAM_BYTES_MAX];
    let datagram =
        connection.recv(&mut buffer, WELCOME_FDS, deadline_ns).map_err(|error| match error {
            RecvError::TimedOut => timed_out(),
            RecvError::Closed => ConnectError::Closed,
            error => ConnectError::Os { call: "recvmsg", source: io::Error::other(error) },
        })?;
    let welcome = match handshake::read_answer(&buffer[..datagram.len_bytes])? {
        Answer::Welcome(welcome) => welcome,
        Answer::Refused(reason) => return Err(ConnectError::Refused(reason)),
    };
    let fds: [_; WELCOME_FDS] = datagram.fds.try_into().map_err(|_| HandshakeError::Foreign)?;
    let [up, down, bell, beacon] = fds;
    let up = Region::map(up, welcome.up.len_bytes(), Access::ReadWrite)?;
    let down = Region::map(down, welcome.down.len_bytes(), Access::ReadOnly)?;
    let bell = Region::map(bell, bell::bits_bytes(welcome.place + 1), Access::ReadWrite)?;
    let beacon = Region::map(beacon, size_of::<u32>(), Access::ReadOnly)?;
    let poller = Poller::new().map_err(os("epoll_create1"))?;
    poller.add(&connection, KEY_SOCKET).map_err(os("epoll_ctl"))?;
    // Without a handle (a server in another process namespace) the socket alone tells of death.
    let server = connection.peer_process().ok();
    if let Some(server) = &server {
        poller.add(server, KEY_SERVER).map_err(os("epoll_ctl"))?;
    }
    let link = Link {
        connection,
        poller,
        _server: server,
        bell,
        beacon,
        place: welcome.place,
        server_generation: welcome.server_generation,
        fork: ForkGuard::new(),
        is_gone: false,
    };
    let up = Half::new(Arc::new(up), welcome.up);
    let down = Half::new(Arc::new(down), welcome.down);
    Ok(Connected { link, up, down, position: welcome.position })
}

impl Link {
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_forked()
    }

    pub(crate) fn server_generation(&self) -> u64 {
        self.server_generation
    }

    /// Tells a server that does not poll this client's ring that there are requests in it.
    #[cold]
    pub(crate) fn ring(&self) {
        let bits = self.bell.shared(bell::bits_offset_bytes(self.place));
        // SAFETY: used for a load only.
        let asleep = unsafe { self.beacon.shared_for_loads::<AtomicU32>(0) };
        let (Ok(bits), Ok(asleep)) = (bits, asleep) else {
            unreachable!("both were mapped with these lengths");
        };
        if bell::ring(Bits(bits), bell::bit_of(self.place), Asleep(asleep)) {
            // A full queue holds doorbells already, and a closed one is noticed by `look`.
            let _ = self.connection.send(&[DOORBELL], &[], clock::NOW);
        }
    }

    /// Waits for a doorbell or the server's death.
    pub(crate) fn look(&mut self, timeout_ns: u64) -> Life {
        for ready in self.poller.wait(timeout_ns) {
            match ready.key {
                KEY_SERVER => self.is_gone = true,
                _ => self.drain(ready.hung_up),
            }
        }
        if self.is_gone { Life::Gone } else { Life::Alive }
    }

    /// Takes one doorbell: the server rings once per nap. What is left wakes the next nap in vain.
    fn drain(&mut self, hung_up: bool) {
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        match self.connection.recv(&mut datagram, 0, clock::NOW) {
            Ok(_) | Err(RecvError::TimedOut) => self.is_gone |= hung_up,
            Err(_) => self.is_gone = true,
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.is_forked() {
            // Closing alone would not be noticed while a forked child holds a copy.
            let _ = rustix::net::shutdown(&self.connection, rustix::net::Shutdown::Both);
        }
    }
}
