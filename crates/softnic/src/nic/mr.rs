//! A registered region of this port.

use std::os::fd::OwnedFd;

use memory::{
    Filler, LentBytes, MapFault, Overfull, Region, ViewError, barrier,
    sync::{Arc, Ordering},
};
use verbs::{Access, Lid, Lkey, MemoryError, MemoryRegion, Rkey};

use crate::nic::{
    card::{Table, layout::valid_key},
    in_use::InUse,
    left_behind::LeftBehind,
    port_state::{PortState, QUIESCE_NS},
};

/// From this length on huge pages are worth their rounding.
const HUGE_BYTES_MIN: usize = 4 << 20;

/// Longest region.
const LEN_BYTES_MAX: u64 = 1 << 40;

/// Memory in a segment of its own, which peers map when it is registered.
#[derive(Debug)]
pub struct Mr {
    port: Arc<PortState>,
    region: Arc<Region>,
    /// Of the first byte, as requests name it.
    addr: u64,
    segment: u32,
    index: u32,
    key: u32,
    len_bytes: usize,
    is_registered: bool,
    /// Processes that map it may read it, most often on another core.
    is_read_by_peers: bool,
    _in_use: Arc<InUse>,
}

impl Mr {
    pub(crate) fn alloc(
        port: &Arc<PortState>,
        in_use: &Arc<InUse>,
        pd: u32,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self, MemoryError> {
        check(len_bytes, access)?;
        let is_private = port.fabric.is_none();
        let region = if is_private {
            Region::heap(len_bytes)
        } else if len_bytes >= HUGE_BYTES_MIN {
            Region::memfd_huge("copyrpc-mr", len_bytes)
        } else {
            Region::memfd("copyrpc-mr", len_bytes)
        };
        let system = |cause: String| MemoryError::System { len_bytes: len_bytes as u64, cause };
        let region = region.map_err(|error| system(error.to_string()))?;
        if !is_private {
            region.seal_size().map_err(|error| system(error.to_string()))?;
        }
        Self::publish(port, in_use, pd, region, len_bytes, access, None)
    }

    /// Registers a memfd that another process made and sealed against shrinking. It is sealed against holes, too, if no
    /// peer maps it: ports of the same host do, and a mapping that is made after the seal could not write.
    pub(crate) fn register(
        port: &Arc<PortState>,
        in_use: &Arc<InUse>,
        pd: u32,
        fd: OwnedFd,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self, MemoryError> {
        check(len_bytes, access)?;
        let map = if port.fabric.is_none() { Region::map_sealed } else { Region::map_lent };
        let region = map(fd, len_bytes).map_err(|error| {
            let cause = error.to_string();
            match error.fault() {
                MapFault::Request => MemoryError::Unfit { cause },
                MapFault::Shortage => MemoryError::System { len_bytes: len_bytes as u64, cause },
            }
        })?;
        Self::publish(port, in_use, pd, region.unmapped_apart(), len_bytes, access, None)
    }

    /// Registers memory that a program has made; requests name its first byte as `iova`.
    pub(crate) fn lend(
        port: &Arc<PortState>,
        in_use: &Arc<InUse>,
        pd: u32,
        region: Region,
        iova: u64,
        access: Access,
    ) -> Result<Self, MemoryError> {
        let len_bytes = region.len();
        check(len_bytes, access)?;
        Self::publish(port, in_use, pd, region, len_bytes, access, Some(iova))
    }

    /// Gives a region keys, and tells peers of it.
    fn publish(
        port: &Arc<PortState>,
        in_use: &Arc<InUse>,
        pd: u32,
        region: Region,
        len_bytes: usize,
        access: Access,
        iova: Option<u64>,
    ) -> Result<Self, MemoryError> {
        let (region, length) = (Arc::new(region), len_bytes as u64);
        let limit = port.limit(Table::Mr);
        let index = port.owner.take_index(Table::Mr).ok_or(MemoryError::NoKey { limit })?;
        let entry = port.owner.card.mr(index).expect("the index is from this table");
        // The key's low byte tells it from earlier keys at this index.
        let old = entry.key.load(Ordering::Relaxed).to_le_bytes()[0];
        let key = index << 8 | u32::from(old.wrapping_add(1));
        // Before the key is valid: whoever sees the key finds the segment on its way.
        let segment = port.add_segment(&region);
        let addr = match iova {
            Some(iova) => iova,
            None if port.fabric.is_none() => port.invent_addr(length),
            None => region.as_ptr().addr().get() as u64,
        };
        entry.addr.store(addr, Ordering::Relaxed);
        entry.len_bytes.store(length, Ordering::Relaxed);
        let access_pd = u64::from(access.bits()) << 32 | u64::from(pd);
        entry.access_pd.store(access_pd, Ordering::Relaxed);
        entry.segment.store(u64::from(segment), Ordering::Relaxed);
        // SYNC(mr-entry): pairs with the `Acquire` of whoever looks the key up.
        entry.key.store(valid_key(segment, key), Ordering::Release);
        Ok(Self {
            port: port.clone(),
            region,
            addr,
            segment,
            index,
            key,
            len_bytes,
            is_registered: true,
            is_read_by_peers: port.fabric.is_some() && access.contains(Access::REMOTE_READ),
            _in_use: in_use.clone(),
        })
    }

    /// # Errors
    ///
    /// [`MemoryError::Busy`].
    fn invalidate(&mut self) -> Result<(), MemoryError> {
        if !core::mem::take(&mut self.is_registered) {
            return Ok(());
        }
        if let Some(entry) = self.port.owner.card.mr(self.index) {
            // SYNC(mr-entry): pairs with the `Acquire` of whoever looks the key up.
            entry.key.store(u64::from(self.key), Ordering::Release);
        }
        barrier::store_load();
        let left = self.port.quiesce(QUIESCE_NS);
        self.port.remove_segment(self.segment);
        let Err(peer) = left else {
            self.port.owner.return_index(Table::Mr, self.index);
            return Ok(());
        };
        // A stopped peer, or a thread of this process, reads or writes here when it continues.
        self.port.leave_behind(LeftBehind::region(self.index, self.region.clone()));
        Err(MemoryError::Busy { peer: Lid::new(peer) })
    }

    fn view<R>(&self, offset: usize, len: usize, view: impl FnOnce() -> Result<R, ViewError>) -> R {
        let end = offset.checked_add(len);
        let inside = end.is_some_and(|end| end <= self.len_bytes);
        assert!(inside, "{offset} + {len} B exceed the region of {} B", self.len_bytes);
        view().unwrap_or_else(|error| panic!("{error}"))
    }
}

fn check(len_bytes: usize, access: Access) -> Result<(), MemoryError> {
    if !access.is_consistent() {
        return Err(MemoryError::Access(access));
    }
    let length = len_bytes as u64;
    if !(1..=LEN_BYTES_MAX).contains(&length) {
        return Err(MemoryError::Length { len_bytes: length, max_bytes: LEN_BYTES_MAX });
    }
    Ok(())
}

impl MemoryRegion for Mr {
    fn addr(&self) -> u64 {
        self.addr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn lkey(&self) -> Lkey {
        Lkey::new(self.key)
    }

    fn rkey(&self) -> Rkey {
        Rkey::new(self.key)
    }

    #[inline]
    fn read(&self, offset: usize, to: &mut [u8]) {
        let len = to.len();
        let span = self.view(offset, len, || self.region.span(offset, len));
        span.copy_in(to);
    }

    fn read_into(
        &self,
        offset: usize,
        len_bytes: usize,
        to: &mut Filler<'_>,
    ) -> Result<(), Overfull> {
        to.put_span(self.view(offset, len_bytes, || self.region.span(offset, len_bytes)))
    }

    #[inline]
    fn write(&self, offset: usize, from: &[u8]) {
        let len = from.len();
        self.view(offset, len, || {
            let span = self.region.span(offset, len)?;
            if self.is_read_by_peers { span.copy_out_registered(from) } else { span.copy_out(from) }
        });
    }

    fn write_lent(&self, offset: usize, from: LentBytes<'_>) {
        let len = from.len();
        self.view(offset, len, || {
            self.region.span(offset, len)?.copy_lent(from, self.is_read_by_peers)
        });
    }

    #[inline]
    fn load_u64(&self, offset: usize) -> u64 {
        self.view(offset, size_of::<u64>(), || {
            // SYNC(remote-atomic): pairs with the peer's atomic, and SYNC(last-byte) with the
            // last bytes of its WRITE.
            self.region.whole().load_u64(offset, Ordering::Acquire)
        })
    }

    fn deregister(mut self) -> Result<(), MemoryError> {
        self.invalidate()
    }

    fn has_pages(&self) -> bool {
        // What no peer maps is sealed.
        self.port.fabric.is_none() || self.region.check_pages().is_ok()
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // Whoever wants to know about stopped peers calls `deregister`.
        let _ = self.invalidate();
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::time::{Duration, Instant};

    use verbs::{CqConfig, Nic as _, QpConfig, QueuePair as _, Transport};

    use super::*;
    use crate::{nic::in_use::tests::ports, shared::presence::Presence};

    #[test]
    fn what_is_deregistered_is_forgotten_here_and_by_peers() {
        let [owner, peer] = ports("forgotten");
        let lid = owner.device().0.port.lid.get();
        let deadline = Instant::now() + Duration::from_secs(10);
        let wait_for = |segments: usize| loop {
            let seen = peer.device().0.port.import(lid).map(|port| port.segments.len());
            if seen.is_ok_and(|seen| seen == segments) {
                break;
            }
            assert!(Instant::now() < deadline, "{seen:?} segments, not {segments}");
            [&owner, &peer].iter().for_each(|port| port.device().0.port.fetch());
        };
        let mr = owner.alloc_mr(&owner.alloc_pd().unwrap(), 1, Access::empty()).unwrap();
        wait_for(1);
        mr.deregister().unwrap();
        assert_eq!(owner.device().0.port.segments.len(), 0);
        wait_for(0);
    }

    /// Whoever still has the old key must not reach the new region.
    #[test]
    fn a_number_that_is_given_out_again_makes_another_key() {
        let [nic, _] = ports("keys");
        let port = &nic.device().0.port;
        let pd = nic.alloc_pd().unwrap();
        let alloc = || nic.alloc_mr(&pd, 1, Access::empty()).unwrap();
        let first = alloc();
        let (number, key) = (first.index, first.rkey());
        first.deregister().unwrap();
        while port.owner.unused().1[0] > 1 {
            port.owner.take_index(Table::Mr);
        }
        let next = alloc();
        assert_eq!(next.index, number);
        assert_ne!(next.rkey(), key);
    }

    /// It reads what it sends there, and writes what it READs.
    #[test]
    fn memory_that_an_own_queue_pair_uses_is_kept_for_it() {
        let [nic, _] = ports("own-use");
        let port = &nic.device().0.port;
        let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let qp = nic.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq)).unwrap();
        let mr = nic.alloc_mr(&pd, 1, Access::empty()).unwrap();
        let card = &port.owner.card;
        let executor = Presence(&card.qp(qp.qpn().get()).unwrap().presence);
        assert!(executor.try_enter(), "it is about to send");
        assert_eq!(mr.deregister(), Err(MemoryError::Busy { peer: port.lid }));
        executor.leave();
    }

    #[test]
    fn regions_that_make_no_sense_are_refused() {
        let [nic, _] = ports("nonsense");
        let pd = nic.alloc_pd().unwrap();
        let refused = |len, access| nic.alloc_mr(&pd, len, access).map(drop).unwrap_err();
        for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert_eq!(refused(1, access), MemoryError::Access(access));
        }
        for len in [0, (1 << 40) + 1] {
            assert!(matches!(refused(len, Access::empty()), MemoryError::Length { .. }), "{len}");
        }
    }
}
