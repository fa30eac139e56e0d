//! Measuring machinery: pairs of pinned processes, what the machine itself can do, and traffic that
//! checks its data over NICs, between processes and between threads.
//!
//! ```text
//! suite     the cells of a benchmark and the two roles that run them
//! workers   what two workers of `rpc` call and answer
//! traffic   what two processes send each other over any `verbs::Nic`
//! calls     what two processes ask each other over `ipc`
//! threads   what threads of one process hand each other over `inproc`
//! limit     what the same two processes reach with bare memory: the reference of every ratio
//! schedule  interleaves the cells round by round and brackets every sample with a probe
//! stats     samples of one regime to median, minimum, maximum
//! report    table for people, JSON lines for programs
//! duo       the two processes: pinned, connected, dying together
//! ```
//!
//! # Architecture invariant
//!
//! No number leaves this crate without the regime it was taken in, no ratio mixes two regimes, and
//! nothing is measured on a thread that is not pinned.

#![forbid(unsafe_code)]

mod announced;
pub mod board;
pub mod calls;
pub mod cores;
pub mod duo;
pub mod limit;
pub mod machine;
pub mod pingpong;
pub mod plan;
pub mod regime;
pub mod report;
pub mod schedule;
mod slots;
pub mod stats;
pub mod suite;
pub mod threads;
pub mod traffic;
pub mod workers;
