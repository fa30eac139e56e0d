//! The part of libibverbs' ABI that is used here: structures, by the offsets of their fields, and numbers.
//!
//! Symbols are those of version `IBVERBS_1.1` (and `ibv_reg_mr_iova2`, `IBVERBS_1.8`), which the library has
//! kept since 2008 and 2020. What it only grows at the end is declared as far as it is used.
//!
//! Source: rdma-core 44.0 `infiniband/verbs.h` (Debian 12).

use core::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`: never looked into.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Device {
    _opaque: [u8; 0],
}

/// `struct ibv_context`, as far as the descriptor of events.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    pub(crate) ops: ContextOps,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
}

/// `struct ibv_context_ops`: what is called per request.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ContextOps {
    control: [usize; 11],
    pub(crate) poll_cq: Option<PollCq>,
    pub(crate) req_notify_cq: Option<ReqNotifyCq>,
    more_control: [usize; 7],
    pub(crate) post_srq_recv: Option<PostSrqRecv>,
    still_more_control: [usize; 4],
    pub(crate) post_send: Option<PostSend>,
    pub(crate) post_recv: Option<PostRecv>,
    rest: [usize; 5],
}

pub(crate) type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
pub(crate) type ReqNotifyCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
pub(crate) type PostSrqRecv =
    unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int;
pub(crate) type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
pub(crate) type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceAttr {
    pub(crate) fw_ver: [c_char; 64],
    node_guid: u64,
    sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    page_size_cap: u64,
    pub(crate) vendor_id: u32,
    vendor_part_id: u32,
    hw_ver: u32,
    max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    max_cq: c_int,
    pub(crate) max_cqe: c_int,
    max_mr: c_int,
    max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    max_ee_rd_atom: c_int,
    max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    unused: [c_int; 11],
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// `struct ibv_port_attr`, which has `active_speed_ex` in later versions alone: 52 bytes in 44. The function writes
/// the first 48 bytes in all.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PortAttr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
    pub(crate) active_speed_ex: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CompChannel {
    context: *mut Context,
    pub(crate) fd: c_int,
    refcnt: c_int,
}

/// `struct ibv_cq`, as far as its size.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    pub(crate) channel: *mut CompChannel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
}

/// `struct ibv_srq`, as far as its handle.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Srq {
    context: *mut Context,
    srq_context: *mut c_void,
    pd: *mut Pd,
    pub(crate) handle: u32,
}

/// `struct ibv_qp`, as far as its type.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_int,
    pub(crate) qp_type: c_int,
}

/// `struct ibv_mr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_pd`: never looked into.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pd {
    _opaque: [u8; 0],
}

/// `struct ibv_ah`: never looked into.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ah {
    _opaque: [u8; 0],
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

/// `struct ibv_srq_init_attr`, with its `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `union ibv_gid`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawGid(pub(crate) [u8; 16]);

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GlobalRoute {
    pub(crate) dgid: RawGid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AhAttr {
    pub(crate) grh: GlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `wr.rdma` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// `wr.atomic` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// `wr.ud` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ud {
    pub(crate) ah: *mut Ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// `wr` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Target {
    pub(crate) none: [u64; 4],
    pub(crate) rdma: Rdma,
    pub(crate) atomic: Atomic,
    pub(crate) ud: Ud,
}

/// `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: c_uint,
    pub(crate) imm_data: u32,
    pub(crate) target: Target,
    /// XRC, memory windows and TSO.
    pub(crate) rest: [u64; 7],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// `struct ibv_async_event`: the object or the port that it is about, and its type.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsyncEvent {
    pub(crate) element: *mut c_void,
    pub(crate) event_type: c_int,
}

/// `enum ibv_qp_type`.
pub(crate) mod qpt {
    pub(crate) const RC: i32 = 2;
    pub(crate) const UD: i32 = 4;
}

/// `enum ibv_wr_opcode`.
pub(crate) mod wr {
    pub(crate) const RDMA_WRITE: i32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: i32 = 1;
    pub(crate) const SEND: i32 = 2;
    pub(crate) const SEND_WITH_IMM: i32 = 3;
    pub(crate) const RDMA_READ: i32 = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: i32 = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: i32 = 6;
}

/// `enum ibv_send_flags`.
pub(crate) mod send {
    pub(crate) const FENCE: u32 = 1;
    pub(crate) const SIGNALED: u32 = 2;
    pub(crate) const SOLICITED: u32 = 4;
    pub(crate) const INLINE: u32 = 8;
}

/// `enum ibv_wc_opcode`.
pub(crate) mod wc {
    pub(crate) const SEND: i32 = 0;
    pub(crate) const RDMA_WRITE: i32 = 1;
    pub(crate) const RDMA_READ: i32 = 2;
    pub(crate) const COMP_SWAP: i32 = 3;
    pub(crate) const FETCH_ADD: i32 = 4;
    pub(crate) const RECV_RDMA_WITH_IMM: i32 = 129;
}

/// `enum ibv_wc_flags`.
pub(crate) mod wc_flags {
    pub(crate) const GRH: u32 = 1;
    pub(crate) const WITH_IMM: u32 = 2;
}

/// `enum ibv_wc_status`.
pub(crate) mod status {
    pub(crate) const SUCCESS: i32 = 0;
    pub(crate) const LOC_QP_OP_ERR: i32 = 2;
    pub(crate) const WR_FLUSH_ERR: i32 = 5;
}

/// `enum ibv_qp_attr_mask`.
pub(crate) mod mask {
    pub(crate) const STATE: i32 = 1;
    pub(crate) const ACCESS_FLAGS: i32 = 1 << 3;
    pub(crate) const PKEY_INDEX: i32 = 1 << 4;
    pub(crate) const PORT: i32 = 1 << 5;
    pub(crate) const QKEY: i32 = 1 << 6;
    pub(crate) const AV: i32 = 1 << 7;
    pub(crate) const PATH_MTU: i32 = 1 << 8;
    pub(crate) const TIMEOUT: i32 = 1 << 9;
    pub(crate) const RETRY_CNT: i32 = 1 << 10;
    pub(crate) const RNR_RETRY: i32 = 1 << 11;
    pub(crate) const RQ_PSN: i32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: i32 = 1 << 15;
    pub(crate) const SQ_PSN: i32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub(crate) const DEST_QPN: i32 = 1 << 20;
}

/// `enum ibv_event_type`.
pub(crate) mod event {
    pub(crate) const CQ_ERR: i32 = 0;
    pub(crate) const QP_FATAL: i32 = 1;
    pub(crate) const QP_REQ_ERR: i32 = 2;
    pub(crate) const QP_ACCESS_ERR: i32 = 3;
    pub(crate) const DEVICE_FATAL: i32 = 8;
    pub(crate) const PORT_ACTIVE: i32 = 9;
    pub(crate) const PORT_ERR: i32 = 10;
    pub(crate) const LID_CHANGE: i32 = 11;
    pub(crate) const PKEY_CHANGE: i32 = 12;
    pub(crate) const SRQ_ERR: i32 = 14;
    pub(crate) const QP_LAST_WQE_REACHED: i32 = 16;
    pub(crate) const CLIENT_REREGISTER: i32 = 17;
    pub(crate) const GID_CHANGE: i32 = 18;
}

/// `enum ibv_port_state`.
pub(crate) mod port_state {
    pub(crate) const DOWN: i32 = 1;
    pub(crate) const INIT: i32 = 2;
    pub(crate) const ARMED: i32 = 3;
    pub(crate) const ACTIVE: i32 = 4;
    pub(crate) const ACTIVE_DEFER: i32 = 5;
}

/// `IBV_LINK_LAYER_ETHERNET`.
pub(crate) const LINK_LAYER_ETHERNET: u8 = 2;
/// `IBV_QPF_GRH_REQUIRED` of a port.
pub(crate) const PORT_GRH_REQUIRED: u8 = 1;

/// Questions to a C compiler about the headers, where both are installed.
#[cfg(test)]
pub(crate) mod compiled {
    use std::{
        env, fs, process,
        process::{Command, Stdio},
    };

    /// Asserts that each expression of C has its value where `header` is included.
    pub(crate) fn check<'a>(header: &str, facts: impl Iterator<Item = (&'a str, u64)>) {
        let include = format!("#include <stddef.h>\n#include <{header}>\n");
        let asserts: String = facts
            .map(|(name, value)| {
                format!("_Static_assert(({name}) == ({value}), \"{name} is not {value}\");\n")
            })
            .collect();
        let thread = format!("{:?}", std::thread::current().id());
        let name = format!("copyrpc-ibverbs-{}-{thread}", process::id());
        let folder = env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let compile = |text: &str| {
            let source = folder.join("layout.c");
            fs::write(&source, text).unwrap();
            let mut cc = Command::new("cc");
            cc.args(["-std=gnu11", "-fsyntax-only"]).arg(&source).stderr(Stdio::piped()).output()
        };
        let has_headers = compile(&include).is_ok_and(|output| output.status.success());
        let compiled = has_headers.then(|| compile(&format!("{include}{asserts}")).unwrap());
        fs::remove_dir_all(&folder).unwrap();
        match compiled {
            Some(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
            None => {
                assert!(env::var("CI").as_deref() != Ok("true"), "install gcc and libibverbs-dev");
                eprintln!("skipped: no C compiler, or no {header}, which is in libibverbs-dev");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::mem::{align_of, offset_of, size_of};

    use super::*;

    /// What GCC 12 makes of rdma-core 44's `infiniband/verbs.h` on x86-64; all of it follows from the sizes of
    /// C's types alone, which are the same on AArch64.
    #[test]
    fn objects_are_laid_out_as_c_lays_them_out() {
        assert_eq!(offset_of!(Context, ops), 8);
        assert_eq!(offset_of!(Context, cmd_fd), 264);
        assert_eq!(offset_of!(Context, async_fd), 268);
        assert_eq!(offset_of!(Context, num_comp_vectors), 272);
        assert_eq!(size_of::<ContextOps>(), 256);
        assert_eq!(offset_of!(ContextOps, poll_cq), 88);
        assert_eq!(offset_of!(ContextOps, req_notify_cq), 96);
        assert_eq!(offset_of!(ContextOps, post_srq_recv), 160);
        assert_eq!(offset_of!(ContextOps, post_send), 200);
        assert_eq!(offset_of!(ContextOps, post_recv), 208);
        assert_eq!((size_of::<CompChannel>(), offset_of!(CompChannel, fd)), (16, 8));
        assert_eq!((offset_of!(Cq, handle), offset_of!(Cq, cqe)), (24, 28));
        assert_eq!(offset_of!(Srq, handle), 24);
        assert_eq!((offset_of!(Qp, srq), offset_of!(Qp, handle)), (40, 48));
        assert_eq!((offset_of!(Qp, qp_num), offset_of!(Qp, qp_type)), (52, 60));
        assert_eq!(size_of::<Mr>(), 48);
        assert_eq!((offset_of!(Mr, lkey), offset_of!(Mr, rkey)), (36, 40));
    }

    #[test]
    fn attributes_are_laid_out_as_c_lays_them_out() {
        assert_eq!((size_of::<DeviceAttr>(), align_of::<DeviceAttr>()), (232, 8));
        assert_eq!(offset_of!(DeviceAttr, max_mr_size), 80);
        assert_eq!(offset_of!(DeviceAttr, vendor_id), 96);
        assert_eq!(offset_of!(DeviceAttr, max_qp_wr), 112);
        assert_eq!(offset_of!(DeviceAttr, max_sge), 120);
        assert_eq!(offset_of!(DeviceAttr, max_sge_rd), 124);
        assert_eq!(offset_of!(DeviceAttr, max_cqe), 132);
        assert_eq!(offset_of!(DeviceAttr, max_qp_rd_atom), 144);
        assert_eq!(offset_of!(DeviceAttr, max_qp_init_rd_atom), 156);
        assert_eq!(offset_of!(DeviceAttr, atomic_cap), 164);
        assert_eq!(offset_of!(DeviceAttr, max_srq), 212);
        assert_eq!(offset_of!(DeviceAttr, max_srq_wr), 216);
        assert_eq!(offset_of!(DeviceAttr, max_srq_sge), 220);
        assert_eq!(offset_of!(DeviceAttr, phys_port_cnt), 227);
        assert_eq!((offset_of!(PortAttr, port_cap_flags2), align_of::<PortAttr>()), (48, 4));
        assert_eq!(offset_of!(PortAttr, active_mtu), 8);
        assert_eq!(offset_of!(PortAttr, gid_tbl_len), 12);
        assert_eq!(offset_of!(PortAttr, max_msg_sz), 20);
        assert_eq!(offset_of!(PortAttr, pkey_tbl_len), 32);
        assert_eq!(offset_of!(PortAttr, lid), 34);
        assert_eq!(offset_of!(PortAttr, link_layer), 46);
        assert_eq!(offset_of!(PortAttr, flags), 47);
        assert_eq!((size_of::<QpInitAttr>(), offset_of!(QpInitAttr, cap)), (64, 32));
        assert_eq!(offset_of!(QpInitAttr, qp_type), 52);
        assert_eq!(offset_of!(QpInitAttr, sq_sig_all), 56);
        assert_eq!((size_of::<SrqInitAttr>(), offset_of!(SrqInitAttr, max_wr)), (24, 8));
        assert_eq!((size_of::<GlobalRoute>(), offset_of!(GlobalRoute, sgid_index)), (24, 20));
        assert_eq!((size_of::<AhAttr>(), align_of::<AhAttr>()), (32, 8));
        assert_eq!((offset_of!(AhAttr, dlid), offset_of!(AhAttr, sl)), (24, 26));
        assert_eq!((offset_of!(AhAttr, is_global), offset_of!(AhAttr, port_num)), (29, 30));
        assert_eq!((size_of::<QpAttr>(), align_of::<QpAttr>()), (144, 8));
        assert_eq!((offset_of!(QpAttr, qkey), offset_of!(QpAttr, qp_access_flags)), (16, 32));
        assert_eq!((offset_of!(QpAttr, ah_attr), offset_of!(QpAttr, pkey_index)), (56, 120));
        assert_eq!(offset_of!(QpAttr, max_rd_atomic), 126);
        assert_eq!(offset_of!(QpAttr, max_dest_rd_atomic), 127);
        assert_eq!((offset_of!(QpAttr, min_rnr_timer), offset_of!(QpAttr, port_num)), (128, 129));
        assert_eq!((offset_of!(QpAttr, timeout), offset_of!(QpAttr, retry_cnt)), (130, 131));
        assert_eq!((offset_of!(QpAttr, rnr_retry), offset_of!(QpAttr, rate_limit)), (132, 136));
    }

    #[test]
    fn requests_and_completions_are_laid_out_as_c_lays_them_out() {
        assert_eq!((size_of::<Sge>(), offset_of!(Sge, lkey)), (16, 12));
        assert_eq!((size_of::<SendWr>(), align_of::<SendWr>()), (128, 8));
        assert_eq!((offset_of!(SendWr, sg_list), offset_of!(SendWr, num_sge)), (16, 24));
        assert_eq!((offset_of!(SendWr, opcode), offset_of!(SendWr, send_flags)), (28, 32));
        assert_eq!((offset_of!(SendWr, imm_data), offset_of!(SendWr, target)), (36, 40));
        assert_eq!((size_of::<Target>(), offset_of!(SendWr, rest)), (32, 72));
        assert_eq!(offset_of!(Rdma, rkey), 8);
        assert_eq!((offset_of!(Atomic, compare_add), offset_of!(Atomic, swap)), (8, 16));
        assert_eq!(offset_of!(Atomic, rkey), 24);
        assert_eq!((offset_of!(Ud, remote_qpn), offset_of!(Ud, remote_qkey)), (8, 12));
        assert_eq!((size_of::<RecvWr>(), offset_of!(RecvWr, num_sge)), (32, 24));
        assert_eq!((size_of::<Wc>(), align_of::<Wc>()), (48, 8));
        assert_eq!((offset_of!(Wc, status), offset_of!(Wc, opcode)), (8, 12));
        assert_eq!((offset_of!(Wc, vendor_err), offset_of!(Wc, byte_len)), (16, 20));
        assert_eq!((offset_of!(Wc, imm_data), offset_of!(Wc, qp_num)), (24, 28));
        assert_eq!((offset_of!(Wc, src_qp), offset_of!(Wc, wc_flags)), (32, 36));
        assert_eq!(offset_of!(Wc, slid), 42);
        assert_eq!((size_of::<AsyncEvent>(), offset_of!(AsyncEvent, event_type)), (16, 8));
    }
}
