//! Queue pair: a send queue, a receive queue, and the state that decides whether they may be used.

use memory::sync::Arc;
use verbs::{
    Completion, ModifyError, PostRecvError, PostSendError, QpState, Qpn, QueuePair, SendRequest,
    Sge, Transition, Transport,
};

use crate::{
    address::{self, NextHops},
    attached::{Receiver, Share},
    device::{Device, DeviceQp},
    rq::RecvQueue,
    sq::SendQueue,
    srq::Returned,
};

/// A send queue and a receive queue.
///
/// Posting touches memory only. The device is asked for its state by [`state`](QueuePair::state)
/// and [`modify`](QueuePair::modify) alone: a request posted after an error that nobody noticed yet
/// completes with a flush error.
#[derive(Debug)]
pub struct Qp<D: Device> {
    pub(crate) sq: Option<SendQueue>,
    pub(crate) rq: Option<RecvQueue>,
    pub(crate) transport: Transport,
    /// The next hops of requests that name their destination.
    pub(crate) hops: NextHops<D>,
    /// As software last set it.
    pub(crate) state: QpState,
    pub(crate) qpn: Qpn,
    /// Of the CQ that sends complete into.
    pub(crate) send_share: Option<Share>,
    /// Of the CQ that receives complete into.
    pub(crate) recv_share: Option<Share>,
    /// Of the SRQ that receives come from: buffers that nobody will hear of.
    pub(crate) srq: Option<Arc<Returned>>,
    /// Keeps the memory of the queues alive.
    pub(crate) device: D::Qp,
}

impl<D: Device> Qp<D> {
    /// Tells the receive CQ how to read completions of this queue pair.
    pub(crate) fn announce_receiver(&mut self) {
        let Some(share) = &mut self.recv_share else { return };
        let is_known = self.transport == Transport::Ud
            || self.transport == Transport::Dct && self.qpn != Qpn::default();
        let receiver = Receiver { qpn: self.qpn, transport: self.transport };
        share.set_receiver(is_known.then_some(receiver));
    }

    /// The device completes nothing of this queue pair any more; what it has completed is not
    /// reported.
    ///
    /// Source: rdma-core `providers/mlx5/verbs.c`, which does so in `mlx5_modify_qp` and
    /// `mlx5_destroy_qp`.
    fn depart(&self) {
        for share in self.send_share.iter().chain(&self.recv_share) {
            share.depart(self.qpn, self.srq.as_ref());
        }
    }
}

impl<D: Device> Drop for Qp<D> {
    fn drop(&mut self) {
        self.device.destroy();
        self.depart();
    }
}

impl<D: Device> QueuePair for Qp<D> {
    #[inline]
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    #[inline]
    fn transport(&self) -> Transport {
        self.transport
    }

    fn state(&self) -> QpState {
        self.device.state()
    }

    fn modify(&mut self, to: &Transition) -> Result<(), ModifyError> {
        to.check(self.device.state(), self.transport)?;
        self.device.modify(to, self.hops.rows())?;
        self.state = to.target();
        if self.state == QpState::Reset {
            self.depart();
            self.sq.iter_mut().for_each(SendQueue::reset);
            self.rq.iter_mut().for_each(RecvQueue::reset);
        }
        if self.transport == Transport::Dct {
            self.qpn = self.device.qpn();
            self.announce_receiver();
        }
        Ok(())
    }

    /// See the trait. The index is the counter of the WQE's first block, modulo 2¹⁶.
    ///
    /// # Panics
    ///
    /// If a gather entry exceeds 2 GiB; nothing is queued then.
    #[inline(always)]
    fn post_send(&mut self, request: &SendRequest<'_>) -> Result<u16, PostSendError> {
        let transport = self.transport;
        let Some(sq) = &mut self.sq else {
            return Err(PostSendError::Transport { transport, rule: "has no send queue" });
        };
        if !self.state.accepts_sends() {
            return Err(PostSendError::State(self.state));
        }
        let av = address::resolve(transport, &mut self.hops, &request.op, request.to)?;
        sq.post(&request.op, request.flags, av.as_ref())
    }

    #[inline]
    fn ring_send(&mut self) {
        if let Some(sq) = &mut self.sq {
            sq.ring(&mut self.device);
        }
    }

    /// See the trait. The index counts receives, modulo 2¹⁶.
    ///
    /// # Panics
    ///
    /// If a scatter entry exceeds 2 GiB or has the key that ends a list; nothing is queued then.
    #[inline]
    fn post_recv(&mut self, into: &[Sge]) -> Result<u16, PostRecvError> {
        let rq = self.rq.as_mut().ok_or(PostRecvError::NoQueue)?;
        if !self.state.accepts_receives() {
            return Err(PostRecvError::State(self.state));
        }
        rq.post(into)
    }

    #[inline]
    fn ring_recv(&mut self) {
        if self.rq.as_mut().is_some_and(RecvQueue::publish) {
            self.device.received();
        }
    }

    #[inline]
    fn send_free(&self) -> u16 {
        self.sq.as_ref().map_or(0, SendQueue::free)
    }

    #[inline]
    fn retire(&mut self, completion: &Completion) {
        assert!(completion.qpn == self.qpn, "completion of {}, not {}", completion.qpn, self.qpn);
        if !completion.kind.is_receive() {
            if let Some(sq) = &mut self.sq {
                sq.retire(completion.wqe);
            }
        } else if let Some(rq) = &mut self.rq {
            rq.retire(completion.wqe);
        }
    }
}
