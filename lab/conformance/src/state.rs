//! Queue-pair states: which arrows exist, what may be posted where, and what survives them.

use verbs::{
    Capabilities, CompletionKind, InitAttr, LinkLayer, ModifyError, Nic, Op, Payload, PortRoute,
    PostRecvError, PostSendError, Psn, QpState, QueuePair, RcPeer, RnrTimer, RtrAttr, RtsAttr,
    SendRequest, Transition, Transport,
};

use crate::{
    data::pattern,
    end::{End, INLINE_BYTES_MAX, OPEN, QKEY, Setup, connect},
    harness::{Side, Verdict, ensure, ensure_eq},
};

/// Peers find the port by what its attributes name, and each handle names the same.
pub(super) fn port_is_addressed_as_it_is_described<N: Nic>(side: &mut Side<N>) -> Verdict {
    let port = side.nic.port();
    ensure!(port.number > 0, "ports are numbered from 1");
    ensure_eq!(side.nic.clone().port(), port, "port of another handle");
    match (port.link, side.nic.address().route) {
        (LinkLayer::InfiniBand, PortRoute::Lid(lid)) => ensure_eq!(lid, port.lid, "LID"),
        (LinkLayer::InfiniBand, PortRoute::Global(lid, route)) => {
            ensure_eq!((lid, route.gid), (port.lid, port.gid), "LID and GID");
        }
        (LinkLayer::Ethernet, PortRoute::Gid(route)) => ensure_eq!(route.gid, port.gid, "GID"),
        (link, route) => ensure!(false, "{link:?} has no route {route:?}"),
    }
    Ok(())
}

/// A well-formed request for every state that software can ask for.
fn requests<N: Nic>(side: &Side<N>, end: &End<N>) -> [Transition; 6] {
    let here = side.nic.endpoint(&end.qp);
    let itself = RcPeer { qpn: here.qpn, address: here.address, rq_psn: Psn::default() };
    let access = OPEN.of_queue_pairs(side.nic.attributes().capabilities);
    let rtr = RtrAttr {
        path_mtu: side.nic.port().mtu,
        peer: (end.qp.transport() == Transport::Rc).then_some(itself),
        rnr_timer: RnrTimer::at_least(core::time::Duration::ZERO),
        reads_in_max: 1,
    };
    [
        Transition::Reset,
        Transition::Init(InitAttr { access, qkey: QKEY }),
        Transition::Rtr(rtr),
        Transition::Rts(RtsAttr { reads_out_max: 1, ..RtsAttr::default() }),
        Transition::Sqd,
        Transition::Err,
    ]
}

/// Brings `end` from anywhere to `state`.
fn bring_to<N: Nic>(side: &Side<N>, end: &mut End<N>, state: QpState) -> Verdict {
    let [reset, init, rtr, rts, sqd, err] = requests(side, end);
    let path: &[Transition] = match state {
        QpState::Reset => &[reset],
        QpState::Init => &[reset, init],
        QpState::Rtr => &[reset, init, rtr],
        QpState::Rts => &[reset, init, rtr, rts],
        QpState::Sqd => &[reset, init, rtr, rts, sqd],
        QpState::Err | QpState::Sqe => &[reset, init, err],
    };
    for step in path {
        end.qp.modify(step)?;
    }
    Ok(())
}

/// A test that was written for another NIC would skip what this one can do, or fail for want of it.
pub(super) fn capabilities_are_what_the_testbed_says<N: Nic>(side: &mut Side<N>) -> Verdict {
    let claimed = side.nic.attributes().capabilities;
    ensure_eq!(claimed, Capabilities::all() - side.testbed.absent, "capabilities");
    let attributes = side.nic.attributes();
    let limits = [
        ("cqes_max", attributes.cqes_max),
        ("requests_max", attributes.requests_max),
        ("sges_max", attributes.sges_max.into()),
        ("message_bytes_max", attributes.message_bytes_max),
        ("reads_max", attributes.reads_max.into()),
    ];
    for (what, limit) in limits {
        ensure!(limit > 0, "`{what}` is 0");
    }
    Ok(())
}

/// Every pair of states: allowed arrows work, the others are refused and change nothing.
pub(super) fn only_the_arrows_of_the_table_exist<N: Nic>(side: &mut Side<N>) -> Verdict {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd};
    if !side.is_client() {
        return Ok(());
    }
    let has_sqd = side.has(Capabilities::SQD);
    let none = Capabilities::empty();
    let transports = [
        (Transport::Rc, none),
        (Transport::Ud, Capabilities::UD),
        (Transport::Dci, Capabilities::DC),
    ];
    for (transport, needed) in transports {
        if !side.has(needed) {
            continue;
        }
        let mut end = End::create(side, &Setup::of(transport))?;
        for from in [Reset, Init, Rtr, Rts, Sqd, Err] {
            for request in requests(side, &end) {
                let to = request.target();
                let can_be = |state| state != Sqd || has_sqd && transport != Transport::Dci;
                if !can_be(from) || !has_sqd && to == Sqd {
                    continue;
                }
                bring_to(side, &mut end, from)?;
                ensure_eq!(end.qp.state(), from, "{transport:?} state");
                let result = end.qp.modify(&request);
                if from.may_become(to, transport) {
                    ensure!(result.is_ok(), "{transport:?} {from:?} to {to:?}: {result:?}");
                    ensure_eq!(end.qp.state(), to, "{transport:?} state after {from:?} to {to:?}");
                } else {
                    let refused = Result::Err(ModifyError::WrongTransition { transport, from, to });
                    ensure_eq!(result, refused, "{transport:?} {from:?} to {to:?}");
                    ensure_eq!(end.qp.state(), from, "state after a refused transition");
                }
            }
        }
    }
    Ok(())
}

/// Sends need RTS, receives INIT.
pub(super) fn posting_too_early_is_refused<N: Nic>(side: &mut Side<N>) -> Verdict {
    use QpState::{Init, Reset, Rtr, Rts};
    if !side.is_client() {
        return Ok(());
    }
    let mut end = End::create(side, &Setup::rc())?;
    let send = SendRequest::unsignaled(Op::Nop);
    for state in [Reset, Init, Rtr] {
        bring_to(side, &mut end, state)?;
        ensure_eq!(end.qp.post_send(&send), Err(PostSendError::State(state)), "send in {state:?}");
    }
    bring_to(side, &mut end, Reset)?;
    ensure_eq!(end.qp.post_recv(&[]), Err(PostRecvError::State(Reset)), "receive in RESET");
    for state in [Init, Rtr, Rts] {
        bring_to(side, &mut end, state)?;
        ensure!(end.qp.post_recv(&[]).is_ok(), "receive in {state:?} is refused");
    }
    Ok(())
}

/// A request that does not fit its transport or its queue is refused, and nothing is queued.
pub(super) fn malformed_requests_are_refused<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let buffer = end.buffer(side, 64)?;
    let remote = side.swap_remote(&buffer)?.at(0);
    let free = end.qp.send_free();
    if side.is_client() {
        let into = buffer.sge(0, 4);
        let result =
            end.qp.post_send(&SendRequest::signaled(Op::FetchAdd { remote, into, add: 1 }));
        ensure_eq!(result, Err(PostSendError::AtomicLength(4)), "atomic into 4 bytes");
        let many = vec![buffer.sge(0, 1); 300];
        let payload = Payload::Gather(&many);
        let result = end.qp.post_send(&SendRequest::signaled(Op::Send { payload, imm: None }));
        ensure!(
            matches!(result, Err(PostSendError::TooManySges { asked: 300, .. })),
            "300 entries: {result:?}"
        );
        let bytes = [0; INLINE_BYTES_MAX as usize + 1];
        let payload = Payload::Inline(&[&bytes]);
        let result = end.qp.post_send(&SendRequest::signaled(Op::Send { payload, imm: None }));
        let asked_bytes = bytes.len();
        let max_bytes = INLINE_BYTES_MAX;
        let refused = Err(PostSendError::InlineTooLong { asked_bytes, max_bytes });
        ensure_eq!(result, refused, "more inline bytes than the queue takes");
        let result = end.qp.post_recv(&many);
        let refused = matches!(result, Err(PostRecvError::TooManySges { asked: 300, .. }));
        ensure!(refused, "receive with 300 entries: {result:?}");
        let here = side.nic.endpoint(&end.qp);
        let ud = verbs::Destination::Ud { to: here, qkey: QKEY };
        let result = end.qp.post_send(&SendRequest::signaled(Op::Nop).to(&ud));
        let refused = matches!(result, Err(PostSendError::Transport { .. }));
        ensure!(refused, "RC request with a destination: {result:?}");
        ensure_eq!(end.qp.send_free(), free, "room after refusals");
        end.qp.ring_send();
        end.cq.stays_empty(side.testbed.quiet)?;
    }
    side.meet(&mut end.cq)?;
    buffer.verify()?;
    side.meet(&mut end.cq)
}

/// A full receive queue says so, and takes more after a completion is retired.
pub(super) fn full_receive_queue_recovers<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let mut posted = 0;
    if !side.is_client() {
        let refused = loop {
            match end.recv(&[]) {
                Ok(_) => posted += 1,
                Err(stop) => break stop,
            }
            ensure!(posted <= 64, "a queue of 64 takes more than 64 receives");
        };
        ensure!(posted == 64, "a queue of 64 takes {posted} receives: {refused}");
        let result = end.qp.post_recv(&[]);
        ensure_eq!(result, Err(PostRecvError::QueueFull { requests: 64 }), "65th receive");
    }
    side.meet(&mut end.cq)?;
    let send = Op::Send { payload: Payload::Gather(&[]), imm: None };
    if side.is_client() {
        end.send(&SendRequest::signaled(send))?;
        end.wait_for(CompletionKind::Send)?;
    } else {
        end.wait_for(CompletionKind::Recv)?;
        end.recv(&[])?;
    }
    side.meet(&mut end.cq)
}

/// SQD starts no new send; RTS goes on where it stopped. Receiving is not affected.
pub(super) fn sqd_holds_sends_until_rts<N: Nic>(side: &mut Side<N>) -> Verdict {
    side.needs(Capabilities::SQD)?;
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 64)?;
    let remote = side.swap_remote(&buffer)?;
    if side.is_client() {
        let waiting = end.recv(&[])?;
        end.qp.modify(&Transition::Sqd)?;
        let word = pattern(4, 8);
        let payload = Payload::Inline(&[&word]);
        let op = Op::Write { remote: remote.at(0), payload, imm: None };
        let wqe = end.send(&SendRequest::signaled(op))?;
        end.cq.stays_empty(side.testbed.quiet)?;
        side.meet(&mut end.cq)?;
        end.wait_sent(CompletionKind::Recv, waiting)?;
        side.meet(&mut end.cq)?;
        end.qp.modify(&Transition::Rts(Setup::rc().rts))?;
        end.qp.ring_send();
        end.wait_sent(CompletionKind::Write, wqe)?;
    } else {
        side.meet(&mut end.cq)?;
        buffer.verify()?;
        let op = Op::Send { payload: Payload::Gather(&[]), imm: None };
        end.send(&SendRequest::signaled(op))?;
        end.wait_for(CompletionKind::Send)?;
        side.meet(&mut end.cq)?;
        buffer.expect(0, &pattern(4, 8));
    }
    side.meet(&mut end.cq)?;
    buffer.verify()?;
    side.meet(&mut end.cq)
}

/// RESET forgets everything, unpolled completions included, and the queue pair works
/// again after the next connection.
pub(super) fn reset_queue_pair_is_reusable<N: Nic>(side: &mut Side<N>) -> Verdict {
    let setup = Setup::rc();
    let mut end = End::create(side, &setup)?;
    let mut buffer = end.buffer(side, 1024)?;
    let free = end.qp.send_free();
    for round in 0..5 {
        connect(side, &mut end.qp, &setup)?;
        let data = pattern(round, 512);
        if side.is_client() {
            side.meet(&mut end.cq)?;
            buffer.write(0, &data);
            let payload = Payload::Gather(&[buffer.sge(0, 512)]);
            let wqe = end.send(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
            end.wait_sent(CompletionKind::Send, wqe)?;
            // One that completes unseen, and one that waits for a receive that is never posted.
            end.send(&SendRequest::signaled(Op::Nop))?;
            end.send(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
            end.qp.modify(&Transition::Reset)?;
            end.cq.stays_empty(side.testbed.quiet)?;
        } else {
            let wqe = end.recv(&[buffer.sge(100, 600)])?;
            side.meet(&mut end.cq)?;
            end.wait_sent(CompletionKind::Recv, wqe)?;
            buffer.expect(100, &data);
        }
        buffer.verify()?;
        side.meet(&mut end.cq)?;
        end.qp.modify(&Transition::Reset)?;
        ensure_eq!(end.qp.state(), QpState::Reset, "state");
        ensure_eq!(end.qp.send_free(), free, "room after RESET");
        end.cq.stays_empty(side.testbed.quiet)?;
        side.meet(&mut end.cq)?;
    }
    Ok(())
}

/// Dropping a queue pair forgets everything, too; its completion queue lives on.
pub(super) fn dropped_queue_pair_completes_nothing<N: Nic>(side: &mut Side<N>) -> Verdict {
    for _ in 0..5 {
        let mut end = End::connected(side, &Setup::rc())?;
        side.meet(&mut end.cq)?;
        if side.is_client() {
            // One that completes unseen, one that waits for a receive that is never posted, and a
            // receive that waits for a message.
            let send = Op::Send { payload: Payload::Gather(&[]), imm: None };
            end.recv(&[])?;
            end.send(&SendRequest::signaled(Op::Nop))?;
            end.send(&SendRequest::signaled(send))?;
            drop(end.qp);
            end.cq.stays_empty(side.testbed.quiet)?;
        }
        side.meet(&mut end.cq)?;
    }
    Ok(())
}
