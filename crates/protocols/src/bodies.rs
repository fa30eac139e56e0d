//! Private memory that bodies are copied to. It keeps the bytes and the length of the longest body before, so it is cleared
//! once and not for each body: a program gets no byte of it that was not overwritten.

use core::ops::Range;

/// Memory of one body after the other.
#[derive(Debug, Default)]
pub(crate) struct BodyMemory {
    bytes: Vec<u8>,
    /// Length of the body that is there, or of the part that has arrived.
    len_bytes: usize,
}

impl BodyMemory {
    /// A place for a part of a body, which so far ends with this part; counts bytes that were cleared for it.
    /// All of the place is to be overwritten.
    pub(crate) fn place(&mut self, part: Range<usize>, cleared_bytes: &mut u64) -> &mut [u8] {
        let missing_bytes = part.end.saturating_sub(self.bytes.len());
        if missing_bytes > 0 {
            self.bytes.resize(part.end, 0);
            *cleared_bytes += missing_bytes as u64;
        }
        self.len_bytes = part.end;
        &mut self.bytes[part]
    }

    /// The body.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[..self.len_bytes]
    }

    /// Bytes that it takes.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}
