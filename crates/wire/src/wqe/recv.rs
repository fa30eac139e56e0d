//! Receive WQEs: scatter lists in a receive queue or a shared receive queue.
//!
//! Every WQE of a queue has the same *stride*. A list that does not fill it ends at an entry whose
//! key is [`END_OF_LIST`].

use core::iter::FusedIterator;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{DataSeg, END_OF_LIST, OCTOWORD_BYTES, Sge, SrqNextSeg, WqeSink};
use crate::ids::Lkey;

/// Builds one receive WQE in octowords that software currently owns.
///
/// # Panics
///
/// Every method panics if the WQE would exceed its stride: a driver checks requests against its
/// limits before it starts a WQE.
#[derive(Debug)]
#[must_use = "a list without its end is garbage"]
pub struct RecvWqeWriter<S> {
    sink: S,
    stride_octowords: u8,
    used: u8,
}

impl<S: WqeSink> RecvWqeWriter<S> {
    /// Starts a WQE of a receive queue.
    #[inline(always)]
    pub fn rq(sink: S, stride_octowords: u8) -> Self {
        Self { sink, stride_octowords, used: 0 }
    }

    /// Starts a WQE of a shared receive queue, after which the NIC takes WQE `next_wqe_index`.
    ///
    /// The NIC follows these links, not the ring's order: an index that is left zero makes it
    /// consume WQE 0 for ever.
    #[inline(always)]
    pub fn srq(sink: S, stride_octowords: u8, next_wqe_index: u16) -> Self {
        let mut writer = Self::rq(sink, stride_octowords);
        writer.push(SrqNextSeg {
            reserved0: [0; 2],
            next_wqe_index: next_wqe_index.into(),
            signature: 0,
            reserved1: [0; 11],
        });
        writer
    }

    /// Appends one scatter entry; nothing if `len_bytes` is zero, which a NIC would take for 2 GiB.
    ///
    /// # Panics
    ///
    /// If `len_bytes` exceeds [`ENTRY_BYTES_MAX`](super::ENTRY_BYTES_MAX), or if `lkey` is
    /// [`END_OF_LIST`].
    #[inline(always)]
    pub fn data(mut self, addr: u64, lkey: Lkey, len_bytes: u32) -> Self {
        if len_bytes > 0 {
            assert!(lkey != END_OF_LIST, "a list's end in its middle");
            self.push(DataSeg::new(Sge { addr, lkey, len_bytes }));
        }
        self
    }

    /// Ends the list. Octowords after its end keep what they held.
    #[inline(always)]
    pub fn finish(mut self) {
        if self.used < self.stride_octowords {
            self.push(DataSeg::TERMINATOR);
        }
    }

    #[inline(always)]
    fn push(&mut self, seg: impl IntoBytes + Immutable) {
        let stride_octowords = self.stride_octowords;
        assert!(self.used < stride_octowords, "WQE longer than {stride_octowords} octowords");
        let mut octoword = [0; OCTOWORD_BYTES];
        octoword.copy_from_slice(seg.as_bytes());
        self.sink.put(usize::from(self.used), octoword);
        self.used += 1;
    }
}

/// Why the bytes are not a receive WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvWqeError {
    /// A stride is a whole number of octowords.
    #[error("receive WQE of {len_bytes} B is not a whole number of octowords")]
    Stride {
        /// Bytes given.
        len_bytes: usize,
    },
    /// A shared receive queue's WQE starts with a next segment.
    #[error("receive WQE without a next segment")]
    NoNextSegment,
    /// Bit 31 of a byte count means inline payload, which a receive cannot have.
    #[error("scatter entry {entry} is marked as inline payload")]
    Inline {
        /// Its position in the list.
        entry: usize,
    },
}

/// A well-formed receive WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWqe<'a> {
    /// WQE that follows, in a shared receive queue.
    pub next_wqe_index: Option<u16>,
    /// Whole octowords, checked by `parse`.
    list: &'a [u8],
}

impl<'a> RecvWqe<'a> {
    /// Reads a WQE of a receive queue; `bytes` is one stride.
    ///
    /// # Errors
    ///
    /// [`RecvWqeError`] if hardware would reject the WQE.
    pub fn parse_rq(bytes: &'a [u8]) -> Result<Self, RecvWqeError> {
        if !bytes.len().is_multiple_of(OCTOWORD_BYTES) {
            return Err(RecvWqeError::Stride { len_bytes: bytes.len() });
        }
        let wqe = Self { next_wqe_index: None, list: bytes };
        // `Sges` stops before an entry that is no entry, so this is the first one it did not take.
        let entry = wqe.sges().count();
        match bytes.chunks_exact(OCTOWORD_BYTES).nth(entry) {
            Some(seg) if !is_end(seg) => Err(RecvWqeError::Inline { entry }),
            _ => Ok(wqe),
        }
    }

    /// Reads a WQE of a shared receive queue; `bytes` is one stride.
    ///
    /// # Errors
    ///
    /// [`RecvWqeError`] if hardware would reject the WQE.
    pub fn parse_srq(bytes: &'a [u8]) -> Result<Self, RecvWqeError> {
        let (next, list) =
            SrqNextSeg::read_from_prefix(bytes).map_err(|_| RecvWqeError::NoNextSegment)?;
        let next_wqe_index = Some(next.next_wqe_index.get());
        Ok(Self { next_wqe_index, ..Self::parse_rq(list)? })
    }

    /// The scatter list, in order.
    #[inline]
    pub const fn sges(&self) -> Sges<'a> {
        Sges { rest: self.list }
    }

    /// The most bytes that a message received here may have.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.sges().map(|sge| u64::from(sge.len_bytes)).sum()
    }
}

fn is_end(seg: &[u8]) -> bool {
    DataSeg::read_from_bytes(seg).is_ok_and(|seg| seg.lkey.get() == END_OF_LIST.get())
}

/// Iterator over a scatter list: see [`RecvWqe::sges`].
#[derive(Clone, Debug)]
pub struct Sges<'a> {
    rest: &'a [u8],
}

impl Iterator for Sges<'_> {
    type Item = Sge;

    #[inline]
    fn next(&mut self) -> Option<Sge> {
        let (seg, tail) = DataSeg::read_from_prefix(self.rest).ok()?;
        let sge = seg.sge().filter(|sge| sge.lkey != END_OF_LIST);
        self.rest = if sge.is_some() { tail } else { &[] };
        sge
    }
}

impl FusedIterator for Sges<'_> {}
