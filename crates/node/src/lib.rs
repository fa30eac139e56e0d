//! The node daemon: many processes, one daemon per node, few queue pairs.
//!
//! | module | one idea |
//! |---|---|
//! | [`bootstrap`] | daemons of one job find each other: an all-gather of one blob per rank |
//! | [`client`] | what processes use: calls through their daemon, services that they provide |
//! | [`config`] | one table of knobs; flag over environment over file over default |
//! | [`daemon`] | takes calls, carries them to other nodes, answers theirs: one turn at a time |
//! | [`membership`] | which peers are there, by heartbeats that prove both directions |
//! | [`metrics`] | counters and histograms in a file, readable with zero cooperation |
//! | [`runtime`] | where a daemon's sockets, lock and counters lie |
//! | [`wire`] | what requests between clients and daemons carry besides their body |
//!
//! Without the feature `daemon`, which is a default, there is what clients need: [`client`],
//! [`runtime`] and [`wire`].
#![forbid(unsafe_code)]

#[cfg(feature = "daemon")]
pub mod bootstrap;
pub mod client;
#[cfg(feature = "daemon")]
pub mod config;
#[cfg(feature = "daemon")]
pub mod daemon;
mod job;
#[cfg(feature = "daemon")]
pub mod membership;
#[cfg(feature = "daemon")]
pub mod metrics;
pub mod runtime;
pub mod wire;

pub use job::{JobId, JobIdError};
