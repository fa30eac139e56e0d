//! Large requests on their way to private memory, piece by piece, so that no client keeps the server from
//! the others for longer than a piece takes.

use std::collections::TryReserveError;

use memory::MapError;

use crate::{endpoint::half::Half, header::Header};

/// Bytes that are copied in one turn: some tens of microseconds.
const PIECE_BYTES: usize = 128 << 10;

/// Large requests of all clients that are copied at a time. Others wait for their turn, so private copies
/// take no more memory than this many of the longest messages, and one.
const COPIES_MAX: usize = 8;

/// A large request that is being copied.
#[derive(Debug)]
pub(crate) struct LargeRequest {
    /// As it was read first.
    header: Header,
    /// Its pages are there and stay.
    are_pages_kept: bool,
    bytes: Vec<u8>,
}

impl LargeRequest {
    pub(crate) fn header(&self) -> Header {
        self.header
    }

    /// Copies the next piece; returns whether it was the last.
    pub(crate) fn copy_piece(&mut self, up: &Half) -> Result<bool, MapError> {
        let (from, len_bytes) = (self.bytes.len(), self.header.len_bytes as usize);
        let piece_bytes = PIECE_BYTES.min(len_bytes - from);
        let Self { header, are_pages_kept, bytes } = self;
        up.append_part(header.call, from, piece_bytes, *are_pages_kept, bytes)?;
        Ok(self.bytes.len() == len_bytes)
    }
}

/// The large requests of all clients that are being copied, and the one that was copied last.
#[derive(Debug, Default)]
pub struct LargeCopies {
    under_way: usize,
    latest: Vec<u8>,
}

impl LargeCopies {
    /// The request that was taken last, if that was large.
    #[must_use]
    pub fn latest(&self) -> &[u8] {
        &self.latest
    }

    /// Begins to copy a request; `None`: too many are being copied, and one of them ends before long.
    ///
    /// # Errors
    ///
    /// There is no memory for it.
    pub(crate) fn begin(
        &mut self,
        header: Header,
        are_pages_kept: bool,
    ) -> Result<Option<Box<LargeRequest>>, TryReserveError> {
        if self.under_way == COPIES_MAX {
            return Ok(None);
        }
        // The memory of the request before is warm.
        let mut bytes = core::mem::take(&mut self.latest);
        bytes.clear();
        bytes.try_reserve_exact(header.len_bytes as usize)?;
        self.under_way += 1;
        Ok(Some(Box::new(LargeRequest { header, are_pages_kept, bytes })))
    }

    /// A request is no longer copied.
    pub(crate) fn end(&mut self) {
        self.under_way -= 1;
    }

    /// A request was copied.
    pub(crate) fn complete(&mut self, request: LargeRequest) {
        self.latest = request.bytes;
        self.end();
    }
}
