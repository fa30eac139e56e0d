//! The memory that each process lends, on all threads of a daemon and over all its connections.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::client_port::ClientTag;

/// The owner of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Maker {
    /// A process, by its number.
    Process(u32),
    /// A connection of a process that the kernel gives no number: it is of another namespace.
    Connection(ClientTag),
}

impl Maker {
    /// The process of a connection.
    pub(crate) fn of(process: Option<ipc::ClientProcess>, tag: ClientTag) -> Self {
        match process {
            Some(process) if process.pid != 0 => Self::Process(process.pid),
            _ => Self::Connection(tag),
        }
    }
}

/// Regions and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RegionCount {
    pub(crate) regions: usize,
    pub(crate) bytes: u64,
}

impl RegionCount {
    pub(crate) fn add(&mut self, len_bytes: u64) {
        self.regions += 1;
        self.bytes += len_bytes;
    }

    pub(crate) fn remove(&mut self, len_bytes: u64) {
        self.regions -= 1;
        self.bytes -= len_bytes;
    }

    /// The lesser of each of both.
    pub(crate) fn least(self, other: Self) -> Self {
        Self { regions: self.regions.min(other.regions), bytes: self.bytes.min(other.bytes) }
    }

    /// Whether a region more stays within these bounds.
    pub(crate) fn has_room(self, len_bytes: u64, bounds: Self) -> bool {
        self.regions < bounds.regions && self.bytes.saturating_add(len_bytes) <= bounds.bytes
    }
}

/// What each process has registered. Threads share it.
#[derive(Debug, Default)]
pub(crate) struct ProcessRegions(Mutex<BTreeMap<Maker, RegionCount>>);

impl ProcessRegions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Maker, RegionCount>> {
        // Changes under the lock are single calls, so a panic in between leaves them consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a process has.
    pub(crate) fn of(&self, maker: Maker) -> RegionCount {
        self.lock().get(&maker).copied().unwrap_or_default()
    }

    pub(crate) fn add(&self, maker: Maker, len_bytes: u64) {
        self.lock().entry(maker).or_default().add(len_bytes);
    }

    pub(crate) fn remove(&self, maker: Maker, len_bytes: u64) {
        let mut all = self.lock();
        if let Some(count) = all.get_mut(&maker) {
            count.remove(len_bytes);
            if count.regions == 0 {
                all.remove(&maker);
            }
        }
    }
}
