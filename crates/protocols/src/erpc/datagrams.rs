//! One UD queue pair: packets out of a staging ring, packets into receives.

use verbs::{
    Access, CompletionQueue as _, CqConfig, CreateError, Destination, InitAttr, MemoryRegion as _,
    Nic, Op, Payload, PostRecvError, PostSendError, QKey, QpConfig, QpState, Qpn, QueuePair as _,
    RecvSize, RnrTimer, RtrAttr, RtsAttr, SendFlags, SendRequest, SendSize, Source, Transition,
    Transport,
};

use crate::erpc::{Config, OpenError};

/// Area at the start of a receive for the global route header.
const GRH_BYTES: usize = 40;
/// Of a line, at which each packet begins: a small one lies in one line and not in two.
const LINE_BYTES: usize = 64;
/// Longest payload that is copied into the request; a longer one is fetched from the staging ring.
const INLINE_BYTES: usize = 220;
/// Receives that go back to the NIC together.
const RETURN: usize = 16;

/// A packet that arrived. Its bytes stay where they are until it is given back.
pub(crate) struct Arrived {
    /// Of the packet within the receives, behind its global route header.
    offset_bytes: usize,
    pub(crate) len_bytes: usize,
    pub(crate) sender: Option<Source>,
}

/// A packet that cannot be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// The queue is full: ask again after a poll.
    Full,
    /// The NIC does not take it: it is lost.
    Lost,
}

/// The queue pair, its queues and the memory of its packets.
pub(crate) struct Datagrams<N: Nic> {
    qp: N::Qp,
    send_cq: N::Cq,
    recv_cq: N::Cq,
    /// As many packets as can be outstanding, used in turn.
    staging: N::Mr,
    /// `receives` packets, each behind its global route header.
    receives: N::Mr,
    /// Of a packet in either region.
    stride_bytes: usize,
    /// Sends that can be outstanding.
    sends: u16,
    /// Place of the next packet in the staging ring.
    next: u16,
    is_unrung: bool,
    /// Which receive a completion is about, by its index.
    buffers: Vec<usize>,
    unreturned: usize,
    inline_bytes: usize,
    q_key: QKey,
    is_failed: bool,
}

impl<N: Nic> Datagrams<N> {
    pub(crate) fn open(nic: &N, config: &Config, packet_bytes: usize) -> Result<Self, OpenError> {
        let pd = nic.alloc_pd()?;
        let receives = usize::from(config.receives);
        let send_cq = Self::cq(nic, config.sends.into())?;
        let recv_cq = Self::cq(nic, receives)?;
        let stride_bytes = LINE_BYTES + packet_bytes.next_multiple_of(LINE_BYTES);
        let memory = nic.alloc_mr(&pd, receives * stride_bytes, Access::LOCAL_WRITE)?;
        let inline_bytes = INLINE_BYTES.min(nic.attributes().inline_bytes_max.into());
        let qp_config = QpConfig {
            send_cq: &send_cq,
            recv_cq: &recv_cq,
            send: SendSize {
                requests: config.sends.into(),
                sges_max: 1,
                inline_bytes_max: u16::try_from(inline_bytes).unwrap_or(u16::MAX),
            },
            recv: RecvSize { requests: config.receives.into(), sges_max: 1 },
            ..QpConfig::new(Transport::Ud, &send_cq)
        };
        let qp = nic.create_qp(&pd, &qp_config)?;
        // At least as many as were asked for.
        let sends = qp.send_free();
        let staging = nic.alloc_mr(&pd, usize::from(sends) * stride_bytes, Access::LOCAL_WRITE)?;
        let mut datagrams = Self {
            qp,
            send_cq,
            recv_cq,
            staging,
            receives: memory,
            stride_bytes,
            sends,
            next: 0,
            is_unrung: false,
            buffers: vec![0; receives.next_power_of_two()],
            unreturned: 0,
            inline_bytes,
            q_key: QKey::new(config.q_key),
            is_failed: false,
        };
        datagrams.start(nic)?;
        Ok(datagrams)
    }

    fn cq(nic: &N, entries: usize) -> Result<N::Cq, CreateError> {
        let entries = u32::try_from(entries.next_power_of_two()).unwrap_or(u32::MAX);
        nic.create_cq(&CqConfig::new(entries), None)
    }

    /// From RESET to RTS, with all receives.
    fn start(&mut self, nic: &N) -> Result<(), OpenError> {
        let init = InitAttr { access: Access::LOCAL_WRITE, qkey: self.q_key };
        self.qp.modify(&Transition::Init(init))?;
        let count = self.receives.len_bytes() / self.stride_bytes;
        for buffer in 0..count {
            self.post_receive(buffer * self.stride_bytes + LINE_BYTES)?;
        }
        self.qp.ring_recv();
        let rtr = RtrAttr {
            path_mtu: nic.port().mtu,
            peer: None,
            rnr_timer: RnrTimer::from_code(1),
            reads_in_max: 0,
        };
        self.qp.modify(&Transition::Rtr(rtr))?;
        self.qp.modify(&Transition::Rts(RtsAttr::default()))?;
        Ok(())
    }

    /// Starts a queue pair anew that has failed. Its posts are lost.
    pub(crate) fn restart(&mut self, nic: &N) -> Result<(), OpenError> {
        self.qp.modify(&Transition::Reset)?;
        (self.unreturned, self.is_unrung, self.is_failed) = (0, false, false);
        self.start(nic)
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.is_failed
    }

    /// Posts the receive of a packet that begins at `offset_bytes`.
    #[inline]
    fn post_receive(&mut self, offset_bytes: usize) -> Result<(), PostRecvError> {
        let len_bytes = GRH_BYTES + self.room_bytes();
        let sge = self.receives.sge(offset_bytes - GRH_BYTES, len_bytes);
        let wqe = self.qp.post_recv(&[sge])?;
        let mask = self.buffers.len() - 1;
        self.buffers[usize::from(wqe) & mask] = offset_bytes;
        Ok(())
    }

    /// For a packet.
    #[inline]
    fn room_bytes(&self) -> usize {
        self.stride_bytes - LINE_BYTES
    }

    /// Whether another packet can be posted.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        if self.qp.send_free() > 0 {
            return true;
        }
        // Doorbells are batched: what fills the queue must be known to the NIC to be completed.
        self.ring();
        self.reap();
        self.qp.send_free() > 0
    }

    /// Posts a packet; [`ring`](Self::ring) rings the doorbell. Its bytes are copied.
    #[inline]
    pub(crate) fn send(
        &mut self,
        to: &Destination,
        header: &[u8],
        data: &[u8],
    ) -> Result<(), SendError> {
        let len = header.len() + data.len();
        let posted = if len <= self.inline_bytes {
            let payload = Payload::Inline(&[header, data]);
            self.post(payload, to)
        } else {
            if self.qp.send_free() == 0 {
                return Err(SendError::Full);
            }
            let at = usize::from(self.next) * self.stride_bytes;
            self.staging.write(at, header);
            self.staging.write(at + header.len(), data);
            let sge = self.staging.sge(at, len);
            self.post(Payload::Gather(&[sge]), to)
        };
        match posted {
            Ok(_) => {
                self.next = if self.next + 1 == self.sends { 0 } else { self.next + 1 };
                self.is_unrung = true;
                Ok(())
            }
            Err(PostSendError::QueueFull { .. }) => Err(SendError::Full),
            Err(PostSendError::State(_)) => {
                self.is_failed = true;
                Err(SendError::Lost)
            }
            Err(_) => Err(SendError::Lost),
        }
    }

    /// No completion is asked for: the queue asks for one before half of it is used.
    fn post(&mut self, payload: Payload<'_>, to: &Destination) -> Result<u16, PostSendError> {
        let op = Op::Send { payload, imm: None };
        self.qp.post_send(&SendRequest { op, flags: SendFlags::empty(), to: Some(to) })
    }

    /// Rings the doorbell for all posts.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if core::mem::take(&mut self.is_unrung) {
            self.qp.ring_send();
        }
    }

    /// Takes completions of sends before they are needed, which are at least one in half of the queue.
    #[inline]
    pub(crate) fn reap_early(&mut self) {
        if self.qp.send_free() < self.sends / 2 {
            self.reap();
        }
    }

    /// Takes completions of sends.
    pub(crate) fn reap(&mut self) {
        while let Some(completion) = self.send_cq.poll() {
            self.qp.retire(&completion);
            self.is_failed |= completion.failure.is_some() && !self.recover();
        }
    }

    /// A failed send stops a UD queue pair's sends only; the datagram is lost like any other.
    fn recover(&mut self) -> bool {
        self.qp.state() == QpState::Sqe
            && self.qp.modify(&Transition::Rts(RtsAttr::default())).is_ok()
    }

    /// The next packet.
    #[inline]
    pub(crate) fn receive(&mut self) -> Option<Arrived> {
        let completion = self.recv_cq.poll()?;
        let mask = self.buffers.len() - 1;
        let offset_bytes = self.buffers[usize::from(completion.wqe) & mask];
        let is_whole = completion.failure.is_none();
        self.is_failed |= !is_whole && self.qp.state() == QpState::Err;
        // A length of 0 is no packet.
        let len_bytes =
            if is_whole { (completion.len_bytes as usize).min(self.room_bytes()) } else { 0 };
        self.qp.retire(&completion);
        Some(Arrived { offset_bytes, len_bytes, sender: completion.source })
    }

    /// Copies bytes of a packet, from `at_bytes` on.
    #[inline]
    pub(crate) fn read(&self, arrived: &Arrived, at_bytes: usize, to: &mut [u8]) {
        self.receives.read(arrived.offset_bytes + at_bytes, to);
    }

    /// Posts the receive of a packet again.
    #[inline]
    pub(crate) fn give_back(&mut self, arrived: &Arrived) {
        if self.post_receive(arrived.offset_bytes).is_err() {
            self.is_failed = true;
            return;
        }
        self.unreturned += 1;
        if self.unreturned >= RETURN {
            self.return_receives();
        }
    }

    /// Hands posted receives to the NIC.
    #[inline]
    pub(crate) fn return_receives(&mut self) {
        if core::mem::take(&mut self.unreturned) > 0 {
            self.qp.ring_recv();
        }
    }
}
