//! Any bytes, read as a request and as an answer of the key-value store: refused, or understood
//! without loss.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kv::codec::check(bytes));
