//! A NIC around another one, which a test restricts, listens to, or makes refuse.

use core::ops::{Deref, DerefMut};
use std::{os::fd::OwnedFd, time::Duration};

use memory::{Filler, LentBytes, Overfull};
use verbs::{
    Access, AddressVector, AsyncEvent, Completion, CqConfig, CreateError, Lid, Lkey, MemoryError,
    MemoryRegion, ModifyError, Nic, NicAttributes, PortAttributes, PostRecvError, PostSendError,
    QpConfig, QpState, Qpn, QueuePair, Registration, RemoteSlice, Rkey, SendRequest, Sge, Shortage,
    SrqConfig, Transition, Transport,
};

/// Hooks of a test in between. Each default passes requests and results on.
pub trait Hooks: Clone + 'static {
    /// Is kept as long as memory that was registered.
    type Region: 'static;

    /// Memory is registered with these rights.
    fn registers(&self, access: Access) -> Self::Region;

    /// Whether the kernel has done with memory of another process.
    fn is_registered(&self) -> bool {
        true
    }

    /// A channel is made.
    fn makes_channel(&self) {}

    /// The capabilities of the NIC.
    fn attributes<'a>(&'a self, inner: &'a NicAttributes) -> &'a NicAttributes {
        inner
    }

    /// Its port.
    fn port(&self, inner: PortAttributes) -> PortAttributes {
        inner
    }

    /// Its next event.
    fn event(&self, inner: impl FnOnce() -> Option<AsyncEvent>) -> Option<AsyncEvent> {
        inner()
    }

    /// Memory of the port `peer` is to be reached.
    ///
    /// # Errors
    ///
    /// [`Shortage`]: it is not.
    fn reaches(&self, peer: Lid) -> Result<(), Shortage> {
        let _ = peer;
        Ok(())
    }

    /// The state of a queue pair is to change.
    ///
    /// # Errors
    ///
    /// [`ModifyError`]: it does not.
    fn modifies(&self, to: &Transition) -> Result<(), ModifyError> {
        let _ = to;
        Ok(())
    }

    /// A request is posted by `inner`, as it is or changed.
    ///
    /// # Errors
    ///
    /// [`PostSendError`].
    fn posts(
        &self,
        request: &SendRequest<'_>,
        inner: impl FnOnce(&SendRequest<'_>) -> Result<u16, PostSendError>,
    ) -> Result<u16, PostSendError> {
        inner(request)
    }
}

/// A NIC with hooks.
#[derive(Clone, Debug)]
pub struct Wrapped<N, H> {
    /// The NIC below.
    pub nic: N,
    /// The hooks of the test.
    pub hooks: H,
}

impl<N, H> Deref for Wrapped<N, H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.hooks
    }
}

impl<N, H> DerefMut for Wrapped<N, H> {
    fn deref_mut(&mut self) -> &mut H {
        &mut self.hooks
    }
}

impl<N: Nic, H: Hooks> Nic for Wrapped<N, H> {
    type Pd = N::Pd;
    type Mr = WrappedMr<N::Mr, H::Region>;
    type Cq = N::Cq;
    type Srq = N::Srq;
    type Qp = WrappedQp<N::Qp, H>;
    type Channel = N::Channel;

    fn attributes(&self) -> &NicAttributes {
        self.hooks.attributes(self.nic.attributes())
    }

    fn port(&self) -> PortAttributes {
        self.hooks.port(self.nic.port())
    }

    fn address(&self) -> AddressVector {
        self.nic.address()
    }

    fn alloc_pd(&self) -> Result<N::Pd, CreateError> {
        self.nic.alloc_pd()
    }

    fn alloc_mr(
        &self,
        pd: &N::Pd,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self::Mr, MemoryError> {
        let mr = self.nic.alloc_mr(pd, len_bytes, access)?;
        Ok(WrappedMr { mr, _region: self.hooks.registers(access) })
    }

    fn register_memfd(
        &self,
        pd: &N::Pd,
        fd: OwnedFd,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self::Mr, MemoryError> {
        let mr = self.nic.register_memfd(pd, fd, len_bytes, access)?;
        Ok(WrappedMr { mr, _region: self.hooks.registers(access) })
    }

    fn begin_register_memfd(
        &self,
        pd: &N::Pd,
        fd: OwnedFd,
        len_bytes: usize,
        access: Access,
    ) -> Registration<Self::Mr> {
        let hooks = self.hooks.clone();
        let mut result = Some(self.register_memfd(pd, fd, len_bytes, access));
        Registration::new(move || if hooks.is_registered() { result.take() } else { None })
    }

    fn create_channel(&self) -> Result<N::Channel, CreateError> {
        self.hooks.makes_channel();
        self.nic.create_channel()
    }

    fn create_cq(
        &self,
        config: &CqConfig,
        channel: Option<&N::Channel>,
    ) -> Result<N::Cq, CreateError> {
        self.nic.create_cq(config, channel)
    }

    fn create_srq(&self, pd: &N::Pd, config: &SrqConfig) -> Result<N::Srq, CreateError> {
        self.nic.create_srq(pd, config)
    }

    fn create_qp(&self, pd: &N::Pd, config: &QpConfig<'_, Self>) -> Result<Self::Qp, CreateError> {
        let QpConfig { send_cq, recv_cq, srq, send, recv, access_key, .. } = *config;
        let inner = QpConfig::<N>::new(config.transport, send_cq);
        let inner = QpConfig { recv_cq, srq, send, recv, access_key, ..inner };
        Ok(WrappedQp { qp: self.nic.create_qp(pd, &inner)?, hooks: self.hooks.clone() })
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.hooks.event(|| self.nic.poll_event())
    }

    fn reach(&self, peer: Lid, memory: RemoteSlice) -> Result<(), Shortage> {
        self.hooks.reaches(peer)?;
        self.nic.reach(peer, memory)
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.nic.poll_timeout()
    }
}

/// Registered memory.
#[derive(Debug)]
pub struct WrappedMr<M, R> {
    mr: M,
    _region: R,
}

impl<M: MemoryRegion, R> MemoryRegion for WrappedMr<M, R> {
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

    fn read(&self, offset: usize, to: &mut [u8]) {
        self.mr.read(offset, to);
    }

    fn read_into(
        &self,
        offset: usize,
        len_bytes: usize,
        to: &mut Filler<'_>,
    ) -> Result<(), Overfull> {
        self.mr.read_into(offset, len_bytes, to)
    }

    fn write(&self, offset: usize, from: &[u8]) {
        self.mr.write(offset, from);
    }

    fn write_lent(&self, offset: usize, from: LentBytes<'_>) {
        self.mr.write_lent(offset, from);
    }

    fn load_u64(&self, offset: usize) -> u64 {
        self.mr.load_u64(offset)
    }

    fn has_pages(&self) -> bool {
        self.mr.has_pages()
    }

    fn deregister(self) -> Result<(), MemoryError> {
        self.mr.deregister()
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct WrappedQp<Q, H> {
    qp: Q,
    hooks: H,
}

impl<Q: QueuePair, H: Hooks> QueuePair for WrappedQp<Q, H> {
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
        self.hooks.modifies(to)?;
        self.qp.modify(to)
    }

    fn post_send(&mut self, request: &SendRequest<'_>) -> Result<u16, PostSendError> {
        let Self { qp, hooks } = self;
        hooks.posts(request, |request| qp.post_send(request))
    }

    fn ring_send(&mut self) {
        self.qp.ring_send();
    }

    fn post_recv(&mut self, into: &[Sge]) -> Result<u16, PostRecvError> {
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
