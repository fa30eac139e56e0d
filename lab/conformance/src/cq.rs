//! Completion queues: shared, sized, overrun, and with payload inside.

use verbs::{
    AsyncEvent, Capabilities, CompletionKind, CompletionQueue, CqConfig, CreateError, Nic, Op,
    Payload, QpConfig, QpState, QueuePair, RecvSize, SendRequest, SendSize, SrqConfig, Transport,
};

use crate::{
    data::pattern,
    end::{End, Setup, Watched, connect, create_qp},
    harness::{Side, Stop, Verdict, ensure, ensure_eq, len_u32},
};

/// Four queue pairs, both directions, one CQ: every completion names its queue pair, and each
/// queue pair's completions are in order.
pub(super) fn shared_cq_attributes_every_completion<N: Nic>(side: &mut Side<N>) -> Verdict {
    const QPS: usize = 4;
    const TOTAL: usize = 300;
    let mut setup = Setup::rc();
    setup.send = SendSize { requests: 16, sges_max: 1, inline_bytes_max: 16 };
    setup.recv = RecvSize { requests: 16, sges_max: 1 };
    let pd = side.nic.alloc_pd()?;
    let mut cq = Watched::new(side, &setup.cq, None)?;
    let mut qps = Vec::new();
    for _ in 0..QPS {
        let mut qp = create_qp(&side.nic, &pd, &cq.cq, None, &setup)?;
        connect(side, &mut qp, &setup)?;
        qps.push(qp);
    }
    let mut posted = [0; QPS];
    for (nth, qp) in qps.iter_mut().enumerate() {
        for _ in 0..16 {
            ensure_eq!(usize::from(qp.post_recv(&[])?), posted[nth], "receive index");
            posted[nth] += 1;
        }
        qp.ring_recv();
    }
    side.meet(&mut cq)?;
    let mut sent = [0; QPS];
    let mut acked = [0; QPS];
    let mut received = [0; QPS];
    let mut deadline = side.deadline();
    while acked != [TOTAL; QPS] || received != [TOTAL; QPS] {
        ensure!(!deadline.has_passed(), "{sent:?} sent, {acked:?} done, {received:?} received");
        for (nth, qp) in qps.iter_mut().enumerate() {
            if sent[nth] < TOTAL && sent[nth] - acked[nth] < 8 {
                let imm = Some(len_u32(nth << 16 | sent[nth]));
                let op = Op::Send { payload: Payload::Gather(&[]), imm };
                qp.post_send(&SendRequest::signaled(op))?;
                qp.ring_send();
                sent[nth] += 1;
            }
        }
        let Some(done) = cq.poll() else {
            std::thread::yield_now();
            continue;
        };
        deadline = side.deadline();
        ensure!(done.failure.is_none(), "{done:?}");
        let Some(nth) = qps.iter().position(|qp| qp.qpn() == done.qpn) else {
            return Err(Stop::violation(format!("{done:?}: unknown queue pair")));
        };
        qps[nth].retire(&done);
        if !done.kind.is_receive() {
            acked[nth] += 1;
            continue;
        }
        ensure_eq!(done.imm, Some(len_u32(nth << 16 | received[nth])), "order at {nth}");
        received[nth] += 1;
        qps[nth].post_recv(&[])?;
        qps[nth].ring_recv();
    }
    side.meet(&mut cq)
}

/// Queues whose completions might not fit are refused, unless that is asked for. An SRQ counts
/// with all its buffers.
pub(super) fn pitfall_14_cq_holds_what_can_complete_into_it<N: Nic>(side: &mut Side<N>) -> Verdict {
    side.needs(Capabilities::CQ_ACCOUNTING)?;
    if !side.is_client() {
        return Ok(());
    }
    let nic = &side.nic;
    let pd = nic.alloc_pd()?;
    let refused = |result: Result<N::Qp, CreateError>, what: &str| match result {
        Err(CreateError::CqTooSmall { entries, needed, .. }) if entries < needed => Ok(()),
        Err(other) => Err(Stop::violation(format!("{what}: {other}"))),
        Ok(_) => Err(Stop::violation(format!("{what}: was created"))),
    };
    let try_qp = |cq: &N::Cq, srq: Option<&N::Srq>| {
        // 64 sends and 64 receives.
        let mut config = QpConfig::<N>::new(Transport::Rc, cq);
        config.srq = srq;
        nic.create_qp(&pd, &config)
    };
    let small = nic.create_cq(&CqConfig::new(64), None)?;
    refused(try_qp(&small, None), "128 completions in 64 entries")?;
    let loose = nic.create_cq(&CqConfig { allow_overcommit: true, ..CqConfig::new(64) }, None)?;
    try_qp(&loose, None)?;
    let exact = nic.create_cq(&CqConfig::new(128), None)?;
    let first = try_qp(&exact, None)?;
    refused(try_qp(&exact, None), "256 completions in 128 entries")?;
    drop(first);
    drop(try_qp(&exact, None)?);
    if side.has(Capabilities::SRQ) {
        let srq = nic.create_srq(&pd, &SrqConfig { entries: 512, sges_max: 1 })?;
        let medium = nic.create_cq(&CqConfig::new(256), None)?;
        refused(try_qp(&medium, Some(&srq)), "an SRQ of 512 into 256 entries")?;
    }
    Ok(())
}

/// A CQ that overruns is dead: that is reported, its queue pairs stop, polling it ends, and
/// everything else on the NIC goes on.
pub(super) fn overrun_is_reported_and_contained<N: Nic>(side: &mut Side<N>) -> Verdict {
    const SENDS: usize = 64;
    side.needs(Capabilities::CQ_OVERRUN_EVENT)?;
    let mut setup = Setup::rc();
    let mut healthy = End::connected(side, &setup)?;
    if side.is_client() {
        let mut end = End::connected(side, &setup)?;
        side.meet(&mut healthy.cq)?;
        let send = Op::Send { payload: Payload::Gather(&[]), imm: None };
        for _ in 0..SENDS {
            end.qp.post_send(&SendRequest::unsignaled(send))?;
        }
        end.qp.ring_send();
        // Whether these complete or fail is the responder's affair; this side stays usable.
        side.hear_polling(&mut end.cq)?;
    } else {
        setup.cq = CqConfig { allow_overcommit: true, ..CqConfig::new(4) };
        let mut end = End::connected(side, &setup)?;
        for _ in 0..SENDS {
            end.qp.post_recv(&[])?;
        }
        end.qp.ring_recv();
        let dead = end.cq.cq.cqn();
        let entries = end.cq.cq.entries();
        ensure!(entries < len_u32(SENDS), "a CQ of 4 has {entries} entries");
        side.meet(&mut healthy.cq)?;
        let deadline = side.deadline();
        loop {
            ensure!(!deadline.has_passed(), "no CqOverrun event");
            // The dead queue is not polled: another one keeps the NIC going.
            healthy.cq.gather();
            if side.nic.poll_event() == Some(AsyncEvent::CqOverrun(dead)) {
                break;
            }
            std::thread::yield_now();
        }
        while end.qp.state() != QpState::Err {
            ensure!(!deadline.has_passed(), "queue pair is {:?}, not ERR", end.qp.state());
            healthy.cq.gather();
        }
        let left = (0..=entries).filter_map(|_| end.cq.cq.poll()).count();
        ensure!(left <= usize::try_from(entries).unwrap_or(0), "more than {entries} were kept");
        side.tell(&[])?;
    }
    ping(side, &mut healthy)?;
    side.meet(&mut healthy.cq)
}

/// One message each way.
pub(super) fn ping<N: Nic>(side: &mut Side<N>, end: &mut End<N>) -> Verdict {
    const LEN: usize = 200;
    let mut buffer = end.buffer(side, 2 * LEN)?;
    let me = side.role.index() as u64;
    buffer.write(0, &pattern(me, LEN));
    end.recv(&[buffer.sge(LEN, LEN)])?;
    side.meet(&mut end.cq)?;
    let payload = Payload::Gather(&[buffer.sge(0, LEN)]);
    end.send(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
    for _ in 0..2 {
        let done = end.wait()?;
        ensure!(done.failure.is_none(), "{done:?}");
    }
    buffer.expect(LEN, &pattern(1 - me, LEN));
    buffer.verify()?;
    side.meet(&mut end.cq)
}

/// More round trips than the queue has entries: its ring wraps.
pub(super) fn rings_of_completions_wrap<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    for _ in 0..200 {
        ping(side, &mut end)?;
    }
    Ok(())
}

/// Small payloads may arrive inside the completion, larger ones in the buffer; either way every
/// byte arrives exactly once, and nothing else changes.
pub(super) fn small_payload_may_come_in_the_completion<N: Nic>(side: &mut Side<N>) -> Verdict {
    let inside_max = usize::from(side.nic.attributes().cqe_payload_bytes_max);
    if inside_max == 0 {
        return Err(Stop::Skipped("payload in completions".into()));
    }
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 8192)?;
    let mut was_inside = false;
    for round in 0..2 {
        for len in [0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 220, 4096] {
            let data = pattern(len as u64 + 7 * round, len);
            buffer.clear();
            if side.is_client() {
                side.meet(&mut end.cq)?;
                buffer.write(3, &data);
                let payload = Payload::Gather(&[buffer.sge(3, len)]);
                end.send(&SendRequest::signaled(Op::Send { payload, imm: Some(9) }))?;
                end.wait_for(CompletionKind::Send)?;
            } else {
                // In the second round the buffer has two pieces.
                let cut = if round == 0 { len } else { len / 2 };
                let pieces = [buffer.sge(5, cut), buffer.sge(5 + cut, len - cut)];
                end.recv(&pieces)?;
                side.meet(&mut end.cq)?;
                let done = end.wait_for(CompletionKind::Recv)?;
                ensure_eq!((done.len_bytes, done.imm), (len_u32(len), Some(9)), "message");
                if done.in_cqe {
                    ensure!(len <= inside_max, "{len} B inside a completion");
                    ensure_eq!(done.inline, data, "payload inside a completion");
                    was_inside = true;
                } else {
                    buffer.expect(5, &data);
                }
            }
            buffer.verify()?;
            side.meet(&mut end.cq)?;
        }
    }
    ensure!(side.is_client() || was_inside, "no payload ever came inside a completion");
    scattered_read(side, &mut end)
}

/// READ results may come inside the completion too.
fn scattered_read<N: Nic>(side: &mut Side<N>, end: &mut End<N>) -> Verdict {
    let mut buffer = end.buffer(side, 512)?;
    let remote = side.swap_remote(&buffer)?;
    for len in [1, 8, 32, 33, 64, 65, 256] {
        let data = pattern(len as u64, len);
        buffer.clear();
        if side.is_client() {
            side.meet(&mut end.cq)?;
            let into = [buffer.sge(9, len)];
            end.send(&SendRequest::signaled(Op::Read { remote: remote.at(1), into: &into }))?;
            let done = end.wait_for(CompletionKind::Read)?;
            if done.in_cqe {
                ensure_eq!(done.inline, data, "READ result inside a completion");
            } else {
                buffer.expect(9, &data);
            }
        } else {
            buffer.write(1, &data);
            side.meet(&mut end.cq)?;
        }
        buffer.verify()?;
        side.meet(&mut end.cq)?;
    }
    Ok(())
}
