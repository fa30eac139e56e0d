//! The part of libmlx5's direct verbs that is used here, and what of libibverbs nothing else needs: structures, by
//! the offsets of their fields, and numbers.
//!
//! Symbols are those of versions `MLX5_1.1` (`mlx5dv_create_cq`), `1.2` (`mlx5dv_init_obj`), `1.3`
//! (`mlx5dv_create_qp`) and `1.8` (`mlx5dv_is_supported`).
//!
//! Source: rdma-core 44.0 `infiniband/mlx5dv.h`, `infiniband/verbs.h` (Debian 12).

use core::{
    ffi::{c_int, c_void},
    ptr,
};

use crate::abi::{Ah, CompChannel, Cq, Pd, Qp, QpCap, Srq};

/// `struct ibv_qp_init_attr_ex`
#[repr(C)]
#[derive(Debug)]
pub(super) struct QpInitAttrEx {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut Srq,
    pub(super) cap: QpCap,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
    pub(super) comp_mask: u32,
    pub(super) pd: *mut Pd,
    pub(super) xrcd: *mut c_void,
    pub(super) create_flags: u32,
    pub(super) max_tso_header: u16,
    pub(super) rwq_ind_tbl: *mut c_void,
    /// `struct ibv_rx_hash_conf`
    pub(super) rx_hash_conf: [u64; 3],
    pub(super) source_qpn: u32,
    pub(super) send_ops_flags: u64,
}

impl QpInitAttrEx {
    /// Nothing is asked for.
    pub(super) const EMPTY: Self = Self {
        qp_context: ptr::null_mut(),
        send_cq: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        cap: QpCap {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline_data: 0,
        },
        qp_type: 0,
        sq_sig_all: 0,
        comp_mask: 0,
        pd: ptr::null_mut(),
        xrcd: ptr::null_mut(),
        create_flags: 0,
        max_tso_header: 0,
        rwq_ind_tbl: ptr::null_mut(),
        rx_hash_conf: [0; 3],
        source_qpn: 0,
        send_ops_flags: 0,
    };
}

/// `struct ibv_cq_init_attr_ex`
#[repr(C)]
#[derive(Debug)]
pub(super) struct CqInitAttrEx {
    pub(super) cqe: u32,
    pub(super) cq_context: *mut c_void,
    pub(super) channel: *mut CompChannel,
    pub(super) comp_vector: u32,
    pub(super) wc_flags: u64,
    pub(super) comp_mask: u32,
    pub(super) flags: u32,
    pub(super) parent_domain: *mut Pd,
}

/// `struct mlx5dv_cq_init_attr`
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct DvCqInitAttr {
    pub(super) comp_mask: u64,
    pub(super) cqe_comp_res_format: u8,
    pub(super) flags: u32,
    pub(super) cqe_size: u16,
}

/// `struct mlx5dv_qp_init_attr`, with its `struct mlx5dv_dc_init_attr`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct DvQpInitAttr {
    pub(super) comp_mask: u64,
    pub(super) create_flags: u32,
    pub(super) dc_type: DcType,
    pub(super) send_ops_flags: u64,
}

/// `struct mlx5dv_dc_init_attr`
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct DcType {
    pub(super) dc_type: c_int,
    pub(super) dct_access_key: u64,
}

/// A queue in a `struct mlx5dv_qp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct DvRing {
    pub(super) buf: *mut c_void,
    pub(super) wqe_cnt: u32,
    pub(super) stride: u32,
}

impl DvRing {
    const EMPTY: Self = Self { buf: ptr::null_mut(), wqe_cnt: 0, stride: 0 };
}

/// `struct mlx5dv_qp`
#[repr(C)]
#[derive(Debug)]
pub(super) struct DvQp {
    pub(super) dbrec: *mut u32,
    pub(super) sq: DvRing,
    pub(super) rq: DvRing,
    pub(super) bf_reg: *mut c_void,
    pub(super) bf_size: u32,
    pub(super) comp_mask: u64,
    pub(super) uar_mmap_offset: i64,
    pub(super) numbers: [u32; 4],
    pub(super) tir_icm_addr: u64,
}

impl DvQp {
    pub(super) const EMPTY: Self = Self {
        dbrec: ptr::null_mut(),
        sq: DvRing::EMPTY,
        rq: DvRing::EMPTY,
        bf_reg: ptr::null_mut(),
        bf_size: 0,
        comp_mask: 0,
        uar_mmap_offset: 0,
        numbers: [0; 4],
        tir_icm_addr: 0,
    };
}

/// `struct mlx5dv_cq`
#[repr(C)]
#[derive(Debug)]
pub(super) struct DvCq {
    pub(super) buf: *mut c_void,
    pub(super) dbrec: *mut u32,
    pub(super) cqe_cnt: u32,
    pub(super) cqe_size: u32,
    pub(super) cq_uar: *mut c_void,
    pub(super) cqn: u32,
    pub(super) comp_mask: u64,
}

impl DvCq {
    pub(super) const EMPTY: Self = Self {
        buf: ptr::null_mut(),
        dbrec: ptr::null_mut(),
        cqe_cnt: 0,
        cqe_size: 0,
        cq_uar: ptr::null_mut(),
        cqn: 0,
        comp_mask: 0,
    };
}

/// `struct mlx5dv_srq`
#[repr(C)]
#[derive(Debug)]
pub(super) struct DvSrq {
    pub(super) buf: *mut c_void,
    pub(super) dbrec: *mut u32,
    pub(super) stride: u32,
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) comp_mask: u64,
    pub(super) srqn: u32,
}

impl DvSrq {
    /// Asks for the number, too.
    pub(super) const NUMBERED: Self = Self {
        buf: ptr::null_mut(),
        dbrec: ptr::null_mut(),
        stride: 0,
        head: 0,
        tail: 0,
        comp_mask: srq_mask::SRQN,
        srqn: 0,
    };
}

/// `struct mlx5dv_ah`
#[repr(C)]
#[derive(Debug)]
pub(super) struct DvAh {
    pub(super) av: *mut WqeAv,
    pub(super) comp_mask: u64,
}

/// `struct mlx5_wqe_av`, as far as the next hop.
#[repr(C)]
#[derive(Debug)]
pub(super) struct WqeAv {
    key: [u8; 8],
    destination: [u8; 4],
    path: [u8; 4],
    reserved: [u8; 4],
    pub(super) rmac: [u8; 6],
}

/// An object and where it is to be described, in a `struct mlx5dv_obj`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Described<I, O> {
    pub(super) object: *mut I,
    pub(super) out: *mut O,
}

impl<I, O> Described<I, O> {
    const NONE: Self = Self { object: ptr::null_mut(), out: ptr::null_mut() };
}

/// `struct mlx5dv_obj`
#[repr(C)]
#[derive(Debug)]
pub(super) struct DvObj {
    pub(super) qp: Described<Qp, DvQp>,
    pub(super) cq: Described<Cq, DvCq>,
    pub(super) srq: Described<Srq, DvSrq>,
    pub(super) rwq: Described<c_void, c_void>,
    pub(super) dm: Described<c_void, c_void>,
    pub(super) ah: Described<Ah, DvAh>,
    pub(super) pd: Described<c_void, c_void>,
}

impl DvObj {
    pub(super) const EMPTY: Self = Self {
        qp: Described::NONE,
        cq: Described::NONE,
        srq: Described::NONE,
        rwq: Described::NONE,
        dm: Described::NONE,
        ah: Described::NONE,
        pd: Described::NONE,
    };
}

/// `enum mlx5dv_obj_type`
pub(super) mod obj {
    pub(crate) const QP: u64 = 1;
    pub(crate) const CQ: u64 = 1 << 1;
    pub(crate) const SRQ: u64 = 1 << 2;
    pub(crate) const AH: u64 = 1 << 5;
}

/// `enum mlx5dv_srq_comp_mask`
pub(super) mod srq_mask {
    pub(crate) const SRQN: u64 = 1;
}

/// `enum mlx5dv_cq_init_attr_mask`
pub(super) mod cq_mask {
    pub(crate) const CQE_SIZE: u64 = 1 << 2;
}

/// `enum mlx5dv_qp_init_attr_mask`
pub(super) mod dv_qp_mask {
    pub(crate) const CREATE_FLAGS: u64 = 1;
    pub(crate) const DC: u64 = 1 << 1;
}

/// `enum mlx5dv_qp_create_flags`
pub(super) mod dv_qp_flag {
    pub(crate) const DISABLE_SCATTER_TO_CQE: u32 = 1 << 3;
}

/// `enum mlx5dv_dc_type`
pub(super) mod dc_type {
    pub(crate) const DCT: i32 = 1;
    pub(crate) const DCI: i32 = 2;
}

/// `IBV_QPT_DRIVER`
pub(super) const QPT_DRIVER: i32 = 0xff;

/// `enum ibv_qp_init_attr_mask`
pub(super) mod qp_mask {
    pub(crate) const PD: u32 = 1;
    pub(crate) const SEND_OPS_FLAGS: u32 = 1 << 6;
}

/// `enum ibv_qp_create_send_ops_flags`
pub(super) mod send_ops {
    pub(crate) const RDMA_WRITE: u64 = 1;
    pub(crate) const RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub(crate) const SEND: u64 = 1 << 2;
    pub(crate) const SEND_WITH_IMM: u64 = 1 << 3;
    pub(crate) const RDMA_READ: u64 = 1 << 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;
    use crate::abi::compiled;

    /// Sizes and offsets, as C calls them.
    fn layouts() -> Vec<(&'static str, usize)> {
        vec![
            ("sizeof(struct ibv_qp_init_attr_ex)", size_of::<QpInitAttrEx>()),
            (
                "offsetof(struct ibv_qp_init_attr_ex, comp_mask)",
                offset_of!(QpInitAttrEx, comp_mask),
            ),
            ("offsetof(struct ibv_qp_init_attr_ex, pd)", offset_of!(QpInitAttrEx, pd)),
            (
                "offsetof(struct ibv_qp_init_attr_ex, send_ops_flags)",
                offset_of!(QpInitAttrEx, send_ops_flags),
            ),
            ("sizeof(struct ibv_cq_init_attr_ex)", size_of::<CqInitAttrEx>()),
            ("offsetof(struct ibv_cq_init_attr_ex, channel)", offset_of!(CqInitAttrEx, channel)),
            ("sizeof(struct mlx5dv_cq_init_attr)", size_of::<DvCqInitAttr>()),
            ("offsetof(struct mlx5dv_cq_init_attr, cqe_size)", offset_of!(DvCqInitAttr, cqe_size)),
            ("sizeof(struct mlx5dv_qp_init_attr)", size_of::<DvQpInitAttr>()),
            (
                "offsetof(struct mlx5dv_qp_init_attr, dc_init_attr)",
                offset_of!(DvQpInitAttr, dc_type),
            ),
            ("offsetof(struct mlx5dv_dc_init_attr, dct_access_key)", {
                offset_of!(DcType, dct_access_key)
            }),
            ("sizeof(struct mlx5dv_qp)", size_of::<DvQp>()),
            ("offsetof(struct mlx5dv_qp, sq)", offset_of!(DvQp, sq)),
            ("offsetof(struct mlx5dv_qp, rq)", offset_of!(DvQp, rq)),
            ("offsetof(struct mlx5dv_qp, bf.reg)", offset_of!(DvQp, bf_reg)),
            ("offsetof(struct mlx5dv_qp, bf.size)", offset_of!(DvQp, bf_size)),
            ("offsetof(struct mlx5dv_qp, comp_mask)", offset_of!(DvQp, comp_mask)),
            ("sizeof(struct mlx5dv_cq)", size_of::<DvCq>()),
            ("offsetof(struct mlx5dv_cq, cq_uar)", offset_of!(DvCq, cq_uar)),
            ("offsetof(struct mlx5dv_cq, cqn)", offset_of!(DvCq, cqn)),
            ("sizeof(struct mlx5dv_srq)", size_of::<DvSrq>()),
            ("offsetof(struct mlx5dv_srq, comp_mask)", offset_of!(DvSrq, comp_mask)),
            ("offsetof(struct mlx5dv_srq, srqn)", offset_of!(DvSrq, srqn)),
            ("sizeof(struct mlx5dv_ah)", size_of::<DvAh>()),
            ("offsetof(struct mlx5_wqe_av, rmac)", offset_of!(WqeAv, rmac)),
            ("sizeof(struct mlx5dv_obj)", size_of::<DvObj>()),
            ("offsetof(struct mlx5dv_obj, srq)", offset_of!(DvObj, srq)),
            ("offsetof(struct mlx5dv_obj, ah)", offset_of!(DvObj, ah)),
        ]
    }

    fn numbers() -> Vec<(&'static str, u64)> {
        vec![
            ("MLX5DV_OBJ_QP", obj::QP),
            ("MLX5DV_OBJ_CQ", obj::CQ),
            ("MLX5DV_OBJ_SRQ", obj::SRQ),
            ("MLX5DV_OBJ_AH", obj::AH),
            ("MLX5DV_SRQ_MASK_SRQN", srq_mask::SRQN),
            ("MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE", cq_mask::CQE_SIZE),
            ("MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS", dv_qp_mask::CREATE_FLAGS),
            ("MLX5DV_QP_INIT_ATTR_MASK_DC", dv_qp_mask::DC),
            ("MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE", dv_qp_flag::DISABLE_SCATTER_TO_CQE.into()),
            ("MLX5DV_DCTYPE_DCT", dc_type::DCT.unsigned_abs().into()),
            ("MLX5DV_DCTYPE_DCI", dc_type::DCI.unsigned_abs().into()),
            ("IBV_QPT_DRIVER", QPT_DRIVER.unsigned_abs().into()),
            ("IBV_QP_INIT_ATTR_PD", qp_mask::PD.into()),
            ("IBV_QP_INIT_ATTR_SEND_OPS_FLAGS", qp_mask::SEND_OPS_FLAGS.into()),
            ("IBV_QP_EX_WITH_RDMA_WRITE", send_ops::RDMA_WRITE),
            ("IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM", send_ops::RDMA_WRITE_WITH_IMM),
            ("IBV_QP_EX_WITH_SEND", send_ops::SEND),
            ("IBV_QP_EX_WITH_SEND_WITH_IMM", send_ops::SEND_WITH_IMM),
            ("IBV_QP_EX_WITH_RDMA_READ", send_ops::RDMA_READ),
            ("IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP", send_ops::ATOMIC_CMP_AND_SWP),
            ("IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD", send_ops::ATOMIC_FETCH_AND_ADD),
        ]
    }

    /// What GCC 12 makes of rdma-core 44's headers on x86-64.
    #[test]
    fn structures_are_laid_out_as_c_lays_them_out() {
        let offsets: Vec<usize> = layouts().into_iter().map(|(_, value)| value).collect();
        let of_c = [
            136, 60, 64, 128, 56, 16, 24, 16, 40, 16, 8, 96, 8, 24, 40, 48, 56, 48, 24, 32, 48, 32,
            40, 16, 20, 112, 32, 80,
        ];
        assert_eq!(offsets, of_c);
    }

    #[test]
    fn a_c_compiler_agrees_where_the_headers_are_installed() {
        let layouts = layouts().into_iter().map(|(name, value)| (name, value as u64));
        compiled::check("infiniband/mlx5dv.h", layouts.chain(numbers()));
    }
}
