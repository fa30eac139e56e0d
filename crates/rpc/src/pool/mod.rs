//! Registered memory in a few regions that are cut into buffers, so that a body costs neither a registration
//! nor a descriptor, nor pages that were not used before.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use memory::{Filler, LentBytes, Overfull};
use verbs::{Access, MemoryError, MemoryRegion as _, Nic, Sge};

mod buddies;
mod budget;

use crate::PeerId;
use buddies::Buddies;
pub(crate) use budget::Budget;
pub use budget::{Account, LargeMemory};
use budget::{Charge, Registration};

/// Smallest buffer, and unit of all sizes.
pub(crate) const UNIT_BYTES: usize = 1 << 14;
/// First region, unless a body is longer.
const REGION_BYTES_MIN: usize = 1 << 16;
/// Longest region, unless a body is longer: each is as long as all before it together, up to this.
const REGION_BYTES_MAX: usize = 1 << 23;

/// Why there is no buffer.
#[derive(Debug)]
pub(crate) enum NoBuffer {
    /// The share of whoever it is for is in use.
    Share,
    /// As much is registered as may be, of this pool and of others.
    Regions,
    Memory(MemoryError),
}

/// A registered region and which parts of it are free.
struct Part<N: Nic> {
    mr: N::Mr,
    free: RefCell<Buddies>,
    /// Something was taken from it since the last [look](Pool::release_idle).
    is_used: Cell<bool>,
    _registration: Registration,
}

impl<N: Nic> Part<N> {
    fn take(&self, order: u8) -> Option<usize> {
        let unit = self.free.borrow_mut().take(order)?;
        self.is_used.set(true);
        Some(unit)
    }

    fn is_whole(&self) -> bool {
        self.free.borrow().is_whole()
    }
}

/// Memory that holds one body. Its place is free again when it is dropped, and not before.
pub(crate) struct Buffer<N: Nic> {
    part: Rc<Part<N>>,
    offset_bytes: usize,
    /// Logarithm of the units that it takes.
    order: u8,
    len_bytes: usize,
    _charge: Charge,
}

impl<N: Nic> Buffer<N> {
    /// Length of the body.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn write(&self, offset_bytes: usize, part: &[u8]) {
        self.part.mr.write(self.place(offset_bytes, part.len()), part);
    }

    /// The same of bytes that others may write meanwhile.
    pub(crate) fn write_lent(&self, offset_bytes: usize, part: LentBytes<'_>) {
        self.part.mr.write_lent(self.place(offset_bytes, part.len()), part);
    }

    /// Copies a part of the body to private memory.
    pub(crate) fn copy_part(&self, offset_bytes: usize, to: &mut [u8]) {
        self.part.mr.read(self.place(offset_bytes, to.len()), to);
    }

    /// Puts a part of the body into a message.
    pub(crate) fn put_part(
        &self,
        offset_bytes: usize,
        len_bytes: usize,
        to: &mut Filler<'_>,
    ) -> Result<(), Overfull> {
        self.part.mr.read_into(self.place(offset_bytes, len_bytes), len_bytes, to)
    }

    /// A piece of the body, to be scattered to.
    pub(crate) fn sge(&self, offset_bytes: usize, len_bytes: usize) -> Sge {
        self.part.mr.sge(self.place(offset_bytes, len_bytes), len_bytes)
    }

    /// Address and key of the body.
    pub(crate) fn remote(&self) -> verbs::RemoteSlice {
        self.part.mr.remote(self.offset_bytes)
    }

    /// # Panics
    ///
    /// If the range is beyond the body: the bytes there may be of another one.
    fn place(&self, offset_bytes: usize, len_bytes: usize) -> usize {
        let is_inside =
            offset_bytes <= self.len_bytes && len_bytes <= self.len_bytes - offset_bytes;
        assert!(is_inside, "a part beyond the body");
        self.offset_bytes + offset_bytes
    }
}

impl<N: Nic> Drop for Buffer<N> {
    fn drop(&mut self) {
        self.part.free.borrow_mut().give(self.offset_bytes / UNIT_BYTES, self.order);
    }
}

/// Whom a buffer is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purchase {
    pub(crate) peer: PeerId,
    pub(crate) account: Account,
    pub(crate) len_bytes: usize,
}

/// Regions with the same rights.
pub(crate) struct Pool<N: Nic> {
    access: Access,
    budget: Rc<Budget>,
    /// Bytes that are registered.
    held_bytes: usize,
    parts: Vec<Rc<Part<N>>>,
}

impl<N: Nic> Pool<N> {
    /// A pool that registers nothing before it is asked for.
    pub(crate) fn new(access: Access, budget: &Rc<Budget>) -> Self {
        Self { access, budget: Rc::clone(budget), held_bytes: 0, parts: Vec::new() }
    }

    /// Memory for a body, not cleared.
    pub(crate) fn take(
        &mut self,
        nic: &N,
        pd: &N::Pd,
        purchase: &Purchase,
    ) -> Result<Buffer<N>, NoBuffer> {
        let &Purchase { peer, account, len_bytes } = purchase;
        let units = len_bytes.div_ceil(UNIT_BYTES).max(1).next_power_of_two();
        let (size, order) = (units * UNIT_BYTES, (units.ilog2() & 0xff) as u8);
        let charge = self.budget.admit(peer, account, size).ok_or(NoBuffer::Share)?;
        let found = self.parts.iter().find_map(|part| Some((Rc::clone(part), part.take(order)?)));
        let (part, unit) = match found {
            Some(found) => found,
            None => self.grow(nic, pd, size, order)?,
        };
        Ok(Buffer { part, offset_bytes: unit * UNIT_BYTES, order, len_bytes, _charge: charge })
    }

    /// Registers a region from which `size` bytes can be taken, and takes them.
    #[cold]
    fn grow(
        &mut self,
        nic: &N,
        pd: &N::Pd,
        size: usize,
        order: u8,
    ) -> Result<(Rc<Part<N>>, usize), NoBuffer> {
        if size > self.budget.room_bytes() {
            self.release_unused(self.held_bytes.saturating_sub(size - self.budget.room_bytes()));
        }
        let room_bytes = self.budget.room_bytes();
        if size > room_bytes {
            return Err(NoBuffer::Regions);
        }
        let wanted_bytes =
            self.held_bytes.clamp(REGION_BYTES_MIN, REGION_BYTES_MAX).min(room_bytes);
        // Both are at least a unit, and the result is a power of two.
        let region_bytes = size.max(1 << wanted_bytes.ilog2());
        let mr = nic.alloc_mr(pd, region_bytes, self.access).map_err(NoBuffer::Memory)?;
        let part = Rc::new(Part {
            mr,
            free: RefCell::new(Buddies::new(region_bytes / UNIT_BYTES)),
            is_used: Cell::new(false),
            _registration: self.budget.register(region_bytes),
        });
        let unit = part.take(order).ok_or(NoBuffer::Regions)?;
        self.held_bytes += region_bytes;
        self.parts.push(Rc::clone(&part));
        Ok((part, unit))
    }

    /// Gives one region back that nothing was taken from since this found none before; returns whether there
    /// was one.
    pub(crate) fn release_idle(&mut self) -> bool {
        let is_idle = |part: &Rc<Part<N>>| !part.is_used.get() && part.is_whole();
        let idle = self.parts.iter().rposition(is_idle);
        match idle {
            Some(index) => self.release(index),
            None => self.parts.iter().for_each(|part| part.is_used.set(false)),
        }
        idle.is_some()
    }

    fn release(&mut self, index: usize) {
        let part = self.parts.remove(index);
        self.held_bytes -= part.mr.len_bytes();
    }

    /// Gives regions back that nothing was taken from, the latest first, until no more than `keep_bytes` are
    /// registered or all others are in use.
    pub(crate) fn release_unused(&mut self, keep_bytes: usize) {
        for index in (0..self.parts.len()).rev() {
            if self.held_bytes <= keep_bytes {
                return;
            }
            if self.parts[index].is_whole() {
                self.release(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ids::slots::Key;

    use super::*;
    use crate::Config;

    type Soft = softnic::Nic;

    fn nic(name: &str) -> Soft {
        let fabric = format!("pool-{name}-{}", std::process::id());
        softnic::open(&softnic::Config { fabric, ..softnic::Config::default() }).unwrap()
    }

    fn budget(total_bytes: usize, caller_bytes: usize) -> Rc<Budget> {
        Budget::new(&Config {
            large_memory_total_bytes: total_bytes,
            large_memory_bytes: caller_bytes,
            large_memory_method_bytes: usize::MAX,
            ..Config::default()
        })
    }

    fn purchase(caller: u64, len_bytes: usize) -> Purchase {
        let account = Account { caller: Some(caller), method: None };
        Purchase { peer: PeerId(Key::from_u64(1 << 32).unwrap()), account, len_bytes }
    }

    /// However many buffers are in use, they are of few regions, and nothing is registered once they were.
    #[test]
    fn many_buffers_are_of_few_regions_which_stay() {
        let nic = nic("few");
        let pd = nic.alloc_pd().unwrap();
        let budget = budget(1 << 24, 1 << 23);
        let mut pool = Pool::<Soft>::new(Access::LOCAL_WRITE, &budget);
        for round in 0..3 {
            let taken: Vec<_> =
                (0..256).map(|_| pool.take(&nic, &pd, &purchase(1, 20_000)).unwrap()).collect();
            assert_eq!((pool.parts.len(), pool.held_bytes), (8, 1 << 23), "round {round}");
            let mut places: Vec<_> =
                taken.iter().map(|buffer| (buffer.remote().addr, buffer.remote().rkey)).collect();
            places.sort_unstable_by_key(|place| place.0);
            let is_apart = |pair: &[(u64, _)]| pair[1].0 - pair[0].0 >= 20_000;
            assert!(places.windows(2).all(is_apart), "no two share a byte");
            assert!(matches!(pool.take(&nic, &pd, &purchase(1, 1)), Err(NoBuffer::Share)));
            drop(taken);
            assert_eq!(budget.memory(), LargeMemory { used_bytes: 0, registered_bytes: 1 << 23 });
        }
    }

    /// Regions that are too short give way to one that is long enough, unless they are in use.
    #[test]
    fn unused_regions_give_way_to_a_longer_one() {
        let nic = nic("longer");
        let pd = nic.alloc_pd().unwrap();
        let budget = budget(1 << 20, 1 << 20);
        let mut pool = Pool::<Soft>::new(Access::LOCAL_WRITE, &budget);
        let short =
            [1, 2, 3].map(|caller| pool.take(&nic, &pd, &purchase(caller, 1 << 16)).unwrap());
        drop(short);
        let held = pool.take(&nic, &pd, &purchase(1, 1)).unwrap();
        assert!(pool.take(&nic, &pd, &purchase(2, 1 << 19)).is_ok());
        drop(held);
        let long = pool.take(&nic, &pd, &purchase(1, 1 << 20)).unwrap();
        assert_eq!((pool.parts.len(), pool.held_bytes), (1, 1 << 20));
        drop(long);
        pool.release_unused(0);
        assert_eq!((pool.parts.len(), pool.held_bytes), (0, 0));
        assert_eq!(budget.memory(), LargeMemory::default());
    }

    /// What one pool has registered, another one cannot.
    #[test]
    fn fault_i4_all_pools_together_register_no_more_than_the_total() {
        let nic = nic("total");
        let pd = nic.alloc_pd().unwrap();
        let budget = budget(1 << 20, 1 << 20);
        let [mut one, mut other] =
            [(); 2].map(|()| Pool::<Soft>::new(Access::LOCAL_WRITE, &budget));
        let long = one.take(&nic, &pd, &purchase(1, 1 << 19)).unwrap();
        drop(long);
        let held = one.take(&nic, &pd, &purchase(1, 1)).unwrap();
        let taken: Vec<_> =
            std::iter::from_fn(|| other.take(&nic, &pd, &purchase(2, 1 << 16)).ok()).collect();
        assert_eq!(taken.len(), 8, "a caller gets no more than is left for all others");
        assert!(budget.memory().registered_bytes <= 1 << 20);
        let refused = other.take(&nic, &pd, &purchase(3, 1 << 18));
        assert!(matches!(refused, Err(NoBuffer::Regions)), "there is a share, and no room");
        drop((held, taken));
        assert_eq!(budget.memory().used_bytes, 0);
    }

    /// What is not used between two looks goes, region by region; what is in use stays.
    #[test]
    fn fault_i4_memory_that_nobody_uses_is_given_back() {
        let nic = nic("idle");
        let pd = nic.alloc_pd().unwrap();
        let budget = budget(1 << 24, 1 << 24);
        let mut pool = Pool::<Soft>::new(Access::LOCAL_WRITE, &budget);
        let held = pool.take(&nic, &pd, &purchase(1, 1)).unwrap();
        let others: Vec<_> =
            (0..64).map(|_| pool.take(&nic, &pd, &purchase(1, 1 << 16)).unwrap()).collect();
        drop(others);
        let regions = pool.parts.len();
        assert!(regions > 3);
        assert!(!pool.release_idle(), "they were used until now");
        assert_eq!((1..regions).filter(|_| pool.release_idle()).count(), regions - 1);
        assert!(!pool.release_idle(), "the last one holds a body");
        drop(held);
        assert!(pool.release_idle());
        assert_eq!(budget.memory(), LargeMemory::default());
    }

    /// What lies behind a body is another's.
    #[test]
    #[should_panic(expected = "a part beyond the body")]
    fn a_part_beyond_the_body_is_refused() {
        let nic = nic("beyond");
        let pd = nic.alloc_pd().unwrap();
        let budget = budget(1 << 20, 1 << 20);
        let mut pool = Pool::<Soft>::new(Access::LOCAL_WRITE, &budget);
        let buffer = pool.take(&nic, &pd, &purchase(1, 100)).unwrap();
        buffer.write(99, &[0; 2]);
    }
}
