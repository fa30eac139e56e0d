//! Registered memory: segments, keys, and the check that every access goes through.

use core::ptr::NonNull;
use memory::{
    Region,
    sync::{Arc, Ordering},
};
use verbs::{Access, AsyncEvent};

use crate::nic::{
    card::{
        Card,
        layout::{MrEntry, is_valid_key},
    },
    config::Atomics,
    engine::{Chunk, Memory, MemoryFault},
    port_state::PortState,
    segments::{FETCHES_MAX, Reach, Segments},
};
use crate::shared::port_lock::PortLock;

/// Regions that a queue used lately, so that the common access costs one load.
#[derive(Debug, Default)]
pub(crate) struct MrCache([Option<CachedMr>; CACHE_WAYS]);

const CACHE_WAYS: usize = 8;

impl MrCache {
    #[inline(always)]
    fn slot(key: u32) -> usize {
        (key >> 8) as usize % CACHE_WAYS
    }

    /// The region with `key`, if it is here and still has that key.
    #[inline(always)]
    fn find(&self, key: u32) -> Option<&CachedMr> {
        self.0[Self::slot(key)].as_ref().filter(|mr| mr.key == key && mr.is_current())
    }

    /// Forgets the regions that are no longer registered: the cache keeps their bytes mapped.
    pub(crate) fn forget_stale(&mut self) {
        for place in &mut self.0 {
            place.take_if(|mr| !mr.is_current());
        }
    }

    /// Forgets every region: the port that registered them is dead.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A region as it was when it was looked up; valid while its entry still has the same key.
#[derive(Debug)]
struct CachedMr {
    key: u32,
    /// What the entry's key word says while this is so.
    valid: u64,
    entry: NonNull<MrEntry>,
    /// Keeps `entry` mapped.
    _card: Card,
    addr: u64,
    len_bytes: u64,
    access: Access,
    pd: u32,
    /// Keeps the bytes mapped.
    region: Arc<Region>,
}

// SAFETY: `entry` leads into a mapping that `_card` keeps and holds atomics.
unsafe impl Send for CachedMr {}

impl CachedMr {
    fn resolve(card: &Card, segments: &Segments, key: u32) -> Result<Self, MemoryFault> {
        let entry = card.mr(key >> 8).ok_or(MemoryFault::Denied)?;
        // SYNC(mr-entry): pairs with the owner's `Release` when it registered the region.
        let valid = entry.key.load(Ordering::Acquire);
        if !is_valid_key(valid, key) {
            return Err(MemoryFault::Denied);
        }
        let access_pd = entry.access_pd.load(Ordering::Relaxed);
        let segment = entry.segment.load(Ordering::Relaxed);
        let len_bytes = entry.len_bytes.load(Ordering::Relaxed);
        let segment = u32::try_from(segment).map_err(|_| MemoryFault::Denied)?;
        let region = segments.get(segment).ok_or(MemoryFault::Absent)?;
        if len_bytes > region.len() as u64 {
            return Err(MemoryFault::Denied);
        }
        #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
        let (access, pd) = ((access_pd >> 32) as u32, access_pd as u32);
        Ok(Self {
            key,
            valid,
            entry: NonNull::from(entry),
            _card: card.clone(),
            addr: entry.addr.load(Ordering::Relaxed),
            len_bytes,
            access: Access::from_bits_truncate(access),
            pd,
            region,
        })
    }

    #[inline]
    fn is_current(&self) -> bool {
        // SAFETY: `_card` keeps it mapped; this is a load.
        let entry = unsafe { self.entry.as_ref() };
        entry.key.load(Ordering::Relaxed) == self.valid
    }

    /// `len` bytes at `addr`, if they are inside, and `pd` may do there what it needs.
    #[inline(always)]
    fn piece(&self, addr: u64, len: u64, need: Access, pd: u32) -> Option<Chunk> {
        let offset = addr.wrapping_sub(self.addr);
        let inside = offset <= self.len_bytes && len <= self.len_bytes - offset;
        if !inside || self.pd != pd || !self.access.contains(need) {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "inside a mapping")]
        let (offset, len) = (offset as usize, len as usize);
        let ptr = self.region.as_ptr().as_ptr().wrapping_add(offset);
        Some(Chunk { ptr, len, is_inline: false })
    }
}

/// Memory of one port as one queue reaches it.
#[derive(Debug)]
pub(crate) struct PortMemory<'a> {
    pub(crate) cache: &'a mut MrCache,
    pub(crate) card: &'a Card,
    pub(crate) segments: &'a Segments,
    /// The port that accesses; it can look for segments that are on their way.
    pub(crate) port: &'a PortState,
}

impl PortMemory<'_> {
    /// A region is shown before its key is known to anybody, so its segment is in the socket.
    #[cold]
    fn resolve(&self, key: u32) -> Result<CachedMr, MemoryFault> {
        for _ in 0..FETCHES_MAX {
            match CachedMr::resolve(self.card, self.segments, key) {
                Err(MemoryFault::Absent) if self.tell_refused(key) => break,
                Err(MemoryFault::Absent) => self.port.fetch(),
                found => return found,
            }
        }
        Err(MemoryFault::Absent)
    }

    /// Whether there is no memory for the segment of a region. Whoever polls for events is told, once.
    fn tell_refused(&self, key: u32) -> bool {
        let segment = self.card.mr(key >> 8).map(|entry| entry.segment.load(Ordering::Relaxed));
        let segment = segment.and_then(|segment| u32::try_from(segment).ok());
        let Some(segment) = segment else { return false };
        let Reach::Refused(shortage) = self.segments.reach(segment) else { return false };
        if self.segments.tell(segment) {
            self.port.add_event(AsyncEvent::NoMemory(shortage));
        }
        true
    }
}

/// A piece of memory that the program may have given back meanwhile. Such a region is not remembered: nothing
/// keeps its bytes mapped, so each access asks for them.
#[cold]
fn lent_piece(
    mr: &CachedMr,
    addr: u64,
    len: u64,
    need: Access,
    pd: u32,
) -> Result<Chunk, MemoryFault> {
    let writes = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
    let chunk = mr.piece(addr, len, need, pd).ok_or(MemoryFault::Denied)?;
    let is_there = memory::lent::is_there(chunk.ptr, chunk.len, need.intersects(writes));
    if is_there { Ok(chunk) } else { Err(MemoryFault::Denied) }
}

impl Memory for PortMemory<'_> {
    #[inline(always)]
    fn locate(
        &mut self,
        key: u32,
        addr: u64,
        len: u64,
        need: Access,
        pd: u32,
    ) -> Result<Chunk, MemoryFault> {
        if self.cache.find(key).is_none() {
            let mr = self.resolve(key)?;
            if mr.region.is_lent() {
                return lent_piece(&mr, addr, len, need, pd);
            }
            self.cache.0[MrCache::slot(key)] = Some(mr);
        }
        let mr = self.cache.find(key).ok_or(MemoryFault::Denied)?;
        mr.piece(addr, len, need, pd).ok_or(MemoryFault::Denied)
    }

    #[inline(always)]
    fn is_complete(&self) -> bool {
        let shown = self.card.header().newest_segment.load(Ordering::Relaxed);
        self.segments.newest() >= shown
    }

    #[cold]
    fn complete(&mut self) -> bool {
        self.port.fetch();
        self.is_complete()
    }

    #[inline(always)]
    fn locate_known(&self, key: u32, addr: u64, len: u64, need: Access, pd: u32) -> Option<Chunk> {
        self.cache.find(key)?.piece(addr, len, need, pd)
    }

    fn atomics_lock(&self) -> Option<PortLock<'_>> {
        let is_needed = self.port.config.atomics == Atomics::Nic;
        is_needed.then(|| PortLock(&self.card.shared().atomics))
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use verbs::MemoryRegion as _;

    use super::*;
    use crate::{Config, open};

    /// What was used lately is looked up by place, and there are few places.
    #[test]
    fn a_region_is_found_by_its_key_alone_and_while_it_is_registered() {
        let fabric = format!("found-{}", std::process::id());
        let nic = open(&Config { fabric, card_mib: 8, ..Config::default() }).unwrap();
        let port = &nic.device().0.port;
        let pd = port.new_id();
        let alloc = || {
            crate::nic::mr::Mr::alloc(port, &nic.device().1, pd, 64, Access::LOCAL_WRITE).unwrap()
        };
        let mut regions: Vec<_> = (0..=CACHE_WAYS).map(|_| alloc()).collect();
        let mut cache = MrCache::default();
        let (card, segments) = (&port.owner.card, &port.segments);
        let mut memory = PortMemory { cache: &mut cache, card, segments, port };
        let mut locate = |key: u32, addr| {
            let need = Access::LOCAL_WRITE;
            let found = memory.locate(key, addr, 64, need, pd).map(|chunk| chunk.ptr as u64);
            assert_eq!(memory.locate_known(key, addr, 64, need, pd).is_some(), found.is_ok());
            found
        };
        let names = |mr: &crate::nic::mr::Mr| (mr.rkey().get(), mr.addr());
        let [first, last] = [0, CACHE_WAYS].map(|nth| names(&regions[nth]));
        assert_eq!(MrCache::slot(first.0), MrCache::slot(last.0));
        for (key, addr) in [first, last, first] {
            assert_eq!(locate(key, addr), Ok(addr));
        }
        regions.remove(0).deregister().unwrap();
        assert_eq!(locate(first.0, first.1), Err(MemoryFault::Denied));
        // What its owner says of a region is no reason to leave the memory that is mapped.
        let entry = card.mr(last.0 >> 8).unwrap();
        entry.len_bytes.store(1 << 40, Ordering::Relaxed);
        assert_eq!(locate(last.0, last.1), Err(MemoryFault::Denied));
    }

    /// After 256 registrations under a number.
    #[test]
    fn a_region_that_is_remembered_is_not_taken_for_a_later_one_of_its_key() {
        let fabric = format!("same-key-{}", std::process::id());
        let nic = open(&Config { fabric, card_mib: 8, ..Config::default() }).unwrap();
        let port = &nic.device().0.port;
        let pd = port.new_id();
        let alloc = |len| {
            crate::nic::mr::Mr::alloc(port, &nic.device().1, pd, len, Access::LOCAL_WRITE).unwrap()
        };
        let (card, segments) = (&port.owner.card, &port.segments);
        let mut cache = MrCache::default();
        let mut memory = PortMemory { cache: &mut cache, card, segments, port };
        let mut locate = |mr: &crate::nic::mr::Mr| {
            memory.locate(mr.rkey().get(), mr.addr(), 64, Access::LOCAL_WRITE, pd)
        };
        let first = alloc(64);
        locate(&first).unwrap();
        let key = first.rkey();
        first.deregister().unwrap();
        while port.owner.unused().1[0] > 1 {
            port.owner.take_index(crate::nic::card::Table::Mr);
        }
        let next = loop {
            let next = alloc(1 << 20);
            if next.rkey() == key {
                break next;
            }
            next.deregister().unwrap();
        };
        assert_eq!(locate(&next).map(|chunk| chunk.ptr as u64), Ok(next.addr()));
    }
}
