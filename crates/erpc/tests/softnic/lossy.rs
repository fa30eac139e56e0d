//! A software NIC that loses datagrams: it sends some of them under a key that their receiver does not have.

use std::{cell::Cell, rc::Rc, time::Duration};

use softnic::Nic as Soft;
use verbs::{
    Access, AddressVector, AsyncEvent, Completion, CqConfig, CreateError, Destination, MemoryError,
    ModifyError, Nic, NicAttributes, PortAttributes, PostRecvError, PostSendError, QKey, QpConfig,
    QpState, Qpn, QueuePair, SendRequest, SrqConfig, Transition, Transport,
};

/// How much is lost, and how much has been.
#[derive(Debug, Default)]
pub(crate) struct Loss {
    /// Of ten million datagrams.
    pub(crate) per_ten_million: Cell<u64>,
    pub(crate) lost: Cell<u64>,
    random: Cell<u64>,
}

impl Loss {
    fn is_next_lost(&self) -> bool {
        let state =
            self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
        self.random.set(state);
        let is_lost = (state >> 33) % 10_000_000 < self.per_ten_million.get();
        self.lost.set(self.lost.get() + u64::from(is_lost));
        is_lost
    }
}

#[derive(Clone)]
pub(crate) struct Lossy {
    pub(crate) nic: Soft,
    pub(crate) loss: Rc<Loss>,
}

pub(crate) struct LossyQp {
    qp: <Soft as Nic>::Qp,
    loss: Rc<Loss>,
}

impl Nic for Lossy {
    type Pd = <Soft as Nic>::Pd;
    type Mr = <Soft as Nic>::Mr;
    type Cq = <Soft as Nic>::Cq;
    type Srq = <Soft as Nic>::Srq;
    type Qp = LossyQp;
    type Channel = <Soft as Nic>::Channel;

    fn attributes(&self) -> &NicAttributes {
        self.nic.attributes()
    }
    fn port(&self) -> PortAttributes {
        self.nic.port()
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
        self.nic.alloc_mr(pd, len_bytes, access)
    }
    fn create_channel(&self) -> Result<Self::Channel, CreateError> {
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
    ) -> Result<LossyQp, CreateError> {
        let QpConfig { send_cq, recv_cq, srq, send, recv, access_key, .. } = *config;
        let of_soft = QpConfig::new(config.transport, send_cq);
        let of_soft = QpConfig { recv_cq, srq, send, recv, access_key, ..of_soft };
        Ok(LossyQp { qp: self.nic.create_qp(pd, &of_soft)?, loss: Rc::clone(&self.loss) })
    }
    fn poll_event(&self) -> Option<AsyncEvent> {
        self.nic.poll_event()
    }
    fn poll_timeout(&self) -> Option<Duration> {
        self.nic.poll_timeout()
    }
}

impl QueuePair for LossyQp {
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
        self.qp.modify(to)
    }
    fn post_send(&mut self, request: &SendRequest<'_>) -> Result<u16, PostSendError> {
        match request.to {
            Some(Destination::Ud { to, qkey }) if self.loss.is_next_lost() => {
                let wrong = Destination::Ud { to: *to, qkey: QKey::new(qkey.get() ^ 1) };
                self.qp.post_send(&SendRequest { to: Some(&wrong), ..*request })
            }
            _ => self.qp.post_send(request),
        }
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
