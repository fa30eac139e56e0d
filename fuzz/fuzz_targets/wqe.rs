//! Any bytes, read as WQEs: refused, or understood and written again without loss.

#![no_main]

#[path = "../../crates/wire/tests/stability/wqe.rs"]
mod stability;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stability::check(bytes));
