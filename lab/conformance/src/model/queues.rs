//! Handles of queues.

use std::collections::VecDeque;

use super::{
    Shared,
    fabric::{Action, Request, Source},
    mutant::Mutant,
};
use verbs::{
    Arm, ArmError, Completion, CompletionKind, CompletionQueue, CqConfig, Cqn, Destination,
    ModifyError, Op, Payload, PostRecvError, PostSendError, QpConfig, QpState, Qpn, QueuePair,
    RtsAttr, SendFlags, SendRequest, Sge, SharedReceiveQueue, SrqConfig, Srqn, Transition,
    Transport,
};

pub(crate) struct ModelCq {
    shared: Shared,
    pub(super) id: u32,
    pub(super) entries: u32,
    pub(super) allow_overcommit: bool,
}

impl ModelCq {
    pub(super) fn new(shared: Shared, id: u32, config: &CqConfig) -> Self {
        let entries = config.entries.next_power_of_two();
        Self { shared, id, entries, allow_overcommit: config.allow_overcommit }
    }
}

impl CompletionQueue for ModelCq {
    fn cqn(&self) -> Cqn {
        Cqn::from_low_bits(self.id)
    }

    fn entries(&self) -> u32 {
        self.entries
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut fabric = self.shared.lock();
        fabric.run();
        fabric.cqs.get_mut(&self.id)?.queue.pop_front()
    }

    fn inline_data(&self) -> &[u8] {
        &[]
    }

    fn arm(&mut self, which: Arm) -> Result<(), ArmError> {
        let mut fabric = self.shared.lock();
        let is_blind = fabric.mutant == Some(Mutant::ArmIgnoresThePast);
        let cq = fabric.cqs.get_mut(&self.id).ok_or(ArmError::NoChannel)?;
        if cq.channel.is_none() {
            return Err(ArmError::NoChannel);
        }
        let only_solicited = which == Arm::Solicited;
        cq.armed = Some(only_solicited);
        if !is_blind
            && cq.queue.iter().any(|c| !only_solicited || c.solicited || c.failure.is_some())
        {
            cq.fire();
        }
        Ok(())
    }
}

pub(crate) struct ModelSrq {
    shared: Shared,
    pub(super) id: u32,
    pub(super) pd: u32,
    pub(super) entries: u32,
    sges_max: u8,
    free: Vec<u16>,
    is_out: Vec<bool>,
    posted: Vec<(u16, Vec<Sge>)>,
}

impl ModelSrq {
    pub(super) fn new(shared: Shared, id: u32, pd: u32, config: &SrqConfig) -> Self {
        let entries = config.entries.next_power_of_two();
        let indices = 0..u16::try_from(entries).expect("small");
        let is_out = vec![false; indices.len()];
        let sges_max = config.sges_max;
        let free = indices.collect();
        Self { shared, id, pd, entries, sges_max, free, is_out, posted: vec![] }
    }
}

impl SharedReceiveQueue for ModelSrq {
    fn srqn(&self) -> Srqn {
        Srqn::from_low_bits(self.id)
    }

    fn post(&mut self, into: &[Sge]) -> Result<u16, PostRecvError> {
        if into.len() > usize::from(self.sges_max) {
            return Err(PostRecvError::TooManySges { asked: into.len(), max: self.sges_max });
        }
        let full = PostRecvError::QueueFull { requests: self.entries };
        let wqe = self.free.pop().ok_or(full)?;
        self.is_out[usize::from(wqe)] = true;
        self.posted.push((wqe, into.to_vec()));
        Ok(wqe)
    }

    fn ring(&mut self) {
        let mut fabric = self.shared.lock();
        let queue = fabric.srqs.get_mut(&self.id).expect("alive");
        queue.extend(self.posted.drain(..));
        fabric.run();
    }

    fn retire(&mut self, completion: &Completion) {
        assert!(completion.kind.is_receive(), "not a receive");
        let is_out = &mut self.is_out[usize::from(completion.wqe)];
        assert!(core::mem::take(is_out), "not outstanding");
        self.free.push(completion.wqe);
    }
}

pub(crate) struct ModelQp {
    shared: Shared,
    id: u32,
    transport: Transport,
    has_srq: bool,
    recv_entries: u32,
    recv_sges_max: u8,
    send: verbs::SendSize,
    send_entries: u16,
    uses: [(u32, u32); 2],
    next: [u16; 2],
    /// Sends since the last one that reports its completion.
    unsignaled: u16,
    /// Indices of sends whose space is taken, oldest first.
    sent: VecDeque<u16>,
    received: u32,
    posted: Vec<Request>,
    posted_receives: Vec<(u16, Vec<Sge>)>,
}

impl ModelQp {
    pub(super) fn new(
        shared: Shared,
        id: u32,
        config: &QpConfig<'_, super::Model>,
        recv: u32,
    ) -> Self {
        let send_entries = config.send.requests;
        Self {
            shared,
            id,
            transport: config.transport,
            has_srq: config.srq.is_some(),
            recv_entries: config.recv.requests,
            recv_sges_max: config.recv.sges_max,
            send: config.send,
            send_entries: u16::try_from(send_entries).expect("small"),
            uses: [(config.send_cq.id, config.send.requests), (config.recv_cq.id, recv)],
            next: [0; 2],
            unsignaled: 0,
            sent: VecDeque::new(),
            received: 0,
            posted: vec![],
            posted_receives: vec![],
        }
    }

    fn check_size(&self, op: &Op<'_>) -> Result<(), PostSendError> {
        let size = self.send;
        match *op {
            Op::Send { payload: Payload::Inline(parts), .. }
            | Op::Write { payload: Payload::Inline(parts), .. } => {
                let asked_bytes = parts.iter().map(|part| part.len()).sum();
                let max_bytes = size.inline_bytes_max;
                let is_long = asked_bytes > usize::from(max_bytes);
                if is_long {
                    Err(PostSendError::InlineTooLong { asked_bytes, max_bytes })
                } else {
                    Ok(())
                }
            }
            Op::Send { payload: Payload::Gather(sges), .. }
            | Op::Write { payload: Payload::Gather(sges), .. }
            | Op::Read { into: sges, .. } => {
                let asked = sges.iter().filter(|sge| sge.len_bytes > 0).count();
                let max = size.sges_max;
                let is_long = asked > usize::from(max);
                if is_long { Err(PostSendError::TooManySges { asked, max }) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    fn forget(&mut self) {
        self.next = [0; 2];
        self.unsignaled = 0;
        self.sent.clear();
        self.received = 0;
        self.posted.clear();
        self.posted_receives.clear();
    }
}

fn source(payload: Payload<'_>) -> Source {
    match payload {
        Payload::Gather(sges) => Source::Gather(sges.to_vec()),
        Payload::Inline(slices) => Source::Inline(slices.concat()),
    }
}

fn action(op: &Op<'_>) -> Action {
    match *op {
        Op::Send { payload, imm } => Action::Send(source(payload), imm),
        Op::Write { remote, payload, imm } => Action::Write(remote, source(payload), imm),
        Op::Read { remote, into } => Action::Read(remote, into.to_vec()),
        Op::CompareSwap { remote, into, compare, swap } => {
            let new = |old, compare, swap| if old == compare { swap } else { old };
            Action::Atomic(remote, into, CompletionKind::CompareSwap, new, compare, swap)
        }
        Op::FetchAdd { remote, into, add } => {
            let new = |old: u64, add, _| old.wrapping_add(add);
            Action::Atomic(remote, into, CompletionKind::FetchAdd, new, add, 0)
        }
        Op::Nop => Action::Nop,
    }
}

impl QueuePair for ModelQp {
    fn qpn(&self) -> Qpn {
        Qpn::from_low_bits(self.id)
    }

    fn transport(&self) -> Transport {
        self.transport
    }

    fn state(&self) -> QpState {
        self.shared.lock().pairs[&self.id].state
    }

    fn modify(&mut self, to: &Transition) -> Result<(), ModifyError> {
        to.check(self.state(), self.transport)?;
        let shared = self.shared.clone();
        let mut fabric = shared.lock();
        let pair = fabric.pairs.get_mut(&self.id).expect("alive");
        let from = core::mem::replace(&mut pair.state, to.target());
        match to {
            Transition::Reset => {
                pair.sends.clear();
                pair.receives.clear();
                pair.not_before = None;
                let cqs = pair.cqs;
                if fabric.mutant != Some(Mutant::ResetKeepsCompletions) {
                    fabric.purge(cqs, self.id);
                }
                self.forget();
            }
            Transition::Init(attr) => {
                pair.access = attr.access;
                if self.transport == Transport::Ud {
                    pair.key = u64::from(attr.qkey.get());
                }
            }
            Transition::Rtr(attr) => {
                pair.peer = attr.peer.map_or(0, |peer| peer.qpn.get());
                pair.rnr_timer = attr.rnr_timer;
            }
            Transition::Rts(attr) => {
                if RtsAttr::are_taken_from(from) {
                    pair.rts = *attr;
                }
                pair.rnr_left = pair.rts.rnr_retry;
            }
            Transition::Sqd | Transition::Err => {}
        }
        fabric.run();
        Ok(())
    }

    fn post_send(&mut self, request: &SendRequest<'_>) -> Result<u16, PostSendError> {
        let state = self.state();
        if !state.accepts_sends() {
            return Err(PostSendError::State(state));
        }
        let transport = self.transport;
        let (to, rule) = match (transport, request.to, &request.op) {
            (Transport::Rc, None, _) => (None, None),
            (Transport::Ud, Some(Destination::Ud { to, qkey }), Op::Send { .. }) => {
                (Some((to.qpn.get(), u64::from(qkey.get()))), None)
            }
            (Transport::Dci, Some(Destination::Dc { to, key }), _) => {
                (Some((to.qpn.get(), key.get())), None)
            }
            _ => (None, Some("does not do that")),
        };
        if let Some(rule) = rule {
            return Err(PostSendError::Transport { transport, rule });
        }
        if let Op::FetchAdd { into, .. } | Op::CompareSwap { into, .. } = request.op
            && into.len_bytes != 8
        {
            return Err(PostSendError::AtomicLength(into.len_bytes));
        }
        self.check_size(&request.op)?;
        if self.send_free() == 0 {
            return Err(PostSendError::QueueFull { requests: self.send_entries.into() });
        }
        let wqe = self.next[0];
        self.next[0] = wqe.wrapping_add(1);
        self.sent.push_back(wqe);
        let mut flags = request.flags;
        self.unsignaled += 1;
        let is_silent = self.shared.lock().mutant == Some(Mutant::NoSignalOfItsOwn);
        if self.unsignaled == self.send_entries / 2 && !is_silent {
            flags |= SendFlags::SIGNALED;
        }
        if flags.contains(SendFlags::SIGNALED) {
            self.unsignaled = 0;
        }
        self.posted.push(Request { to, wqe, action: action(&request.op), flags });
        Ok(wqe)
    }

    fn ring_send(&mut self) {
        let mut fabric = self.shared.lock();
        let pair = fabric.pairs.get_mut(&self.id).expect("alive");
        pair.sends.extend(self.posted.drain(..));
        fabric.run();
    }

    fn post_recv(&mut self, into: &[Sge]) -> Result<u16, PostRecvError> {
        if self.has_srq || self.transport == Transport::Dci {
            return Err(PostRecvError::NoQueue);
        }
        let state = self.state();
        if !state.accepts_receives() {
            return Err(PostRecvError::State(state));
        }
        if into.len() > usize::from(self.recv_sges_max) {
            return Err(PostRecvError::TooManySges { asked: into.len(), max: self.recv_sges_max });
        }
        if self.received == self.recv_entries {
            return Err(PostRecvError::QueueFull { requests: self.recv_entries });
        }
        self.received += 1;
        let wqe = self.next[1];
        self.next[1] = wqe.wrapping_add(1);
        self.posted_receives.push((wqe, into.to_vec()));
        Ok(wqe)
    }

    fn ring_recv(&mut self) {
        let mut fabric = self.shared.lock();
        let pair = fabric.pairs.get_mut(&self.id).expect("alive");
        pair.receives.extend(self.posted_receives.drain(..));
        fabric.run();
    }

    fn send_free(&self) -> u16 {
        self.send_entries - u16::try_from(self.sent.len()).expect("bounded by entries")
    }

    fn retire(&mut self, completion: &Completion) {
        assert_eq!(completion.qpn, self.qpn(), "completion of another queue pair");
        if completion.kind.is_receive() {
            self.received -= 1;
            return;
        }
        while self.sent.pop_front().expect("outstanding") != completion.wqe {}
    }
}

impl Drop for ModelQp {
    fn drop(&mut self) {
        let mut fabric = self.shared.lock();
        if let Some(pair) = fabric.pairs.remove(&self.id)
            && fabric.mutant != Some(Mutant::DropKeepsCompletions)
        {
            fabric.purge(pair.cqs, self.id);
        }
        for (cq, entries) in self.uses {
            if let Some(cq) = fabric.cqs.get_mut(&cq) {
                cq.needed -= entries;
            }
        }
    }
}
