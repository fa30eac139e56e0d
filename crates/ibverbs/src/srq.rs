//! Shared receive queue.
//!
//! Buffers come back in any order, so the index of a buffer is its place, taken from a list of free ones.

use core::{
    ffi::c_int,
    ptr::{self, NonNull},
};
use std::sync::{Mutex, PoisonError};

use memory::sync::{Arc, AtomicU32, Ordering};
use verbs::{Completion, CreateError, PostRecvError, Sge, SharedReceiveQueue, SrqConfig, Srqn};

use crate::{
    abi::{self, RecvWr},
    ah::PdShared,
    context::REQUESTS_MAX,
    error::last_cause,
    posts::{Request as _, entries},
    recv::count,
    wc::{RequestKind, WrId},
};

/// Receive buffers that several queue pairs share.
#[derive(Debug)]
pub struct Srq {
    pub(crate) shared: Arc<SrqShared>,
    places: Places,
}

/// What queue pairs need of it.
#[derive(Debug)]
pub(crate) struct SrqShared {
    pd: Arc<PdShared>,
    raw: NonNull<abi::Srq>,
    srqn: Srqn,
    capacity: u32,
    /// Buffers whose completions nobody will see, as their queue pair is gone.
    returned: Mutex<Vec<u16>>,
    /// Their number; a hint.
    returned_count: AtomicU32,
}

// SAFETY: objects of libibverbs belong to no thread.
unsafe impl Send for SrqShared {}
// SAFETY: the library locks a queue while something is posted to it.
unsafe impl Sync for SrqShared {}

impl SrqShared {
    pub(crate) fn raw(&self) -> *mut abi::Srq {
        self.raw.as_ptr()
    }

    pub(crate) fn srqn(&self) -> Srqn {
        self.srqn
    }

    /// Buffers that can be posted at once.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Buffer `index` will not be completed.
    pub(crate) fn give_back(&self, index: u16) {
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        returned.push(index);
        self.returned_count.fetch_add(1, Ordering::Relaxed);
    }

    fn take_returned(&self) -> Vec<u16> {
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        self.returned_count.store(0, Ordering::Relaxed);
        core::mem::take(&mut *returned)
    }
}

impl Drop for SrqShared {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_create_srq`; every queue pair that draws from it held `self`.
        let _ = unsafe { (self.pd.context.api.ibv_destroy_srq)(self.raw()) };
    }
}

/// Buffers by their places.
struct Places {
    wrs: Box<[RecvWr]>,
    /// `sges_max` of each buffer.
    sges: Box<[abi::Sge]>,
    sges_max: u8,
    is_posted: Box<[bool]>,
    free: Vec<u16>,
    /// Posted, but not handed over.
    pending: Vec<u16>,
}

// SAFETY: the pointers in requests are written right before the library reads them, and are not looked at
// afterwards.
unsafe impl Send for Places {}
// SAFETY: `&Places` gives access to counts alone.
unsafe impl Sync for Places {}

impl core::fmt::Debug for Places {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Places {{ {} free of {} }}", self.free.len(), self.wrs.len())
    }
}

impl Places {
    fn new(capacity: u16, sges_max: u8) -> Self {
        let count = usize::from(capacity);
        Self {
            wrs: vec![RecvWr::EMPTY; count].into_boxed_slice(),
            sges: vec![abi::Sge::default(); count * usize::from(sges_max)].into_boxed_slice(),
            sges_max,
            is_posted: vec![false; count].into_boxed_slice(),
            free: (0..capacity).rev().collect(),
            pending: Vec::with_capacity(count),
        }
    }

    fn post(&mut self, into: &[Sge]) -> Result<u16, PostRecvError> {
        let num_sge = count(into, self.sges_max)?;
        let requests = u32::try_from(self.wrs.len()).unwrap_or(REQUESTS_MAX);
        let index = self.free.pop().ok_or(PostRecvError::QueueFull { requests })?;
        let place = usize::from(index);
        let wr_id = WrId { index, of: RequestKind::SrqRecv }.to_word();
        self.wrs[place] = RecvWr { wr_id, num_sge, ..RecvWr::EMPTY };
        let begin = place * usize::from(self.sges_max);
        let room = &mut self.sges[begin..begin + usize::from(self.sges_max)];
        room.iter_mut().zip(entries(into)).for_each(|(entry, sge)| *entry = sge);
        self.is_posted[place] = true;
        self.pending.push(index);
        Ok(index)
    }

    /// Hands over what is pending, as one list. What the device refuses stays pending.
    fn ring(&mut self, hand_over: impl FnOnce(*mut RecvWr, *mut *mut RecvWr) -> c_int) {
        if self.pending.is_empty() {
            return;
        }
        let (wrs, sges) = (self.wrs.as_mut_ptr(), self.sges.as_mut_ptr());
        let mut next = ptr::null_mut();
        for &index in self.pending.iter().rev() {
            let place = usize::from(index);
            let own = wrs.wrapping_add(place);
            // SAFETY: a place of this queue, which nobody else refers to.
            unsafe { &mut *own }.link(next, sges.wrapping_add(place * usize::from(self.sges_max)));
            next = own;
        }
        let mut first_bad = ptr::null_mut();
        let is_taken = hand_over(next, &raw mut first_bad) == 0;
        let taken = self
            .pending
            .iter()
            .position(|&index| !is_taken && wrs.wrapping_add(usize::from(index)) == first_bad);
        self.pending.drain(..taken.unwrap_or(self.pending.len()));
    }

    /// Frees a place; `false` if it is not posted.
    fn free(&mut self, index: u16) -> bool {
        let Some(is_posted) = self.is_posted.get_mut(usize::from(index)) else { return false };
        if !core::mem::take(is_posted) {
            return false;
        }
        self.free.push(index);
        true
    }
}

impl Srq {
    pub(crate) fn new(pd: &Arc<PdShared>, config: &SrqConfig) -> Result<Self, CreateError> {
        let (what, asked) = ("shared receive queue", u64::from(config.entries));
        let size = |limit| CreateError::Size { what, asked, limit };
        let context = &pd.context;
        if config.entries == 0 {
            return Err(size("it needs at least one entry"));
        }
        let capacity = u16::try_from(config.entries)
            .ok()
            .filter(|_| config.entries <= context.attributes.srq_entries_max)
            .ok_or(size("it exceeds the device"))?;
        if config.sges_max > context.attributes.srq_sges_max {
            let (what, asked) = ("scatter list", u64::from(config.sges_max));
            return Err(CreateError::Size { what, asked, limit: "the device has fewer entries" });
        }
        let mut init = abi::SrqInitAttr {
            srq_context: ptr::null_mut(),
            max_wr: config.entries,
            max_sge: config.sges_max.max(1).into(),
            srq_limit: 0,
        };
        // SAFETY: the domain lives; the library writes what it has made into `init`.
        let raw = unsafe { (context.api.ibv_create_srq)(pd.raw(), &raw mut init) };
        let failed = || CreateError::System { object: what, cause: last_cause() };
        let raw = NonNull::new(raw).ok_or_else(failed)?;
        // SAFETY: an object of the library, which was just made.
        let srqn = Srqn::from_low_bits(unsafe { raw.as_ref().handle });
        let shared = SrqShared {
            pd: pd.clone(),
            raw,
            srqn,
            capacity: config.entries,
            returned: Mutex::default(),
            returned_count: AtomicU32::new(0),
        };
        Ok(Self { shared: Arc::new(shared), places: Places::new(capacity, config.sges_max) })
    }
}

impl SharedReceiveQueue for Srq {
    fn srqn(&self) -> Srqn {
        self.shared.srqn
    }

    fn post(&mut self, into: &[Sge]) -> Result<u16, PostRecvError> {
        if self.shared.returned_count.load(Ordering::Relaxed) != 0 {
            for index in self.shared.take_returned() {
                self.places.free(index);
            }
        }
        self.places.post(into)
    }

    fn ring(&mut self) {
        let shared = &self.shared;
        let post = shared.pd.context.ops.post_srq_recv;
        // SAFETY: the queue lives, and the list is one of requests that live until the call returns.
        self.places.ring(|list, bad| unsafe { post(shared.raw(), list, bad) });
    }

    fn retire(&mut self, completion: &Completion) {
        assert!(completion.kind.is_receive(), "not a receive: {completion:?}");
        assert!(self.places.free(completion.wqe), "buffer is not outstanding: {completion:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_in_any_order_and_once() {
        let mut places = Places::new(3, 1);
        let taken: Vec<u16> = (0..3).map(|_| places.post(&[]).unwrap()).collect();
        assert_eq!(places.post(&[]), Err(PostRecvError::QueueFull { requests: 3 }));
        assert!(places.free(taken[1]));
        assert!(!places.free(taken[1]) && !places.free(3));
        assert_eq!(places.post(&[]), Ok(taken[1]));
        let sge = Sge { addr: 0, len_bytes: 1, lkey: verbs::Lkey::new(0) };
        let refused = Err(PostRecvError::TooManySges { asked: 2, max: 1 });
        assert_eq!(places.post(&[sge; 2]), refused);
    }

    #[test]
    fn what_the_device_refuses_is_handed_over_again() {
        let mut places = Places::new(4, 1);
        let taken: Vec<u16> = (0..3).map(|_| places.post(&[]).unwrap()).collect();
        places.ring(|list, bad| {
            // SAFETY: the second of three requests.
            let second = unsafe { (*list).next };
            // SAFETY: a pointer to write to.
            unsafe { *bad = second };
            12
        });
        assert_eq!(places.pending, taken[1..]);
        places.ring(|_, _| 0);
        places.ring(|_, _| panic!("nothing is pending"));
    }
}
