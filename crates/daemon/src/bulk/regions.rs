//! Memory of clients that the NIC may access.

use crate::limits::Limits;
use proto::bulk::{Extent, Slice};
use rpc::{LocalRegion, Status, Worker};
use slots::{Key, SlotTable};
use std::os::fd::OwnedFd;
use verbs::Nic;

/// Regions of one client.
const REGIONS_MAX: usize = 64;

/// Regions of all clients: each is a mapping and a key of the NIC.
const ALL_MAX: u32 = 4096;

/// A region of a client.
struct Entry<N: Nic, C> {
    client: C,
    region: LocalRegion<N>,
    len_bytes: u64,
    /// Slices that are lent, and transfers from or to it.
    uses: u32,
    /// Its client is gone, or wants it no more: it goes with its last use.
    is_forgotten: bool,
}

/// The regions of all clients, by key.
pub(super) struct Regions<N: Nic, C> {
    table: SlotTable<Entry<N, C>>,
    /// Of all clients, and of one.
    limit_bytes: u64,
    client_limit_bytes: u64,
    /// Of all clients.
    held_bytes: u64,
}

impl<N: Nic, C: Copy + Eq> Regions<N, C> {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            table: SlotTable::bounded(ALL_MAX),
            limit_bytes: limits.bulk_bytes,
            client_limit_bytes: limits.caller_bulk_bytes,
            held_bytes: 0,
        }
    }

    /// Bytes that are registered.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    fn remove(&mut self, key: Key) {
        if let Some(entry) = self.table.remove(key) {
            self.held_bytes -= entry.len_bytes;
        }
    }

    /// Maps and registers memory of a client.
    pub(super) fn register(
        &mut self,
        worker: &mut Worker<N>,
        client: C,
        fd: OwnedFd,
        len_bytes: u64,
    ) -> Result<Key, Status> {
        let own = self.table.iter().filter(|(_, entry)| entry.client == client);
        let (count, sum) =
            own.fold((0, 0_u64), |(count, sum), (_, entry)| (count + 1, sum + entry.len_bytes));
        // No client gets more than is left for all others.
        let left = self.limit_bytes.saturating_sub(self.held_bytes);
        if count >= REGIONS_MAX || sum.saturating_add(len_bytes) > left.min(self.client_limit_bytes)
        {
            return Err(Status::ResourceExhausted);
        }
        let len = usize::try_from(len_bytes).map_err(|_| Status::OutOfRange)?;
        let region = worker.expose_memfd(fd, len).map_err(|error| {
            tracing::warn!(%error, "bulk memory of a client is refused");
            Status::InvalidArgument
        })?;
        let entry = Entry { client, region, len_bytes, uses: 0, is_forgotten: false };
        let key = self.table.insert(entry).map_err(|_| Status::ResourceExhausted)?;
        self.held_bytes += len_bytes;
        Ok(key)
    }

    /// A client's own region, by an alleged key.
    fn own(&self, client: C, word: u64) -> Option<(Key, &Entry<N, C>)> {
        let key = Key::from_u64(word)?;
        let entry = self.table.get(key)?;
        (entry.client == client && !entry.is_forgotten).then_some((key, entry))
    }

    /// Key and length of a client's own region.
    pub(super) fn find(&self, client: C, word: u64) -> Option<(Key, u64)> {
        self.own(client, word).map(|(key, entry)| (key, entry.len_bytes))
    }

    /// A slice of a client's own region.
    pub(super) fn slice(
        &self,
        client: C,
        word: u64,
        (offset, len_bytes): (u64, u64),
        is_writable: bool,
    ) -> Result<(Key, Slice), Status> {
        let (key, entry) = self.own(client, word).ok_or(Status::PermissionDenied)?;
        let extent = Extent::new(offset, len_bytes, entry.len_bytes).ok_or(Status::OutOfRange)?;
        Ok((key, Slice { extent, is_writable }))
    }

    pub(super) fn get(&self, key: Key) -> Option<&LocalRegion<N>> {
        self.table.get(key).map(|entry| &entry.region)
    }

    /// A slice is lent, or a transfer begins.
    pub(super) fn take(&mut self, key: Key) {
        if let Some(entry) = self.table.get_mut(key) {
            entry.uses += 1;
        }
    }

    /// The opposite of [`take`](Self::take).
    pub(super) fn give(&mut self, key: Key) {
        if let Some(entry) = self.table.get_mut(key) {
            entry.uses -= 1;
            self.remove_unused(key);
        }
    }

    fn remove_unused(&mut self, key: Key) {
        if self.table.get(key).is_some_and(|entry| entry.is_forgotten && entry.uses == 0) {
            self.remove(key);
        }
    }

    /// A client wants a region no more.
    pub(super) fn forget(&mut self, client: C, word: u64) -> Status {
        match self.own(client, word) {
            None => Status::NotFound,
            Some((_, entry)) if entry.uses > 0 => Status::FailedPrecondition,
            Some((key, _)) => {
                self.remove(key);
                Status::Ok
            }
        }
    }

    /// Forgets the regions of clients that are gone, now or with their last use.
    pub(super) fn retain(&mut self, is_there: impl Fn(C) -> bool) {
        let gone = self.table.iter().filter(|(_, entry)| !is_there(entry.client));
        let gone: Vec<Key> = gone.map(|(key, _)| key).collect();
        for key in gone {
            if let Some(entry) = self.table.get_mut(key) {
                entry.is_forgotten = true;
            }
            self.remove_unused(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use rpc::Config;

    use super::*;

    #[test]
    fn fault_i4_no_client_registers_what_is_left_for_others_and_all_comes_back() {
        let fabric = format!("regions-{}", std::process::id());
        let nic = softnic::open(&softnic::Config { fabric, ..softnic::Config::default() }).unwrap();
        let mut worker = Worker::open(nic, Config::default(), 0).unwrap();
        let limits =
            Limits { bulk_bytes: 64 << 10, caller_bulk_bytes: 24 << 10, ..Limits::default() };
        let mut regions = Regions::new(&limits);
        let memory = memory::Region::memfd("copyrpc-test", 4096).unwrap();
        memory.seal_size().unwrap();
        let mut take = |regions: &mut Regions<_, u32>, client| {
            (0..64)
                .take_while(|_| {
                    let fd = memory.fd().unwrap().as_fd().try_clone_to_owned().unwrap();
                    match regions.register(&mut worker, client, fd, 4096) {
                        Ok(_) => true,
                        Err(status) => {
                            assert_eq!(status, Status::ResourceExhausted);
                            false
                        }
                    }
                })
                .count()
        };
        let counts = [1, 2, 3, 4].map(|client| take(&mut regions, client));
        // By the limit of one first, then by what is left for others.
        assert_eq!(counts, [6, 5, 3, 1]);
        assert_eq!(regions.held_bytes(), 15 * 4096);
        regions.retain(|client| client == 4);
        assert_eq!(regions.held_bytes(), 4096);
        regions.retain(|_| false);
        assert_eq!(regions.held_bytes(), 0);
    }
}
