//! Any bytes in the memory that a client can write: the server evicts, or serves what it checked.

#![no_main]

extern crate copyrpc_memory as memory;

#[path = "../../crates/ipc/tests/image_check/mod.rs"]
mod image_check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| image_check::check(bytes));
