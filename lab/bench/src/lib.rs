//! What is measured in two pinned processes: what the machine itself can do, and traffic that checks its
//! data over NICs, between processes and between threads. How samples are taken and shown is crate `measure`.
//!
//! ```text
//! suite         the two roles that run the cells of a benchmark
//! plan          the cells of every benchmark: here a row is added
//! beside        what a card had, beside cells of the same shape
//! job           what both processes do in one sample: here a new way to call is added
//! nic           both kinds of work on one NIC: traffic and workers
//! by_protocol   what a caller and a server of any protocol call and answer
//! dc_reads      READs over DC: windows, initiators, targets
//! workers       what two workers of `rpc` call and answer
//! series        the numbered calls of one sample of these two, and whether answers are right
//! traffic       what two processes send each other over any `verbs::Nic`
//! calls         what two processes ask each other over `ipc`
//! threads       what threads of one process hand each other over `inproc`
//! selected      measurements on the NIC that was selected
//! long_calls    what a call with long bodies costs: counts on one thread, times on two cores
//! clients       what users write, in each form and language (a feature)
//! two_hosts     calls between hosts: a server that echoes, a client that measures
//! limit, rings  what the same two processes reach with bare memory: the reference of every ratio
//! one_core      round trips of the same two on one core: what it takes to hand it over
//! process_pair  the two processes: pinned, connected, dying together
//! ```
//!
//! # Architecture invariant
//!
//! Nothing is measured on a thread that is not pinned.

#![forbid(unsafe_code)]

pub mod beside;
pub mod by_protocol;
pub mod calls;
#[cfg(feature = "clients")]
pub mod clients;
pub mod dc_plan;
pub mod dc_reads;
pub mod delegated;
mod error;
pub mod job;
pub mod limit;
pub mod long_calls;
mod nic;
mod one_core;
pub mod parts;
pub mod plan;
pub mod process_pair;
pub mod protocol_plan;
mod rings;
mod sample;
pub mod selected;
mod series;
pub mod suite;
#[cfg(test)]
mod test_rig;
pub mod threads;
pub mod traffic;
pub mod two_hosts;
pub mod workers;

pub use error::Error;
pub use nic::NicWork;

use measure::{cores, ping_pong, results, schedule, shared_words, stats};
