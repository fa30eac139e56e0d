//! The shapes of WQE that nearly all traffic has, recognized by a few of their words.
//!
//! ```text
//! octoword  0         1..3        next       next
//!         ┌─────────┬───────────┬──────────┬──────────────────────────┐
//! WRITE   │ CtrlSeg │ [AvSeg]   │ RaddrSeg │ one DataSeg, or inline   │   no fence, no modifier; RC,
//! SEND    │ CtrlSeg │ [AvSeg]   │          │ one DataSeg, or inline   │   or DC, and SENDs on UD, with
//!         └─────────┴───────────┴──────────┴──────────────────────────┘   the extension of the AvSeg
//! RQ      │ one DataSeg, ended by the stride or by `END_OF_LIST`
//! SRQ     │ SrqNextSeg, the same
//! ```
//!
//! [`SendWqe`](super::SendWqe) and [`RecvWqe`](super::RecvWqe) read these too, and everything else;
//! what both read, they read alike.

use super::{
    Av, AvBaseSeg, AvExtensionSeg, CtrlFlags, END_OF_LIST, INLINE_FLAG, INLINE_HEADER_BYTES,
    OCTOWORD_BYTES, Opcode, Raddr, Sge, Transport,
};
use crate::ids::{Lkey, Qpn, Rkey};

/// The two operations that are plain, each with or without immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the manual's")]
pub enum PlainKind {
    Write,
    Send,
}

impl PlainKind {
    /// The plain operation of the WQE whose first word, in memory order, is this one; `None`: not plain.
    #[must_use]
    #[inline(always)]
    pub const fn of(first_word: u64) -> Option<Self> {
        let [_, _, _, code, ..] = first_word.to_ne_bytes();
        match code & !IMM_CODE {
            WRITE_CODE => Some(Self::Write),
            SEND_CODE => Some(Self::Send),
            _ => None,
        }
    }
}

/// Payload of a [`PlainSend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainPayload {
    /// So many bytes, at least one, at [`PlainSend::inline_offset`] of the WQE and inside it.
    Inline {
        /// Its length.
        len_bytes: u32,
    },
    /// Bytes in a registered region.
    Gather(Sge),
}

impl PlainPayload {
    /// Length of the message.
    #[must_use]
    #[inline(always)]
    pub const fn len_bytes(&self) -> u32 {
        match self {
            Self::Inline { len_bytes } => *len_bytes,
            Self::Gather(sge) => sge.len_bytes,
        }
    }
}

/// An RDMA WRITE or a SEND, with or without immediate data, from an RC queue pair or a DC initiator; or a SEND
/// from a UD queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainSend {
    /// For the receiver's completion.
    pub imm: Option<u32>,
    /// A completion request and a solicited event, nothing else.
    pub flags: CtrlFlags,
    /// Length of the WQE.
    pub octowords: u8,
    /// Destination: on DC and UD.
    pub av: Option<Av>,
    /// The remote address of a WRITE; a SEND has none.
    pub raddr: Option<Raddr>,
    /// One piece, never empty.
    pub payload: PlainPayload,
}

const FLAGS_MAX: CtrlFlags = CtrlFlags::CQ_UPDATE.union(CtrlFlags::SOLICITED);

const WRITE_CODE: u8 = Opcode::RdmaWrite.code();
const SEND_CODE: u8 = Opcode::Send.code();
/// The bit of an opcode that says that there is immediate data.
const IMM_CODE: u8 = 1;
const IMM_BIT: u64 = (IMM_CODE as u64) << 32;
/// The bits of the length that the first word may have.
const OCTOWORDS_MASK: u64 = super::OCTOWORDS_MAX as u64;

const _: () = {
    assert!(WRITE_CODE & IMM_CODE == 0 && SEND_CODE & IMM_CODE == 0);
    assert!(Opcode::RdmaWriteImm.code() == WRITE_CODE | IMM_CODE);
    assert!(Opcode::SendImm.code() == SEND_CODE | IMM_CODE);
    assert!((OCTOWORDS_MASK + 1).is_power_of_two());
};

impl PlainSend {
    /// The WQE whose words `word` loads, in memory order, if it is of this shape and kind and belongs to
    /// position `index` of send queue `qpn`. `None` says nothing about whether it is well-formed.
    ///
    /// `word` is asked for each word at most once, up to the second word of the payload's octoword.
    #[must_use]
    #[inline(always)]
    pub fn read(
        word: impl Fn(usize) -> u64,
        transport: Transport,
        kind: PlainKind,
        index: u16,
        qpn: Qpn,
    ) -> Option<Self> {
        let [head, tail] = [0, 1].map(|at| u64::from_be(word(at)));
        let code = match kind {
            PlainKind::Write => WRITE_CODE,
            PlainKind::Send => SEND_CODE,
        };
        let expected = u64::from(index) << 40 | u64::from(code) << 32 | u64::from(qpn.get()) << 8;
        if head & !(IMM_BIT | OCTOWORDS_MASK) != expected {
            return None;
        }
        // Signature and stream are zero, and no other flag is set.
        if (tail >> 32) & !u64::from(FLAGS_MAX.bits()) != 0 {
            return None;
        }
        let octowords = head.to_le_bytes()[0];
        let (av, fixed) = match transport {
            Transport::Rc => (None, 1),
            Transport::Dci => (Some(read_av(&word, true)?), 4),
            Transport::Ud if kind == PlainKind::Send => (Some(read_av(&word, false)?), 4),
            Transport::Ud => return None,
        };
        let (raddr, fixed) = match kind {
            PlainKind::Write => {
                let (rkey, _) = split(u64::from_be(word(2 * fixed + 1)));
                let addr = u64::from_be(word(2 * fixed));
                (Some(Raddr { addr, rkey: Rkey::new(rkey) }), fixed + 1)
            }
            PlainKind::Send => (None, fixed),
        };
        let (len_bytes, lkey) = split(u64::from_be(word(2 * fixed)));
        let payload = if len_bytes & INLINE_FLAG != 0 {
            let len_bytes = len_bytes & !INLINE_FLAG;
            let end = (fixed * OCTOWORD_BYTES + INLINE_HEADER_BYTES) as u64 + u64::from(len_bytes);
            let fills = end.div_ceil(OCTOWORD_BYTES as u64) == u64::from(octowords);
            (fills && len_bytes > 0).then_some(PlainPayload::Inline { len_bytes })?
        } else {
            let addr = u64::from_be(word(2 * fixed + 1));
            let sge = Sge { addr, lkey: Lkey::new(lkey), len_bytes };
            let is_one = usize::from(octowords) == fixed + 1;
            (is_one && len_bytes > 0).then_some(PlainPayload::Gather(sge))?
        };
        let (_, imm) = split(tail);
        let imm = (head & IMM_BIT != 0).then_some(imm);
        Some(Self {
            imm,
            flags: CtrlFlags::from_bits(tail.to_le_bytes()[4]),
            octowords,
            av,
            raddr,
            payload,
        })
    }

    /// The opcode, one of four.
    #[must_use]
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        match (self.raddr.is_some(), self.imm.is_some()) {
            (true, false) => Opcode::RdmaWrite,
            (true, true) => Opcode::RdmaWriteImm,
            (false, false) => Opcode::Send,
            (false, true) => Opcode::SendImm,
        }
    }

    /// Offset of inline payload, in bytes from the start of the WQE.
    #[must_use]
    #[inline(always)]
    pub const fn inline_offset(&self) -> usize {
        let av = if self.av.is_some() { 3 } else { 0 };
        let octowords = 1 + av + self.raddr.is_some() as usize;
        octowords * OCTOWORD_BYTES + INLINE_HEADER_BYTES
    }
}

/// The address vector in words 2 to 7, if it has its extension.
#[inline(always)]
fn read_av(word: impl Fn(usize) -> u64, is_dc: bool) -> Option<Av> {
    let base: AvBaseSeg = zerocopy::transmute!([2, 3].map(&word));
    let (mut av, is_extended) = Av::from_base_seg(&base, is_dc);
    if !is_extended {
        return None;
    }
    let extension: AvExtensionSeg = zerocopy::transmute!([4, 5, 6, 7].map(word));
    av.extension = Some(extension.into());
    Some(av)
}

/// The scatter entry of a receive that has just one, from the words of its octoword. `after` is the
/// first word of the octoword behind it, if its stride has one. `None` says nothing about whether the
/// receive is well-formed.
#[must_use]
#[inline(always)]
pub fn plain_receive([lengths, addr]: [u64; 2], after: Option<u64>) -> Option<Sge> {
    let (len_bytes, lkey) = split(u64::from_be(lengths));
    let ends = after.is_none_or(|word| split(u64::from_be(word)).1 == END_OF_LIST.get());
    let is_entry = len_bytes > 0 && len_bytes & INLINE_FLAG == 0 && lkey != END_OF_LIST.get();
    let sge = Sge { addr: u64::from_be(addr), lkey: Lkey::new(lkey), len_bytes };
    (ends && is_entry).then_some(sge)
}

#[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
const fn split(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}
