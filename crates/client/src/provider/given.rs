//! Requests that handlers have.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use crate::provider::{cancellation::Cancellation, outbox::Work};

/// Requests that were given and not answered, and how each is told that nobody waits for it.
pub(super) type Given = HashMap<Work, Arc<Cancellation>, BuildHasherDefault<NumberHasher>>;

/// Hashes names of requests. The daemon and this process count them, so nobody else chooses them.
#[derive(Default)]
pub(super) struct NumberHasher(u64);

/// The golden ratio, as a fraction of 2^64: neighbours differ in the upper bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(26) ^ number).wrapping_mul(GOLDEN);
    }

    // The kind of a name.
    fn write_isize(&mut self, number: isize) {
        self.write_u64(number.cast_unsigned() as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, hash::BuildHasher as _};

    use super::*;

    #[test]
    fn names_in_a_row_have_hashes_that_differ_in_both_ends() {
        let build = BuildHasherDefault::<NumberHasher>::default();
        let hashes: Vec<_> = (0..256).map(|number| build.hash_one(Work::Daemon(number))).collect();
        let low: HashSet<_> = hashes.iter().map(|hash| hash & 0xff).collect();
        let high: HashSet<_> = hashes.iter().map(|hash| hash >> 57).collect();
        assert!(low.len() > 128 && high.len() > 96, "{} and {}", low.len(), high.len());
    }
}
