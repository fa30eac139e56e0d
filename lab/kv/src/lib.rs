//! benchkv: a key-value store over every way to call another node, that checks each answer and
//! measures.
//!
//! ```text
//! session    all runs of a grid, round by round, each between two probes of the cores
//! grid       combinations of lists           preset     the grids that the documents show
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

pub mod backend;
pub mod codec;
mod configuration;
pub mod drive;
pub mod grid;
pub mod history;
pub mod job;
mod measured;
mod pin;
pub mod place;
pub mod preset;
pub mod result;
pub mod rng;
pub mod series;
pub mod session;
pub mod store;
pub mod ucp;
mod words;
pub mod workload;
pub mod zipf;
