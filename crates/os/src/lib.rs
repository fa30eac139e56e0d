//! Kernel objects behind small typed wrappers: sockets that pass descriptors, process handles,
//! events, futexes, locks, affinity, the clock, and whether others want the core.
//!
//! Deadlines are absolute, in nanoseconds of [`clock::now_ns`]. A deadline that has passed (such as
//! [`clock::NOW`]) makes an operation try once and not wait.
//!
//! # Architecture invariant
//!
//! Nothing here waits without a deadline, or leaves a descriptor that a child would inherit.
#![forbid(unsafe_code)]

pub mod affinity;
pub mod clock;
pub mod crowd;
pub mod event;
pub mod fdpass;
#[cfg(not(loom))]
pub mod futex;
pub mod lock;
pub mod process;
pub mod rendezvous;

mod ready;
