//! Registered memory.

use core::{mem::ManuallyDrop, ptr::NonNull};
use std::{
    io,
    os::fd::OwnedFd,
    sync::mpsc::{TryRecvError, sync_channel},
};

use memory::{
    Filler, LentBytes, MapFault, Overfull, Region, ViewError,
    sync::{Arc, Ordering},
};
use verbs::{Access, Lkey, MemoryError, MemoryRegion, Registration, Rkey};

use crate::{
    abi,
    ah::PdShared,
    error::{cause_of, check},
    huge::Memory,
};

/// A registered region. It is mapped shared, so that a fork of this process takes no page from it.
#[derive(Debug)]
pub struct Mr {
    pd: Arc<PdShared>,
    raw: NonNull<abi::Mr>,
    /// Kept for ever if the device does not give it back.
    memory: ManuallyDrop<Memory>,
    len_bytes: usize,
    lkey: Lkey,
    rkey: Rkey,
    is_registered: bool,
    /// Memory of another process, of any length: the domain's thread takes it back.
    is_lent: bool,
}

// SAFETY: objects of libibverbs belong to no thread.
unsafe impl Send for Mr {}
// SAFETY: what is reached through `&Mr` is the region, which is shared, and two constants.
unsafe impl Sync for Mr {}

impl Mr {
    /// Allocates and registers zeroed memory.
    pub(crate) fn alloc(
        pd: &Arc<PdShared>,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self, MemoryError> {
        check_request(len_bytes, access)?;
        let memory = pd.pages.alloc(len_bytes).map_err(|cause| system(len_bytes, cause))?;
        Self::register(pd, memory, len_bytes, access)
    }

    /// Registers memory of another process.
    pub(crate) fn of_memfd(
        pd: &Arc<PdShared>,
        fd: OwnedFd,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self, MemoryError> {
        check_request(len_bytes, access)?;
        let region = Region::map_sealed(fd, len_bytes).map_err(|error| match error.fault() {
            MapFault::Request => MemoryError::Unfit { cause: error.to_string() },
            MapFault::Shortage => system(len_bytes, error.to_string()),
        })?;
        let mut mr = Self::register(pd, Memory::Whole(region.detach()), len_bytes, access)?;
        mr.is_lent = true;
        Ok(mr)
    }

    /// As [`of_memfd`](Self::of_memfd), on the thread of the domain.
    pub(crate) fn begin_of_memfd(
        pd: &Arc<PdShared>,
        fd: OwnedFd,
        len_bytes: usize,
        access: Access,
    ) -> Registration<Self> {
        let (told, end) = sync_channel(1);
        let domain = pd.clone();
        pd.run(move || {
            // Nobody may wait for it any more: then it is dropped here.
            let _ = told.send(Self::of_memfd(&domain, fd, len_bytes, access));
        });
        Registration::new(move || match end.try_recv() {
            Ok(ended) => Some(ended),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err(system(len_bytes, "the thread that registers it has ended".to_owned())))
            }
        })
    }

    fn register(
        pd: &Arc<PdShared>,
        memory: Memory,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self, MemoryError> {
        let base = memory.base();
        let iova = base.addr().get() as u64;
        let register = pd.context.api.ibv_reg_mr_iova2;
        // SAFETY: the range is mapped until it is deregistered, and nobody forms references to its bytes.
        let raw =
            unsafe { register(pd.raw(), base.as_ptr().cast(), len_bytes, iova, access.bits()) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| system(len_bytes, cause_of(&io::Error::last_os_error())))?;
        // SAFETY: an object of the library, which it does not change.
        let &abi::Mr { lkey, rkey, .. } = unsafe { raw.as_ref() };
        Ok(Self {
            pd: pd.clone(),
            raw,
            memory: ManuallyDrop::new(memory),
            len_bytes,
            lkey: Lkey::new(lkey),
            rkey: Rkey::new(rkey),
            is_registered: true,
            is_lent: false,
        })
    }

    /// Takes the memory back from the device, once.
    fn end(&mut self) -> io::Result<()> {
        if !core::mem::take(&mut self.is_registered) {
            return Ok(());
        }
        // SAFETY: made by `ibv_reg_mr_iova2`, deregistered once.
        check(unsafe { (self.pd.context.api.ibv_dereg_mr)(self.raw.as_ptr()) })?;
        // SAFETY: dropped once, since this part runs once; the device has no access any more.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
        Ok(())
    }

    /// An offset in this region, in the mapping.
    #[inline]
    fn at(&self, offset: usize) -> usize {
        self.memory.begin() + offset
    }

    fn view<R>(&self, offset: usize, len: usize, view: impl FnOnce() -> Result<R, ViewError>) -> R {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len_bytes);
        assert!(is_inside, "{offset} + {len} B exceed the region of {} B", self.len_bytes);
        view().unwrap_or_else(|error| panic!("{error}"))
    }
}

fn system(len_bytes: usize, cause: String) -> MemoryError {
    MemoryError::System { len_bytes: len_bytes as u64, cause }
}

fn check_request(len_bytes: usize, access: Access) -> Result<(), MemoryError> {
    const MAX_BYTES: u64 = 1 << 40;
    if !access.is_consistent() {
        return Err(MemoryError::Access(access));
    }
    let len_bytes = len_bytes as u64;
    if !(1..=MAX_BYTES).contains(&len_bytes) {
        return Err(MemoryError::Length { len_bytes, max_bytes: MAX_BYTES });
    }
    Ok(())
}

impl MemoryRegion for Mr {
    fn addr(&self) -> u64 {
        self.memory.base().addr().get() as u64
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn lkey(&self) -> Lkey {
        self.lkey
    }

    fn rkey(&self) -> Rkey {
        self.rkey
    }

    #[inline]
    fn read(&self, offset: usize, to: &mut [u8]) {
        let len = to.len();
        let span = self.view(offset, len, || self.memory.region().span(self.at(offset), len));
        span.copy_in(to);
    }

    fn read_into(
        &self,
        offset: usize,
        len_bytes: usize,
        to: &mut Filler<'_>,
    ) -> Result<(), Overfull> {
        let at = self.at(offset);
        to.put_span(self.view(offset, len_bytes, || self.memory.region().span(at, len_bytes)))
    }

    #[inline]
    fn write(&self, offset: usize, from: &[u8]) {
        let len = from.len();
        self.view(offset, len, || self.memory.region().span(self.at(offset), len)?.copy_out(from));
    }

    fn write_lent(&self, offset: usize, from: LentBytes<'_>) {
        let (at, len) = (self.at(offset), from.len());
        self.view(offset, len, || self.memory.region().span(at, len)?.copy_lent(from, false));
    }

    #[inline]
    fn load_u64(&self, offset: usize) -> u64 {
        self.view(offset, size_of::<u64>(), || {
            self.memory.region().whole().load_u64(self.at(offset), Ordering::Acquire)
        })
    }

    fn deregister(mut self) -> Result<(), MemoryError> {
        let len_bytes = self.len_bytes;
        self.end().map_err(|error| system(len_bytes, cause_of(&error)))
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.is_lent && self.is_registered {
            self.is_registered = false;
            // SAFETY: taken once, since this part runs once; `self` does not use it any more.
            let memory = ManuallyDrop::new(unsafe { ManuallyDrop::take(&mut self.memory) });
            let (pd, raw, len_bytes) = (self.pd.clone(), self.raw, self.len_bytes);
            let (lkey, rkey) = (self.lkey, self.rkey);
            let (is_registered, is_lent) = (true, false);
            let taken = Self { pd, raw, memory, len_bytes, lkey, rkey, is_registered, is_lent };
            return self.pd.run(move || drop(taken));
        }
        // Memory that the device keeps stays mapped.
        let _ = self.end();
    }
}
