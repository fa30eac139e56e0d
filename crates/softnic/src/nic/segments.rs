//! The segments of a port that are mapped here.

use std::{
    collections::HashMap,
    mem,
    os::fd::OwnedFd,
    sync::{PoisonError, RwLock},
};

use memory::{
    Protection, Region,
    sync::{Arc, AtomicU64, Ordering},
};
use verbs::Shortage;

/// Looks into the socket for a segment. More than one only if the socket was full.
pub(crate) const FETCHES_MAX: u32 = 100;

/// Segments of one port that are mapped here.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    /// By number.
    regions: RwLock<HashMap<u32, Arc<Region>>>,
    /// Those that there was no memory for, by number.
    refused: RwLock<HashMap<u32, Refused>>,
    /// The newest that has ever come.
    newest: AtomicU64,
}

/// A segment that there was no memory for. Whoever needs it tries again.
#[derive(Debug)]
pub(crate) struct Refused {
    /// `None`: it could not be kept.
    pub(crate) fd: Option<OwnedFd>,
    pub(crate) shortage: Shortage,
    /// An access failed for want of it, and an event said so.
    pub(crate) is_told: bool,
}

impl Refused {
    fn map(&self) -> Result<Region, Shortage> {
        let len_bytes = usize::try_from(self.shortage.len_bytes).map_err(|_| self.shortage)?;
        let kept = self.fd.as_ref().and_then(|fd| fd.try_clone().ok());
        let fd = kept.ok_or(self.shortage)?;
        Region::map(fd, len_bytes, Protection::ReadWrite).map_err(|_| self.shortage)
    }
}

/// Whether a segment can be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Mapped,
    /// There is still no memory for it.
    Refused(Shortage),
    /// It has not come yet.
    Absent,
}

impl Segments {
    pub(crate) fn get(&self, id: u32) -> Option<Arc<Region>> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub(crate) fn insert(&self, id: u32, region: Arc<Region>) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).insert(id, region);
        self.pass(id);
    }

    /// There was no memory for segment `id`: who reaches for it fails, others do not notice.
    pub(crate) fn refuse(&self, id: u32, fd: Option<OwnedFd>, shortage: Shortage) {
        let refused = Refused { fd, shortage, is_told: false };
        self.refused.write().unwrap_or_else(PoisonError::into_inner).insert(id, refused);
        self.pass(id);
    }

    /// Whether segment `id` can be accessed; if there was no memory for it, that is tried again.
    pub(crate) fn reach(&self, id: u32) -> Reach {
        if self.regions.read().unwrap_or_else(PoisonError::into_inner).contains_key(&id) {
            return Reach::Mapped;
        }
        let mut refused = self.refused.write().unwrap_or_else(PoisonError::into_inner);
        match refused.get(&id).map(Refused::map) {
            None => Reach::Absent,
            Some(Err(shortage)) => Reach::Refused(shortage),
            Some(Ok(region)) => {
                refused.remove(&id);
                self.insert(id, Arc::new(region.detach().unmapped_apart()));
                Reach::Mapped
            }
        }
    }

    /// An access failed for want of a segment; returns whether that is news.
    pub(crate) fn tell(&self, id: u32) -> bool {
        let mut refused = self.refused.write().unwrap_or_else(PoisonError::into_inner);
        refused.get_mut(&id).is_some_and(|refused| !mem::replace(&mut refused.is_told, true))
    }

    /// Segment `id` has come, whether it is mapped or not.
    fn pass(&self, id: u32) {
        // SYNC(segment-here): pairs with the `Acquire` in `is_complete`.
        self.newest.fetch_max(u64::from(id), Ordering::Release);
    }

    pub(crate) fn remove(&self, id: u32) -> Option<Arc<Region>> {
        self.refused.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        self.regions.write().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }

    /// Forgets all: their port is dead. Those that a thread is inside of stay mapped until it has left.
    pub(crate) fn clear(&self) {
        self.refused.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.regions.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Those that are mapped, and those that were refused.
    pub(crate) fn len(&self) -> usize {
        let refused = self.refused.read().unwrap_or_else(PoisonError::into_inner).len();
        self.regions.read().unwrap_or_else(PoisonError::into_inner).len() + refused
    }

    /// Bytes of those that are mapped.
    pub(crate) fn bytes(&self) -> usize {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.values().map(|region| region.len()).sum()
    }

    /// The newest that has ever come.
    #[inline(always)]
    pub(crate) fn newest(&self) -> u64 {
        // SYNC(segment-here): pairs with the `Release` in `pass`.
        self.newest.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use verbs::Lid;

    use super::*;

    /// A sealed memfd, which takes no memory.
    fn sparse(len_bytes: u64) -> OwnedFd {
        let fd = memfd_create("segment", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, len_bytes).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        fd
    }

    fn shortage(len_bytes: u64) -> Shortage {
        Shortage { what: "registered memory", len_bytes, peer: Lid::new(3) }
    }

    /// What was refused is mapped as soon as there is memory, and refused again until then; an event is told once.
    #[test]
    fn fault_i8_a_segment_that_was_refused_is_there_once_there_is_memory() {
        const MORE_THAN_ANY: u64 = 1 << 47;
        let segments = Segments::default();
        assert_eq!(segments.reach(1), Reach::Absent);
        segments.refuse(1, Some(sparse(MORE_THAN_ANY)), shortage(MORE_THAN_ANY));
        segments.refuse(2, Some(sparse(4096)), shortage(4096));
        for _ in 0..3 {
            assert_eq!(segments.reach(1), Reach::Refused(shortage(MORE_THAN_ANY)));
        }
        assert_eq!([(); 2].map(|()| segments.tell(1)), [true, false]);
        assert_eq!((segments.reach(2), segments.len()), (Reach::Mapped, 2));
        assert!(segments.get(2).is_some() && !segments.tell(2));
        segments.remove(1);
        assert_eq!((segments.reach(1), segments.len()), (Reach::Absent, 1));
    }
}
