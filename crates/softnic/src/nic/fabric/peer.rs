//! Another port, as far as it is mapped here.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{PoisonError, RwLock},
};

use memory::{
    Protection, Region,
    sync::{Arc, AtomicBool, Ordering},
};
use os::{event::EventFd, process::Process, unix::UnixConnection};

use super::message::Hello;
use crate::nic::{
    card::{Card, CardError, layout::Limits},
    segments::Segments,
};

/// Channels that one port can show.
pub(crate) const CHANNELS_MAX: u32 = 4096;

/// A port that has shown its memory.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) lid: u16,
    pub(super) instance: u64,
    pub(crate) card: Card,
    pub(crate) segments: Segments,
    channels: RwLock<HashMap<u32, Arc<EventFd>>>,
    /// This port has admitted it: it may use this port's memory. Changes under the lock of the fabric.
    is_admitted: AtomicBool,
    /// It has admitted this port: this port may use its memory.
    has_admitted: AtomicBool,
    /// Set once, when its socket closes or its process ends.
    marked_dead: AtomicBool,
    process: Option<Process>,
}

impl Peer {
    pub(super) fn new(
        hello: &Hello,
        limits: Limits,
        ro: OwnedFd,
        rw: OwnedFd,
        connection: &UnixConnection,
    ) -> Result<Self, CardError> {
        let ro = Region::map(ro, limits.ro_bytes, Protection::ReadOnly)?.detach();
        let rw = Region::map(rw, limits.rw_bytes, Protection::ReadWrite)?.detach();
        Ok(Self {
            lid: hello.lid,
            instance: hello.instance,
            card: Card::attach(ro, rw, limits)?,
            segments: Segments::default(),
            channels: RwLock::default(),
            is_admitted: AtomicBool::new(false),
            has_admitted: AtomicBool::new(false),
            marked_dead: AtomicBool::new(false),
            // Without a handle the socket alone tells of its death.
            process: connection.peer_process().ok(),
        })
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.is_admitted.load(Ordering::Relaxed)
    }

    pub(super) fn admit(&self) {
        self.is_admitted.store(true, Ordering::Relaxed);
    }

    /// Whether it has let this port in: before, its memory is not to be used.
    pub(crate) fn has_admitted(&self) -> bool {
        // SYNC(welcome): pairs with the `Release` in `welcomes`: what it did before it sent that.
        self.has_admitted.load(Ordering::Acquire)
    }

    /// Its welcome has come.
    pub(super) fn welcomes(&self) {
        // SYNC(welcome): pairs with the `Acquire` in `has_admitted`.
        self.has_admitted.store(true, Ordering::Release);
    }

    /// Whether it is known to be gone. No system call.
    #[inline]
    pub(crate) fn is_marked_dead(&self) -> bool {
        self.marked_dead.load(Ordering::Relaxed)
    }

    /// Marks it gone; `true` for the first to do so.
    pub(super) fn mark_dead(&self) -> bool {
        !self.marked_dead.swap(true, Ordering::AcqRel)
    }

    /// Whether it is gone, by asking the kernel.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_marked_dead() || self.process.as_ref().is_some_and(Process::is_dead)
    }

    pub(super) fn add_channel(&self, id: u32, event: EventFd) -> bool {
        let mut channels = self.channels.write().unwrap_or_else(PoisonError::into_inner);
        channels.insert(id, Arc::new(event));
        channels.len() <= CHANNELS_MAX as usize
    }

    pub(super) fn remove_channel(&self, id: u32) {
        self.channels.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Makes a channel of this port readable.
    pub(crate) fn signal(&self, id: u32) -> bool {
        let channels = self.channels.read().unwrap_or_else(PoisonError::into_inner);
        channels.get(&id).is_some_and(|event| event.signal().is_ok())
    }
}
