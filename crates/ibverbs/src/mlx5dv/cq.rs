//! Completion queue.

use core::{ffi::c_void, ptr, ptr::NonNull};

use memory::{barrier, mmio, sync::Arc};
use mlx5::device::{CqMemory, CqRequest, DeviceCq};
use verbs::{Cqn, CreateError};

use super::{
    abi::{CqInitAttrEx, Described, DvCq, DvCqInitAttr, DvObj, cq_mask, obj},
    shared::Shared,
};
use crate::{
    abi,
    channel::{Armed, ChannelShared},
    error::last_cause,
};

/// Where a page of registers has the one that arms completion queues (`MLX5_CQ_DOORBELL`).
const ARM_OFFSET: usize = 0x20;

const OBJECT: &str = "completion queue";

/// A completion queue that the driver polls.
#[derive(Clone, Debug)]
pub struct Cq(pub(super) Arc<CqShared>);

/// Its one copy: queue pairs that complete here keep it.
#[derive(Debug)]
pub(super) struct CqShared {
    device: Arc<Shared>,
    raw: NonNull<abi::Cq>,
    channel: Option<Arc<ChannelShared>>,
    /// On the heap, where events find it.
    armed: Box<Armed>,
    /// Of the page that the library has given to completion queues.
    arm_register: NonNull<u64>,
    handle: u32,
}

// SAFETY: objects of libibverbs belong to no thread, and the register takes whole words from any of them.
unsafe impl Send for CqShared {}
// SAFETY: what is reached through `&CqShared` is the register, and `Armed`, which is atomic.
unsafe impl Sync for CqShared {}

impl Cq {
    pub(super) fn new(
        device: &Arc<Shared>,
        request: &CqRequest,
        channel: Option<Arc<ChannelShared>>,
    ) -> Result<(Self, CqMemory), CreateError> {
        let armed = Box::<Armed>::default();
        let raw = create(device, request, &armed, channel.as_deref())?;
        // From here on it is destroyed with this.
        let mut made = Raw { device, raw };
        let dv = made.describe()?;
        let arm_register =
            part(dv.cq_uar.cast::<u8>().wrapping_add(ARM_OFFSET).cast(), "register")?;
        let memory = CqMemory {
            cqn: Cqn::from_low_bits(dv.cqn),
            ring: part(dv.buf.cast(), "ring")?,
            log_entries: log_of(dv.cqe_cnt)?,
            cqe_bytes: dv.cqe_size as usize,
            dbrec: part(dv.dbrec.cast(), "doorbell record")?,
        };
        // SAFETY: an object of the library, which was just made.
        let handle = unsafe { raw.as_ref().handle };
        device.cqns.insert(handle, memory.cqn);
        core::mem::forget(made);
        let device = device.clone();
        let shared = CqShared { device, raw, channel, armed, arm_register, handle };
        Ok((Self(Arc::new(shared)), memory))
    }
}

/// Makes one of exactly as many entries as are asked for: the library adds one, and rounds up.
fn create(
    device: &Shared,
    request: &CqRequest,
    armed: &Armed,
    channel: Option<&ChannelShared>,
) -> Result<NonNull<abi::Cq>, CreateError> {
    let mut attr = CqInitAttrEx {
        cqe: ((1u32 << request.log_entries) - 1).max(1),
        cq_context: ptr::from_ref(armed).cast_mut().cast::<c_void>(),
        channel: channel.map_or(ptr::null_mut(), ChannelShared::raw),
        comp_vector: device.context.completion_vector(request.vector).cast_unsigned(),
        wc_flags: 0,
        comp_mask: 0,
        flags: 0,
        parent_domain: ptr::null_mut(),
    };
    let cqe_size = u16::try_from(request.cqe_bytes).unwrap_or(0);
    let mut dv = DvCqInitAttr { comp_mask: cq_mask::CQE_SIZE, cqe_size, ..DvCqInitAttr::default() };
    let (context, create) = (device.context.raw(), device.api.mlx5dv_create_cq);
    // SAFETY: context and channel live, and `armed` outlives the queue, as it goes into the same object.
    let raw = unsafe { create(context, &raw mut attr, &raw mut dv) };
    NonNull::new(raw).ok_or_else(|| CreateError::System { object: OBJECT, cause: last_cause() })
}

/// A pointer that the library has described.
fn part<T>(pointer: *mut T, what: &str) -> Result<NonNull<T>, CreateError> {
    NonNull::new(pointer).ok_or_else(|| {
        let cause = format!("libmlx5 describes no {what} of it");
        CreateError::System { object: OBJECT, cause }
    })
}

fn log_of(entries: u32) -> Result<u8, CreateError> {
    if entries.is_power_of_two() {
        return Ok(entries.ilog2().to_le_bytes()[0]);
    }
    let cause = format!("libmlx5 has made {entries} entries, which is no power of two");
    Err(CreateError::System { object: OBJECT, cause })
}

/// A queue that is destroyed unless it is kept.
struct Raw<'a> {
    device: &'a Shared,
    raw: NonNull<abi::Cq>,
}

impl Raw<'_> {
    fn describe(&mut self) -> Result<DvCq, CreateError> {
        let mut dv = DvCq::EMPTY;
        let cq = Described { object: self.raw.as_ptr(), out: &raw mut dv };
        self.device.describe(&mut DvObj { cq, ..DvObj::EMPTY }, obj::CQ, OBJECT)?;
        Ok(dv)
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `mlx5dv_create_cq`, and used by nobody.
        let _ = unsafe { (self.device.context.api.ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

impl CqShared {
    pub(super) fn raw(&self) -> *mut abi::Cq {
        self.raw.as_ptr()
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.device.cqns.remove(self.handle);
        // SAFETY: made by `mlx5dv_create_cq`; every queue pair that completes here held `self`, and so does the
        // driver's queue, which reads the ring. Waits for acknowledgements of events, which come right after the
        // events.
        let _ = unsafe { (self.device.context.api.ibv_destroy_cq)(self.raw()) };
    }
}

impl DeviceCq for Cq {
    fn arm(&mut self, doorbell: u64) {
        let cq = &*self.0;
        // A device may take the request from the record, before its doorbell: an event that is here by now may be the
        // only one of this request.
        cq.armed.set();
        if let Some(channel) = &cq.channel
            && channel.take_events()
        {
            channel.fire();
        }
        // Again: taking an event has cleared it.
        cq.armed.set();
        barrier::flush_write_combining();
        // SAFETY: the page is mapped as long as the device is open; completion queues share the register, each
        // store is a whole request.
        unsafe { mmio::write_u64_be(cq.arm_register.as_ptr(), doorbell) };
        barrier::flush_write_combining();
    }

    /// The device works by itself.
    fn idle(&mut self) -> bool {
        false
    }
}
