//! Any bytes, read as datagrams of the handshake: refused, or understood without loss.

#![no_main]

#[path = "../../crates/ipc/tests/handshake_check/mod.rs"]
mod handshake_check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| handshake_check::check(bytes));
