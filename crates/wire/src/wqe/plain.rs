//! The shape of WQE that nearly all traffic has, told by its first six words.
//!
//! ```text
//! octoword  0         1          2             …
//!         ┌─────────┬──────────┬───────────────────────────┐
//! WRITE   │ CtrlSeg │ RaddrSeg │ one DataSeg, or one inline │   on RC; no fence, no modifier
//!         └─────────┴──────────┴───────────────────────────┘
//! ```
//!
//! [`SendWqe`](super::SendWqe) reads these too, and everything else; what both read, they read alike.

use super::{CtrlFlags, INLINE_FLAG, INLINE_HEADER_BYTES, OCTOWORD_BYTES, Opcode, Raddr, Sge};
use crate::ids::{Lkey, Qpn, Rkey};

/// Words that [`PlainWrite::read`] looks at.
pub const PLAIN_WORDS: usize = 6;

/// Payload of a [`PlainWrite`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainPayload {
    /// So many bytes, at least one, at [`PlainWrite::INLINE_OFFSET`] of the WQE and inside it.
    Inline {
        /// How many.
        len_bytes: u32,
    },
    /// Bytes in a registered region.
    Gather(Sge),
}

/// An RDMA WRITE on a reliable connection, with or without immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainWrite {
    /// For the receiver's completion.
    pub imm: Option<u32>,
    /// A completion request and a solicited event, nothing else.
    pub flags: CtrlFlags,
    /// Length of the WQE.
    pub octowords: u8,
    /// Where the payload goes.
    pub raddr: Raddr,
    /// One piece, never empty.
    pub payload: PlainPayload,
}

const FLAGS_MAX: CtrlFlags = CtrlFlags::CQ_UPDATE.union(CtrlFlags::SOLICITED);

/// The bit that [`Opcode::RdmaWriteImm`] has and [`Opcode::RdmaWrite`] has not, in the first word.
const IMM_BIT: u64 = 1 << 32;

const _: () = assert!(Opcode::RdmaWrite.code() ^ Opcode::RdmaWriteImm.code() == 1);

impl PlainWrite {
    /// Where inline payload begins, in bytes from the start of the WQE.
    pub const INLINE_OFFSET: usize = 2 * OCTOWORD_BYTES + INLINE_HEADER_BYTES;

    /// The WQE that begins with `words`, in memory order, if it is of this shape and belongs to
    /// position `index` of send queue `qpn`. `None` says nothing about whether it is well-formed.
    #[must_use]
    #[inline(always)]
    pub fn read(words: [u64; PLAIN_WORDS], index: u16, qpn: Qpn) -> Option<Self> {
        let [head, tail, addr, rkey, data, data_addr] = words.map(u64::from_be);
        let expected = u64::from(index) << 40
            | u64::from(Opcode::RdmaWrite.code()) << 32
            | u64::from(qpn.get()) << 8;
        let octowords = head.to_le_bytes()[0];
        if head & !(IMM_BIT | 0xff) != expected {
            return None;
        }
        // Signature and stream are zero, and no other flag is set.
        if (tail >> 32) & !u64::from(FLAGS_MAX.bits()) != 0 {
            return None;
        }
        let flags = CtrlFlags::from_bits(tail.to_le_bytes()[4]);
        let (len_bytes, lkey) = split(data);
        let payload = if len_bytes & INLINE_FLAG != 0 {
            let len_bytes = len_bytes & !INLINE_FLAG;
            let end = Self::INLINE_OFFSET as u64 + u64::from(len_bytes);
            let fills = end.div_ceil(OCTOWORD_BYTES as u64) == u64::from(octowords);
            (fills && len_bytes > 0).then_some(PlainPayload::Inline { len_bytes })?
        } else {
            let sge = Sge { addr: data_addr, lkey: Lkey::new(lkey), len_bytes };
            (octowords == 3 && len_bytes > 0).then_some(PlainPayload::Gather(sge))?
        };
        let (_, imm) = split(tail);
        let (rkey, _) = split(rkey);
        Some(Self {
            imm: (head & IMM_BIT != 0).then_some(imm),
            flags,
            octowords,
            raddr: Raddr { addr, rkey: Rkey::new(rkey) },
            payload,
        })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
const fn split(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}
