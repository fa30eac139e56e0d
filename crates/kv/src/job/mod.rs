//! A job: one coordinator, a daemon process per rank, client processes; all on this machine.
//!
//! ```text
//! coordinator                              every child (this program, run again)
//!   Assign ───────────────────────────────▶ opens its ends
//!          ◀───────────────────── Contacts ─
//!   Join (everybody's contacts) ──────────▶ connects; daemons serve from here on
//!          ◀──────────────────────── Ready ─
//!   Go (one schedule for all) ────────────▶
//!          ◀───────────────────── Progress ─ now and then
//!          ◀────────── Clients, History … ── when the schedule is over
//!   Stop ─────────────────────────────────▶ daemons only
//!          ◀───────────────────────── Rank ─
//!   End ──────────────────────────────────▶ exits: until then a closed socket is a failure
//! ```
//!
//! A child has its control socket as standard input, and dies with the coordinator
//! (`PR_SET_PDEATHSIG`). A child that fails says why, or leaves it on its standard error; either way
//! the job ends, the others are killed, and the error names the process.

mod child;
mod clients;
mod control;
mod crew;
mod meter;
mod pin;
mod rank;
mod run;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use child::{ChildError, child};
pub use crew::Launcher;
pub use pin::Pin;
pub use run::{JobError, Live, run};

use crate::{
    backend::{Contact, Counters, Kind, Roster, Setup, Switches, Wait},
    codec::{HEAD_BYTES, MESSAGE_BYTES_MAX},
    drive::Schedule,
    history::Event,
    place::ClientId,
    result::SideRecord,
    workload::Workload,
};

/// Everything that a run depends on, as far as this program decides it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// How clients call.
    pub backend: Kind,
    /// How threads wait.
    pub wait: Wait,
    /// Where threads run.
    pub pin: Pin,
    /// Name of the NIC; "none" for backends without.
    pub nic: String,
    /// What is set about the NIC, by the names of its environment variables; the rest is default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nic_knobs: BTreeMap<String, String>,
    /// The backend's switches, all of them.
    pub switches: Switches,
    /// What is asked for.
    pub workload: Workload,
}

impl Config {
    fn setup(&self) -> Setup {
        let message_bytes_max = HEAD_BYTES + self.workload.value_size.max_bytes;
        Setup {
            topology: self.workload.topology(),
            queue_depth: self.workload.queue_depth,
            message_bytes_max: message_bytes_max.min(MESSAGE_BYTES_MAX),
            timeout_ns: self.workload.timeout_ms * 1_000_000,
            wait: self.wait,
            switches: self.switches.clone(),
            nic: self.nic.clone(),
            nic_knobs: self.nic_knobs.clone(),
        }
    }
}

/// What a child is to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Role {
    /// The daemon of this rank.
    Rank(u16),
    /// These clients, all of one rank.
    Clients(Vec<ClientId>),
}

/// Coordinator to child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Order {
    Assign { config: Config, role: Role, cores: Vec<usize> },
    Join(Roster),
    Go(Schedule),
    Stop,
    End,
}

/// Child to coordinator.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Report {
    Contacts(Vec<Contact>),
    Ready,
    /// Calls answered so far.
    Progress(u64),
    History(Vec<Event>),
    Clients(Box<ClientsReport>),
    Rank(RankReport),
    Failed(String),
}

/// What the clients of one process measured, added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClientsReport {
    pub(crate) local: SideRecord,
    pub(crate) remote: SideRecord,
    pub(crate) slices: Vec<u64>,
    pub(crate) outstanding: Vec<u64>,
    pub(crate) failures: BTreeMap<crate::backend::Failure, u64>,
    pub(crate) not_found: u64,
    pub(crate) mismatches: u64,
    pub(crate) late: u64,
    pub(crate) calls: u64,
    /// Answers inside the measured interval, by client.
    pub(crate) per_client: Vec<(ClientId, u64)>,
    /// First calls after the scheduled begin, at most.
    pub(crate) start_skew_ns: u64,
    /// CPU time of the process inside the measured interval.
    pub(crate) cpu_ns: u64,
    /// Times that a core went from it to something else inside the interval.
    pub(crate) switches: u64,
    pub(crate) counters: Counters,
}

/// What a daemon process counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankReport {
    /// Requests served, warm-up included.
    pub(crate) served: u64,
    /// CPU time of the process inside the measured interval.
    pub(crate) cpu_ns: u64,
    /// Times that a core went from it to something else inside the interval.
    pub(crate) switches: u64,
    /// What came inside the measured interval.
    pub(crate) counters: Counters,
    /// Calls to other nodes in flight, in each slice of the interval, on average; empty if nobody
    /// counts them.
    pub(crate) outstanding: Vec<u64>,
}
