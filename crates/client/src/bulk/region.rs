//! Memory that a process shares with its daemon.

use std::os::fd::BorrowedFd;

use memory::{MapError, Region};
use proto::Status;

use crate::CallError;

/// Memory of this process that its daemon has mapped and registered, once.
///
/// It stays registered until it is [forgotten](crate::Client::forget) or the process leaves. A child that was
/// forked must not use it: whatever it wrote, the parent's calls would carry.
#[derive(Debug)]
pub struct BulkRegion {
    pub(super) region: Region,
    pub(super) id: u64,
    len_bytes: u64,
    pid: u32,
}

/// Why bytes of a region cannot be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// Some of them lie outside.
    #[error("{len_bytes} B at offset {offset} do not lie inside {of} B")]
    Range {
        /// Offset of the first byte.
        offset: u64,
        /// Length of the range.
        len_bytes: u64,
        /// Length of the region.
        of: u64,
    },
    /// The memory is that of the process which this one was forked from.
    #[error("bulk memory belongs to the process that made it, not to its forked children")]
    Forked,
}

impl BulkRegion {
    /// Memory of `len_bytes` that nobody can resize, all of it allocated. The daemon may add seals.
    pub(super) fn make(len_bytes: u64) -> Result<Self, MapError> {
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        let region = Region::memfd("copyrpc-bulk", len)?;
        Ok(Self { region, id: 0, len_bytes, pid: std::process::id() })
    }

    /// The descriptor that the daemon gets.
    pub(super) fn fd(&self) -> Result<BorrowedFd<'_>, CallError> {
        self.region.fd().ok_or(CallError::Unanswered(Status::Internal))
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Copies bytes out of it.
    ///
    /// # Errors
    ///
    /// [`RegionError`].
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), RegionError> {
        let at = self.check(offset, to.len())?;
        let span = self.region.span(at, to.len()).map_err(|_| self.range(offset, to.len()))?;
        span.copy_in(to);
        Ok(())
    }

    /// Copies bytes into it. What is lent to a call that may write it is not to be touched.
    ///
    /// # Errors
    ///
    /// [`RegionError`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), RegionError> {
        let at = self.check(offset, from.len())?;
        let span = self.region.span(at, from.len());
        let copied = span.and_then(|span| span.copy_out(from));
        copied.map_err(|_| self.range(offset, from.len()))
    }

    /// A part that a call may read.
    #[must_use]
    pub fn slice(&self, offset: u64, len_bytes: u64) -> Slice<'_> {
        Slice { region: self, offset, len_bytes, is_writable: false }
    }

    /// A part that a call may read and write. It is lent until the call has been answered or, if it was
    /// given up, until [`Client::reclaim`](crate::Client::reclaim) says so.
    #[must_use]
    pub fn writable(&self, offset: u64, len_bytes: u64) -> Slice<'_> {
        Slice { region: self, offset, len_bytes, is_writable: true }
    }

    fn check(&self, offset: u64, len: usize) -> Result<usize, RegionError> {
        if self.pid != std::process::id() {
            return Err(RegionError::Forked);
        }
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.len_bytes);
        let at = usize::try_from(offset).ok().filter(|_| inside);
        at.ok_or_else(|| self.range(offset, len))
    }

    fn range(&self, offset: u64, len: usize) -> RegionError {
        RegionError::Range { offset, len_bytes: len as u64, of: self.len_bytes }
    }
}

/// A part of a region that a call carries.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'r> {
    pub(super) region: &'r BulkRegion,
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    pub(super) is_writable: bool,
}
