//! Queue pairs of a scenario: created, connected, posted to and waited on.

use std::{collections::VecDeque, ops::Deref, time::Duration};

use verbs::{
    Access, Completion, CompletionKind, CompletionQueue, CqConfig, DcKey, InitAttr, Mtu, Nic,
    PostSendError, Psn, QKey, QpAddress, QpConfig, QpState, QueuePair, RcPeer, RecvSize, RnrTimer,
    RtrAttr, RtsAttr, SendRequest, SendSize, Sge, SharedReceiveQueue, Transition, Transport,
    WcStatus,
};

use crate::{
    data::Buffer,
    harness::{
        Deadline, ENDPOINT_WORDS, Side, Stop, Verdict, endpoint_from_words, endpoint_to_words,
        ensure, ensure_eq, low_u32, words,
    },
};

/// Every remote right, and local write.
pub(super) const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Datagram key of the suite's UD queue pairs.
pub(super) const QKEY: QKey = QKey::new(0x1234_5678);

/// Completions that are gathered while a role talks; more than any scenario leaves behind.
const STASH_MAX: usize = 1 << 18;

/// A completion and the payload that came inside it.
#[derive(Clone, Debug)]
pub(super) struct Done {
    completion: Completion,
    /// Empty unless `in_cqe`.
    pub(super) inline: Vec<u8>,
}

impl Deref for Done {
    type Target = Completion;

    fn deref(&self) -> &Completion {
        &self.completion
    }
}

/// A completion queue that is waited on with a deadline.
pub(super) struct Watched<N: Nic> {
    /// For creating queue pairs, and for arming.
    pub(super) cq: N::Cq,
    stash: VecDeque<Done>,
    deadline: Duration,
}

impl<N: Nic> Watched<N> {
    pub(super) fn new(
        side: &Side<N>,
        config: &CqConfig,
        channel: Option<&N::Channel>,
    ) -> Verdict<Self> {
        let cq = side.nic.create_cq(config, channel)?;
        Ok(Self { cq, stash: VecDeque::new(), deadline: side.testbed.deadline })
    }

    /// The next completion, if there is one.
    pub(super) fn poll(&mut self) -> Option<Done> {
        self.stash.pop_front().or_else(|| self.take())
    }

    fn take(&mut self) -> Option<Done> {
        let completion = self.cq.poll()?;
        let inline = if completion.in_cqe { self.cq.inline_data().to_vec() } else { Vec::new() };
        Some(Done { completion, inline })
    }

    /// Whether nothing has been gathered.
    pub(super) fn is_drained(&self) -> bool {
        self.stash.is_empty()
    }

    /// Keeps the completions for a later [`poll`](Self::poll).
    pub(super) fn gather(&mut self) {
        while self.stash.len() < STASH_MAX {
            let Some(done) = self.take() else { return };
            self.stash.push_back(done);
        }
    }

    /// The next completion before the deadline.
    #[track_caller]
    pub(super) fn wait(&mut self) -> Verdict<Done> {
        let deadline = Deadline::after(self.deadline);
        loop {
            if let Some(done) = self.poll() {
                return Ok(done);
            }
            if deadline.has_passed() {
                return Err(Stop::violation("no completion before the deadline"));
            }
            std::thread::yield_now();
        }
    }

    /// Watches for `quiet` that nothing completes.
    #[track_caller]
    pub(super) fn stays_empty(&mut self, quiet: Duration) -> Verdict {
        let end = Deadline::after(quiet);
        loop {
            if let Some(done) = self.poll() {
                return Err(Stop::violation(format!("nothing was to complete, but {done:?}")));
            }
            if end.has_passed() {
                return Ok(());
            }
            std::thread::yield_now();
        }
    }
}

/// How long one look at the out-of-band channel may take while the NIC must be kept going.
const GLANCE: Duration = Duration::from_micros(50);

impl<N: Nic> Side<N> {
    /// The other role's words, while `cq` is polled to keep the NIC going. Completions are kept.
    #[track_caller]
    pub(super) fn hear_polling(&mut self, cq: &mut Watched<N>) -> Verdict<Vec<u64>> {
        let deadline = self.deadline();
        while !deadline.has_passed() {
            if let Some(message) = self.oob.recv(GLANCE)? {
                return words(&message);
            }
            cq.gather();
        }
        Err(Stop::violation("the other role said nothing before the deadline"))
    }

    /// Exchanges words while `cq` is polled.
    #[track_caller]
    pub(super) fn swap_polling(&mut self, cq: &mut Watched<N>, mine: &[u64]) -> Verdict<Vec<u64>> {
        self.tell(mine)?;
        self.hear_polling(cq)
    }

    /// Both roles reach this point before either goes on.
    #[track_caller]
    pub(super) fn meet(&mut self, cq: &mut Watched<N>) -> Verdict {
        self.swap_polling(cq, &[]).map(drop)
    }
}

/// Inline bytes of every queue here, unless it says otherwise.
pub(super) const INLINE_BYTES_MAX: u16 = 220;

/// The configuration of an [`End`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) transport: Transport,
    pub(super) send: SendSize,
    pub(super) recv: RecvSize,
    pub(super) cq: CqConfig,
    /// The rights of the peer through the queue pair.
    pub(super) access: Access,
    pub(super) rts: RtsAttr,
    pub(super) rnr_timer: RnrTimer,
    pub(super) access_key: DcKey,
}

impl Setup {
    /// 64 sends and 64 receives with four entries each, every right, RNR retried for ever.
    pub(super) fn of(transport: Transport) -> Self {
        Self {
            transport,
            send: SendSize { requests: 64, sges_max: 4, inline_bytes_max: INLINE_BYTES_MAX },
            recv: RecvSize { requests: 64, sges_max: 4 },
            cq: CqConfig::new(256),
            access: OPEN,
            // Not 7, which rxe takes for "for ever".
            rts: RtsAttr { retry_count: 6, ..RtsAttr::default() },
            rnr_timer: RnrTimer::at_least(Duration::from_micros(10)),
            access_key: DcKey::new(0),
        }
    }

    /// A reliable connection.
    pub(super) fn rc() -> Self {
        Self::of(Transport::Rc)
    }

    fn init<N: Nic>(&self, nic: &N) -> Transition {
        let access = self.access.of_queue_pairs(nic.attributes().capabilities);
        Transition::Init(InitAttr { access, qkey: QKEY })
    }

    fn rtr<N: Nic>(&self, nic: &N, path_mtu: Mtu, peer: Option<RcPeer>) -> Transition {
        let reads_in_max = self.rts.reads_out_max.min(nic.attributes().reads_max);
        Transition::Rtr(RtrAttr { path_mtu, peer, rnr_timer: self.rnr_timer, reads_in_max })
    }

    fn rts<N: Nic>(&self, nic: &N, sq_psn: Psn) -> Transition {
        let reads_out_max = self.rts.reads_out_max.min(nic.attributes().reads_max);
        Transition::Rts(RtsAttr { sq_psn, reads_out_max, ..self.rts })
    }
}

/// Creates a queue pair in RESET.
#[track_caller]
pub(super) fn create_qp<N: Nic>(
    nic: &N,
    pd: &N::Pd,
    cq: &N::Cq,
    srq: Option<&N::Srq>,
    setup: &Setup,
) -> Verdict<N::Qp> {
    let mut config = QpConfig::<N>::new(setup.transport, cq);
    config.srq = srq;
    config.send = setup.send;
    config.recv = if srq.is_some() { RecvSize::NONE } else { setup.recv };
    config.access_key = setup.access_key;
    Ok(nic.create_qp(pd, &config)?)
}

/// Brings an RC queue pair from RESET to RTS, with its peer at the other side doing the same.
#[track_caller]
pub(super) fn connect<N: Nic>(side: &mut Side<N>, qp: &mut N::Qp, setup: &Setup) -> Verdict {
    let path_mtu = side.swap_mtu()?;
    let sq_psn = Psn::from_low_bits(low_u32(side.rng.next_u64()));
    let theirs = swap_endpoint(side, qp)?;
    let Some(&psn) = side.swap(&[u64::from(sq_psn.get())])?.first() else {
        return Err(Stop::violation("the other role named no packet number"));
    };
    let rq_psn = Psn::from_low_bits(low_u32(psn));
    let peer = RcPeer { qpn: theirs.qpn, address: theirs.address, rq_psn };
    qp.modify(&setup.init(&side.nic))?;
    qp.modify(&setup.rtr(&side.nic, path_mtu, Some(peer)))?;
    qp.modify(&setup.rts(&side.nic, sq_psn))?;
    ensure_eq!(qp.state(), QpState::Rts, "state after RESET, INIT, RTR, RTS");
    side.swap(&[]).map(drop)
}

/// Connects two RC queue pairs of one NIC to each other.
#[track_caller]
pub(super) fn connect_local<N: Nic>(
    side: &Side<N>,
    a: &mut N::Qp,
    b: &mut N::Qp,
    setup: &Setup,
) -> Verdict {
    let mtu = side.nic.port().mtu;
    let ends = [side.nic.endpoint(a), side.nic.endpoint(b)];
    for (qp, peer) in [(a, ends[1]), (b, ends[0])] {
        let rq_psn = Psn::default();
        let peer = RcPeer { qpn: peer.qpn, address: peer.address, rq_psn };
        qp.modify(&setup.init(&side.nic))?;
        qp.modify(&setup.rtr(&side.nic, mtu, Some(peer)))?;
        qp.modify(&setup.rts(&side.nic, rq_psn))?;
    }
    Ok(())
}

/// Brings a UD queue pair or a DCI to RTS, a DCT to RTR.
#[track_caller]
pub(super) fn activate<N: Nic>(nic: &N, qp: &mut N::Qp, setup: &Setup) -> Verdict {
    qp.modify(&setup.init(nic))?;
    qp.modify(&setup.rtr(nic, nic.port().mtu, None))?;
    if setup.transport != Transport::Dct {
        qp.modify(&setup.rts(nic, Psn::default()))?;
    }
    Ok(())
}

/// Tells the other role where `qp` is, and learns where its queue pair is.
#[track_caller]
pub(super) fn swap_endpoint<N: Nic>(side: &mut Side<N>, qp: &N::Qp) -> Verdict<QpAddress> {
    let mine = endpoint_to_words(&side.nic.endpoint(qp));
    let theirs = side.swap(&mine)?;
    ensure_eq!(theirs.len(), ENDPOINT_WORDS, "words of an endpoint");
    endpoint_from_words(&theirs)
}

/// One queue pair with a completion queue of its own.
pub(super) struct End<N: Nic> {
    pub(super) qp: N::Qp,
    pub(super) cq: Watched<N>,
    pub(super) srq: Option<N::Srq>,
    pub(super) pd: N::Pd,
}

impl<N: Nic> End<N> {
    /// A queue pair in RESET in a new domain.
    #[track_caller]
    pub(super) fn create(side: &Side<N>, setup: &Setup) -> Verdict<Self> {
        let pd = side.nic.alloc_pd()?;
        Self::create_in(side, setup, pd, None, None)
    }

    /// A queue pair in RESET.
    #[track_caller]
    pub(super) fn create_in(
        side: &Side<N>,
        setup: &Setup,
        pd: N::Pd,
        srq: Option<N::Srq>,
        channel: Option<&N::Channel>,
    ) -> Verdict<Self> {
        let cq = Watched::new(side, &setup.cq, channel)?;
        let qp = create_qp(&side.nic, &pd, &cq.cq, srq.as_ref(), setup)?;
        Ok(Self { qp, cq, srq, pd })
    }

    /// An RC queue pair, connected to the one that the other role makes by the same call.
    #[track_caller]
    pub(super) fn connected(side: &mut Side<N>, setup: &Setup) -> Verdict<Self> {
        let mut end = Self::create(side, setup)?;
        connect(side, &mut end.qp, setup)?;
        Ok(end)
    }

    /// A buffer with every right in this end's domain.
    #[track_caller]
    pub(super) fn buffer(&self, side: &Side<N>, len_bytes: usize) -> Verdict<Buffer<N>> {
        Buffer::new(&side.nic, &self.pd, len_bytes, OPEN)
    }

    /// Posts and rings.
    #[track_caller]
    pub(super) fn send(&mut self, request: &SendRequest<'_>) -> Verdict<u16> {
        let wqe = self.qp.post_send(request)?;
        self.qp.ring_send();
        Ok(wqe)
    }

    /// Posts and rings, waiting for room. Completions meanwhile have to succeed.
    #[track_caller]
    pub(super) fn send_when_free(&mut self, request: &SendRequest<'_>) -> Verdict<u16> {
        loop {
            match self.qp.post_send(request) {
                Ok(wqe) => {
                    self.qp.ring_send();
                    return Ok(wqe);
                }
                Err(PostSendError::QueueFull { .. }) => {
                    let done = self.wait()?;
                    ensure!(done.failure.is_none(), "{done:?} failed");
                }
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// Posts a receive, to the SRQ if there is one, and rings.
    #[track_caller]
    pub(super) fn recv(&mut self, into: &[Sge]) -> Verdict<u16> {
        if let Some(srq) = &mut self.srq {
            let wqe = srq.post(into)?;
            srq.ring();
            return Ok(wqe);
        }
        let wqe = self.qp.post_recv(into)?;
        self.qp.ring_recv();
        Ok(wqe)
    }

    /// Gives back what a completion of this end holds.
    pub(super) fn retire(&mut self, completion: &Completion) {
        match &mut self.srq {
            Some(srq) if completion.kind.is_receive() => srq.retire(completion),
            _ => self.qp.retire(completion),
        }
    }

    /// The next completion, retired.
    #[track_caller]
    pub(super) fn wait(&mut self) -> Verdict<Done> {
        let done = self.cq.wait()?;
        ensure_eq!(done.qpn, self.qp.qpn(), "queue pair of a completion");
        self.retire(&done);
        Ok(done)
    }

    /// The next completion, which has to be a success of `kind`.
    #[track_caller]
    pub(super) fn wait_for(&mut self, kind: CompletionKind) -> Verdict<Done> {
        let done = self.wait()?;
        ensure!(done.failure.is_none() && done.kind == kind, "expected {kind:?}, found {done:?}");
        Ok(done)
    }

    /// The success of request `wqe`.
    #[track_caller]
    pub(super) fn wait_sent(&mut self, kind: CompletionKind, wqe: u16) -> Verdict<Done> {
        let done = self.wait_for(kind)?;
        ensure_eq!(done.wqe, wqe, "index of a completed {kind:?}");
        Ok(done)
    }

    /// The failure of send request `wqe` because of `status`.
    #[track_caller]
    pub(super) fn wait_failed(&mut self, wqe: u16, status: WcStatus) -> Verdict {
        let done = self.wait()?;
        let found = done.failure.map(|failure| failure.status);
        ensure!(!done.kind.is_receive(), "a send was to fail, but {done:?}");
        ensure_eq!((done.wqe, found), (wqe, Some(status)), "index and reason of a failed send");
        Ok(())
    }

    /// The failure of receive `wqe` because of `status`.
    #[track_caller]
    pub(super) fn wait_recv_failed(&mut self, wqe: u16, status: WcStatus) -> Verdict {
        let done = self.wait()?;
        let found = done.failure.map(|failure| failure.status);
        ensure!(done.kind.is_receive(), "a receive was to fail, but {done:?}");
        ensure_eq!((done.wqe, found), (wqe, Some(status)), "index and reason of a failed receive");
        Ok(())
    }

    /// The queue pair falls to ERR before the deadline.
    #[track_caller]
    pub(super) fn wait_err(&mut self, side: &Side<N>) -> Verdict {
        let deadline = side.deadline();
        while self.qp.state() != QpState::Err {
            ensure!(!deadline.has_passed(), "queue pair is {:?}, not ERR", self.qp.state());
            self.cq.gather();
            std::thread::yield_now();
        }
        Ok(())
    }
}
