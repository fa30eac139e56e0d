//! Reliable connections: orders, counts, and the effect of a doorbell.

use std::collections::VecDeque;

use verbs::{
    Capabilities, CompletionKind, CqConfig, Nic, Op, Payload, PostSendError, QueuePair, RecvSize,
    SendFlags, SendRequest, SendSize,
};

use crate::{
    data::pattern,
    end::{End, Setup},
    harness::{Side, Verdict, ensure, ensure_eq, len_u32},
};

/// WRITEs, then a SEND: when the SEND's receive completes, all WRITEs are visible.
pub(super) fn write_is_visible_when_a_later_send_completes<N: Nic>(side: &mut Side<N>) -> Verdict {
    const LEN: usize = 6000;
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 4 * LEN)?;
    let remote = side.swap_remote(&buffer)?;
    for round in 0..100 {
        let chunk = |nth: usize| pattern(round * 4 + nth as u64, LEN);
        if side.is_client() {
            for nth in 0..3 {
                buffer.write(nth * LEN, &chunk(nth));
            }
            side.meet(&mut end.cq)?;
            for nth in 0..3 {
                let payload = Payload::Gather(&[buffer.sge(nth * LEN, LEN)]);
                let op = Op::Write { remote: remote.at(nth * LEN), payload, imm: None };
                end.qp.post_send(&SendRequest::unsignaled(op))?;
            }
            let note = Op::Send { payload: Payload::Inline(&[&[1]]), imm: None };
            let wqe = end.send(&SendRequest::signaled(note))?;
            end.wait_sent(CompletionKind::Send, wqe)?;
        } else {
            end.recv(&[buffer.sge(3 * LEN, 1)])?;
            side.meet(&mut end.cq)?;
            end.wait_for(CompletionKind::Recv)?;
            for nth in 0..3 {
                buffer.expect(nth * LEN, &chunk(nth));
            }
            buffer.expect(3 * LEN, &[1]);
            buffer.verify()?;
        }
    }
    side.meet(&mut end.cq)
}

/// The last word of a WRITE is polled: once it is there, everything before it is.
pub(super) fn last_word_of_a_write_arrives_last<N: Nic>(side: &mut Side<N>) -> Verdict {
    const LEN: usize = 4096;
    side.needs(Capabilities::ORDERED_PLACEMENT)?;
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, LEN)?;
    buffer.write(0, &[0; LEN]);
    let remote = side.swap_remote(&buffer)?;
    for round in 1..=500_u64 {
        let mut data = pattern(round, LEN);
        data[LEN - 8..].copy_from_slice(&round.to_ne_bytes());
        side.meet(&mut end.cq)?;
        if side.is_client() {
            buffer.write(0, &data);
            let payload = Payload::Gather(&[buffer.sge(0, LEN)]);
            let op = Op::Write { remote: remote.at(0), payload, imm: None };
            let wqe = end.send(&SendRequest::signaled(op))?;
            end.wait_sent(CompletionKind::Write, wqe)?;
        } else {
            let deadline = side.deadline();
            while buffer.word(LEN - 8) != round {
                ensure!(!deadline.has_passed(), "WRITE {round} did not arrive");
                end.cq.gather();
            }
            buffer.expect(0, &data);
        }
        buffer.verify()?;
    }
    side.meet(&mut end.cq)
}

/// Unsignaled requests report nothing, and the next signaled one completes them all.
pub(super) fn signaled_completion_covers_unsignaled_ones<N: Nic>(side: &mut Side<N>) -> Verdict {
    const CHAIN: usize = 8;
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 8 * CHAIN)?;
    let remote = side.swap_remote(&buffer)?;
    let free_at_start = end.qp.send_free();
    for round in 0..200_u64 {
        side.meet(&mut end.cq)?;
        for nth in 0..CHAIN {
            let word = (round << 8 | nth as u64).to_le_bytes();
            if !side.is_client() {
                buffer.expect(8 * nth, &word);
                continue;
            }
            let payload = Payload::Inline(&[&word]);
            let op = Op::Write { remote: remote.at(8 * nth), payload, imm: None };
            let is_last = nth == CHAIN - 1;
            let flags = if is_last { SendFlags::SIGNALED } else { SendFlags::empty() };
            let wqe = end.send(&SendRequest::unsignaled(op).with(flags))?;
            if is_last {
                end.wait_sent(CompletionKind::Write, wqe)?;
                ensure_eq!(end.qp.send_free(), free_at_start, "room after the chain");
            }
        }
        side.meet(&mut end.cq)?;
        if !side.is_client() {
            buffer.verify()?;
        }
    }
    end.cq.stays_empty(side.testbed.quiet)?;
    side.meet(&mut end.cq)
}

/// A fenced WRITE sends what an earlier READ and an earlier atomic brought.
pub(super) fn fence_waits_for_reads_and_atomics<N: Nic>(side: &mut Side<N>) -> Verdict {
    const LEN: usize = 2048;
    side.needs(Capabilities::ATOMICS)?;
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 3 * LEN)?;
    let remote = side.swap_remote(&buffer)?;
    for round in 0..200 {
        let data = pattern(round, LEN);
        buffer.clear();
        if !side.is_client() {
            buffer.write(0, &data);
            buffer.write(LEN, &round.to_ne_bytes());
        }
        side.meet(&mut end.cq)?;
        if side.is_client() {
            let read = [buffer.sge(0, LEN)];
            let op = Op::Read { remote: remote.at(0), into: &read };
            end.qp.post_send(&SendRequest::unsignaled(op))?;
            let into = buffer.sge(LEN, 8);
            let add = Op::FetchAdd { remote: remote.at(LEN), into, add: 1 };
            end.qp.post_send(&SendRequest::unsignaled(add))?;
            let payload = Payload::Gather(&[buffer.sge(0, LEN + 8)]);
            let back = Op::Write { remote: remote.at(2 * LEN - 8), payload, imm: None };
            let wqe = end.send(&SendRequest::signaled(back).with(SendFlags::FENCE))?;
            end.wait_sent(CompletionKind::Write, wqe)?;
            buffer.expect(0, &data);
            buffer.expect(LEN, &round.to_ne_bytes());
        }
        side.meet(&mut end.cq)?;
        if !side.is_client() {
            buffer.expect(LEN, &(round + 1).to_ne_bytes());
            buffer.expect(2 * LEN - 8, &data);
            buffer.expect(3 * LEN - 8, &round.to_ne_bytes());
        }
        buffer.verify()?;
    }
    side.meet(&mut end.cq)
}

/// Atomics and READs that are outstanding together happen in the order in which they were posted.
///
/// IBTA 10.8.3.3, table 79.
pub(super) fn atomics_keep_their_order<N: Nic>(side: &mut Side<N>) -> Verdict {
    const COUNT: usize = 12;
    side.needs(Capabilities::ATOMICS)?;
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 8 * COUNT)?;
    let remote = side.swap_remote(&buffer)?;
    for round in 0..50u64 {
        // The last is an atomic: its completion comes after those of all before it.
        let is_read = |nth: usize| nth + 1 < COUNT && (round + nth as u64).is_multiple_of(4);
        buffer.clear();
        if !side.is_client() {
            buffer.write(0, &[0; 8]);
        }
        side.meet(&mut end.cq)?;
        if side.is_client() {
            let mut last = 0;
            for nth in 0..COUNT {
                let into = [buffer.sge(8 * nth, 8)];
                let op = if is_read(nth) {
                    Op::Read { remote: remote.at(0), into: &into }
                } else {
                    Op::FetchAdd { remote: remote.at(0), into: into[0], add: 1 }
                };
                let is_last = nth + 1 == COUNT;
                let flags = if is_last { SendFlags::SIGNALED } else { SendFlags::empty() };
                last = end.qp.post_send(&SendRequest::unsignaled(op).with(flags))?;
            }
            end.qp.ring_send();
            end.wait_sent(CompletionKind::FetchAdd, last)?;
        }
        side.meet(&mut end.cq)?;
        let mut added = 0u64;
        for nth in 0..COUNT {
            if side.is_client() {
                buffer.expect(8 * nth, &added.to_ne_bytes());
            }
            added += u64::from(!is_read(nth));
        }
        if !side.is_client() {
            buffer.expect(0, &added.to_ne_bytes());
        }
        buffer.verify()?;
        side.meet(&mut end.cq)?;
    }
    Ok(())
}

/// Posting tells the NIC nothing; one ring starts everything that was posted.
pub(super) fn nothing_happens_before_the_doorbell<N: Nic>(side: &mut Side<N>) -> Verdict {
    const BATCH: usize = 16;
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 8 * BATCH)?;
    let remote = side.swap_remote(&buffer)?;
    if side.is_client() {
        // Ringing without any posted request is harmless.
        end.qp.ring_send();
        for nth in 0..BATCH {
            let word = (nth as u64 + 1).to_le_bytes();
            let payload = Payload::Inline(&[&word]);
            let op = Op::Write { remote: remote.at(8 * nth), payload, imm: None };
            end.qp.post_send(&SendRequest::signaled(op))?;
        }
        end.cq.stays_empty(side.testbed.quiet)?;
    }
    side.meet(&mut end.cq)?;
    buffer.verify()?;
    side.meet(&mut end.cq)?;
    if side.is_client() {
        end.qp.ring_send();
        for _ in 0..BATCH {
            end.wait_for(CompletionKind::Write)?;
        }
    } else {
        for nth in 0..BATCH {
            buffer.expect(8 * nth, &(nth as u64 + 1).to_le_bytes());
        }
    }
    side.meet(&mut end.cq)?;
    buffer.verify()?;
    side.meet(&mut end.cq)
}

/// `total` numbered SENDs through small rings, several in flight, each checked on arrival.
fn stream<N: Nic>(side: &mut Side<N>, end: &mut End<N>, total: u64, batch: usize) -> Verdict {
    const SLOTS: usize = 16;
    const LEN: usize = 16;
    let mut buffer = end.buffer(side, SLOTS * LEN)?;
    let mut posted = VecDeque::new();
    if side.is_client() {
        side.meet(&mut end.cq)?;
        let mut outstanding = VecDeque::new();
        for number in 0..total {
            let data = [number.to_le_bytes(), (!number).to_le_bytes()].concat();
            let op = Op::Send { payload: Payload::Inline(&[&data]), imm: Some(low(number)) };
            while outstanding.len() >= batch {
                let wqe = outstanding.pop_front().unwrap_or_default();
                end.wait_sent(CompletionKind::Send, wqe)?;
            }
            outstanding.push_back(end.send(&SendRequest::signaled(op))?);
        }
        for wqe in outstanding {
            end.wait_sent(CompletionKind::Send, wqe)?;
        }
    } else {
        for slot in 0..SLOTS {
            posted.push_back((slot, end.recv(&[buffer.sge(slot * LEN, LEN)])?));
        }
        side.meet(&mut end.cq)?;
        for number in 0..total {
            let (slot, wqe) = posted.pop_front().unwrap_or_default();
            let done = end.wait_sent(CompletionKind::Recv, wqe)?;
            ensure_eq!(done.imm, Some(low(number)), "messages arrive in order");
            buffer.expect(slot * LEN, &[number.to_le_bytes(), (!number).to_le_bytes()].concat());
            buffer.verify_part(slot * LEN, LEN)?;
            posted.push_back((slot, end.recv(&[buffer.sge(slot * LEN, LEN)])?));
        }
        buffer.verify()?;
    }
    side.meet(&mut end.cq)
}

fn low(number: u64) -> u32 {
    super::harness::low_u32(number)
}

/// Small rings, so that each of them wraps thousands of times.
fn narrow() -> Setup {
    let mut setup = Setup::rc();
    setup.send = SendSize { requests: 16, sges_max: 1, inline_bytes_max: 16 };
    setup.recv = RecvSize { requests: 16, sges_max: 1 };
    setup.cq = CqConfig::new(32);
    setup
}

/// Every batch starts, whatever it is made of: one small request, which a NIC may take from the
/// doorbell itself, one that is too long for that, and several at once.
pub(super) fn pitfall_03_every_batch_rings<N: Nic>(side: &mut Side<N>) -> Verdict {
    const LEN: usize = 200;
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 8 * LEN)?;
    let remote = side.swap_remote(&buffer)?;
    for round in 0..100 {
        let batch = [1, 2, 7][side.rng.below(3)];
        let len = [1, 60, LEN][side.rng.below(3)];
        side.meet(&mut end.cq)?;
        for nth in 0..batch {
            let data = pattern(round << 8 | nth as u64, len);
            if side.is_client() {
                let payload = Payload::Inline(&[&data]);
                let op = Op::Write { remote: remote.at(nth * LEN), payload, imm: None };
                end.qp.post_send(&SendRequest::signaled(op))?;
            } else {
                buffer.expect(nth * LEN, &data);
            }
        }
        end.qp.ring_send();
        for _ in 0..if side.is_client() { batch } else { 0 } {
            end.wait_for(CompletionKind::Write)?;
        }
        side.meet(&mut end.cq)?;
        buffer.verify()?;
    }
    Ok(())
}

/// More than 65,536 requests: every ring and every 16-bit counter wraps, both ways.
pub(super) fn rings_and_16_bit_counters_wrap<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &narrow())?;
    stream(side, &mut end, 70_000, 8)
}

/// The 24-bit consumer index of the CQ wraps. Takes minutes: only if the testbed is `long`.
pub(super) fn cq_index_wraps_at_24_bits<N: Nic>(side: &mut Side<N>) -> Verdict {
    if !side.testbed.long {
        return Err(super::harness::Stop::Skipped("time: `Testbed::long` is not set".into()));
    }
    let mut end = End::connected(side, &narrow())?;
    stream(side, &mut end, (1 << 24) + 5000, 8)
}

/// A full send queue says so, changes nothing, and works again after completions are retired.
pub(super) fn full_send_queue_recovers<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &narrow())?;
    // A word for each: a fabric with adaptive routing places WRITEs that are under way in any order.
    const WORDS: usize = 16;
    let mut buffer = end.buffer(side, 8 * WORDS)?;
    let remote = side.swap_remote(&buffer)?;
    let mut written = 0_u64;
    for _ in 0..50 {
        if !side.is_client() {
            break;
        }
        let before = written;
        loop {
            let word = (written + 1).to_le_bytes();
            let payload = Payload::Inline(&[&word]);
            let place = 8 * usize::try_from(written - before).unwrap_or(0).min(WORDS - 1);
            let op = Op::Write { remote: remote.at(place), payload, imm: None };
            match end.qp.post_send(&SendRequest::signaled(op)) {
                Ok(_) => written += 1,
                Err(PostSendError::QueueFull { requests }) => {
                    ensure_eq!((requests, end.qp.send_free()), (16, 0), "a full queue");
                    break;
                }
                Err(other) => return Err(other.into()),
            }
            ensure!(written - before <= 16, "a queue of 16 takes more than 16 requests");
        }
        ensure_eq!(written - before, 16, "requests that a drained queue of 16 takes");
        end.qp.ring_send();
        for _ in before..written {
            end.wait_for(CompletionKind::Write)?;
        }
    }
    let told = side.swap_polling(&mut end.cq, &[written])?;
    if !side.is_client() {
        let last = told.first().copied().unwrap_or_default();
        for (place, value) in (0..WORDS).map(|at| 8 * at).zip(last.saturating_sub(16) + 1..) {
            ensure_eq!(u64::from_le(buffer.word(place)), value, "a WRITE of the last round");
        }
        buffer.accept(0, 8 * WORDS);
        buffer.verify()?;
    }
    side.meet(&mut end.cq)
}

/// Both sides send at once, deep, and neither waits for the other.
pub(super) fn both_directions_at_once<N: Nic>(side: &mut Side<N>) -> Verdict {
    const TOTAL: usize = 2000;
    const SLOTS: usize = 32;
    const LEN: usize = 512;
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 2 * SLOTS * LEN)?;
    let me = side.role.index() as u64;
    let seed = |who: u64, nth: usize| who << 32 | nth as u64;
    let mut recv = VecDeque::new();
    for slot in 0..SLOTS {
        recv.push_back((slot, end.recv(&[buffer.sge(slot * LEN, LEN)])?));
    }
    side.meet(&mut end.cq)?;
    let mut sent = 0;
    let mut acked = 0;
    let mut received = 0;
    let mut deadline = side.deadline();
    while acked < TOTAL || received < TOTAL {
        ensure!(!deadline.has_passed(), "{sent} sent, {acked} acknowledged, {received} received");
        if sent < TOTAL && sent - acked < SLOTS {
            let at = (SLOTS + sent % SLOTS) * LEN;
            buffer.write(at, &pattern(seed(me, sent), LEN));
            let payload = Payload::Gather(&[buffer.sge(at, LEN)]);
            end.send(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
            sent += 1;
        }
        let Some(done) = end.cq.poll() else {
            std::thread::yield_now();
            continue;
        };
        deadline = side.deadline();
        ensure!(done.failure.is_none(), "{done:?}");
        end.retire(&done);
        if !done.kind.is_receive() {
            acked += 1;
            continue;
        }
        let (slot, wqe) = recv.pop_front().unwrap_or_default();
        ensure_eq!((done.wqe, done.len_bytes), (wqe, len_u32(LEN)), "receive in order");
        buffer.expect(slot * LEN, &pattern(seed(1 - me, received), LEN));
        buffer.verify_part(slot * LEN, LEN)?;
        received += 1;
        recv.push_back((slot, end.recv(&[buffer.sge(slot * LEN, LEN)])?));
    }
    buffer.verify()?;
    side.meet(&mut end.cq)
}
