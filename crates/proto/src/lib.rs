//! RPC protocols without I/O.
//!
//! A core takes arrivals and the time, and returns messages to send and ends of calls.
//! It names no NIC, pointer, clock or socket, so it runs the same in a unit test, in virtual time
//! and above a NIC.
//!
//! | module | protocol |
//! |---|---|
//! | [`bulk`] | rights to memory that a call lends, and transfers cut into segments |
//! | [`copyrpc`] | batches of calls in mirrored rings, one RDMA WRITE WITH IMMEDIATE each |
//! | [`erpc`] | datagrams of one call each, driven by the client; wire-compatible with the original |
//! | [`scalerpc`] | WRITEs into a pool that groups of clients use in turn |
//!
//! # Architecture invariant
//!
//! `no_std`, no `unsafe`. Bytes from a peer are parsed into typed values or a typed
//! [violation](copyrpc::Violation); no bytes make a core panic.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod bulk;
pub mod copyrpc;
pub mod erpc;
pub mod scalerpc;
mod status;

pub use status::Status;
