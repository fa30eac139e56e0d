//! Memory for one-sided access, beside the calls.

use std::rc::Rc;

use verbs::{MemoryRegion as _, Nic, RemoteSlice, Rkey, Sge};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

/// Registered memory that peers may read and write once they are told its [`RemoteRegion`].
///
/// Whoever knows that can access it, through any connection to this worker, until the last clone is
/// dropped.
pub struct LocalRegion<N: Nic> {
    pub(crate) mr: Rc<N::Mr>,
}

impl<N: Nic> Clone for LocalRegion<N> {
    fn clone(&self) -> Self {
        Self { mr: Rc::clone(&self.mr) }
    }
}

impl<N: Nic> LocalRegion<N> {
    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.mr.len_bytes()
    }

    /// Whether the process that made the memory has left all its pages.
    #[must_use]
    pub fn has_pages(&self) -> bool {
        self.mr.has_pages()
    }

    /// Copies bytes out.
    ///
    /// # Panics
    ///
    /// If `offset + to.len()` exceeds the region.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.mr.read(offset, to);
    }

    /// Copies bytes in.
    ///
    /// # Panics
    ///
    /// If `offset + from.len()` exceeds the region.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.mr.write(offset, from);
    }

    /// Address, key and length that a peer needs to access the region.
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        let RemoteSlice { addr, rkey } = self.mr.remote(0);
        RemoteRegion { addr, rkey: rkey.get(), len_bytes: self.mr.len_bytes() as u64 }
    }

    pub(crate) fn sge(&self, range: &Range) -> Option<Sge> {
        let end = range.local_offset.checked_add(range.len_bytes)?;
        (end <= self.len_bytes() && range.len_bytes < 1 << 31).then(|| self.mr_sge(range))
    }

    /// # Panics
    ///
    /// If the range does not lie inside: [`sge`](Self::sge) tells.
    pub(crate) fn mr_sge(&self, range: &Range) -> Sge {
        self.mr.sge(range.local_offset, range.len_bytes)
    }
}

/// A peer's region: 20 bytes that it sends by a call, or by any other means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    addr: u64,
    rkey: u32,
    len_bytes: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Bytes {
    addr: U64,
    len_bytes: U64,
    rkey: U32,
}

impl RemoteRegion {
    /// Length of its encoding.
    pub const BYTES: usize = size_of::<Bytes>();

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The bytes that a peer is to be given.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let bytes = Bytes {
            addr: self.addr.into(),
            len_bytes: self.len_bytes.into(),
            rkey: self.rkey.into(),
        };
        zerocopy::transmute!(bytes)
    }

    /// A region from its bytes. A wrong region is noticed by the peer's NIC, which ends the connection.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let Bytes { addr, len_bytes, rkey } = zerocopy::transmute!(bytes);
        Self { addr: addr.get(), rkey: rkey.get(), len_bytes: len_bytes.get() }
    }

    pub(crate) fn slice(&self, range: &Range) -> Option<RemoteSlice> {
        let end = range.remote_offset.checked_add(range.len_bytes as u64)?;
        let addr = self.addr.checked_add(range.remote_offset)?;
        (end <= self.len_bytes).then(|| RemoteSlice { addr, rkey: Rkey::new(self.rkey) })
    }
}

/// The bytes that a one-sided access moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Offset in the peer's region, in bytes.
    pub remote_offset: u64,
    /// Offset in this side's region, in bytes.
    pub local_offset: usize,
    /// Below 2 GiB.
    pub len_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_region_survives_its_bytes_and_checks_ranges() {
        let region = RemoteRegion { addr: 1 << 40, rkey: 7, len_bytes: 100 };
        assert_eq!(RemoteRegion::BYTES, 20);
        assert_eq!(RemoteRegion::from_bytes(region.to_bytes()), region);
        let range = |remote_offset, len_bytes| Range { remote_offset, local_offset: 0, len_bytes };
        let slice = RemoteSlice { addr: (1 << 40) + 60, rkey: Rkey::new(7) };
        assert_eq!(region.slice(&range(60, 40)), Some(slice));
        assert_eq!(region.slice(&range(60, 41)), None);
        assert_eq!(region.slice(&range(u64::MAX, 1)), None);
    }
}
