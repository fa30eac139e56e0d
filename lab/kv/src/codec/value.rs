//! A value says what it is: every byte follows from its key, its version and its length.
//!
//! ```text
//! byte 0     8         16      24
//!      │ key │ version │ check │ pattern …
//! ```
//!
//! A version is unique in a job: the writer (client number + 1; 0: what the store holds at first) in
//! the upper 24 bits, the writer's count in the lower 40. So any client can judge any value without
//! knowing what the others did.

use super::Version;
use crate::{
    place::ClientId,
    rng::{GOLDEN, mix64},
};

/// Shortest value: key, version and check.
pub const VALUE_BYTES_MIN: usize = 24;
const WORD_BYTES: usize = 8;
const COUNT_BITS: u32 = 40;

/// The version of what the store holds before anybody wrote.
pub const INITIAL: Version = Version(0);

impl Version {
    /// Write number `count` of `client`.
    #[must_use]
    pub fn of(client: ClientId, count: u64) -> Self {
        Self((u64::from(client.0) + 1) << COUNT_BITS | count)
    }

    /// Who wrote it; `None`: [`INITIAL`], or nobody who exists.
    #[must_use]
    pub fn writer(self) -> Option<ClientId> {
        u16::try_from((self.0 >> COUNT_BITS).checked_sub(1)?).ok().map(ClientId)
    }

    /// Which of that client's writes it is.
    #[must_use]
    pub fn count(self) -> u64 {
        self.0 & ((1 << COUNT_BITS) - 1)
    }
}

/// Why bytes are no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueBytesError {
    /// Too short to say what it is.
    #[error("a value of {len_bytes} B is shorter than {VALUE_BYTES_MIN} B")]
    Short {
        /// Bytes there are.
        len_bytes: usize,
    },
    /// Key, version, length and check do not belong together.
    #[error("the check of a value that claims key {key:#x} and version {version:#x} is wrong")]
    Check {
        /// As claimed.
        key: u64,
        /// As claimed.
        version: u64,
    },
    /// The head is right, but not what follows.
    #[error("byte {at} of the value of key {key:#x}, version {version:#x}, is wrong")]
    Pattern {
        /// Offset of the first wrong word.
        at: usize,
        /// Its key.
        key: u64,
        /// Its version.
        version: u64,
    },
}

/// Fills `value` so that it says `key` and `version`.
///
/// # Panics
///
/// If it is shorter than [`VALUE_BYTES_MIN`].
pub fn fill(value: &mut [u8], key: u64, version: Version) {
    let len_bytes = value.len();
    let (head, pattern) = value.split_at_mut(VALUE_BYTES_MIN);
    let seed = seed_of(key, version);
    let pattern_bytes = pattern.len();
    let words = [key, version.0, check_of(seed, len_bytes)];
    for (bytes, word) in head.chunks_exact_mut(WORD_BYTES).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let mut chunks = pattern.chunks_exact_mut(WORD_BYTES);
    for (bytes, word) in chunks.by_ref().zip(pattern_of(seed)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let rest = chunks.into_remainder();
    rest.copy_from_slice(&last_word(pattern_bytes, seed)[..rest.len()]);
}

/// Key and version of a value, after a look at every byte.
///
/// # Errors
///
/// [`ValueBytesError`].
pub fn read(value: &[u8]) -> Result<(u64, Version), ValueBytesError> {
    let (key, version) = peek(value)?;
    let seed = seed_of(key, version);
    if word_at(value, 2) != check_of(seed, value.len()) {
        return Err(ValueBytesError::Check { key, version: version.0 });
    }
    let chunks = value[VALUE_BYTES_MIN..].chunks_exact(WORD_BYTES);
    let rest = chunks.remainder();
    let is_wrong = |(bytes, word): (&[u8], u64)| bytes != word.to_le_bytes();
    let wrong = chunks.zip(pattern_of(seed)).position(is_wrong);
    let wrong = wrong.or_else(|| {
        let is_right = *rest == last_word(value.len() - VALUE_BYTES_MIN, seed)[..rest.len()];
        (!is_right).then_some((value.len() - VALUE_BYTES_MIN) / WORD_BYTES)
    });
    match wrong {
        None => Ok((key, version)),
        Some(word) => {
            let at = VALUE_BYTES_MIN + word * WORD_BYTES;
            Err(ValueBytesError::Pattern { at, key, version: version.0 })
        }
    }
}

/// Key and version that a value claims: what a store needs, which is not the judge.
///
/// # Errors
///
/// [`ValueBytesError::Short`].
pub fn peek(value: &[u8]) -> Result<(u64, Version), ValueBytesError> {
    if value.len() < VALUE_BYTES_MIN {
        return Err(ValueBytesError::Short { len_bytes: value.len() });
    }
    Ok((word_at(value, 0), Version(word_at(value, 1))))
}

/// The caller has checked the length.
fn word_at(value: &[u8], index: usize) -> u64 {
    let mut word = [0; WORD_BYTES];
    word.copy_from_slice(&value[index * WORD_BYTES..][..WORD_BYTES]);
    u64::from_le_bytes(word)
}

fn seed_of(key: u64, version: Version) -> u64 {
    mix64(key ^ mix64(version.0 ^ GOLDEN))
}

fn check_of(seed: u64, len_bytes: usize) -> u64 {
    mix64(seed ^ len_bytes as u64)
}

/// Cheap, because it runs for every call: any two words differ.
fn pattern_of(seed: u64) -> impl Iterator<Item = u64> {
    (1..).map(move |index| pattern_word(seed, index))
}

fn pattern_word(seed: u64, index: u64) -> u64 {
    seed ^ index.wrapping_mul(GOLDEN)
}

/// The word of which a pattern of so many bytes ends with a part.
fn last_word(pattern_bytes: usize, seed: u64) -> [u8; WORD_BYTES] {
    pattern_word(seed, (pattern_bytes / WORD_BYTES) as u64 + 1).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_says_its_key_and_version_at_any_length() {
        for len_bytes in [24, 25, 31, 32, 64, 1000] {
            let mut value = vec![0; len_bytes];
            let version = Version::of(ClientId(3), 17);
            fill(&mut value, 99, version);
            assert_eq!(read(&value), Ok((99, version)));
        }
        assert_eq!(read(&[0; 23]), Err(ValueBytesError::Short { len_bytes: 23 }));
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_found() {
        let mut value = [0; 45];
        fill(&mut value, 1, INITIAL);
        for bit in 0..value.len() * 8 {
            value[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&value).is_err(), "bit {bit}");
            value[bit / 8] ^= 1 << (bit % 8);
        }
        for len_bytes in 0..value.len() {
            assert!(read(&value[..len_bytes]).is_err(), "{len_bytes} B");
        }
    }

    #[test]
    fn versions_name_their_writer() {
        let version = Version::of(ClientId(u16::MAX), 5);
        assert_eq!((version.writer(), version.count()), (Some(ClientId(u16::MAX)), 5));
        assert_eq!(INITIAL.writer(), None);
        assert_eq!(Version(u64::MAX).writer(), None, "no client has that number");
    }
}
