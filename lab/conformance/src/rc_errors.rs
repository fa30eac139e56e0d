//! Reliable connections: every rule that is broken is reported at the right place, nothing is
//! written, and everything behind it is flushed.
//!
//! Sources: IBTA 9.9 (error classes) and 11.6.2 (completion return status).

use std::time::Duration;

use verbs::{
    Access, Capabilities, CompletionKind, Lkey, MemoryRegion, Nic, Op, Payload, QpState, QueuePair,
    RemoteSlice, Rkey, RtsAttr, SendRequest, Sge, Transition, WcStatus,
};

use crate::{
    data::{Buffer, pattern},
    end::{End, OPEN, Setup},
    harness::{Remote, Side, Verdict, ensure_eq},
};

/// Length of the region under attack.
const TARGET_BYTES: usize = 4096;

/// Requests that are flushed behind a failing one.
const BEHIND: usize = 3;

/// The operation that breaks the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
}

/// A request that the responder has to deny.
#[derive(Clone, Copy, Debug)]
struct Case {
    rule: &'static str,
    attack: Attack,
    /// Added to the address of the target, wrapping.
    offset: u64,
    len: usize,
    /// Flips bits of the key.
    key_xor: u32,
    /// Rights of the region.
    region: Access,
    /// Rights of the responder's queue pair.
    queue_pair: Access,
    /// The region lives in another protection domain than the queue pair.
    foreign: bool,
    status: WcStatus,
    /// Another one that is as right.
    or: Option<WcStatus>,
}

const fn case(rule: &'static str, attack: Attack) -> Case {
    Case {
        rule,
        attack,
        offset: 0,
        len: 8,
        key_xor: 0,
        region: OPEN,
        queue_pair: OPEN,
        foreign: false,
        status: WcStatus::RemoteAccess,
        or: None,
    }
}

/// `OPEN` without one right.
const fn without(right: Access) -> Access {
    OPEN.difference(right)
}

/// Runs `cases`, each on a new connection.
fn deny_all<N: Nic>(side: &mut Side<N>, cases: &[Case]) -> Verdict {
    let atomics = side.has(Capabilities::ATOMICS);
    for case in cases {
        if atomics || !matches!(case.attack, Attack::CompareSwap | Attack::FetchAdd) {
            deny(side, case)?;
        }
    }
    Ok(())
}

fn deny<N: Nic>(side: &mut Side<N>, case: &Case) -> Verdict {
    let setup = Setup { access: case.queue_pair, ..Setup::rc() };
    let mut end = End::connected(side, &setup)?;
    let pd = if case.foreign { side.nic.alloc_pd()? } else { end.pd.clone() };
    let mut target = Buffer::exact(&side.nic, &pd, TARGET_BYTES, case.region)?;
    target.write(0, &pattern(1, TARGET_BYTES));
    let mut local = end.buffer(side, 3 * TARGET_BYTES)?;
    let remote = side.swap_remote(&target)?;
    let waiting = end.recv(&[local.sge(0, 64)])?;
    side.meet(&mut end.cq)?;
    if side.is_client() {
        local.write(TARGET_BYTES, &pattern(2, TARGET_BYTES));
        // The bytes that the target holds already: a fabric with adaptive routing may place WRITEs behind one that fails.
        local.write(2 * TARGET_BYTES, &pattern(1, TARGET_BYTES));
        let nth = if side.has(Capabilities::ORDERED_PLACEMENT) { 1 } else { 2 };
        let wqe = post_attack(&mut end, case, remote, &local)?;
        let mut behind = Vec::new();
        for _ in 0..BEHIND {
            let source = [local.sge(nth * TARGET_BYTES, 8)];
            let payload = Payload::Gather(&source);
            let op = Op::Write { remote: remote.at(0), payload, imm: None };
            behind.push(end.qp.post_send(&SendRequest::unsignaled(op))?);
        }
        end.qp.ring_send();
        let done = end.cq.wait()?;
        let status = done.failure.map(|failure| failure.status);
        let is_right = status == Some(case.status) || status.is_some() && status == case.or;
        let found = (done.kind.is_receive(), done.wqe, is_right);
        ensure_eq!(
            found,
            (false, wqe, true),
            "{}: first completion, {status:?}, of {case:?}",
            case.rule
        );
        end.qp.retire(&done);
        expect_flushed(&mut end, &behind, &[waiting])?;
        end.wait_err(side)?;
    } else if side.has(Capabilities::RESPONDER_ERR) {
        end.wait_err(side)?;
    }
    side.meet(&mut end.cq)?;
    local.verify()?;
    target.verify()?;
    side.meet(&mut end.cq)
}

fn post_attack<N: Nic>(
    end: &mut End<N>,
    case: &Case,
    remote: Remote,
    local: &Buffer<N>,
) -> Verdict<u16> {
    let addr = remote.addr.wrapping_add(case.offset);
    let remote = RemoteSlice { addr, rkey: Rkey::new(remote.rkey.get() ^ case.key_xor) };
    let source = [local.sge(TARGET_BYTES, case.len)];
    let into = [local.sge(0, case.len)];
    let word = local.sge(0, 8);
    let payload = Payload::Gather(&source);
    let op = match case.attack {
        Attack::Write => Op::Write { remote, payload, imm: None },
        Attack::WriteImm => Op::Write { remote, payload, imm: Some(3) },
        Attack::Read => Op::Read { remote, into: &into },
        Attack::CompareSwap => Op::CompareSwap { remote, into: word, compare: 0, swap: 1 },
        Attack::FetchAdd => Op::FetchAdd { remote, into: word, add: 1 },
    };
    // The failure of an unsignaled request has to surface too.
    Ok(end.qp.post_send(&SendRequest::unsignaled(op))?)
}

/// A failure surfaces although nothing was signaled: a queue pair in error never looks idle.
pub(super) fn pitfall_04_unsignaled_failures_surface<N: Nic>(side: &mut Side<N>) -> Verdict {
    let key_xor = 0x5a5a_a500;
    deny(side, &Case { key_xor, ..case("unknown key, unsignaled", Attack::Write) })
}

/// Everything outstanding is flushed, each queue in order, signaled or not, and nothing else
/// completes.
pub(super) fn expect_flushed<N: Nic>(end: &mut End<N>, sends: &[u16], recvs: &[u16]) -> Verdict {
    let mut sends = sends.iter();
    let mut recvs = recvs.iter();
    while sends.len() + recvs.len() > 0 {
        let done = end.wait()?;
        let (name, next) =
            if done.kind.is_receive() { ("receive", recvs.next()) } else { ("send", sends.next()) };
        let found = (Some(done.wqe), done.failure.map(|f| f.status));
        ensure_eq!(found, (next.copied(), Some(WcStatus::Flushed)), "flushed {name}");
    }
    Ok(())
}

/// Keys that name nothing, or another domain's memory.
pub(super) fn wrong_remote_keys_are_denied<N: Nic>(side: &mut Side<N>) -> Verdict {
    use Attack::{CompareSwap, FetchAdd, Read, Write, WriteImm};
    let mut cases = Vec::new();
    for attack in [Write, WriteImm, Read, CompareSwap, FetchAdd] {
        cases.push(Case { key_xor: 0x5a5a_a500, ..case("unknown key", attack) });
        cases.push(Case { key_xor: 1, ..case("stale variant of a key", attack) });
        cases.push(Case { foreign: true, ..case("foreign protection domain", attack) });
    }
    deny_all(side, &cases)
}

/// One byte too far, at either end, and lengths that overflow the address space.
pub(super) fn remote_bounds_are_exact<N: Nic>(side: &mut Side<N>) -> Verdict {
    use Attack::{FetchAdd, Read, Write, WriteImm};
    let end = TARGET_BYTES as u64;
    let mut cases = Vec::new();
    for attack in [Write, WriteImm, Read] {
        let new = case("remote bounds", attack);
        cases.push(Case { offset: u64::MAX, ..new });
        cases.push(Case { offset: end - 7, ..new });
        cases.push(Case { offset: end, len: 1, ..new });
        cases.push(Case { offset: 1, len: TARGET_BYTES, ..new });
        cases.push(Case { offset: end.wrapping_neg(), ..new });
        cases.push(Case { offset: 1 << 63, ..new });
    }
    cases.push(Case { offset: end, ..case("remote bounds", FetchAdd) });
    deny_all(side, &cases)
}

/// The address plus the length wraps around to a valid address.
pub(super) fn remote_length_overflow_is_denied<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let target = Buffer::exact(&side.nic, &end.pd, TARGET_BYTES, OPEN)?;
    let local = end.buffer(side, 64)?;
    let remote = side.swap_remote(&target)?;
    if side.is_client() {
        let payload = Payload::Gather(&[local.sge(0, 64)]);
        let remote = RemoteSlice { addr: u64::MAX - 31, rkey: remote.rkey };
        let op = Op::Write { remote, payload, imm: None };
        let wqe = end.send(&SendRequest::signaled(op))?;
        end.wait_failed(wqe, WcStatus::RemoteAccess)?;
    }
    side.meet(&mut end.cq)?;
    target.verify()?;
    side.meet(&mut end.cq)
}

/// Rights of the region and rights of the queue pair are both needed.
pub(super) fn missing_rights_are_denied<N: Nic>(side: &mut Side<N>) -> Verdict {
    use Attack::{CompareSwap, FetchAdd, Read, Write, WriteImm};
    let rights = [
        (Write, Access::REMOTE_WRITE),
        (WriteImm, Access::REMOTE_WRITE),
        (Read, Access::REMOTE_READ),
        (CompareSwap, Access::REMOTE_ATOMIC),
        (FetchAdd, Access::REMOTE_ATOMIC),
    ];
    let mut cases = Vec::new();
    for (attack, right) in rights {
        cases.push(Case { region: without(right), ..case("right of the region", attack) });
        // IBTA 9.7.4.1: what the queue pair does not support or allow is an invalid request; adapters that look at the
        // rights of queue pair and region together say "remote access error".
        let or = Some(WcStatus::RemoteInvalidRequest);
        let queue_pair = without(right);
        cases.push(Case { queue_pair, or, ..case("right of the queue pair", attack) });
    }
    deny_all(side, &cases)
}

/// Atomics work on aligned words only.
pub(super) fn unaligned_atomics_are_invalid<N: Nic>(side: &mut Side<N>) -> Verdict {
    let status = WcStatus::RemoteInvalidRequest;
    deny_all(
        side,
        &[
            Case { offset: 4, status, ..case("alignment", Attack::CompareSwap) },
            Case { offset: 1, status, ..case("alignment", Attack::FetchAdd) },
        ],
    )
}

/// A SEND longer than the receive: a length error there, an invalid request here.
pub(super) fn too_long_send_fails_at_both_ends<N: Nic>(side: &mut Side<N>) -> Verdict {
    for (room, len) in [(0, 1), (63, 64), (100, 5000)] {
        let mut end = End::connected(side, &Setup::rc())?;
        let mut buffer = end.buffer(side, 8192)?;
        if side.is_client() {
            side.meet(&mut end.cq)?;
            buffer.write(0, &pattern(1, len));
            let payload = Payload::Gather(&[buffer.sge(0, len)]);
            let wqe = end.send(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
            end.wait_failed(wqe, WcStatus::RemoteInvalidRequest)?;
        } else {
            let first = end.recv(&[buffer.sge(64, room)])?;
            let second = end.recv(&[buffer.sge(64, room)])?;
            side.meet(&mut end.cq)?;
            end.wait_recv_failed(first, WcStatus::LocalLength)?;
            expect_flushed(&mut end, &[], &[second])?;
            // The receive's own bytes are undefined now; those behind it are not.
            buffer.accept(64, room);
        }
        end.wait_err(side)?;
        buffer.verify()?;
        side.meet(&mut end.cq)?;
    }
    Ok(())
}

/// An entry of length zero means no bytes, at both ends: not 2 GiB, and no bounds to break.
pub(super) fn pitfall_05_empty_entry_has_no_bytes<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 64)?;
    let first = buffer.sge(0, 4);
    let empty = buffer.sge(8, 0);
    let last = buffer.sge(16, 4);
    if side.is_client() {
        buffer.write(0, b"abcd");
        buffer.write(16, b"efgh");
        side.meet(&mut end.cq)?;
        for sges in [&[empty] as &[Sge], &[empty, empty], &[empty, first, empty, last]] {
            let op = Op::Send { payload: Payload::Gather(sges), imm: None };
            let wqe = end.send(&SendRequest::signaled(op))?;
            end.wait_sent(CompletionKind::Send, wqe)?;
        }
        let op = Op::Send { payload: Payload::Gather(&[first]), imm: None };
        let wqe = end.send(&SendRequest::signaled(op))?;
        end.wait_failed(wqe, WcStatus::RemoteInvalidRequest)?;
    } else {
        end.recv(&[])?;
        end.recv(&[empty])?;
        end.recv(&[empty, last, empty, first])?;
        let short = end.recv(&[empty])?;
        side.meet(&mut end.cq)?;
        for len in [0, 0, 8] {
            let done = end.wait_for(CompletionKind::Recv)?;
            ensure_eq!(done.len_bytes, len, "length of a message with empty entries");
        }
        buffer.expect(16, b"abcd");
        buffer.expect(0, b"efgh");
        end.wait_recv_failed(short, WcStatus::LocalLength)?;
    }
    buffer.verify()?;
    side.meet(&mut end.cq)
}

/// Local keys and bounds are checked before anything leaves.
pub(super) fn local_protection_is_checked<N: Nic>(side: &mut Side<N>) -> Verdict {
    let good = Access::LOCAL_WRITE;
    for nth in 0..5 {
        let mut end = End::connected(side, &Setup::rc())?;
        let mut target = end.buffer(side, 64)?;
        target.write(0, &pattern(3, 64));
        let remote = side.swap_remote(&target)?;
        let other_pd = side.nic.alloc_pd()?;
        let region =
            Buffer::exact(&side.nic, &end.pd, 64, if nth == 3 { Access::empty() } else { good })?;
        let foreign = Buffer::exact(&side.nic, &other_pd, 64, good)?;
        if side.is_client() {
            let whole = region.sge(0, 64);
            let sge = match nth {
                0 => Sge { lkey: Lkey::new(whole.lkey.get() ^ 0x5a5a_a500), ..whole },
                1 => Sge { addr: whole.addr + 1, ..whole },
                2 => Sge { addr: whole.addr - 1, ..whole },
                3 => whole,
                _ => foreign.sge(0, 64),
            };
            // The region of case 3 may be sent from, but not written to.
            let into = [sge];
            let op = if nth == 3 {
                Op::Read { remote: remote.at(0), into: &into }
            } else {
                Op::Write { remote: remote.at(0), payload: Payload::Gather(&into), imm: None }
            };
            let wqe = end.send(&SendRequest::unsignaled(op))?;
            end.wait_failed(wqe, WcStatus::LocalProtection)?;
            end.wait_err(side)?;
        }
        side.meet(&mut end.cq)?;
        target.verify()?;
        region.verify()?;
        side.meet(&mut end.cq)?;
    }
    Ok(())
}

/// A receive buffer with a bad key: the receiver learns why, the sender that it was not its fault.
pub(super) fn bad_receive_buffer_fails_at_both_ends<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let buffer = end.buffer(side, 64)?;
    if side.is_client() {
        side.meet(&mut end.cq)?;
        let payload = Payload::Gather(&[buffer.sge(0, 64)]);
        let wqe = end.send(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
        end.wait_failed(wqe, WcStatus::RemoteOperation)?;
    } else {
        let sge = buffer.sge(0, 64);
        let bad = Sge { lkey: Lkey::new(sge.lkey.get() ^ 0x5a5a_a500), ..sge };
        let wqe = end.recv(&[bad])?;
        side.meet(&mut end.cq)?;
        end.wait_recv_failed(wqe, WcStatus::LocalProtection)?;
    }
    end.wait_err(side)?;
    buffer.verify()?;
    side.meet(&mut end.cq)
}

/// A sender waits for a receive, however late it is posted.
pub(super) fn sender_waits_for_a_late_receive<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 128)?;
    for round in 0..10 {
        let data = pattern(round, 64);
        if side.is_client() {
            let payload = Payload::Inline(&[&data]);
            let wqe = end.send(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
            end.cq.stays_empty(side.testbed.quiet)?;
            side.meet(&mut end.cq)?;
            end.wait_sent(CompletionKind::Send, wqe)?;
        } else {
            side.meet(&mut end.cq)?;
            let wqe = end.recv(&[buffer.sge(32, 64)])?;
            end.wait_sent(CompletionKind::Recv, wqe)?;
            buffer.expect(32, &data);
        }
        buffer.verify()?;
        side.meet(&mut end.cq)?;
    }
    Ok(())
}

/// `rnr_retry` is finite: the sender gives up, and later requests are flushed.
pub(super) fn rnr_retries_run_out<N: Nic>(side: &mut Side<N>) -> Verdict {
    for op_imm in [false, true] {
        let mut setup = Setup::rc();
        setup.rts.rnr_retry = 2;
        let mut end = End::connected(side, &setup)?;
        let buffer = end.buffer(side, 64)?;
        let remote = side.swap_remote(&buffer)?;
        if side.is_client() {
            let payload = Payload::Gather(&[buffer.sge(0, 8)]);
            let op = if op_imm {
                Op::Write { remote: remote.at(0), payload, imm: Some(1) }
            } else {
                Op::Send { payload, imm: None }
            };
            let waiting = end.recv(&[buffer.sge(8, 8)])?;
            let first = end.qp.post_send(&SendRequest::unsignaled(op))?;
            let behind = end.qp.post_send(&SendRequest::unsignaled(Op::Nop))?;
            end.qp.ring_send();
            let done = end.cq.wait()?;
            let found = (done.wqe, done.failure.map(|f| f.status));
            ensure_eq!(found, (first, Some(WcStatus::RnrRetryExceeded)), "first failure");
            end.retire(&done);
            expect_flushed(&mut end, &[behind], &[waiting])?;
            end.wait_err(side)?;
        }
        side.meet(&mut end.cq)?;
        if !op_imm {
            buffer.verify()?;
        }
        side.meet(&mut end.cq)?;
    }
    Ok(())
}

/// The peer's queue pair is gone: every operation ends with "retry exceeded".
pub(super) fn destroyed_peer_exhausts_retries<N: Nic>(side: &mut Side<N>) -> Verdict {
    for nth in 0..3 {
        let mut setup = Setup::rc();
        setup.rts.ack_timeout = Duration::from_millis(1);
        setup.rts.retry_count = 3;
        let mut end = End::connected(side, &setup)?;
        let buffer = end.buffer(side, 64)?;
        let remote = side.swap_remote(&buffer)?;
        if !side.is_client() {
            drop(end.qp);
            side.meet(&mut end.cq)?;
            side.meet(&mut end.cq)?;
            buffer.verify()?;
            continue;
        }
        side.meet(&mut end.cq)?;
        // Attributes are those of the way from RTR to RTS: these would be waited for in vain.
        let ack_timeout = Duration::from_secs(1000);
        end.qp.modify(&Transition::Rts(RtsAttr { ack_timeout, ..setup.rts }))?;
        let into = [buffer.sge(0, 8)];
        let payload = Payload::Gather(&into);
        let op = match nth {
            0 => Op::Send { payload, imm: None },
            1 => Op::Write { remote: remote.at(0), payload, imm: None },
            _ => Op::Read { remote: remote.at(0), into: &into },
        };
        let first = end.qp.post_send(&SendRequest::unsignaled(op))?;
        let behind = end.qp.post_send(&SendRequest::signaled(Op::Nop))?;
        end.qp.ring_send();
        end.wait_failed(first, WcStatus::RetryExceeded)?;
        expect_flushed(&mut end, &[behind], &[])?;
        end.wait_err(side)?;
        side.meet(&mut end.cq)?;
    }
    Ok(())
}

/// Moved to ERR by software: waiting and later requests are flushed, in order.
pub(super) fn error_state_flushes_everything<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let buffer = end.buffer(side, 64)?;
    if side.is_client() {
        // No receive is posted at the peer, so these wait.
        let mut sends = Vec::new();
        for _ in 0..5 {
            let payload = Payload::Gather(&[buffer.sge(0, 64)]);
            sends.push(end.send(&SendRequest::unsignaled(Op::Send { payload, imm: None }))?);
        }
        let mut recvs = Vec::new();
        for _ in 0..5 {
            recvs.push(end.recv(&[buffer.sge(0, 64)])?);
        }
        end.qp.modify(&Transition::Err)?;
        ensure_eq!(end.qp.state(), QpState::Err, "state after ERR was asked for");
        expect_flushed(&mut end, &sends, &recvs)?;
        let send = end.send(&SendRequest::unsignaled(Op::Nop))?;
        let recv = end.recv(&[])?;
        expect_flushed(&mut end, &[send], &[recv])?;
        end.cq.stays_empty(side.testbed.quiet)?;
    }
    side.meet(&mut end.cq)?;
    buffer.verify()?;
    side.meet(&mut end.cq)
}

/// A region is deregistered under fire: requests made afterwards fail, and memory that is
/// allocated afterwards is not hit.
pub(super) fn deregistered_memory_is_not_written<N: Nic>(side: &mut Side<N>) -> Verdict {
    const LEN: usize = 1 << 16;
    for round in 0..10_u64 {
        let mut end = End::connected(side, &Setup::rc())?;
        let mut local = end.buffer(side, LEN)?;
        let target = Buffer::exact(&side.nic, &end.pd, LEN, OPEN)?;
        let remote = side.swap_remote(&target)?;
        if side.is_client() {
            local.write(0, &pattern(round, LEN));
            let mut is_alive = true;
            // Set by the server after it deregistered; until then, and a little longer, fire.
            let write = |end: &mut End<N>| {
                let payload = Payload::Gather(&[local.sge(0, LEN)]);
                let op = Op::Write { remote: remote.at(0), payload, imm: None };
                end.send(&SendRequest::signaled(op))
            };
            // A peer that has used a region once knows it.
            let first = write(&mut end)?;
            end.wait_sent(CompletionKind::Write, first)?;
            side.meet(&mut end.cq)?;
            loop {
                write(&mut end)?;
                let done = end.wait()?;
                if let Some(failure) = done.failure {
                    ensure_eq!(failure.status, WcStatus::RemoteAccess, "failure under fire");
                    is_alive = false;
                    side.hear_polling(&mut end.cq)?;
                    break;
                }
                if side.glance()?.is_some() {
                    break;
                }
            }
            let late = write(&mut end)?;
            let why = if is_alive { WcStatus::RemoteAccess } else { WcStatus::Flushed };
            end.wait_failed(late, why)?;
        } else {
            side.meet(&mut end.cq)?;
            for _ in 0..side.rng.below(2000) {
                end.cq.gather();
            }
            target.into_mr().deregister()?;
            side.tell(&[])?;
            // Whatever this reuses of the old region must not be written.
            let fresh = Buffer::<N>::exact(&side.nic, &end.pd, LEN, OPEN)?;
            side.meet(&mut end.cq)?;
            fresh.verify()?;
            continue;
        }
        side.meet(&mut end.cq)?;
        local.verify()?;
    }
    Ok(())
}
