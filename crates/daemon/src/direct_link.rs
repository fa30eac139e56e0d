//! Sessions between clients and providers, as the threads of a daemon share them.

use ipc::ClientProcess;
use memory::sync::{Arc, AtomicU64, Ordering};
use os::unix::UnixConnection;

/// A session between a client and a provider: of one thread of the daemon, or of two.
#[derive(Debug)]
pub(crate) struct DirectLink {
    /// The client's socket, of which the provider has another copy.
    socket: UnixConnection,
    /// Calls that went by it, as the provider tells.
    requests: AtomicU64,
}

impl DirectLink {
    pub(crate) fn new(socket: UnixConnection) -> Self {
        Self { socket, requests: AtomicU64::new(0) }
    }

    pub(crate) fn socket(&self) -> &UnixConnection {
        &self.socket
    }

    /// Ends the session, whoever has copies of its socket.
    pub(crate) fn end(&self) {
        self.socket.shut_down();
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.socket.is_closed().unwrap_or(true)
    }

    /// Relaxed, as no other memory is told of by the count.
    pub(crate) fn count(&self, requests: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// A client of one thread of the daemon that another thread is to introduce to a provider.
#[derive(Clone, Debug)]
pub(crate) struct DirectNewcomer {
    pub(crate) service: u16,
    pub(crate) process: ClientProcess,
    pub(crate) link: Arc<DirectLink>,
    /// It makes its calls one at a time.
    pub(crate) is_single: bool,
}
