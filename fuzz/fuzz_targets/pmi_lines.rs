//! Any bytes from a launcher that should speak PMI-1.

#![no_main]

#[path = "../../crates/bootstrap/tests/pmi_check/mod.rs"]
mod pmi_check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pmi_check::check(bytes));
