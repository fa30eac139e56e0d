//! Any messages and descriptors from a peer: refused, or used without harm.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| copyrpc_softnic::fuzzing::message(bytes));
