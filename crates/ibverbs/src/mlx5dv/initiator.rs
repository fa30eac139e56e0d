//! A DC initiator whose requests libmlx5 writes, for comparisons with those that the driver writes.
//!
//! `ibv_post_send` cannot name a DC target, so requests are made by the extended interface: `ibv_wr_*` and
//! `mlx5dv_wr_set_dc_addr`.
//!
//! Source: rdma-core 44.0 `infiniband/verbs.h`, `infiniband/mlx5dv.h`; `ibv_wr_post(3)`, `mlx5dv_wr_post(3)`.

use core::{
    ffi::{c_int, c_void},
    mem::offset_of,
    ptr,
};

use mlx5::device::{CqRequest, Device as _, DeviceQp as _, QpMemory, QpRequest, SqMemory};
use verbs::{
    AddressVector, CreateError, DcKey, Op, Payload, Qpn, RemoteSlice, SendFlags, Transition,
    Transport,
};

use super::{
    device::Device,
    qp::Qp,
    rings::{Ring, ring},
};
use crate::{
    abi::{self, Ah},
    ah::Pd,
};

os::dylib::functions! {
    /// What libibverbs has beside the functions that everybody needs.
    struct Verbs of "libibverbs.so.1" {
        fn ibv_qp_to_qp_ex(*mut abi::Qp) -> *mut QpEx;
    }
}

os::dylib::functions! {
    /// What libmlx5 has beside them.
    struct Direct of "libmlx5.so.1" {
        fn mlx5dv_qp_ex_from_ibv_qp_ex(*mut QpEx) -> *mut DvQpEx;
    }
}

type Named = unsafe extern "C" fn(*mut QpEx, u32, u64);
type Plain = unsafe extern "C" fn(*mut QpEx);

/// `struct ibv_data_buf`
#[repr(C)]
struct DataBuf {
    addr: *const u8,
    length: usize,
}

/// `struct ibv_qp_ex`; a function that a queue pair lacks is null.
#[repr(C)]
#[derive(Clone, Copy)]
struct QpEx {
    /// `struct ibv_qp`
    base: [u64; 20],
    comp_mask: u64,
    wr_id: u64,
    wr_flags: u32,
    atomic_cmp_swp: Option<unsafe extern "C" fn(*mut Self, u32, u64, u64, u64)>,
    atomic_fetch_add: Option<unsafe extern "C" fn(*mut Self, u32, u64, u64)>,
    bind_mw: *const c_void,
    local_inv: *const c_void,
    rdma_read: Option<Named>,
    rdma_write: Option<Named>,
    rdma_write_imm: Option<unsafe extern "C" fn(*mut Self, u32, u64, u32)>,
    send: Option<Plain>,
    send_imm: Option<unsafe extern "C" fn(*mut Self, u32)>,
    others: [*const c_void; 5],
    set_inline_data_list: Option<unsafe extern "C" fn(*mut Self, usize, *const DataBuf)>,
    set_sge: *const c_void,
    set_sge_list: Option<unsafe extern "C" fn(*mut Self, usize, *const abi::Sge)>,
    start: Option<Plain>,
    complete: Option<unsafe extern "C" fn(*mut Self) -> c_int>,
}

/// The beginning of `struct mlx5dv_qp_ex`
#[repr(C)]
struct DvQpEx {
    comp_mask: u64,
    set_dc_addr: Option<unsafe extern "C" fn(*mut Self, *mut Ah, u32, u64)>,
}

/// Entries and inline bytes of a request.
const LONGEST: (u32, u32) = (4, 200);
/// Base-2 logarithm of its blocks.
const LOG_BLOCKS: u8 = 8;

/// A DC initiator that posts by libmlx5.
#[derive(Debug)]
pub struct LibraryInitiator {
    qp: Qp,
    memory: SqMemory,
    pd: Pd,
    extended: ptr::NonNull<QpEx>,
    direct: ptr::NonNull<DvQpEx>,
    /// Blocks that were written so far.
    next: u16,
}

/// Where a request of an initiator goes.
#[derive(Clone, Copy, Debug)]
pub struct DcPeer {
    /// The port of the target.
    pub address: AddressVector,
    /// Its number.
    pub dctn: Qpn,
    /// Its key.
    pub key: DcKey,
}

fn failed(cause: impl ToString) -> CreateError {
    CreateError::System { object: "DC initiator", cause: cause.to_string() }
}

impl LibraryInitiator {
    /// An initiator that `steps` bring to RTS.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    pub fn new(device: &Device, steps: &[Transition]) -> Result<Self, CreateError> {
        let pd = device.alloc_pd()?;
        let (cq, _) =
            device.create_cq(&CqRequest { log_entries: 8, cqe_bytes: 64, vector: 0 }, None)?;
        let request = QpRequest::<Device> {
            transport: Transport::Dci,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            log_send_blocks: Some(LOG_BLOCKS),
            recv: None,
            scatter_to_cqe: false,
            access_key: DcKey::new(0),
        };
        let made = Qp::with_requests_of(device.shared(), &pd.0, &request, Some(LONGEST))?;
        let (mut qp, QpMemory { send, .. }) = made;
        let memory = send.ok_or_else(|| failed("it has no send ring"))?;
        let rows = device.rows();
        for step in steps {
            qp.modify(step, rows).map_err(failed)?;
        }
        // SAFETY: the library that has made the queue pair.
        let verbs = unsafe { Verbs::open() }.map_err(failed)?;
        // SAFETY: its driver.
        let direct = unsafe { Direct::open() }.map_err(failed)?;
        // SAFETY: a queue pair that was made with the operations that it is to have, so that it is extended.
        let extended = unsafe { (verbs.ibv_qp_to_qp_ex)(qp.raw()) };
        let extended = ptr::NonNull::new(extended).ok_or_else(|| failed("it is not extended"))?;
        // SAFETY: an extended queue pair of libmlx5.
        let direct = unsafe { (direct.mlx5dv_qp_ex_from_ibv_qp_ex)(extended.as_ptr()) };
        let direct = ptr::NonNull::new(direct).ok_or_else(|| failed("it is not libmlx5's"))?;
        Ok(Self { qp, memory, pd, extended, direct, next: 0 })
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Has libmlx5 write a request, and returns its bytes.
    ///
    /// # Errors
    ///
    /// [`CreateError::System`] if it does not.
    pub fn post(
        &mut self,
        op: &Op<'_>,
        flags: SendFlags,
        to: &DcPeer,
    ) -> Result<Vec<u8>, CreateError> {
        let ah = self.pd.0.ah(&to.address).map_err(failed)?;
        let (qp, dv) = (self.extended.as_ptr(), self.direct.as_ptr());
        // SAFETY: the queue pair lives, and is used by this thread alone; the library writes to it in calls only,
        // so its functions are taken from a copy.
        let all = &unsafe { qp.read() };
        let word = qp.wrapping_byte_add(offset_of!(QpEx, wr_flags)).cast::<u32>();
        // SAFETY: as above; the library reads the word in the calls below.
        unsafe { word.write(words(flags)) };
        let start = all.start.ok_or_else(|| failed("it cannot start"))?;
        // SAFETY: an extended queue pair between two requests.
        unsafe { start(qp) };
        begin(all, qp, op).ok_or_else(|| failed("it lacks this operation"))?;
        // SAFETY: a description that lives as long as the queue pair.
        let set = unsafe { (*dv).set_dc_addr }.ok_or_else(|| failed("it is none of DC"))?;
        // SAFETY: within a request; the address lives as long as the domain.
        unsafe { set(dv, ah.as_ptr(), to.dctn.get(), to.key.get()) };
        end(all, qp, op).ok_or_else(|| failed("it takes no such payload"))?;
        let complete = all.complete.ok_or_else(|| failed("it cannot complete"))?;
        // SAFETY: a request that has all its parts.
        let error = unsafe { complete(qp) };
        if error != 0 {
            return Err(failed(std::io::Error::from_raw_os_error(error)));
        }
        let wqe = self.ring()?.wqe(self.next);
        let blocks = u16::try_from(wqe.len().div_ceil(64)).unwrap_or(u16::MAX);
        self.next = self.next.wrapping_add(blocks);
        Ok(wqe)
    }

    fn ring(&self) -> Result<Ring<'_>, CreateError> {
        ring(self.memory.ring.as_ptr().cast(), 1 << self.memory.log_blocks, 64)
    }
}

fn words(flags: SendFlags) -> u32 {
    [
        (SendFlags::SIGNALED, abi::send::SIGNALED),
        (SendFlags::SOLICITED, abi::send::SOLICITED),
        (SendFlags::FENCE, abi::send::FENCE),
    ]
    .into_iter()
    .filter(|(flag, _)| flags.contains(*flag))
    .fold(0, |word, (_, bit)| word | bit)
}

/// Names the operation; `None`: the queue pair has it not.
fn begin(all: &QpEx, qp: *mut QpEx, op: &Op<'_>) -> Option<()> {
    let named = |function: Named, RemoteSlice { addr, rkey }: RemoteSlice| {
        // SAFETY: after the start of a request.
        unsafe { function(qp, rkey.get(), addr) };
    };
    match *op {
        // SAFETY: after the start of a request, here and below.
        Op::Send { imm: None, .. } => unsafe { all.send?(qp) },
        // SAFETY: as above.
        Op::Send { imm: Some(imm), .. } => unsafe { all.send_imm?(qp, imm.to_be()) },
        Op::Write { remote, imm: None, .. } => named(all.rdma_write?, remote),
        Op::Write { remote: RemoteSlice { addr, rkey }, imm: Some(imm), .. } => {
            // SAFETY: as above.
            unsafe { all.rdma_write_imm?(qp, rkey.get(), addr, imm.to_be()) }
        }
        Op::Read { remote, .. } => named(all.rdma_read?, remote),
        Op::CompareSwap { remote: RemoteSlice { addr, rkey }, compare, swap, .. } => {
            // SAFETY: as above.
            unsafe { all.atomic_cmp_swp?(qp, rkey.get(), addr, compare, swap) }
        }
        Op::FetchAdd { remote: RemoteSlice { addr, rkey }, add, .. } => {
            // SAFETY: as above.
            unsafe { all.atomic_fetch_add?(qp, rkey.get(), addr, add) }
        }
        Op::Nop => return None,
    }
    Some(())
}

/// Adds the payload, or the memory for the result.
fn end(all: &QpEx, qp: *mut QpEx, op: &Op<'_>) -> Option<()> {
    let gather = |sges: &[verbs::Sge]| {
        let entry = |sge: &verbs::Sge| abi::Sge {
            addr: sge.addr,
            length: sge.len_bytes,
            lkey: sge.lkey.get(),
        };
        let entries = sges.iter().map(entry).collect::<Vec<_>>();
        // SAFETY: within a request; the library copies the entries.
        unsafe { all.set_sge_list?(qp, entries.len(), entries.as_ptr()) };
        Some(())
    };
    match *op {
        Op::Send { payload: Payload::Gather(sges), .. }
        | Op::Write { payload: Payload::Gather(sges), .. }
        | Op::Read { into: sges, .. } => gather(sges),
        Op::CompareSwap { into, .. } | Op::FetchAdd { into, .. } => gather(&[into]),
        Op::Send { payload: Payload::Inline(parts), .. }
        | Op::Write { payload: Payload::Inline(parts), .. } => {
            let part = |part: &&[u8]| DataBuf { addr: part.as_ptr(), length: part.len() };
            let parts = parts.iter().map(part).collect::<Vec<_>>();
            // SAFETY: within a request; the library copies the bytes, which the caller lends.
            unsafe { all.set_inline_data_list?(qp, parts.len(), parts.as_ptr()) };
            Some(())
        }
        Op::Nop => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::compiled;

    #[test]
    fn a_c_compiler_agrees_where_the_headers_are_installed() {
        let extended = [
            ("offsetof(struct ibv_qp_ex, comp_mask)", offset_of!(QpEx, comp_mask)),
            ("offsetof(struct ibv_qp_ex, wr_flags)", offset_of!(QpEx, wr_flags)),
            ("offsetof(struct ibv_qp_ex, wr_atomic_cmp_swp)", offset_of!(QpEx, atomic_cmp_swp)),
            ("offsetof(struct ibv_qp_ex, wr_rdma_read)", offset_of!(QpEx, rdma_read)),
            ("offsetof(struct ibv_qp_ex, wr_send_imm)", offset_of!(QpEx, send_imm)),
            ("offsetof(struct ibv_qp_ex, wr_set_inline_data_list)", {
                offset_of!(QpEx, set_inline_data_list)
            }),
            ("offsetof(struct ibv_qp_ex, wr_set_sge_list)", offset_of!(QpEx, set_sge_list)),
            ("offsetof(struct ibv_qp_ex, wr_complete)", offset_of!(QpEx, complete)),
            ("offsetof(struct mlx5dv_qp_ex, wr_set_dc_addr)", offset_of!(DvQpEx, set_dc_addr)),
            ("sizeof(struct ibv_data_buf)", size_of::<DataBuf>()),
        ];
        let facts = extended.map(|(name, value)| (name, value as u64));
        compiled::check("infiniband/mlx5dv.h", facts.into_iter());
    }
}
