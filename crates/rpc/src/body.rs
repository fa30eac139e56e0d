//! Bodies that a program sends, and how they reach the batch or the lent buffer.

use memory::LentBytes;
use verbs::Nic;

use crate::pool::Buffer;

/// Bytes to be sent.
pub(crate) trait SentBody {
    fn len_bytes(&self) -> usize;

    /// Writes them to private memory of that length.
    fn write(self, to: &mut [u8]);

    /// Writes them to memory that a peer will read. `private` holds zeros, or what the peer was sent before.
    fn lend<N: Nic>(self, to: &Buffer<N>, private: &mut Vec<u8>);
}

/// A body that is gathered: the parts follow each other without gaps.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a>(pub(crate) &'a [&'a [u8]]);

impl SentBody for Parts<'_> {
    /// Saturates: slices may overlap, so the sum has no bound.
    #[inline(always)]
    fn len_bytes(&self) -> usize {
        self.0.iter().fold(0, |sum, part| sum.saturating_add(part.len()))
    }

    #[inline(always)]
    fn write(self, mut to: &mut [u8]) {
        for part in self.0 {
            let (place, rest) = to.split_at_mut(part.len());
            place.copy_from_slice(part);
            to = rest;
        }
    }

    fn lend<N: Nic>(self, to: &Buffer<N>, _: &mut Vec<u8>) {
        let mut offset_bytes = 0;
        for part in self.0 {
            to.write(offset_bytes, part);
            offset_bytes += part.len();
        }
    }
}

/// Parts of the program, and behind them bytes that others may write meanwhile, which are copied once.
pub(crate) struct Passed<'a> {
    pub(crate) heads: Parts<'a>,
    pub(crate) rest: LentBytes<'a>,
}

impl SentBody for Passed<'_> {
    #[inline]
    fn len_bytes(&self) -> usize {
        self.heads.len_bytes().saturating_add(self.rest.len())
    }

    #[inline]
    fn write(self, to: &mut [u8]) {
        let (heads, rest) = to.split_at_mut(self.heads.len_bytes());
        self.heads.write(heads);
        self.rest.copy_to(rest);
    }

    fn lend<N: Nic>(self, to: &Buffer<N>, private: &mut Vec<u8>) {
        self.heads.lend(to, private);
        to.write_lent(self.heads.len_bytes(), self.rest);
    }
}

/// A body that the program writes itself.
pub(crate) struct Filled<F> {
    pub(crate) len_bytes: usize,
    pub(crate) fill: F,
}

impl<F: FnOnce(&mut [u8])> SentBody for Filled<F> {
    #[inline]
    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The batch is one connection's, so `to` holds zeros or bytes that this peer was sent before.
    #[inline]
    fn write(self, to: &mut [u8]) {
        (self.fill)(to);
    }

    /// Registered memory may be mapped by peers, so no slice is formed over it: one copy more.
    fn lend<N: Nic>(self, to: &Buffer<N>, private: &mut Vec<u8>) {
        if private.len() < self.len_bytes {
            private.resize(self.len_bytes, 0);
        }
        let private = Private { body: &mut private[..self.len_bytes], to };
        (self.fill)(private.body);
    }
}

/// Copies its bytes to lent memory when it is dropped, also by a panic of `fill`: the buffer holds an
/// earlier body.
struct Private<'b, N: Nic> {
    body: &'b mut [u8],
    to: &'b Buffer<N>,
}

impl<N: Nic> Drop for Private<'_, N> {
    fn drop(&mut self) {
        self.to.write(0, self.body);
    }
}
