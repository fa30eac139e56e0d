//! Builds send WQEs.

use zerocopy::{Immutable, IntoBytes, big_endian::*};

use super::{
    ATOMIC_BYTES, AtomicSeg, Av, AvExtensionSeg, CtrlFlags, CtrlSeg, DataSeg, INLINE_FLAG,
    INLINE_HEADER_BYTES, OCTOWORD_BYTES, OCTOWORDS_MAX, Octoword, Opcode, RaddrSeg, Sge,
};
use crate::ids::{Lkey, Qpn, Rkey};

/// The destination of the octowords of one WQE.
///
/// A driver implements it over its ring, wrapping `index`, and so stores each octoword straight
/// where the NIC will read it. Octoword 0, which hands the WQE over, always comes last.
///
/// An implementation that stores an octoword as two native `u64` keeps it in registers all the way;
/// one that stores the array may be compiled to a store per field.
pub trait WqeSink {
    /// Stores octoword `index` of the WQE, counted from its control segment.
    fn put(&mut self, index: usize, octoword: Octoword);
}

/// Memory that software owns alone.
///
/// # Panics
///
/// If `index` is out of bounds: sizing the reservation is the caller's job.
impl WqeSink for [Octoword] {
    #[inline]
    fn put(&mut self, index: usize, octoword: Octoword) {
        self[index] = octoword;
    }
}

impl<const N: usize> WqeSink for [Octoword; N] {
    #[inline]
    fn put(&mut self, index: usize, octoword: Octoword) {
        self[index] = octoword;
    }
}

impl<S: WqeSink + ?Sized> WqeSink for &mut S {
    #[inline]
    fn put(&mut self, index: usize, octoword: Octoword) {
        (**self).put(index, octoword);
    }
}

/// Octowords that `len_bytes` of inline payload occupy, header included; none for no payload.
#[must_use]
#[inline]
pub const fn inline_octowords(len_bytes: usize) -> usize {
    if len_bytes == 0 {
        return 0;
    }
    len_bytes.saturating_add(INLINE_HEADER_BYTES).div_ceil(OCTOWORD_BYTES)
}

/// Segment kinds that a WQE under construction already has, as a bit set.
const AV: u8 = 1 << 0;
const RADDR: u8 = 1 << 1;
const ATOMIC: u8 = 1 << 2;
const DATA: u8 = 1 << 3;
const INLINE: u8 = 1 << 4;

/// Bytes that do not fill an octoword yet, first byte lowest: kept in registers, because a byte-wise
/// store followed by a wide load stalls most processors.
struct Staged {
    bits: u128,
    /// Below 16.
    bytes: usize,
}

impl Staged {
    /// Appends a whole octoword; returns the one that is full by it.
    #[inline(always)]
    fn shift_in(&mut self, octoword: u128) -> Octoword {
        if self.bytes == 0 {
            return octoword.to_le_bytes();
        }
        let full = self.bits | octoword << (8 * self.bytes);
        self.bits = octoword >> (8 * (OCTOWORD_BYTES - self.bytes));
        full.to_le_bytes()
    }

    /// Appends the low `len` bytes of `bits`, fewer than 16, the rest of which is zero.
    #[inline(always)]
    fn append(&mut self, bits: u128, len: usize) -> Option<Octoword> {
        let total = self.bytes + len;
        if total < OCTOWORD_BYTES {
            self.bits |= bits << (8 * self.bytes);
            self.bytes = total;
            return None;
        }
        let full = self.shift_in(bits);
        self.bytes = total - OCTOWORD_BYTES;
        Some(full)
    }
}

/// Loads fewer than 16 bytes, first byte lowest, by two or three loads that may overlap.
#[inline(always)]
fn load_short(bytes: &[u8]) -> u128 {
    let len = bytes.len();
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let first = u64::from_le_bytes(*first);
        let last = u64::from_le_bytes(*last);
        return u128::from(first) | u128::from(last) << (8 * (len - 8));
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let first = u32::from_le_bytes(*first);
        let last = u32::from_le_bytes(*last);
        return u128::from(u64::from(first) | u64::from(last) << (8 * (len - 4)));
    }
    match *bytes {
        [a] => u128::from(a),
        [a, b] => u128::from(u16::from_le_bytes([a, b])),
        [a, b, c] => u128::from(u32::from_le_bytes([a, b, c, 0])),
        _ => 0,
    }
}

/// Builds one send WQE in octowords that software currently owns. Rings no doorbell.
///
/// Call in the order of the WQE's layout: [`av`](Self::av), [`raddr`](Self::raddr),
/// [`atomic`](Self::atomic), then any number of [`data`](Self::data) and [`inline`](Self::inline).
/// The control segment is written *last*, by [`finish`](Self::finish), because only then is the
/// length known: a WQE with a wrong length cannot be built.
///
/// ```
/// use copyrpc_wire::{
///     ids::{Lkey, Qpn, Rkey},
///     wqe::{CtrlFlags, Opcode, WqeWriter},
/// };
///
/// let mut octowords = [[0; 16]; 4];
/// let length = WqeWriter::new(&mut octowords)
///     .raddr(0x7f00_0000_1000, Rkey::new(0x1234))
///     .data(0x7f00_0000_2000, Lkey::new(0x5678), 256)
///     .finish(Opcode::RdmaWriteImm, 0, Qpn::from_low_bits(42), CtrlFlags::CQ_UPDATE, 7);
/// assert_eq!(length, 3);
/// ```
///
/// # Panics
///
/// Every method panics if segments come out of order, or if the WQE would exceed
/// [`OCTOWORDS_MAX`]: a driver checks requests against its limits before it starts a WQE. A sink
/// may have bounds of its own.
#[derive(Debug)]
#[must_use = "a WQE without its control segment is garbage"]
pub struct WqeWriter<S> {
    sink: S,
    /// Octowords so far, the control segment included.
    used: u8,
    /// `AV | RADDR | …`.
    has: u8,
}

impl<S: WqeSink> WqeWriter<S> {
    /// Starts a WQE whose octoword 0 is kept for the control segment.
    #[inline(always)]
    pub fn new(sink: S) -> Self {
        Self { sink, used: 1, has: 0 }
    }

    /// Appends the destination of a UD or DC operation.
    #[inline(always)]
    pub fn av(mut self, av: &Av) -> Self {
        self.enter(AV, AV | RADDR | ATOMIC | DATA | INLINE);
        self.push(av.base_seg());
        if let Some(extension) = av.extension {
            let seg: [Octoword; 2] = zerocopy::transmute!(AvExtensionSeg::from(extension));
            self.push(seg[0]);
            self.push(seg[1]);
        }
        self
    }

    /// Appends the remote target of a one-sided operation.
    #[inline(always)]
    pub fn raddr(mut self, addr: u64, rkey: Rkey) -> Self {
        self.enter(RADDR, RADDR | ATOMIC | DATA | INLINE);
        self.push(RaddrSeg { addr: addr.into(), rkey: rkey.get().into(), reserved: U32::ZERO });
        self
    }

    /// Appends the operands of an atomic; `compare` is zero for a fetch-and-add.
    #[inline(always)]
    pub fn atomic(mut self, swap_or_add: u64, compare: u64) -> Self {
        self.enter(ATOMIC, ATOMIC | DATA | INLINE);
        self.push(AtomicSeg { swap_or_add: swap_or_add.into(), compare: compare.into() });
        self
    }

    /// Appends one gather entry; nothing if `len_bytes` is zero, which a NIC would take for 2 GiB.
    ///
    /// # Panics
    ///
    /// If `len_bytes` exceeds [`ENTRY_BYTES_MAX`](super::ENTRY_BYTES_MAX), or is not 8 for the
    /// one entry of an atomic.
    #[inline(always)]
    pub fn data(mut self, addr: u64, lkey: Lkey, len_bytes: u32) -> Self {
        if len_bytes == 0 {
            return self;
        }
        if self.has & ATOMIC != 0 {
            assert!(self.has & DATA == 0 && len_bytes == ATOMIC_BYTES, "atomics return 8 bytes");
        }
        self.has |= DATA;
        self.push(DataSeg::new(Sge { addr, lkey, len_bytes }));
        self
    }

    /// Appends payload by value; nothing if `payload` is empty.
    #[inline(always)]
    pub fn inline(self, payload: &[u8]) -> Self {
        self.inline_parts(&[payload])
    }

    /// Appends the concatenation of `parts` by value, as one inline segment.
    ///
    /// # Panics
    ///
    /// If the payload does not fit: [`inline_octowords`] tells beforehand.
    #[inline(always)]
    pub fn inline_parts(mut self, parts: &[&[u8]]) -> Self {
        let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
        if len_bytes == 0 {
            return self;
        }
        let octowords = usize::from(self.used) + inline_octowords(len_bytes);
        assert!(octowords <= usize::from(OCTOWORDS_MAX), "{len_bytes} B of inline payload");
        self.has |= INLINE;

        // Lossless: the assertion above bounds the length by 1008.
        let header = INLINE_FLAG | u32::try_from(len_bytes).unwrap_or_default();
        let mut staged =
            Staged { bits: u128::from(header.swap_bytes()), bytes: INLINE_HEADER_BYTES };
        for &part in parts {
            let (whole, tail) = part.as_chunks::<OCTOWORD_BYTES>();
            for &octoword in whole {
                let full = staged.shift_in(u128::from_le_bytes(octoword));
                self.push(full);
            }
            if let Some(full) = staged.append(load_short(tail), tail.len()) {
                self.push(full);
            }
        }
        if staged.bytes > 0 {
            self.push(staged.bits.to_le_bytes());
        }
        self
    }

    /// Octowords that [`finish`](Self::finish) would write now.
    #[must_use]
    #[inline(always)]
    pub const fn octowords(&self) -> u8 {
        self.used
    }

    /// Writes the control segment and returns the WQE's length in octowords.
    ///
    /// `index` is the position of the WQE's first WQEBB in its send queue, modulo 2¹⁶. `imm` is
    /// zero unless [`Opcode::has_imm`].
    ///
    /// # Panics
    ///
    /// If the segments are not those of `opcode`.
    #[inline(always)]
    pub fn finish(
        mut self,
        opcode: Opcode,
        index: u16,
        qpn: Qpn,
        flags: CtrlFlags,
        imm: u32,
    ) -> u8 {
        self.assert_fits(opcode);
        self.sink.put(
            0,
            zerocopy::transmute!(CtrlSeg {
                opmod_idx_opcode: (u32::from(index) << 8 | u32::from(opcode.code())).into(),
                qpn_ds: (qpn.get() << 8 | u32::from(self.used)).into(),
                signature: 0,
                dci_stream: U16::ZERO,
                fm_ce_se: flags.bits(),
                imm: imm.into(),
            }),
        );
        self.used
    }

    /// Folds to nothing where the compiler sees the whole chain of calls.
    #[inline(always)]
    fn assert_fits(&self, opcode: Opcode) {
        let has = |kind| self.has & kind != 0;
        assert!(has(RADDR) == opcode.has_raddr(), "{opcode:?}: remote address");
        assert!(has(ATOMIC) == opcode.is_atomic(), "{opcode:?}: operands");
        assert!(!has(INLINE) || opcode.may_inline(), "{opcode:?}: inline payload");
        assert!(has(DATA) || !opcode.is_atomic(), "{opcode:?}: nowhere to put the old value");
        assert!(self.has == 0 || opcode != Opcode::Nop, "a NOP is a control segment alone");
    }

    /// Notes a segment of `kind`, which none of those in `after` may precede.
    #[inline(always)]
    fn enter(&mut self, kind: u8, after: u8) {
        assert!(self.has & after == 0, "segments out of order");
        self.has |= kind;
    }

    #[inline(always)]
    fn push(&mut self, seg: impl IntoBytes + Immutable) {
        assert!(self.used < OCTOWORDS_MAX, "WQE longer than {OCTOWORDS_MAX} octowords");
        let mut octoword = [0; OCTOWORD_BYTES];
        octoword.copy_from_slice(seg.as_bytes());
        self.sink.put(usize::from(self.used), octoword);
        self.used += 1;
    }
}
