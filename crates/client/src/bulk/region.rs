//! Memory that a process shares with its daemon.

use std::os::fd::BorrowedFd;

use memory::{
    MapError, Region,
    sync::{AtomicU64, Ordering},
};
use proto::Status;

use crate::CallError;

/// Bytes that are copied at a time from a region to what follows it.
const COPY_BYTES: usize = 64 << 10;

/// A connection of a client or provider, which has one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    /// The client or provider, among all of this process.
    handle: u64,
    /// Its connections before this one.
    number: u64,
}

impl Connection {
    /// The first one of another client or provider.
    pub(crate) fn first() -> Self {
        static HANDLES: AtomicU64 = AtomicU64::new(0);
        Self { handle: HANDLES.fetch_add(1, Ordering::Relaxed), number: 0 }
    }

    /// The client or provider has connected again.
    pub(crate) fn replace(&mut self) {
        self.number += 1;
    }

    /// Whether this was one of the same client or provider before that one.
    pub(crate) fn is_before(self, latest: Self) -> bool {
        self.handle == latest.handle && self.number != latest.number
    }
}

/// Memory of this process that its daemon has mapped and registered, once.
///
/// It stays registered until it is [forgotten](crate::Client::forget) or the process leaves, and with one daemon: after
/// connecting again it is to be [renewed](crate::Client::renew). A child that was forked must not use it: whatever it wrote,
/// the parent's calls would carry.
#[derive(Debug)]
pub struct BulkRegion {
    pub(super) region: Region,
    pub(super) id: u64,
    /// By which the daemon got it.
    pub(super) connection: Connection,
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
    pub(super) fn make(len_bytes: u64, connection: Connection) -> Result<Self, MapError> {
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        let region = Region::memfd("copyrpc-bulk", len)?;
        Ok(Self { region, id: 0, connection, len_bytes, pid: std::process::id() })
    }

    /// Copies all bytes of a region of the same length.
    pub(super) fn copy_from(&self, other: &Self) -> Result<(), RegionError> {
        let mut bytes = vec![0; COPY_BYTES];
        let mut at = 0;
        while at < self.len_bytes {
            let left = usize::try_from(self.len_bytes - at).unwrap_or(COPY_BYTES);
            let piece = &mut bytes[..left.min(COPY_BYTES)];
            other.read(at, piece)?;
            self.write(at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
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
