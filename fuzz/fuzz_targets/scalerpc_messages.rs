//! Any entries, blocks, responses and immediates from a peer: no zone has two clients, and no request runs twice.

#![no_main]

#[path = "../../crates/proto/tests/scalerpc_check/mod.rs"]
mod scalerpc_check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| scalerpc_check::check(bytes));
