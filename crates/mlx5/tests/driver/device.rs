//! A device of heap memory.

use core::{ptr::NonNull, time::Duration};
use std::{
    collections::BTreeMap,
    os::fd::BorrowedFd,
    sync::{Mutex, MutexGuard},
};

use copyrpc_mlx5::{
    Nic,
    device::{
        CqMemory, CqRequest, Device, DeviceCq, DeviceQp, QpMemory, QpRequest, RqMemory, RqRequest,
        SrqMemory, WqeBlocks,
    },
};
use memory::sync::{Arc, AtomicU32, AtomicU64, Ordering};
use verbs::{
    Access, AddressVector, AsyncEvent, Channel, CqConfig, Cqn, CreateError, Gid, Lid, LinkLayer,
    Lkey, MemoryError, MemoryRegion, ModifyError, Mtu, Nic as _, NicAttributes, PortAttributes,
    Psn, QpConfig, QpState, Qpn, QueuePair as _, RcPeer, Rkey, RnrTimer, Route, RtrAttr, RtsAttr,
    Sge, Srqn, Transition, Transport,
};
use wire::cqe::{CqeView, owner_bit};

/// What fills rings before a test looks at what the driver wrote.
pub(crate) const POISON: u8 = 0xa5;

/// Number of the first queue pair.
pub(crate) const QPN: u32 = 0xab_cdef;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Block([AtomicU64; 8]);

/// Bytes that driver and device share.
#[derive(Clone, Debug)]
pub(crate) struct Memory(Arc<[Block]>);

impl Memory {
    fn zeroed(len_bytes: usize) -> Self {
        Self((0..len_bytes.div_ceil(64)).map(|_| Block::default()).collect())
    }

    fn base(&self) -> NonNull<u8> {
        NonNull::new(Arc::as_ptr(&self.0).cast::<u8>().cast_mut()).expect("an allocation")
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index / 8].0[index % 8]
    }

    pub(crate) fn poison(&self) {
        for index in 0..self.0.len() * 8 {
            self.word(index).store(u64::from_ne_bytes([POISON; 8]), Ordering::Relaxed);
        }
    }

    /// `len_bytes` from `at`, both multiples of 8, going round at the end.
    pub(crate) fn bytes(&self, at: usize, len_bytes: usize) -> Vec<u8> {
        let words = self.0.len() * 8;
        let word = |index: usize| self.word(index % words).load(Ordering::Relaxed);
        (at / 8..(at + len_bytes) / 8).flat_map(|index| word(index).to_ne_bytes()).collect()
    }

    pub(crate) fn all(&self) -> Vec<u8> {
        self.bytes(0, self.0.len() * 64)
    }

    /// A word of a doorbell record, as the device takes it.
    fn record(&self, word: usize) -> u32 {
        let record = self.base().cast::<u32>().as_ptr().wrapping_add(word);
        // SAFETY: inside the first block, aligned, and accessed by nothing but atomics.
        let record = unsafe { AtomicU32::from_ptr(record) };
        // SYNC(doorbell-record): pairs with the driver's store.
        u32::from_be(record.load(Ordering::Acquire))
    }
}

#[derive(Debug)]
struct CqSide {
    ring: Memory,
    record: Memory,
    log_entries: u8,
    cqe_bytes: usize,
    produced: u32,
    idles: u32,
}

/// What the device knows of a queue pair, and what reached it.
#[derive(Debug)]
pub(crate) struct QpSide {
    pub(crate) send: Option<Memory>,
    pub(crate) recv: Option<Memory>,
    record: Memory,
    state: QpState,
    transport: Transport,
    /// Doorbells, each the first 8 bytes of a control segment.
    pub(crate) rings: Vec<[u8; 8]>,
    /// BlueFlame writes.
    pub(crate) blueflames: Vec<Vec<u8>>,
    /// Calls that say that receives were posted.
    pub(crate) received: u32,
    pub(crate) transitions: Vec<Transition>,
}

#[derive(Debug, Default)]
struct Queues {
    cqs: BTreeMap<u32, CqSide>,
    qps: BTreeMap<u32, QpSide>,
    srqs: BTreeMap<u32, (Memory, Memory)>,
    /// Arm doorbells.
    arms: Vec<u64>,
    /// Handles of completion queues, queue pairs and shared receive queues that were dropped.
    dropped: u32,
}

/// Handle of the device.
#[derive(Clone, Debug)]
pub(crate) struct TestDevice {
    queues: Arc<Mutex<Queues>>,
    attributes: Arc<NicAttributes>,
    link: LinkLayer,
}

impl TestDevice {
    pub(crate) fn new() -> Self {
        let attributes = NicAttributes {
            name: "test".into(),
            cqes_max: 1 << 20,
            wqes_max: 1 << 15,
            blueflame_bytes: 256,
            message_bytes_max: 1 << 31,
            reads_max: 16,
        };
        let (queues, attributes) = (Arc::default(), Arc::new(attributes));
        Self { queues, attributes, link: LinkLayer::InfiniBand }
    }

    pub(crate) fn ethernet(mut self) -> Self {
        self.link = LinkLayer::Ethernet;
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut NicAttributes)) -> Self {
        change(Arc::get_mut(&mut self.attributes).expect("a new device"));
        self
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap()
    }

    pub(crate) fn qp<R>(&self, qpn: Qpn, look: impl FnOnce(&QpSide) -> R) -> R {
        look(&self.queues().qps[&qpn.get()])
    }

    pub(crate) fn send_ring(&self, qpn: Qpn) -> Memory {
        self.qp(qpn, |qp| qp.send.clone().expect("it has a send queue"))
    }

    pub(crate) fn recv_ring(&self, qpn: Qpn) -> Memory {
        self.qp(qpn, |qp| qp.recv.clone().expect("it has a receive queue"))
    }

    /// Receive counter and send counter.
    pub(crate) fn qp_record(&self, qpn: Qpn) -> [u32; 2] {
        self.qp(qpn, |qp| [qp.record.record(0), qp.record.record(1)])
    }

    pub(crate) fn srq_ring(&self, srqn: Srqn) -> Memory {
        self.queues().srqs[&srqn.get()].0.clone()
    }

    pub(crate) fn srq_record(&self, srqn: Srqn) -> u32 {
        self.queues().srqs[&srqn.get()].1.record(0)
    }

    /// Consumer index and arm record.
    pub(crate) fn cq_record(&self, cqn: Cqn) -> [u32; 2] {
        let record = &self.queues().cqs[&cqn.get()].record;
        [record.record(0), record.record(1)]
    }

    pub(crate) fn cq_ring(&self, cqn: Cqn) -> Memory {
        self.queues().cqs[&cqn.get()].ring.clone()
    }

    pub(crate) fn idles(&self, cqn: Cqn) -> u32 {
        self.queues().cqs[&cqn.get()].idles
    }

    pub(crate) fn arms(&self) -> Vec<u64> {
        self.queues().arms.clone()
    }

    pub(crate) fn dropped(&self) -> u32 {
        self.queues().dropped
    }

    /// An error that no software asked for.
    pub(crate) fn fail(&self, qpn: Qpn) {
        self.queues().qps.get_mut(&qpn.get()).expect("it exists").state = QpState::Err;
    }

    /// Writes a completion, as a device does: the last word last.
    pub(crate) fn complete(&self, cqn: Cqn, completion: &CqeView<'_>) {
        self.complete_with(cqn, completion, |bytes| bytes);
    }

    /// Same, after `change` had its way with the bytes: the payload half, if the queue has one, and
    /// the completion proper.
    pub(crate) fn complete_with(
        &self,
        cqn: Cqn,
        completion: &CqeView<'_>,
        change: impl FnOnce([u8; 128]) -> [u8; 128],
    ) {
        let mut queues = self.queues();
        let cq = queues.cqs.get_mut(&cqn.get()).expect("it exists");
        let consumed = cq.record.record(0);
        let outstanding = cq.produced.wrapping_sub(consumed) & 0xff_ffff;
        assert!(outstanding < 1 << cq.log_entries, "CQ overrun");

        let mut bytes = [POISON; 128];
        let cqe = completion.encode(owner_bit(cq.produced, cq.log_entries));
        bytes[64..].copy_from_slice(&cqe.to_bytes());
        let bytes = change(bytes);
        let entry = cq.produced & ((1 << cq.log_entries) - 1);
        let first = entry as usize * cq.cqe_bytes / 8;
        for (index, word) in bytes[128 - cq.cqe_bytes..].as_chunks::<8>().0.iter().enumerate() {
            // SYNC(cqe-owner): pairs with the driver's load of the last word.
            cq.ring.word(first + index).store(u64::from_ne_bytes(*word), Ordering::Release);
        }
        cq.produced = cq.produced.wrapping_add(1);
    }
}

#[derive(Debug)]
pub(crate) struct TestCq(TestDevice, u32);

impl DeviceCq for TestCq {
    fn arm(&mut self, doorbell: u64) {
        self.0.queues().arms.push(doorbell);
    }

    fn idle(&mut self) -> bool {
        self.0.queues().cqs.get_mut(&self.1).expect("it exists").idles += 1;
        true
    }
}

#[derive(Debug)]
pub(crate) struct TestSrq(TestDevice);

#[derive(Debug)]
pub(crate) struct TestQp {
    device: TestDevice,
    key: u32,
    qpn: Qpn,
}

impl TestQp {
    fn side<R>(&self, change: impl FnOnce(&mut QpSide) -> R) -> R {
        change(self.device.queues().qps.get_mut(&self.key).expect("it exists"))
    }
}

impl DeviceQp for TestQp {
    fn blueflame_bytes(&self) -> usize {
        usize::from(self.device.attributes.blueflame_bytes)
    }

    fn ring(&mut self, ctrl: [u8; 8]) {
        self.side(|qp| qp.rings.push(ctrl));
    }

    fn blueflame(&mut self, wqe: &(impl WqeBlocks + ?Sized)) {
        let words = (0..wqe.count()).flat_map(|block| wqe.block(block));
        let bytes = words.flat_map(u64::to_ne_bytes).collect();
        self.side(|qp| qp.blueflames.push(bytes));
    }

    fn received(&mut self) {
        self.side(|qp| qp.received += 1);
    }

    fn modify(&mut self, to: &Transition) -> Result<(), ModifyError> {
        self.side(|qp| {
            qp.state = to.target();
            qp.transitions.push(*to);
        });
        if self.side(|qp| qp.transport) == Transport::Dct {
            let has_number = to.target() == QpState::Rtr;
            self.qpn = if has_number { Qpn::new(self.key).unwrap() } else { Qpn::default() };
        }
        Ok(())
    }

    fn destroy(&mut self) {}

    fn state(&self) -> QpState {
        self.side(|qp| qp.state)
    }

    fn qpn(&self) -> Qpn {
        self.qpn
    }
}

macro_rules! count_drops {
    ($($handle:ty, $device:tt;)*) => {$(
        impl Drop for $handle {
            fn drop(&mut self) {
                self.$device.queues().dropped += 1;
            }
        }
    )*};
}
count_drops! { TestCq, 0; TestSrq, 0; TestQp, device; }

/// The driver never touches registered memory, so the device has none.
pub(crate) enum NoMemory {}

impl MemoryRegion for NoMemory {
    fn addr(&self) -> u64 {
        match *self {}
    }
    fn len_bytes(&self) -> usize {
        match *self {}
    }
    fn lkey(&self) -> Lkey {
        match *self {}
    }
    fn rkey(&self) -> Rkey {
        match *self {}
    }
    fn read(&self, _: usize, _: &mut [u8]) {
        match *self {}
    }
    fn write(&self, _: usize, _: &[u8]) {
        match *self {}
    }
    fn load_u64(&self, _: usize) -> u64 {
        match *self {}
    }
    fn deregister(self) -> Result<(), MemoryError> {
        match self {}
    }
}

/// A channel that is never waited on.
#[derive(Debug)]
pub(crate) struct TestChannel;

impl Channel for TestChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        unreachable!("the driver passes channels on and does nothing else with them")
    }

    fn wait(&self, _: Duration) -> bool {
        false
    }
}

fn receive_ring(request: &RqRequest) -> Memory {
    Memory::zeroed(1 << (request.log_entries + request.log_stride))
}

// SAFETY: rings and records are zeroed, of the size asked for, aligned to 64 bytes, and kept by the
// device, which outlives the handle; it accesses them as atomics.
unsafe impl Device for TestDevice {
    type Pd = ();
    type Mr = NoMemory;
    type Channel = TestChannel;
    type Cq = TestCq;
    type Srq = TestSrq;
    type Qp = TestQp;

    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn port(&self) -> PortAttributes {
        let (lid, gid) = (Lid::new(7), Gid::new([7; 16]));
        PortAttributes { link: self.link, lid, gid, gid_index: 5, mtu: Mtu::B4096 }
    }

    fn address(&self) -> AddressVector {
        AddressVector::new(Route::Lid(Lid::new(7)))
    }

    fn alloc_pd(&self) -> Result<(), CreateError> {
        Ok(())
    }

    fn alloc_mr(&self, (): &(), _: usize, _: Access) -> Result<NoMemory, MemoryError> {
        Err(MemoryError::NoKey { limit: 0 })
    }

    fn create_channel(&self) -> Result<TestChannel, CreateError> {
        Ok(TestChannel)
    }

    fn create_cq(
        &self,
        request: &CqRequest,
        _: Option<&TestChannel>,
    ) -> Result<(TestCq, CqMemory), CreateError> {
        let mut queues = self.queues();
        let key = 0x10 + u32::try_from(queues.cqs.len()).unwrap();
        let &CqRequest { log_entries, cqe_bytes } = request;
        let ring = Memory::zeroed(cqe_bytes << log_entries);
        let record = Memory::zeroed(8);
        let memory = CqMemory {
            cqn: Cqn::new(key).unwrap(),
            ring: ring.base(),
            dbrec: record.base().cast(),
        };
        let side = CqSide { ring, record, log_entries, cqe_bytes, produced: 0, idles: 0 };
        queues.cqs.insert(key, side);
        Ok((TestCq(self.clone(), key), memory))
    }

    fn create_srq(
        &self,
        (): &(),
        request: &RqRequest,
    ) -> Result<(TestSrq, SrqMemory), CreateError> {
        let mut queues = self.queues();
        let key = 0x5_0000 + u32::try_from(queues.srqs.len()).unwrap();
        let (ring, record) = (receive_ring(request), Memory::zeroed(8));
        let rq = RqMemory { ring: ring.base(), dbrec: record.base().cast() };
        queues.srqs.insert(key, (ring, record));
        Ok((TestSrq(self.clone()), SrqMemory { srqn: Srqn::new(key).unwrap(), rq }))
    }

    fn create_qp(
        &self,
        (): &(),
        request: &QpRequest<'_, Self>,
    ) -> Result<(TestQp, QpMemory), CreateError> {
        let mut queues = self.queues();
        let key = QPN + u32::try_from(queues.qps.len()).unwrap();
        let send = request.log_send_blocks.map(|log| Memory::zeroed(64 << log));
        let recv = request.recv.as_ref().map(receive_ring);
        let record = Memory::zeroed(8);
        let dbrec = record.base().cast::<u32>();
        let send_dbrec = NonNull::new(dbrec.as_ptr().wrapping_add(1));
        let is_dct = request.transport == Transport::Dct;
        let qpn = if is_dct { Qpn::default() } else { Qpn::new(key).unwrap() };
        let memory = QpMemory {
            qpn,
            send_ring: send.as_ref().map(Memory::base),
            send_dbrec: send.as_ref().and(send_dbrec),
            recv: recv.as_ref().map(|ring| RqMemory { ring: ring.base(), dbrec }),
        };
        let side = QpSide {
            send,
            recv,
            record,
            state: QpState::Reset,
            transport: request.transport,
            rings: Vec::new(),
            blueflames: Vec::new(),
            received: 0,
            transitions: Vec::new(),
        };
        queues.qps.insert(key, side);
        Ok((TestQp { device: self.clone(), key, qpn }, memory))
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        None
    }

    fn poll_timeout(&self) -> Option<Duration> {
        None
    }
}

pub(crate) type Cq = copyrpc_mlx5::Cq<TestDevice>;
pub(crate) type Srq = copyrpc_mlx5::Srq<TestDevice>;
pub(crate) type Qp = copyrpc_mlx5::Qp<TestDevice>;
pub(crate) type Config<'a> = QpConfig<'a, Nic<TestDevice>>;

/// A NIC, its device, and a CQ that everything fits into.
pub(crate) fn nic(device: TestDevice) -> (Nic<TestDevice>, TestDevice, Cq) {
    let nic = Nic::new(device.clone());
    let config = CqConfig { allow_overcommit: true, ..CqConfig::new(64) };
    let cq = nic.create_cq(&config, None).unwrap();
    (nic, device, cq)
}

/// A queue pair that is ready for whatever its transport does.
pub(crate) fn ready(nic: &Nic<TestDevice>, config: &Config<'_>) -> Qp {
    let mut qp = nic.create_qp(&(), config).unwrap();
    make_ready(&mut qp);
    qp
}

/// RESET to RTS; a DCT to RTR.
pub(crate) fn make_ready(qp: &mut Qp) {
    let init = verbs::InitAttr { access: Access::REMOTE_WRITE, qkey: verbs::QKey::new(1) };
    qp.modify(&Transition::Init(init)).unwrap();
    let peer = RcPeer {
        qpn: Qpn::new(1).unwrap(),
        address: AddressVector::new(Route::Lid(Lid::new(9))),
        rq_psn: Psn::default(),
    };
    let rtr = RtrAttr {
        path_mtu: Mtu::B4096,
        peer: (qp.transport() == Transport::Rc).then_some(peer),
        rnr_timer: RnrTimer::at_least(Duration::ZERO),
        reads_in_max: 16,
    };
    qp.modify(&Transition::Rtr(rtr)).unwrap();
    if qp.transport() != Transport::Dct {
        qp.modify(&Transition::Rts(RtsAttr::default())).unwrap();
    }
}

pub(crate) fn sge(addr: u64, lkey: u32, len_bytes: u32) -> Sge {
    Sge { addr, len_bytes, lkey: Lkey::new(lkey) }
}
