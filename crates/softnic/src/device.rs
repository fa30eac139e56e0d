//! The software NIC as the mlx5 driver's device: control path and doorbells.

use core::time::Duration;

use memory::sync::Arc;
use mlx5::device::{
    CqMemory, CqRequest, DeviceCq, DeviceQp, QpMemory, QpRequest, RqMemory, RqRequest, SrqMemory,
    WqeBlocks,
};
use os::event::Event;
use verbs::{
    Access, AddressVector, AsyncEvent, Cqn, CreateError, GidRoute, Lid, LinkLayer, MemoryError,
    ModifyError, Mtu, NicAttributes, PortAttributes, QpState, Qpn, Route, Srqn, Transition,
};
use wire::{
    doorbell::CqArm,
    wqe::{WQEBB_BYTES, peek_ctrl, wqebbs},
};

use crate::{
    channel::{Channel, ChannelShared},
    config::Link,
    context::Context,
    engine::SendQueue as _,
    left_behind::InUse,
    mr::Mr,
    objects::{CqShared, RqShared},
    qp::{QpShared, gid_of},
    shared::arm,
    strict::Violation,
};

/// An open port of the software NIC. Clones are handles of the same port.
#[derive(Clone, Debug)]
pub struct Device(pub(crate) Arc<Context>, pub(crate) Arc<InUse>);

/// Protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pd(u32);

/// Completion queue handle.
#[derive(Debug)]
pub struct Cq {
    pub(crate) context: Arc<Context>,
    pub(crate) shared: Arc<CqShared>,
    idle_polls: u32,
    /// Strict mode: the last request for an event.
    armed: Option<CqArm>,
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
    shared: Arc<QpShared>,
    _in_use: Arc<InUse>,
}

impl Qp {
    /// Strict mode: what a device checks when it takes a doorbell. `true`: go on.
    fn accepts(&self, ctrl: [u8; 8]) -> bool {
        let qp = &self.shared;
        if qp.context.config.strict.is_none() {
            return true;
        }
        let Some(violation) = self.doorbell_violation(ctrl) else { return true };
        qp.context.add_violation(violation);
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
        let mut wqe = [0; crate::engine::WQE_BYTES_MAX];
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
        let mut ring = [0; crate::engine::WQE_BYTES_MAX];
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

impl Cq {
    /// Strict mode: whether a device would heed a request for an event.
    #[cold]
    fn heeds(&mut self, request: CqArm, cqn: Cqn) -> bool {
        let own = Cqn::from_low_bits(self.shared.index());
        let recorded = self.shared.recorded();
        if (cqn, request) != (own, recorded) {
            self.context.add_violation(Violation::ArmRecord { cqn: own.get(), request, recorded });
            return false;
        }
        // The entry that the last request waited for was polled, so its event was raised, and a request
        // with its number is taken for that one, come late.
        let is_late = self.armed.replace(request).is_some_and(|last| {
            let is_over = !last.solicited_only && last.consumer_index != request.consumer_index;
            is_over && last.sequence == request.sequence
        });
        if is_late {
            let sequence = request.sequence;
            self.context.add_violation(Violation::ArmSequence { cqn: own.get(), sequence });
        }
        !is_late
    }
}

impl DeviceQp for Qp {
    fn blueflame_bytes(&self) -> usize {
        usize::from(self.shared.context.attributes.blueflame_bytes)
    }

    #[inline]
    fn ring(&mut self, ctrl: [u8; 8]) {
        if self.accepts(ctrl) {
            self.shared.kick();
        }
    }

    #[inline]
    fn blueflame(&mut self, wqe: &(impl WqeBlocks + ?Sized)) {
        let qp = &self.shared;
        if qp.context.config.strict.is_some()
            && let Some(violation) = self.blueflame_violation(wqe)
        {
            qp.context.add_violation(violation);
            return qp.fall_by_violation();
        }
        // BlueFlame is a hint: what counts is in the ring.
        self.ring(wqe.first_word().to_ne_bytes());
    }

    #[inline]
    fn received(&mut self) {
        self.shared.received();
    }

    fn modify(&mut self, to: &Transition) -> Result<(), ModifyError> {
        self.shared.modify(to)
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
        if self.context.config.strict.is_some() && !self.heeds(request, cqn) {
            return;
        }
        let kind = if request.solicited_only { arm::SOLICITED } else { arm::NEXT };
        self.shared.view.armed().arm(kind);
        self.shared.wake_if_due();
    }

    #[inline]
    fn idle(&mut self) -> bool {
        self.context.worker.get().is_none() && self.context.idle(&mut self.idle_polls)
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
        &self.0.attributes
    }

    fn port(&self) -> PortAttributes {
        let (link, lid) = match self.0.config.link {
            Link::InfiniBand => (LinkLayer::InfiniBand, self.0.lid),
            Link::Roce => (LinkLayer::Ethernet, Lid::new(0)),
        };
        PortAttributes { link, lid, gid: gid_of(self.0.lid), gid_index: 0, mtu: Mtu::B4096 }
    }

    fn address(&self) -> AddressVector {
        let lid = self.0.lid;
        let [high, low] = lid.get().to_be_bytes();
        AddressVector::new(match self.0.config.link {
            Link::InfiniBand => Route::Lid(lid),
            Link::Roce => Route::Gid(GidRoute {
                gid: gid_of(lid),
                // Locally administered; ends like the GID.
                mac: [0x02, 0, 0, 0, high, low],
                hop_limit: 64,
                traffic_class: 0,
                flow_label: 0,
            }),
        })
    }

    fn alloc_pd(&self) -> Result<Pd, CreateError> {
        Ok(Pd(self.0.new_id()))
    }

    fn alloc_mr(&self, pd: &Pd, len: usize, access: Access) -> Result<Mr, MemoryError> {
        Mr::alloc(self, pd.0, len, access)
    }

    fn create_channel(&self) -> Result<Channel, CreateError> {
        let event = Event::new().map_err(|error| CreateError::System {
            object: "completion channel",
            cause: error.to_string(),
        })?;
        let shared = Arc::new(ChannelShared { id: self.0.new_id(), event: Arc::new(event) });
        self.0.add_channel(&shared)?;
        Ok(Channel { context: self.0.clone(), shared, _in_use: self.1.clone() })
    }

    fn create_cq(
        &self,
        request: &CqRequest,
        channel: Option<&Channel>,
    ) -> Result<(Cq, CqMemory), CreateError> {
        let channel = channel.map(|channel| channel.shared.clone());
        let shared = CqShared::create(&self.0, request.log_entries, request.cqe_bytes, channel)?;
        let shared = Arc::new(shared);
        self.0.add_cq(&shared);
        let memory = CqMemory {
            cqn: Cqn::from_low_bits(shared.index()),
            ring: shared.ring(),
            dbrec: shared.dbrec(),
        };
        let (context, in_use) = (self.0.clone(), self.1.clone());
        Ok((Cq { context, shared, idle_polls: 0, armed: None, _in_use: in_use }, memory))
    }

    fn create_srq(&self, pd: &Pd, request: &RqRequest) -> Result<(Srq, SrqMemory), CreateError> {
        let (entries, stride) = (request.log_entries, request.log_stride);
        let shared = Arc::new(RqShared::create(&self.0, pd.0, entries, stride, true)?);
        self.0.add_rq(&shared);
        let rq = RqMemory { ring: shared.ring(), dbrec: shared.dbrec() };
        let memory = SrqMemory { srqn: Srqn::from_low_bits(shared.index()), rq };
        Ok((Srq { shared, _in_use: self.1.clone() }, memory))
    }

    fn create_qp(
        &self,
        pd: &Pd,
        request: &QpRequest<'_, Self>,
    ) -> Result<(Qp, QpMemory), CreateError> {
        let shared = QpShared::create(&self.0, pd.0, request)?;
        let recv = if shared.has_srq { None } else { shared.rq.as_ref() };
        let memory = QpMemory {
            qpn: shared.qpn,
            send_ring: shared.send_ring().map(|ring| ring.ring()),
            send_dbrec: shared.send_ring().map(|ring| ring.dbrec()),
            recv: recv.map(|rq| RqMemory { ring: rq.ring(), dbrec: rq.dbrec() }),
        };
        Ok((Qp { shared, _in_use: self.1.clone() }, memory))
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
        let fault = nic.device().0.owner.card.qp_fault(number.get()).unwrap();
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
        let before = nic.device().0.owner.unused();
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
            let in_use = nic.device().0.owner.unused();
            assert_ne!(in_use, before);
            // Whoever goes first.
            match round % 3 {
                0 => drop((cq, small, srq, own, shared)),
                1 => drop((shared, srq, own, channel, small)),
                _ => drop((own, small, cq, shared)),
            }
        }
        assert_eq!(nic.device().0.owner.unused(), before);
    }
}
