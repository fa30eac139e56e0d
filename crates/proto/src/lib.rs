//! RPC protocols without I/O.
//!
//! A core is told what arrived and what time it is, and says what to send and what became of calls.
//! It names no NIC, pointer, clock or socket, so it runs the same in a unit test, in virtual time
//! and above a NIC.
//!
//! | module | protocol |
//! |---|---|
//! | [`copyrpc`] | batches of calls in mirrored rings, one RDMA WRITE WITH IMMEDIATE each |
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

pub mod copyrpc;
mod status;

pub use status::Status;
