//! Registered memory in a few regions that are cut into buffers, so that a body costs neither a registration
//! nor a descriptor, nor pages that were not used before.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use verbs::{Access, MemoryError, MemoryRegion as _, Nic, Sge};

mod buddies;

use buddies::Buddies;

/// Smallest buffer, and unit of all sizes.
pub(crate) const UNIT_BYTES: usize = 1 << 14;
/// First region, unless a body is longer.
const REGION_BYTES_MIN: usize = 1 << 16;
/// Longest region, unless a body is longer: each is as long as all before it together, up to this.
const REGION_BYTES_MAX: usize = 1 << 23;

/// Why there is no buffer.
#[derive(Debug)]
pub(crate) enum NoBuffer {
    /// The share is in use.
    Limit,
    Memory(MemoryError),
}

/// Bytes of buffers that a peer may have, and has, of all pools.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    limit_bytes: usize,
    used_bytes: Rc<Cell<usize>>,
}

impl Quota {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, used_bytes: Rc::default() }
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes.get()
    }
}

/// A registered region and which parts of it are free.
struct Part<N: Nic> {
    mr: N::Mr,
    free: RefCell<Buddies>,
}

/// Memory that holds one body. Its place is free again when it is dropped, and not before.
pub(crate) struct Buffer<N: Nic> {
    part: Rc<Part<N>>,
    offset_bytes: usize,
    /// Logarithm of the units that it takes.
    order: u8,
    len_bytes: usize,
    quota: Quota,
}

impl<N: Nic> Buffer<N> {
    /// Length of the body.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn write(&self, offset_bytes: usize, part: &[u8]) {
        self.part.mr.write(self.place(offset_bytes, part.len()), part);
    }

    /// Copies a part of the body to private memory.
    pub(crate) fn copy_part(&self, offset_bytes: usize, to: &mut [u8]) {
        self.part.mr.read(self.place(offset_bytes, to.len()), to);
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
        self.quota.used_bytes.set(self.quota.used_bytes.get() - (UNIT_BYTES << self.order));
    }
}

/// Regions with the same rights.
pub(crate) struct Pool<N: Nic> {
    access: Access,
    limit_bytes: usize,
    /// Bytes that are registered.
    held_bytes: usize,
    parts: Vec<Rc<Part<N>>>,
}

impl<N: Nic> Pool<N> {
    /// A pool that registers no more than `limit_bytes`, and nothing before it is asked for.
    pub(crate) fn new(access: Access, limit_bytes: usize) -> Self {
        Self { access, limit_bytes, held_bytes: 0, parts: Vec::new() }
    }

    /// Memory for `len_bytes`, not cleared.
    pub(crate) fn take(
        &mut self,
        nic: &N,
        pd: &N::Pd,
        len_bytes: usize,
        quota: &Quota,
    ) -> Result<Buffer<N>, NoBuffer> {
        let units = len_bytes.div_ceil(UNIT_BYTES).max(1).next_power_of_two();
        let (size, order) = (units * UNIT_BYTES, (units.ilog2() & 0xff) as u8);
        if size > quota.limit_bytes.saturating_sub(quota.used_bytes()) {
            return Err(NoBuffer::Limit);
        }
        let found = self.parts.iter().find_map(|part| {
            let unit = part.free.borrow_mut().take(order)?;
            Some((Rc::clone(part), unit))
        });
        let (part, unit) = match found {
            Some(found) => found,
            None => self.grow(nic, pd, size, order)?,
        };
        quota.used_bytes.set(quota.used_bytes() + size);
        let quota = quota.clone();
        Ok(Buffer { part, offset_bytes: unit * UNIT_BYTES, order, len_bytes, quota })
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
        if size > self.limit_bytes - self.held_bytes {
            self.release_unused(self.limit_bytes.saturating_sub(size));
        }
        let room_bytes = self.limit_bytes - self.held_bytes;
        if size > room_bytes {
            return Err(NoBuffer::Limit);
        }
        let wanted_bytes =
            self.held_bytes.clamp(REGION_BYTES_MIN, REGION_BYTES_MAX).min(room_bytes);
        // Both are at least a unit, and the result is a power of two.
        let region_bytes = size.max(1 << wanted_bytes.ilog2());
        let mr = nic.alloc_mr(pd, region_bytes, self.access).map_err(NoBuffer::Memory)?;
        let mut free = Buddies::new(region_bytes / UNIT_BYTES);
        let unit = free.take(order).ok_or(NoBuffer::Limit)?;
        let part = Rc::new(Part { mr, free: RefCell::new(free) });
        self.held_bytes += region_bytes;
        self.parts.push(Rc::clone(&part));
        Ok((part, unit))
    }

    /// Gives regions back that nothing was taken from, the latest first, until no more than `keep_bytes` are
    /// registered or all others are in use.
    pub(crate) fn release_unused(&mut self, keep_bytes: usize) {
        for index in (0..self.parts.len()).rev() {
            if self.held_bytes <= keep_bytes {
                return;
            }
            if self.parts[index].free.borrow().is_whole() {
                let part = self.parts.remove(index);
                self.held_bytes -= part.mr.len_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Soft = softnic::Nic;

    fn nic(name: &str) -> Soft {
        let fabric = format!("pool-{name}-{}", std::process::id());
        softnic::open(&softnic::Config { fabric, ..softnic::Config::default() }).unwrap()
    }

    /// However many buffers are in use, they are of few regions, and nothing is registered once they were.
    #[test]
    fn many_buffers_are_of_few_regions_which_stay() {
        let nic = nic("few");
        let pd = nic.alloc_pd().unwrap();
        let mut pool = Pool::<Soft>::new(Access::LOCAL_WRITE, 1 << 23);
        let quota = Quota::new(1 << 23);
        for round in 0..3 {
            let taken: Vec<_> =
                (0..256).map(|_| pool.take(&nic, &pd, 20_000, &quota).unwrap()).collect();
            assert_eq!((pool.parts.len(), pool.held_bytes), (8, 1 << 23), "round {round}");
            let mut places: Vec<_> =
                taken.iter().map(|buffer| (buffer.remote().addr, buffer.remote().rkey)).collect();
            places.sort_unstable_by_key(|place| place.0);
            let is_apart = |pair: &[(u64, _)]| pair[1].0 - pair[0].0 >= 20_000;
            assert!(places.windows(2).all(is_apart), "no two share a byte");
            assert!(matches!(pool.take(&nic, &pd, 1, &quota), Err(NoBuffer::Limit)));
            drop(taken);
            assert_eq!(quota.used_bytes(), 0);
        }
    }

    /// Regions that are too short give way to one that is long enough, unless they are in use.
    #[test]
    fn unused_regions_give_way_to_a_longer_one() {
        let nic = nic("longer");
        let pd = nic.alloc_pd().unwrap();
        let mut pool = Pool::<Soft>::new(Access::LOCAL_WRITE, 1 << 20);
        let quota = Quota::new(1 << 20);
        let short = [(); 3].map(|()| pool.take(&nic, &pd, 1 << 16, &quota).unwrap());
        assert!(matches!(pool.take(&nic, &pd, 1 << 20, &quota), Err(NoBuffer::Limit)));
        drop(short);
        let long = pool.take(&nic, &pd, 1 << 20, &quota).unwrap();
        assert_eq!((pool.parts.len(), pool.held_bytes), (1, 1 << 20));
        drop(long);
        pool.release_unused(0);
        assert_eq!((pool.parts.len(), pool.held_bytes), (0, 0));
    }

    /// One peer's share does not grow by what others leave.
    #[test]
    fn a_quota_holds_however_much_the_pool_has() {
        let nic = nic("quota");
        let pd = nic.alloc_pd().unwrap();
        let mut pool = Pool::<Soft>::new(Access::LOCAL_WRITE, 1 << 20);
        let [one, other] = [(); 2].map(|()| Quota::new(1 << 15));
        let held = [(); 2].map(|()| pool.take(&nic, &pd, 1, &one).unwrap());
        assert!(matches!(pool.take(&nic, &pd, 1, &one), Err(NoBuffer::Limit)));
        assert!(pool.take(&nic, &pd, 1, &other).is_ok());
        drop(held);
        assert!(pool.take(&nic, &pd, 1 << 15, &one).is_ok());
    }

    /// What lies behind a body is another's.
    #[test]
    #[should_panic(expected = "a part beyond the body")]
    fn a_part_beyond_the_body_is_refused() {
        let nic = nic("beyond");
        let pd = nic.alloc_pd().unwrap();
        let mut pool = Pool::<Soft>::new(Access::LOCAL_WRITE, 1 << 20);
        let buffer = pool.take(&nic, &pd, 100, &Quota::new(1 << 20)).unwrap();
        buffer.write(99, &[0; 2]);
    }
}
