//! The 8-byte word that begins each slot and publishes it.
//!
//! ```text
//! bit 63      60 59                 36 35        24 23       12 11        0
//!     ┌─────────┬─────────────────────┬────────────┬───────────┬───────────┐
//!     │ kind    │ length in bytes     │ generation │ call      │ lap tag   │
//!     └─────────┴─────────────────────┴────────────┴───────────┴───────────┘
//! ```
//!
//! One load fetches all of it, so what was validated is what is used.

const TAG_BITS: u32 = 12;
const CALL_BITS: u32 = 12;
const GENERATION_BITS: u32 = 12;
const LEN_BITS: u32 = 24;

const CALL_SHIFT: u32 = TAG_BITS;
const GENERATION_SHIFT: u32 = CALL_SHIFT + CALL_BITS;
const LEN_SHIFT: u32 = GENERATION_SHIFT + GENERATION_BITS;
const KIND_SHIFT: u32 = LEN_SHIFT + LEN_BITS;

/// Most calls in flight per client: as many as a header can name.
pub const DEPTH_MAX: u16 = 1 << CALL_BITS;

/// Longest message that a header can describe, in bytes.
pub const MESSAGE_BYTES_MAX: u32 = (1 << LEN_BITS) - 1;

/// A header without its lap tag, which only the ring knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The client's call, below [`DEPTH_MAX`].
    pub call: u16,
    /// Low bits of the call's generation; the response repeats those of the request.
    pub generation: u16,
    /// Length of the message.
    pub len_bytes: u32,
    /// The kind of response, 4 bits; zero in a request.
    pub kind: u8,
}

/// Number of a lap, reduced to what fits into a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u16);

impl Tag {
    /// Tag of the lap that contains a position.
    #[inline(always)]
    #[must_use]
    pub fn of(position: u64, depth_log2: u32) -> Self {
        // The first lap has tag 1, so that zeroed memory is not mistaken for it.
        Self(field((position >> depth_log2).wrapping_add(1), 0, TAG_BITS))
    }

    /// Tag that the same slot had one lap before.
    #[inline]
    #[must_use]
    pub fn before(self) -> Self {
        Self(field(u64::from(self.0).wrapping_sub(1), 0, TAG_BITS))
    }

    /// Tag of a header word.
    #[inline(always)]
    #[must_use]
    pub fn of_word(word: u64) -> Self {
        Self(field(word, 0, TAG_BITS))
    }

    /// A header word that carries nothing but this tag.
    #[inline]
    #[must_use]
    pub fn to_word(self) -> u64 {
        self.0.into()
    }
}

impl Header {
    /// Low bits of a generation, as a header carries them.
    #[inline(always)]
    #[must_use]
    pub fn generation_of(generation: u64) -> u16 {
        field(generation, 0, GENERATION_BITS)
    }

    /// The word to publish in a lap.
    #[inline(always)]
    #[must_use]
    pub fn pack(self, tag: Tag) -> u64 {
        debug_assert!(self.call < DEPTH_MAX && self.len_bytes <= MESSAGE_BYTES_MAX);
        debug_assert!(self.generation < 1 << GENERATION_BITS && self.kind < 16);
        u64::from(tag.0)
            | u64::from(self.call) << CALL_SHIFT
            | u64::from(self.generation) << GENERATION_SHIFT
            | u64::from(self.len_bytes) << LEN_SHIFT
            | u64::from(self.kind) << KIND_SHIFT
    }

    /// Decodes a word; every word is valid.
    #[inline(always)]
    #[must_use]
    pub fn unpack(word: u64) -> Self {
        Self {
            call: field(word, CALL_SHIFT, CALL_BITS),
            generation: field(word, GENERATION_SHIFT, GENERATION_BITS),
            len_bytes: (word >> LEN_SHIFT & u64::from(MESSAGE_BYTES_MAX)) as u32,
            kind: (word >> KIND_SHIFT) as u8,
        }
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "masked to at most 12 bits")]
fn field(word: u64, shift: u32, bits: u32) -> u16 {
    (word >> shift) as u16 & ((1 << bits) - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 8 } else { 256 }, failure_persistence: None, ..Default::default()
        })]
        #[test]
        fn any_word_survives_unpacking_and_packing(word: u64) {
            prop_assert_eq!(Header::unpack(word).pack(Tag::of_word(word)), word);
        }
    }

    #[test]
    fn a_known_header_has_known_bits() {
        let header = Header { call: 0xabc, generation: 0x123, len_bytes: 0x45_6789, kind: 0xd };
        assert_eq!(header.pack(Tag::of(0, 3)), 0xd456_7891_23ab_c001);
    }

    #[test]
    fn consecutive_laps_of_a_slot_never_share_a_tag() {
        for lap in [0, 1, 4094, 4095, 4096, u64::MAX >> 3] {
            let (now, next) = (lap << 3, (lap << 3).wrapping_add(8));
            assert_eq!(Tag::of(next, 3).before(), Tag::of(now, 3), "lap {lap}");
            assert_ne!(Tag::of(next, 3), Tag::of(now, 3), "lap {lap}");
        }
        assert_eq!(
            Tag::of(0, 3).before().to_word(),
            0,
            "zeroed memory is the lap before the first"
        );
    }
}
