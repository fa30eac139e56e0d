//! A port of an RDMA device, whoever writes its requests: the library or the driver `mlx5`. It is one NIC, so that
//! what is generic over the NIC is compiled for both at once, for a branch per request and per poll.
//!
//! Domains, memory and channels are the same of both.

use core::time::Duration;
use std::os::fd::OwnedFd;

use verbs::{
    Access, AddressVector, Arm, ArmError, AsyncEvent, Completion, CompletionQueue, CqConfig, Cqn,
    CreateError, Lid, MemoryError, ModifyError, NicAttributes, PortAttributes, PostRecvError,
    PostSendError, QpConfig, QpState, Qpn, QueuePair, Registration, RemoteSlice, SendRequest, Sge,
    SharedReceiveQueue, Shortage, SrqConfig, Srqn, Transition, Transport,
};

use crate::{ah::Pd, channel::Channel, mlx5dv::Device, mr::Mr};

/// Does the same with what is in either variant.
macro_rules! either {
    ($either:expr, $inner:ident => $result:expr) => {
        match $either {
            Self::Library($inner) => $result,
            Self::Driver($inner) => $result,
        }
    };
}

/// A port of an RDMA device.
#[derive(Clone, Debug)]
pub enum Nic {
    /// By the library's functions.
    Library(crate::Nic),
    /// By the driver `mlx5`.
    Driver(mlx5::Nic<Device>),
}

/// A completion queue of a [`Nic`].
#[derive(Debug)]
pub enum Cq {
    /// By the library's functions.
    Library(crate::Cq),
    /// By the driver `mlx5`.
    Driver(mlx5::Cq<Device>),
}

/// A shared receive queue of a [`Nic`].
#[derive(Debug)]
pub enum Srq {
    /// By the library's functions.
    Library(crate::Srq),
    /// By the driver `mlx5`.
    Driver(mlx5::Srq<Device>),
}

/// A queue pair of a [`Nic`].
#[derive(Debug)]
pub enum Qp {
    /// By the library's functions.
    Library(crate::Qp),
    /// By the driver `mlx5`.
    Driver(mlx5::Qp<Device>),
}

/// The completion queue and the shared receive queue of the NIC `N`, if they are its.
trait Queues: verbs::Nic {
    fn cq(cq: &Cq) -> Option<&Self::Cq>;
    fn srq(srq: &Srq) -> Option<&Self::Srq>;
}

impl Queues for crate::Nic {
    fn cq(cq: &Cq) -> Option<&Self::Cq> {
        if let Cq::Library(cq) = cq { Some(cq) } else { None }
    }

    fn srq(srq: &Srq) -> Option<&Self::Srq> {
        if let Srq::Library(srq) = srq { Some(srq) } else { None }
    }
}

impl Queues for mlx5::Nic<Device> {
    fn cq(cq: &Cq) -> Option<&Self::Cq> {
        if let Cq::Driver(cq) = cq { Some(cq) } else { None }
    }

    fn srq(srq: &Srq) -> Option<&Self::Srq> {
        if let Srq::Driver(srq) = srq { Some(srq) } else { None }
    }
}

/// `config` with the queues of `N`.
fn config_of<'a, N: Queues>(config: &QpConfig<'a, Nic>) -> Result<QpConfig<'a, N>, CreateError> {
    let foreign = || {
        let cause = "its completion or shared receive queue is of the other of the NICs `ibverbs` and `mlx5`: \
                     make all of its queues on one";
        CreateError::System { object: "queue pair", cause: cause.to_owned() }
    };
    Ok(QpConfig {
        transport: config.transport,
        send_cq: N::cq(config.send_cq).ok_or_else(foreign)?,
        recv_cq: N::cq(config.recv_cq).ok_or_else(foreign)?,
        srq: config.srq.map(|srq| N::srq(srq).ok_or_else(foreign)).transpose()?,
        send: config.send,
        recv: config.recv,
        access_key: config.access_key,
    })
}

impl verbs::Nic for Nic {
    type Pd = Pd;
    type Mr = Mr;
    type Cq = Cq;
    type Srq = Srq;
    type Qp = Qp;
    type Channel = Channel;

    fn attributes(&self) -> &NicAttributes {
        either!(self, nic => nic.attributes())
    }

    fn port(&self) -> PortAttributes {
        either!(self, nic => nic.port())
    }

    fn address(&self) -> AddressVector {
        either!(self, nic => nic.address())
    }

    fn alloc_pd(&self) -> Result<Pd, CreateError> {
        either!(self, nic => nic.alloc_pd())
    }

    fn alloc_mr(&self, pd: &Pd, len_bytes: usize, access: Access) -> Result<Mr, MemoryError> {
        either!(self, nic => nic.alloc_mr(pd, len_bytes, access))
    }

    fn register_memfd(
        &self,
        pd: &Pd,
        fd: OwnedFd,
        len_bytes: usize,
        access: Access,
    ) -> Result<Mr, MemoryError> {
        either!(self, nic => nic.register_memfd(pd, fd, len_bytes, access))
    }

    fn begin_register_memfd(
        &self,
        pd: &Pd,
        fd: OwnedFd,
        len_bytes: usize,
        access: Access,
    ) -> Registration<Mr> {
        either!(self, nic => nic.begin_register_memfd(pd, fd, len_bytes, access))
    }

    fn create_channel(&self) -> Result<Channel, CreateError> {
        either!(self, nic => nic.create_channel())
    }

    fn create_cq(&self, config: &CqConfig, channel: Option<&Channel>) -> Result<Cq, CreateError> {
        match self {
            Self::Library(nic) => nic.create_cq(config, channel).map(Cq::Library),
            Self::Driver(nic) => nic.create_cq(config, channel).map(Cq::Driver),
        }
    }

    fn create_srq(&self, pd: &Pd, config: &SrqConfig) -> Result<Srq, CreateError> {
        match self {
            Self::Library(nic) => nic.create_srq(pd, config).map(Srq::Library),
            Self::Driver(nic) => nic.create_srq(pd, config).map(Srq::Driver),
        }
    }

    fn create_qp(&self, pd: &Pd, config: &QpConfig<'_, Self>) -> Result<Qp, CreateError> {
        match self {
            Self::Library(nic) => nic.create_qp(pd, &config_of(config)?).map(Qp::Library),
            Self::Driver(nic) => nic.create_qp(pd, &config_of(config)?).map(Qp::Driver),
        }
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        either!(self, nic => nic.poll_event())
    }

    fn fabric(&self) -> Option<String> {
        either!(self, nic => nic.fabric())
    }

    fn peer_mapping_bytes(&self) -> u64 {
        either!(self, nic => nic.peer_mapping_bytes())
    }

    fn reach(&self, port: Lid, memory: RemoteSlice) -> Result<(), Shortage> {
        either!(self, nic => nic.reach(port, memory))
    }

    fn poll_timeout(&self) -> Option<Duration> {
        either!(self, nic => nic.poll_timeout())
    }
}

impl CompletionQueue for Cq {
    fn cqn(&self) -> Cqn {
        either!(self, cq => cq.cqn())
    }

    fn entries(&self) -> u32 {
        either!(self, cq => cq.entries())
    }

    #[inline]
    fn poll(&mut self) -> Option<Completion> {
        either!(self, cq => cq.poll())
    }

    #[inline]
    fn inline_data(&self) -> &[u8] {
        either!(self, cq => cq.inline_data())
    }

    #[inline]
    fn arm(&mut self, which: Arm) -> Result<(), ArmError> {
        either!(self, cq => cq.arm(which))
    }
}

impl SharedReceiveQueue for Srq {
    fn srqn(&self) -> Srqn {
        either!(self, srq => srq.srqn())
    }

    #[inline]
    fn post(&mut self, into: &[Sge]) -> Result<u16, PostRecvError> {
        either!(self, srq => srq.post(into))
    }

    #[inline]
    fn ring(&mut self) {
        either!(self, srq => srq.ring());
    }

    #[inline]
    fn retire(&mut self, completion: &Completion) {
        either!(self, srq => srq.retire(completion));
    }
}

impl QueuePair for Qp {
    fn qpn(&self) -> Qpn {
        either!(self, qp => qp.qpn())
    }

    fn transport(&self) -> Transport {
        either!(self, qp => qp.transport())
    }

    fn state(&self) -> QpState {
        either!(self, qp => qp.state())
    }

    fn modify(&mut self, to: &Transition) -> Result<(), ModifyError> {
        either!(self, qp => qp.modify(to))
    }

    // Not inlined: it is long, and every crate that posts would have it once more.
    fn post_send(&mut self, request: &SendRequest<'_>) -> Result<u16, PostSendError> {
        either!(self, qp => qp.post_send(request))
    }

    #[inline]
    fn ring_send(&mut self) {
        either!(self, qp => qp.ring_send());
    }

    #[inline]
    fn post_recv(&mut self, into: &[Sge]) -> Result<u16, PostRecvError> {
        either!(self, qp => qp.post_recv(into))
    }

    #[inline]
    fn ring_recv(&mut self) {
        either!(self, qp => qp.ring_recv());
    }

    #[inline]
    fn send_free(&self) -> u16 {
        either!(self, qp => qp.send_free())
    }

    #[inline]
    fn retire(&mut self, completion: &Completion) {
        either!(self, qp => qp.retire(completion));
    }
}
