//! Completion channels: a file descriptor that armed completion queues make readable.
//!
//! ```text
//!  device ── ibv_get_cq_event ─┐
//!                              ├─ epoll ── fd()
//!  stash of an armed queue ── eventfd
//! ```
//!
//! The library knows one arming per queue and tells each event once. A queue that finds something in its stash
//! when it is armed fires by itself; the event of the device that comes all the same finds it not armed any
//! more, and is passed over.

use core::{
    ffi::c_void,
    ptr::{self, NonNull},
    time::Duration,
};
use std::os::fd::{AsFd as _, BorrowedFd};

use memory::sync::{Arc, AtomicU32, Ordering};
use os::{clock, event::EventFd, ready_set::ReadySet};
use verbs::CreateError;

use crate::{
    abi,
    context::{Context, unblock},
    error::last_cause,
};

/// Events that are taken in one call.
const EVENTS_MAX: u32 = 256;

/// A completion channel.
#[derive(Debug)]
pub struct Channel(pub(crate) Arc<ChannelShared>);

/// Its one copy.
#[derive(Debug)]
pub(crate) struct ChannelShared {
    context: Arc<Context>,
    raw: NonNull<abi::CompChannel>,
    /// Signaled by queues that fire by themselves.
    event: EventFd,
    ready: ReadySet,
}

// SAFETY: objects of libibverbs belong to no thread.
unsafe impl Send for ChannelShared {}
// SAFETY: events are taken by reads of a descriptor, each by one thread.
unsafe impl Sync for ChannelShared {}

/// Whether a completion queue is armed. Events name it by its address.
#[derive(Debug, Default)]
pub(crate) struct Armed(AtomicU32);

impl Armed {
    /// The queue is about to be armed.
    pub(crate) fn set(&self) {
        // SYNC(ibverbs-armed): pairs with `take`, which may run on a thread that waits.
        self.0.store(1, Ordering::Release);
    }

    /// Whether it was armed; it is not any more.
    pub(crate) fn take(&self) -> bool {
        // SYNC(ibverbs-armed): pairs with `set`.
        self.0.swap(0, Ordering::AcqRel) == 1
    }
}

impl Channel {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CreateError> {
        let object = "completion channel";
        let system = |cause: String| CreateError::System { object, cause };
        let event = EventFd::new().map_err(|error| system(error.to_string()))?;
        // SAFETY: the context is open.
        let raw = unsafe { (context.api.ibv_create_comp_channel)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| system(last_cause()))?;
        let raw = Raw { context, raw };
        // SAFETY: an object of the library, which was just made.
        let number = unsafe { raw.raw.as_ref() }.fd;
        // SAFETY: open until the channel is destroyed, which is when `raw` or what it is kept in is dropped.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        unblock(fd).map_err(|error| system(error.to_string()))?;
        let ready =
            ReadySet::new(&[fd, event.as_fd()]).map_err(|error| system(error.to_string()))?;
        Ok(Self(Arc::new(ChannelShared {
            context: context.clone(),
            raw: raw.keep(),
            event,
            ready,
        })))
    }
}

/// A channel that is destroyed unless it is kept.
struct Raw<'a> {
    context: &'a Context,
    raw: NonNull<abi::CompChannel>,
}

impl Raw<'_> {
    fn keep(self) -> NonNull<abi::CompChannel> {
        let raw = self.raw;
        core::mem::forget(self);
        raw
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_create_comp_channel`, and used by no queue.
        let _ = unsafe { (self.context.api.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

impl ChannelShared {
    pub(crate) fn raw(&self) -> *mut abi::CompChannel {
        self.raw.as_ptr()
    }

    /// Makes the descriptor readable.
    pub(crate) fn fire(&self) {
        // A full counter is readable, and nothing else can fail.
        let _ = self.event.signal();
    }

    /// Takes the device's events; whether one was of a queue that is armed.
    pub(crate) fn take_events(&self) -> bool {
        let mut has_fired = false;
        for _ in 0..EVENTS_MAX {
            let (mut cq, mut armed) = (ptr::null_mut::<abi::Cq>(), ptr::null_mut::<c_void>());
            // SAFETY: the channel lives, and its descriptor does not block.
            let result = unsafe {
                (self.context.api.ibv_get_cq_event)(self.raw(), &raw mut cq, &raw mut armed)
            };
            if result != 0 {
                break;
            }
            // SAFETY: queues of this channel have an `Armed` for their context, and are not destroyed before
            // the acknowledgement below.
            has_fired |= unsafe { &*armed.cast::<Armed>() }.take();
            // SAFETY: one event of this queue was taken.
            unsafe { (self.context.api.ibv_ack_cq_events)(cq, 1) };
        }
        has_fired
    }
}

impl Drop for ChannelShared {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_create_comp_channel`; every queue that uses it held `self`.
        let _ = unsafe { (self.context.api.ibv_destroy_comp_channel)(self.raw()) };
    }
}

impl verbs::Channel for Channel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.ready.as_fd()
    }

    fn wait(&self, timeout: Duration) -> bool {
        let deadline_ns = clock::deadline_ns(timeout);
        loop {
            let is_ready = self.0.ready.wait(deadline_ns).unwrap_or(false);
            let by_queue = is_ready && self.0.event.drain().is_ok_and(|count| count > 0);
            let by_device = is_ready && self.0.take_events();
            if by_queue || by_device {
                return true;
            }
            if clock::now_ns() >= deadline_ns {
                return false;
            }
        }
    }
}
