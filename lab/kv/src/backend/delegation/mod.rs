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
//! With [`Kind::Provider`](super::Kind::Provider) the service is a process of the shard's node, to which the
//! daemon hands each request over shared memory ([`ShardProvider`]).
//!
//! A node has one daemon, of as many threads as it has shards: each thread offers its shard as a
//! service of its own. A call for another thread's shard changes the thread inside the daemon, as does
//! one whose connection another thread owns.

mod client;
mod daemon_parts;
mod provider;
mod server;

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use ::client::{ClientConfig, To};
use daemon::config::{DaemonConfig, KNOBS, Layers};
use nics::Selection;
use os::child::from_json;
use serde::{Deserialize, Serialize};

use self::daemon_parts::DaemonParts;
use super::{
    Backend, BackendError, Contact, JobSetup, Service, Switch, SwitchRange, Switches, direct,
};
use crate::place::{ClientId, Shard, Topology};

pub use client::DelegationClient;
pub use provider::ShardProvider;
pub use server::DelegationServer;

/// Those of copyrpc, between daemons, and when answers of other nodes reach clients.
pub(super) const SWITCHES: [Switch; direct::SWITCHES.len() + 1] = {
    let hold = Switch {
        name: "reply-hold",
        values: &["off", "10us", "adaptive-10us", "rtt-1", "rtt-1.5", "rtt-2"],
        range: SwitchRange::ReplyHold,
        meaning: "answers of other nodes wait for as many as there are nodes, so long at most: a time, one that follows                   their rate, or a multiple of the time from a post to the next answer",
    };
    let mut switches = [hold; direct::SWITCHES.len() + 1];
    let mut at = 0;
    while at < direct::SWITCHES.len() {
        switches[at] = direct::SWITCHES[at];
        at += 1;
    }
    switches
};

/// The same, and how a provider answers.
pub(super) const PROVIDER_SWITCHES: [Switch; SWITCHES.len() + 1] = {
    let form = Switch {
        name: "form",
        values: &["serve", "serve-on-1", "serve-on-4"],
        range: SwitchRange::Listed,
        meaning: "how a provider answers: by `serve` on one thread, or by `serve_on` with so many",
    };
    let mut switches = [form; SWITCHES.len() + 1];
    let mut at = 0;
    while at < SWITCHES.len() {
        switches[at] = SWITCHES[at];
        at += 1;
    }
    switches
};

/// Threads of `serve_on`; `None`: the provider answers by `serve`.
#[must_use]
pub fn provider_threads(switches: &Switches) -> Option<usize> {
    switches.value("form").strip_prefix("serve-on-").and_then(|threads| threads.parse().ok())
}

/// Name of the job: its secret makes it unique.
const JOB: &str = "kv";

/// Number of the service that is the first shard of a rank; the next ones follow.
const SERVICE: u16 = 1;

/// Number of the service that is `shard`, at its rank.
fn service_of(topology: Topology, shard: Shard) -> u16 {
    SERVICE + shard.0 % topology.daemon_threads
}

/// Most calls in flight of one client of a daemon.
const DEPTH_MAX: u32 = 4096;

/// One in so many turns of a daemon is timed, to explain what is measured. Up to seven looks at the
/// clock, of 20 to 30 ns each: some 3 ns per turn.
const SAMPLE_EVERY: u32 = 64;

/// The backend of one process.
pub struct Delegation {
    setup: JobSetup,
    nic: Selection,
    rank: u16,
    /// Shards are offered by processes.
    is_provided: bool,
    /// `None` before the first server is opened: processes of clients have no daemon.
    parts: Mutex<Option<DaemonParts>>,
}

impl Delegation {
    /// The backend of one process of `rank`, whose daemon uses the NIC `nic`.
    pub fn new(setup: JobSetup, nic: Selection, rank: u16) -> Self {
        Self { setup, nic, rank, is_provided: false, parts: Mutex::new(None) }
    }

    /// The same, whose daemon leaves the shards to a [`ShardProvider`] each.
    pub fn provided(setup: JobSetup, nic: Selection, rank: u16) -> Self {
        Self { is_provided: true, ..Self::new(setup, nic, rank) }
    }
}

impl Backend for Delegation {
    type Client = DelegationClient;
    type Server = DelegationServer;

    fn server(&self, shard: Shard, service: Service) -> Result<Self::Server, BackendError> {
        let thread = {
            let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
            let parts = match &mut *parts {
                Some(parts) => parts,
                none => none.insert(DaemonParts::open(&self.setup, self.rank, self.is_provided)?),
            };
            parts.take(shard)?
        };
        let service = (!self.is_provided).then_some(service);
        DelegationServer::open(&self.setup, &self.nic, shard, thread, service)
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
        from_json(&contact.0)
            .map_err(|cause| BackendError::new("a daemon's contact makes no sense", cause))
    }
}

/// Where clients find the daemon with that contact: for clients of another kind than [`DelegationClient`].
///
/// # Errors
///
/// The contact is none of a daemon.
pub fn socket_of(contact: &Contact) -> Result<PathBuf, BackendError> {
    Ok(Address::of(contact)?.socket)
}

/// How each client calls.
#[must_use]
pub fn client_config(setup: &JobSetup) -> ClientConfig {
    ClientConfig {
        timeout: Duration::from_nanos(setup.timeout_ns),
        response_bytes: u32::try_from(direct::response_bytes(setup)).unwrap_or(u32::MAX),
        ..ClientConfig::default()
    }
}

/// How clients of a daemon address a shard.
#[must_use]
pub fn address_of(topology: Topology, shard: Shard) -> To {
    let (rank, service) = (topology.rank_of(shard).into(), service_of(topology, shard));
    To { rank, service, method: 0 }
}

/// Settings of every daemon of the job; `is_provided`: processes offer the shards.
fn daemon_config(setup: &JobSetup, is_provided: bool) -> Result<DaemonConfig, BackendError> {
    let threads = setup.topology.daemon_threads.to_string();
    let settings = Layers::new(KNOBS.to_vec())
        .flag("threads", &threads)
        .map_err(|cause| BackendError::new("cannot open a daemon", cause))?;
    let config = DaemonConfig::from_settings(&settings.finish())
        .map_err(|cause| BackendError::new("the daemon's defaults contradict each other", cause))?;
    // What one client has in flight; a provider has what all clients have.
    let clients = if is_provided { u32::from(setup.topology.clients()) } else { 1 };
    let depth = setup.queue_depth.saturating_mul(clients).clamp(1, DEPTH_MAX).next_power_of_two();
    let depth = u16::try_from(depth).unwrap_or(u16::MAX);
    // A provider of each shard is a client, too.
    let clients = setup.topology.clients_per_rank.saturating_add(setup.topology.daemon_threads);
    Ok(DaemonConfig {
        clients_max: clients.max(config.clients_max),
        clients_per_process: clients.max(config.clients_max),
        depth,
        message_bytes_max: u32::try_from(setup.message_bytes_max).unwrap_or(u32::MAX).max(64),
        sample_every: if setup.times_turns { 1 } else { SAMPLE_EVERY },
        ..config
    })
}

#[cfg(test)]
mod tests;
