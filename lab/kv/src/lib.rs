//! benchkv: a key-value store over every way to call another node, that checks each answer and
//! measures.
//!
//! ```text
//! session    all runs of a grid, round by round, each between two probes of the cores
//! grid       combinations of lists           preset     the grids that the documents show
//! bare       what calls take without a way to call
//! job        coordinator, rank processes, client processes: started together, measured together
//! drive      one client: queue depth, pace, judgement of every answer, latencies
//! workload   what is asked for: a function of the seed
//! backend    how a client calls a shard
//! ucp        active messages of UCX, by the library of the system; the only unsafe module
//! store      what a shard holds              codec      bytes of requests, answers and values
//! history    linearizability, key by key     place      which shard owns a key
//! measured   what one run found, all its processes together
//! result     runs to numbers, tables, files, the report
//! ```
//!
//! # Architecture invariant
//!
//! No answer is counted before every byte of it was checked. All clients of a job are measured over
//! the same interval, and a job with a failed process or a wrong answer has no numbers. The workload
//! names no backend, and no backend knows what it carries.

#![deny(unsafe_code)]

#[cfg(feature = "jobs")]
pub mod backend;
#[cfg(feature = "jobs")]
pub mod bare;
pub mod codec;
#[cfg(feature = "jobs")]
mod configuration;
#[cfg(feature = "jobs")]
pub mod drive;
#[cfg(feature = "jobs")]
pub mod grid;
#[cfg(feature = "jobs")]
pub mod history;
#[cfg(feature = "jobs")]
pub mod job;
#[cfg(feature = "jobs")]
mod measured;
#[cfg(feature = "jobs")]
mod pin;
pub mod place;
#[cfg(feature = "jobs")]
pub mod preset;
#[cfg(feature = "jobs")]
pub mod result;
pub mod rng;
#[cfg(feature = "jobs")]
pub mod series;
#[cfg(feature = "jobs")]
pub mod session;
pub mod store;
#[cfg(feature = "jobs")]
pub mod ucp;
mod words;
pub mod workload;
pub mod zipf;
