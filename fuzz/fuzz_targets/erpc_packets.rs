//! Any packets and management packets from a peer: both ends of a session stay consistent, and answer what
//! they should.

#![no_main]

#[path = "../../crates/proto/tests/erpc_check/mod.rs"]
mod erpc_check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| erpc_check::check(bytes));
