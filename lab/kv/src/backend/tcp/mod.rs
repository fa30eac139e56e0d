//! TCP over the loopback device: what everybody has, and hence the floor.
//!
//! ```text
//! client thread ── one connection per shard ──▶ daemon thread (listener, epoll)
//!
//! frame   0           4           12
//!         │ len_bytes │ token     │ request or answer …      len_bytes counts token and message
//! ```
//!
//! Not slowed down on purpose: connections do not block, all frames that are ready go into one
//! system call, and both sides wait in `epoll` or poll, as they are told.

mod client;
mod connection;
mod poller;
mod server;

use std::{net::IpAddr, time::Duration};

use super::{Backend, BackendError, JobSetup, Service, Switch, SwitchRange};
use crate::place::{ClientId, Shard};

pub use client::TcpClient;
pub use server::TcpServer;

/// What can be switched.
pub(super) const SWITCHES: [Switch; 2] = [
    Switch {
        name: "nodelay",
        values: &["on", "off"],
        range: SwitchRange::Listed,
        meaning: "send small segments at once (TCP_NODELAY), or wait for acknowledgements",
    },
    Switch {
        name: "write",
        values: &["turn", "call"],
        range: SwitchRange::Listed,
        meaning: "write once per turn of the loop, or once per message",
    },
];

/// Longest wait inside the kernel, so that a thread notices that it is to stop.
const NAP_MAX: Duration = Duration::from_millis(20);

/// What the process as a whole has: nothing but its options.
#[derive(Clone, Debug)]
pub struct TcpBackend {
    options: Options,
}

/// What both ends need to know.
#[derive(Clone, Copy, Debug)]
struct Options {
    message_bytes_max: usize,
    is_nodelay: bool,
    flushes_each: bool,
    clients_max: usize,
    /// The address of this host that servers listen at.
    address: IpAddr,
}

impl TcpBackend {
    /// The backend of one process.
    #[must_use]
    pub fn new(setup: &JobSetup) -> Self {
        let options = Options {
            message_bytes_max: setup.message_bytes_max,
            is_nodelay: setup.switches.value("nodelay") != "off",
            flushes_each: setup.switches.value("write") == "call",
            clients_max: usize::from(setup.topology.clients()),
            address: setup.address,
        };
        Self { options }
    }
}

impl Backend for TcpBackend {
    type Client = TcpClient;
    type Server = TcpServer;

    fn server(&self, _shard: Shard, service: Service) -> Result<TcpServer, BackendError> {
        TcpServer::listen(self.options, service)
    }

    fn client(&self, _client: ClientId) -> Result<TcpClient, BackendError> {
        TcpClient::new(self.options)
    }
}

#[cfg(test)]
mod tests;
