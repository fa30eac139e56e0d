//! Any bytes from strangers at the rendezvous: refused, at constant memory.

#![no_main]

#[path = "../../crates/node/tests/hub_check/mod.rs"]
mod hub_check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hub_check::check(bytes));
