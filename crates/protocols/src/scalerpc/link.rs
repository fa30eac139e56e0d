//! One RC queue pair: requests in order, and what they were for.

use std::collections::VecDeque;

use proto::scalerpc::Imm;
use verbs::{
    Access, Completion, CreateError, InitAttr, ModifyError, Nic, Op, Payload, PostSendError, Psn,
    QKey, QpConfig, Qpn, QueuePair as _, RcPeer, RecvSize, RemoteSlice, RnrTimer, RtrAttr, RtsAttr,
    SendFlags, SendRequest, SendSize, Sge, Transition, Transport,
};

use crate::scalerpc::contact::Contact;

/// Longest payload that is copied into a request.
pub(crate) const INLINE_BYTES: usize = 220;
/// READs that a peer may have outstanding here, and this side there, if the NICs allow it.
const READS_MAX: u8 = 16;

/// The purpose of a request, which its completion ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// No party waits for it.
    Done,
    /// This block of the staging memory is free.
    Staged(u32),
    /// The last READ of an announcement.
    Read,
}

impl Work {
    /// The block of the staging memory, if it was for one.
    pub(crate) fn staged(self) -> Option<u32> {
        match self {
            Self::Staged(block) => Some(block),
            Self::Done | Self::Read => None,
        }
    }
}

/// A queue pair and its bookkeeping.
pub(crate) struct Link<N: Nic> {
    qp: N::Qp,
    posted: VecDeque<(u16, Work)>,
    is_unrung: bool,
}

impl<N: Nic> Link<N> {
    /// A queue pair in INIT.
    pub(crate) fn open(
        nic: &N,
        pd: &N::Pd,
        cqs: (&N::Cq, &N::Cq),
        srq: Option<&N::Srq>,
        sizes: (u32, u32),
    ) -> Result<Self, crate::scalerpc::OpenError> {
        let (sends, receives) = sizes;
        let inline_bytes_max = u16::try_from(INLINE_BYTES).unwrap_or(u16::MAX);
        let inline_bytes_max = inline_bytes_max.min(nic.attributes().inline_bytes_max);
        let config = QpConfig {
            send_cq: cqs.0,
            recv_cq: cqs.1,
            srq,
            send: SendSize { requests: sends, sges_max: 1, inline_bytes_max },
            recv: RecvSize { requests: receives, sges_max: 1 },
            ..QpConfig::new(Transport::Rc, cqs.0)
        };
        let mut qp = nic.create_qp(pd, &config)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        qp.modify(&Transition::Init(InitAttr { access, qkey: QKey::default() }))?;
        Ok(Self { qp, posted: VecDeque::new(), is_unrung: false })
    }

    pub(crate) fn qp(&self) -> &N::Qp {
        &self.qp
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// READs that this side allows.
    pub(crate) fn reads_max(nic: &N) -> u8 {
        nic.attributes().reads_max.min(READS_MAX)
    }

    pub(crate) fn start(
        &mut self,
        nic: &N,
        own_psn: Psn,
        peer: &Contact,
    ) -> Result<(), ModifyError> {
        let endpoint = peer.endpoint;
        let rc = RcPeer { qpn: endpoint.qpn, address: endpoint.address, rq_psn: peer.psn };
        let reads_max = Self::reads_max(nic).min(peer.reads_max);
        self.qp.modify(&Transition::Rtr(RtrAttr {
            path_mtu: nic.port().mtu.min(peer.mtu),
            peer: Some(rc),
            rnr_timer: RnrTimer::at_least(core::time::Duration::from_micros(20)),
            reads_in_max: reads_max,
        }))?;
        self.qp.modify(&Transition::Rts(RtsAttr {
            sq_psn: own_psn,
            reads_out_max: reads_max,
            ..RtsAttr::default()
        }))
    }

    /// Whether another request can be posted.
    pub(crate) fn has_room(&self) -> bool {
        self.qp.send_free() > 0
    }

    fn post(&mut self, op: Op<'_>, work: Work) -> Result<(), PostSendError> {
        let flags = if work == Work::Done { SendFlags::empty() } else { SendFlags::SIGNALED };
        let wqe = self.qp.post_send(&SendRequest { op, flags, to: None })?;
        self.posted.push_back((wqe, work));
        self.is_unrung = true;
        Ok(())
    }

    /// A WRITE whose bytes are copied now. Without `imm` the peer is not notified.
    pub(crate) fn write_inline(
        &mut self,
        remote: RemoteSlice,
        parts: &[&[u8]],
        imm: Option<Imm>,
    ) -> Result<(), PostSendError> {
        let imm = imm.map(Imm::encode);
        self.post(Op::Write { remote, payload: Payload::Inline(parts), imm }, Work::Done)
    }

    /// A WRITE whose bytes the NIC fetches.
    pub(crate) fn write(
        &mut self,
        remote: RemoteSlice,
        from: Sge,
        imm: Option<Imm>,
        work: Work,
    ) -> Result<(), PostSendError> {
        let imm = imm.map(Imm::encode);
        self.post(Op::Write { remote, payload: Payload::Gather(&[from]), imm }, work)
    }

    pub(crate) fn read(
        &mut self,
        remote: RemoteSlice,
        into: Sge,
        work: Work,
    ) -> Result<(), PostSendError> {
        self.post(Op::Read { remote, into: &[into] }, work)
    }

    pub(crate) fn ring(&mut self) {
        if core::mem::take(&mut self.is_unrung) {
            self.qp.ring_send();
        }
    }

    /// Takes what a completion of a send ends, oldest first.
    pub(crate) fn finish(&mut self, completion: &Completion, mut done: impl FnMut(Work)) {
        while let Some((wqe, work)) = self.posted.pop_front() {
            done(work);
            if wqe == completion.wqe {
                break;
            }
        }
        self.qp.retire(completion);
    }

    /// Posts whose completions will not be reported any more.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = Work> {
        self.posted.iter().map(|(_, work)| *work)
    }

    pub(crate) fn retire(&mut self, completion: &Completion) {
        self.qp.retire(completion);
    }

    /// Posts receives without buffers.
    pub(crate) fn receive(&mut self, count: u32) -> Result<(), verbs::PostRecvError> {
        for _ in 0..count {
            self.qp.post_recv(&[])?;
        }
        self.qp.ring_recv();
        Ok(())
    }
}

/// A completion queue for at least `entries`.
pub(crate) fn create_cq<N: Nic>(nic: &N, entries: u32) -> Result<N::Cq, CreateError> {
    nic.create_cq(&verbs::CqConfig::new(entries.next_power_of_two()), None)
}

/// A random packet number.
pub(crate) fn draw_psn(qpn: Qpn) -> Psn {
    use std::hash::BuildHasher as _;
    let drawn = std::hash::RandomState::new().hash_one(qpn.get());
    Psn::from_low_bits(drawn.to_le_bytes()[..4].try_into().map_or(0, u32::from_le_bytes))
}
