//! Creation of queues: sizes, limits, and what a completion queue has room for.

use core::{ptr::NonNull, time::Duration};

use verbs::{
    Access, AddressVector, AsyncEvent, CqConfig, CqeSize, CreateError, DoorbellMode, MemoryError,
    NicAttributes, PortAttributes, QpConfig, QpState, QueueSize, SrqConfig, Transport,
};
use wire::wqe::{OCTOWORD_BYTES, OCTOWORDS_MAX, OCTOWORDS_PER_WQEBB, WQEBB_BYTES};

use crate::{
    attached::{Attached, Share},
    cq::Cq,
    device::{CqRequest, Device, DeviceQp, QpMemory, QpRequest, RqMemory, RqRequest},
    entries::Entries,
    qp::Qp,
    ring::{Record, Words},
    rq::{self, RecvQueue, RecvShape},
    sq::{self, SendQueue, SendShape, gather_octowords},
    srq::Srq,
};

/// A ConnectX, or whatever [`Device`] plays one, as a [`verbs::Nic`].
#[derive(Clone, Debug)]
pub struct Nic<D: Device> {
    device: D,
}

impl<D: Device> Nic<D> {
    /// Drives `device`.
    pub fn new(device: D) -> Self {
        Self { device }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    fn entries_max(&self, limit: u32) -> u32 {
        self.device.attributes().wqes_max.min(limit)
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

/// Rounds a send queue up, so that half of it takes the longest gathering WQE.
fn send_shape(
    transport: Transport,
    size: QueueSize,
    max: u32,
) -> Result<Option<SendShape>, CreateError> {
    if transport == Transport::Dct || size.entries == 0 {
        return Ok(None);
    }
    let sges_max = size.sges_max;
    let octowords = gather_octowords(transport != Transport::Rc, sges_max);
    if octowords > u16::from(OCTOWORDS_MAX) {
        let (what, asked) = ("gather list", u64::from(sges_max));
        return Err(CreateError::Size { what, asked, limit: "a WQE has at most 63 octowords" });
    }
    let blocks = u32::from(octowords.div_ceil(u16::from(OCTOWORDS_PER_WQEBB)));
    let blocks_min = if blocks == 1 { 1 } else { 2 * blocks };
    let log_blocks = log_entries("send queue", size.entries.max(blocks_min), max)?;
    Ok(Some(SendShape { log_blocks, sges_max }))
}

/// Rounds a receive queue up. `header_octowords` precede each scatter list.
fn recv_shape(
    what: &'static str,
    size: QueueSize,
    header_octowords: u8,
    max: u32,
) -> Result<RecvShape, CreateError> {
    let octowords = u32::from(size.sges_max.max(1)) + u32::from(header_octowords);
    if octowords > u32::from(OCTOWORDS_MAX) {
        let (what, asked) = ("scatter list", u64::from(size.sges_max));
        return Err(CreateError::Size { what, asked, limit: "a WQE has at most 63 octowords" });
    }
    let log_entries = log_entries(what, size.entries, max)?;
    // Lossless: at most 6.
    let log_octowords = octowords.next_power_of_two().ilog2().to_le_bytes()[0];
    Ok(RecvShape { log_entries, log_octowords, sges_max: size.sges_max })
}

fn rq_request(shape: RecvShape) -> RqRequest {
    let log_octoword = OCTOWORD_BYTES.ilog2().to_le_bytes()[0];
    let (log_entries, log_stride) = (shape.log_entries, shape.log_octowords + log_octoword);
    RqRequest { log_entries, log_stride }
}

/// The receive ring that `Device` described.
///
/// # Safety
///
/// `memory` is what the device answered to a request for `shape`, and its handle outlives the
/// result.
unsafe fn recv_parts(memory: &RqMemory, shape: RecvShape) -> (Words, Record) {
    let len_bytes = (OCTOWORD_BYTES << shape.log_octowords) << shape.log_entries;
    // SAFETY: valid for this length and shared with the device alone, by `Device`'s contract.
    let ring = unsafe { Words::new(memory.ring, len_bytes) };
    // SAFETY: as above.
    let record = unsafe { Record::new(memory.dbrec) };
    (ring, record)
}

/// Which queues a queue pair gets.
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
            && config.recv.entries > 0;
        let entries_max = nic.entries_max(rq::ENTRIES_MAX);
        let recv = has_rq.then(|| recv_shape("receive queue", config.recv, 0, entries_max));
        Ok(Self { send, recv: recv.transpose()? })
    }

    fn send_share<D: Device>(
        &self,
        config: &QpConfig<'_, Nic<D>>,
    ) -> Result<Option<Share>, CreateError> {
        // Each completion is of another WQE, and a WQE has at least one block.
        let share =
            self.send.map(|send| config.send_cq.attached.attach(1 << send.log_blocks, None));
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
            (None, Some(recv)) => attached.attach(1 << recv.log_entries, None),
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
        let base = memory.send_ring.ok_or_else(|| missing("send ring"))?;
        let record = memory.send_dbrec.ok_or_else(|| missing("send doorbell record"))?;
        // SAFETY: valid for this length and shared with the device alone, by `Device`'s contract.
        let ring = unsafe { Words::new(base, WQEBB_BYTES << send.log_blocks) };
        // SAFETY: as above.
        let record = unsafe { Record::new(record) };
        queues.0 = Some(SendQueue::new(ring, record, memory.qpn, send, blueflame_bytes));
    }
    if let Some(recv) = shape.recv {
        let memory = memory.recv.ok_or_else(|| missing("receive ring"))?;
        // SAFETY: by contract.
        let (ring, record) = unsafe { recv_parts(&memory, recv) };
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
        self.device.attributes()
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
        let cqe_bytes = config.cqe_size.bytes();
        let (device, memory) =
            self.device.create_cq(&CqRequest { log_entries, cqe_bytes }, channel)?;
        // SAFETY: valid for this length and shared with the device alone, by `Device`'s contract;
        // the handle goes into the same object.
        let ring = unsafe { Words::new(memory.ring, cqe_bytes << log_entries) };
        let [consumer, arm] = [0, 1].map(|word| {
            let record = memory.dbrec.cast::<u32>().as_ptr().wrapping_add(word);
            let record = NonNull::new(record).expect("inside an object");
            // SAFETY: one of the two words of the record, otherwise as above.
            unsafe { Record::new(record) }
        });
        let has_payload = config.cqe_size == CqeSize::B128;
        let entries = Entries::new(ring, consumer, log_entries, has_payload);
        // SAFETY: `Cq` closes `attached` before it gives up the handle that keeps the memory.
        let peek = unsafe { entries.peek() };
        let attached = Attached::new(memory.cqn, 1 << log_entries, config.allow_overcommit, peek);
        Ok(Cq::new(entries, arm, channel.is_some(), attached, device))
    }

    /// See the trait. The ring has twice the entries that can be posted: the device's linked list
    /// needs one that is not.
    fn create_srq(&self, pd: &D::Pd, config: &SrqConfig) -> Result<Srq<D>, CreateError> {
        let size = QueueSize { entries: config.entries, sges_max: config.sges_max };
        let max = self.entries_max(rq::ENTRIES_MAX) / 2;
        let mut shape = recv_shape("shared receive queue", size, 1, max)?;
        shape.log_entries += 1;
        let (device, memory) = self.device.create_srq(pd, &rq_request(shape))?;
        // SAFETY: the device's answer to this request; the handle goes into the same object.
        let (ring, record) = unsafe { recv_parts(&memory.rq, shape) };
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
            scatter_to_cqe: config.scatter_to_cqe && transport != Transport::Ud,
            access_key: config.access_key,
        };
        let (device, memory) = self.device.create_qp(pd, &request)?;
        let blueflame_bytes = match config.doorbell {
            DoorbellMode::Auto => device.blueflame_bytes(),
            DoorbellMode::Plain => 0,
        };
        // SAFETY: the device's answer to this request; the handle goes into the same object.
        let (sq, rq) = unsafe { take_queues(&shape, &memory, blueflame_bytes) }?;
        let mut qp = Qp {
            sq,
            rq,
            transport,
            port: self.device.port(),
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

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.device.poll_event()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.device.poll_timeout()
    }
}

/// Most entries of a completion queue: half the range of the 24-bit consumer index.
const CQES_MAX: u32 = 1 << 23;
