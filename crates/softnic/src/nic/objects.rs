//! Queues that this port owns: their place on the card, given back when the last user is gone.
//!
//! On hardware one NIC writes a completion queue; here each peer does, on its own thread. Most queues have one
//! producer: the sends of one queue pair, or the receives of one RC queue pair. The owner counts producers as queue
//! pairs are created (`CqShared::add_producers` in objects.rs) and shows the result on its card. With one producer
//! `CqView::reserve` in views.rs needs no compare-and-swap. A second producer is announced first, and waits, by a
//! quiesce, until the first one has noticed. Recovery is the same in both modes. A queue pair with a completion
//! queue each for sends and receives profits from this.

use core::ptr::NonNull;
use std::sync::Mutex;

use memory::{
    barrier,
    sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering},
};
use os::event::EventFd;
use verbs::CreateError;
use wire::{
    cqe::{CQE_BYTES, Cqe, CqeView},
    doorbell::{self, CqArm},
};

use crate::{
    nic::{
        card::{
            Half, Table,
            layout::{LENT, VALID},
            views::{CqView, RqView},
        },
        port_state::{PortState, QUIESCE_NS, lock},
    },
    shared::{arm, presence::Alone},
};

/// A channel as its CQs and the fabric share it.
#[derive(Debug)]
pub(crate) struct ChannelShared {
    /// Never 0.
    pub(crate) id: u32,
    pub(crate) event: Arc<EventFd>,
}

/// Ring and doorbell record of a queue, in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) ring: NonNull<u8>,
    pub(crate) dbrec: NonNull<u8>,
}

/// Bytes on the card.
#[derive(Debug)]
struct CardRange {
    half: Half,
    offset: usize,
    len_bytes: usize,
}

/// Bytes and one table index, given back on drop.
#[derive(Debug)]
struct Holding {
    port: Arc<PortState>,
    table: Table,
    index: u32,
    ranges: Vec<CardRange>,
}

impl Holding {
    fn take(
        port: &Arc<PortState>,
        table: Table,
        object: &'static str,
    ) -> Result<Self, CreateError> {
        let index = port.owner.take_index(table);
        let index = index.ok_or(CreateError::Exhausted { object, limit: port.limit(table) })?;
        Ok(Self { port: port.clone(), table, index, ranges: Vec::new() })
    }

    fn alloc(
        &mut self,
        half: Half,
        len_bytes: usize,
        object: &'static str,
    ) -> Result<u64, CreateError> {
        let offset = self.port.owner.alloc(half, len_bytes).map_err(|error| {
            let cause = format!("{error}; or raise COPYRPC_SOFT_CARD_MIB");
            CreateError::System { object, cause }
        })?;
        self.ranges.push(CardRange { half, offset, len_bytes });
        Ok(offset as u64)
    }

    /// Where ring and doorbell record are, here and as the table says it: those that are lent, or on the card.
    fn place(
        &mut self,
        lent: Option<Place>,
        (half, ring_bytes): (Half, usize),
        object: &'static str,
    ) -> Result<(Place, [u64; 2]), CreateError> {
        if let Some(place) = lent {
            let words =
                [place.ring, place.dbrec].map(|part| part.as_ptr().expose_provenance() as u64);
            return Ok((place, words));
        }
        let ring = self.alloc(half, ring_bytes, object)?;
        let dbrec = self.alloc(Half::Ro, CQE_BYTES, object)?;
        let place = Place { ring: self.pointer(half, ring), dbrec: self.pointer(Half::Ro, dbrec) };
        Ok((place, [ring, dbrec]))
    }

    /// Address of card memory in this process.
    fn pointer(&self, half: Half, offset: u64) -> NonNull<u8> {
        let card = &self.port.owner.card;
        let region = if half == Half::Ro { &card.ro } else { &card.rw };
        let offset = usize::try_from(offset).expect("offsets come from the card's heap");
        region.span(offset, 0).expect("offsets come from the card's heap").as_ptr()
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        for range in self.ranges.drain(..) {
            self.port.owner.free(range.half, range.offset, range.len_bytes);
        }
        self.port.owner.return_index(self.table, self.index);
    }
}

/// How many threads may be inside a queue at once: of queue pairs of this port, and of their peers.
#[derive(Debug, Default)]
struct Users(Mutex<usize>);

impl Users {
    /// Announces more of them. If there was a single one, waits until it knows. `show` tells whether
    /// there is only one.
    fn add(
        &self,
        count: usize,
        holding: &Holding,
        object: &'static str,
        show: impl Fn(bool),
    ) -> Result<(), CreateError> {
        let mut users = lock(&self.0);
        let (before, after) = (*users, *users + count);
        show(after == 1);
        if before == 1 && after > 1 {
            barrier::store_load();
            holding.port.quiesce(QUIESCE_NS).map_err(|lid| {
                show(true);
                let cause = format!("port {lid} is stopped inside it; try again later");
                CreateError::System { object, cause }
            })?;
        }
        *users = after;
        Ok(())
    }

    /// They are gone, and outside the queue.
    fn remove(&self, count: usize, show: impl Fn(bool)) {
        let mut users = lock(&self.0);
        *users -= count;
        show(*users == 1);
    }
}

/// A completion queue of this port.
#[derive(Debug)]
pub(crate) struct CqShared {
    pub(crate) view: CqView,
    pub(crate) channel: Option<Arc<ChannelShared>>,
    ring: NonNull<u8>,
    dbrec: NonNull<u8>,
    overrun_reported: AtomicBool,
    /// Entries before this position are told by an event that was raised: to arm for them raises no other.
    told: AtomicU64,
    /// Those who complete into it.
    producers: Users,
    holding: Holding,
}

// SAFETY: `ring` and `dbrec` lead to card memory that `holding` keeps, all of it shared by design.
unsafe impl Send for CqShared {}
// SAFETY: as above.
unsafe impl Sync for CqShared {}

impl CqShared {
    pub(crate) fn create(
        port: &Arc<PortState>,
        log_entries: u8,
        cqe_bytes: usize,
        channel: Option<Arc<ChannelShared>>,
        lent: Option<Place>,
    ) -> Result<Self, CreateError> {
        const OBJECT: &str = "completion queue";
        let entries = 1usize << log_entries;
        let mut holding = Holding::take(port, Table::Cq, OBJECT)?;
        let (place, [ring, dbrec]) =
            holding.place(lent, (Half::Rw, entries * cqe_bytes), OBJECT)?;
        let slots = holding.alloc(Half::Rw, entries * size_of::<u64>(), OBJECT)?;
        let card = &port.owner.card;
        let (entry, state) = (card.cq(holding.index), card.cq_state(holding.index));
        let (entry, state) = entry.zip(state).expect("the index is from this table");
        entry.ring_offset.store(ring, Ordering::Relaxed);
        entry.slots_offset.store(slots, Ordering::Relaxed);
        entry.dbrec_offset.store(dbrec, Ordering::Relaxed);
        let number = channel.as_ref().map_or(0, |channel| channel.id);
        entry.channel.store(u64::from(number), Ordering::Relaxed);
        entry.is_exclusive.store(0, Ordering::Relaxed);
        state.armed.store(0, Ordering::Relaxed);
        state.overrun.store(0, Ordering::Relaxed);
        let is_lent = if lent.is_some() { LENT } else { 0 };
        let geometry = VALID | is_lent | (cqe_bytes as u64) << 8 | u64::from(log_entries);
        // SYNC(cq-entry): pairs with the `Acquire` in `CqView::resolve`.
        entry.geometry.store(geometry, Ordering::Release);
        let view = CqView::resolve(card, holding.index).expect("just written");
        view.slots().reset();
        let Place { ring, dbrec } = place;
        let overrun_reported = AtomicBool::new(false);
        let (told, producers) = (AtomicU64::new(0), Users::default());
        Ok(Self { view, channel, ring, dbrec, overrun_reported, told, producers, holding })
    }

    /// Announces more producers. If there was a single one, waits until it knows.
    ///
    /// # Errors
    ///
    /// It is stopped inside the queue.
    pub(crate) fn add_producers(&self, count: usize) -> Result<(), CreateError> {
        let show = |is_exclusive| self.set_exclusive(is_exclusive);
        self.producers.add(count, &self.holding, "completion queue", show)
    }

    /// They are gone, and outside the queue.
    pub(crate) fn remove_producers(&self, count: usize) {
        self.producers.remove(count, |is_exclusive| self.set_exclusive(is_exclusive));
    }

    fn set_exclusive(&self, is_exclusive: bool) {
        if let Some(entry) = self.holding.port.owner.card.cq(self.holding.index) {
            Alone(&entry.is_exclusive).show(is_exclusive);
        }
    }

    pub(crate) fn index(&self) -> u32 {
        self.holding.index
    }

    pub(crate) fn ring(&self) -> NonNull<u8> {
        self.ring
    }

    /// Signals the channel if it is armed for an entry that is there already.
    pub(crate) fn wake_if_due(&self) {
        let Some(channel) = &self.channel else { return };
        let armed = self.view.armed();
        let kind = armed.0.load(Ordering::Relaxed);
        let is_due = |entry: Cqe| match entry.parse() {
            _ if kind == arm::NEXT => true,
            Ok(CqeView::Responder(done)) => done.solicited,
            Ok(CqeView::Requester(_)) => false,
            Ok(CqeView::Error(_)) | Err(_) => true,
        };
        let told = self.told.load(Ordering::Relaxed);
        let told = told.saturating_sub(self.view.consumer_position());
        let untold = self.view.unpolled().skip(usize::try_from(told).unwrap_or(usize::MAX));
        if kind != 0 && { untold }.any(is_due) && armed.take() {
            // An event that cannot be written is full, and so readable.
            let _ = channel.event.signal();
        }
    }

    /// An event was raised, which tells of all entries that are there.
    pub(crate) fn note_told(&self) {
        let published = self.view.consumer_position() + self.view.unpolled().count() as u64;
        self.told.store(published, Ordering::Relaxed);
    }

    /// `true` once.
    pub(crate) fn report_overrun(&self) -> bool {
        !self.overrun_reported.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn dbrec(&self) -> NonNull<[u32; 2]> {
        self.dbrec.cast()
    }

    /// The request for an event in the doorbell record.
    pub(crate) fn recorded(&self) -> CqArm {
        let words = self.dbrec.cast::<[AtomicU32; 2]>();
        // SAFETY: in card memory that `holding` keeps, aligned; driver and device access it as atomics.
        let words = unsafe { words.as_ref() };
        CqArm::of_record_word(words[doorbell::CQ_ARM_WORD].load(Ordering::Relaxed))
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        if let Some(entry) = self.holding.port.owner.card.cq(self.holding.index) {
            entry.geometry.store(0, Ordering::Release);
        }
    }
}

/// A receive queue, or shared receive queue, of this port.
#[derive(Debug)]
pub(crate) struct RqShared {
    pub(crate) view: RqView,
    ring: NonNull<u8>,
    dbrec: NonNull<u8>,
    /// Those who take receives from it.
    takers: Users,
    holding: Holding,
}

// SAFETY: as for `CqShared`.
unsafe impl Send for RqShared {}
// SAFETY: as for `CqShared`.
unsafe impl Sync for RqShared {}

impl RqShared {
    pub(crate) fn create(
        port: &Arc<PortState>,
        pd: u32,
        log_entries: u8,
        log_stride: u8,
        is_srq: bool,
        lent: Option<Place>,
    ) -> Result<Self, CreateError> {
        const OBJECT: &str = "receive queue";
        let entries = 1usize << log_entries;
        let mut holding = Holding::take(port, Table::Rq, OBJECT)?;
        let (place, [ring, dbrec]) =
            holding.place(lent, (Half::Ro, entries << log_stride), OBJECT)?;
        let claims = holding.alloc(Half::Rw, entries * size_of::<u64>(), OBJECT)?;
        let card = &port.owner.card;
        let entry = card.rq(holding.index).expect("the index is from this table");
        entry.ring_offset.store(ring, Ordering::Relaxed);
        entry.dbrec_offset.store(dbrec, Ordering::Relaxed);
        entry.claims_offset.store(claims, Ordering::Relaxed);
        entry.is_exclusive.store(0, Ordering::Relaxed);
        entry.pd.store(u64::from(pd), Ordering::Relaxed);
        let shape = u64::from(log_stride) << 8 | u64::from(log_entries);
        let is_lent = if lent.is_some() { LENT } else { 0 };
        let geometry = VALID | is_lent | u64::from(is_srq) << 16 | shape;
        // SYNC(rq-entry): pairs with the `Acquire` in `RqView::resolve`.
        entry.geometry.store(geometry, Ordering::Release);
        let view = RqView::resolve(card, holding.index);
        let view = view.ok_or(CreateError::Size {
            what: "receive queue",
            asked: 1 << log_entries,
            limit: "2^15 entries of 16 to 512 B",
        })?;
        view.claims().reset();
        view.reset_order();
        let Place { ring, dbrec } = place;
        Ok(Self { view, ring, dbrec, takers: Users::default(), holding })
    }

    /// Announces more that take receives. If there was a single one, waits until it knows.
    ///
    /// # Errors
    ///
    /// It is stopped inside the queue.
    pub(crate) fn add_takers(&self, count: usize) -> Result<(), CreateError> {
        let show = |is_exclusive| self.set_exclusive(is_exclusive);
        self.takers.add(count, &self.holding, "receive queue", show)
    }

    /// They are gone, and outside the queue.
    pub(crate) fn remove_takers(&self, count: usize) {
        self.takers.remove(count, |is_exclusive| self.set_exclusive(is_exclusive));
    }

    fn set_exclusive(&self, is_exclusive: bool) {
        if let Some(entry) = self.holding.port.owner.card.rq(self.holding.index) {
            Alone(&entry.is_exclusive).show(is_exclusive);
        }
    }

    pub(crate) fn index(&self) -> u32 {
        self.holding.index
    }

    pub(crate) fn ring(&self) -> NonNull<u8> {
        self.ring
    }

    pub(crate) fn dbrec(&self) -> NonNull<u32> {
        self.dbrec.cast()
    }
}

impl Drop for RqShared {
    fn drop(&mut self) {
        if let Some(entry) = self.holding.port.owner.card.rq(self.holding.index) {
            entry.geometry.store(0, Ordering::Release);
        }
        barrier::store_load();
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use verbs::{CompletionQueue as _, CqConfig, Nic as _, QpConfig, SendSize, Transport};

    use super::*;
    use crate::{Nic, nic::in_use::tests::ports, shared::presence::Presence};

    type Qp = <Nic as verbs::Nic>::Qp;
    type Cq = <Nic as verbs::Nic>::Cq;

    /// A queue pair that receives into `cq`, and sends nothing.
    fn receiver(nic: &Nic, cq: &Cq) -> Result<Qp, CreateError> {
        let send = SendSize::NONE;
        let config = QpConfig { send, ..QpConfig::new(Transport::Rc, cq) };
        nic.create_qp(&nic.alloc_pd().unwrap(), &config)
    }

    #[test]
    fn a_queue_is_exclusive_while_one_queue_pair_uses_it() {
        let [nic, peer] = ports("exclusive");
        let card = &nic.device().0.port.owner.card;
        let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
        let is_exclusive = || {
            let entry = card.cq(cq.cqn().get()).unwrap();
            entry.is_exclusive.load(Ordering::Relaxed) != 0
        };
        assert!(!is_exclusive());
        let first = receiver(&nic, &cq).unwrap();
        assert!(is_exclusive());

        let theirs = peer.create_cq(&CqConfig::new(256), None).unwrap();
        let config = QpConfig::new(Transport::Rc, &theirs);
        let sender = peer.create_qp(&peer.alloc_pd().unwrap(), &config).unwrap();
        let number = verbs::QueuePair::qpn(&sender).get();
        let inside = Presence(&peer.device().0.port.owner.card.qp(number).unwrap().presence);
        assert!(inside.try_enter(), "it completes into the queue as the only one");
        let refused = receiver(&nic, &cq).map(drop).unwrap_err();
        assert!(refused.to_string().contains("try again later"), "{refused}");
        assert!(is_exclusive());
        inside.leave();

        let second = receiver(&nic, &cq).unwrap();
        assert!(!is_exclusive());
        drop(first);
        assert!(is_exclusive());
        drop(second);
        assert!(!is_exclusive());
    }

    /// Numbers come back, and peers may still have the old ones.
    #[test]
    fn nothing_of_a_queue_is_left_to_the_next_one_of_its_number() {
        let [nic, _] = ports("numbers-again");
        let port = &nic.device().0.port;
        let card = &port.owner.card;
        let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
        let qp = receiver(&nic, &cq).unwrap();
        let (number, rq) = (cq.cqn().get(), nic.device().0.rqs()[0].index());
        let state = card.cq_state(number).unwrap();
        state.armed.store(arm::NEXT, Ordering::Relaxed);
        state.overrun.store(1, Ordering::Relaxed);
        drop((qp, cq));
        assert!(CqView::resolve(card, number).is_none() && RqView::resolve(card, rq).is_none());
        while port.owner.unused().1[2] > 1 {
            port.owner.take_index(Table::Cq);
        }
        let next = nic.create_cq(&CqConfig::new(256), None).unwrap();
        assert_eq!(next.cqn().get(), number);
        let old = [&state.armed, &state.overrun].map(|word| word.load(Ordering::Relaxed));
        assert_eq!(old, [0; 2]);
    }
}
