//! Any bytes on a stream of a port on TCP: refused, or understood as what they say.

#![no_main]

#[path = "../../crates/tcp/tests/frame_check/mod.rs"]
mod frame_check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| frame_check::check(bytes));
