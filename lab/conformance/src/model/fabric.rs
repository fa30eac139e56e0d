//! The state that all model NICs of one fabric share, and the rules by which it moves.

use std::{
    collections::{BTreeMap, VecDeque},
    io::Write as _,
    os::unix::net::UnixStream,
    time::Instant,
};

use super::mutant::Mutant;

use verbs::{
    Access, AsyncEvent, Completion, CompletionKind, Cqn, Lid, QpState, Qpn, RemoteSlice, RnrTimer,
    RtsAttr, SendFlags, Sge, Transport, WcFailure, WcStatus,
};

/// Registered bytes at an invented address.
pub(super) struct Region {
    pub(super) pd: u32,
    pub(super) access: Access,
    pub(super) addr: u64,
    pub(super) bytes: Vec<u8>,
}

pub(super) enum Source {
    Gather(Vec<Sge>),
    Inline(Vec<u8>),
}

pub(super) enum Action {
    Send(Source, Option<u32>),
    Write(RemoteSlice, Source, Option<u32>),
    Read(RemoteSlice, Vec<Sge>),
    /// New value from the old one: compare and swap, or add.
    Atomic(RemoteSlice, Sge, CompletionKind, fn(u64, u64, u64) -> u64, u64, u64),
    Nop,
}

pub(super) struct Request {
    /// Number and key of the target of a datagram or DC request.
    pub(super) to: Option<(u32, u64)>,
    pub(super) wqe: u16,
    pub(super) action: Action,
    pub(super) flags: SendFlags,
}

pub(super) type Receives = VecDeque<(u16, Vec<Sge>)>;

pub(super) struct Pair {
    pub(super) transport: Transport,
    pub(super) lid: Lid,
    /// Queue key or access key.
    pub(super) key: u64,
    pub(super) pd: u32,
    /// Of its receives: the SRQ's, if it has one.
    pub(super) recv_pd: u32,
    pub(super) state: QpState,
    pub(super) cqs: [u32; 2],
    pub(super) srq: Option<u32>,
    pub(super) sends: VecDeque<Request>,
    pub(super) receives: Receives,
    pub(super) peer: u32,
    pub(super) access: Access,
    pub(super) rts: RtsAttr,
    pub(super) rnr_timer: RnrTimer,
    pub(super) rnr_left: u8,
    pub(super) not_before: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Cq {
    pub(super) entries: usize,
    pub(super) needed: u32,
    pub(super) queue: VecDeque<Completion>,
    pub(super) armed: Option<bool>,
    pub(super) channel: Option<UnixStream>,
    pub(super) is_dead: bool,
}

/// Everything of one fabric.
#[derive(Default)]
pub(super) struct Fabric {
    pub(super) mutant: Option<Mutant>,
    /// The first receive of any SRQ.
    first_sges: Option<Option<(u16, Vec<Sge>)>>,
    /// The sender of the datagram or DC request that is being executed.
    sender: Option<verbs::Source>,
    /// Results that a broken NIC holds back: domain, where to, what.
    held: Vec<(u32, Vec<Sge>, Vec<u8>)>,
    pub(super) last_id: u32,
    pub(super) regions: BTreeMap<u32, Region>,
    pub(super) pairs: BTreeMap<u32, Pair>,
    pub(super) cqs: BTreeMap<u32, Cq>,
    pub(super) srqs: BTreeMap<u32, Receives>,
    pub(super) events: Vec<AsyncEvent>,
}

/// A request on its way.
struct Message {
    /// The requester's domain.
    pd: u32,
    peer: u32,
    data: Vec<u8>,
    imm: Option<u32>,
    kind: CompletionKind,
    flags: SendFlags,
}

impl Action {
    /// Remote bytes that are touched, and the right that this takes; `None` for a message.
    fn target(&self, data_len: usize) -> Option<(RemoteSlice, usize, Access)> {
        match self {
            Self::Send(..) | Self::Nop => None,
            Self::Write(at, ..) => Some((*at, data_len, Access::REMOTE_WRITE)),
            Self::Read(at, into) => {
                let len: u64 = into.iter().map(|sge| u64::from(sge.len_bytes)).sum();
                Some((*at, usize::try_from(len).unwrap_or(usize::MAX), Access::REMOTE_READ))
            }
            Self::Atomic(at, ..) => Some((*at, 8, Access::REMOTE_ATOMIC)),
        }
    }
}

/// The outcome of one request.
enum Outcome {
    Done(CompletionKind, u32),
    NotReady,
    Failed(WcStatus),
}

impl Fabric {
    pub(super) fn id(&mut self) -> u32 {
        // Spread, so that a neighbouring key names nothing.
        self.last_id += 0x100;
        self.last_id
    }

    /// Takes what queue pair `qpn` has completed out of its completion queues.
    pub(super) fn purge(&mut self, cqs: [u32; 2], qpn: u32) {
        for cq in cqs {
            if let Some(cq) = self.cqs.get_mut(&cq) {
                cq.queue.retain(|completion| completion.qpn.get() != qpn);
            }
        }
    }

    fn region(
        &mut self,
        key: u32,
        pd: u32,
        addr: u64,
        len: usize,
        need: Access,
    ) -> Option<&mut [u8]> {
        let any_pd = self.is(Mutant::DomainsIgnored);
        let region = self.regions.get_mut(&key)?;
        let start = usize::try_from(addr.checked_sub(region.addr)?).ok()?;
        let end = start.checked_add(len)?;
        let is_open = (any_pd || region.pd == pd) && region.access.contains(need);
        if is_open { region.bytes.get_mut(start..end) } else { None }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn gather(&mut self, pd: u32, source: &Source) -> Option<Vec<u8>> {
        let sges = match source {
            Source::Inline(bytes) => return Some(bytes.clone()),
            Source::Gather(sges) => sges,
        };
        let mut bytes = Vec::new();
        for sge in sges.iter().filter(|sge| sge.len_bytes > 0) {
            let len = usize::try_from(sge.len_bytes).ok()?;
            bytes.extend_from_slice(self.region(
                sge.lkey.get(),
                pd,
                sge.addr,
                len,
                Access::empty(),
            )?);
        }
        Some(bytes)
    }

    fn scatter(&mut self, pd: u32, sges: &[Sge], mut bytes: &[u8]) -> Option<()> {
        for sge in sges {
            let len = usize::try_from(sge.len_bytes).ok()?.min(bytes.len());
            let (now, later) = bytes.split_at(len);
            if len > 0 {
                let key = sge.lkey.get();
                self.region(key, pd, sge.addr, len, Access::LOCAL_WRITE)?.copy_from_slice(now);
            }
            bytes = later;
        }
        Some(())
    }

    /// Moves everything that can move.
    pub(super) fn run(&mut self) {
        let ids: Vec<u32> = self.pairs.keys().copied().collect();
        let mut is_moving = true;
        while is_moving {
            is_moving = false;
            for id in &ids {
                is_moving |= self.step(*id);
            }
        }
        for (pd, into, bytes) in core::mem::take(&mut self.held) {
            let _ = self.scatter(pd, &into, &bytes);
        }
    }

    fn step(&mut self, id: u32) -> bool {
        let Some(pair) = self.pairs.get_mut(&id) else { return false };
        if pair.state == QpState::Err {
            return self.flush(id);
        }
        let runs = pair.state == QpState::Rts
            || pair.state == QpState::Sqd && self.mutant == Some(Mutant::SqdIgnored);
        let is_late = pair.not_before.is_none_or(|at| Instant::now() >= at);
        if !runs || !is_late {
            return false;
        }
        let is_atomic = |request: &Request| matches!(request.action, Action::Atomic(..));
        if self.mutant == Some(Mutant::AtomicsOvertake)
            && pair.sends.get(1).is_some_and(is_atomic)
            && is_atomic(&pair.sends[0])
        {
            pair.sends.swap(0, 1);
        }
        let Some(request) = pair.sends.pop_front() else { return false };
        let outcome = self.execute(id, &request);
        let Some(pair) = self.pairs.get_mut(&id) else { return false };
        let failed = match outcome {
            Outcome::NotReady if pair.rnr_left > 0 => {
                let is_finite = pair.rnr_left < 7 && self.mutant != Some(Mutant::RnrForEver);
                pair.rnr_left -= u8::from(is_finite);
                pair.not_before = Some(Instant::now() + pair.rnr_timer.wait());
                pair.sends.push_front(request);
                return false;
            }
            Outcome::NotReady => Some(WcStatus::RnrRetryExceeded),
            Outcome::Failed(status) => Some(status),
            Outcome::Done(kind, len_bytes) => {
                pair.rnr_left = pair.rts.rnr_retry;
                if request.flags.contains(SendFlags::SIGNALED) {
                    self.complete(id, 0, request.wqe, kind, len_bytes, None);
                }
                return true;
            }
        };
        self.fail_send(id, &request, failed);
        true
    }

    fn fail(&mut self, id: u32, side: usize, wqe: u16, status: Option<WcStatus>) {
        let kind = [CompletionKind::SendError, CompletionKind::RecvError][side];
        if let Some(pair) = self.pairs.get_mut(&id) {
            pair.state = QpState::Err;
        }
        self.complete(id, side, wqe, kind, 0, status);
    }

    fn fail_send(&mut self, id: u32, request: &Request, status: Option<WcStatus>) {
        if self.is(Mutant::UnsignaledFailuresVanish) && !request.flags.contains(SendFlags::SIGNALED)
        {
            if let Some(pair) = self.pairs.get_mut(&id) {
                pair.state = QpState::Err;
            }
            return;
        }
        self.fail(id, 0, request.wqe, status);
    }

    fn flush(&mut self, id: u32) -> bool {
        let Some(pair) = self.pairs.get_mut(&id) else { return false };
        if let Some(request) = pair.sends.pop_front() {
            self.fail_send(id, &request, Some(WcStatus::Flushed));
        } else if let Some((wqe, _)) = pair.receives.pop_front() {
            self.fail(id, 1, wqe, Some(WcStatus::Flushed));
        } else {
            return false;
        }
        true
    }

    fn complete(
        &mut self,
        id: u32,
        side: usize,
        wqe: u16,
        kind: CompletionKind,
        len_bytes: u32,
        status: Option<WcStatus>,
    ) {
        self.push(
            id,
            side,
            Completion {
                qpn: Qpn::from_low_bits(id),
                wqe,
                kind,
                failure: status.map(|status| WcFailure { status, vendor: 0 }),
                len_bytes,
                imm: None,
                source: None,
                solicited: false,
                in_cqe: false,
            },
        );
    }

    fn push(&mut self, id: u32, side: usize, completion: Completion) {
        let Some(pair) = self.pairs.get(&id) else { return };
        let cqn = pair.cqs[side];
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        if cq.is_dead {
            return;
        }
        if cq.queue.len() == cq.entries {
            if self.mutant == Some(Mutant::SilentOverrun) {
                return;
            }
            cq.is_dead = true;
            self.events.push(AsyncEvent::CqOverrun(Cqn::from_low_bits(cqn)));
            for pair in self.pairs.values_mut().filter(|pair| pair.cqs.contains(&cqn)) {
                pair.state = QpState::Err;
            }
            return;
        }
        cq.queue.push_back(completion);
        let wakes = completion.solicited || completion.failure.is_some();
        if cq.armed.is_some_and(|solicited_only| !solicited_only || wakes) {
            cq.fire();
        }
    }

    fn execute(&mut self, id: u32, request: &Request) -> Outcome {
        use WcStatus::{LocalProtection, RemoteAccess, RetryExceeded};
        let Some(pair) = self.pairs.get(&id) else { return Outcome::NotReady };
        let pd = pair.pd;
        let transport = pair.transport;
        let (peer, key) = request.to.unwrap_or((pair.peer, 0));
        self.sender = request.to.map(|_| verbs::Source {
            qpn: Qpn::from_low_bits(id),
            lid: pair.lid,
            has_grh: false,
        });
        let (data, imm, kind) = match &request.action {
            Action::Nop => return Outcome::Done(CompletionKind::Nop, 0),
            Action::Send(source, imm) => (self.gather(pd, source), *imm, CompletionKind::Send),
            Action::Write(_, source, imm) => (self.gather(pd, source), *imm, CompletionKind::Write),
            Action::Read(..) => (Some(vec![]), None, CompletionKind::Read),
            Action::Atomic(_, _, kind, ..) => (Some(vec![]), None, *kind),
        };
        let Some(data) = data else { return Outcome::Failed(LocalProtection) };
        if transport == Transport::Ud {
            return self.datagram(peer, key, &data, imm);
        }
        let Some(remote) = self.pairs.get(&peer).filter(|peer| peer.state.responds()) else {
            let is_blind = self.is(Mutant::DeathUnnoticed);
            return if is_blind { Outcome::NotReady } else { Outcome::Failed(RetryExceeded) };
        };
        let remote_pd = remote.pd;
        let rights = remote.access;
        let key = if self.is(Mutant::AccessKeyIgnored) { remote.key } else { key };
        if transport == Transport::Dci && (remote.transport, remote.key) != (Transport::Dct, key) {
            return Outcome::Failed(RemoteAccess);
        }
        let message = Message { pd, peer, data, imm, kind, flags: request.flags };
        self.reach(&request.action, message, remote_pd, rights)
    }

    /// Executes a request at the responder.
    fn reach(&mut self, action: &Action, message: Message, pd: u32, rights: Access) -> Outcome {
        let Message { peer, ref data, imm, kind, flags, .. } = message;
        let Some((at, len, right)) = action.target(data.len()) else {
            return self.deliver(peer, data, imm, kind, flags);
        };
        if right == Access::REMOTE_ATOMIC && at.addr % 8 != 0 {
            return self.deny(peer, WcStatus::RemoteInvalidRequest);
        }
        let is_lax = self.is(Mutant::QueuePairRightsIgnored);
        if self.is(Mutant::WriteSpills)
            && right == Access::REMOTE_WRITE
            && let Some(byte) = self.region(at.rkey.get(), pd, at.addr + len as u64, 1, right)
        {
            byte.fill(0);
        }
        if len == 0 {
            return self.after_write(peer, imm, kind, flags, 0);
        }
        if !is_lax && !rights.contains(right) {
            // IBTA 9.7.4.1, as soft-RoCE does; the software NIC and others say "remote access error".
            return self.deny(peer, WcStatus::RemoteInvalidRequest);
        }
        let Some(bytes) = self.region(at.rkey.get(), pd, at.addr, len, right) else {
            return self.deny(peer, WcStatus::RemoteAccess);
        };
        match action {
            Action::Read(_, into) => {
                let found = bytes.to_vec();
                self.answer(&message, into.clone(), found)
            }
            Action::Atomic(_, into, _, new, first, second) => {
                let old = bytes.to_vec();
                let word = u64::from_ne_bytes(old.as_slice().try_into().unwrap_or_default());
                bytes.copy_from_slice(&new(word, *first, *second).to_ne_bytes());
                self.answer(&message, vec![*into], old)
            }
            _ => {
                bytes.copy_from_slice(data);
                self.after_write(peer, imm, kind, flags, len)
            }
        }
    }

    fn deny(&mut self, peer: u32, status: WcStatus) -> Outcome {
        if let Some(peer) = self.pairs.get_mut(&peer)
            && peer.transport == Transport::Rc
        {
            peer.state = QpState::Err;
        }
        Outcome::Failed(status)
    }

    /// Brings the result of a READ or an atomic home.
    fn answer(&mut self, message: &Message, into: Vec<Sge>, bytes: Vec<u8>) -> Outcome {
        let done = Outcome::Done(message.kind, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        if self.is(Mutant::FenceIgnored) {
            self.held.push((message.pd, into, bytes));
            return done;
        }
        match self.scatter(message.pd, &into, &bytes) {
            Some(()) => done,
            None => Outcome::Failed(WcStatus::LocalProtection),
        }
    }

    /// Delivers a datagram, or loses it.
    fn datagram(&mut self, peer: u32, key: u64, data: &[u8], imm: Option<u32>) -> Outcome {
        const GRH_BYTES: usize = 40;
        if data.len() > 4096 {
            return Outcome::Failed(WcStatus::LocalLength);
        }
        let is_lax = self.is(Mutant::QueueKeyIgnored);
        let is_open = |pair: &&Pair| {
            let fits = pair.transport == Transport::Ud && (is_lax || pair.key == key);
            fits && pair.state.responds()
        };
        let Some(remote) = self.pairs.get(&peer).filter(is_open) else {
            return Outcome::Done(CompletionKind::Send, 0);
        };
        let pd = remote.pd;
        let room = |sges: &[Sge]| sges.iter().map(|sge| u64::from(sge.len_bytes)).sum::<u64>();
        let fits = |(_, sges): &&(u16, Vec<Sge>)| room(sges) >= (GRH_BYTES + data.len()) as u64;
        if remote.receives.front().filter(fits).is_some()
            && let Some((wqe, sges)) = self.take_receive(peer)
        {
            let whole = [&[0; GRH_BYTES], data].concat();
            let _ = self.scatter(pd, &sges, &whole);
            let flags = SendFlags::empty();
            self.received(peer, wqe, CompletionKind::Recv, data.len(), imm, flags);
        }
        Outcome::Done(CompletionKind::Send, 0)
    }

    fn after_write(
        &mut self,
        peer: u32,
        imm: Option<u32>,
        kind: CompletionKind,
        flags: SendFlags,
        len: usize,
    ) -> Outcome {
        if imm.is_none() {
            return Outcome::Done(kind, 0);
        }
        let Some((wqe, sges)) = self.take_receive(peer) else { return Outcome::NotReady };
        if self.is(Mutant::WriteImmScatters) {
            let pd = self.recv_pd(peer);
            let _ = self.scatter(pd, &sges, &[0; 8]);
        }
        self.received(peer, wqe, CompletionKind::RecvWriteImm, len, imm, flags);
        Outcome::Done(kind, 0)
    }

    /// The domain that the receives of `peer` lie in.
    fn recv_pd(&self, peer: u32) -> u32 {
        let is_broken = self.mutant == Some(Mutant::SrqDomainIgnored);
        let of = |pair: &Pair| if is_broken { pair.pd } else { pair.recv_pd };
        self.pairs.get(&peer).map_or(0, of)
    }

    fn take_receive(&mut self, peer: u32) -> Option<(u16, Vec<Sge>)> {
        let pair = self.pairs.get_mut(&peer)?;
        match pair.srq {
            Some(srq) => {
                let queue = self.srqs.get_mut(&srq)?;
                let sges = self.first_sges.get_or_insert_with(|| queue.front().cloned());
                let (wqe, own) = queue.pop_front()?;
                let first = sges.as_ref().map(|(_, sges)| sges.clone());
                let is_broken = self.mutant == Some(Mutant::SrqUsesOneBuffer);
                Some((wqe, first.filter(|_| is_broken).unwrap_or(own)))
            }
            None => pair.receives.pop_front(),
        }
    }

    fn deliver(
        &mut self,
        peer: u32,
        data: &[u8],
        imm: Option<u32>,
        kind: CompletionKind,
        flags: SendFlags,
    ) -> Outcome {
        let Some((wqe, sges)) = self.take_receive(peer) else { return Outcome::NotReady };
        let room: u64 = sges.iter().map(|sge| u64::from(sge.len_bytes)).sum();
        if room < data.len() as u64 {
            self.fail(peer, 1, wqe, Some(WcStatus::LocalLength));
            return Outcome::Failed(WcStatus::RemoteInvalidRequest);
        }
        let pd = self.recv_pd(peer);
        let kept =
            if self.is(Mutant::LastByteLost) { data.len().saturating_sub(1) } else { data.len() };
        if self.scatter(pd, &sges, &data[..kept]).is_none() {
            self.fail(peer, 1, wqe, Some(WcStatus::LocalProtection));
            return Outcome::Failed(WcStatus::RemoteOperation);
        }
        self.received(peer, wqe, CompletionKind::Recv, data.len(), imm, flags);
        Outcome::Done(kind, 0)
    }

    fn received(
        &mut self,
        id: u32,
        wqe: u16,
        kind: CompletionKind,
        len: usize,
        imm: Option<u32>,
        flags: SendFlags,
    ) {
        self.push(
            id,
            1,
            Completion {
                qpn: Qpn::from_low_bits(id),
                wqe,
                kind,
                failure: None,
                len_bytes: u32::try_from(len).unwrap_or(u32::MAX),
                imm,
                source: self.sender,
                solicited: flags.contains(SendFlags::SOLICITED)
                    || self.is(Mutant::EverythingIsSolicited),
                in_cqe: false,
            },
        );
    }
}

impl Cq {
    /// Makes the channel readable and disarms.
    pub(super) fn fire(&mut self) {
        self.armed = None;
        if let Some(mut channel) = self.channel.as_ref() {
            // A full socket is readable already.
            let _ = channel.write(&[1]);
        }
    }
}
