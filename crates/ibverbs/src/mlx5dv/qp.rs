//! Queue pair.

use core::{
    ffi::c_int,
    ptr::{self, NonNull},
};
use std::io;

use memory::sync::Arc;
use mlx5::{
    BlueFlame,
    device::{
        Device, DeviceQp, PortRows, QpMemory, QpRequest, RqMemory, RqRequest, SqMemory, WqeBlocks,
    },
};
use verbs::{Capabilities, CreateError, ModifyError, QpState, Qpn, Transition, Transport};

use super::{
    abi::{
        DcType, Described, DvObj, DvQp, DvQpInitAttr, DvRing, QPT_DRIVER, QpInitAttrEx, dc_type,
        dv_qp_flag, dv_qp_mask, obj, qp_mask, send_ops,
    },
    cq::{Cq, CqShared},
    shared::Shared,
    srq::{Srq, SrqShared},
};
use crate::{
    abi::{self, QpCap, mask, qpt},
    ah::PdShared,
    error::{cause_of, check, last_cause},
    modify,
};

const OBJECT: &str = "queue pair";

/// Bytes of a block of a send ring.
const BLOCK_BYTES: u32 = 64;

/// The operations of [`verbs::Op`] on a connection, but for atomics; the shortest request that has room for all of them
/// and one entry takes one block, with atomics and without.
const RC_OPS: u64 = send_ops::SEND
    | send_ops::SEND_WITH_IMM
    | send_ops::RDMA_WRITE
    | send_ops::RDMA_WRITE_WITH_IMM
    | send_ops::RDMA_READ;

/// Those that libmlx5 refuses of a device that has none.
const ATOMIC_OPS: u64 = send_ops::ATOMIC_CMP_AND_SWP | send_ops::ATOMIC_FETCH_AND_ADD;

/// A queue pair that the driver posts to.
#[derive(Debug)]
pub struct Qp {
    raw: NonNull<abi::Qp>,
    transport: Transport,
    /// As software last set it; of a DCT, whose state the kernel does not tell.
    state: QpState,
    /// Of a send queue.
    register: Option<BlueFlame>,
    is_destroyed: bool,
    device: Arc<Shared>,
    _kept: Kept,
}

/// What the kernel holds as long as the queue pair exists.
#[derive(Debug)]
struct Kept {
    _pd: Arc<PdShared>,
    _cqs: [Arc<CqShared>; 2],
    _srq: Option<Arc<SrqShared>>,
}

// SAFETY: objects of libibverbs belong to no thread.
unsafe impl Send for Qp {}
// SAFETY: through `&Qp` the library is asked for the state alone, for which it needs no lock.
unsafe impl Sync for Qp {}

/// Blocks that the library reserves per request of one entry: RC is 16 (control) + 16 (remote address) + 16
/// (atomic) + 16 bytes, and an address vector has 48.
fn blocks_per_request(transport: Transport) -> u32 {
    if transport == Transport::Rc { 1 } else { 2 }
}

/// What is asked of the library so that its rings are as large as `request` says.
fn cap<D: Device>(request: &QpRequest<'_, D>) -> QpCap {
    if request.transport == Transport::Dct {
        return QpCap::default();
    }
    let blocks = request.log_send_blocks.map_or(1, |log| 1u32 << log);
    let recv = request.recv.map(|RqRequest { log_entries, log_stride }| {
        (1u32 << log_entries, (1u32 << log_stride) / 16)
    });
    let (max_recv_wr, max_recv_sge) = recv.unwrap_or_default();
    QpCap {
        // A queue pair without any ring is none that the library makes.
        max_send_wr: (blocks / blocks_per_request(request.transport)).max(1),
        max_recv_wr,
        max_send_sge: 1,
        max_recv_sge,
        max_inline_data: 0,
    }
}

fn attributes<D: Device<Cq = Cq, Srq = Srq>>(
    pd: &PdShared,
    request: &QpRequest<'_, D>,
) -> (QpInitAttrEx, DvQpInitAttr) {
    let transport = request.transport;
    let has_atomics = pd.context.attributes.capabilities.contains(Capabilities::ATOMICS);
    let rc_ops = if has_atomics { RC_OPS | ATOMIC_OPS } else { RC_OPS };
    let (qp_type, ops, dc) = match transport {
        Transport::Rc => (qpt::RC, rc_ops, 0),
        Transport::Ud => (qpt::UD, send_ops::SEND | send_ops::SEND_WITH_IMM, 0),
        Transport::Dci => (QPT_DRIVER, rc_ops, dc_type::DCI),
        Transport::Dct => (QPT_DRIVER, 0, dc_type::DCT),
    };
    let mut attr = QpInitAttrEx {
        send_cq: request.send_cq.0.raw(),
        recv_cq: request.recv_cq.0.raw(),
        srq: request.srq.map_or(ptr::null_mut(), |srq| srq.0.raw()),
        cap: cap(request),
        qp_type,
        comp_mask: qp_mask::PD,
        pd: pd.raw(),
        ..QpInitAttrEx::EMPTY
    };
    if ops != 0 {
        attr.comp_mask |= qp_mask::SEND_OPS_FLAGS;
        attr.send_ops_flags = ops;
    }
    let mut dv = DvQpInitAttr::default();
    if !request.scatter_to_cqe {
        dv.comp_mask |= dv_qp_mask::CREATE_FLAGS;
        dv.create_flags = dv_qp_flag::DISABLE_SCATTER_TO_CQE;
    }
    if dc != 0 {
        let dct_access_key = if dc == dc_type::DCT { request.access_key.get() } else { 0 };
        dv.comp_mask |= dv_qp_mask::DC;
        dv.dc_type = DcType { dc_type: dc, dct_access_key };
    }
    (attr, dv)
}

/// Whether the library makes a queue pair like `request` whose requests have so many entries and inline bytes: it
/// knows the longest request of the adapter, and tells nobody.
pub(super) fn takes<D: Device<Cq = Cq, Srq = Srq>>(
    device: &Shared,
    pd: &PdShared,
    request: &QpRequest<'_, D>,
    sges: u8,
    inline_bytes: u16,
) -> bool {
    let (mut attr, mut dv) = attributes(pd, request);
    (attr.cap.max_send_sge, attr.cap.max_inline_data) = (sges.into(), inline_bytes.into());
    let (context, create) = (device.context.raw(), device.api.mlx5dv_create_qp);
    // SAFETY: domain and completion queues live until it is destroyed below.
    let raw = unsafe { create(context, &raw mut attr, &raw mut dv) };
    if !raw.is_null() {
        // SAFETY: made above, and used by nobody.
        let _ = unsafe { (device.context.api.ibv_destroy_qp)(raw) };
    }
    !raw.is_null()
}

impl Qp {
    pub(super) fn new<D: Device<Cq = Cq, Srq = Srq>>(
        device: &Arc<Shared>,
        pd: &Arc<PdShared>,
        request: &QpRequest<'_, D>,
    ) -> Result<(Self, QpMemory), CreateError> {
        Self::with_requests_of(device, pd, request, None)
    }

    /// The same for a queue that libmlx5 posts to, with this many entries and inline bytes per request.
    pub(super) fn with_requests_of<D: Device<Cq = Cq, Srq = Srq>>(
        device: &Arc<Shared>,
        pd: &Arc<PdShared>,
        request: &QpRequest<'_, D>,
        longest: Option<(u32, u32)>,
    ) -> Result<(Self, QpMemory), CreateError> {
        let (mut attr, mut dv) = attributes(pd, request);
        if let Some((sges, inline_bytes)) = longest {
            (attr.cap.max_send_sge, attr.cap.max_inline_data) = (sges, inline_bytes);
        }
        let (context, create) = (device.context.raw(), device.api.mlx5dv_create_qp);
        // SAFETY: domain, completion queues and shared queue live, and go into the same object.
        let raw = unsafe { create(context, &raw mut attr, &raw mut dv) };
        let failed = || CreateError::System { object: OBJECT, cause: last_cause() };
        let raw = NonNull::new(raw).ok_or_else(failed)?;
        let mut qp = Self {
            raw,
            transport: request.transport,
            state: QpState::Reset,
            register: None,
            is_destroyed: false,
            device: device.clone(),
            _kept: Kept {
                _pd: pd.clone(),
                _cqs: [request.send_cq.0.clone(), request.recv_cq.0.clone()],
                _srq: request.srq.map(|srq| srq.0.clone()),
            },
        };
        let memory = qp.memory(request)?;
        Ok((qp, memory))
    }

    pub(super) fn raw(&self) -> *mut abi::Qp {
        self.raw.as_ptr()
    }

    /// The rings that were asked for, as the library describes them. A DCT has none.
    fn memory<D: Device>(&mut self, request: &QpRequest<'_, D>) -> Result<QpMemory, CreateError> {
        if request.transport == Transport::Dct {
            return Ok(QpMemory { qpn: Qpn::default(), send: None, recv: None });
        }
        let mut dv = DvQp::EMPTY;
        let described = Described { object: self.raw(), out: &raw mut dv };
        self.device.describe(&mut DvObj { qp: described, ..DvObj::EMPTY }, obj::QP, OBJECT)?;
        let records = part(dv.dbrec, "doorbell record")?;
        let send = request.log_send_blocks.map(|_| send_memory(&dv.sq, records)).transpose()?;
        let recv = request.recv.map(|_| recv_memory(&dv.rq, records)).transpose()?;
        if send.is_some() {
            let register = part(dv.bf_reg.cast(), "doorbell register")?;
            // SAFETY: the library has just described it; it goes into this object, which keeps the device open.
            self.register =
                Some(unsafe { self.device.registers.at(register, dv.bf_size as usize) });
        }
        Ok(QpMemory { qpn: self.qpn(), send, recv })
    }

    fn change(&self, attr: &mut abi::QpAttr, mask: c_int) -> io::Result<()> {
        // SAFETY: the queue pair lives, and the library only reads the attributes.
        check(unsafe { (self.device.context.api.ibv_modify_qp)(self.raw(), attr, mask) })
    }

    /// Gives it back to the kernel, once.
    fn end(&mut self) {
        if !core::mem::replace(&mut self.is_destroyed, true) {
            // SAFETY: made by `mlx5dv_create_qp`, destroyed once. The driver does not read its rings any more,
            // or it has none.
            let _ = unsafe { (self.device.context.api.ibv_destroy_qp)(self.raw()) };
        }
    }
}

/// A pointer that the library has described.
fn part<T>(pointer: *mut T, what: &str) -> Result<NonNull<T>, CreateError> {
    NonNull::new(pointer).ok_or_else(|| {
        let cause = format!("libmlx5 describes no {what} of it");
        CreateError::System { object: OBJECT, cause }
    })
}

/// Base-2 logarithm of a size that the library describes.
fn log_of(size: u32, what: &str) -> Result<u8, CreateError> {
    if size.is_power_of_two() {
        return Ok(size.ilog2().to_le_bytes()[0]);
    }
    let cause = format!("libmlx5 has made {what} of {size}, which is no power of two");
    Err(CreateError::System { object: OBJECT, cause })
}

fn send_memory(ring: &DvRing, records: NonNull<u32>) -> Result<SqMemory, CreateError> {
    if ring.stride != BLOCK_BYTES {
        let cause = format!("libmlx5 has made a send ring of blocks of {} B", ring.stride);
        return Err(CreateError::System { object: OBJECT, cause });
    }
    Ok(SqMemory {
        ring: part(ring.buf.cast(), "send ring")?,
        log_blocks: log_of(ring.wqe_cnt, "a send ring")?,
        // The receive counter comes first (`MLX5_RCV_DBR`, `MLX5_SND_DBR`).
        dbrec: part(records.as_ptr().wrapping_add(1), "doorbell record")?,
    })
}

fn recv_memory(ring: &DvRing, records: NonNull<u32>) -> Result<RqMemory, CreateError> {
    Ok(RqMemory {
        ring: part(ring.buf.cast(), "receive ring")?,
        log_entries: log_of(ring.wqe_cnt, "a receive ring")?,
        log_stride: log_of(ring.stride, "receives")?,
        dbrec: records,
    })
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.end();
    }
}

impl DeviceQp for Qp {
    fn blueflame_bytes(&self) -> usize {
        self.register.as_ref().map_or(0, BlueFlame::bytes_max)
    }

    #[inline]
    fn ring(&mut self, ctrl: [u8; 8]) {
        if let Some(register) = &mut self.register {
            register.ring(ctrl);
        }
    }

    #[inline]
    fn blueflame(&mut self, wqe: &(impl WqeBlocks + ?Sized)) {
        if let Some(register) = &mut self.register {
            register.write(wqe);
        }
    }

    fn modify(&mut self, to: &Transition, rows: PortRows) -> Result<(), ModifyError> {
        let context = &self.device.context;
        let (mut attr, mask) = modify::attributes(context, rows, self.transport, self.state(), to);
        let refused =
            |error: io::Error| ModifyError::Device { to: to.target(), cause: cause_of(&error) };
        self.change(&mut attr, mask).map_err(refused)?;
        self.state = to.target();
        Ok(())
    }

    fn state(&self) -> QpState {
        if self.transport == Transport::Dct {
            return self.state;
        }
        modify::query_state(&self.device.context.api, self.raw)
    }

    fn destroy(&mut self) {
        if self.transport == Transport::Dct {
            self.end();
            return;
        }
        let state = modify::number(QpState::Reset);
        let mut attr = abi::QpAttr { qp_state: state, ..abi::QpAttr::default() };
        // A device that is gone completes nothing.
        let _ = self.change(&mut attr, mask::STATE);
    }

    fn qpn(&self) -> Qpn {
        if self.transport == Transport::Dct && self.state != QpState::Rtr {
            return Qpn::default();
        }
        // SAFETY: an object of the library, which lives, and which it changes in `ibv_modify_qp` alone.
        Qpn::from_low_bits(unsafe { self.raw.as_ref().qp_num })
    }
}
