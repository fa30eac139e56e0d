//! The hosts of a job. Of several, a launcher has started this program once on each; host 0 is the *leader*, where
//! the coordinator is.
//!
//! ```text
//! leader: Hosts                                    host 1, 2, …: serve
//!        ◀────────────── exchange: HostInfo of each ─────────────▶        (crate bootstrap)
//!        ◀──────────────────────────── connection ─ greeting, both prove that they know the secret
//!   Start ─────────────────────────────────────▶ a connection more, greeting; a child gets it as its channel
//!   Children ◀═════ orders and reports of the job ═════▶ the child
//!   Clock ─────────────────────────────────────▶
//!        ◀──────────────────────────────── Clock ─ bounds of how far the clocks of two hosts are apart
//!        ◀──────────────────────────────── Ended ─ a child, with its last words
//!   End ───────────────────────────────────────▶ it is over
//! ```
//!
//! A child dies with the process of its host that has started it, and that ends when its connection to the leader
//! does. So nothing outlives the leader, on any host.
//!
//! The leader asks each host for the time before and after a run, sixteen times each; the difference of two clocks
//! lies between the narrowest bounds of both. Times of `--verify full` become as much earlier and later as the
//! bounds say, so a right history is never judged wrong; one that is wrong by less than the bounds may pass.

mod clock_bounds;
mod greeting;
mod leader;
mod serve;

use std::{collections::BTreeMap, io, net::IpAddr, net::SocketAddr};

use os::child::TypedMessageError;
use serde::{Deserialize, Serialize};

use super::process::Ended;

pub(super) use clock_bounds::ClockBounds;
pub use leader::{Hosts, Leader};
pub use serve::serve;

/// What a host tells all others before anything is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    /// Where others reach its processes.
    pub address: IpAddr,
    /// The cores that its processes may use.
    pub cores: Vec<usize>,
    /// What is set about its NIC, by the names of environment variables; `None`: what the configuration says.
    pub nic_knobs: Option<BTreeMap<String, String>>,
    /// Of the leader: where the others connect.
    pub leader: Option<SocketAddr>,
}

/// Leader to host.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum HostOrder {
    /// Start a child of this number.
    Start(u32),
    /// Tell the time.
    Clock,
    End,
}

/// Host to leader.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum HostReport {
    Started,
    NotStarted(String),
    /// Nanoseconds of its monotonic clock.
    Clock(u64),
    /// The child of this number has ended.
    Ended(u32, Ended),
}

/// Why several hosts do not work together.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The kernel refused.
    #[error("{what}: {cause}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// As the kernel says.
        cause: io::Error,
    },
    /// The leader is not reached.
    #[error(
        "cannot reach rank 0 at {address}: {cause}; TCP connections from this host to that address must be allowed"
    )]
    Unreachable {
        /// Its address.
        address: SocketAddr,
        /// As the kernel says.
        cause: io::Error,
    },
    /// A host has not connected.
    #[error(
        "host {host} did not connect to {address} in time; TCP connections to it must be allowed"
    )]
    Missing {
        /// Its number, which is the rank that the launcher gave it.
        host: usize,
        /// Where it should have connected.
        address: SocketAddr,
    },
    /// The other side is gone, or of another version.
    #[error("host {host}: {cause}; what it wrote to its standard error may tell why")]
    Control {
        /// Its number, which is the rank that the launcher gave it.
        host: usize,
        /// Cause of the refusal.
        cause: TypedMessageError,
    },
    /// A report that was not due.
    #[error("host {host} reports out of turn: is it the same version of copyrpc?")]
    OutOfTurn {
        /// Its number, which is the rank that the launcher gave it.
        host: usize,
    },
    /// The leader names no address.
    #[error("rank 0 has sent no address: is it the same version of copyrpc?")]
    NoLeader,
    /// A child could not be started there.
    #[error("{reason}")]
    NotStarted {
        /// In the host's words.
        reason: String,
    },
}

/// The error of a system call that was tried to do `what`.
fn system(what: &'static str) -> impl FnOnce(io::Error) -> HostError {
    move |cause| HostError::System { what, cause }
}
