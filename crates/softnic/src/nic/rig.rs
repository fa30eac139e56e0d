//! A port on the heap, as proofs use it: a card and memory, no sockets, no mappings, no clock.
#![expect(clippy::cast_possible_truncation, reason = "offsets of a few KiB")]

use memory::{
    Region,
    sync::{Arc, AtomicU32, AtomicU64, Ordering},
};
use verbs::{Access, QpState, Transport};
use wire::{
    cqe,
    ids::{Lid, Lkey, Qpn, Rkey},
    wqe::{Octoword, RecvWqeWriter, Sge},
};

use crate::nic::{
    card::{
        Card, Half, Owner, Table,
        layout::{Limits, VALID, address_word},
        target::{Control, Target},
        views::{CqView, RqView},
    },
    engine::{
        Arrival, Chunk, Extent, Key, Memory, MemoryFault, Order, Reply, Request, Verb, respond,
    },
};

/// Domain of everything here.
pub(crate) const PD: u32 = 5;
/// Key of the receiver's memory.
pub(crate) const KEY: u32 = 0x107;
/// Address of its first byte, as requests name it.
pub(crate) const BASE: u64 = 0x10_0000;
/// Its length.
pub(crate) const LEN: usize = 4096;

/// A card with a completion queue, a receive queue and a queue pair that uses both.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) card: Card,
    pub(crate) cq: CqView,
    pub(crate) rq: RqView,
    pub(crate) qpn: Qpn,
    pub(crate) cq_index: u32,
    pub(crate) rq_index: u32,
    shape: Shape,
    consumer: u64,
    posted: u16,
    pub(crate) memory: HeapMemory,
}

/// What the queues are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) transport: Transport,
    pub(crate) is_srq: bool,
    pub(crate) log_cqes: u8,
    pub(crate) cqe_bytes: usize,
    pub(crate) log_receives: u8,
    pub(crate) log_stride: u8,
    pub(crate) scatter_to_cqe: bool,
}

impl Shape {
    pub(crate) const RC: Self = Self {
        transport: Transport::Rc,
        is_srq: false,
        log_cqes: 2,
        cqe_bytes: 64,
        log_receives: 2,
        log_stride: 6,
        scatter_to_cqe: false,
    };
    pub(crate) const SRQ: Self = Self { is_srq: true, ..Self::RC };
}

/// The sender that an RC rig hears.
pub(crate) const SENDER: (Lid, Qpn) = (Lid::new(7), Qpn::from_low_bits(0x44));
/// READs and atomics that may be outstanding at once.
const READS_IN_MAX: u64 = 16;
/// Datagram and DC key.
pub(crate) const QKEY: u32 = 0x1234;

impl Rig {
    pub(crate) fn new(shape: Shape) -> Self {
        let limits =
            Limits { mrs: 2, qps: 4, cqs: 2, rqs: 2, ro_bytes: 16 << 10, rw_bytes: 16 << 10 };
        let card = Card::create(limits, true).unwrap();
        let owner = Owner::new(card.clone());
        let [cq_index, rq_index, qp_index] =
            [Table::Cq, Table::Rq, Table::Qp].map(|table| owner.take_index(table).unwrap());
        let alloc = |half, len| owner.alloc(half, len).unwrap() as u64;

        let cqes = 1usize << shape.log_cqes;
        let entry = card.cq(cq_index).unwrap();
        entry.ring_offset.store(alloc(Half::Rw, cqes * shape.cqe_bytes), Ordering::Relaxed);
        entry.slots_offset.store(alloc(Half::Rw, cqes * 8), Ordering::Relaxed);
        entry.dbrec_offset.store(alloc(Half::Ro, 64), Ordering::Relaxed);
        let geometry = VALID | (shape.cqe_bytes as u64) << 8 | u64::from(shape.log_cqes);
        entry.geometry.store(geometry, Ordering::Release);
        let cq = CqView::resolve(&card, cq_index).unwrap();
        cq.slots().reset();

        let receives = 1usize << shape.log_receives;
        let entry = card.rq(rq_index).unwrap();
        entry.ring_offset.store(alloc(Half::Ro, receives << shape.log_stride), Ordering::Relaxed);
        entry.dbrec_offset.store(alloc(Half::Ro, 64), Ordering::Relaxed);
        entry.claims_offset.store(alloc(Half::Rw, receives * 8), Ordering::Relaxed);
        entry.pd.store(u64::from(PD), Ordering::Relaxed);
        let geometry = u64::from(shape.log_stride) << 8 | u64::from(shape.log_receives);
        let geometry = VALID | u64::from(shape.is_srq) << 16 | geometry;
        entry.geometry.store(geometry, Ordering::Release);
        let rq = RqView::resolve(&card, rq_index).unwrap();
        rq.claims().reset();

        let rig = Self {
            memory: HeapMemory::new(Access::all()),
            qpn: Qpn::from_low_bits(qp_index),
            consumer: 0,
            posted: 0,
            card,
            cq,
            rq,
            cq_index,
            rq_index,
            shape,
        };
        rig.invalidate_entries();
        rig.show(rig.qpn, rig.cq_index, rig.rq_index);
        rig
    }

    /// As the driver does before anybody completes into the queue.
    fn invalidate_entries(&self) {
        let invalid = cqe::Cqe::INVALID.to_words();
        let start = self.card.cq(self.cq_index).unwrap().ring_offset.load(Ordering::Relaxed);
        for entry in 0..1 << self.shape.log_cqes {
            let last = start as usize + (entry + 1) * self.shape.cqe_bytes - 8;
            let word: &AtomicU64 = self.card.rw.shared(last).unwrap();
            word.store(invalid[7], Ordering::Relaxed);
        }
    }

    /// Writes the entry of a queue pair that receives.
    pub(crate) fn show(&self, qpn: Qpn, cq: u32, rq: u32) {
        let entry = self.card.qp(qpn.get()).unwrap();
        let access = u64::from(Access::all().bits()) << 32 | u64::from(PD);
        entry.access_pd.store(access, Ordering::Relaxed);
        entry.queues.store(u64::from(rq) << 32 | u64::from(cq), Ordering::Relaxed);
        let (lid, peer) = SENDER;
        entry.peer.store(address_word(lid, peer), Ordering::Relaxed);
        entry.key.store(u64::from(QKEY), Ordering::Relaxed);
        let flags = READS_IN_MAX << 16 | u64::from(self.shape.scatter_to_cqe);
        entry.flags.store(flags, Ordering::Relaxed);
        let (transport, state) = (self.shape.transport, QpState::Rtr);
        let control = Control { generation: 1, transport, state }.encode();
        entry.control.store(control, Ordering::Release);
    }

    /// Says whether the completion queue has a single producer, and the receive queue a single sender.
    #[cfg(test)]
    pub(crate) fn set_exclusive(&self, cq: bool, rq: bool) {
        let entry = self.card.cq(self.cq_index).unwrap();
        entry.is_exclusive.store(u64::from(cq), Ordering::Relaxed);
        let entry = self.card.rq(self.rq_index).unwrap();
        entry.is_exclusive.store(u64::from(rq), Ordering::Relaxed);
    }

    /// Whether the queue pair still receives.
    #[cfg(test)]
    pub(crate) fn is_up(&self) -> bool {
        Target::resolve(&self.card, self.qpn).is_some()
    }

    pub(crate) fn target(&self) -> Target {
        Target::resolve(&self.card, self.qpn).expect("a queue pair that receives")
    }

    /// Posts a receive of `parts`, offset and length, in the next entry of the ring (which is also
    /// where the list of an SRQ leads).
    pub(crate) fn post(&mut self, parts: &[(usize, u32)]) {
        let entries = 1u16 << self.shape.log_receives;
        let index = self.posted & (entries - 1);
        let stride = 1usize << self.shape.log_stride;
        let mut octowords: Vec<Octoword> = vec![[0; 16]; stride / 16];
        let length = u8::try_from(octowords.len()).unwrap();
        let sink = octowords.as_mut_slice();
        let mut writer = if self.shape.is_srq {
            RecvWqeWriter::srq(sink, length, index.wrapping_add(1) & (entries - 1))
        } else {
            RecvWqeWriter::rq(sink, length)
        };
        for &(offset, len) in parts {
            writer = writer.data(BASE + offset as u64, Lkey::new(KEY), len);
        }
        writer.finish();
        let entry = self.card.rq(self.rq_index).unwrap();
        let ring = entry.ring_offset.load(Ordering::Relaxed) as usize;
        let wqe = self.card.ro.span(ring + usize::from(index) * stride, stride).unwrap();
        wqe.copy_out(octowords.as_flattened()).unwrap();
        self.posted = self.posted.wrapping_add(1);
        let dbrec = entry.dbrec_offset.load(Ordering::Relaxed) as usize;
        let record: &AtomicU32 = self.card.ro.shared(dbrec).unwrap();
        record.store(wire::doorbell::counter_word(self.posted), Ordering::Release);
    }

    /// Takes the next completion, as the driver does.
    pub(crate) fn poll(&mut self) -> Option<cqe::Cqe> {
        let entry = self.cq.read(self.consumer)?;
        self.consumer += 1;
        let dbrec = self.card.cq(self.cq_index).unwrap().dbrec_offset.load(Ordering::Relaxed);
        let record: &AtomicU32 = self.card.ro.shared(dbrec as usize).unwrap();
        let low = u32::try_from(self.consumer & 0xff_ffff).unwrap();
        record.store(wire::doorbell::consumer_word(low), Ordering::Release);
        Some(entry)
    }

    /// Starts all positions of the completion queue at `position`, a multiple of its length.
    pub(crate) fn start_at(&mut self, position: u64) {
        let entry = self.card.cq(self.cq_index).unwrap();
        let slots = entry.slots_offset.load(Ordering::Relaxed) as usize;
        for index in 0..1usize << self.shape.log_cqes {
            let word: &AtomicU64 = self.card.rw.shared(slots + index * 8).unwrap();
            word.store((position + index as u64) << 16, Ordering::Relaxed);
        }
        let state = self.card.cq_state(self.cq_index).unwrap();
        state.tail.store(position, Ordering::Relaxed);
        state.consumed_seen.store(position, Ordering::Relaxed);
        self.consumer = position;
    }

    /// Runs a request here. Payloads lie in regions, as they do in programs.
    pub(crate) fn respond(&mut self, request: &Request, local: &mut [Vec<u8>]) -> Reply {
        let regions: Vec<_> = local.iter().map(|bytes| region_of(bytes)).collect();
        let sized = regions.iter().zip(local.iter());
        let chunks: Vec<_> = sized
            .map(|(region, bytes)| Chunk {
                ptr: region.as_ptr().as_ptr(),
                len: bytes.len(),
                is_inline: false,
            })
            .collect();
        let target = self.target();
        let (memory, order) = (&mut self.memory, Order::Ascending);
        let arrival = Arrival { request, local: &chunks, target: &target, memory, order };
        let reply = respond(arrival).reply;
        for (region, bytes) in regions.iter().zip(local) {
            region.span(0, bytes.len()).unwrap().copy_in(bytes);
        }
        reply
    }

    /// A request of the rig's sender.
    pub(crate) fn request(&self, verb: Verb, len_bytes: u32) -> Request {
        let key = match self.shape.transport {
            Transport::Ud => Key::Ud(wire::ids::QKey::new(QKEY)),
            Transport::Dct => Key::Dc(wire::ids::DcKey::new(u64::from(QKEY))),
            _ => Key::Connected,
        };
        Request {
            verb,
            extent: Extent::Whole,
            key,
            from: SENDER,
            to: self.qpn,
            service_level: 0,
            has_grh: false,
            solicited: false,
            imm: None,
            len_bytes,
            addr: BASE,
            rkey: Rkey::new(KEY),
        }
    }
}

/// A region that starts with these bytes.
pub(crate) fn region_of(bytes: &[u8]) -> Region {
    let region = Region::heap(bytes.len().max(1)).unwrap();
    region.span(0, bytes.len()).unwrap().copy_out(bytes).unwrap();
    region
}

/// One registered region at [`BASE`].
#[derive(Clone, Debug)]
pub(crate) struct HeapMemory {
    region: Arc<Region>,
    access: Access,
}

impl HeapMemory {
    pub(crate) fn new(access: Access) -> Self {
        Self { region: Arc::new(Region::heap(LEN).unwrap()), access }
    }

    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.span(offset, len).unwrap().copy_in(&mut bytes);
        bytes
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.region.span(offset, bytes.len()).unwrap().copy_out(bytes).unwrap();
    }

    /// A local entry, checked.
    pub(crate) fn sge(&mut self, sge: &Sge, write: bool) -> Result<Chunk, MemoryFault> {
        let need = if write { Access::LOCAL_WRITE } else { Access::empty() };
        self.locate(sge.lkey.get(), sge.addr, u64::from(sge.len_bytes), need, PD)
    }
}

impl Memory for HeapMemory {
    fn locate(
        &mut self,
        key: u32,
        addr: u64,
        len: u64,
        need: Access,
        pd: u32,
    ) -> Result<Chunk, MemoryFault> {
        self.locate_known(key, addr, len, need, pd).ok_or(MemoryFault::Denied)
    }

    fn is_complete(&self) -> bool {
        true
    }

    fn complete(&mut self) -> bool {
        true
    }

    fn locate_known(&self, key: u32, addr: u64, len: u64, need: Access, pd: u32) -> Option<Chunk> {
        let offset = addr.wrapping_sub(BASE);
        let inside = offset <= LEN as u64 && len <= LEN as u64 - offset;
        if key != KEY || pd != PD || !inside || !self.access.contains(need) {
            return None;
        }
        let ptr = self.region.as_ptr().as_ptr().wrapping_add(offset as usize);
        Some(Chunk { ptr, len: len as usize, is_inline: false })
    }
}
