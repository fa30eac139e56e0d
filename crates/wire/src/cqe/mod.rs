//! Completion-queue entries (CQEs): what a NIC writes when a work request has ended.
//!
//! ```text
//! byte   0          17       22    24          32        36   40   44        48
//!        ┌──────────┬────────┬─────┬───────────┬─────────┬────┬────┬─────────┬───────────┐
//!        │ reserved │ ml_path│ slid│ source QPN│ SRQN or │imm │    │ length  │ timestamp │
//!        │ or 32 B of payload                  │ user idx│    │    │         │ or        │
//!        └─────────────────────────────────────┴─────────┴────┴────┴─────────┴───────────┘
//!   …54 vendor syndrome, 55 syndrome            56           60         62         63
//!                                               ┌────────────┬──────────┬──────────┬────────┐
//!                                               │ opcode, QPN│ WQE index│ signature│ op_own │
//!                                               └────────────┴──────────┴──────────┴────────┘
//! ```
//!
//! `op_own` is `opcode << 4 | format << 2 | solicited << 1 | owner`. The NIC writes it last and
//! flips the owner bit on each lap of the queue: that is how software knows that an entry is new. A
//! 128-byte entry is 64 bytes of payload space followed by these 64 bytes.
//!
//! Source: rdma-core `providers/mlx5/mlx5dv.h`, `struct mlx5_cqe64` and `struct mlx5_err_cqe`.

mod plain;
mod syndrome;
mod view;

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, big_endian::*};

pub use plain::{PlainArrival, read_source};
pub use syndrome::Syndrome;
pub use view::{CqeView, ErrorCqe, RequesterCqe, ResponderCqe, ResponderKind, Scatter, Source};

/// Size of the entry, or of its second half in a queue of 128-byte entries.
pub const CQE_BYTES: usize = 64;

/// Value of `op_own` with which software fills a new queue, so that nothing in it is taken for a
/// completion: `MLX5_CQE_INVALID << 4`.
pub const OP_OWN_INVALID: u8 = OPCODE_INVALID << 4;

/// Most payload that fits in a 64-byte entry.
pub const INLINE_32_BYTES: usize = 32;

/// Most payload that fits in the first half of a 128-byte entry.
pub const INLINE_64_BYTES: usize = 64;

const OPCODE_REQ: u8 = 0;
const OPCODE_RESP_WR_IMM: u8 = 1;
const OPCODE_RESP_SEND: u8 = 2;
const OPCODE_RESP_SEND_IMM: u8 = 3;
const OPCODE_REQ_ERR: u8 = 13;
const OPCODE_RESP_ERR: u8 = 14;
const OPCODE_INVALID: u8 = 15;

const FORMAT_PLAIN: u8 = 0;
const FORMAT_INLINE_32: u8 = 1;
const FORMAT_INLINE_64: u8 = 2;
const FORMAT_COMPRESSED: u8 = 3;

const OWNER_BIT: u8 = 1;
const SOLICITED_BIT: u8 = 1 << 1;

/// Owner bit that marks entry `consumer_index` of a queue of `1 << entries_log2`, fewer than 2⁶⁴, as
/// written.
#[must_use]
#[inline]
pub const fn owner_bit(consumer_index: u32, entries_log2: u8) -> u8 {
    // Of 64 bits, since a queue of 2³² entries or more never completes its first lap of this index.
    (consumer_index as u64 >> (entries_log2 & 0x3f)).to_le_bytes()[0] & OWNER_BIT
}

/// Whether `op_own` says that entry `consumer_index` has been written and is software's to read.
#[must_use]
#[inline]
pub const fn is_written(op_own: u8, consumer_index: u32, entries_log2: u8) -> bool {
    op_own & OWNER_BIT == owner_bit(consumer_index, entries_log2) && op_own >> 4 != OPCODE_INVALID
}

/// Whether an entry with this `op_own` raises an event of a queue that was armed for solicited ones: it tells
/// of a solicited message, or of a failure.
#[must_use]
#[inline]
pub const fn is_solicited(op_own: u8) -> bool {
    op_own & SOLICITED_BIT != 0 || matches!(op_own >> 4, OPCODE_REQ_ERR | OPCODE_RESP_ERR)
}

/// Takes `op_own` out of the last of a CQE's eight [words](Cqe::to_words).
#[must_use]
#[inline]
pub const fn op_own_of_last_word(word: u64) -> u8 {
    word.to_ne_bytes()[7]
}

/// One 64-byte completion (`struct mlx5_cqe64`, or `struct mlx5_err_cqe`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct Cqe {
    head: Head,
    /// `[23:0]` user index, or SRQN with CQE version 0.
    srqn_uidx: U32,
    imm: U32,
    app: [u8; 4],
    byte_cnt: U32,
    /// An error CQE has its two syndromes in the last two bytes.
    timestamp: [u8; 8],
    /// `send opcode << 24 | QPN`.
    sop_qpn: U32,
    wqe_counter: U16,
    signature: u8,
    op_own: u8,
}

/// First half of a CQE: where a message came from, or up to 32 bytes of the message itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    reserved0: [u8; 17],
    ml_path: u8,
    reserved18: [u8; 4],
    slid: U16,
    /// `GRH << 28 | service level << 24 | source QPN`.
    flags_rqpn: U32,
    reserved28: [u8; 4],
}

const _: () = {
    assert!(size_of::<Cqe>() == CQE_BYTES && size_of::<Head>() == INLINE_32_BYTES);
    assert!(offset_of!(Head, ml_path) == 17 && offset_of!(Head, slid) == 22);
    assert!(offset_of!(Head, flags_rqpn) == 24);
    assert!(offset_of!(Cqe, head) == 0 && offset_of!(Cqe, srqn_uidx) == 32);
    assert!(offset_of!(Cqe, imm) == 36 && offset_of!(Cqe, byte_cnt) == 44);
    assert!(offset_of!(Cqe, timestamp) == 48 && offset_of!(Cqe, sop_qpn) == 56);
    assert!(offset_of!(Cqe, wqe_counter) == 60 && offset_of!(Cqe, signature) == 62);
    assert!(offset_of!(Cqe, op_own) == 63);
};

/// Why a CQE cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CqeError {
    /// Nothing has been written to this entry yet.
    #[error("the entry has not been written")]
    NotWritten,
    /// A block of compressed entries, on a queue for which compression was not asked.
    #[error("compressed CQE on a queue created without compression")]
    Compressed,
    /// A completion of a kind that this crate's operations cannot cause.
    #[error("unsupported CQE opcode {0:#03x}")]
    UnsupportedOpcode(u8),
    /// A completed send WQE of a kind that this crate does not write.
    #[error("CQE for unknown send opcode {0:#04x}")]
    UnknownSendOpcode(u8),
    /// More payload than the place that is said to hold it.
    #[error("CQE claims {byte_cnt} B of payload in {room_bytes} B")]
    InlineTooLong {
        /// Length of the message.
        byte_cnt: u32,
        /// Size of the place.
        room_bytes: usize,
    },
}

impl Cqe {
    /// The entry as software leaves it before the NIC's first lap.
    pub const INVALID: Self = {
        let mut bytes = [0; CQE_BYTES];
        bytes[CQE_BYTES - 1] = OP_OWN_INVALID;
        zerocopy::transmute!(bytes)
    };

    /// Takes 64 bytes that were copied out of a queue.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: [u8; CQE_BYTES]) -> Self {
        zerocopy::transmute!(bytes)
    }

    /// The entry's bytes, as the queue holds them.
    #[must_use]
    #[inline]
    pub fn to_bytes(self) -> [u8; CQE_BYTES] {
        zerocopy::transmute!(self)
    }

    /// Takes eight native words that were loaded from a queue.
    #[must_use]
    #[inline]
    pub fn from_words(words: [u64; 8]) -> Self {
        zerocopy::transmute!(words)
    }

    /// The entry as native words: store words 0 to 6 in any order and then word 7, which holds
    /// `op_own`, with release ordering.
    #[must_use]
    #[inline]
    pub fn to_words(self) -> [u64; 8] {
        zerocopy::transmute!(self)
    }

    /// The byte that says what the entry is, and whose.
    #[must_use]
    #[inline]
    pub const fn op_own(&self) -> u8 {
        self.op_own
    }
}

/// One 128-byte completion: payload space, then the entry proper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Cqe128 {
    /// Payload, where the entry is [`Scatter::Preceding64`]; otherwise undefined.
    pub payload: [u8; INLINE_64_BYTES],
    /// The entry.
    pub cqe: Cqe,
}

const _: () = assert!(size_of::<Cqe128>() == 128 && offset_of!(Cqe128, cqe) == 64);
