//! Large requests on their way to private memory, piece by piece, so that no client keeps the server from
//! the others for longer than a piece takes.

use core::fmt;
use std::collections::TryReserveError;

use memory::MapError;

use crate::{endpoint::half::Half, header::Header};

/// Bytes that are copied in one turn: some tens of microseconds.
const PIECE_BYTES: usize = 128 << 10;

/// Large requests of all clients that are copied at a time. Others wait for their turn, so private copies
/// take no more memory than this many of the longest messages, and one.
const COPIES_MAX: usize = 8;

/// Bytes of a large request that are copied first, by which it is told whether it is left where it lies.
const HEAD_BYTES: usize = 64;

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

/// Tells something of a request by its first bytes.
type Choice = dyn Fn(&[u8]) -> bool + Send;

/// Tells which requests are left where they lie.
struct Leaves(Box<Choice>);

impl fmt::Debug for Leaves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leaves(..)")
    }
}

/// The large requests of all clients that are being copied, and the one that was copied last.
#[derive(Debug, Default)]
pub struct LargeCopies {
    under_way: usize,
    latest: Vec<u8>,
    /// Tells by their first bytes which requests are left where they lie.
    leaves: Option<Leaves>,
    /// The request that was taken last was left where it lies.
    is_left: bool,
    /// The first bytes of that.
    head: Vec<u8>,
}

impl LargeCopies {
    /// The request that was taken last, if that was large; its first bytes, if it was left where it lies.
    #[must_use]
    pub fn latest(&self) -> &[u8] {
        if self.is_left { &self.head } else { &self.latest }
    }

    /// From now on requests for whose first bytes `leaves` holds are left where they lie, if they can be lent.
    pub(crate) fn set_leaves(&mut self, leaves: impl Fn(&[u8]) -> bool + Send + 'static) {
        self.leaves = Some(Leaves(Box::new(leaves)));
    }

    /// Whether requests may be left where they lie.
    pub(crate) fn leaves(&self) -> bool {
        self.leaves.is_some()
    }

    /// Whether a request is to be left where it lies.
    pub(crate) fn is_to_be_left(
        &mut self,
        header: Header,
        up: &Half,
        are_pages_kept: bool,
    ) -> Result<bool, MapError> {
        let Some(Leaves(leaves)) = &self.leaves else { return Ok(false) };
        self.head.clear();
        up.append_part(header.call, 0, HEAD_BYTES, are_pages_kept, &mut self.head)?;
        self.is_left = leaves(&self.head);
        Ok(self.is_left)
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
        self.is_left = false;
        self.end();
    }
}
