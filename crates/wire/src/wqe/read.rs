//! Reads send WQEs, as the NIC does.

use core::fmt;

use zerocopy::FromBytes;

use super::{
    ATOMIC_BYTES, AtomicSeg, Av, AvBaseSeg, AvExtensionSeg, CtrlFlags, CtrlSeg, DataSeg,
    INLINE_FLAG, INLINE_HEADER_BYTES, OCTOWORD_BYTES, Octoword, Opcode, RaddrSeg, Sge,
};
use crate::ids::{Qpn, Rkey};

/// Service of the queue pair that a WQE belongs to: decides whether an address vector is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable datagram.
    Ud,
    /// Dynamically connected initiator.
    Dci,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Ud => "UD",
            Self::Dci => "DCI",
        })
    }
}

/// Why the bytes are not a send WQE that this crate understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WqeError {
    /// Fewer bytes than the length field promises, or than a control segment.
    #[error("WQE of {need_bytes} B, but only {have_bytes} B are there")]
    Truncated {
        /// Bytes given.
        have_bytes: usize,
        /// Bytes of the whole WQE.
        need_bytes: usize,
    },
    /// A length that leaves no room for the control segment itself.
    #[error("WQE length of zero octowords")]
    ZeroLength,
    /// The operation needs more segments than the length field covers.
    #[error("{opcode:?} does not fit in {octowords} octowords")]
    TooShort {
        /// Operation.
        opcode: Opcode,
        /// Length that the WQE states.
        octowords: u8,
    },
    /// Not the code of any operation.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// An operation that hardware has and this crate has not.
    #[error("unsupported opcode {0:#04x}")]
    UnsupportedOpcode(u8),
    /// A variant of an operation that this crate has not.
    #[error("unsupported modifier {opmod:#04x} of {opcode:?}")]
    UnsupportedOpmod {
        /// Operation.
        opcode: Opcode,
        /// Modifier.
        opmod: u8,
    },
    /// The queue pair's service has no such operation.
    #[error("{opcode:?} on a {transport} queue pair")]
    WrongTransport {
        /// Operation.
        opcode: Opcode,
        /// Service.
        transport: Transport,
    },
    /// Inline payload that runs past the WQE's end.
    #[error("{len_bytes} B of inline payload, room for {room_bytes} B")]
    InlineTooLong {
        /// Length in the inline header.
        len_bytes: u32,
        /// Bytes left in the WQE.
        room_bytes: usize,
    },
    /// Inline payload in an operation that brings data *here*.
    #[error("inline payload in {0:?}")]
    InlineNotAllowed(Opcode),
    /// The old value of an atomic goes to exactly one entry of exactly 8 bytes.
    #[error("{0:?} needs one 8-byte entry for the old value")]
    AtomicResult(Opcode),
}

/// A control segment as it was written, before any of it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ctrl {
    /// Modifier of the operation.
    pub opmod: u8,
    /// Position of the first WQEBB in the send queue, modulo 2¹⁶.
    pub index: u16,
    /// Code of the operation.
    pub code: u8,
    /// Send queue's number.
    pub qpn: Qpn,
    /// Length of the WQE, from 0 (malformed) to 63.
    pub octowords: u8,
    /// Completion, fence and event bits.
    pub flags: CtrlFlags,
    /// Immediate data.
    pub imm: u32,
}

/// Takes a control segment apart, so that a NIC knows how much more to fetch, and whom to blame
/// if the rest makes no sense.
#[must_use]
#[inline]
pub fn peek_ctrl(octoword: &Octoword) -> Ctrl {
    let seg: CtrlSeg = zerocopy::transmute!(*octoword);
    let [opmod, index_high, index_low, code] = seg.opmod_idx_opcode.get().to_be_bytes();
    let qpn_ds = seg.qpn_ds.get();
    Ctrl {
        opmod,
        index: u16::from_be_bytes([index_high, index_low]),
        code,
        qpn: Qpn::from_low_bits(qpn_ds >> 8),
        octowords: qpn_ds.to_be_bytes()[3] & 0x3f,
        flags: CtrlFlags::from_bits(seg.fm_ce_se),
        imm: seg.imm.get(),
    }
}

/// Remote target of a one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raddr {
    /// First byte, in the peer's address space.
    pub addr: u64,
    /// The peer's region.
    pub rkey: Rkey,
}

/// Operands of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// New value of a compare-and-swap, addend of a fetch-and-add.
    pub swap_or_add: u64,
    /// Expected value of a compare-and-swap.
    pub compare: u64,
}

/// One piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Bytes in a registered region.
    Sge(Sge),
    /// Bytes in the WQE itself; never empty.
    Inline(&'a [u8]),
}

impl Segment<'_> {
    /// Length of this piece.
    #[must_use]
    #[inline]
    pub const fn len_bytes(&self) -> u64 {
        match self {
            Self::Sge(sge) => sge.len_bytes as u64,
            Self::Inline(payload) => payload.len() as u64,
        }
    }
}

/// A well-formed send WQE.
///
/// Its segments are taken from the bytes when they are asked for: a struct of them would be moved
/// around, and wide loads right after the narrow stores that filled it stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWqe<'a> {
    /// Operation.
    pub opcode: Opcode,
    transport: Transport,
    av_octowords: u8,
    /// The whole WQE; for a NOP the control segment alone.
    bytes: &'a [u8],
}

impl<'a> SendWqe<'a> {
    /// Reads the WQE at the start of `bytes`, which may be longer than the WQE.
    ///
    /// `bytes` is a private copy: no other party changes it meanwhile.
    ///
    /// # Errors
    ///
    /// [`WqeError`] if hardware would reject the WQE, or if it is of a kind that this crate does not
    /// read.
    #[inline(always)]
    pub fn parse(bytes: &'a [u8], transport: Transport) -> Result<Self, WqeError> {
        let truncated = |need_bytes| WqeError::Truncated { have_bytes: bytes.len(), need_bytes };
        let ctrl = bytes.first_chunk().ok_or(truncated(OCTOWORD_BYTES))?;
        let ctrl = peek_ctrl(ctrl);
        let len_bytes = usize::from(ctrl.octowords) * OCTOWORD_BYTES;
        let wqe = bytes.get(..len_bytes).ok_or(truncated(len_bytes))?;
        if wqe.is_empty() {
            return Err(WqeError::ZeroLength);
        }
        let opcode = check_opcode(ctrl, transport)?;
        if opcode == Opcode::Nop {
            // A NOP may be longer than its control segment, to fill a ring's end.
            let bytes = wqe.get(..OCTOWORD_BYTES).unwrap_or_default();
            return Ok(Self { opcode, transport, av_octowords: 0, bytes });
        }
        let short = WqeError::TooShort { opcode, octowords: ctrl.octowords };
        let av_octowords =
            if transport == Transport::Rc { 0 } else { av_octowords(wqe).ok_or(short)? };
        let parsed = Self { opcode, transport, av_octowords, bytes: wqe };
        if wqe.len() < parsed.payload_offset() {
            return Err(short);
        }
        parsed.check_payload()?;
        Ok(parsed)
    }

    /// The control segment.
    #[must_use]
    #[inline(always)]
    pub fn ctrl(&self) -> Ctrl {
        peek_ctrl(self.bytes.first_chunk().unwrap_or(&[0; OCTOWORD_BYTES]))
    }

    /// Destination: on UD and DCI, except for a NOP.
    #[must_use]
    #[inline]
    pub fn av(&self) -> Option<Av> {
        if self.av_octowords == 0 {
            return None;
        }
        let (mut av, extended) =
            Av::from_base_seg(&self.segment(1)?, self.transport == Transport::Dci);
        if extended {
            av.extension = Some(self.segment::<AvExtensionSeg>(2)?.into());
        }
        Some(av)
    }

    /// Remote target: where [`Opcode::has_raddr`].
    #[must_use]
    #[inline(always)]
    pub fn raddr(&self) -> Option<Raddr> {
        if !self.opcode.has_raddr() {
            return None;
        }
        let seg: RaddrSeg = self.segment(1 + self.av_octowords)?;
        Some(Raddr { addr: seg.addr.get(), rkey: Rkey::new(seg.rkey.get()) })
    }

    /// Operands: where [`Opcode::is_atomic`].
    #[must_use]
    #[inline(always)]
    pub fn atomic(&self) -> Option<Atomic> {
        if !self.opcode.is_atomic() {
            return None;
        }
        let seg: AtomicSeg = self.segment(2 + self.av_octowords)?;
        Some(Atomic { swap_or_add: seg.swap_or_add.get(), compare: seg.compare.get() })
    }

    /// The segment that begins at `octoword`.
    #[inline(always)]
    fn segment<T: FromBytes>(&self, octoword: u8) -> Option<T> {
        let bytes = self.bytes.get(usize::from(octoword) * OCTOWORD_BYTES..)?;
        T::read_from_prefix(bytes).ok().map(|(segment, _)| segment)
    }

    /// Offset of the first data or inline segment; for a NOP the end.
    #[inline(always)]
    fn payload_offset(&self) -> usize {
        let fixed = u8::from(self.opcode.has_raddr()) + u8::from(self.opcode.is_atomic());
        usize::from(1 + self.av_octowords + fixed) * OCTOWORD_BYTES
    }

    /// The pieces of the message, in order.
    #[inline]
    pub fn segments(&self) -> Segments<'a> {
        Segments { rest: self.bytes.get(self.payload_offset()..).unwrap_or_default() }
    }

    /// Length of the message; for a READ, of what comes back.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.segments().map(|segment| segment.len_bytes()).sum()
    }

    /// Makes [`Segments`] infallible.
    #[inline(always)]
    fn check_payload(&self) -> Result<(), WqeError> {
        let mut rest = self.segments().rest;
        while let Some(segment) = take_segment(&mut rest)? {
            if matches!(segment, Segment::Inline(_)) && !self.opcode.may_inline() {
                return Err(WqeError::InlineNotAllowed(self.opcode));
            }
        }
        if self.opcode.is_atomic() {
            let mut segments = self.segments();
            let is_result = |segment: Segment<'_>| segment.len_bytes() == u64::from(ATOMIC_BYTES);
            if !segments.next().is_some_and(is_result) || segments.next().is_some() {
                return Err(WqeError::AtomicResult(self.opcode));
            }
        }
        Ok(())
    }
}

/// Iterator over the pieces of a message: see [`SendWqe::segments`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    /// Whole octowords, checked by `check_payload`.
    rest: &'a [u8],
}

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Segment<'a>> {
        take_segment(&mut self.rest).ok().flatten()
    }
}

impl core::iter::FusedIterator for Segments<'_> {}

/// The operation, if `transport` has it.
#[inline(always)]
fn check_opcode(ctrl: Ctrl, transport: Transport) -> Result<Opcode, WqeError> {
    let Some(opcode) = Opcode::from_code(ctrl.code) else {
        return Err(match ctrl.code {
            // SEND_INVAL, TSO, masked atomics, memory windows and registration, tag matching, MMO.
            0x01 | 0x0e | 0x0f | 0x14..=0x19 | 0x1b | 0x1f..=0x21 | 0x25 | 0x28 | 0x2c | 0x2f => {
                WqeError::UnsupportedOpcode(ctrl.code)
            }
            code => WqeError::UnknownOpcode(code),
        });
    };
    if ctrl.opmod != 0 {
        return Err(WqeError::UnsupportedOpmod { opcode, opmod: ctrl.opmod });
    }
    if transport == Transport::Ud && opcode.has_raddr() {
        return Err(WqeError::WrongTransport { opcode, transport });
    }
    Ok(opcode)
}

/// Octowords of the address vector behind the control segment, if it is all there.
#[inline]
fn av_octowords(wqe: &[u8]) -> Option<u8> {
    let base = AvBaseSeg::read_from_prefix(wqe.get(OCTOWORD_BYTES..)?).ok()?.0;
    let (_, extended) = Av::from_base_seg(&base, false);
    let octowords = if extended { 3 } else { 1 };
    (wqe.len() >= usize::from(1 + octowords) * OCTOWORD_BYTES).then_some(octowords)
}

/// Splits the next piece off `rest`, passing over empty inline segments.
#[inline(always)]
fn take_segment<'a>(rest: &mut &'a [u8]) -> Result<Option<Segment<'a>>, WqeError> {
    // Ends: each turn takes at least one octoword.
    loop {
        let Ok((seg, tail)) = DataSeg::read_from_prefix(rest) else { return Ok(None) };
        if let Some(sge) = seg.sge() {
            *rest = tail;
            return Ok(Some(Segment::Sge(sge)));
        }
        let payload = take_inline(rest, seg.len_bytes.get() & !INLINE_FLAG)?;
        if !payload.is_empty() {
            return Ok(Some(Segment::Inline(payload)));
        }
    }
}

/// Splits an inline segment off `rest`, its header and padding included.
#[inline]
fn take_inline<'a>(rest: &mut &'a [u8], len_bytes: u32) -> Result<&'a [u8], WqeError> {
    let room_bytes = rest.len().saturating_sub(INLINE_HEADER_BYTES);
    let too_long = WqeError::InlineTooLong { len_bytes, room_bytes };
    let len = usize::try_from(len_bytes).ok().filter(|&len| len <= room_bytes).ok_or(too_long)?;
    let (_, body) = rest.split_at_checked(INLINE_HEADER_BYTES).ok_or(too_long)?;
    let payload = body.get(..len).ok_or(too_long)?;
    let padded = (INLINE_HEADER_BYTES + len).next_multiple_of(OCTOWORD_BYTES);
    *rest = rest.get(padded..).ok_or(too_long)?;
    Ok(payload)
}
