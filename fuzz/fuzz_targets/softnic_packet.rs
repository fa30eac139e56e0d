//! Any bytes as requests and answers of ports on other machines: refused, or used without harm.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| copyrpc_softnic::fuzzing::packet(bytes));
