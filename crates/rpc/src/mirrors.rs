//! Mirrors of the rings of peers, many of them in one registered region.
//!
//! No peer reaches a mirror: it is where batches are gathered from. So all share keys, and an adapter translates their addresses by
//! few entries, on huge pages where regions are long. Rings, which peers write, have a key each, so that no peer reaches what
//! another one writes.

use core::cell::RefCell;
use std::rc::{Rc, Weak};

use verbs::{Access, MemoryError, MemoryRegion as _, Nic, Sge};

/// Mirrors of one region. Each region has as many as all before it, up to this: jobs of two nodes waste nothing.
const SLOTS_MAX: usize = 32;

struct Chunk<N: Nic> {
    mr: N::Mr,
    /// Bytes of one mirror.
    slot_bytes: usize,
    free: RefCell<Vec<usize>>,
}

/// One mirror. Its bytes are the NIC's from posting to credit.
pub(crate) struct Mirror<N: Nic> {
    chunk: Rc<Chunk<N>>,
    offset_bytes: usize,
}

impl<N: Nic> Mirror<N> {
    /// Copies a batch to where it will lie in the ring.
    #[inline]
    pub(crate) fn write(&self, offset_bytes: usize, batch: &[u8]) {
        assert!(offset_bytes + batch.len() <= self.chunk.slot_bytes, "it exceeds the mirror");
        self.chunk.mr.write(self.offset_bytes + offset_bytes, batch);
    }

    #[inline]
    pub(crate) fn sge(&self, offset_bytes: usize, len_bytes: usize) -> Sge {
        self.chunk.mr.sge(self.offset_bytes + offset_bytes, len_bytes)
    }
}

impl<N: Nic> Drop for Mirror<N> {
    fn drop(&mut self) {
        self.chunk.free.borrow_mut().push(self.offset_bytes);
    }
}

/// The regions of all mirrors: each goes with its last one.
pub(crate) struct Mirrors<N: Nic> {
    chunks: Vec<Weak<Chunk<N>>>,
    /// Peers of the worker.
    peers_max: usize,
}

impl<N: Nic> Mirrors<N> {
    pub(crate) fn new(peers_max: u16) -> Self {
        Self { chunks: Vec::new(), peers_max: peers_max.into() }
    }

    /// A mirror of so many bytes. `register` makes a region.
    pub(crate) fn take(
        &mut self,
        slot_bytes: usize,
        register: impl FnOnce(usize, Access) -> Result<N::Mr, MemoryError>,
    ) -> Result<Mirror<N>, MemoryError> {
        let mut slots = 0;
        let mut found = None;
        self.chunks.retain(|chunk| {
            let Some(chunk) = chunk.upgrade() else { return false };
            slots += chunk.mr.len_bytes() / chunk.slot_bytes;
            if found.is_none() && chunk.slot_bytes == slot_bytes {
                let offset_bytes = chunk.free.borrow_mut().pop();
                found = offset_bytes.map(|offset_bytes| Mirror { chunk, offset_bytes });
            }
            true
        });
        if let Some(mirror) = found {
            return Ok(mirror);
        }
        let count = slots.clamp(1, SLOTS_MAX).min(self.peers_max.saturating_sub(slots).max(1));
        let mr = register(count * slot_bytes, Access::LOCAL_WRITE)?;
        let free = (1..count).rev().map(|slot| slot * slot_bytes).collect();
        let chunk = Rc::new(Chunk { mr, slot_bytes, free: RefCell::new(free) });
        self.chunks.push(Rc::downgrade(&chunk));
        Ok(Mirror { chunk, offset_bytes: 0 })
    }
}
