//! Any bytes from strangers at the rendezvous: refused, at constant memory.

#![no_main]

#[path = "../../crates/bootstrap/tests/rendezvous_check/mod.rs"]
mod rendezvous_check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rendezvous_check::check(bytes));
