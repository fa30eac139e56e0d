//! Bodies that have arrived by rendezvous, and pieces of them, where the NIC put them.

use core::ops::Range;

use memory::{Filler, Overfull};
use verbs::Nic;

use crate::pool::Buffer;

/// A piece of an answer, where the NIC put it: in memory of which no peer has a key.
pub struct BodyPiece<'b, N: Nic> {
    buffer: &'b Buffer<N>,
    range: Range<usize>,
}

impl<'b, N: Nic> BodyPiece<'b, N> {
    /// # Panics
    ///
    /// If the piece begins behind the body. It may end behind it: then it ends with the body.
    pub(crate) fn new(buffer: &'b Buffer<N>, offset_bytes: usize, len_bytes_max: usize) -> Self {
        let body_bytes = buffer.len_bytes();
        assert!(offset_bytes <= body_bytes, "a piece behind its body");
        let end = body_bytes.min(offset_bytes.saturating_add(len_bytes_max));
        Self { buffer, range: offset_bytes..end }
    }

    /// Length of the whole answer.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.buffer.len_bytes()
    }

    /// The piece's place in the answer.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Copies bytes of the piece, from `offset` of the answer on.
    ///
    /// # Panics
    ///
    /// If they do not lie in the piece.
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) {
        let is_inside = offset >= self.range.start
            && offset <= self.range.end
            && to.len() <= self.range.end - offset;
        assert!(is_inside, "bytes beyond a piece");
        self.buffer.copy_part(offset, to);
    }

    /// Puts the piece into a message: it is copied once.
    ///
    /// # Errors
    ///
    /// [`Overfull`]: nothing was put.
    pub fn put_to(&self, to: &mut Filler<'_>) -> Result<(), Overfull> {
        self.buffer.put_part(self.range.start, self.range.len(), to)
    }
}

/// The body of a request, where the NIC put it: in memory of which no peer has a key. On a NIC of software whoever maps
/// that memory may change it all the same. The memory counts for the peer until this is dropped.
pub struct LandedBody<N: Nic> {
    buffer: Buffer<N>,
}

impl<N: Nic> LandedBody<N> {
    pub(crate) fn new(buffer: Buffer<N>) -> Self {
        Self { buffer }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.buffer.len_bytes()
    }

    /// Copies bytes from `offset` on.
    ///
    /// # Panics
    ///
    /// If they do not lie in the body.
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) {
        self.buffer.copy_part(offset, to);
    }

    /// Puts a part into a message: it is copied once.
    ///
    /// # Errors
    ///
    /// [`Overfull`]: nothing was put.
    ///
    /// # Panics
    ///
    /// If the part does not lie in the body.
    pub fn put_to(&self, part: Range<usize>, to: &mut Filler<'_>) -> Result<(), Overfull> {
        self.buffer.put_part(part.start, part.len(), to)
    }
}

impl<N: Nic> core::fmt::Debug for LandedBody<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LandedBody").field("len_bytes", &self.len_bytes()).finish_non_exhaustive()
    }
}

impl<N: Nic> core::fmt::Debug for BodyPiece<'_, N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("BodyPiece").field("range", &self.range).finish_non_exhaustive()
    }
}
