//! Shared receive queues: every message in a buffer of its own, of any sender.

use std::collections::BTreeMap;

use verbs::{
    Capabilities, CompletionKind, CqConfig, Nic, Op, Payload, QueuePair, SendRequest,
    SharedReceiveQueue, SrqConfig, Transition, WcStatus,
};

use crate::{
    data::{Buffer, pattern},
    end::{Done, End, OPEN, Setup, Watched, connect, create_qp},
    harness::{Side, Stop, Verdict, ensure, ensure_eq, low_u32},
};

/// Buffers of a shared receive queue, and which of them is posted under which index.
pub(super) struct Pool<N: Nic> {
    pub(super) srq: N::Srq,
    buffer: Buffer<N>,
    slot_bytes: usize,
    posted: BTreeMap<u16, usize>,
}

impl<N: Nic> Pool<N> {
    /// `slots` posted buffers of `slot_bytes` each.
    #[track_caller]
    pub(super) fn filled(
        side: &Side<N>,
        pd: &N::Pd,
        slots: usize,
        slot_bytes: usize,
    ) -> Verdict<Self> {
        let entries = u32::try_from(slots).map_err(|_| Stop::violation("too many slots"))?;
        let srq = side.nic.create_srq(pd, &SrqConfig { entries, sges_max: 1 })?;
        let buffer = Buffer::new(&side.nic, pd, slots * slot_bytes, OPEN)?;
        let mut pool = Self { srq, buffer, slot_bytes, posted: BTreeMap::new() };
        for slot in 0..slots {
            pool.post(slot)?;
        }
        Ok(pool)
    }

    /// Posts `slot` and rings.
    #[track_caller]
    pub(super) fn post(&mut self, slot: usize) -> Verdict {
        let sge = self.buffer.sge(slot * self.slot_bytes, self.slot_bytes);
        let wqe = self.srq.post(&[sge])?;
        self.srq.ring();
        let before = self.posted.insert(wqe, slot);
        ensure!(before.is_none(), "index {wqe} is posted twice");
        Ok(())
    }

    /// The slot that `done` used; checks that it holds exactly `data`.
    #[track_caller]
    pub(super) fn land(&mut self, done: &Done, data: &[u8]) -> Verdict<usize> {
        ensure!(done.failure.is_none() && done.kind == CompletionKind::Recv, "{done:?}");
        let Some(slot) = self.posted.remove(&done.wqe) else {
            return Err(Stop::violation(format!("{done:?}: that buffer is not posted")));
        };
        self.buffer.expect(slot * self.slot_bytes, data);
        self.buffer.verify_part(slot * self.slot_bytes, self.slot_bytes)?;
        Ok(slot)
    }

    /// As [`land`](Self::land), then posts the buffer again.
    #[track_caller]
    pub(super) fn land_and_repost(&mut self, done: &Done, data: &[u8]) -> Verdict {
        let slot = self.land(done, data)?;
        self.srq.retire(done);
        self.post(slot)
    }

    /// Posts the buffer of a failed receive again.
    #[track_caller]
    pub(super) fn recycle(&mut self, done: &Done) -> Verdict {
        let Some(slot) = self.posted.remove(&done.wqe) else {
            return Err(Stop::violation(format!("{done:?}: that buffer is not posted")));
        };
        self.srq.retire(done);
        self.post(slot)
    }

    /// Nothing outside the buffers was written, whatever is inside.
    #[track_caller]
    pub(super) fn verify_guards(&mut self) -> Verdict {
        self.buffer.accept(0, self.buffer.len());
        self.buffer.verify()
    }

    /// Nothing outside the messages was written.
    #[track_caller]
    pub(super) fn verify(&self) -> Verdict {
        self.buffer.verify()
    }
}

/// Message `number` of sender `who`.
pub(super) fn message(who: usize, number: u64, len_bytes: usize) -> Vec<u8> {
    pattern((who as u64) << 48 | number, len_bytes)
}

/// An SRQ of 8, thousands of messages with payload, buffers given back in random order: each
/// message lies in its own buffer. (A driver that does not chain the entries uses one for all.)
pub(super) fn pitfall_01_each_srq_message_has_its_own_buffer<N: Nic>(
    side: &mut Side<N>,
) -> Verdict {
    const TOTAL: u64 = 4000;
    const LEN: usize = 96;
    side.needs(Capabilities::SRQ)?;
    let setup = Setup::rc();
    if side.is_client() {
        let mut end = End::connected(side, &setup)?;
        for number in 0..TOTAL {
            let data = message(0, number, LEN);
            let payload = Payload::Inline(&[&data]);
            end.send_when_free(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
        }
        return side.meet(&mut end.cq);
    }
    let pd = side.nic.alloc_pd()?;
    let mut pool = Pool::filled(side, &pd, 8, LEN)?;
    let mut cq = Watched::new(side, &setup.cq, None)?;
    let mut qp = create_qp(&side.nic, &pd, &cq.cq, Some(&pool.srq), &setup)?;
    connect(side, &mut qp, &setup)?;
    let mut held = Vec::new();
    for number in 0..TOTAL {
        let done = cq.wait()?;
        let slot = pool.land(&done, &message(0, number, LEN))?;
        held.push((done, slot));
        // Up to seven buffers stay out; they come back in any order.
        if held.len() == 7 || side.rng.below(3) == 0 {
            side.rng.shuffle(&mut held);
            let keep = side.rng.below(held.len());
            for (done, slot) in held.drain(keep..) {
                pool.srq.retire(&done);
                pool.post(slot)?;
            }
        }
    }
    pool.verify()?;
    side.meet(&mut cq)
}

/// Four queue pairs draw from one SRQ; each sender's messages keep their order.
pub(super) fn srq_serves_several_queue_pairs<N: Nic>(side: &mut Side<N>) -> Verdict {
    const QPS: usize = 4;
    const TOTAL: u64 = 500;
    const LEN: usize = 64;
    side.needs(Capabilities::SRQ)?;
    let mut setup = Setup::rc();
    setup.cq = CqConfig { allow_overcommit: true, ..CqConfig::new(1024) };
    let pd = side.nic.alloc_pd()?;
    let mut pool = Pool::filled(side, &pd, 16, LEN)?;
    let mut cq = Watched::new(side, &setup.cq, None)?;
    let mut qps = Vec::new();
    for _ in 0..QPS {
        let mut qp = create_qp(&side.nic, &pd, &cq.cq, Some(&pool.srq), &setup)?;
        connect(side, &mut qp, &setup)?;
        qps.push(qp);
    }
    if side.is_client() {
        for number in 0..TOTAL {
            for (who, qp) in qps.iter_mut().enumerate() {
                let data = message(who, number, LEN);
                let payload = Payload::Inline(&[&data]);
                let imm = Some(low_u32(number));
                qp.post_send(&SendRequest::signaled(Op::Send { payload, imm }))?;
                qp.ring_send();
            }
            for _ in 0..QPS {
                let done = cq.wait()?;
                ensure!(done.failure.is_none(), "{done:?}");
                let owner = qps.iter_mut().find(|qp| qp.qpn() == done.qpn);
                owner.ok_or_else(|| Stop::violation("unknown queue pair"))?.retire(&done);
            }
        }
    } else {
        let mut next = [0; QPS];
        for _ in 0..TOTAL * QPS as u64 {
            let done = cq.wait()?;
            let who = qps.iter().position(|qp| qp.qpn() == done.qpn);
            let who = who.ok_or_else(|| Stop::violation(format!("{done:?}: unknown")))?;
            ensure_eq!(done.imm, Some(low_u32(next[who])), "order of sender {who}");
            pool.land_and_repost(&done, &message(who, next[who], LEN))?;
            next[who] += 1;
        }
    }
    pool.verify()?;
    side.meet(&mut cq)
}

/// An empty SRQ is "receiver not ready": the sender waits, or gives up if it may not wait.
pub(super) fn empty_srq_makes_the_sender_wait<N: Nic>(side: &mut Side<N>) -> Verdict {
    const LEN: usize = 40;
    side.needs(Capabilities::SRQ)?;
    for rnr_retry in [7, 1] {
        let mut setup = Setup::rc();
        setup.rts.rnr_retry = rnr_retry;
        let pd = side.nic.alloc_pd()?;
        let srq = side.nic.create_srq(&pd, &SrqConfig { entries: 8, sges_max: 1 })?;
        let mut end = End::create_in(side, &setup, pd, Some(srq), None)?;
        connect(side, &mut end.qp, &setup)?;
        let mut buffer = end.buffer(side, LEN)?;
        let data = pattern(5, LEN);
        let payload = Payload::Inline(&[&data]);
        let send = SendRequest::signaled(Op::Send { payload, imm: None });
        match (side.is_client(), rnr_retry) {
            (true, 7) => {
                let wqe = end.send(&send)?;
                end.cq.stays_empty(side.testbed.quiet)?;
                side.meet(&mut end.cq)?;
                end.wait_sent(CompletionKind::Send, wqe)?;
            }
            (false, 7) => {
                side.meet(&mut end.cq)?;
                let wqe = end.recv(&[buffer.sge(0, LEN)])?;
                end.wait_sent(CompletionKind::Recv, wqe)?;
                buffer.expect(0, &data);
            }
            (true, _) => {
                let wqe = end.send(&send)?;
                end.wait_failed(wqe, WcStatus::RnrRetryExceeded)?;
            }
            (false, _) => {}
        }
        buffer.verify()?;
        side.meet(&mut end.cq)?;
    }
    Ok(())
}

/// A queue pair that fails takes nothing from its SRQ: another one goes on with all the buffers.
pub(super) fn srq_survives_a_failed_queue_pair<N: Nic>(side: &mut Side<N>) -> Verdict {
    const SLOTS: usize = 8;
    const LEN: usize = 48;
    side.needs(Capabilities::SRQ)?;
    let mut setup = Setup::rc();
    setup.cq = CqConfig { allow_overcommit: true, ..CqConfig::new(1024) };
    let pd = side.nic.alloc_pd()?;
    let mut pool = Pool::filled(side, &pd, SLOTS, LEN)?;
    let mut cq = Watched::new(side, &setup.cq, None)?;
    let mut doomed = create_qp(&side.nic, &pd, &cq.cq, Some(&pool.srq), &setup)?;
    let mut other = create_qp(&side.nic, &pd, &cq.cq, Some(&pool.srq), &setup)?;
    connect(side, &mut doomed, &setup)?;
    connect(side, &mut other, &setup)?;
    doomed.modify(&Transition::Err)?;
    cq.stays_empty(side.testbed.quiet)?;
    side.meet(&mut cq)?;
    for number in 0..2 * SLOTS as u64 {
        let data = message(1, number, LEN);
        if side.is_client() {
            let payload = Payload::Inline(&[&data]);
            other.post_send(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
            other.ring_send();
            let done = cq.wait()?;
            ensure!(done.failure.is_none(), "{done:?}");
            other.retire(&done);
        } else {
            let done = cq.wait()?;
            ensure_eq!(done.qpn, other.qpn(), "receiver");
            pool.land_and_repost(&done, &data)?;
        }
    }
    pool.verify()?;
    side.meet(&mut cq)
}

/// The buffers of an SRQ lie in the domain of the SRQ, not in that of the queue pair that takes them.
pub(super) fn srq_has_a_domain_of_its_own<N: Nic>(side: &mut Side<N>) -> Verdict {
    const LEN: usize = 48;
    side.needs(Capabilities::SRQ)?;
    let setup = Setup::rc();
    let data = message(2, 0, LEN);
    if side.is_client() {
        let mut end = End::connected(side, &setup)?;
        side.meet(&mut end.cq)?;
        let send = Op::Send { payload: Payload::Inline(&[&data]), imm: None };
        let wqe = end.send(&SendRequest::signaled(send))?;
        end.wait_sent(CompletionKind::Send, wqe)?;
        let wqe = end.send(&SendRequest::signaled(send))?;
        end.wait_failed(wqe, WcStatus::RemoteOperation)?;
        return side.meet(&mut end.cq);
    }
    let pd = side.nic.alloc_pd()?;
    let srq_pd = side.nic.alloc_pd()?;
    let mut pool = Pool::filled(side, &srq_pd, 1, LEN)?;
    let of_the_queue_pair = Buffer::new(&side.nic, &pd, LEN, OPEN)?;
    let mut cq = Watched::new(side, &setup.cq, None)?;
    let mut qp = create_qp(&side.nic, &pd, &cq.cq, Some(&pool.srq), &setup)?;
    connect(side, &mut qp, &setup)?;
    side.meet(&mut cq)?;
    let done = cq.wait()?;
    pool.land(&done, &data)?;
    pool.srq.retire(&done);
    let wqe = pool.srq.post(&[of_the_queue_pair.sge(0, LEN)])?;
    pool.srq.ring();
    let done = cq.wait()?;
    let found = done.failure.map(|failure| failure.status);
    ensure_eq!((done.wqe, found), (wqe, Some(WcStatus::LocalProtection)), "a foreign buffer");
    of_the_queue_pair.verify()?;
    pool.verify()?;
    side.meet(&mut cq)
}
