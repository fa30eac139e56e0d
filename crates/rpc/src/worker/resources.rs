//! The NIC, and how the queue pairs and memory of a worker are made.

use core::time::Duration;

use proto::copyrpc::{CREDIT_BYTES, Features, Geometry, Hello};
use verbs::{
    Access, CreateError, DcKey, InitAttr, MemoryError, ModifyError, Nic, Psn, QKey, QpConfig,
    QueuePair as _, RcPeer, RecvSize, RnrTimer, RtrAttr, RtsAttr, SendSize, Transition, Transport,
};

use super::{receive::ReceiveSide, send::SendSide};
use crate::{
    Config, OpenError, TransportKind,
    contact::{Contact, PathLimits},
    entropy::Random,
    queue::Queue,
    receives::{Refill, SharedReceives},
};

/// RNR timer: how long a sender waits that found no receive.
const RNR_WAIT: Duration = Duration::from_micros(20);
/// READs that a peer may have outstanding here, and this side there, if the NICs allow it.
const READS_MAX: u8 = 16;

/// Settings, NIC, protection domain and channel: they last as long as the worker.
pub(super) struct Resources<N: Nic> {
    config: Config,
    geometry: Geometry,
    random: Random,
    key: DcKey,
    /// `None`: this worker never sleeps.
    channel: Option<N::Channel>,
    pd: N::Pd,
    nic: N,
}

impl<N: Nic> Resources<N> {
    pub(super) fn open(nic: N, config: Config) -> Result<Self, OpenError> {
        let geometry = config.geometry()?;
        config.check_receives(nic.attributes())?;
        let pd = nic.alloc_pd()?;
        let channel = config.may_sleep.then(|| nic.create_channel()).transpose()?;
        let mut random = Random::new(config.entropy);
        let key = DcKey::new(random.next_u64());
        Ok(Self { config, geometry, random, key, channel, pd, nic })
    }

    #[inline]
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Entries of a receive queue.
    fn receive_entries(&self) -> u16 {
        self.config.receive_entries(self.nic.attributes())
    }

    #[inline]
    pub(super) fn is_dc(&self) -> bool {
        self.config.transport == TransportKind::Dc
    }

    pub(super) fn nic(&self) -> &N {
        &self.nic
    }

    pub(super) fn channel(&self) -> Option<&N::Channel> {
        self.channel.as_ref()
    }

    pub(super) fn pd(&self) -> &N::Pd {
        &self.pd
    }

    /// Longest message of the NIC.
    pub(super) fn message_bytes_max(&self) -> usize {
        (self.nic.attributes().message_bytes_max as usize).max(1)
    }

    /// Limits of this side's port.
    pub(super) fn limits(&self) -> PathLimits {
        let reads_max = self.nic.attributes().reads_max.min(READS_MAX);
        PathLimits { mtu: self.nic.port().mtu, reads_max }
    }

    /// Packet number that this side begins with.
    pub(super) fn draw_psn(&mut self) -> Psn {
        Psn::from_low_bits(self.random.next_u32())
    }

    /// This side's hello for the peer in `slot`.
    pub(super) fn draw_hello(&mut self, slot: u16) -> Hello {
        Hello {
            features: Features::ALL,
            epoch: self.random.next_u32().max(1),
            slot,
            calls_max: self.config.calls_max,
            geometry: self.geometry,
            batches_max: self.config.batches_max(self.receive_entries()),
            large_bytes_max: self.config.large_bytes,
        }
    }

    /// The key that requests to this side's DC target must carry.
    pub(super) fn key(&self) -> DcKey {
        self.key
    }

    pub(super) fn register(&self, len_bytes: usize, access: Access) -> Result<N::Mr, MemoryError> {
        self.nic.alloc_mr(&self.pd, len_bytes, self.config.access(access))
    }

    // Completion queues, which are never overcommitted: whatever can be outstanding has an entry
    // (pitfall 14).

    pub(super) fn create_send_cq(&self) -> Result<N::Cq, CreateError> {
        let entries = u32::from(self.config.send_queues()) * u32::from(self.config.sends);
        self.nic.create_cq(&self.config.cq(entries), self.channel.as_ref())
    }

    /// The receiving half. DC: with a target that takes requests from now on.
    pub(super) fn create_receive_side(&self) -> Result<ReceiveSide<N>, OpenError> {
        let config = &self.config;
        let queues = if config.is_shared() { 1 } else { config.peers_max };
        let entries = self.receive_entries();
        let cq_entries = u32::from(queues) * u32::from(entries.next_power_of_two());
        let cq = self.nic.create_cq(&config.cq(cq_entries), self.channel.as_ref())?;
        let shared = if config.is_shared() {
            let mut receives = SharedReceives::new(&self.nic, &self.pd, entries)?;
            receives.fill()?;
            Some(receives)
        } else {
            None
        };
        let srq = shared.as_ref().map(SharedReceives::srq);
        let target = self.is_dc().then(|| self.create_target(&cq, srq)).transpose()?;
        Ok(ReceiveSide::new(cq, shared, target, self.geometry.batch_bytes_max()))
    }

    fn create_target(&self, cq: &N::Cq, srq: Option<&N::Srq>) -> Result<N::Qp, OpenError> {
        let config = QpConfig {
            srq,
            send: SendSize::NONE,
            recv: RecvSize::NONE,
            access_key: self.key,
            ..QpConfig::new(Transport::Dct, cq)
        };
        let mut target = self.nic.create_qp(&self.pd, &config)?;
        target.modify(&self.to_init())?;
        target.modify(&self.to_rtr(self.limits(), None))?;
        Ok(target)
    }

    /// A send queue: of an RC queue pair, or of a DC initiator. It is in state RESET.
    pub(super) fn create_queue(
        &self,
        send: &SendSide<N>,
        receive: &ReceiveSide<N>,
    ) -> Result<Queue<N>, CreateError> {
        let send_cq = send.cq();
        let has_own = !self.config.is_shared();
        let entries = if has_own { self.receive_entries() } else { 0 };
        // Credit always leaves inline.
        let inline_bytes_max = self.config.inline_bytes_max(self.nic.attributes());
        let inline_bytes_max =
            inline_bytes_max.max(u16::try_from(CREDIT_BYTES).unwrap_or(u16::MAX));
        let transport = if self.is_dc() { Transport::Dci } else { Transport::Rc };
        let config = QpConfig {
            send_cq,
            recv_cq: receive.cq(),
            srq: receive.srq().filter(|_| !self.is_dc()),
            send: SendSize { requests: self.config.sends.into(), sges_max: 1, inline_bytes_max },
            recv: RecvSize { requests: entries.into(), sges_max: 1 },
            ..QpConfig::new(transport, send_cq)
        };
        let qp = self.nic.create_qp(&self.pd, &config)?;
        Ok(Queue::new(qp, has_own.then(|| Refill::new(entries)), send.unfinished_count()))
    }

    /// Prepares an RC queue pair for its peer.
    pub(super) fn init(&self, queue: &mut Queue<N>) -> Result<(), ModifyError> {
        queue.modify(&self.to_init())
    }

    /// Connects an RC queue pair. Neither side sends more than the other one takes.
    pub(super) fn start_rc(
        &self,
        queue: &mut Queue<N>,
        contact: &Contact,
        sq_psn: Psn,
    ) -> Result<(), ModifyError> {
        let endpoint = contact.endpoint;
        let peer = RcPeer { qpn: endpoint.qpn, address: endpoint.address, rq_psn: contact.psn };
        let limits = self.limits().min(contact.limits);
        queue.modify(&self.to_rtr(limits, Some(peer)))?;
        queue.modify(&self.to_rts(limits, sq_psn))
    }

    /// Starts a DC initiator that is in state RESET.
    pub(super) fn start_initiator(&self, queue: &mut Queue<N>) -> Result<(), ModifyError> {
        let limits = self.limits();
        queue.modify(&self.to_init())?;
        queue.modify(&self.to_rtr(limits, None))?;
        queue.modify(&self.to_rts(limits, Psn::default()))
    }

    fn to_init(&self) -> Transition {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Transition::Init(InitAttr { access, qkey: QKey::default() })
    }

    fn to_rtr(&self, limits: PathLimits, peer: Option<RcPeer>) -> Transition {
        Transition::Rtr(RtrAttr {
            path_mtu: limits.mtu,
            peer,
            rnr_timer: RnrTimer::at_least(RNR_WAIT),
            reads_in_max: limits.reads_max,
        })
    }

    fn to_rts(&self, limits: PathLimits, sq_psn: Psn) -> Transition {
        Transition::Rts(RtsAttr {
            sq_psn,
            ack_timeout: self.config.ack_timeout,
            retry_count: self.config.retry_count,
            rnr_retry: self.config.rnr_retry,
            reads_out_max: limits.reads_max,
        })
    }
}
