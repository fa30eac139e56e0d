//! Any bytes on the socket of a connection of rdma_cm: refused, or a message that survives as bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| copyrpc_uverbs::check_message(bytes));
