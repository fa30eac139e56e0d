//! eRPC and ScaleRPC from client to daemon thread, by the one interface of [`protocols`]: what differs
//! between them here is their settings.
//!
//! ```text
//! client thread ── one lane per daemon thread ── eRPC or ScaleRPC ──▶ daemon thread
//!        └──────── greeting, answer: TCP, once ─────────────────────▶ (its contact)
//! ```
//!
//! copyrpc by the same interface would be [`direct`](super::direct).
//!
//! Neither protocol wakes a thread that sleeps, so a thread that is to sleep takes a nap of
//! `NAP_MAX` at most and looks again.

mod client;
mod meeting;
mod options;
mod server;

use std::{thread, time::Duration};

use nics::Opener;
use os::clock;
use protocols::Protocol;
use verbs::Nic;

use super::{Backend, BackendError, JobSetup, Service};
use crate::place::{ClientId, Shard};

pub use client::ProtocolClient;
pub use server::ProtocolServer;

pub(super) use options::{ERPC_SWITCHES, SCALERPC_SWITCHES};

/// Longest nap of a thread that found nothing.
const NAP_MAX: Duration = Duration::from_micros(50);

/// The backend of one process: each of its threads opens a port of its own.
#[derive(Clone, Debug)]
pub struct OverProtocol<O> {
    setup: JobSetup,
    protocol: Protocol,
    opener: O,
}

impl<O: Opener> OverProtocol<O> {
    /// The backend of one process, on the NIC of `opener`.
    pub fn new(setup: JobSetup, protocol: Protocol, opener: O) -> Self {
        Self { setup, protocol, opener }
    }

    fn nic(&self) -> Result<O::Nic, BackendError> {
        let opened = self.opener.open();
        opened.map_err(|cause| BackendError::new("cannot open an endpoint", cause))
    }
}

impl<O: Opener> Backend for OverProtocol<O> {
    type Client = ProtocolClient<O::Nic>;
    type Server = ProtocolServer<O::Nic>;

    fn server(&self, _shard: Shard, service: Service) -> Result<Self::Server, BackendError> {
        let clients = self.setup.topology.clients();
        let config = options::config(&self.setup, self.protocol, clients);
        ProtocolServer::open(self.nic()?, &config, clients, self.setup.address, service)
    }

    fn client(&self, _client: ClientId) -> Result<Self::Client, BackendError> {
        let shards = self.setup.topology.shards();
        let config = options::config(&self.setup, self.protocol, shards);
        ProtocolClient::open(self.nic()?, &config, shards, &self.setup)
    }
}

/// Sleeps until something may have come, or the deadline.
fn nap(nic: &impl Nic, deadline_ns: u64) {
    let left = Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns())).min(NAP_MAX);
    thread::sleep(nic.poll_timeout().map_or(left, |longest| left.min(longest)));
}

#[cfg(test)]
mod tests;
