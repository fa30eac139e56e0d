//! Queue pair.

use core::{
    ffi::c_int,
    ptr::{self, NonNull},
};
use std::io;

use memory::sync::Arc;
use verbs::{
    Completion, CreateError, Destination, ModifyError, Op, PostRecvError, PostSendError, QpConfig,
    QpState, Qpn, QueuePair, RecvSize, SendRequest, SendSize, Sge, Transition, Transport,
};

use crate::{
    abi::{self, mask, qpt},
    ah::PdShared,
    context::{Context, REQUESTS_MAX},
    cq::Share,
    error::{cause_of, check, last_cause},
    modify,
    recv::RecvQueue,
    send::SendQueue,
    srq::SrqShared,
    wc::RequestKind,
};

/// A queue pair of service RC or UD.
#[derive(Debug)]
pub struct Qp {
    raw: NonNull<abi::Qp>,
    qpn: Qpn,
    transport: Transport,
    sq: Option<SendQueue>,
    rq: Option<RecvQueue>,
    /// As software last set it.
    state: QpState,
    send_share: Share,
    recv_share: Share,
    srq: Option<Arc<SrqShared>>,
    pd: Arc<PdShared>,
}

// SAFETY: objects of libibverbs belong to no thread.
unsafe impl Send for Qp {}
// SAFETY: through `&Qp` the library is asked for the state alone, for which it needs no lock.
unsafe impl Sync for Qp {}

/// What a queue pair has room for, as the library counts it.
fn cap(
    context: &Context,
    transport: Transport,
    config: &QpConfig<'_, crate::Nic>,
) -> Result<abi::QpCap, CreateError> {
    let limits = &context.attributes;
    let SendSize { requests, sges_max, inline_bytes_max } = config.send;
    let recv = if config.srq.is_some() { RecvSize::NONE } else { config.recv };
    let size =
        |what, asked: u32, limit| Err(CreateError::Size { what, asked: asked.into(), limit });
    let too_many = "the device has fewer";
    match transport {
        Transport::Rc | Transport::Ud => {}
        Transport::Dci | Transport::Dct => {
            let rule = "is made by ConnectX alone, not by plain verbs";
            return Err(CreateError::Transport { transport, rule });
        }
    }
    let requests_max = limits.requests_max.min(REQUESTS_MAX);
    if requests > requests_max {
        return size("send queue", requests, too_many);
    }
    if recv.requests > requests_max {
        return size("receive queue", recv.requests, too_many);
    }
    if sges_max > limits.sges_max {
        return size("gather list", sges_max.into(), too_many);
    }
    if recv.sges_max > limits.sges_max {
        return size("scatter list", recv.sges_max.into(), too_many);
    }
    if inline_bytes_max > limits.inline_bytes_max {
        return size("inline payload", inline_bytes_max.into(), "the device takes fewer bytes");
    }
    Ok(abi::QpCap {
        // Drivers want at least one.
        max_send_wr: requests.max(1),
        max_recv_wr: recv.requests.max(u32::from(config.srq.is_none())),
        max_send_sge: sges_max.max(1).into(),
        max_recv_sge: recv.sges_max.max(1).into(),
        max_inline_data: inline_bytes_max.into(),
    })
}

impl Qp {
    pub(crate) fn new(
        pd: &Arc<PdShared>,
        config: &QpConfig<'_, crate::Nic>,
    ) -> Result<Self, CreateError> {
        let context = &pd.context;
        let transport = config.transport;
        let cap = cap(context, transport, config)?;
        let srq = config.srq.map(|srq| srq.shared.clone());
        let has_rq = srq.is_none() && config.recv.requests > 0;
        let send_share = config.send_cq.0.attach(config.send.requests, None)?;
        let recv_share = match &srq {
            Some(srq) => config.recv_cq.0.attach(srq.capacity(), Some(srq.srqn()))?,
            None => config.recv_cq.0.attach(config.recv.requests, None)?,
        };
        let mut init = abi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: config.send_cq.0.raw(),
            recv_cq: config.recv_cq.0.raw(),
            srq: srq.as_ref().map_or(ptr::null_mut(), |srq| srq.raw()),
            cap,
            qp_type: if transport == Transport::Ud { qpt::UD } else { qpt::RC },
            sq_sig_all: 0,
        };
        // SAFETY: domain, completion queues and shared queue live, and go into the same object.
        let raw = unsafe { (context.api.ibv_create_qp)(pd.raw(), &raw mut init) };
        let failed = || CreateError::System { object: "queue pair", cause: last_cause() };
        let raw = NonNull::new(raw).ok_or_else(failed)?;
        // SAFETY: an object of the library, which was just made.
        let qpn = Qpn::from_low_bits(unsafe { raw.as_ref().qp_num });
        let kind = if transport == Transport::Ud { RequestKind::UdRecv } else { RequestKind::Recv };
        let mut qp = Self {
            raw,
            qpn,
            transport,
            sq: (config.send.requests > 0).then(|| SendQueue::new(config.send)),
            rq: has_rq.then(|| RecvQueue::new(config.recv, kind)),
            state: QpState::Reset,
            send_share,
            recv_share,
            srq,
            pd: pd.clone(),
        };
        if qp.srq.is_some() && transport == Transport::Ud {
            qp.recv_share.receives_datagrams(qpn);
        }
        Ok(qp)
    }

    pub(crate) fn raw(&self) -> *mut abi::Qp {
        self.raw.as_ptr()
    }

    fn change(&self, attr: &mut abi::QpAttr, mask: c_int) -> io::Result<()> {
        // SAFETY: the queue pair lives, and the library only reads the attributes.
        check(unsafe { (self.pd.context.api.ibv_modify_qp)(self.raw(), attr, mask) })
    }

    /// Goes to `state`, which needs no attributes.
    fn go_to(&self, state: QpState) -> io::Result<()> {
        let mut attr = abi::QpAttr { qp_state: modify::number(state), ..abi::QpAttr::default() };
        self.change(&mut attr, mask::STATE)
    }

    /// Goes to RESET, and forgets every completion. The queue pair keeps its number meanwhile, so that nobody
    /// else's are taken for its own.
    fn clear(&mut self) -> io::Result<()> {
        if self.srq.is_some() && self.state != QpState::Reset {
            // A driver's own clean-up would forget which buffers of the shared queue were used.
            let _ = self.go_to(QpState::Err);
            self.recv_share.cq.save();
        }
        let result = self.go_to(QpState::Reset);
        // Both may be the same.
        for share in [&self.send_share, &self.recv_share] {
            share.cq.forget(self.qpn, self.srq.as_deref());
        }
        self.sq.iter_mut().for_each(SendQueue::reset);
        self.rq.iter_mut().for_each(RecvQueue::reset);
        result
    }

    /// The device did not take requests `ids`: they complete, and the queue pair is of no more use.
    #[cold]
    fn fail(&mut self, ids: &[u64], is_send: bool) {
        // One that is in ERR already, or whose device is gone, stays as it is.
        let _ = self.go_to(QpState::Err);
        self.state = QpState::Err;
        let share = if is_send { &self.send_share } else { &self.recv_share };
        share.cq.fail(self.qpn, ids);
    }

    /// The destination of a request, if this queue pair sends datagrams.
    fn destination(
        &self,
        op: &Op<'_>,
        to: Option<&Destination>,
    ) -> Result<Option<abi::Ud>, PostSendError> {
        let transport = self.transport;
        let broken = |rule| Err(PostSendError::Transport { transport, rule });
        match (transport, to) {
            (Transport::Ud, _) if !matches!(op, Op::Send { .. }) => broken("only sends messages"),
            (Transport::Ud, Some(Destination::Ud { to, qkey })) => Ok(Some(abi::Ud {
                ah: self.pd.ah(&to.address)?.as_ptr(),
                remote_qpn: to.qpn.get(),
                remote_qkey: qkey.get(),
            })),
            (Transport::Ud, _) => broken("needs a UD destination with each request"),
            (_, None) => Ok(None),
            (_, Some(_)) => broken("is connected: requests name no destination"),
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // A device that is gone has nothing left to complete.
        let _ = self.clear();
        // SAFETY: made by `ibv_create_qp`, destroyed once.
        let _ = unsafe { (self.pd.context.api.ibv_destroy_qp)(self.raw()) };
    }
}

impl QueuePair for Qp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn transport(&self) -> Transport {
        self.transport
    }

    fn state(&self) -> QpState {
        modify::query_state(&self.pd.context.api, self.raw)
    }

    fn modify(&mut self, to: &Transition) -> Result<(), ModifyError> {
        let from = self.state();
        to.check(from, self.transport)?;
        let result = if matches!(to, Transition::Reset) {
            self.clear()
        } else {
            let (context, rows) = (&self.pd.context, self.pd.context.rows());
            let (mut attr, mask) = modify::attributes(context, rows, self.transport, from, to);
            self.change(&mut attr, mask)
        };
        let refused =
            |error: io::Error| ModifyError::Device { to: to.target(), cause: cause_of(&error) };
        result.map_err(refused)?;
        self.state = to.target();
        Ok(())
    }

    /// See the trait. The index counts requests, modulo 2¹⁶.
    fn post_send(&mut self, request: &SendRequest<'_>) -> Result<u16, PostSendError> {
        let transport = self.transport;
        if self.sq.is_some() && !self.state.accepts_sends() {
            return Err(PostSendError::State(self.state));
        }
        let ud = self.destination(&request.op, request.to)?;
        let Some(sq) = &mut self.sq else {
            return Err(PostSendError::Transport { transport, rule: "has no send queue" });
        };
        sq.post(&request.op, request.flags, ud)
    }

    fn ring_send(&mut self) {
        let (raw, post) = (self.raw(), self.pd.context.ops.post_send);
        let Some(sq) = &mut self.sq else { return };
        // SAFETY: the queue pair lives, and so do requests, entries and inline bytes until the call returns;
        // what entries name is checked by the device.
        let left = sq.ring(|list, bad| unsafe { post(raw, list, bad) });
        if !left.is_empty() {
            self.fail(&left, true);
        }
    }

    /// See the trait. The index counts receives, modulo 2¹⁶.
    fn post_recv(&mut self, into: &[Sge]) -> Result<u16, PostRecvError> {
        let rq = self.rq.as_mut().ok_or(PostRecvError::NoQueue)?;
        if !self.state.accepts_receives() {
            return Err(PostRecvError::State(self.state));
        }
        rq.post(into)
    }

    fn ring_recv(&mut self) {
        let (raw, post) = (self.raw(), self.pd.context.ops.post_recv);
        let Some(rq) = &mut self.rq else { return };
        // SAFETY: as for sends.
        let left = rq.ring(|list, bad| unsafe { post(raw, list, bad) });
        if !left.is_empty() {
            self.fail(&left, false);
        } else if self.pd.context.is_rxe && self.state() == QpState::Err {
            // Software RoCE is not told of receives, and looks for them when something else happens.
            let _ = self.go_to(QpState::Err);
        }
    }

    fn send_free(&self) -> u16 {
        self.sq.as_ref().map_or(0, SendQueue::free)
    }

    fn retire(&mut self, completion: &Completion) {
        assert!(completion.qpn == self.qpn, "completion of {}, not {}", completion.qpn, self.qpn);
        if !completion.kind.is_receive() {
            self.sq.iter_mut().for_each(|sq| sq.retire(completion.wqe));
        } else if let Some(rq) = &mut self.rq {
            rq.retire(completion.wqe);
        }
    }
}
