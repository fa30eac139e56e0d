//! The software NIC as the mlx5 driver's device: control path and doorbells.

use core::time::Duration;
use std::os::fd::{AsFd as _, OwnedFd};

use memory::sync::Arc;
use mlx5::device::{
    CqMemory, CqRequest, DeviceCq, DeviceQp, PortRows, QpMemory, QpRequest, RqMemory, RqRequest,
    SqMemory, SrqMemory, SrqRequest, Unreachable, WqeBlocks,
};
use os::{event::EventFd, ready_set::ReadySet};
use verbs::{
    Access, AddressVector, AsyncEvent, Capabilities, Cqn, CreateError, GidRoute, Lid, LinkLayer,
    MemoryError, ModifyError, Mtu, NicAttributes, PortAttributes, PortRoute, QpState, Qpn, Rkey,
    RtrAttr, Shortage, Srqn, Transition, Transport,
};
use wire::{
    doorbell::CqArm,
    wqe::{WQEBB_BYTES, peek_ctrl, wqebbs},
};

use crate::{
    nic::{
        channel::Channel,
        engine::SendQueue as _,
        gid::gid_of,
        housekeeping::Housekeeping,
        in_use::InUse,
        mr::Mr,
        objects::{ChannelShared, CqShared, RqShared},
        port_state::PortState,
        qp::{QpQueues, QpShared},
        runner::Runner,
        strict::Violation,
        timeline::Cause,
    },
    shared::arm,
};

/// An open port of the software NIC. Clones are handles of the same port.
#[derive(Clone, Debug)]
pub struct Device(pub(crate) Arc<Housekeeping>, pub(crate) Arc<InUse>);

/// Base-2 logarithms of the smallest completion ring and the smallest receive ring, as libmlx5 makes them.
/// Send rings of UD and DCI have two blocks at least, since a request with an address vector may need them.
///
/// Source: rdma-core `providers/mlx5/verbs.c`, `create_cq` (one entry more than asked for), and
/// `mlx5_calc_rq_size`; measured.
const LOG_CQES_MIN: u8 = 1;
const LOG_RECEIVES_MIN: u8 = 2;

/// Bytes that one BlueFlame write may carry, as on ConnectX.
const BLUEFLAME_BYTES: usize = 256;

/// Protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pd(pub(crate) u32);

/// Completion queue handle.
#[derive(Debug)]
pub struct Cq {
    housekeeping: Arc<Housekeeping>,
    port: Arc<PortState>,
    pub(crate) shared: Arc<CqShared>,
    idle_polls: u32,
    /// Strict mode: the last request for an event.
    armed: Option<CqArm>,
    /// Strict mode: events raised for requests that had this number, and whether the last request had.
    events: u8,
    is_counted: bool,
    _in_use: Arc<InUse>,
}

/// Shared receive queue handle.
#[derive(Debug)]
pub struct Srq {
    pub(crate) shared: Arc<RqShared>,
    _in_use: Arc<InUse>,
}

/// Queue pair handle.
#[derive(Debug)]
pub struct Qp {
    pub(crate) shared: Arc<QpShared>,
    housekeeping: Arc<Housekeeping>,
    _in_use: Arc<InUse>,
}

impl Qp {
    pub(crate) fn new(device: &Device, shared: Arc<QpShared>) -> Self {
        Self { shared, housekeeping: device.0.clone(), _in_use: device.1.clone() }
    }

    /// Strict mode: what a device checks when it takes a doorbell. `true`: go on.
    fn accepts(&self, ctrl: [u8; 8]) -> bool {
        let qp = &self.shared;
        if qp.port.config.strict.is_none() {
            return true;
        }
        let Some(violation) = self.doorbell_violation(ctrl) else { return true };
        qp.port.add_violation(violation);
        qp.fall_by_violation();
        false
    }

    fn doorbell_violation(&self, rung: [u8; 8]) -> Option<Violation> {
        let qp = &self.shared;
        let qpn = qp.qpn.get();
        let mut octoword = [0; 16];
        octoword[..8].copy_from_slice(&rung);
        let ctrl = peek_ctrl(&octoword);
        let doorbell = u64::from_be_bytes(rung);
        let Some(ring) = qp.send_ring() else {
            return Some(Violation::NotInRing { qpn, doorbell, ring: 0 });
        };
        let mut wqe = [0; crate::nic::engine::WQE_BYTES_MAX];
        ring.fetch(ctrl.index, &mut wqe);
        let in_ring: [u8; 8] = wqe.first_chunk().copied().unwrap_or_default();
        if in_ring != rung {
            let ring = u64::from_be_bytes(in_ring);
            return Some(Violation::NotInRing { qpn, doorbell, ring });
        }
        let (index, blocks, record) = (ctrl.index, wqebbs(ctrl.octowords), ring.posted());
        (index.wrapping_add(blocks) != record).then_some(Violation::DoorbellRecord {
            qpn,
            index,
            blocks,
            record,
        })
    }

    /// What the kernel refuses for the adapter's sake. Source: Linux `drivers/infiniband/hw/mlx5/qp.c`,
    /// `set_qpc_atomic_flags`, and `core/verbs.c`, `rdma_check_ah_attr`.
    fn check_kernel(&self, to: &Transition) -> Result<(), ModifyError> {
        let port = &self.housekeeping.port;
        let cause = match to {
            Transition::Init(attr)
                if attr.access.contains(Access::REMOTE_ATOMIC)
                    && !port.attributes.capabilities.contains(Capabilities::ATOMICS) =>
            {
                "Operation not supported: the adapter has no atomics"
            }
            Transition::Rtr(RtrAttr { peer: Some(peer), .. })
                if port.is_grh_missing(!matches!(peer.address.route, PortRoute::Lid(_))) =>
            {
                "Invalid argument: addresses of this port need a global route header"
            }
            _ => return Ok(()),
        };
        Err(ModifyError::Device { to: to.target(), cause: cause.to_owned() })
    }

    #[cold]
    fn blueflame_violation(&self, wqe: &(impl WqeBlocks + ?Sized)) -> Option<Violation> {
        let qp = &self.shared;
        let qpn = qp.qpn.get();
        let len_bytes = wqe.count() * WQEBB_BYTES;
        if len_bytes == 0 || len_bytes > self.blueflame_bytes() {
            return Some(Violation::BlueFlameLength { qpn, len_bytes });
        }
        let words = (0..wqe.count()).flat_map(|block| wqe.block(block));
        let rung: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        let octoword = rung.first_chunk().copied().unwrap_or_default();
        let mut ring = [0; crate::nic::engine::WQE_BYTES_MAX];
        let index = peek_ctrl(&octoword).index;
        let len = qp.send_ring().map_or(0, |r| r.fetch(index, &mut ring).1);
        if len > rung.len() || ring[..len] != rung[..len] {
            let first = |bytes: &[u8]| bytes.first_chunk().map_or(0, |b| u64::from_be_bytes(*b));
            let (doorbell, ring) = (first(&rung), first(&ring));
            return Some(Violation::NotInRing { qpn, doorbell, ring });
        }
        None
    }
}

impl Srq {
    pub(crate) fn new(device: &Device, shared: Arc<RqShared>) -> Self {
        Self { shared, _in_use: device.1.clone() }
    }
}

impl Cq {
    pub(crate) fn new(device: &Device, shared: Arc<CqShared>) -> Self {
        Self {
            housekeeping: device.0.clone(),
            port: device.0.port.clone(),
            shared,
            idle_polls: 0,
            armed: None,
            events: 0,
            is_counted: false,
            _in_use: device.1.clone(),
        }
    }

    /// Strict mode: whether a device would heed a request for an event.
    #[cold]
    fn accepts_arm(&mut self, request: CqArm, cqn: Cqn) -> bool {
        let own = Cqn::from_low_bits(self.shared.index());
        let recorded = self.shared.recorded();
        if (cqn, request) != (own, recorded) {
            self.port.add_violation(Violation::ArmRecord { cqn: own.get(), request, recorded });
            return false;
        }
        // The entry that the last request waited for was polled, so its event was raised, and a request
        // with its number is taken for that one, come late.
        let is_late = self.armed.replace(request).is_some_and(|last| {
            let is_over = !last.solicited_only && last.consumer_index != request.consumer_index;
            is_over && last.sequence == request.sequence
        });
        let sequence = request.sequence;
        if is_late {
            self.port.add_violation(Violation::ArmSequence { cqn: own.get(), sequence });
            return false;
        }
        if core::mem::take(&mut self.is_counted) && !self.shared.view.armed().is_armed() {
            self.events = self.events.wrapping_add(1) % CqArm::SEQUENCES;
        }
        // One that is behind may have been overtaken by an event, and waits for none that is counted.
        self.is_counted = sequence == self.events;
        let is_ahead = sequence == self.events.wrapping_add(1) % CqArm::SEQUENCES;
        if is_ahead {
            let events = self.events;
            self.port.add_violation(Violation::ArmAhead { cqn: own.get(), sequence, events });
        }
        !is_ahead
    }
}

impl DeviceQp for Qp {
    fn blueflame_bytes(&self) -> usize {
        BLUEFLAME_BYTES
    }

    #[inline]
    fn ring(&mut self, ctrl: [u8; 8]) {
        if self.accepts(ctrl) {
            self.shared.kick(Cause::Doorbell);
        }
    }

    #[inline]
    fn blueflame(&mut self, wqe: &(impl WqeBlocks + ?Sized)) {
        let qp = &self.shared;
        if qp.port.config.strict.is_some()
            && let Some(violation) = self.blueflame_violation(wqe)
        {
            qp.port.add_violation(violation);
            return qp.fall_by_violation();
        }
        // BlueFlame is a hint: what counts is in the ring.
        if self.accepts(wqe.first_word().to_ne_bytes()) {
            self.shared.kick(Cause::BlueFlame { blocks: wqe.count() });
        }
    }

    #[inline]
    fn received(&mut self) {
        self.shared.received();
    }

    /// Each table of the port has one row, so there is no other that a queue pair could be in.
    fn modify(&mut self, to: &Transition, _: PortRows) -> Result<(), ModifyError> {
        self.check_kernel(to)?;
        if let Transition::Rtr(RtrAttr { peer: Some(peer), .. }) = to {
            let (port, route) = (&self.housekeeping.port, &peer.address.route);
            let member = port.timeline().and_then(|timeline| timeline.instance_of(route));
            let lid = member.map_or_else(|| port.lid_of(route), |(lid, _)| lid);
            self.housekeeping.prepare_to_connect(lid.get());
        }
        self.shared.modify(to)?;
        self.housekeeping.progress();
        Ok(())
    }

    fn destroy(&mut self) {
        self.shared.destroy();
    }

    fn state(&self) -> QpState {
        self.shared.state()
    }

    fn qpn(&self) -> Qpn {
        self.shared.qpn
    }
}

impl DeviceCq for Cq {
    fn arm(&mut self, doorbell: u64) {
        let (request, cqn) = CqArm::of_doorbell_word(doorbell.to_be());
        if self.port.config.strict.is_some() && !self.accepts_arm(request, cqn) {
            return;
        }
        let kind = if request.solicited_only { arm::SOLICITED } else { arm::NEXT };
        self.shared.view.armed().arm(kind);
        self.shared.wake_if_due();
    }

    #[inline]
    fn idle(&mut self) -> bool {
        match self.port.runner.get() {
            None => self.housekeeping.idle(&mut self.idle_polls),
            Some(Runner::Thread(_)) => false,
            Some(Runner::Timeline(timeline)) if self.port.fabric.is_some() => {
                self.housekeeping.idle_between(&**timeline, &mut self.idle_polls)
            }
            Some(Runner::Timeline(timeline)) => {
                let happened = timeline.idle(self.port.lid);
                self.housekeeping.attend();
                happened
            }
        }
    }
}

// SAFETY: rings and doorbell records lie in the card, or in a heap region of the queue pair, which
// the handles keep; they were zeroed when allocated; nobody but the engine and the caller knows
// their place until the caller publishes it.
unsafe impl mlx5::device::Device for Device {
    type Pd = Pd;
    type Mr = Mr;
    type Channel = Channel;
    type Cq = Cq;
    type Srq = Srq;
    type Qp = Qp;

    fn attributes(&self) -> &NicAttributes {
        &self.0.port.attributes
    }

    fn fabric(&self) -> Option<String> {
        // Ports are found by the user's id, as a user namespace shows it.
        let port = &self.0.port;
        let is_joined = port.fabric.is_some();
        is_joined.then(|| format!("{}.{}", os::unix::user_id(), port.config.fabric))
    }

    fn peer_mapping_bytes(&self) -> u64 {
        let limits = &self.0.port.owner.card.limits;
        let is_mapped = self.0.port.fabric.is_some();
        if is_mapped { (limits.ro_bytes + limits.rw_bytes) as u64 } else { 0 }
    }

    fn reach(&self, port: Lid, rkey: Rkey) -> Result<(), Shortage> {
        self.0.port.reach(port.get(), rkey.get())
    }

    fn port(&self) -> PortAttributes {
        let (link, lid) = match self.0.port.config.link {
            LinkLayer::InfiniBand => (LinkLayer::InfiniBand, self.0.port.lid),
            LinkLayer::Ethernet => (LinkLayer::Ethernet, Lid::new(0)),
        };
        let gid = match self.address().route {
            PortRoute::Gid(route) | PortRoute::Global(_, route) => route.gid,
            PortRoute::Lid(lid) => gid_of(lid),
        };
        PortAttributes { number: 1, link, lid, gid, gid_index: 0, pkey_index: 0, mtu: Mtu::B4096 }
    }

    fn address(&self) -> AddressVector {
        let lid = self.0.port.lid;
        if let Some(address) = self.0.port.timeline().and_then(|timeline| timeline.address()) {
            return address;
        }
        let global = GidRoute { gid: gid_of(lid), hop_limit: 64, traffic_class: 0, flow_label: 0 };
        AddressVector::new(match self.0.port.config.link {
            LinkLayer::InfiniBand if self.0.port.config.profile.needs_grh() => {
                PortRoute::Global(lid, global)
            }
            LinkLayer::InfiniBand => PortRoute::Lid(lid),
            LinkLayer::Ethernet => PortRoute::Gid(global),
        })
    }

    /// Locally administered, and ends like the GID.
    fn resolve(&self, route: &GidRoute) -> Result<[u8; 6], Unreachable> {
        let [.., high, low] = route.gid.to_bytes();
        Ok([0x02, 0, 0, 0, high, low])
    }

    fn alloc_pd(&self) -> Result<Pd, CreateError> {
        Ok(Pd(self.0.port.new_id()))
    }

    fn alloc_mr(&self, pd: &Pd, len: usize, access: Access) -> Result<Mr, MemoryError> {
        Mr::alloc(&self.0.port, &self.1, pd.0, len, access)
    }

    fn register_memfd(
        &self,
        pd: &Pd,
        fd: OwnedFd,
        len: usize,
        access: Access,
    ) -> Result<Mr, MemoryError> {
        Mr::register(&self.0.port, &self.1, pd.0, fd, len, access)
    }

    fn create_channel(&self) -> Result<Channel, CreateError> {
        let event = EventFd::new().map_err(|error| CreateError::System {
            object: "completion channel",
            cause: error.to_string(),
        })?;
        let shared = Arc::new(ChannelShared { id: self.0.port.new_id(), event: Arc::new(event) });
        self.0.port.add_channel(shared.id, &shared.event)?;
        let ready = self.0.port.timeline().and_then(|timeline| timeline.descriptor());
        let ready = ready.map(|descriptor| ReadySet::new(&[shared.event.as_fd(), descriptor]));
        let ready = ready.transpose().map_err(|error| CreateError::System {
            object: "completion channel",
            cause: error.to_string(),
        })?;
        Ok(Channel { housekeeping: self.0.clone(), shared, ready, _in_use: self.1.clone() })
    }

    fn create_cq(
        &self,
        request: &CqRequest,
        channel: Option<&Channel>,
    ) -> Result<(Cq, CqMemory), CreateError> {
        let channel = channel.map(|channel| channel.shared.clone());
        let log_entries = request.log_entries.max(LOG_CQES_MIN);
        let shared = CqShared::create(&self.0.port, log_entries, request.cqe_bytes, channel, None)?;
        let shared = Arc::new(shared);
        self.0.add_cq(&shared);
        let memory = CqMemory {
            cqn: Cqn::from_low_bits(shared.index()),
            ring: shared.ring(),
            dbrec: shared.dbrec(),
            log_entries,
            cqe_bytes: request.cqe_bytes,
        };
        Ok((Cq::new(self, shared), memory))
    }

    fn create_srq(&self, pd: &Pd, request: &SrqRequest) -> Result<(Srq, SrqMemory), CreateError> {
        let SrqRequest { buffers, log_stride } = *request;
        let log_entries = (u32::from(buffers) + 1).next_power_of_two().ilog2().to_le_bytes()[0];
        let shared =
            Arc::new(RqShared::create(&self.0.port, pd.0, log_entries, log_stride, true, None)?);
        self.0.add_rq(&shared);
        let rq = RqMemory { ring: shared.ring(), dbrec: shared.dbrec(), log_entries, log_stride };
        let memory = SrqMemory { srqn: Srqn::from_low_bits(shared.index()), rq };
        Ok((Srq::new(self, shared), memory))
    }

    fn create_qp(
        &self,
        pd: &Pd,
        request: &QpRequest<'_, Self>,
    ) -> Result<(Qp, QpMemory), CreateError> {
        let log_blocks_min = u8::from(matches!(request.transport, Transport::Ud | Transport::Dci));
        let log_send_blocks = request.log_send_blocks.map(|blocks| blocks.max(log_blocks_min));
        let recv = request.recv.map(|recv| {
            let log_entries = recv.log_entries.max(LOG_RECEIVES_MIN);
            RqRequest { log_entries, ..recv }
        });
        // In a short entry the payload would overwrite who sent it: Linux `mlx5_ib_create_dct`.
        let may_scatter =
            request.transport != Transport::Dct || request.recv_cq.shared.view.has_payload_half();
        let queues = QpQueues {
            transport: request.transport,
            send_cq: request.send_cq.shared.clone(),
            recv_cq: request.recv_cq.shared.clone(),
            srq: request.srq.map(|srq| srq.shared.clone()),
            log_send_blocks,
            recv: recv.map(|recv| [recv.log_entries, recv.log_stride]),
            scatter_to_cqe: request.scatter_to_cqe && may_scatter,
            access_key: request.access_key.get(),
            lent: None,
        };
        let shared = QpShared::create(&self.0.port, pd.0, queues)?;
        self.0.add_qp(&shared);
        let own_rq = if shared.has_srq { None } else { shared.rq.as_ref() };
        let send = shared.send_ring().zip(log_send_blocks);
        let send = send.map(|(sends, log_blocks)| SqMemory {
            ring: sends.ring(),
            log_blocks,
            dbrec: sends.dbrec(),
        });
        let recv = own_rq.zip(recv).map(|(rq, RqRequest { log_entries, log_stride })| RqMemory {
            ring: rq.ring(),
            dbrec: rq.dbrec(),
            log_entries,
            log_stride,
        });
        let memory = QpMemory { qpn: shared.qpn, send, recv };
        Ok((Qp::new(self, shared), memory))
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.0.poll_event()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.0.poll_timeout()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use memory::sync::Ordering;
    use verbs::{
        Access, CqConfig, InitAttr, Nic as _, QKey, QpConfig, QpState, QueuePair as _, SrqConfig,
        Transition, Transport,
    };

    use crate::{Config, open};

    #[test]
    fn a_queue_pair_is_not_broken_by_what_broke_the_last_one_of_its_number() {
        let fabric = format!("numbers-{}", std::process::id());
        let nic = open(&Config { fabric, card_mib: 8, ..Config::default() }).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
        let config = QpConfig::new(Transport::Rc, &cq);
        let broken = nic.create_qp(&pd, &config).unwrap();
        let number = broken.qpn();
        let fault = nic.device().0.port.owner.card.qp_fault(number.get()).unwrap();
        fault.syndrome.store(1, Ordering::Relaxed);
        drop(broken);
        let numbers = || nic.create_qp(&pd, &config).unwrap();
        let mut next = core::iter::repeat_with(numbers).find(|qp| qp.qpn() == number).unwrap();
        let attr = InitAttr { access: Access::empty(), qkey: QKey::default() };
        next.modify(&Transition::Init(attr)).unwrap();
        assert_eq!(next.state(), QpState::Init);
    }

    /// Ports that connect, create and drop everything leave every index and byte free.
    #[test]
    fn a_hundred_rounds_of_objects_give_everything_back() {
        let fabric = format!("rounds-{}", std::process::id());
        let config = Config { fabric, card_mib: 8, ..Config::default() };
        let nic = open(&config).unwrap();
        let before = nic.device().0.port.owner.unused();
        for round in 0..100 {
            let pd = nic.alloc_pd().unwrap();
            let channel = nic.create_channel().unwrap();
            let cq = nic.create_cq(&CqConfig::new(64 << (round % 3)), Some(&channel)).unwrap();
            let small = nic.create_cq(&CqConfig::new(256), None).unwrap();
            let srq = nic.create_srq(&pd, &SrqConfig { entries: 32, sges_max: 2 }).unwrap();
            let _mr = nic.alloc_mr(&pd, 4096, Access::empty()).unwrap();
            let mut config = QpConfig::new(Transport::Rc, &small);
            let own = nic.create_qp(&pd, &config).unwrap();
            config.srq = Some(&srq);
            let shared = nic.create_qp(&pd, &config).unwrap();
            let in_use = nic.device().0.port.owner.unused();
            assert_ne!(in_use, before);
            // Whoever goes first.
            match round % 3 {
                0 => drop((cq, small, srq, own, shared)),
                1 => drop((shared, srq, own, channel, small)),
                _ => drop((own, small, cq, shared)),
            }
        }
        assert_eq!(nic.device().0.port.owner.unused(), before);
    }
}
