//! Creation of queues: sizes, limits, and what a completion queue has room for.

use core::{ptr::NonNull, time::Duration};
use std::os::fd::OwnedFd;

use memory::sync::Arc;
use verbs::{
    Access, AddressVector, AsyncEvent, CqConfig, CreateError, Lid, MemoryError, NicAttributes,
    PortAttributes, QpConfig, QpState, RecvSize, Registration, RemoteSlice, SendSize, Shortage,
    SrqConfig, Transport,
};
use wire::wqe::{OCTOWORD_BYTES, OCTOWORDS_MAX, OCTOWORDS_PER_WQEBB, WQEBB_BYTES};

use crate::{
    address::{NextHops, Resolver},
    attached::{Attached, Share},
    cq::Cq,
    device::{CqRequest, Device, DeviceQp, QpMemory, QpRequest, RqMemory, RqRequest, SrqRequest},
    entries::Entries,
    options::{CqeSize, DoorbellMode, Options},
    qp::Qp,
    ring::{Record, Words},
    rq::{self, RecvQueue, RecvShape},
    sq::{self, SendQueue, SendShape, gather_octowords, longest_octowords},
    srq::Srq,
};

/// A ConnectX, or whatever [`Device`] plays one, as a [`verbs::Nic`].
#[derive(Clone, Debug)]
pub struct Nic<D: Device> {
    device: D,
    options: Options,
    /// The device's, and what the options make of them.
    attributes: Arc<NicAttributes>,
    /// Resolves addresses of the port's neighbours.
    resolver: Arc<Resolver<D>>,
}

impl<D: Device> Nic<D> {
    /// Drives `device`, with the default [`Options`].
    pub fn new(device: D) -> Self {
        let attributes = Arc::new(attributes(&device, Options::default()));
        let resolver = Arc::new(Resolver::new(device.clone()));
        Self { device, options: Options::default(), attributes, resolver }
    }

    /// A handle of the same device that makes its queues by `options`.
    #[must_use]
    pub fn with_options(mut self, options: Options) -> Self {
        self.attributes = Arc::new(attributes(&self.device, options));
        self.options = options;
        self
    }

    /// The options with which this handle makes its queues.
    pub fn options(&self) -> Options {
        self.options
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    fn entries_max(&self, limit: u32) -> u32 {
        self.device.attributes().requests_max.min(limit)
    }
}

/// The device's attributes, as far as the formats and `options` let programs use them.
fn attributes(device: &impl Device, options: Options) -> NicAttributes {
    let own = device.attributes().clone();
    let cqe_payload_bytes_max = match options {
        Options { scatter_to_cqe: false, .. } => 0,
        Options { cqe_size: CqeSize::B64, .. } => 32,
        Options { cqe_size: CqeSize::B128, .. } => 64,
    };
    NicAttributes {
        requests_max: own.requests_max.min(sq::BLOCKS_MAX),
        srq_entries_max: own.srq_entries_max.min(rq::ENTRIES_MAX - 1),
        srq_sges_max: own.srq_sges_max.min(OCTOWORDS_MAX - 1),
        cqes_max: own.cqes_max.min(CQES_MAX),
        sges_max: own.sges_max.min(sq::SGES_MAX),
        inline_bytes_max: own.inline_bytes_max.min(sq::INLINE_BYTES_MAX),
        cqe_payload_bytes_max,
        ..own
    }
}

/// Base-2 logarithm of `entries`, rounded up to a power of two.
fn log_entries(what: &'static str, entries: u32, max: u32) -> Result<u8, CreateError> {
    let size = |limit| CreateError::Size { what, asked: u64::from(entries), limit };
    if entries == 0 {
        return Err(size("it needs at least one entry"));
    }
    let rounded = entries.checked_next_power_of_two().filter(|&rounded| rounded <= max);
    let rounded = rounded.ok_or(size("rounded up to a power of two it exceeds the device"))?;
    Ok(rounded.ilog2().to_le_bytes()[0])
}

/// The ring that takes `size.requests` of the longest WQE that `size` allows.
fn send_shape(
    transport: Transport,
    size: SendSize,
    blocks_max: u32,
) -> Result<Option<SendShape>, CreateError> {
    let SendSize { requests, sges_max, inline_bytes_max } = size;
    if transport == Transport::Dct || requests == 0 {
        return Ok(None);
    }
    let octowords = longest_octowords(transport != Transport::Rc, sges_max, inline_bytes_max);
    if octowords > u16::from(OCTOWORDS_MAX) {
        let limit = "a WQE has at most 63 octowords";
        let (what, asked) = if gather_octowords(transport != Transport::Rc, sges_max) == octowords {
            ("gather list", u64::from(sges_max))
        } else {
            ("inline payload", u64::from(inline_bytes_max))
        };
        return Err(CreateError::Size { what, asked, limit });
    }
    let blocks = u32::from(octowords.div_ceil(u16::from(OCTOWORDS_PER_WQEBB)));
    let what = "send queue";
    let size = |limit| CreateError::Size { what, asked: u64::from(requests), limit };
    let ring = requests.checked_mul(blocks).and_then(u32::checked_next_power_of_two);
    let ring = ring.filter(|&ring| ring <= blocks_max);
    let ring = ring.ok_or(size("its longest requests exceed the largest ring of the device"))?;
    let log_blocks = ring.ilog2().to_le_bytes()[0];
    // Lossless: a ring has at most 2¹⁵ blocks, and a request at least one.
    let [low, high, ..] = requests.to_le_bytes();
    let requests = u16::from_le_bytes([low, high]);
    Ok(Some(SendShape { log_blocks, requests, sges_max, inline_bytes_max }))
}

/// Rounds a receive queue up. `header_octowords` precede each scatter list.
fn recv_shape(
    what: &'static str,
    size: RecvSize,
    header_octowords: u8,
    max: u32,
) -> Result<RecvShape, CreateError> {
    let octowords = u32::from(size.sges_max.max(1)) + u32::from(header_octowords);
    if octowords > u32::from(OCTOWORDS_MAX) {
        let (what, asked) = ("scatter list", u64::from(size.sges_max));
        return Err(CreateError::Size { what, asked, limit: "a WQE has at most 63 octowords" });
    }
    let log_entries = log_entries(what, size.requests, max)?;
    // Lossless: at most 6.
    let log_octowords = octowords.next_power_of_two().ilog2().to_le_bytes()[0];
    // Lossless: at most 2¹⁵.
    let [low, high, ..] = size.requests.to_le_bytes();
    let requests = u16::from_le_bytes([low, high]);
    Ok(RecvShape { log_entries, log_octowords, requests, sges_max: size.sges_max })
}

const LOG_OCTOWORD_BYTES: u8 = OCTOWORD_BYTES.ilog2().to_le_bytes()[0];

fn rq_request(shape: RecvShape) -> RqRequest {
    let log_stride = shape.log_octowords + LOG_OCTOWORD_BYTES;
    RqRequest { log_entries: shape.log_entries, log_stride }
}

/// The receive ring that `Device` described, and the shape that it has.
///
/// # Errors
///
/// [`CreateError::System`], if the ring cannot hold `shape`, or exceeds the counters.
///
/// # Safety
///
/// `memory` is what the device answered to a request for `shape`, and its handle outlives the
/// result.
unsafe fn recv_parts(
    memory: &RqMemory,
    shape: RecvShape,
) -> Result<(Words, Record, RecvShape), CreateError> {
    let RqMemory { log_entries, log_stride, .. } = *memory;
    let asked_stride = shape.log_octowords + LOG_OCTOWORD_BYTES;
    check_size("receive ring", log_entries, shape.log_entries, rq::ENTRIES_MAX.ilog2())?;
    check_size("stride of receives", log_stride, asked_stride, STRIDE_BYTES_MAX.ilog2())?;
    // SAFETY: valid for this length and shared with the device alone, by `Device`'s contract.
    let ring = unsafe { Words::new(memory.ring, 1 << (log_entries + log_stride)) };
    // SAFETY: as above.
    let record = unsafe { Record::new(memory.dbrec) };
    Ok((
        ring,
        record,
        RecvShape { log_entries, log_octowords: log_stride - LOG_OCTOWORD_BYTES, ..shape },
    ))
}

/// Refuses a device that made less than it was asked for, or more than counters can count. Sizes are
/// logarithms.
fn check_size(what: &'static str, size: u8, requested: u8, max: u32) -> Result<(), CreateError> {
    if size >= requested && u32::from(size) <= max {
        return Ok(());
    }
    let cause =
        format!("the device made 2^{size} instead of 2^{requested}, at most 2^{max} is possible");
    Err(CreateError::System { object: what, cause })
}

/// The queues of a queue pair.
struct QpShape {
    send: Option<SendShape>,
    recv: Option<RecvShape>,
}

impl QpShape {
    fn new<D: Device>(nic: &Nic<D>, config: &QpConfig<'_, Nic<D>>) -> Result<Self, CreateError> {
        let transport = config.transport;
        let broken = |rule| Err(CreateError::Transport { transport, rule });
        match (transport, config.srq) {
            (Transport::Dct, None) => return broken("receives from an SRQ: pass one"),
            (Transport::Dci, Some(_)) => return broken("receives nothing: pass no SRQ"),
            _ => {}
        }
        let send = send_shape(transport, config.send, nic.entries_max(sq::BLOCKS_MAX))?;
        let has_rq = matches!(transport, Transport::Rc | Transport::Ud)
            && config.srq.is_none()
            && config.recv.requests > 0;
        let entries_max = nic.entries_max(rq::ENTRIES_MAX);
        let recv = has_rq.then(|| recv_shape("receive queue", config.recv, 0, entries_max));
        Ok(Self { send, recv: recv.transpose()? })
    }

    fn send_share<D: Device>(
        &self,
        config: &QpConfig<'_, Nic<D>>,
    ) -> Result<Option<Share>, CreateError> {
        let share =
            self.send.map(|send| config.send_cq.attached.attach(send.requests.into(), None));
        share.transpose()
    }

    fn recv_share<D: Device>(
        &self,
        config: &QpConfig<'_, Nic<D>>,
    ) -> Result<Option<Share>, CreateError> {
        let attached = &config.recv_cq.attached;
        let share = match (config.srq, self.recv) {
            (Some(srq), _) => {
                let srqn = verbs::SharedReceiveQueue::srqn(srq);
                attached.attach(u32::from(srq.capacity()), Some(srqn))
            }
            (None, Some(recv)) => attached.attach(recv.requests.into(), None),
            (None, None) => return Ok(None),
        };
        share.map(Some)
    }
}

/// The error of a device that did not do as it was asked.
fn missing(what: &'static str) -> CreateError {
    let cause = format!("the device described no {what}: its driver does not match this one");
    CreateError::System { object: "queue pair", cause }
}

/// Takes over the rings that `Device` described.
///
/// # Safety
///
/// `memory` is what the device answered to a request for `shape`, and its handle outlives the
/// result.
unsafe fn take_queues(
    shape: &QpShape,
    memory: &QpMemory,
    blueflame_bytes: usize,
) -> Result<(Option<SendQueue>, Option<RecvQueue>), CreateError> {
    let mut queues = (None, None);
    if let Some(send) = shape.send {
        let memory_of_sends = memory.send.ok_or_else(|| missing("send ring"))?;
        let log_blocks = memory_of_sends.log_blocks;
        check_size("send ring", log_blocks, send.log_blocks, sq::BLOCKS_MAX.ilog2())?;
        // SAFETY: valid for this length and shared with the device alone, by `Device`'s contract.
        let ring = unsafe { Words::new(memory_of_sends.ring, WQEBB_BYTES << log_blocks) };
        // SAFETY: as above.
        let record = unsafe { Record::new(memory_of_sends.dbrec) };
        let send = SendShape { log_blocks, ..send };
        queues.0 = Some(SendQueue::new(ring, record, memory.qpn, send, blueflame_bytes));
    }
    if let Some(recv) = shape.recv {
        let memory = memory.recv.ok_or_else(|| missing("receive ring"))?;
        // SAFETY: by contract.
        let (ring, record, recv) = unsafe { recv_parts(&memory, recv) }?;
        queues.1 = Some(RecvQueue::new(ring, record, recv));
    }
    Ok(queues)
}

impl<D: Device> verbs::Nic for Nic<D> {
    type Pd = D::Pd;
    type Mr = D::Mr;
    type Cq = Cq<D>;
    type Srq = Srq<D>;
    type Qp = Qp<D>;
    type Channel = D::Channel;

    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn port(&self) -> PortAttributes {
        self.device.port()
    }

    fn address(&self) -> AddressVector {
        self.device.address()
    }

    fn alloc_pd(&self) -> Result<D::Pd, CreateError> {
        self.device.alloc_pd()
    }

    fn alloc_mr(&self, pd: &D::Pd, len_bytes: usize, access: Access) -> Result<D::Mr, MemoryError> {
        self.device.alloc_mr(pd, len_bytes, access)
    }

    fn register_memfd(
        &self,
        pd: &D::Pd,
        fd: OwnedFd,
        len_bytes: usize,
        access: Access,
    ) -> Result<D::Mr, MemoryError> {
        self.device.register_memfd(pd, fd, len_bytes, access)
    }

    fn begin_register_memfd(
        &self,
        pd: &D::Pd,
        fd: OwnedFd,
        len_bytes: usize,
        access: Access,
    ) -> Registration<D::Mr> {
        self.device.begin_register_memfd(pd, fd, len_bytes, access)
    }

    fn create_channel(&self) -> Result<D::Channel, CreateError> {
        self.device.create_channel()
    }

    fn create_cq(
        &self,
        config: &CqConfig,
        channel: Option<&D::Channel>,
    ) -> Result<Cq<D>, CreateError> {
        let max = self.device.attributes().cqes_max.min(CQES_MAX);
        let log_entries = log_entries("completion queue", config.entries, max)?;
        let cqe_bytes = self.options.cqe_size.bytes();
        let request = CqRequest { log_entries, cqe_bytes, vector: config.vector };
        let (device, memory) = self.device.create_cq(&request, channel)?;
        check_size("completion ring", memory.log_entries, log_entries, CQES_MAX.ilog2())?;
        if memory.cqe_bytes != cqe_bytes {
            let cause = format!("its entries have {} B instead of {cqe_bytes} B", memory.cqe_bytes);
            return Err(CreateError::System { object: "completion ring", cause });
        }
        let log_entries = memory.log_entries;
        // SAFETY: valid for this length and shared with the device alone, by `Device`'s contract;
        // the handle goes into the same object.
        let ring = unsafe { Words::new(memory.ring, cqe_bytes << log_entries) };
        let [consumer, arm] = [0, 1].map(|word| {
            let record = memory.dbrec.cast::<u32>().as_ptr().wrapping_add(word);
            let record = NonNull::new(record).expect("inside an object");
            // SAFETY: one of the two words of the record, otherwise as above.
            unsafe { Record::new(record) }
        });
        let has_payload = self.options.cqe_size == CqeSize::B128;
        let entries = Entries::new(ring, consumer, log_entries, has_payload);
        // SAFETY: `Cq` closes `attached` before it gives up the handle that keeps the memory.
        let peek = unsafe { entries.peek() };
        let attached = Attached::new(memory.cqn, 1 << log_entries, config.allow_overcommit, peek);
        Ok(Cq::new(entries, arm, channel.is_some(), attached, device))
    }

    fn create_srq(&self, pd: &D::Pd, config: &SrqConfig) -> Result<Srq<D>, CreateError> {
        let what = "shared receive queue";
        let NicAttributes { srq_entries_max, srq_sges_max, .. } = *self.attributes;
        let size = RecvSize { requests: config.entries, sges_max: config.sges_max };
        if size.requests > srq_entries_max || size.sges_max > srq_sges_max {
            let (asked, limit) = (u64::from(config.entries), "it exceeds the device");
            return Err(CreateError::Size { what, asked, limit });
        }
        let mut shape = recv_shape(what, size, 1, rq::ENTRIES_MAX)?;
        // One entry more than buffers: see `srq`.
        shape.log_entries = (shape.requests + 1).next_power_of_two().ilog2().to_le_bytes()[0];
        let log_stride = shape.log_octowords + LOG_OCTOWORD_BYTES;
        let request = SrqRequest { buffers: shape.requests, log_stride };
        let (device, memory) = self.device.create_srq(pd, &request)?;
        // SAFETY: the device's answer to this request; the handle goes into the same object.
        let (ring, record, shape) = unsafe { recv_parts(&memory.rq, shape) }?;
        Ok(Srq::new(ring, record, shape, memory.srqn, device))
    }

    fn create_qp(&self, pd: &D::Pd, config: &QpConfig<'_, Self>) -> Result<Qp<D>, CreateError> {
        let transport = config.transport;
        let shape = QpShape::new(self, config)?;
        let send_share = shape.send_share(config)?;
        let recv_share = shape.recv_share(config)?;
        let request = QpRequest {
            transport,
            send_cq: &config.send_cq.device,
            recv_cq: &config.recv_cq.device,
            srq: config.srq.map(|srq| &srq.device),
            log_send_blocks: shape.send.map(|send| send.log_blocks),
            recv: shape.recv.map(rq_request),
            // A datagram's place in the buffer starts with 40 bytes of header.
            scatter_to_cqe: self.options.scatter_to_cqe && transport != Transport::Ud,
            access_key: config.access_key,
        };
        let (device, memory) = self.device.create_qp(pd, &request)?;
        let blueflame_bytes = match self.options.doorbell {
            DoorbellMode::Auto => device.blueflame_bytes(),
            DoorbellMode::Plain => 0,
        };
        // SAFETY: the device's answer to this request; the handle goes into the same object.
        let (sq, rq) = unsafe { take_queues(&shape, &memory, blueflame_bytes) }?;
        let mut qp = Qp {
            sq,
            rq,
            transport,
            hops: NextHops::new(&self.resolver),
            state: QpState::Reset,
            qpn: memory.qpn,
            send_share,
            recv_share,
            srq: config.srq.map(|srq| srq.returned().clone()),
            device,
        };
        qp.announce_receiver();
        Ok(qp)
    }

    /// See the trait. Address vectors are made of the port as it is after the event.
    fn poll_event(&self) -> Option<AsyncEvent> {
        let event = self.device.poll_event();
        if matches!(event, Some(AsyncEvent::PortUp | AsyncEvent::AddressChanged)) {
            self.resolver.refresh();
        }
        event
    }

    fn fabric(&self) -> Option<String> {
        self.device.fabric()
    }

    fn peer_mapping_bytes(&self) -> u64 {
        self.device.peer_mapping_bytes()
    }

    fn reach(&self, port: Lid, memory: RemoteSlice) -> Result<(), Shortage> {
        self.device.reach(port, memory.rkey)
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.device.poll_timeout()
    }
}

/// Largest stride of a receive: 64 octowords.
const STRIDE_BYTES_MAX: usize = 64 * OCTOWORD_BYTES;

/// Most entries of a completion queue: half the range of the 24-bit consumer index.
const CQES_MAX: u32 = 1 << 23;
