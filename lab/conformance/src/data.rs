//! Data that can be recognised, and memory that shows every byte a NIC touched.

use verbs::{Access, MemoryRegion, Nic, RemoteSlice, Sge};

use crate::verdict::{Stop, Verdict};

/// Message lengths around every boundary that formats have: CQE scatter (32, 64), inline WQE
/// sizes (220), MTUs, and several packets with a ragged end.
pub(super) const SIZES: [usize; 16] =
    [0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 220, 256, 1000, 4096, 65_536, (1 << 20) + 3];

/// Largest of [`SIZES`].
pub(super) const SIZE_MAX: usize = (1 << 20) + 3;

/// Bytes before and after every buffer that belong to the region but to no request.
const GUARD_BYTES: usize = 128;

/// The fill of untouched memory.
const BACKGROUND: u8 = 0xc3;

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The same seed gives the same sequence.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: usize) -> usize {
        let word = usize::try_from(self.next_u64() >> 32).unwrap_or(0);
        word % bound
    }

    /// Puts `items` in a random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// `len_bytes` bytes that only `seed` produces.
#[must_use]
pub fn pattern(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ 0x5eed_0fda_7a5e_ed00);
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

/// Registered memory and its expected content.
///
/// ```text
/// ┌ guard ┬ body: what requests name ┬ guard ┐   one region
/// └───────┴──────────────────────────┴───────┘   `shadow` holds the expected value of every byte
/// ```
pub struct Buffer<N: Nic> {
    mr: N::Mr,
    guard: usize,
    shadow: Vec<u8>,
}

impl<N: Nic> Buffer<N> {
    /// A body of `len_bytes` between guard zones, all background.
    pub(super) fn new(nic: &N, pd: &N::Pd, len_bytes: usize, access: Access) -> Verdict<Self> {
        Self::with_guard(nic, pd, len_bytes, access, GUARD_BYTES)
    }

    /// A region of exactly `len_bytes`: one byte more is out of bounds.
    pub(super) fn exact(nic: &N, pd: &N::Pd, len_bytes: usize, access: Access) -> Verdict<Self> {
        Self::with_guard(nic, pd, len_bytes, access, 0)
    }

    fn with_guard(
        nic: &N,
        pd: &N::Pd,
        len_bytes: usize,
        access: Access,
        guard: usize,
    ) -> Verdict<Self> {
        let shadow = vec![BACKGROUND; len_bytes + 2 * guard];
        let mr = nic.alloc_mr(pd, shadow.len(), access)?;
        mr.write(0, &shadow);
        Ok(Self { mr, guard, shadow })
    }

    /// Bytes of the body.
    pub(super) fn len(&self) -> usize {
        self.shadow.len() - 2 * self.guard
    }

    /// Gives up the guards and returns the region.
    pub(super) fn into_mr(self) -> N::Mr {
        self.mr
    }

    /// A gather or scatter entry inside the body.
    pub(super) fn sge(&self, offset: usize, len_bytes: usize) -> Sge {
        self.mr.sge(self.guard + offset, len_bytes)
    }

    /// The address and key by which a peer reaches `offset` of the body.
    pub(super) fn remote(&self, offset: usize) -> RemoteSlice {
        self.mr.remote(self.guard + offset)
    }

    /// Writes to the body, as its owner.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.mr.write(self.guard + offset, bytes);
        self.expect(offset, bytes);
    }

    /// Declares that the NIC will have written `bytes`.
    pub(super) fn expect(&mut self, offset: usize, bytes: &[u8]) {
        let start = self.guard + offset;
        self.shadow[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Accepts whatever these bytes are now: a peer was free to write them.
    pub(super) fn accept(&mut self, offset: usize, len_bytes: usize) {
        let bytes = self.bytes(offset, len_bytes);
        self.expect(offset, &bytes);
    }

    /// Declares the whole body background, and makes it so.
    pub(super) fn clear(&mut self) {
        self.shadow.fill(BACKGROUND);
        self.mr.write(0, &self.shadow);
    }

    /// Bytes of the body as they are now.
    pub(super) fn bytes(&self, offset: usize, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        self.mr.read(self.guard + offset, &mut bytes);
        bytes
    }

    /// A word of the body, with Acquire. `offset` is a multiple of 8.
    pub(super) fn word(&self, offset: usize) -> u64 {
        self.mr.load_u64(self.guard + offset)
    }

    /// Checks every byte of the region, guards included.
    #[track_caller]
    pub(super) fn verify(&self) -> Verdict {
        self.verify_at(0, self.shadow.len())
    }

    /// Checks part of the body.
    #[track_caller]
    pub(super) fn verify_part(&self, offset: usize, len_bytes: usize) -> Verdict {
        self.verify_at(self.guard + offset, len_bytes)
    }

    #[track_caller]
    fn verify_at(&self, start: usize, len_bytes: usize) -> Verdict {
        let mut found = vec![0; len_bytes];
        self.mr.read(start, &mut found);
        let expected = &self.shadow[start..start + len_bytes];
        if found == expected {
            return Ok(());
        }
        let differ = |(a, b): (&u8, &u8)| a != b;
        let first = found.iter().zip(expected).position(differ).unwrap_or(0);
        let count = found.iter().zip(expected).filter(|&(a, b)| a != b).count();
        Err(Stop::violation(format!(
            "{count} bytes are wrong; the first is byte {} of a region of {} with guards of {}: \
             {:#04x} instead of {:#04x}",
            start + first,
            self.shadow.len(),
            self.guard,
            found[first],
            expected[first],
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_depends_on_the_seed_alone() {
        assert_eq!(pattern(7, 13), pattern(7, 1000)[..13]);
        assert_ne!(pattern(7, 13), pattern(8, 13));
        assert_eq!(pattern(1, 0), Vec::<u8>::new());
    }

    #[test]
    fn shuffle_keeps_every_item() {
        let mut items: Vec<usize> = (0..100).collect();
        Rng::new(3).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
