//! What is destroyed while a peer is stopped inside it, until that peer has gone on or died.

use core::{any::Any, fmt};

use memory::sync::Arc;

/// An object that nobody may enter any more, and that somebody has not left.
pub(crate) struct LeftBehind {
    /// A queue pair: its queues stay where they are, and its number is not given out again. Or the bytes of a
    /// region.
    _object: Arc<dyn Any + Send + Sync>,
    /// Index of the region's key, which is given back afterwards.
    pub(crate) key_index: Option<u32>,
}

impl LeftBehind {
    pub(crate) fn queue_pair<T: Send + Sync + 'static>(queue_pair: Arc<T>) -> Self {
        Self { _object: queue_pair, key_index: None }
    }

    pub(crate) fn region<T: Send + Sync + 'static>(key_index: u32, bytes: Arc<T>) -> Self {
        Self { _object: bytes, key_index: Some(key_index) }
    }
}

impl fmt::Debug for LeftBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeftBehind").field("key_index", &self.key_index).finish_non_exhaustive()
    }
}
