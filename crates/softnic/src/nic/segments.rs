//! The segments of a port that are mapped here.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use memory::{
    Region,
    sync::{Arc, AtomicU64, Ordering},
};
use verbs::Shortage;

/// Segments of one port that are mapped here.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    /// By number.
    regions: RwLock<HashMap<u32, Arc<Region>>>,
    /// Those that there was no memory for, by number, until somebody needs them.
    refused: RwLock<HashMap<u32, Shortage>>,
    /// The newest that has ever come.
    newest: AtomicU64,
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
    pub(crate) fn refuse(&self, id: u32, shortage: Shortage) {
        self.refused.write().unwrap_or_else(PoisonError::into_inner).insert(id, shortage);
        self.pass(id);
    }

    /// Why segment `id` is not mapped, if it was refused; told once.
    pub(crate) fn take_refused(&self, id: u32) -> Option<Shortage> {
        self.refused.write().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }

    /// Segment `id` has come, whether it is mapped or not.
    fn pass(&self, id: u32) {
        // SYNC(segment-here): pairs with the `Acquire` in `is_complete`.
        self.newest.fetch_max(u64::from(id), Ordering::Release);
    }

    pub(crate) fn remove(&self, id: u32) -> Option<Arc<Region>> {
        self.take_refused(id);
        self.regions.write().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }

    /// Those that are mapped, and those that were refused.
    pub(crate) fn len(&self) -> usize {
        let refused = self.refused.read().unwrap_or_else(PoisonError::into_inner).len();
        self.regions.read().unwrap_or_else(PoisonError::into_inner).len() + refused
    }

    /// The newest that has ever come.
    #[inline(always)]
    pub(crate) fn newest(&self) -> u64 {
        // SYNC(segment-here): pairs with the `Release` in `pass`.
        self.newest.load(Ordering::Acquire)
    }
}
