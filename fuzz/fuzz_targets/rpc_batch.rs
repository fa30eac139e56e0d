//! Any batches, credit and immediates from a peer: taken or refused, and nothing is overrun.

#![no_main]

#[path = "../../crates/proto/tests/batch_check/mod.rs"]
mod batch_check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| batch_check::check(bytes));
