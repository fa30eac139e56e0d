//! Delegation: clients hand their calls over shared memory to the daemon of their node, which alone
//! talks to other nodes.
//!
//! ```text
//! client ── shared memory ──▶ daemon of its node ══ copyrpc ══▶ daemon of the shard's node
//!                              │ own shard: no NIC                │
//!                              ▼                                  ▼
//!                             service                            service
//! ```
//!
//! Each daemon thread is a daemon of its own, with its shard's number as its rank: the clients of a
//! node are dealt out among those of their node.

mod client;
mod server;

use std::path::PathBuf;

use node::config::{DaemonConfig, KNOBS, Layers};
use serde::{Deserialize, Serialize};

use super::{Backend, BackendError, Contact, Service, Setup, direct};
use crate::place::{ClientId, Shard, Topology};

pub use client::DelegationClient;
pub use server::DelegationServer;

/// Those of copyrpc, between daemons.
pub(super) use direct::SWITCHES;

/// Number of the service that is the shard.
const SERVICE: u16 = 1;

/// One in so many turns of a daemon is timed, to explain what is measured. Six looks at the clock, of
/// 20 to 30 ns each: 3 ns per turn.
const SAMPLE_EVERY: u32 = 64;

/// What the process as a whole has.
#[derive(Clone, Debug)]
pub struct Delegation {
    setup: Setup,
    nic: softnic::Config,
}

impl Backend for Delegation {
    type Client = DelegationClient;
    type Server = DelegationServer;

    fn open(setup: &Setup, _rank: u16) -> Result<Self, BackendError> {
        Ok(Self { nic: direct::soft_nic(setup)?, setup: setup.clone() })
    }

    fn server(&self, shard: Shard, service: Service) -> Result<DelegationServer, BackendError> {
        DelegationServer::open(&self.setup, &self.nic, shard, service)
    }

    fn client(&self, client: ClientId) -> Result<DelegationClient, BackendError> {
        Ok(DelegationClient::new(&self.setup, home_of(self.setup.topology, client)))
    }
}

/// The daemon that a client hands its calls to.
fn home_of(topology: Topology, client: ClientId) -> Shard {
    let nth = client.0 % topology.clients_per_rank % topology.daemon_threads;
    Shard(topology.home_of(client) * topology.daemon_threads + nth)
}

/// Where a daemon is reached, and its part of the secret of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Address {
    /// Of its clients: an abstract name, so that nothing is left of it whoever is killed when.
    socket: PathBuf,
    /// Of other daemons, for heartbeats.
    control: std::net::SocketAddr,
    /// Random: all parts together are the secret, which only processes of the job see.
    nonce: Vec<u8>,
}

impl Address {
    fn to_contact(&self) -> Result<Contact, BackendError> {
        let text = serde_json::to_string(self);
        text.map(Contact).map_err(|cause| BackendError::new("cannot tell where it is", cause))
    }

    fn of(contact: &Contact) -> Result<Self, BackendError> {
        serde_json::from_str(&contact.0)
            .map_err(|cause| BackendError::new("a daemon's contact makes no sense", cause))
    }
}

/// Settings of every daemon of the job.
fn daemon_config(setup: &Setup) -> Result<DaemonConfig, BackendError> {
    let defaults = Layers::new(KNOBS.to_vec()).finish();
    let config = DaemonConfig::from_settings(&defaults)
        .map_err(|cause| BackendError::new("the daemon's defaults contradict each other", cause))?;
    let depth = u16::try_from(setup.queue_depth).unwrap_or(u16::MAX / 2).max(1).next_power_of_two();
    Ok(DaemonConfig {
        clients_max: setup.topology.clients_per_rank.max(config.clients_max),
        depth,
        message_bytes_max: u32::try_from(setup.message_bytes_max).unwrap_or(u32::MAX).max(64),
        sample_every: SAMPLE_EVERY,
        ..config
    })
}

#[cfg(test)]
mod tests;
