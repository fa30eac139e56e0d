//! A job: one coordinator, a daemon process per rank, client processes; on this host, or on several ([`hosts`]).
//!
//! ```text
//! coordinator                              every child (this program, run again)
//!   Assign ───────────────────────────────▶ opens its ends
//!          ◀───────────────────── Contacts ─
//!   Join (everybody's contacts) ──────────▶ connects; daemons serve from here on
//!          ◀──────────────────────── Ready ─
//!   Weigh ────────────────────────────────▶ once, when all are warm
//!          ◀─────────────────────── Weight ─ its memory
//!   Go (one schedule for all) ────────────▶                                  ┐
//!          ◀───────────────────── Progress ─ now and then                    │ once per interval: the
//!          ◀──────── History …, Measured ── when the schedule is over        │ first ones warm up
//!   Stop ─────────────────────────────────▶ providers, then daemons          │
//!          ◀───────────────────── Measured ─                                 ┘
//!   End ──────────────────────────────────▶ exits: until then a closed channel is a failure
//! ```
//!
//! A child has a channel to the coordinator and dies with it ([`os::child`]). A child that fails reports
//! why, or leaves it on its standard error; either way the job ends, the others are killed, and the error
//! names the process.

mod child;
mod children;
mod clients;
mod coordinator;
pub mod hosts;
mod meter;
mod process;
mod provider;
mod rank;
mod run;
mod threads;
mod victim;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

pub use child::{child, child_over};
pub use children::{JobError, Launcher};
pub use coordinator::ChildError;
pub(crate) use meter::cpu_time_ns;
pub(crate) use run::processes;
pub use run::{Live, RunningJob, run};

pub use crate::configuration::{Config, Pin};
use crate::{
    backend::{Contact, Roster},
    drive::Schedule,
    history::HistoryEvent,
    measured::Measured,
    place::ClientId,
};

/// What a child is to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Role {
    /// The daemon of this rank.
    Rank(u16),
    /// What offers the shards of this rank, if the daemon does not.
    Provider(u16),
    /// These clients, all of one rank.
    Clients(Vec<ClientId>),
}

/// Coordinator to child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Order {
    /// `address`: where others reach what this child listens at.
    Assign {
        config: Box<Config>,
        role: Role,
        cores: Vec<usize>,
        address: IpAddr,
    },
    Join(Roster),
    /// An interval.
    Go(Schedule),
    /// The interval is over.
    Stop,
    /// Tell how much memory the process has.
    Weigh,
    End,
}

/// Child to coordinator.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Report {
    Contacts(Vec<Contact>),
    Ready,
    /// Calls answered so far.
    Progress(u64),
    History(Vec<HistoryEvent>),
    /// Proportional share of memory, in bytes.
    Weight(u64),
    /// Everything of this process in one interval.
    Measured(Box<Measured>),
    Failed(String),
}
