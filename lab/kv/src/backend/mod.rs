//! How a client calls a shard: the interface that every way of doing it fits.
//!
//! ```text
//! client process                            rank process
//!   Backend ──────── Client ═══ calls ═══▶ Server ──────── Backend      one of each per thread
//!                      contact ─┐       ┌─ contact
//!                               └ Roster ┘                              gathered by the coordinator,
//!                      join ◀──────┴───────▶ join                       given to everybody
//! ```
//!
//! Calls are asynchronous: [`Client::submit`] takes a request or says that it is full,
//! [`Client::poll`] hands out what became of earlier ones. Nothing is kept of the bytes that either
//! is given, and nothing is allocated per call. Dispatch is static.

mod counters;
pub mod delegation;
pub mod direct;
mod found;
mod inbox;
pub mod protocol;
mod switches;
pub mod tcp;
pub mod ucx_am;
mod wait;

use std::{
    error::Error,
    net::{IpAddr, Ipv4Addr},
};

use rpc::Status;
use serde::{Deserialize, Serialize};

pub use counters::Counters;
pub use switches::{Switch, SwitchError, SwitchRange, Switches};
pub use wait::{ThreadIdle, Wait};

use crate::{
    place::{ClientId, Shard, Topology},
    words::words,
};

words! {
    /// Ways to call.
    Kind, "backend" {
        /// Shared memory to the daemon of the node, copyrpc between daemons.
        Delegation = "delegation",
        /// The same, but a process of each node offers the shards to its daemon.
        Provider = "provider",
        /// copyrpc from client to daemon thread over a NIC that each client has.
        Direct = "direct",
        /// eRPC from client to daemon thread: datagrams, by the one interface to three protocols.
        Erpc = "erpc",
        /// ScaleRPC from client to daemon thread: groups of clients take turns, by the same interface.
        Scalerpc = "scalerpc",
        /// UCX active messages from client to daemon thread, where the system has UCX.
        UcxAm = "ucx-am",
        /// TCP: the floor.
        Tcp = "tcp",
    }
}

impl Kind {
    /// Why this machine cannot run it, if so, with the remedy.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        match self {
            Self::UcxAm => ucx_am::missing(),
            _ => None,
        }
    }

    /// Version of what is not part of this program, as it says itself.
    #[must_use]
    pub fn version(self) -> Option<String> {
        match self {
            Self::UcxAm => crate::ucp::version().ok().map(|version| format!("UCX {version}")),
            _ => None,
        }
    }

    /// Those that this machine can run.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|kind| kind.missing().is_none()).collect()
    }

    /// Those that are measured unless others are named: ours, and what people use instead, as far as this machine can
    /// run them.
    #[must_use]
    pub fn contestants() -> Vec<Self> {
        let mut contestants = Self::available();
        contestants.retain(|kind| !matches!(kind, Self::Erpc | Self::Scalerpc));
        contestants
    }

    /// What can be switched about it.
    #[must_use]
    pub fn switches(self) -> &'static [Switch] {
        match self {
            Self::Delegation => &delegation::SWITCHES,
            Self::Provider => &delegation::PROVIDER_SWITCHES,
            Self::Direct => &direct::SWITCHES,
            Self::Erpc => &protocol::ERPC_SWITCHES,
            Self::Scalerpc => &protocol::SCALERPC_SWITCHES,
            Self::UcxAm => &ucx_am::SWITCHES,
            Self::Tcp => &tcp::SWITCHES,
        }
    }

    /// Whether it calls through a NIC.
    #[must_use]
    pub fn uses_nic(self) -> bool {
        match self {
            Self::Delegation | Self::Provider | Self::Direct | Self::Erpc | Self::Scalerpc => true,
            Self::UcxAm | Self::Tcp => false,
        }
    }

    /// Ways to wait that may be its best; the first is the default. A process that provides yields for ever
    /// between intervals, too, if it does at all: that would take the cores of the other contestants.
    #[must_use]
    pub fn waits(self) -> &'static [Wait] {
        match self {
            Self::Provider => &[Wait::Adaptive, Wait::Block],
            _ => &[Wait::Adaptive, Wait::Yield],
        }
    }

    /// How its threads wait unless told otherwise: a job on one machine may have more threads than cores, or fewer.
    #[must_use]
    pub fn default_wait(self) -> Wait {
        self.waits()[0]
    }

    /// Queue pairs of each node over RC, by construction. `None`: it has none, or their number is not ours to know.
    #[must_use]
    pub fn queue_pairs_per_node(self, topology: Topology) -> Option<u64> {
        let Topology { ranks, daemon_threads, clients_per_rank, .. } = topology;
        let [ranks, threads, clients] = [ranks, daemon_threads, clients_per_rank].map(u64::from);
        // Each client and each thread of a daemon have a connection, of which each node has one end per client
        // of its own, and one per thread of its own.
        let connections = clients * ranks * threads * 2;
        match self {
            // Each peer of a daemon belongs to one of its threads.
            Self::Delegation | Self::Provider => Some(ranks - 1),
            Self::Direct | Self::Scalerpc => Some(connections),
            Self::Erpc => Some(clients + threads),
            Self::UcxAm | Self::Tcp => None,
        }
    }
}

/// Names a call until its answer; chosen by the caller, opaque to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallToken(pub u64);

/// What everybody in a job knows before anything is opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSetup {
    /// How many there are of everything.
    pub topology: Topology,
    /// Calls that a client has outstanding, at most.
    pub queue_depth: u32,
    /// Longest request or answer.
    pub message_bytes_max: usize,
    /// A call without an answer after this is given up.
    pub timeout_ns: u64,
    /// The way that threads wait for work.
    pub wait: Wait,
    /// The backend's switches, all of them.
    pub switches: Switches,
    /// Daemons time each turn of their loops.
    #[serde(default)]
    pub times_turns: bool,
    /// Where others reach what this process listens at: loopback, unless there are several hosts.
    #[serde(default = "loopback")]
    pub address: IpAddr,
}

/// The address of processes that all are on one host.
#[must_use]
pub const fn loopback() -> IpAddr {
    IpAddr::V4(Ipv4Addr::LOCALHOST)
}

/// Where one server or client is reached: opaque to everybody but its backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact(pub String);

/// Everybody's contact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// By shard.
    pub servers: Vec<Contact>,
    /// By client.
    pub clients: Vec<Contact>,
}

/// What one process has of a way to call: shared by its threads.
pub trait Backend: Sync {
    /// A client thread's end.
    type Client: Client;
    /// A daemon thread's end.
    type Server: Server;

    /// The end of the thread that serves `shard` by `service`.
    ///
    /// # Errors
    ///
    /// [`BackendError`].
    fn server(&self, shard: Shard, service: Service) -> Result<Self::Server, BackendError>;

    /// The end of the thread that is `client`.
    ///
    /// # Errors
    ///
    /// [`BackendError`].
    fn client(&self, client: ClientId) -> Result<Self::Client, BackendError>;
}

/// A client's end.
pub trait Client {
    /// What others need to reach it; empty if nobody does.
    fn contact(&self) -> Contact {
        Contact::default()
    }

    /// Connects to the servers, before the first call.
    ///
    /// # Errors
    ///
    /// [`BackendError`], also when `deadline_ns` passes.
    fn join(&mut self, roster: &Roster, deadline_ns: u64) -> Result<(), BackendError>;

    /// Takes a request for `to`. It may leave the process as late as the next [`Self::poll`] or
    /// [`Self::wait`].
    ///
    /// # Errors
    ///
    /// [`SubmitError`]: the request was not taken.
    fn submit(&mut self, to: Shard, token: CallToken, request: &[u8]) -> Result<(), SubmitError>;

    /// Sends and receives what is possible without waiting, and hands at most `budget` events to
    /// `sink`. Returns how many.
    ///
    /// # Errors
    ///
    /// [`BackendError`]: this end is of no use any more.
    fn poll(
        &mut self,
        budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, BackendError>;

    /// Sends what was submitted and sleeps until [`Self::poll`] may find something, or the deadline.
    ///
    /// # Errors
    ///
    /// As of [`Self::poll`].
    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError>;

    /// What it counted so far.
    fn counters(&self) -> Counters;
}

/// Answers a request: the answer goes into the buffer, which is empty.
pub type Service = Box<dyn FnMut(&[u8], &mut Vec<u8>)>;

/// A daemon thread's end. It was given the [`Service`] that answers requests.
pub trait Server {
    /// What others need to reach it.
    fn contact(&self) -> Contact;

    /// Connects to whom it must, before the first turn.
    ///
    /// # Errors
    ///
    /// [`BackendError`], also when `deadline_ns` passes.
    fn join(&mut self, roster: &Roster, deadline_ns: u64) -> Result<(), BackendError>;

    /// Sends and receives what is possible without waiting, and answers at least some of what has
    /// arrived, about `budget` requests at most. An answer never waits: room for it was set aside when the
    /// request was taken. It may leave as late as the next turn or [`Self::wait`].
    ///
    /// # Errors
    ///
    /// [`BackendError`]: this end is of no use any more. A client that misbehaves or goes away is no
    /// error.
    fn turn(&mut self, budget: usize) -> Result<ServerTurn, BackendError>;

    /// After a turn that did nothing: whether what its clients wait for is about to come
    /// from elsewhere, so that a thread that waits adaptively takes another turn at once.
    fn is_expecting(&self) -> bool {
        false
    }

    /// Sends what was answered and sleeps until [`Self::turn`] may find something, or the deadline.
    ///
    /// # Errors
    ///
    /// As of [`Self::turn`].
    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError>;

    /// What it counted so far.
    fn counters(&self) -> Counters;

    /// The same as a few numbers, cheap enough to be asked for after each turn; `None`: it has none.
    fn totals(&self) -> Option<ServerTotals> {
        None
    }
}

/// What a daemon counted so far, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerTotals {
    /// Requests of clients, responses and requests of other nodes, and replies to clients.
    pub counts: [u64; 4],
    /// Time with clients, with the NIC, posting, with what waits, and with peers, of turns that were timed.
    pub phases_ns: [u64; 5],
    /// Calls in flight.
    pub outstanding: u64,
}

/// What a turn of a [`Server`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerTurn {
    /// Requests that its service answered.
    pub served: usize,
    /// Whatever it did, requests that it answered or passed on included: 0 means that nothing was there.
    pub handled: usize,
}

impl ServerTurn {
    /// Of a server that does nothing but answer.
    #[must_use]
    pub fn of_answers(served: usize) -> Self {
        Self { served, handled: served }
    }
}

/// One thing that [`Client::poll`] found.
#[derive(Debug)]
pub enum Event<'a> {
    /// An answer.
    Answer {
        /// Of the call.
        token: CallToken,
        /// Valid during the callback.
        bytes: &'a [u8],
    },
    /// The call failed; whether it was carried out is unknown.
    Failed {
        /// Of the call.
        token: CallToken,
        /// Reason that the call has no answer.
        failure: CallFailure,
    },
    /// All calls to this shard failed, and all future ones will.
    Lost {
        /// The shard.
        shard: Shard,
    },
}

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallFailure {
    /// None came in time.
    Timeout,
    /// The rank, or the daemon in between, is gone.
    PeerGone,
    /// The daemon refused it for lack of room.
    Overloaded,
    /// An open-loop call that was due, but for which there never was room.
    Unsent,
}

impl CallFailure {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Timeout, Self::PeerGone, Self::Overloaded, Self::Unsent];

    /// Why a call ended with `status`, which is not "Ok".
    pub(crate) fn of_status(status: Status) -> Self {
        match status {
            Status::DeadlineExceeded => Self::Timeout,
            Status::ResourceExhausted => Self::Overloaded,
            _ => Self::PeerGone,
        }
    }

    /// For tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::PeerGone => "peer gone",
            Self::Overloaded => "overloaded",
            Self::Unsent => "unsent",
        }
    }
}

/// Why a request was not taken. The caller still has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// No room now. Poll, then try again.
    #[error("no room for another call; poll first")]
    Full,
    /// The shard is gone.
    #[error("shard {} is gone", .0.0)]
    Gone(Shard),
    /// It can never fit: a caller bug.
    #[error("a request of {len_bytes} B exceeds the {max_bytes} B of this job")]
    TooLarge {
        /// Of the request.
        len_bytes: usize,
        /// [`JobSetup::message_bytes_max`].
        max_bytes: usize,
    },
}

/// An end that cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct BackendError {
    what: String,
    #[source]
    cause: Box<dyn Error + Send + Sync>,
}

impl BackendError {
    /// `cause` stopped `what`.
    pub fn new(what: impl Into<String>, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { what: what.into(), cause: cause.into() }
    }
}
