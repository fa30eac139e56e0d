//! Bytes that no correct peer sends, and the seeds of the fuzz target.

use proptest::prelude::any;

use crate::{
    erpc_check::check,
    hostile_bytes::{bytes_pass, seeds_pass},
};

#[test]
fn the_seeds_of_the_fuzz_target_pass() {
    seeds_pass("erpc_packets", check);
}

#[test]
fn no_bytes_break_a_promise() {
    bytes_pass(any::<u8>(), check);
}

/// Small numbers, so that more of them mean something.
#[test]
fn no_small_numbers_break_a_promise() {
    bytes_pass(0..6u8, check);
}
