//! A peer that writes anything anywhere on its card, used all the same.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| copyrpc_softnic::fuzzing::card(bytes));
