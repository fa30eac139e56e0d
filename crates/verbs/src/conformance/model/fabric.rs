//! The state that all model NICs of one fabric share, and the rules by which it moves.

use std::{
    collections::{BTreeMap, VecDeque},
    io::Write as _,
    os::unix::net::UnixStream,
    time::Instant,
};

use wire::cqe::Syndrome;

use crate::{
    Access, AsyncEvent, Completion, CompletionKind, Cqn, Failure, Lid, QpState, Qpn, RemoteSlice,
    RnrTimer, RtsAttr, SendFlags, Sge, Transport,
};

/// A way to be broken that the suite has to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    /// Every SRQ message lands in the first buffer.
    SrqUsesOneBuffer,
    /// Failures of unsignaled requests are not reported.
    UnsignaledFailuresVanish,
    /// A WRITE stores one byte too many.
    WriteSpills,
    /// The last byte of a message is lost.
    LastByteLost,
    /// Rights of the queue pair do not count.
    QueuePairRightsIgnored,
    /// Protection domains do not count.
    DomainsIgnored,
    /// Arming looks at the future only.
    ArmIgnoresThePast,
    /// Every completion counts as solicited.
    EverythingIsSolicited,
    /// The sender never gives up on a missing receive.
    RnrForEver,
    /// SQD does not stop sends.
    SqdIgnored,
    /// Completions are dropped when the CQ is full, without a word.
    SilentOverrun,
    /// READ and atomic results appear only after all other work.
    FenceIgnored,
    /// RESET leaves old completions in the CQ.
    ResetKeepsCompletions,
    /// WRITE with immediate data also writes the receive's buffers.
    WriteImmScatters,
}

impl Mutant {
    pub(super) const ALL: [(Self, &str); 14] = [
        (Self::SrqUsesOneBuffer, "pitfall_01_each_srq_message_has_its_own_buffer"),
        (Self::UnsignaledFailuresVanish, "pitfall_04_unsignaled_failures_surface"),
        (Self::WriteSpills, "write_moves_every_size"),
        (Self::LastByteLost, "send_moves_every_size"),
        (Self::QueuePairRightsIgnored, "missing_rights_are_denied"),
        (Self::DomainsIgnored, "wrong_remote_keys_are_denied"),
        (Self::ArmIgnoresThePast, "arming_with_a_completion_waiting_fires"),
        (Self::EverythingIsSolicited, "solicited_filter_is_exact"),
        (Self::RnrForEver, "rnr_retries_run_out"),
        (Self::SqdIgnored, "sqd_holds_sends_until_rts"),
        (Self::SilentOverrun, "overrun_is_reported_and_contained"),
        (Self::FenceIgnored, "fence_waits_for_reads_and_atomics"),
        (Self::ResetKeepsCompletions, "reset_queue_pair_is_reusable"),
        (Self::WriteImmScatters, "write_imm_leaves_the_receive_untouched"),
    ];
}

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
    /// Who sent the datagram or DC request that is being executed.
    sender: Option<crate::Source>,
    /// Results that a broken NIC holds back: domain, where to, what.
    held: Vec<(u32, Vec<Sge>, Vec<u8>)>,
    pub(super) last_id: u32,
    pub(super) regions: BTreeMap<u32, Region>,
    pub(super) pairs: BTreeMap<u32, Pair>,
    pub(super) cqs: BTreeMap<u32, Cq>,
    pub(super) srqs: BTreeMap<u32, Receives>,
    pub(super) events: Vec<AsyncEvent>,
}

/// What came of one request.
enum Outcome {
    Done(CompletionKind, u32),
    NotReady,
    Failed(Syndrome),
}

impl Fabric {
    pub(super) fn id(&mut self) -> u32 {
        // Spread, so that a neighbouring key names nothing.
        self.last_id += 0x100;
        self.last_id
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
            Outcome::NotReady => Some(Syndrome::RnrRetryExceeded),
            Outcome::Failed(syndrome) => Some(syndrome),
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

    fn fail(&mut self, id: u32, side: usize, wqe: u16, syndrome: Option<Syndrome>) {
        let kind = [CompletionKind::SendError, CompletionKind::RecvError][side];
        if let Some(pair) = self.pairs.get_mut(&id) {
            pair.state = QpState::Err;
        }
        self.complete(id, side, wqe, kind, 0, syndrome);
    }

    fn fail_send(&mut self, id: u32, request: &Request, syndrome: Option<Syndrome>) {
        if self.is(Mutant::UnsignaledFailuresVanish) && !request.flags.contains(SendFlags::SIGNALED)
        {
            if let Some(pair) = self.pairs.get_mut(&id) {
                pair.state = QpState::Err;
            }
            return;
        }
        self.fail(id, 0, request.wqe, syndrome);
    }

    fn flush(&mut self, id: u32) -> bool {
        let Some(pair) = self.pairs.get_mut(&id) else { return false };
        if let Some(request) = pair.sends.pop_front() {
            self.fail_send(id, &request, Some(Syndrome::Flushed));
        } else if let Some((wqe, _)) = pair.receives.pop_front() {
            self.fail(id, 1, wqe, Some(Syndrome::Flushed));
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
        syndrome: Option<Syndrome>,
    ) {
        self.push(
            id,
            side,
            Completion {
                qpn: Qpn::from_low_bits(id),
                wqe,
                kind,
                failure: syndrome.map(|syndrome| Failure { syndrome, vendor: 0 }),
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
        use Syndrome::{LocalProtection, RemoteAccess, RemoteInvalidRequest, RetryExceeded};
        let Some(pair) = self.pairs.get(&id) else { return Outcome::NotReady };
        let (pd, transport) = (pair.pd, pair.transport);
        let (peer, key) = request.to.unwrap_or((pair.peer, 0));
        self.sender = request.to.map(|_| crate::Source {
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
            return Outcome::Failed(RetryExceeded);
        };
        let (remote_pd, rights) = (remote.pd, remote.access);
        if transport == Transport::Dci && (remote.transport, remote.key) != (Transport::Dct, key) {
            return Outcome::Failed(RemoteAccess);
        }
        let denied = |fabric: &mut Self, syndrome| {
            if let Some(peer) = fabric.pairs.get_mut(&peer)
                && peer.transport == Transport::Rc
            {
                peer.state = QpState::Err;
            }
            Outcome::Failed(syndrome)
        };
        let (at, len, right) = match &request.action {
            Action::Send(..) | Action::Nop => {
                return self.deliver(peer, &data, imm, kind, request.flags);
            }
            Action::Write(at, ..) => (*at, data.len(), Access::REMOTE_WRITE),
            Action::Read(at, into) => {
                let len: u64 = into.iter().map(|sge| u64::from(sge.len_bytes)).sum();
                (*at, usize::try_from(len).unwrap_or(usize::MAX), Access::REMOTE_READ)
            }
            Action::Atomic(at, ..) => (*at, 8, Access::REMOTE_ATOMIC),
        };
        if right == Access::REMOTE_ATOMIC && at.addr % 8 != 0 {
            return denied(self, RemoteInvalidRequest);
        }
        let is_lax = self.is(Mutant::QueuePairRightsIgnored);
        if self.is(Mutant::WriteSpills)
            && right == Access::REMOTE_WRITE
            && let Some(byte) =
                self.region(at.rkey.get(), remote_pd, at.addr + len as u64, 1, right)
        {
            byte.fill(0);
        }
        let found = self.region(at.rkey.get(), remote_pd, at.addr, len, right);
        let rights = if is_lax { right } else { rights };
        let (true, Some(bytes)) = (len == 0 || rights.contains(right), found) else {
            if len > 0 {
                return denied(self, RemoteAccess);
            }
            return self.after_write(peer, imm, kind, request.flags, 0);
        };
        let (into, back) = match &request.action {
            Action::Read(_, into) => (into.clone(), bytes.to_vec()),
            Action::Atomic(_, into, _, new, first, second) => {
                let old = bytes.to_vec();
                let word = u64::from_ne_bytes(old.as_slice().try_into().unwrap_or_default());
                bytes.copy_from_slice(&new(word, *first, *second).to_ne_bytes());
                (vec![*into], old)
            }
            _ => {
                bytes.copy_from_slice(&data);
                return self.after_write(peer, imm, kind, request.flags, len);
            }
        };
        if self.is(Mutant::FenceIgnored) {
            let len_bytes = u32::try_from(back.len()).unwrap_or(u32::MAX);
            self.held.push((pd, into, back));
            return Outcome::Done(kind, len_bytes);
        }
        match self.scatter(pd, &into, &back) {
            Some(()) => Outcome::Done(kind, u32::try_from(back.len()).unwrap_or(u32::MAX)),
            None => Outcome::Failed(LocalProtection),
        }
    }

    /// Delivers a datagram, or loses it.
    fn datagram(&mut self, peer: u32, key: u64, data: &[u8], imm: Option<u32>) -> Outcome {
        const GRH_BYTES: usize = 40;
        if data.len() > 4096 {
            return Outcome::Failed(Syndrome::LocalLength);
        }
        let is_open = |pair: &&Pair| {
            (pair.transport, pair.key) == (Transport::Ud, key) && pair.state.responds()
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
            let pd = self.pairs.get(&peer).map_or(0, |pair| pair.pd);
            let _ = self.scatter(pd, &sges, &[0; 8]);
        }
        self.received(peer, wqe, CompletionKind::RecvWriteImm, len, imm, flags);
        Outcome::Done(kind, 0)
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
            self.fail(peer, 1, wqe, Some(Syndrome::LocalLength));
            return Outcome::Failed(Syndrome::RemoteInvalidRequest);
        }
        let pd = self.pairs.get(&peer).map_or(0, |pair| pair.pd);
        let kept =
            if self.is(Mutant::LastByteLost) { data.len().saturating_sub(1) } else { data.len() };
        if self.scatter(pd, &sges, &data[..kept]).is_none() {
            self.fail(peer, 1, wqe, Some(Syndrome::LocalProtection));
            return Outcome::Failed(Syndrome::RemoteOperation);
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
