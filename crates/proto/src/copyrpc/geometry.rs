//! Sizes of a ring, chosen by the side that owns its memory.

use super::layout::{BATCH_HEADER_BYTES, BODY_BYTES_MAX, LINE_BYTES, REQUEST_HEAD_BYTES, low_bits};

/// A ring that a peer writes batches into. In lines of 64 bytes.
///
/// ```text
/// │ requests of the peer, and whatever is not consumed │ responses to us │ skipped at a wrap │
/// │ ring_lines - response_lines - batch_lines_max      │ response_lines  │ batch_lines_max   │
/// ```
///
/// The shares are counts, not places: a batch lies wherever the ring continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    ring_lines: u32,
    response_lines: u32,
    batch_lines_max: u16,
}

/// Why a ring cannot have these sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Offsets are taken by masking.
    #[error("a ring of {0} B is not a power of two of at least 1 KiB and at most 1 GiB")]
    Ring(usize),
    /// A batch is at least one line, and at most a quarter of the ring.
    #[error("batches of {batch_bytes} B do not fit: 64 B to {max_bytes} B in whole lines do")]
    Batch {
        /// Asked for.
        batch_bytes: usize,
        /// Longest possible.
        max_bytes: usize,
    },
    /// Nothing is left for requests, or nothing for responses.
    #[error("{response_bytes} B for responses do not fit: 64 B to {max_bytes} B in whole lines do")]
    Responses {
        /// Asked for.
        response_bytes: usize,
        /// Most possible.
        max_bytes: usize,
    },
}

impl Geometry {
    /// A ring of `ring_bytes`, of which `response_bytes` are kept for responses to this side's
    /// calls, and which takes batches of up to `batch_bytes`.
    ///
    /// # Errors
    ///
    /// [`GeometryError`]: the first size that is impossible.
    pub fn new(
        ring_bytes: usize,
        response_bytes: usize,
        batch_bytes: usize,
    ) -> Result<Self, GeometryError> {
        if !ring_bytes.is_power_of_two() || !(1 << 10..=1 << 30).contains(&ring_bytes) {
            return Err(GeometryError::Ring(ring_bytes));
        }
        let max_bytes = (ring_bytes / 4).min(usize::from(u16::MAX) * LINE_BYTES);
        let batch_lines_max = lines(batch_bytes)
            .filter(|_| batch_bytes <= max_bytes)
            .and_then(|lines| u16::try_from(lines).ok())
            .ok_or(GeometryError::Batch { batch_bytes, max_bytes })?;
        // Beside the responses and what a wrap skips there must be room for one full batch.
        let max_bytes = ring_bytes - 2 * batch_bytes;
        let response_lines = lines(response_bytes)
            .filter(|_| response_bytes <= max_bytes)
            .ok_or(GeometryError::Responses { response_bytes, max_bytes })?;
        let ring_lines = low_bits((ring_bytes / LINE_BYTES) as u64); // at most 2²⁴
        Ok(Self { ring_lines, response_lines, batch_lines_max })
    }

    /// Of the whole ring; a power of two.
    #[must_use]
    #[inline]
    pub fn ring_lines(self) -> u32 {
        self.ring_lines
    }

    /// Of the whole ring.
    #[must_use]
    #[inline]
    pub fn ring_bytes(self) -> usize {
        self.ring_lines as usize * LINE_BYTES
    }

    /// Kept for responses to the owner of the ring.
    #[must_use]
    #[inline]
    pub fn response_lines(self) -> u32 {
        self.response_lines
    }

    /// Of the longest batch.
    #[must_use]
    #[inline]
    pub fn batch_lines_max(self) -> u16 {
        self.batch_lines_max
    }

    /// Of the longest batch.
    #[must_use]
    #[inline]
    pub fn batch_bytes_max(self) -> usize {
        usize::from(self.batch_lines_max) * LINE_BYTES
    }

    /// Longest body of a request or response in the ring.
    #[must_use]
    #[inline]
    pub fn body_bytes_max(self) -> usize {
        (self.batch_bytes_max() - BATCH_HEADER_BYTES - REQUEST_HEAD_BYTES).min(BODY_BYTES_MAX)
    }

    /// Offset in bytes of the line that a position, counted in lines without end, falls on.
    #[inline]
    pub(crate) fn offset_bytes(self, position: u64) -> usize {
        // The ring is a power of two, so the low bits of the position suffice.
        (low_bits(position) & (self.ring_lines - 1)) as usize * LINE_BYTES
    }

    /// The first position of the lap after the one that `position` is in.
    #[inline]
    pub(crate) fn next_lap(self, position: u64) -> u64 {
        (position | u64::from(self.ring_lines - 1)) + 1
    }
}

/// In whole lines, if it is some.
fn lines(bytes: usize) -> Option<u32> {
    (bytes > 0 && bytes.is_multiple_of(LINE_BYTES))
        .then(|| u32::try_from(bytes / LINE_BYTES).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_sizes_are_refused_with_the_possible_ones() {
        assert_eq!(Geometry::new(1000, 64, 64), Err(GeometryError::Ring(1000)));
        assert_eq!(Geometry::new(512, 64, 64), Err(GeometryError::Ring(512)));
        assert_eq!(Geometry::new(1 << 31, 64, 64), Err(GeometryError::Ring(1 << 31)));
        assert!(matches!(Geometry::new(1024, 64, 100), Err(GeometryError::Batch { .. })));
        assert!(matches!(Geometry::new(1024, 100, 64), Err(GeometryError::Responses { .. })));
        let too_long = GeometryError::Batch { batch_bytes: 512, max_bytes: 256 };
        assert_eq!(Geometry::new(1024, 64, 512), Err(too_long));
        let none = GeometryError::Responses { response_bytes: 0, max_bytes: 512 };
        assert_eq!(Geometry::new(1024, 0, 256), Err(none));
        let too_many = GeometryError::Responses { response_bytes: 576, max_bytes: 512 };
        assert_eq!(Geometry::new(1024, 576, 256), Err(too_many));
        let largest = Geometry::new(1024, 512, 256).unwrap();
        assert_eq!((largest.ring_bytes(), largest.batch_bytes_max()), (1024, 256));
        assert_eq!(largest.body_bytes_max(), 224);
    }
}
