//! Any bytes in a send ring: completed or flushed, never beyond what was posted.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| copyrpc_softnic::fuzzing::send_ring(bytes));
