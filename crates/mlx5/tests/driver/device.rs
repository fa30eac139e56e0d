//! A device of heap memory.

use core::{ptr::NonNull, time::Duration};
use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::BorrowedFd,
    sync::{Mutex, MutexGuard},
};

use copyrpc_mlx5::{
    BlueFlame, Nic,
    device::{
        CqMemory, CqRequest, Device, DeviceCq, DeviceQp, PortRows, QpMemory, QpRequest, RqMemory,
        SqMemory, SrqMemory, SrqRequest, Unreachable, WqeBlocks,
    },
};
use memory::sync::{Arc, AtomicU32, AtomicU64, Ordering};
use verbs::{
    Access, AddressVector, AsyncEvent, Channel, CqConfig, Cqn, CreateError, Gid, GidRoute, Lid,
    LinkLayer, Lkey, MemoryError, MemoryRegion, ModifyError, Mtu, Nic as _, NicAttributes,
    PortAttributes, PortRoute, Psn, QpConfig, QpState, Qpn, QueuePair as _, RcPeer, Rkey, RnrTimer,
    RtrAttr, RtsAttr, Sge, Srqn, Transition, Transport,
};
use wire::cqe::{CqeView, owner_bit};

/// What fills rings before a test looks at what the driver wrote.
pub(crate) const POISON: u8 = 0xa5;

/// Row of the port's P_Key table.
pub(crate) const PKEY_INDEX: u16 = 0x7ff;

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

    /// Blocks of 64 bytes.
    pub(crate) fn blocks(&self) -> usize {
        self.0.len()
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
    /// Whether the device may put payload into completions.
    pub(crate) scatter_to_cqe: bool,
    /// Doorbells, each the first 8 bytes of a control segment.
    pub(crate) rings: Vec<[u8; 8]>,
    /// BlueFlame writes.
    pub(crate) blueflames: Vec<Vec<u8>>,
    /// Calls that say that receives were posted.
    pub(crate) received: u32,
    pub(crate) transitions: Vec<Transition>,
    /// The rows that came with each of them.
    pub(crate) rows: Vec<PortRows>,
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
    /// Row of the GID table.
    gid_index: u8,
    events: VecDeque<AsyncEvent>,
    /// GIDs whose next hop was asked for.
    resolved: Vec<Gid>,
    /// The register that all queue pairs share, and what plays it.
    register: Option<(BlueFlame, Memory)>,
}

/// Handle of the device.
#[derive(Clone, Debug)]
pub(crate) struct TestDevice {
    queues: Arc<Mutex<Queues>>,
    attributes: Arc<NicAttributes>,
    link: LinkLayer,
    blueflame_bytes: usize,
    /// Sizes are rounded up by so many powers of two.
    generous: u8,
    /// Entries of completion queues have twice the size that was asked for.
    has_wide_cqes: bool,
}

impl TestDevice {
    pub(crate) fn new() -> Self {
        let attributes = NicAttributes {
            name: "test".into(),
            capabilities: verbs::Capabilities::all(),
            cqes_max: 1 << 20,
            requests_max: 1 << 15,
            srq_entries_max: 1 << 16,
            srq_sges_max: 63,
            sges_max: 63,
            inline_bytes_max: u16::MAX,
            cqe_payload_bytes_max: 0,
            message_bytes_max: 1 << 31,
            reads_max: 16,
        };
        let queues = Arc::new(Mutex::new(Queues { gid_index: 5, ..Queues::default() }));
        Self {
            queues,
            attributes: Arc::new(attributes),
            link: LinkLayer::InfiniBand,
            blueflame_bytes: 256,
            generous: 0,
            has_wide_cqes: false,
        }
    }

    pub(crate) fn ethernet(mut self) -> Self {
        self.link = LinkLayer::Ethernet;
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut NicAttributes)) -> Self {
        change(Arc::get_mut(&mut self.attributes).expect("a new device"));
        self
    }

    /// A BlueFlame register that takes so much; 0: there is none.
    pub(crate) fn with_blueflame(mut self, bytes: usize) -> Self {
        self.blueflame_bytes = bytes;
        self
    }

    /// Makes every ring and stride larger than it is asked for, and leaves something in it.
    pub(crate) fn generous(mut self, powers: u8) -> Self {
        self.generous = powers;
        self
    }

    /// Makes completion queues of other entries than it is asked for.
    pub(crate) fn with_wide_cqes(mut self) -> Self {
        self.has_wide_cqes = true;
        self
    }

    /// All queue pairs ring at one register, with two halves.
    pub(crate) fn with_one_register(self) -> Self {
        let memory = Memory::zeroed(2 * self.blueflame_bytes + 64);
        // SAFETY: kept beside the register, and so by each queue pair, which has a handle of the device.
        let register = unsafe { BlueFlame::new(memory.base(), self.blueflame_bytes) };
        self.queues().register = Some((register, memory));
        self
    }

    pub(crate) fn register(&self) -> Memory {
        self.queues().register.as_ref().expect("it has one").1.clone()
    }

    /// The port's GID moves to another row, and an event says so.
    pub(crate) fn move_gid(&self, gid_index: u8) {
        let mut queues = self.queues();
        queues.gid_index = gid_index;
        queues.events.push_back(AsyncEvent::AddressChanged);
    }

    pub(crate) fn resolved(&self) -> Vec<Gid> {
        self.queues().resolved.clone()
    }

    /// A ring of at least `1 << log_bytes` bytes.
    fn ring(&self, log_bytes: u8) -> Memory {
        let ring = Memory::zeroed(1 << log_bytes);
        if self.generous > 0 {
            ring.poison();
        }
        ring
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
    register: Option<BlueFlame>,
}

impl TestQp {
    fn side<R>(&self, change: impl FnOnce(&mut QpSide) -> R) -> R {
        change(self.device.queues().qps.get_mut(&self.key).expect("it exists"))
    }
}

impl DeviceQp for TestQp {
    fn blueflame_bytes(&self) -> usize {
        self.device.blueflame_bytes
    }

    fn ring(&mut self, ctrl: [u8; 8]) {
        self.side(|qp| qp.rings.push(ctrl));
        if let Some(register) = &mut self.register {
            register.ring(ctrl);
        }
    }

    fn blueflame(&mut self, wqe: &(impl WqeBlocks + ?Sized)) {
        let words = (0..wqe.count()).flat_map(|block| wqe.block(block));
        let bytes = words.flat_map(u64::to_ne_bytes).collect();
        self.side(|qp| qp.blueflames.push(bytes));
        if let Some(register) = &mut self.register {
            register.write(wqe);
        }
    }

    fn received(&mut self) {
        self.side(|qp| qp.received += 1);
    }

    fn modify(&mut self, to: &Transition, rows: PortRows) -> Result<(), ModifyError> {
        self.side(|qp| {
            qp.rows.push(rows);
            qp.state = to.target();
            qp.transitions.push(*to);
        });
        if self.side(|qp| qp.transport) == Transport::Dct {
            let has_number = to.target() == QpState::Rtr;
            self.qpn = if has_number { Qpn::new(self.key).unwrap() } else { Qpn::default() };
        }
        Ok(())
    }

    /// As over libmlx5: the memory lives until the drop.
    fn destroy(&mut self) {
        if self.side(|qp| qp.transport) != Transport::Dct {
            let rows = PortRows::of(&self.device.port());
            self.modify(&Transition::Reset, rows).expect("it is always possible");
        }
    }

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

// SAFETY: rings have the size that the answers say, records are zero, both are aligned to 64 bytes, and kept by the
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
        PortAttributes {
            number: 2,
            link: self.link,
            lid,
            gid,
            gid_index: self.queues().gid_index,
            pkey_index: PKEY_INDEX,
            mtu: Mtu::B4096,
        }
    }

    fn address(&self) -> AddressVector {
        AddressVector::new(PortRoute::Lid(Lid::new(7)))
    }

    /// The first bytes of the GID; nobody has a GID that begins with 0xff.
    fn resolve(&self, route: &GidRoute) -> Result<[u8; 6], Unreachable> {
        self.queues().resolved.push(route.gid);
        let bytes = route.gid.to_bytes();
        let mac = bytes.first_chunk().copied();
        mac.filter(|mac: &[u8; 6]| mac[0] != 0xff).ok_or(Unreachable)
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
        let log_entries = request.log_entries + self.generous;
        let cqe_bytes = request.cqe_bytes << u8::from(self.has_wide_cqes);
        let ring = self.ring(log_entries + cqe_bytes.ilog2().to_le_bytes()[0]);
        let record = Memory::zeroed(8);
        let memory = CqMemory {
            cqn: Cqn::new(key).unwrap(),
            ring: ring.base(),
            dbrec: record.base().cast(),
            log_entries,
            cqe_bytes,
        };
        let side = CqSide { ring, record, log_entries, cqe_bytes, produced: 0, idles: 0 };
        queues.cqs.insert(key, side);
        Ok((TestCq(self.clone(), key), memory))
    }

    fn create_srq(
        &self,
        (): &(),
        request: &SrqRequest,
    ) -> Result<(TestSrq, SrqMemory), CreateError> {
        let mut queues = self.queues();
        let key = 0x5_0000 + u32::try_from(queues.srqs.len()).unwrap();
        let entries = u32::from(request.buffers) + 1;
        let log_entries = entries.next_power_of_two().ilog2().to_le_bytes()[0] + self.generous;
        let log_stride = request.log_stride + self.generous;
        let (ring, record) = (self.ring(log_entries + log_stride), Memory::zeroed(8));
        let rq =
            RqMemory { ring: ring.base(), dbrec: record.base().cast(), log_entries, log_stride };
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
        let log_blocks = request.log_send_blocks.map(|log| log + self.generous);
        let send = log_blocks.map(|log| self.ring(6 + log));
        let [log_entries, log_stride] = request.recv.map_or([0; 2], |recv| {
            [recv.log_entries, recv.log_stride].map(|log| log + self.generous)
        });
        let recv = request.recv.map(|_| self.ring(log_entries + log_stride));
        let record = Memory::zeroed(8);
        let dbrec = record.base().cast::<u32>();
        let send_dbrec = NonNull::new(dbrec.as_ptr().wrapping_add(1)).expect("inside a record");
        let is_dct = request.transport == Transport::Dct;
        let qpn = if is_dct { Qpn::default() } else { Qpn::new(key).unwrap() };
        let memory = QpMemory {
            qpn,
            send: send.as_ref().zip(log_blocks).map(|(ring, log_blocks)| SqMemory {
                ring: ring.base(),
                log_blocks,
                dbrec: send_dbrec,
            }),
            recv: recv.as_ref().map(|ring| RqMemory {
                ring: ring.base(),
                dbrec,
                log_entries,
                log_stride,
            }),
        };
        let side = QpSide {
            send,
            recv,
            record,
            state: QpState::Reset,
            transport: request.transport,
            scatter_to_cqe: request.scatter_to_cqe,
            rings: Vec::new(),
            blueflames: Vec::new(),
            received: 0,
            transitions: Vec::new(),
            rows: Vec::new(),
        };
        queues.qps.insert(key, side);
        let register = queues.register.as_mut().map(|(register, _)| register.share());
        Ok((TestQp { device: self.clone(), key, qpn, register }, memory))
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.queues().events.pop_front()
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
        address: AddressVector::new(PortRoute::Lid(Lid::new(9))),
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
