//! Kernel objects behind small typed wrappers: sockets that pass descriptors, process handles, events,
//! futexes, locks, private directories, child processes, affinity, the clock, and how a thread waits.
//!
//! Deadlines are absolute, in nanoseconds of [`clock::now_ns`]. A deadline that has passed (such as
//! [`clock::NOW`]) makes an operation try once and not wait.
//!
//! # Architecture invariant
//!
//! Nothing here waits without a deadline, or leaves a descriptor that a child would inherit. Only `peercred` and `dylib`
//! are unsafe.
#![deny(unsafe_code)]

pub mod affinity;
pub mod cgroup;
pub mod child;
pub mod clock;
pub mod contention;
#[cfg(feature = "dylib")]
pub mod dylib;
pub mod event;
pub mod fdpass;
#[cfg(not(loom))]
pub mod futex;
pub mod idle;
pub mod lock;
pub mod machine;
mod neighbours;

pub mod plain_file;
pub mod private_dir;
pub mod private_file;
pub mod process;
pub mod ready_set;
pub mod unix;

mod peercred;
mod ready;
