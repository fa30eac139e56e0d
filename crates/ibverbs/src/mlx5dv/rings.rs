//! The rings of queues that libmlx5 fills itself, for comparisons with those that the driver fills.

use core::{marker::PhantomData, ptr::NonNull};

use memory::sync::{AtomicU64, Ordering};
use verbs::CreateError;

use super::{
    abi::{Described, DvObj, DvQp, DvSrq, obj},
    api::Api,
};
use crate::{
    abi,
    error::{cause_of, check},
};

/// Bytes of a block of a send ring.
const BLOCK_BYTES: usize = 64;

/// A ring whose bytes can be read as long as its queue lives.
#[derive(Debug)]
pub(super) struct Ring<'a> {
    base: NonNull<u64>,
    entries: usize,
    stride_bytes: usize,
    _queue: PhantomData<&'a ()>,
}

impl Ring<'_> {
    /// `bytes` from the beginning of entry `index`, which wrap.
    pub(super) fn read(&self, index: u16, bytes: usize) -> Vec<u8> {
        let (first, words) = (usize::from(index) * self.stride_bytes / 8, bytes / 8);
        let all = self.entries * self.stride_bytes / 8;
        let word = |at: usize| {
            let at = self.base.as_ptr().wrapping_add(at % all);
            // SAFETY: inside the ring, which lives as long as the borrow and which libmlx5 and the device write.
            unsafe { AtomicU64::from_ptr(at) }.load(Ordering::Relaxed)
        };
        (first..first + words).flat_map(|at| word(at).to_ne_bytes()).collect()
    }

    /// The WQE that begins in block `index` of a send ring, as long as its control segment says.
    pub(super) fn wqe(&self, index: u16) -> Vec<u8> {
        const LENGTH: u8 = 0x3f;
        let octowords = usize::from(self.read(index, BLOCK_BYTES)[7] & LENGTH);
        self.read(index, octowords * 16)
    }
}

/// The rings of a queue pair that posts by libmlx5.
#[derive(Debug)]
pub struct LibraryRings<'a> {
    send: Ring<'a>,
    recv: Ring<'a>,
}

/// The ring of a shared receive queue that posts by libmlx5.
#[derive(Debug)]
pub struct LibrarySrqRing<'a>(Ring<'a>);

fn describe(kind: u64, object: &'static str, objects: &mut DvObj) -> Result<(), CreateError> {
    let failed = |cause: String| CreateError::System { object, cause };
    let api = Api::load().map_err(|error| failed(error.to_string()))?;
    // SAFETY: an object that lives, and a place for its description.
    check(unsafe { (api.mlx5dv_init_obj)(objects, kind) }).map_err(|error| failed(cause_of(&error)))
}

pub(super) fn ring<'a>(
    base: *mut core::ffi::c_void,
    entries: usize,
    stride_bytes: usize,
) -> Result<Ring<'a>, CreateError> {
    let missing = || CreateError::System { object: "ring", cause: "there is none".to_owned() };
    let base = NonNull::new(base.cast::<u64>()).ok_or_else(missing)?;
    Ok(Ring { base, entries, stride_bytes, _queue: PhantomData })
}

impl<'a> LibraryRings<'a> {
    /// Those of `qp`, if libmlx5 has made it.
    ///
    /// # Errors
    ///
    /// [`CreateError::System`].
    pub fn of(qp: &'a crate::Qp) -> Result<Self, CreateError> {
        let mut dv = DvQp::EMPTY;
        let described = Described { object: qp.raw(), out: &raw mut dv };
        describe(obj::QP, "queue pair", &mut DvObj { qp: described, ..DvObj::EMPTY })?;
        Ok(Self {
            send: ring(dv.sq.buf, dv.sq.wqe_cnt as usize, dv.sq.stride as usize)?,
            recv: ring(dv.rq.buf, dv.rq.wqe_cnt as usize, dv.rq.stride as usize)?,
        })
    }

    /// The WQE that begins in block `index` of the send ring, as long as its control segment says.
    #[must_use]
    pub fn send_wqe(&self, index: u16) -> Vec<u8> {
        self.send.wqe(index)
    }

    /// The receive at `index`, as long as its place.
    #[must_use]
    pub fn recv_wqe(&self, index: u16) -> Vec<u8> {
        self.recv.read(index, self.recv.stride_bytes)
    }
}

impl<'a> LibrarySrqRing<'a> {
    /// That of `srq`, if libmlx5 has made it.
    ///
    /// # Errors
    ///
    /// [`CreateError::System`].
    pub fn of(srq: &'a crate::Srq) -> Result<Self, CreateError> {
        let mut dv = DvSrq::NUMBERED;
        let described: Described<abi::Srq, DvSrq> =
            Described { object: srq.shared.raw(), out: &raw mut dv };
        let object = "shared receive queue";
        describe(obj::SRQ, object, &mut DvObj { srq: described, ..DvObj::EMPTY })?;
        // At least the entries of the free list.
        ring(dv.buf, dv.tail as usize + 1, dv.stride as usize).map(Self)
    }

    /// The receive at `index`, as long as its place.
    #[must_use]
    pub fn wqe(&self, index: u16) -> Vec<u8> {
        self.0.read(index, self.0.stride_bytes)
    }
}
