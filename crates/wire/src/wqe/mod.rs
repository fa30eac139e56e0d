//! Work-queue elements (WQEs): the requests that a NIC reads from a send or receive queue.
//!
//! A WQE is a run of 16-byte *octowords* (the manual's "DS" unit). In a send queue it starts on a
//! 64-byte boundary (a *WQEBB*) and its ring may wrap between any two octowords:
//!
//! ```text
//! octoword  0         1..3       next       next        rest
//!         ┌─────────┬──────────┬──────────┬───────────┬─────────────────────┐
//! SEND    │ CtrlSeg │ [AvSeg]  │          │           │ (DataSeg | inline)* │
//! WRITE   │ CtrlSeg │ [AvSeg]  │ RaddrSeg │           │ (DataSeg | inline)* │
//! READ    │ CtrlSeg │ [AvSeg]  │ RaddrSeg │           │ DataSeg*            │
//! atomic  │ CtrlSeg │ [AvSeg]  │ RaddrSeg │ AtomicSeg │ DataSeg of 8 B      │
//!         └─────────┴──────────┴──────────┴───────────┴─────────────────────┘
//! RQ      │ DataSeg*, ended by the stride or by `END_OF_LIST`
//! SRQ     │ SrqNextSeg, DataSeg*, ended likewise
//! ```
//!
//! UD and DC initiators carry the address vector (`AvSeg`, or only its first octoword); RC does not.
//!
//! Source: rdma-core `providers/mlx5/mlx5dv.h`, `struct mlx5_wqe_*_seg`; `providers/mlx5/qp.c`.

mod av;
mod plain;
mod read;
mod recv;
mod seg;
mod write;

pub use av::{Av, AvExtension, AvKey};
pub use plain::{PlainKind, PlainPayload, PlainSend, plain_receive};
pub use read::{Atomic, Ctrl, Raddr, Segment, Segments, SendWqe, Transport, WqeError, peek_ctrl};
pub use recv::{RecvWqe, RecvWqeError, RecvWqeWriter, Sges};
pub use seg::{
    AtomicSeg, AvBaseSeg, AvExtensionSeg, AvSeg, CtrlSeg, DataSeg, RaddrSeg, SrqNextSeg,
};
pub use write::{WqeSink, WqeWriter, inline_octowords};

use crate::ids::Lkey;

/// Size of the unit in which the control segment counts a WQE's length.
pub const OCTOWORD_BYTES: usize = 16;

/// One 16-byte unit of a WQE.
pub type Octoword = [u8; OCTOWORD_BYTES];

/// Size of the unit in which a send queue counts its WQEs (`MLX5_SEND_WQE_BB`).
pub const WQEBB_BYTES: usize = 64;

/// Octowords per WQEBB.
pub const OCTOWORDS_PER_WQEBB: u8 = 4;

const _: () = assert!(OCTOWORDS_PER_WQEBB as usize * OCTOWORD_BYTES == WQEBB_BYTES);

/// Longest send WQE: its length field has six bits.
pub const OCTOWORDS_MAX: u8 = 63;

/// Longest entry of a gather or scatter list, and what a byte count of zero means to a NIC.
pub const ENTRY_BYTES_MAX: u32 = 1 << 31;

/// Longest message.
///
/// Source: rdma-core, `max_msg_sz` of ConnectX ports; Linux `include/linux/mlx5/mlx5_ifc.h`, `log_max_msg`.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 30;

/// Key that ends a receive WQE's scatter list (`MLX5_INVALID_LKEY`); names no region.
pub const END_OF_LIST: Lkey = Lkey::new(0x100);

/// Bit 31 of a byte count: the payload follows in the WQE itself (`MLX5_INLINE_SEG`).
const INLINE_FLAG: u32 = 1 << 31;

/// Size of the word in front of inline payload.
const INLINE_HEADER_BYTES: usize = 4;

/// The ten bits of an inline segment's length hold whatever fits behind a control segment.
const _: () =
    assert!((OCTOWORDS_MAX as usize - 1) * OCTOWORD_BYTES - INLINE_HEADER_BYTES < 1 << 10);

/// Operand and result size of an atomic, in bytes.
pub const ATOMIC_BYTES: u32 = 8;

/// WQEBBs that a WQE of `octowords` occupies in its send queue.
#[must_use]
#[inline]
pub const fn wqebbs(octowords: u8) -> u16 {
    // `div_ceil` of so narrow a number divides twice, lest it overflow.
    (octowords as u16 + OCTOWORDS_PER_WQEBB as u16 - 1) >> OCTOWORDS_PER_WQEBB.ilog2()
}

/// Operation of a send WQE (`MLX5_OPCODE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the manual's")]
pub enum Opcode {
    Nop = 0x00,
    RdmaWrite = 0x08,
    RdmaWriteImm = 0x09,
    Send = 0x0a,
    SendImm = 0x0b,
    RdmaRead = 0x10,
    /// Compare and swap.
    AtomicCs = 0x11,
    /// Fetch and add.
    AtomicFa = 0x12,
}

impl Opcode {
    /// Every operation that this crate writes and reads.
    pub const ALL: [Self; 8] = [
        Self::Nop,
        Self::RdmaWrite,
        Self::RdmaWriteImm,
        Self::Send,
        Self::SendImm,
        Self::RdmaRead,
        Self::AtomicCs,
        Self::AtomicFa,
    ];

    /// The operation with this code, if it is one of [`ALL`](Self::ALL).
    #[must_use]
    #[inline]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Nop,
            0x08 => Self::RdmaWrite,
            0x09 => Self::RdmaWriteImm,
            0x0a => Self::Send,
            0x0b => Self::SendImm,
            0x10 => Self::RdmaRead,
            0x11 => Self::AtomicCs,
            0x12 => Self::AtomicFa,
            _ => return None,
        })
    }

    /// The code in the control segment's lowest byte.
    #[must_use]
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether the operation names remote memory.
    #[must_use]
    #[inline]
    pub const fn has_raddr(self) -> bool {
        !matches!(self, Self::Nop | Self::Send | Self::SendImm)
    }

    /// Whether the operation is an atomic.
    #[must_use]
    #[inline]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicCs | Self::AtomicFa)
    }

    /// Whether the operation delivers immediate data to the receiver.
    #[must_use]
    #[inline]
    pub const fn has_imm(self) -> bool {
        matches!(self, Self::RdmaWriteImm | Self::SendImm)
    }

    /// Whether the payload may be inside the WQE: only what flows towards the peer can be.
    #[must_use]
    #[inline]
    pub const fn may_inline(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::RdmaWrite | Self::RdmaWriteImm)
    }
}

/// Fence mode, completion request and solicited event: byte 11 of the control segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CtrlFlags(u8);

impl CtrlFlags {
    /// No completion, no fence.
    pub const NONE: Self = Self(0);
    /// Raise an event at a receiver that waits for solicited completions.
    pub const SOLICITED: Self = Self(1 << 1);
    /// Write a CQE when this WQE completes (`MLX5_WQE_CTRL_CQ_UPDATE`).
    pub const CQ_UPDATE: Self = Self(2 << 2);
    /// Wait for local memory operations such as UMR (`MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE`).
    pub const SMALL_FENCE: Self = Self(1 << 5);
    /// Start only after earlier READs and atomics completed (`MLX5_WQE_CTRL_FENCE`).
    pub const FENCE: Self = Self(4 << 5);

    /// Takes the byte as it is on the wire, unknown bits included.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The byte as it is on the wire.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether every bit of `other` is set.
    #[must_use]
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of both.
    #[must_use]
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl core::ops::BitOr for CtrlFlags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl core::ops::BitOrAssign for CtrlFlags {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        *self = self.union(other);
    }
}

/// One entry of a gather or scatter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sge {
    /// First byte, in the address space of the region that `lkey` names.
    pub addr: u64,
    /// Region that holds the bytes.
    pub lkey: Lkey,
    /// From 1 to [`ENTRY_BYTES_MAX`].
    pub len_bytes: u32,
}
