//! Dynamically connected transport: one initiator queue, many targets.

use verbs::{
    Capabilities, CompletionKind, CqConfig, DcKey, Destination, Nic, Op, Payload, PostSendError,
    QpAddress, QpState, QueuePair, RecvSize, SendFlags, SendRequest, SendSize, Transition,
    Transport, WcStatus,
};

use crate::{
    data::{Buffer, pattern},
    end::{End, OPEN, Setup, Watched, activate, create_qp, swap_endpoint},
    harness::{Remote, Side, Stop, Verdict, ensure, ensure_eq, low_u32},
    srq::{Pool, message},
};

const KEY: DcKey = DcKey::new(0x0123_4567_89ab_cdef);

/// Targets of one server that share a CQ and an SRQ.
struct Targets<N: Nic> {
    qps: Vec<N::Qp>,
    pool: Pool<N>,
    cq: Watched<N>,
    pd: N::Pd,
}

impl<N: Nic> Targets<N> {
    fn create(side: &Side<N>, count: usize, slots: usize, slot_bytes: usize) -> Verdict<Self> {
        let mut setup = Setup::of(Transport::Dct);
        setup.access_key = KEY;
        setup.send = SendSize::NONE;
        // All targets together use no more entries than the SRQ has.
        setup.cq = CqConfig { allow_overcommit: true, ..CqConfig::new(1024) };
        let pd = side.nic.alloc_pd()?;
        let cq = Watched::new(side, &setup.cq, None)?;
        let pool = Pool::filled(side, &pd, slots, slot_bytes)?;
        let mut qps = Vec::new();
        for _ in 0..count {
            let mut qp = create_qp(&side.nic, &pd, &cq.cq, Some(&pool.srq), &setup)?;
            activate(&side.nic, &mut qp, &setup)?;
            ensure_eq!(qp.state(), QpState::Rtr, "state of a ready target");
            ensure!(qp.qpn().get() != 0, "a target in RTR has no number");
            qps.push(qp);
        }
        Ok(Self { qps, pool, cq, pd })
    }

    /// Tells the initiator where the targets are.
    fn announce(&self, side: &mut Side<N>) -> Verdict {
        for qp in &self.qps {
            swap_endpoint(side, qp)?;
        }
        Ok(())
    }
}

/// An initiator in RTS, and `count` targets of the other role.
fn initiator<N: Nic>(side: &mut Side<N>, count: usize) -> Verdict<(End<N>, Vec<QpAddress>)> {
    let setup = Setup::of(Transport::Dci);
    let setup = Setup { recv: RecvSize::NONE, ..setup };
    let mut end = End::create(side, &setup)?;
    activate(&side.nic, &mut end.qp, &setup)?;
    let mut targets = Vec::new();
    for _ in 0..count {
        targets.push(swap_endpoint(side, &end.qp)?);
    }
    Ok((end, targets))
}

/// Every operation, alternating between targets, checked at both ends.
pub(super) fn initiator_does_every_operation<N: Nic>(side: &mut Side<N>) -> Verdict {
    const LEN: usize = 3000;
    side.needs(Capabilities::DC | Capabilities::SRQ | Capabilities::ATOMICS)?;
    if !side.is_client() {
        let mut targets = Targets::create(side, 3, 16, LEN)?;
        targets.announce(side)?;
        let mut exposed = Buffer::new(&side.nic, &targets.pd, LEN + 8, OPEN)?;
        exposed.write(LEN, &5_u64.to_ne_bytes());
        side.swap_remote(&exposed)?;
        for round in 0..9 {
            let data = message(0, round, LEN);
            exposed.expect(0, &data);
            exposed.expect(LEN, &(5 + round + 1).to_ne_bytes());
            let done = targets.cq.wait()?;
            ensure_eq!(done.imm, Some(low_u32(round)), "immediate data");
            ensure!(done.source.is_some(), "a DC receive names its source");
            targets.pool.land_and_repost(&done, &data)?;
            side.meet(&mut targets.cq)?;
            exposed.verify()?;
            targets.pool.verify()?;
            side.meet(&mut targets.cq)?;
        }
        return Ok(());
    }
    let (mut end, targets) = initiator(side, 3)?;
    let mut buffer = end.buffer(side, 2 * LEN + 8)?;
    let remote = side.swap_remote(&buffer)?;
    for (round, to) in (0..9_u64).zip(targets.iter().cycle()) {
        let to = Destination::Dc { to: *to, key: KEY };
        one_of_each(&mut end, &mut buffer, remote, &to, round)?;
        side.meet(&mut end.cq)?;
        side.meet(&mut end.cq)?;
    }
    Ok(())
}

/// WRITE, READ it back, add one, SEND.
fn one_of_each<N: Nic>(
    end: &mut End<N>,
    buffer: &mut Buffer<N>,
    remote: Remote,
    to: &Destination,
    round: u64,
) -> Verdict {
    let len = (buffer.len() - 8) / 2;
    let data = message(0, round, len);
    buffer.clear();
    buffer.write(0, &data);
    let payload = Payload::Gather(&[buffer.sge(0, len)]);
    let write = Op::Write { remote: remote.at(0), payload, imm: None };
    let wqe = end.send(&SendRequest::signaled(write).to(to))?;
    end.wait_sent(CompletionKind::Write, wqe)?;
    let into = [buffer.sge(len, len)];
    let read = Op::Read { remote: remote.at(0), into: &into };
    let wqe = end.send(&SendRequest::signaled(read).to(to))?;
    end.wait_sent(CompletionKind::Read, wqe)?;
    buffer.expect(len, &data);
    let add = Op::FetchAdd { remote: remote.at(len), into: buffer.sge(2 * len, 8), add: 1 };
    let wqe = end.send(&SendRequest::signaled(add).to(to))?;
    end.wait_sent(CompletionKind::FetchAdd, wqe)?;
    buffer.expect(2 * len, &(5 + round).to_ne_bytes());
    let send = Op::Send { payload, imm: Some(low_u32(round)) };
    let wqe = end.send(&SendRequest::signaled(send).to(to))?;
    end.wait_sent(CompletionKind::Send, wqe)?;
    buffer.verify()
}

/// A wrong access key fails the request, and nothing is delivered.
pub(super) fn wrong_access_key_fails<N: Nic>(side: &mut Side<N>) -> Verdict {
    side.needs(Capabilities::DC | Capabilities::SRQ)?;
    if !side.is_client() {
        let mut targets = Targets::create(side, 1, 4, 64)?;
        targets.announce(side)?;
        let exposed = Buffer::new(&side.nic, &targets.pd, 64, OPEN)?;
        side.swap_remote(&exposed)?;
        side.meet(&mut targets.cq)?;
        exposed.verify()?;
        targets.pool.verify()?;
        targets.cq.stays_empty(side.testbed.quiet)?;
        return side.meet(&mut targets.cq);
    }
    let (mut end, targets) = initiator(side, 1)?;
    let buffer = end.buffer(side, 64)?;
    let remote = side.swap_remote(&buffer)?;
    let to = Destination::Dc { to: targets[0], key: DcKey::new(KEY.get() ^ 1) };
    let payload = Payload::Gather(&[buffer.sge(0, 64)]);
    let op = Op::Write { remote: remote.at(0), payload, imm: None };
    let wqe = end.send(&SendRequest::unsignaled(op).to(&to))?;
    let done = end.wait()?;
    // Devices differ in the reason they give; that it is not a mere flush is what counts.
    let reason = done.failure.map(|failure| failure.status);
    let failed = done.wqe == wqe && reason.is_some() && reason != Some(WcStatus::Flushed);
    ensure!(failed, "request with a wrong key: {done:?}");
    end.wait_err(side)?;
    side.meet(&mut end.cq)?;
    side.meet(&mut end.cq)
}

/// 64 endpoints on one initiator queue, each signaling only its own every 64th request: all
/// arrives, in order per target, and the queue never wedges, because signals are accounted per
/// queue and not per endpoint.
pub(super) fn pitfall_06_sparse_signals_never_wedge_the_queue<N: Nic>(
    side: &mut Side<N>,
) -> Verdict {
    const ENDPOINTS: usize = 64;
    const EACH: usize = 100;
    const LEN: usize = 24;
    side.needs(Capabilities::DC | Capabilities::SRQ)?;
    if !side.is_client() {
        let mut targets = Targets::create(side, ENDPOINTS, 64, LEN)?;
        targets.announce(side)?;
        let mut next = [0; ENDPOINTS];
        for _ in 0..EACH * ENDPOINTS {
            let done = targets.cq.wait()?;
            let who = targets.qps.iter().position(|qp| qp.qpn() == done.qpn);
            let who = who.ok_or_else(|| Stop::violation(format!("{done:?}: no such target")))?;
            ensure_eq!(done.imm, Some(low_u32(next[who])), "order at target {who}");
            targets.pool.land_and_repost(&done, &message(who, next[who], LEN))?;
            next[who] += 1;
        }
        targets.pool.verify()?;
        return side.meet(&mut targets.cq);
    }
    let (mut end, targets) = initiator(side, ENDPOINTS)?;
    let mut sent = [0; ENDPOINTS];
    let mut order: Vec<usize> = (0..ENDPOINTS).flat_map(|who| [who; EACH]).collect();
    side.rng.shuffle(&mut order);
    for who in order {
        let data = message(who, sent[who], LEN);
        let op = Op::Send { payload: Payload::Inline(&[&data]), imm: Some(low_u32(sent[who])) };
        sent[who] += 1;
        let flags = if sent[who] % 64 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        let to = Destination::Dc { to: targets[who], key: KEY };
        end.send_when_free(&SendRequest::unsignaled(op).with(flags).to(&to))?;
    }
    // The last one is signaled, so that nothing is left in the queue.
    let to = Destination::Dc { to: targets[0], key: KEY };
    let wqe = end.send_when_free(&SendRequest::signaled(Op::Nop).to(&to))?;
    while end.wait()?.wqe != wqe {}
    side.meet(&mut end.cq)
}

/// A target sends nothing, an initiator receives nothing, and every request has a destination.
pub(super) fn dc_refuses_what_it_cannot_do<N: Nic>(side: &mut Side<N>) -> Verdict {
    side.needs(Capabilities::DC | Capabilities::SRQ)?;
    if !side.is_client() {
        let mut targets = Targets::create(side, 1, 4, 64)?;
        targets.announce(side)?;
        let result = targets.qps[0].post_send(&SendRequest::signaled(Op::Nop));
        ensure!(result.is_err(), "a target sends: {result:?}");
        let result = targets.qps[0].post_recv(&[]);
        ensure!(result.is_err(), "a target has a receive queue: {result:?}");
        for to in [Transition::Reset, Transition::Err] {
            let result = targets.qps[0].modify(&to);
            ensure!(result.is_err(), "a target leaves RTR by {to:?}");
        }
        ensure_eq!(targets.qps[0].state(), QpState::Rtr, "state of a target");
        return side.meet(&mut targets.cq);
    }
    let (mut end, _) = initiator(side, 1)?;
    let data = pattern(0, 8);
    let payload = Payload::Inline(&[&data]);
    let result = end.qp.post_send(&SendRequest::signaled(Op::Send { payload, imm: None }));
    let refused = matches!(result, Err(PostSendError::Transport { .. }));
    ensure!(refused, "DC without a destination: {result:?}");
    let result = end.qp.post_recv(&[]);
    ensure_eq!(result, Err(verbs::PostRecvError::NoQueue), "receive on an initiator");
    side.meet(&mut end.cq)
}
