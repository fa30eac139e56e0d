//! Another port, as far as it is mapped here.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{PoisonError, RwLock},
};

use memory::{
    Access, Region,
    sync::{Arc, AtomicBool, Ordering},
};
use os::{event::Event, process::Process, rendezvous::Connection};

use super::message::Hello;
use crate::{
    card::{Card, CardError, layout::Limits},
    memory::Segments,
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
    channels: RwLock<HashMap<u32, Arc<Event>>>,
    /// It may use this port's memory; changes under the lock of the fabric.
    is_let_in: AtomicBool,
    /// This port may use its memory.
    has_let_in: AtomicBool,
    /// Set once, when its socket closes or its process ends.
    buried: AtomicBool,
    process: Option<Process>,
}

impl Peer {
    pub(super) fn new(
        hello: &Hello,
        limits: Limits,
        ro: OwnedFd,
        rw: OwnedFd,
        connection: &Connection,
    ) -> Result<Self, CardError> {
        let ro = Region::map(ro, limits.ro_bytes, Access::ReadOnly)?.detach();
        let rw = Region::map(rw, limits.rw_bytes, Access::ReadWrite)?.detach();
        Ok(Self {
            lid: hello.lid,
            instance: hello.instance,
            card: Card::attach(ro, rw, limits)?,
            segments: Segments::default(),
            channels: RwLock::default(),
            is_let_in: AtomicBool::new(false),
            has_let_in: AtomicBool::new(false),
            buried: AtomicBool::new(false),
            // Without a handle the socket alone tells of its death.
            process: connection.peer_process().ok(),
        })
    }

    pub(super) fn is_let_in(&self) -> bool {
        self.is_let_in.load(Ordering::Relaxed)
    }

    pub(super) fn let_in(&self) {
        self.is_let_in.store(true, Ordering::Relaxed);
    }

    /// Whether it has let this port in: before, its memory is not to be used.
    pub(crate) fn has_let_in(&self) -> bool {
        // SYNC(welcome): pairs with the `Release` in `welcomes`: what it did before it sent that.
        self.has_let_in.load(Ordering::Acquire)
    }

    /// Its welcome has come.
    pub(super) fn welcomes(&self) {
        // SYNC(welcome): pairs with the `Acquire` in `has_let_in`.
        self.has_let_in.store(true, Ordering::Release);
    }

    /// Whether it is known to be gone. No system call.
    #[inline]
    pub(crate) fn is_buried(&self) -> bool {
        self.buried.load(Ordering::Relaxed)
    }

    /// Marks it gone; `true` for the first to do so.
    pub(super) fn bury(&self) -> bool {
        !self.buried.swap(true, Ordering::AcqRel)
    }

    /// Whether it is gone, by asking the kernel.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_buried() || self.process.as_ref().is_some_and(Process::is_dead)
    }

    pub(super) fn add_channel(&self, id: u32, event: Event) -> bool {
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
