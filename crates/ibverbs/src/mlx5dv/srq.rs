//! Shared receive queue.

use core::ptr::{self, NonNull};

use memory::sync::Arc;
use mlx5::device::{RqMemory, SrqMemory, SrqRequest};
use verbs::{CreateError, Srqn};

use super::{
    abi::{Described, DvObj, DvSrq, obj, srq_mask},
    shared::Shared,
};
use crate::{abi, ah::PdShared, error::last_cause};

const OBJECT: &str = "shared receive queue";

/// Octowords in front of an entry's scatter list.
const HEADER_OCTOWORDS: u32 = 1;

/// A shared receive queue that the driver fills.
#[derive(Clone, Debug)]
pub struct Srq(pub(super) Arc<SrqShared>);

/// Its one copy: queue pairs that draw from it keep it.
#[derive(Debug)]
pub(super) struct SrqShared {
    device: Arc<Shared>,
    /// Its domain.
    _pd: Arc<PdShared>,
    raw: NonNull<abi::Srq>,
}

// SAFETY: objects of libibverbs belong to no thread.
unsafe impl Send for SrqShared {}
// SAFETY: through `&SrqShared` the library reads what it does not change.
unsafe impl Sync for SrqShared {}

/// Base-2 logarithm of the ring that has an entry more than `buffers`; the library makes none of two entries.
fn log_ring(buffers: u16) -> u8 {
    (u32::from(buffers) + 1).next_power_of_two().max(4).ilog2().to_le_bytes()[0]
}

impl Srq {
    pub(super) fn new(
        device: &Arc<Shared>,
        pd: &Arc<PdShared>,
        request: &SrqRequest,
    ) -> Result<(Self, SrqMemory), CreateError> {
        let log_entries = log_ring(request.buffers);
        // Of a ring of R entries the library keeps R / 2 for itself. Where R exceeds the adapter's limit, which is one more
        // than it tells, the library makes R / 2 in silence: rdma-core `providers/mlx5/srq.c`, `mlx5_alloc_srq_buf`.
        let asked = (1u32 << log_entries) / 2 - 1;
        if 1 << log_entries > device.attributes.srq_entries_max + 1 {
            let (what, asked) = (OBJECT, u64::from(request.buffers));
            return Err(CreateError::Size { what, asked, limit: "it exceeds the device" });
        }
        let mut init = abi::SrqInitAttr {
            srq_context: ptr::null_mut(),
            max_wr: asked,
            max_sge: (1u32 << request.log_stride) / 16 - HEADER_OCTOWORDS,
            srq_limit: 0,
        };
        // SAFETY: the domain lives; the library writes what it has made into `init`.
        let raw = unsafe { (device.context.api.ibv_create_srq)(pd.raw(), &raw mut init) };
        let failed = || CreateError::System { object: OBJECT, cause: last_cause() };
        let raw = NonNull::new(raw).ok_or_else(failed)?;
        // Destroyed with this, whatever comes.
        let shared = SrqShared { device: device.clone(), _pd: pd.clone(), raw };
        let memory = shared.memory(log_entries, asked)?;
        Ok((Self(Arc::new(shared)), memory))
    }
}

impl SrqShared {
    pub(super) fn raw(&self) -> *mut abi::Srq {
        self.raw.as_ptr()
    }

    /// What the library has made for `asked` requests.
    fn memory(&self, log_entries: u8, asked: u32) -> Result<SrqMemory, CreateError> {
        let mut dv = DvSrq::NUMBERED;
        let srq = Described { object: self.raw(), out: &raw mut dv };
        self.device.describe(&mut DvObj { srq, ..DvObj::EMPTY }, obj::SRQ, OBJECT)?;
        let system = |cause: String| CreateError::System { object: OBJECT, cause };
        let missing = || system("libmlx5 describes no ring of it".to_owned());
        if dv.comp_mask & srq_mask::SRQN == 0 {
            return Err(system("libmlx5 does not tell its number".to_owned()));
        }
        // The free list that the library has made ends in the entry behind the requests, if it makes rings as it
        // is expected to.
        if (dv.head, dv.tail) != (0, asked) || !dv.stride.is_power_of_two() {
            let DvSrq { head, tail, stride, .. } = dv;
            return Err(system(format!(
                "libmlx5 makes entries {head} to {tail} of {stride} B, not 0 to {asked}: its rings are none that \
                 this driver knows"
            )));
        }
        let rq = RqMemory {
            ring: NonNull::new(dv.buf.cast()).ok_or_else(missing)?,
            log_entries,
            log_stride: dv.stride.ilog2().to_le_bytes()[0],
            dbrec: NonNull::new(dv.dbrec).ok_or_else(missing)?,
        };
        Ok(SrqMemory { srqn: Srqn::from_low_bits(dv.srqn), rq })
    }
}

impl Drop for SrqShared {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_create_srq`; every queue pair that draws from it held `self`, and so does the
        // driver's queue.
        let _ = unsafe { (self.device.context.api.ibv_destroy_srq)(self.raw()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_have_an_entry_more_than_buffers_and_two_halves() {
        for (buffers, log) in [(1, 2), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (16_383, 14)] {
            assert_eq!(log_ring(buffers), log, "{buffers}");
        }
    }
}
