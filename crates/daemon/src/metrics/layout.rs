//! The layout of the file.

use crate::metrics::{
    counters::{Counter, Timing},
    histogram::BUCKETS,
};

/// First bytes of the file.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"copyrpcM");

/// Raised with every change that [`LAYOUT`] does not see.
pub const VERSION: u64 = 2;

/// A hash of all names in order, and of all sizes: a reader with another one would misread.
pub const LAYOUT: u64 = layout();

pub(super) const WORD_BYTES: usize = 8;

/// Bytes before the first section.
pub(super) const HEADER_BYTES: usize = 256;

/// Longest name of a daemon that is kept: a job, an at sign and an instance.
pub(super) const NAME_BYTES_MAX: usize = 104;

/// Words of the header, in order; the name follows the last.
pub(super) mod word {
    pub(in crate::metrics) const MAGIC: usize = 0;
    pub(in crate::metrics) const VERSION: usize = 1;
    pub(in crate::metrics) const LAYOUT: usize = 2;
    pub(in crate::metrics) const SECTIONS: usize = 3;
    pub(in crate::metrics) const PID: usize = 4;
    pub(in crate::metrics) const START_TICKS: usize = 5;
    /// Nanoseconds of the clock that all samples use.
    pub(in crate::metrics) const STARTED_NS: usize = 6;
    /// Seconds since 1970.
    pub(in crate::metrics) const STARTED_AT: usize = 7;
    pub(in crate::metrics) const RANK: usize = 8;
    pub(in crate::metrics) const SIZE: usize = 9;
    pub(in crate::metrics) const LIFE: usize = 10;
    /// One in so many turns is timed.
    pub(in crate::metrics) const SAMPLE_EVERY: usize = 11;
    pub(in crate::metrics) const NAME_BYTES: usize = 12;
    pub(in crate::metrics) const NAME: usize = 13;
}
const _: () = assert!(word::NAME * WORD_BYTES + NAME_BYTES_MAX <= HEADER_BYTES);

/// Room for counters of one thread.
pub(super) const COUNTERS: usize = 64;
const _: () = assert!(Counter::ALL.len() <= COUNTERS);

/// A sum, and the buckets.
pub(super) const HISTOGRAM_WORDS: usize = 1 + BUCKETS;

/// Samples that are kept.
pub const SAMPLES: usize = 2048;

/// Words of a sample: number from 1, time, three values, check.
pub(super) const SAMPLE_WORDS: usize = 6;

pub(super) const HISTOGRAMS_AT: usize = COUNTERS;
pub(super) const SAMPLES_AT: usize = HISTOGRAMS_AT + Timing::ALL.len() * HISTOGRAM_WORDS;
const USED_WORDS: usize = SAMPLES_AT + SAMPLES * SAMPLE_WORDS;

/// Words of a section: whole pairs of cache lines, so that two writers share none.
pub(super) const SECTION_WORDS: usize = USED_WORDS.next_multiple_of(16);

/// Most threads of a daemon.
pub(super) const SECTIONS_MAX: usize = 256;

/// The daemon's own report of its life; only the kernel knows whether it is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The daemon looks for its peers.
    Starting,
    /// The daemon takes calls.
    Serving,
    /// The daemon finishes the calls that it has, and takes no new ones.
    Draining,
    /// The daemon has ended, and said so.
    Stopped,
}

impl Life {
    const ALL: [Self; 4] = [Self::Starting, Self::Serving, Self::Draining, Self::Stopped];

    pub(super) fn to_word(self) -> u64 {
        self as u64 + 1
    }

    pub(super) fn from_word(word: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|life| life.to_word() == word)
    }
}

/// Bytes of a file with so many sections, of which each thread has one.
#[must_use]
pub const fn file_bytes(sections: usize) -> usize {
    HEADER_BYTES + sections * SECTION_WORDS * WORD_BYTES
}

/// Offset of a section.
pub(super) const fn section_at_bytes(section: usize) -> usize {
    file_bytes(section)
}

/// The check word of a sample: zeros and a sample half written both fail it.
pub(super) fn sample_check(words: &[u64; SAMPLE_WORDS - 1]) -> u64 {
    let mix = |hash: u64, word: &u64| (hash ^ word).wrapping_mul(FNV_PRIME).rotate_left(23);
    words.iter().fold(FNV_OFFSET, mix)
}

// FNV-1a (Fowler, Noll, Vo), 64 bits.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

const fn fnv(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(FNV_PRIME);
        index += 1;
    }
    // So that "ab", "c" differs from "a", "bc".
    (hash ^ 0xff).wrapping_mul(FNV_PRIME)
}

const fn layout() -> u64 {
    let mut hash = FNV_OFFSET;
    let mut index = 0;
    while index < Counter::ALL.len() {
        hash = fnv(hash, Counter::ALL[index].name().as_bytes());
        index += 1;
    }
    index = 0;
    while index < Timing::ALL.len() {
        hash = fnv(hash, Timing::ALL[index].name().as_bytes());
        index += 1;
    }
    let sizes = [HEADER_BYTES, COUNTERS, BUCKETS, SAMPLES, SAMPLE_WORDS];
    index = 0;
    while index < sizes.len() {
        hash = fnv(hash, &(sizes[index] as u64).to_le_bytes());
        index += 1;
    }
    hash
}
