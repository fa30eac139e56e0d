//! Memory of clients that the NIC may access.

use ids::slots::{Key, SlotTable};
use memory::sync::Arc;
use proto::bulk::{Extent, Slice};
use rpc::{LocalRegion, Status};
use verbs::{MemoryError, Nic};

use crate::{
    limits::Limits,
    process_regions::{Maker, ProcessRegions, RegionCount},
};

/// A region of a client: a mapping, a descriptor and a key of the NIC.
struct Entry<N: Nic, C> {
    client: C,
    /// Whose share it counts against.
    maker: Maker,
    region: LocalRegion<N>,
    len_bytes: u64,
    /// Slices that are lent, and transfers from or to it.
    uses: u32,
    /// Its client is gone, or wants it no more: it goes with its last use.
    is_forgotten: bool,
}

/// The share that a region of a client takes, before it is registered and afterwards.
pub(super) struct Reserved<C> {
    client: C,
    maker: Maker,
    len_bytes: u64,
}

impl<C: Copy> Reserved<C> {
    pub(super) fn client(&self) -> C {
        self.client
    }

    pub(super) fn maker(&self) -> Maker {
        self.maker
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

/// The regions of all clients, by key.
pub(super) struct Regions<N: Nic, C> {
    table: SlotTable<Entry<N, C>>,
    /// Of all clients of this thread, and of one process.
    bounds: RegionCount,
    process_bounds: RegionCount,
    /// Of all clients of this thread.
    held: RegionCount,
    processes: Arc<ProcessRegions>,
}

impl<N: Nic, C: Copy + Eq> Regions<N, C> {
    pub(super) fn new(limits: &Limits, processes: Arc<ProcessRegions>) -> Self {
        let (regions, bytes) = (limits.regions, limits.bulk_bytes);
        let process_bounds =
            RegionCount { regions: limits.regions_per_process, bytes: limits.caller_bulk_bytes };
        Self {
            table: SlotTable::bounded(u32::try_from(regions).unwrap_or(u32::MAX)),
            bounds: RegionCount { regions, bytes },
            process_bounds,
            held: RegionCount::default(),
            processes,
        }
    }

    /// Regions and bytes that are registered.
    pub(super) fn held(&self) -> RegionCount {
        self.held
    }

    fn remove(&mut self, key: Key) {
        if let Some(Entry { client, maker, len_bytes, .. }) = self.table.remove(key) {
            self.release(Reserved { client, maker, len_bytes });
        }
    }

    /// Whether a process may register a region of this length now.
    ///
    /// # Errors
    ///
    /// [`Status::OutOfRange`]: never; [`Status::ResourceExhausted`]: not now.
    pub(super) fn check_share(&self, maker: Maker, len_bytes: u64) -> Result<(), Status> {
        if len_bytes > self.process_bounds.bytes {
            return Err(Status::OutOfRange);
        }
        // No process gets more than is left for all others.
        let left = RegionCount {
            regions: self.bounds.regions.saturating_sub(self.held.regions),
            bytes: self.bounds.bytes.saturating_sub(self.held.bytes),
        };
        let bounds = self.process_bounds.least(left);
        if self.processes.of(maker).has_room(len_bytes, bounds) {
            Ok(())
        } else {
            Err(Status::ResourceExhausted)
        }
    }

    /// Takes the share of a region that a client is to get.
    ///
    /// # Errors
    ///
    /// As of [`check_share`](Self::check_share).
    pub(super) fn reserve(
        &mut self,
        client: C,
        maker: Maker,
        len_bytes: u64,
    ) -> Result<Reserved<C>, Status> {
        self.check_share(maker, len_bytes)?;
        self.held.add(len_bytes);
        self.processes.add(maker, len_bytes);
        Ok(Reserved { client, maker, len_bytes })
    }

    /// Gives a share back.
    pub(super) fn release(&mut self, reserved: Reserved<C>) {
        self.held.remove(reserved.len_bytes);
        self.processes.remove(reserved.maker, reserved.len_bytes);
    }

    /// Adds a region, if it was registered; else its share is given back.
    ///
    /// # Errors
    ///
    /// The status of `made`; [`Status::ResourceExhausted`].
    pub(super) fn insert(
        &mut self,
        reserved: Reserved<C>,
        made: Result<LocalRegion<N>, Status>,
    ) -> Result<Key, Status> {
        let Reserved { client, maker, len_bytes } = reserved;
        let inserted = made.and_then(|region| {
            let entry = Entry { client, maker, region, len_bytes, uses: 0, is_forgotten: false };
            self.table.insert(entry).map_err(|_| Status::ResourceExhausted)
        });
        if inserted.is_err() {
            self.release(Reserved { client, maker, len_bytes });
        }
        inserted
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
        if !entry.region.has_pages() {
            return Err(Status::DataLoss);
        }
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

/// Whose fault it is that memory was not registered.
pub(super) fn status_of(error: &MemoryError) -> Status {
    match error {
        MemoryError::Foreign => Status::Unimplemented,
        MemoryError::Unfit { .. } | MemoryError::Length { .. } | MemoryError::Access(_) => {
            Status::InvalidArgument
        }
        // Keys, descriptors, memory, or the kernel.
        _ => Status::ResourceExhausted,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, OwnedFd};

    use rpc::{Config, Worker};

    use super::*;

    type Nic = softnic::Nic;

    struct Rig {
        worker: Worker<Nic>,
        memory: memory::Region,
    }

    impl Regions<Nic, u32> {
        /// Of a NIC that does it at once.
        fn register(
            &mut self,
            worker: &mut Worker<Nic>,
            client: u32,
            maker: Maker,
            fd: OwnedFd,
            len_bytes: u64,
        ) -> Result<Key, Status> {
            let reserved = self.reserve(client, maker, len_bytes)?;
            let mut registration =
                worker.begin_expose_memfd(fd, usize::try_from(len_bytes).unwrap());
            let made = registration.poll().unwrap().map_err(|error| status_of(&error));
            self.insert(reserved, made)
        }
    }

    impl Rig {
        fn new(name: &str) -> Self {
            let fabric = format!("{name}-{}", std::process::id());
            let config = softnic::Config { fabric, ..softnic::Config::default() };
            let worker = Worker::open(softnic::open(&config).unwrap(), Config::default(), 0);
            let memory = memory::Region::memfd("copyrpc-test", 4096).unwrap();
            Self { worker: worker.unwrap(), memory }
        }

        /// A region of one page of connection `client` of process `pid`.
        fn add(
            &mut self,
            regions: &mut Regions<Nic, u32>,
            client: u32,
            pid: u32,
        ) -> Result<Key, Status> {
            let fd = self.memory.fd().unwrap().as_fd().try_clone_to_owned().unwrap();
            regions.register(&mut self.worker, client, Maker::Process(pid), fd, 4096)
        }

        /// As many as a process gets, over four connections.
        fn fill(&mut self, regions: &mut Regions<Nic, u32>, pid: u32) -> usize {
            let taken = (0..1000).map(|nth| self.add(regions, pid * 4 + nth % 4, pid));
            let is_taken = |result: &Result<Key, Status>| {
                let result = result.as_ref();
                result.inspect_err(|status| assert_eq!(**status, Status::ResourceExhausted)).is_ok()
            };
            taken.take_while(is_taken).count()
        }
    }

    /// However many connections it has, and on which thread they are.
    #[test]
    fn fault_i4_a_process_has_one_share_of_regions_on_all_connections_and_threads() {
        let mut rig = Rig::new("share-of-regions");
        let limits = Limits { regions: 200, ..Limits::default() };
        let processes = Arc::new(ProcessRegions::default());
        let mut first = Regions::new(&limits, Arc::clone(&processes));
        let mut second = Regions::new(&limits, Arc::clone(&processes));
        assert_eq!(rig.fill(&mut first, 1), 64);
        assert_eq!(rig.fill(&mut second, 1), 0, "on another thread");
        // By what is left for all others, so that the next one finds some.
        assert_eq!([2, 3, 4].map(|pid| rig.fill(&mut first, pid)), [64, 36, 18]);
        assert!(rig.add(&mut first, 40, 10).is_ok());
        first.retain(|client| client == 40);
        assert_eq!(first.held(), RegionCount { regions: 1, bytes: 4096 });
        assert_eq!(rig.fill(&mut second, 1), 64, "its share is back");
        drop((first, second));
    }

    /// The daemon's own registrations find keys and descriptors, whatever processes do.
    #[test]
    fn fault_i4_all_regions_of_all_processes_leave_keys_for_the_daemon() {
        let mut rig = Rig::new("keys-left");
        let limits = Limits::default();
        let mut regions = Regions::new(&limits, Arc::default());
        let filled: usize = (1..200).map(|pid| rig.fill(&mut regions, pid)).sum();
        assert!(filled <= limits.regions && filled > limits.regions / 2, "{filled}");
        let own: Vec<_> = (0..1024).map(|_| rig.worker.expose(4096).unwrap()).collect();
        drop(own);
    }

    #[test]
    fn a_refusal_says_whether_it_is_the_process_the_daemon_or_the_nic() {
        let mut rig = Rig::new("refusals");
        let limits = Limits { caller_bulk_bytes: 64 << 10, ..Limits::default() };
        let mut regions = Regions::new(&limits, Arc::default());
        let mut refused = |memory: &memory::Region, len_bytes| {
            let fd = memory.fd().unwrap().as_fd().try_clone_to_owned().unwrap();
            let maker = Maker::Process(1);
            regions.register(&mut rig.worker, 1_u32, maker, fd, len_bytes).unwrap_err()
        };
        let sparse = memory::Region::sparse_memfd("copyrpc-test", 4096).unwrap();
        assert_eq!(refused(&sparse, 4096), Status::InvalidArgument, "pages are missing");
        assert_eq!(refused(&rig.memory, 8192), Status::InvalidArgument, "it is shorter");
        assert_eq!(refused(&rig.memory, 65 << 10), Status::OutOfRange, "more than a process has");
        assert_eq!(status_of(&MemoryError::Foreign), Status::Unimplemented);
        let none = MemoryError::NoKey { limit: 1 };
        assert_eq!(status_of(&none), Status::ResourceExhausted);
    }

    #[test]
    fn fault_i4_no_client_registers_what_is_left_for_others_and_all_comes_back() {
        let mut rig = Rig::new("regions");
        let limits =
            Limits { bulk_bytes: 64 << 10, caller_bulk_bytes: 24 << 10, ..Limits::default() };
        let mut regions = Regions::new(&limits, Arc::default());
        let counts = [1, 2, 3, 4].map(|pid| rig.fill(&mut regions, pid));
        // By the limit of one first, then by what is left for others.
        assert_eq!(counts, [6, 5, 3, 1]);
        assert_eq!(regions.held().bytes, 15 * 4096);
        regions.retain(|client| client / 4 == 4);
        assert_eq!(regions.held().bytes, 4096);
        regions.retain(|_| false);
        assert_eq!(regions.held(), RegionCount::default());
    }
}
