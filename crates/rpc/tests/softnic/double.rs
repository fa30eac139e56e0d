//! A software NIC between a worker and its test.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use verbs::{
    Access, AddressVector, AsyncEvent, Completion, CqConfig, CreateError, Lid, Lkey, MemoryError,
    MemoryRegion, ModifyError, Mtu, Nic, NicAttributes, Op, Payload, PortAttributes, PostRecvError,
    PostSendError, QpConfig, QpState, Qpn, QueuePair, RemoteSlice, Rkey, SendRequest, Shortage,
    SrqConfig, Transition, Transport,
};

use crate::rig::soft;

pub(crate) type Soft = softnic::Nic;

/// A software NIC that a test restricts, listens to, or makes refuse.
#[derive(Clone)]
pub(crate) struct Faulty {
    pub(crate) nic: Soft,
    /// State changes are refused.
    pub(crate) is_refusing: Rc<Cell<bool>>,
    /// Memory of peers is not reached.
    pub(crate) is_short: Rc<Cell<bool>>,
    /// Told before what the NIC has to tell.
    pub(crate) event: Rc<Cell<Option<AsyncEvent>>>,
    /// It never tells that a port is gone.
    pub(crate) is_deaf: bool,
    /// Registered memory that is there.
    pub(crate) regions: Rc<()>,
    pub(crate) attributes: NicAttributes,
    pub(crate) mtu: Mtu,
    /// What it was told and asked, in order.
    pub(crate) log: Rc<RefCell<Log>>,
}

/// What a NIC was told and asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) channels: usize,
    pub(crate) transitions: Vec<Transition>,
    /// Bytes that went inline, and immediates.
    pub(crate) inline: Vec<(Vec<u8>, Option<u32>)>,
    /// Lengths of READs, and of WRITEs that are gathered and announce nothing.
    pub(crate) transfers: Vec<u32>,
    /// Rights of memory that was registered.
    pub(crate) registered: Vec<Access>,
}

impl Faulty {
    pub(crate) fn open(fabric: &str) -> Self {
        let nic = softnic::open(&soft(fabric, None)).unwrap();
        let (attributes, mtu) = (nic.attributes().clone(), nic.port().mtu);
        Self {
            nic,
            is_refusing: Rc::default(),
            is_short: Rc::default(),
            event: Rc::default(),
            is_deaf: false,
            regions: Rc::default(),
            attributes,
            mtu,
            log: Rc::default(),
        }
    }
}

/// Counts as long as it is there.
pub(crate) struct FaultyMr {
    mr: <Soft as Nic>::Mr,
    _counts: Rc<()>,
}

impl MemoryRegion for FaultyMr {
    fn addr(&self) -> u64 {
        self.mr.addr()
    }
    fn len_bytes(&self) -> usize {
        self.mr.len_bytes()
    }
    fn lkey(&self) -> Lkey {
        self.mr.lkey()
    }
    fn rkey(&self) -> Rkey {
        self.mr.rkey()
    }
    fn read(&self, offset: usize, into: &mut [u8]) {
        self.mr.read(offset, into);
    }
    fn write(&self, offset: usize, bytes: &[u8]) {
        self.mr.write(offset, bytes);
    }
    fn load_u64(&self, offset: usize) -> u64 {
        self.mr.load_u64(offset)
    }
    fn deregister(self) -> Result<(), MemoryError> {
        self.mr.deregister()
    }
}

pub(crate) struct FaultyQp {
    qp: <Soft as Nic>::Qp,
    is_refusing: Rc<Cell<bool>>,
    log: Rc<RefCell<Log>>,
}

impl Nic for Faulty {
    type Pd = <Soft as Nic>::Pd;
    type Mr = FaultyMr;
    type Cq = <Soft as Nic>::Cq;
    type Srq = <Soft as Nic>::Srq;
    type Qp = FaultyQp;
    type Channel = <Soft as Nic>::Channel;

    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }
    fn port(&self) -> PortAttributes {
        PortAttributes { mtu: self.mtu, ..self.nic.port() }
    }
    fn address(&self) -> AddressVector {
        self.nic.address()
    }
    fn alloc_pd(&self) -> Result<Self::Pd, CreateError> {
        self.nic.alloc_pd()
    }
    fn alloc_mr(
        &self,
        pd: &Self::Pd,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self::Mr, MemoryError> {
        let mr = self.nic.alloc_mr(pd, len_bytes, access)?;
        self.log.borrow_mut().registered.push(access);
        Ok(FaultyMr { mr, _counts: Rc::clone(&self.regions) })
    }
    fn create_channel(&self) -> Result<Self::Channel, CreateError> {
        self.log.borrow_mut().channels += 1;
        self.nic.create_channel()
    }
    fn create_cq(
        &self,
        config: &CqConfig,
        channel: Option<&Self::Channel>,
    ) -> Result<Self::Cq, CreateError> {
        self.nic.create_cq(config, channel)
    }
    fn create_srq(&self, pd: &Self::Pd, config: &SrqConfig) -> Result<Self::Srq, CreateError> {
        self.nic.create_srq(pd, config)
    }
    fn create_qp(
        &self,
        pd: &Self::Pd,
        config: &QpConfig<'_, Self>,
    ) -> Result<FaultyQp, CreateError> {
        let QpConfig { send_cq, recv_cq, srq, send, recv, access_key, .. } = *config;
        let of_soft = QpConfig::new(config.transport, send_cq);
        let of_soft = QpConfig { recv_cq, srq, send, recv, access_key, ..of_soft };
        let is_refusing = Rc::clone(&self.is_refusing);
        let log = Rc::clone(&self.log);
        Ok(FaultyQp { qp: self.nic.create_qp(pd, &of_soft)?, is_refusing, log })
    }
    fn poll_event(&self) -> Option<AsyncEvent> {
        let is_told =
            |event: &AsyncEvent| !(self.is_deaf && matches!(event, AsyncEvent::PeerGone(_)));
        self.event.take().or_else(|| self.nic.poll_event().filter(is_told))
    }
    fn reach(&self, peer: Lid, memory: RemoteSlice) -> Result<(), Shortage> {
        if self.is_short.get() {
            return Err(Shortage { what: "a test", len_bytes: 1, peer });
        }
        self.nic.reach(peer, memory)
    }
    fn poll_timeout(&self) -> Option<Duration> {
        self.nic.poll_timeout()
    }
}

impl QueuePair for FaultyQp {
    fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }
    fn transport(&self) -> Transport {
        self.qp.transport()
    }
    fn state(&self) -> QpState {
        self.qp.state()
    }
    fn modify(&mut self, to: &Transition) -> Result<(), ModifyError> {
        if self.is_refusing.get() {
            return Err(ModifyError::Device { to: QpState::Reset, cause: "a test".into() });
        }
        self.log.borrow_mut().transitions.push(*to);
        self.qp.modify(to)
    }
    fn post_send(&mut self, request: &SendRequest<'_>) -> Result<u16, PostSendError> {
        let posted = self.qp.post_send(request)?;
        let mut log = self.log.borrow_mut();
        match request.op {
            Op::Write { payload: Payload::Inline(parts), imm, .. } => {
                log.inline.push((parts.concat(), imm));
            }
            Op::Write { payload: Payload::Gather(sges), imm: None, .. }
            | Op::Read { into: sges, .. } => log.transfers.push(sges[0].len_bytes),
            _ => {}
        }
        Ok(posted)
    }
    fn ring_send(&mut self) {
        self.qp.ring_send();
    }
    fn post_recv(&mut self, into: &[verbs::Sge]) -> Result<u16, PostRecvError> {
        self.qp.post_recv(into)
    }
    fn ring_recv(&mut self) {
        self.qp.ring_recv();
    }
    fn send_free(&self) -> u16 {
        self.qp.send_free()
    }
    fn retire(&mut self, completion: &Completion) {
        self.qp.retire(completion);
    }
}
