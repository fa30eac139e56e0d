//! The card: a port's tables and queues in two shared regions, its own or a peer's.

mod heap;
pub(crate) mod layout;
pub(crate) mod target;
pub(crate) mod views;
mod words;

use core::ptr::NonNull;
use std::sync::Mutex;

use memory::{
    MapError, Region,
    sync::{Arc, Ordering},
};

pub(crate) use heap::Heap;
use layout::{
    CqEntry, CqState, Header, LAYOUT, LENT, Limits, MAGIC, MrEntry, QpEntry, QpFault, RqEntry,
    RqState, Shared,
};

/// One port's shared memory, mapped here. Indices and offsets from outside are checked on each use.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) ro: Arc<Region>,
    pub(crate) rw: Arc<Region>,
    pub(crate) limits: Limits,
    /// Of a port that no other process reaches: its queues may be anywhere in this one.
    is_private: bool,
}

/// Why a peer's card was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CardError {
    #[error("its tables do not fit the memory it sent")]
    Limits,
    #[error("it has another LID than the one that was connected to")]
    Lid,
    #[error("it is no card: magic {0:#018x}")]
    Magic(u64),
    #[error(
        "it has layout {theirs}, this program has {LAYOUT}: use the same version on both sides"
    )]
    Layout { theirs: u64 },
    #[error(transparent)]
    Map(#[from] MapError),
}

impl Card {
    /// Creates an empty card. On the heap it works within one process and under Miri.
    pub(crate) fn create(limits: Limits, on_heap: bool) -> Result<Self, MapError> {
        let (ro, rw) = if on_heap {
            (Region::heap(limits.ro_bytes)?, Region::heap(limits.rw_bytes)?)
        } else {
            let ro = Region::sparse_memfd("copyrpc-card-ro", limits.ro_bytes)?;
            let rw = Region::sparse_memfd("copyrpc-card-rw", limits.rw_bytes)?;
            ro.commit(0..limits.ro_offsets()[4])?;
            rw.commit(0..limits.rw_offsets()[3])?;
            // Without these seals (before Linux 5.1) peers are trusted a little more; the card
            // still works.
            let _ = ro.seal_future_write();
            let _ = rw.seal_size();
            (ro, rw)
        };
        let card = Self { ro: Arc::new(ro), rw: Arc::new(rw), limits, is_private: on_heap };
        let header = card.header();
        header.layout.store(LAYOUT, Ordering::Relaxed);
        // SYNC(card-magic): pairs with the `Acquire` in `attach`.
        header.magic.store(MAGIC, Ordering::Release);
        Ok(card)
    }

    /// Checks a peer's card.
    pub(crate) fn attach(ro: Region, rw: Region, limits: Limits) -> Result<Self, CardError> {
        let fits = ro.len() >= limits.ro_bytes && rw.len() >= limits.rw_bytes;
        if !limits.are_plausible() || !fits {
            return Err(CardError::Limits);
        }
        let card = Self { ro: Arc::new(ro), rw: Arc::new(rw), limits, is_private: false };
        // SYNC(card-magic): pairs with the `Release` in `create`.
        let magic = card.header().magic.load(Ordering::Acquire);
        if magic != MAGIC {
            return Err(CardError::Magic(magic));
        }
        let theirs = card.header().layout.load(Ordering::Relaxed);
        if theirs != LAYOUT {
            return Err(CardError::Layout { theirs });
        }
        Ok(card)
    }

    /// This card as other processes have it: nothing on it is an address.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn as_of_a_peer(&self) -> Self {
        Self { is_private: false, ..self.clone() }
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: peers only load from the header.
        let header = unsafe { self.ro.shared_for_loads(0) };
        header.expect("limits were checked")
    }

    /// Where a queue lies whose descriptor is `geometry`: at an offset in `half`, or, if it is lent, at an
    /// address of this process.
    pub(crate) fn place(
        &self,
        half: Half,
        geometry: u64,
        offset: u64,
        len: usize,
    ) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        if geometry & LENT != 0 {
            let lent = || NonNull::new(core::ptr::with_exposed_provenance_mut(offset));
            return self.is_private.then(lent).flatten();
        }
        let region = if half == Half::Ro { &self.ro } else { &self.rw };
        Some(region.span(offset, len).ok()?.as_ptr())
    }

    pub(crate) fn shared(&self) -> &Shared {
        self.rw.shared(0).expect("limits were checked")
    }
}

/// Table access: `None` outside the table.
macro_rules! tables {
    ($($name:ident -> $entry:ident: $region:ident $offsets:ident[$at:literal], $count:ident;)*) => {
        impl Card {$(
            pub(crate) fn $name(&self, index: u32) -> Option<&$entry> {
                if index >= self.limits.$count {
                    return None;
                }
                let offset = self.limits.$offsets()[$at] + index as usize * size_of::<$entry>();
                // SAFETY: only the owner, whose mapping is writable, stores to "ro"; "rw" is
                // writable for everybody.
                unsafe { self.$region.shared_for_loads(offset) }.ok()
            }
        )*}
    };
}
tables! {
    mr -> MrEntry: ro ro_offsets[0], mrs;
    qp -> QpEntry: ro ro_offsets[1], qps;
    cq -> CqEntry: ro ro_offsets[2], cqs;
    rq -> RqEntry: ro ro_offsets[3], rqs;
    qp_fault -> QpFault: rw rw_offsets[0], qps;
    cq_state -> CqState: rw rw_offsets[1], cqs;
    rq_state -> RqState: rw rw_offsets[2], rqs;
}

/// What only a card's owner has: which parts are in use.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) card: Card,
    ro_heap: Mutex<Heap>,
    rw_heap: Mutex<Heap>,
    mrs: Mutex<Indices>,
    qps: Mutex<Indices>,
    cqs: Mutex<Indices>,
    rqs: Mutex<Indices>,
}

/// A kind of object in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Mr,
    Qp,
    Cq,
    Rq,
}

/// Which half of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Ro,
    Rw,
}

/// Free indices of a table, reused oldest first so that a stale number stays wrong for long.
#[derive(Debug)]
struct Indices {
    free: std::collections::VecDeque<u32>,
}

impl Indices {
    fn new(first: u32, count: u32) -> Mutex<Self> {
        Mutex::new(Self { free: (first..count).collect() })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic while these were locked left them consistent: each change is one call.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Owner {
    pub(crate) fn new(card: Card) -> Self {
        let limits = card.limits;
        Self {
            ro_heap: Mutex::new(Heap::new(limits.ro_offsets()[4], limits.ro_bytes)),
            rw_heap: Mutex::new(Heap::new(limits.rw_offsets()[3], limits.rw_bytes)),
            // Index 0 names nothing: QP 0, CQ 0 and key 0 are never valid.
            mrs: Indices::new(1, limits.mrs),
            qps: Indices::new(1, limits.qps),
            cqs: Indices::new(1, limits.cqs),
            rqs: Indices::new(1, limits.rqs),
            card,
        }
    }

    fn indices(&self, table: Table) -> &Mutex<Indices> {
        match table {
            Table::Mr => &self.mrs,
            Table::Qp => &self.qps,
            Table::Cq => &self.cqs,
            Table::Rq => &self.rqs,
        }
    }

    pub(crate) fn take_index(&self, table: Table) -> Option<u32> {
        lock(self.indices(table)).free.pop_front()
    }

    pub(crate) fn return_index(&self, table: Table, index: u32) {
        lock(self.indices(table)).free.push_back(index);
    }

    fn half(&self, half: Half) -> (&Mutex<Heap>, &Arc<Region>) {
        match half {
            Half::Ro => (&self.ro_heap, &self.card.ro),
            Half::Rw => (&self.rw_heap, &self.card.rw),
        }
    }

    /// Offset of `len_bytes` zeroed bytes.
    pub(crate) fn alloc(&self, half: Half, len_bytes: usize) -> Result<usize, MapError> {
        let (heap, region) = self.half(half);
        let offset = lock(heap).alloc(len_bytes).ok_or(MapError::NoSpace { len_bytes })?;
        let zeroed = region.commit(offset..offset + len_bytes).and_then(|()| {
            let span = region.span(offset, len_bytes).ok();
            span.and_then(|span| span.zero().ok()).ok_or(MapError::BadLength { len_bytes })
        });
        if zeroed.is_err() {
            lock(heap).free(offset, len_bytes);
        }
        zeroed.map(|()| offset)
    }

    pub(crate) fn free(&self, half: Half, offset: usize, len_bytes: usize) {
        lock(self.half(half).0).free(offset, len_bytes);
    }

    /// Free ranges of both heaps, and free indices of each table.
    #[cfg(test)]
    pub(crate) fn unused(&self) -> (String, [usize; 4]) {
        let heaps = format!("{:?} {:?}", lock(&self.ro_heap), lock(&self.rw_heap));
        let tables = [&self.mrs, &self.qps, &self.cqs, &self.rqs];
        (heaps, tables.map(|table| lock(table).free.len()))
    }
}
