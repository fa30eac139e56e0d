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
//! A node has one daemon, of as many threads as it has shards: each thread offers its shard as a
//! service of its own. A call for another thread's shard changes the thread inside the daemon, as does
//! one whose connection another thread owns.

mod client;
mod house;
mod server;

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use node::config::{DaemonConfig, KNOBS, Layers};
use serde::{Deserialize, Serialize};

use self::house::House;
use super::{Backend, BackendError, Contact, Service, Setup, direct};
use crate::place::{ClientId, Shard, Topology};

pub use client::DelegationClient;
pub use server::DelegationServer;

/// Those of copyrpc, between daemons.
pub(super) use direct::SWITCHES;

/// Name of the job: its secret makes it unique.
const JOB: &str = "kv";

/// Number of the service that is the first shard of a rank; the next ones follow.
const SERVICE: u16 = 1;

/// Number of the service that is `shard`, at its rank.
fn service_of(topology: Topology, shard: Shard) -> u16 {
    SERVICE + shard.0 % topology.daemon_threads
}

/// One in so many turns of a daemon is timed, to explain what is measured. Up to seven looks at the
/// clock, of 20 to 30 ns each: some 3 ns per turn.
const SAMPLE_EVERY: u32 = 64;

/// What the process as a whole has.
pub struct Delegation {
    setup: Setup,
    nic: softnic::Config,
    rank: u16,
    /// `None` before a thread has asked for its part: processes of clients have none.
    house: Mutex<Option<House>>,
}

impl Backend for Delegation {
    type Client = DelegationClient;
    type Server = DelegationServer;

    fn open(setup: &Setup, rank: u16) -> Result<Self, BackendError> {
        let (nic, setup) = (direct::soft_nic(setup)?, setup.clone());
        Ok(Self { setup, nic, rank, house: Mutex::new(None) })
    }

    fn server(&self, shard: Shard, service: Service) -> Result<DelegationServer, BackendError> {
        let post = {
            let mut house = self.house.lock().unwrap_or_else(PoisonError::into_inner);
            let house = match &mut *house {
                Some(house) => house,
                none => none.insert(House::open(&self.setup, self.rank)?),
            };
            house.post(shard)?
        };
        DelegationServer::open(&self.setup, &self.nic, shard, post, service)
    }

    fn client(&self, client: ClientId) -> Result<DelegationClient, BackendError> {
        let topology = self.setup.topology;
        let home = Shard(topology.home_of(client) * topology.daemon_threads);
        Ok(DelegationClient::new(&self.setup, home))
    }
}

/// Where a thread of a daemon is reached, and its part of the secret of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Address {
    /// Of the daemon's clients: an abstract name, so that nothing is left of it whoever is killed when.
    socket: PathBuf,
    /// Of this thread, for heartbeats of other daemons.
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
    let threads = setup.topology.daemon_threads.to_string();
    let settings = Layers::new(KNOBS.to_vec())
        .flag("threads", &threads)
        .map_err(|cause| BackendError::new("cannot open a daemon", cause))?;
    let config = DaemonConfig::from_settings(&settings.finish())
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
