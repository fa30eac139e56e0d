//! The short way of what nearly all traffic is: an RDMA WRITE on RC, of one piece.
//!
//! It does what `issue` and [`respond`](super::respond) do with such a request, and declines, before
//! anything is done, whatever is not as it nearly always is: they find out what is wrong, and say so.
//! So the checks here need to be as strict as theirs, but have no answers of their own. Nothing is
//! gathered in a struct on the way, and the WQE is read where it is: some 410 instructions instead
//! of 990.

use verbs::{Access, Transport};
use wire::{
    cqe::{CqeView, Responder, ResponderKind, Scatter, Source},
    ids::{Lid, Qpn, Rkey, UserIndex},
    wqe::{CtrlFlags, Opcode, PlainPayload, PlainWrite, wqebbs},
};

use super::{
    Chunk, Memory, Order, Reply, chunk,
    requester::{Completed, Done, Port, Requester, SendQueue, SendState, Step, complete},
    responder::{Answered, lose, release},
};
use crate::card::target::Target;

/// A WRITE on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) from: (Lid, Qpn),
    pub(crate) imm: Option<u32>,
    pub(crate) solicited: bool,
    pub(crate) addr: u64,
    pub(crate) rkey: Rkey,
    /// Not empty.
    pub(crate) payload: Chunk,
}

impl Requester {
    /// Takes plain WRITEs, at most `budget`, up to one that has to go the long way or has to wait;
    /// returns how many.
    #[inline(always)]
    pub(super) fn run_plain<Q: SendQueue, P: Port>(
        &mut self,
        posted: u16,
        queue: &Q,
        port: &mut P,
        budget: usize,
    ) -> usize {
        let Some(peer) = self.peer else { return 0 };
        if self.state != SendState::Running || !self.inflight.is_empty() {
            return 0;
        }
        let mut taken = 0;
        while taken < budget && self.next != posted {
            let Some(Step::Done) = self.take_plain(posted, peer, queue, port) else { break };
            taken += 1;
        }
        taken
    }

    /// `take_one` for a plain WRITE. `None`: it is something else, or something is not
    /// as it nearly always is; nothing was done.
    #[inline(always)]
    fn take_plain<Q: SendQueue, P: Port>(
        &mut self,
        posted: u16,
        peer: (Lid, Qpn),
        queue: &Q,
        port: &mut P,
    ) -> Option<Step> {
        let (write, inline) = queue.plain_write(self.next, self.qpn)?;
        let blocks = wqebbs(write.octowords);
        if blocks > posted.wrapping_sub(self.next) {
            return None;
        }
        let reply = issue_plain(&write, inline, peer, self.qpn, port)?;
        let (step, counter) = (self.judge(reply, port), self.next);
        match step {
            Step::Wait => {}
            Step::Done => {
                self.next = counter.wrapping_add(blocks);
                if write.flags.contains(CtrlFlags::CQ_UPDATE) {
                    complete(&done(&write, counter), port);
                }
            }
            Step::Fail(syndrome) => {
                self.next = counter.wrapping_add(blocks);
                self.fail(done(&write, counter), syndrome, port);
            }
        }
        Some(step)
    }
}

/// Carries `wqe` of queue pair `qpn` to `peer`. `None`: it was not done, and may be at fault itself.
#[inline(always)]
fn issue_plain<P: Port>(
    wqe: &PlainWrite,
    inline: *const u8,
    peer: (Lid, Qpn),
    qpn: Qpn,
    port: &mut P,
) -> Option<Reply> {
    let payload = match wqe.payload {
        PlainPayload::Inline { len_bytes } => {
            let len = usize::try_from(len_bytes).ok()?;
            // Only ever read.
            Chunk { ptr: inline.cast_mut(), len, is_inline: true }
        }
        PlainPayload::Gather(sge) => port.local(&sge, false).ok()?,
    };
    let write = Write {
        from: (port.lid(), qpn),
        imm: wqe.imm,
        solicited: wqe.flags.contains(CtrlFlags::SOLICITED),
        addr: wqe.raddr.addr,
        rkey: wqe.raddr.rkey,
        payload,
    };
    port.carry_write(peer, write)
}

/// What is to be said of `wqe` at `counter`.
fn done(wqe: &PlainWrite, counter: u16) -> Done {
    let opcode = if wqe.imm.is_some() { Opcode::RdmaWriteImm } else { Opcode::RdmaWrite };
    let len_bytes = match wqe.payload {
        PlainPayload::Inline { len_bytes } => len_bytes,
        PlainPayload::Gather(sge) => sge.len_bytes,
    };
    let completed = Completed { opcode, counter, len_bytes, failure: None };
    Done { completed, signaled: wqe.flags.contains(CtrlFlags::CQ_UPDATE) }
}

/// Runs a WRITE at its destination. `None`: nothing was done.
#[inline(always)]
pub(crate) fn respond_to_write(
    write: Write,
    target: &Target,
    memory: &mut impl Memory,
) -> Option<Answered> {
    let is_heard = target.transport == Transport::Rc && target.peer == write.from;
    if !is_heard || !target.access.contains(Access::REMOTE_WRITE) {
        return None;
    }
    let (key, len) = (write.rkey.get(), write.payload.len as u64);
    let to = memory.locate(key, write.addr, len, Access::REMOTE_WRITE, target.pd).ok()?;
    let put = || {
        // SAFETY: `locate` checked `to` for writing; the payload is in a WQE or was checked; the
        // sender's presence keeps both mapped.
        unsafe { chunk::copy(&[to], &[write.payload], Order::Ascending) };
    };
    let Some(imm) = write.imm else {
        put();
        return Some(Reply::Ack.into());
    };
    let rq = target.rq.as_ref()?;
    let (holder, is_alone) = (write.from.0.get(), rq.srqn.is_none());
    let mut posted_seen = target.posted_seen.get();
    let taken = rq.take(holder, &mut posted_seen, is_alone);
    target.posted_seen.set(posted_seen);
    let taken = taken.ok()?;
    // Before any byte is moved: read-modify-writes wait for all stores before them.
    let Ok(position) = target.cq.reserve(holder) else {
        return Some(lose(target, rq, taken, holder));
    };
    put();
    let cqe = CqeView::Responder(Responder {
        kind: ResponderKind::WriteImm(imm),
        qpn: target.qpn,
        wqe_counter: taken.counter,
        user_index: UserIndex::from_low_bits(rq.srqn.map_or(target.qpn.get(), |srqn| srqn.get())),
        byte_cnt: u32::try_from(write.payload.len).unwrap_or(u32::MAX),
        scatter: Scatter::Memory,
        source: Some(Source::default()),
        solicited: write.solicited,
        timestamp: 0,
    });
    target.cq.fill(position, &cqe, &[]);
    release(rq, taken, holder, is_alone);
    target.cq.finish(position);
    Some(Answered { reply: Reply::Ack, arrived: Some(write.solicited) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        engine::{Request, Verb},
        rig::{BASE, KEY, LEN, Rig, SENDER, Shape, region_of},
    };

    #[derive(Clone, Debug)]
    enum Step {
        Post,
        Poll,
        Write { from: (Lid, Qpn), imm: Option<u32>, offset: usize, bytes: Vec<u8>, key: u32 },
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let from = prop_oneof![9 => Just(SENDER), 1 => Just((Lid::new(8), SENDER.1))];
        let offset = prop_oneof![9 => 0..LEN - 300, 1 => LEN - 300..LEN + 300];
        let key = prop_oneof![9 => Just(KEY), 1 => any::<u32>()];
        let imm = proptest::option::weighted(0.8, any::<u32>());
        let bytes = proptest::collection::vec(any::<u8>(), 1..300);
        let write = (from, imm, offset, bytes, key).prop_map(|(from, imm, offset, bytes, key)| {
            Step::Write { from, imm, offset, bytes, key }
        });
        prop_oneof![2 => Just(Step::Post), 2 => Just(Step::Poll), 4 => write]
    }

    /// Runs `write` the short way if that takes it, and otherwise the long way.
    fn respond(rig: &mut Rig, request: &Request, bytes: &[u8], is_short: bool) -> Reply {
        let region = region_of(bytes);
        let ptr = region.as_ptr().as_ptr();
        let payload = Chunk { ptr, len: bytes.len(), is_inline: false };
        let Request { from, imm, solicited, addr, rkey, .. } = *request;
        let write = Write { from, imm, solicited, addr, rkey, payload };
        let target = rig.target();
        let answered = is_short.then(|| respond_to_write(write, &target, &mut rig.memory));
        match answered.flatten() {
            Some(answered) => answered.reply,
            None => rig.respond(request, &mut [bytes.to_vec()]),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 500 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn the_short_way_leads_where_the_long_one_does(
            steps in proptest::collection::vec(any_step(), 1..40),
            is_srq in any::<bool>(),
            is_alone in any::<bool>(),
            is_dc in any::<bool>(),
        ) {
            let transport = if is_dc { Transport::Dct } else { Transport::Rc };
            let shape = Shape { is_srq, transport, ..Shape::RC };
            let mut rigs = [Rig::new(shape), Rig::new(shape)];
            rigs.iter().for_each(|rig| rig.set_exclusive(is_alone));
            let mut posted = 0;
            for (number, step) in steps.into_iter().enumerate() {
                let [short, long] = &mut rigs;
                match step {
                    Step::Post if posted == short.rq.claims().taken() + 4 => {}
                    Step::Post => {
                        [short, long].into_iter().for_each(|rig| rig.post(&[]));
                        posted += 1;
                    }
                    Step::Poll => prop_assert_eq!(short.poll(), long.poll()),
                    Step::Write { from, imm, offset, bytes, key } => {
                        let len = u32::try_from(bytes.len()).expect("short");
                        let request = Request {
                            from,
                            imm,
                            solicited: number % 3 == 0,
                            addr: BASE + offset as u64,
                            rkey: Rkey::new(key),
                            ..long.request(Verb::Write, len)
                        };
                        let replies = [(short, true), (long, false)]
                            .map(|(rig, is_short)| respond(rig, &request, &bytes, is_short));
                        prop_assert_eq!(replies[0], replies[1]);
                    }
                }
                let ends = rigs.each_ref().map(|rig| {
                    let claims: Vec<_> = rig.rq.claims().held_by(SENDER.0.get()).collect();
                    let slots: Vec<_> = rig.cq.slots().held_by(SENDER.0.get()).collect();
                    let taken = rig.rq.claims().taken();
                    (rig.memory.read(0, LEN), taken, claims, slots, rig.cq.is_overrun(), rig.is_up())
                });
                prop_assert!(ends[0] == ends[1], "{:?}", &ends);
                if !ends[0].5 {
                    return Ok(());
                }
            }
        }
    }
}
