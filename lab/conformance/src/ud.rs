//! Datagrams: delivered with their source, or dropped without a trace.

use verbs::{
    Capabilities, CompletionKind, Destination, Mtu, Nic, Op, Payload, PostSendError, QKey,
    QpAddress, QpState, QueuePair, SendRequest, Source, Transport,
};

use crate::{
    data::{SIZES, pattern},
    end::{End, QKEY, Setup, activate, swap_endpoint},
    harness::{Side, Verdict, ensure, ensure_eq, len_u32},
};

/// Area at the start of a receive for the global route header.
const GRH_BYTES: usize = 40;

/// Largest receive of the theme.
const ROOM_BYTES: usize = 8192;

/// A UD queue pair in RTS, and where the other role's is.
fn pair<N: Nic>(side: &mut Side<N>) -> Verdict<(End<N>, QpAddress)> {
    side.needs(Capabilities::UD)?;
    let setup = Setup::of(Transport::Ud);
    let mut end = End::create(side, &setup)?;
    activate(&side.nic, &mut end.qp, &setup)?;
    let theirs = swap_endpoint(side, &end.qp)?;
    Ok((end, theirs))
}

/// Every size up to the MTU, with and without immediate data, after a 40-byte header area.
pub(super) fn datagram_carries_data_and_source<N: Nic>(side: &mut Side<N>) -> Verdict {
    let (mut end, theirs) = pair(side)?;
    let mut buffer = end.buffer(side, ROOM_BYTES)?;
    let mtu = side.swap_mtu()?.bytes();
    let to = Destination::Ud { to: theirs, qkey: QKEY };
    for (nth, len) in SIZES.into_iter().chain([mtu]).filter(|len| *len <= mtu).enumerate() {
        let data = pattern(nth as u64, len);
        let imm = (nth % 2 == 1).then_some(0x7700_0000 | len_u32(nth));
        buffer.clear();
        if side.is_client() {
            side.meet(&mut end.cq)?;
            buffer.write(0, &data);
            let payload = Payload::Gather(&[buffer.sge(0, len)]);
            let wqe = end.send(&SendRequest::signaled(Op::Send { payload, imm }).to(&to))?;
            end.wait_sent(CompletionKind::Send, wqe)?;
        } else {
            let wqe = end.recv(&[buffer.sge(8, GRH_BYTES + len)])?;
            side.meet(&mut end.cq)?;
            let done = end.wait_sent(CompletionKind::Recv, wqe)?;
            ensure_eq!((done.len_bytes, done.imm), (len_u32(len), imm), "datagram");
            let source = done.source.map(|Source { qpn, .. }| qpn);
            ensure_eq!(source, Some(theirs.qpn), "source queue pair");
            if let verbs::PortRoute::Lid(lid) = theirs.address.route {
                ensure_eq!(done.source.map(|source| source.lid), Some(lid), "source port");
            }
            buffer.accept(8, GRH_BYTES);
            buffer.expect(8 + GRH_BYTES, &data);
        }
        buffer.verify()?;
        side.meet(&mut end.cq)?;
    }
    Ok(())
}

/// Without a receive a datagram is lost: the sender notices nothing, later ones arrive.
pub(super) fn datagram_without_a_receive_is_dropped<N: Nic>(side: &mut Side<N>) -> Verdict {
    let (mut end, theirs) = pair(side)?;
    let mut buffer = end.buffer(side, ROOM_BYTES)?;
    let to = Destination::Ud { to: theirs, qkey: QKEY };
    let send = |end: &mut End<N>, data: &[u8]| {
        let payload = Payload::Inline(&[data]);
        let wqe = end.send(&SendRequest::signaled(Op::Send { payload, imm: None }).to(&to))?;
        end.wait_sent(CompletionKind::Send, wqe).map(drop)
    };
    if side.is_client() {
        for _ in 0..100 {
            send(&mut end, b"lost")?;
        }
        side.meet(&mut end.cq)?;
        side.meet(&mut end.cq)?;
        send(&mut end, b"kept")?;
    } else {
        // Datagrams that are still on their way are dropped here too.
        side.meet(&mut end.cq)?;
        end.cq.stays_empty(side.testbed.quiet)?;
        end.recv(&[buffer.sge(0, GRH_BYTES + 4)])?;
        side.meet(&mut end.cq)?;
        end.wait_for(CompletionKind::Recv)?;
        buffer.accept(0, GRH_BYTES);
        buffer.expect(GRH_BYTES, b"kept");
    }
    buffer.verify()?;
    side.meet(&mut end.cq)
}

/// A wrong key and an unknown queue pair are dropped: the receive stays for the right one.
pub(super) fn datagram_with_a_wrong_key_is_dropped<N: Nic>(side: &mut Side<N>) -> Verdict {
    let (mut end, theirs) = pair(side)?;
    let mut buffer = end.buffer(side, ROOM_BYTES)?;
    if side.is_client() {
        side.meet(&mut end.cq)?;
        let keys = [QKey::new(QKEY.get() ^ 1), QKey::new(0), QKEY];
        for (nth, qkey) in keys.into_iter().enumerate() {
            let to = Destination::Ud { to: theirs, qkey };
            let imm = Some(len_u32(nth));
            let payload = Payload::Inline(&[b"data"]);
            let wqe = end.send(&SendRequest::signaled(Op::Send { payload, imm }).to(&to))?;
            end.wait_sent(CompletionKind::Send, wqe)?;
        }
    } else {
        end.recv(&[buffer.sge(0, GRH_BYTES + 4)])?;
        end.recv(&[buffer.sge(100, GRH_BYTES + 4)])?;
        side.meet(&mut end.cq)?;
        let done = end.wait_for(CompletionKind::Recv)?;
        ensure_eq!(done.imm, Some(2), "the datagram with the right key");
        buffer.accept(0, GRH_BYTES);
        buffer.expect(GRH_BYTES, b"data");
        end.cq.stays_empty(side.testbed.quiet)?;
    }
    buffer.verify()?;
    side.meet(&mut end.cq)
}

/// A datagram fits one packet: more is refused, at the latest by an error completion, or dropped in silence, as
/// IBTA C10-93.1.1 wants it.
pub(super) fn datagram_above_the_mtu_is_refused<N: Nic>(side: &mut Side<N>) -> Verdict {
    let (mut end, theirs) = pair(side)?;
    let buffer = end.buffer(side, ROOM_BYTES)?;
    // Adapters take what fits the largest MTU, whatever that of their port is: Linux `drivers/infiniband/hw/mlx5/qp.c`
    // sets `IB_MTU_4096` for UD.
    let len = Mtu::B4096.bytes() + 1;
    if side.is_client() {
        side.meet(&mut end.cq)?;
        let to = Destination::Ud { to: theirs, qkey: QKEY };
        let payload = Payload::Gather(&[buffer.sge(0, len)]);
        let send = SendRequest::signaled(Op::Send { payload, imm: None }).to(&to);
        match end.qp.post_send(&send) {
            Err(PostSendError::Transport { .. }) => {}
            Err(other) => return Err(other.into()),
            Ok(wqe) => {
                end.qp.ring_send();
                let done = end.wait()?;
                ensure_eq!(done.wqe, wqe, "oversized datagram");
                let state = end.qp.state();
                let expected: &[QpState] = match done.failure {
                    Some(_) => &[QpState::Sqe, QpState::Err],
                    None => &[QpState::Rts],
                };
                ensure!(expected.contains(&state), "{state:?} after {done:?}");
            }
        }
    } else {
        end.recv(&[buffer.sge(0, ROOM_BYTES)])?;
        side.meet(&mut end.cq)?;
        end.cq.stays_empty(side.testbed.quiet)?;
    }
    side.meet(&mut end.cq)?;
    buffer.verify()?;
    side.meet(&mut end.cq)
}

/// A receive without room for header and data is not overrun.
pub(super) fn short_receive_is_not_overrun<N: Nic>(side: &mut Side<N>) -> Verdict {
    let (mut end, theirs) = pair(side)?;
    let mut buffer = end.buffer(side, 256)?;
    if side.is_client() {
        side.meet(&mut end.cq)?;
        let to = Destination::Ud { to: theirs, qkey: QKEY };
        let payload = Payload::Inline(&[&[7; 64]]);
        let wqe = end.send(&SendRequest::signaled(Op::Send { payload, imm: None }).to(&to))?;
        end.wait_sent(CompletionKind::Send, wqe)?;
    } else {
        end.recv(&[buffer.sge(0, GRH_BYTES + 63)])?;
        side.meet(&mut end.cq)?;
        // IBTA 10.7.3.1 lets a NIC drop it or complete the receive with a length error.
        for _ in 0..side.rng.below(100) + 100 {
            end.cq.gather();
        }
    }
    side.meet(&mut end.cq)?;
    buffer.accept(0, if side.is_client() { 0 } else { GRH_BYTES + 63 });
    buffer.verify()?;
    side.meet(&mut end.cq)
}

/// UD does SEND and nothing else, and every request names its destination.
pub(super) fn ud_refuses_what_it_cannot_do<N: Nic>(side: &mut Side<N>) -> Verdict {
    let (mut end, theirs) = pair(side)?;
    let buffer = end.buffer(side, 64)?;
    let to = Destination::Ud { to: theirs, qkey: QKEY };
    let remote = buffer.remote(0);
    let into = [buffer.sge(0, 8)];
    let payload = Payload::Gather(&into);
    let word = buffer.sge(0, 8);
    let ops = [
        Op::Write { remote, payload, imm: None },
        Op::Read { remote, into: &into },
        Op::FetchAdd { remote, into: word, add: 1 },
        Op::CompareSwap { remote, into: word, compare: 0, swap: 1 },
    ];
    for op in ops {
        let result = end.qp.post_send(&SendRequest::signaled(op).to(&to));
        let refused = matches!(result, Err(PostSendError::Transport { .. }));
        ensure!(refused, "{op:?} on UD: {result:?}");
    }
    let result = end.qp.post_send(&SendRequest::signaled(Op::Send { payload, imm: None }));
    let refused = matches!(result, Err(PostSendError::Transport { .. }));
    ensure!(refused, "UD without a destination: {result:?}");
    end.qp.ring_send();
    end.cq.stays_empty(side.testbed.quiet)?;
    side.meet(&mut end.cq)
}
