//! Segments of a WQE as plain big-endian structs, their sizes and offsets checked at compile time.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, big_endian::*};

use super::{END_OF_LIST, ENTRY_BYTES_MAX, INLINE_FLAG, OCTOWORD_BYTES, Sge};
use crate::ids::Lkey;

/// First segment of every send WQE (`struct mlx5_wqe_ctrl_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CtrlSeg {
    /// `opmod << 24 | index << 8 | opcode`; the index counts WQEBBs and wraps at 2¹⁶.
    pub opmod_idx_opcode: U32,
    /// `qpn << 8 | length in octowords`.
    pub qpn_ds: U32,
    /// Zero unless the queue pair was created with signatures.
    pub signature: u8,
    /// Stream of a DC initiator that has several, else zero.
    pub dci_stream: U16,
    /// [`CtrlFlags`](super::CtrlFlags).
    pub fm_ce_se: u8,
    /// Immediate data, or zero.
    pub imm: U32,
}

/// Remote address of an RDMA READ, WRITE or atomic (`struct mlx5_wqe_raddr_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RaddrSeg {
    /// First byte, in the peer's address space.
    pub addr: U64,
    /// The peer's region.
    pub rkey: U32,
    /// Zero.
    pub reserved: U32,
}

/// Operands of an atomic (`struct mlx5_wqe_atomic_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AtomicSeg {
    /// New value of a compare-and-swap, addend of a fetch-and-add.
    pub swap_or_add: U64,
    /// Expected value of a compare-and-swap, else zero.
    pub compare: U64,
}

/// One gather or scatter entry (`struct mlx5_wqe_data_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DataSeg {
    /// Zero means 2³¹. With bit 31 set this is not a data segment but the header of inline payload.
    pub len_bytes: U32,
    /// The local region.
    pub lkey: U32,
    /// First byte.
    pub addr: U64,
}

/// First octoword of an address vector: all of it where no extension follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AvBaseSeg {
    /// DC access key, or `qkey << 32`.
    pub key: U64,
    /// `extended << 31 | destination QPN or DCTN`.
    pub dqp_dct: U32,
    /// `static rate << 4 | service level`.
    pub stat_rate_sl: u8,
    /// `force loopback << 7 | source path bits`.
    pub fl_mlid: u8,
    /// Destination LID; UDP source port on RoCE v2.
    pub rlid: U16,
}

/// Octowords two and three of an address vector: what Ethernet and global routes need.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AvExtensionSeg {
    /// Zero.
    pub reserved: [u8; 4],
    /// Destination Ethernet address.
    pub rmac: [u8; 6],
    /// Traffic class.
    pub tclass: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// `GRH present << 30 | source GID index << 20 | flow label`.
    pub grh_gid_fl: U32,
    /// Destination GID.
    pub rgid: [u8; 16],
}

/// Address vector with its extension (`struct mlx5_wqe_av`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AvSeg {
    /// Key, destination and LID.
    pub base: AvBaseSeg,
    /// Ethernet address and GID.
    pub extension: AvExtensionSeg,
}

/// First segment of a shared receive queue's WQE (`struct mlx5_wqe_srq_next_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SrqNextSeg {
    /// Zero.
    pub reserved0: [u8; 2],
    /// WQE that the NIC takes after this one.
    pub next_wqe_index: U16,
    /// Zero unless the queue was created with signatures.
    pub signature: u8,
    /// Zero.
    pub reserved1: [u8; 11],
}

const _: () = {
    assert!(size_of::<CtrlSeg>() == OCTOWORD_BYTES);
    assert!(offset_of!(CtrlSeg, qpn_ds) == 4 && offset_of!(CtrlSeg, signature) == 8);
    assert!(offset_of!(CtrlSeg, dci_stream) == 9 && offset_of!(CtrlSeg, fm_ce_se) == 11);
    assert!(offset_of!(CtrlSeg, imm) == 12);
    assert!(size_of::<RaddrSeg>() == OCTOWORD_BYTES && offset_of!(RaddrSeg, rkey) == 8);
    assert!(size_of::<AtomicSeg>() == OCTOWORD_BYTES && offset_of!(AtomicSeg, compare) == 8);
    assert!(size_of::<DataSeg>() == OCTOWORD_BYTES);
    assert!(offset_of!(DataSeg, lkey) == 4 && offset_of!(DataSeg, addr) == 8);
    assert!(size_of::<AvBaseSeg>() == OCTOWORD_BYTES && offset_of!(AvBaseSeg, dqp_dct) == 8);
    assert!(offset_of!(AvBaseSeg, fl_mlid) == 13 && offset_of!(AvBaseSeg, rlid) == 14);
    assert!(size_of::<AvSeg>() == 3 * OCTOWORD_BYTES && offset_of!(AvSeg, extension) == 16);
    // The offsets below count from the start of the extension, at byte 16 of the vector.
    assert!(offset_of!(AvExtensionSeg, rmac) == 20 - 16);
    assert!(offset_of!(AvExtensionSeg, tclass) == 26 - 16);
    assert!(offset_of!(AvExtensionSeg, hop_limit) == 27 - 16);
    assert!(offset_of!(AvExtensionSeg, grh_gid_fl) == 28 - 16);
    assert!(offset_of!(AvExtensionSeg, rgid) == 32 - 16);
    assert!(size_of::<SrqNextSeg>() == OCTOWORD_BYTES);
    assert!(offset_of!(SrqNextSeg, next_wqe_index) == 2 && offset_of!(SrqNextSeg, signature) == 4);
};

impl DataSeg {
    /// The segment that ends the list of a receive WQE shorter than its stride.
    pub(super) const TERMINATOR: Self =
        Self { len_bytes: U32::ZERO, lkey: U32::new(END_OF_LIST.get()), addr: U64::ZERO };

    /// Lays out `sge`.
    ///
    /// # Panics
    ///
    /// If the length is zero, which the NIC would take for 2 GiB, or exceeds 2 GiB.
    #[inline]
    pub(super) fn new(sge: Sge) -> Self {
        let len_bytes = sge.len_bytes;
        assert!(len_bytes > 0 && len_bytes <= ENTRY_BYTES_MAX, "entry of {len_bytes} B");
        Self {
            len_bytes: (len_bytes & !INLINE_FLAG).into(),
            lkey: sge.lkey.get().into(),
            addr: sge.addr.into(),
        }
    }

    /// The entry, unless bit 31 says that this is the header of inline payload.
    #[inline]
    pub(super) fn sge(&self) -> Option<Sge> {
        let len_bytes = match self.len_bytes.get() {
            0 => ENTRY_BYTES_MAX,
            len_bytes if len_bytes & INLINE_FLAG == 0 => len_bytes,
            _ => return None,
        };
        Some(Sge { addr: self.addr.get(), lkey: Lkey::new(self.lkey.get()), len_bytes })
    }
}
