//! Taking WQEs: the loop of the sending half, and what strict mode lets later requests overtake.

use verbs::Transport;
use wire::{
    cqe::Syndrome,
    wqe::{Ctrl, CtrlFlags, Opcode, SendWqe, wqebbs},
};

use super::{
    Extent, Reply,
    issue::{issue, issue_as, parse, parse_copy},
    port::{Done, Port, SendQueue},
    requester::{Activity, Inflight, Requester, SendState, Step, flushed},
    scratch::Scratch,
};

impl Requester {
    /// Works on WQEs before `posted`, at most `budget` of them.
    pub(crate) fn advance<Q: SendQueue, P: Port>(
        &mut self,
        posted: u16,
        queue: &Q,
        port: &mut P,
        scratch: &mut Scratch,
        budget: usize,
    ) -> Activity {
        if let Some(at_ns) = self.retry_at_ns {
            if self.state == SendState::Running && port.now_ns() < at_ns {
                return Activity::WaitUntil { at_ns };
            }
            self.retry_at_ns = None;
            if core::mem::take(&mut self.is_last_wait) && self.state == SendState::Running {
                self.give_up(port);
            }
        }
        if !self.inflight.is_empty() {
            self.resume(port, scratch);
        }
        let is_plain = port.is_plain();
        let mut left = budget;
        loop {
            if is_plain {
                left -= self.run_plain(posted, queue, port, left);
            }
            if left == 0 || self.next == posted || self.retry_at_ns.is_some() {
                break;
            }
            left -= 1;
            match self.state {
                SendState::Stopped | SendState::Drained => break,
                SendState::Flushing => self.flush_one(posted, queue, port, scratch),
                SendState::Running => {
                    if !self.take_one(posted, queue, port, scratch) {
                        break;
                    }
                }
            }
        }
        self.activity(posted)
    }

    fn activity(&self, posted: u16) -> Activity {
        if let Some(at_ns) = self.retry_at_ns {
            return Activity::WaitUntil { at_ns };
        }
        let stopped = matches!(self.state, SendState::Stopped | SendState::Drained);
        if self.deferred > 0 || self.next != posted && !stopped {
            return Activity::More;
        }
        Activity::Idle
    }

    /// Takes the WQE at `next`. `false`: it has to wait.
    #[inline(never)]
    fn take_one<Q: SendQueue, P: Port>(
        &mut self,
        posted: u16,
        queue: &Q,
        port: &mut P,
        scratch: &mut Scratch,
    ) -> bool {
        let (ctrl, len) = queue.fetch(self.next, &mut scratch.wqe.0);
        let wqe = &scratch.wqe.0[..len];
        // Reading beyond what was posted would go on for a lap of the counter.
        let left = posted.wrapping_sub(self.next);
        let parsed = if wqebbs(ctrl.octowords) <= left {
            parse(wqe, &ctrl, self.transport, self.next, self.qpn)
        } else {
            Err("longer than what was posted")
        };
        let parsed = match parsed {
            Ok(parsed) => parsed,
            // Behind what was sent before.
            Err(_) if self.outgoing.outstanding > 0 => return false,
            Err(cause) => {
                port.malformed(self.next, cause);
                self.fail_malformed(port);
                return true;
            }
        };
        if port.answers_later() {
            return self.send_one(wqe, (&ctrl, &parsed), &mut scratch.chunks, port);
        }
        let blocks = wqebbs(ctrl.octowords);
        if self.deferred > 0 && self.must_wait(&parsed, &ctrl, port) {
            return false;
        }
        // READs and atomics keep their order: behind one that is deferred, all are.
        let in_line = self.deferred > 0 && self.transport != Transport::Ud;
        let defers = self.may_defer(parsed.opcode) && (in_line || port.defers());
        let outstanding = self.deferred + 1;
        let extent = if defers { Extent::Checks { outstanding } } else { Extent::Whole };
        let (done, reply) = if defers && self.transport == Transport::Ud {
            (flushed(parsed.opcode, self.next), Reply::Ack)
        } else {
            issue_as(extent, &parsed, &ctrl, self.peer, self.qpn, &mut scratch.chunks, port)
        };
        match self.judge(reply, port) {
            Step::Wait => return false,
            Step::Done if defers => {
                self.connected =
                    parsed.av().as_ref().map(|av| (port.destination(av), av.destination));
                self.inflight.push_back(Inflight::Deferred(wqe.into(), self.next));
                self.deferred += 1;
                self.next = self.next.wrapping_add(blocks);
            }
            Step::Done => {
                self.next = self.next.wrapping_add(blocks);
                self.finish(done, port);
            }
            Step::Fail(syndrome) => {
                self.next = self.next.wrapping_add(blocks);
                self.fail(done, syndrome, port);
            }
        }
        true
    }

    fn may_defer(&self, opcode: Opcode) -> bool {
        opcode == Opcode::RdmaRead
            || opcode.is_atomic()
            || self.transport == Transport::Ud && opcode != Opcode::Nop
    }

    /// Whether a WQE must wait until deferred ones are carried: it is fenced, or is a READ or
    /// atomic of which no more may be outstanding, or goes to another DC target.
    fn must_wait<P: Port>(&self, wqe: &SendWqe<'_>, ctrl: &Ctrl, port: &P) -> bool {
        if self.transport == Transport::Ud {
            return self.deferred >= 16;
        }
        let fenced = ctrl.flags.contains(CtrlFlags::FENCE);
        let is_read = wqe.opcode == Opcode::RdmaRead || wqe.opcode.is_atomic();
        let full = self.deferred >= usize::from(self.attr.reads_out_max.max(1));
        let to = wqe.av().as_ref().map(|av| (port.destination(av), av.destination));
        let elsewhere = to.is_some() && to != self.connected;
        fenced || elsewhere || is_read && full
    }

    /// Carries deferred requests: READs and atomics in order, datagrams in any.
    fn resume<P: Port>(&mut self, port: &mut P, scratch: &mut Scratch) {
        if self.outgoing.outstanding > 0 {
            self.resume_pending(port, scratch);
            return self.drain(port);
        }
        let mut at = 0;
        while at < self.inflight.len() && self.retry_at_ns.is_none() {
            let Inflight::Deferred(bytes, counter) = &self.inflight[at] else {
                at += 1;
                continue;
            };
            let counter = *counter;
            if self.state == SendState::Flushing {
                let parsed = parse_copy(bytes, self.transport, counter, self.qpn);
                let opcode = parsed.map(|(_, wqe)| wqe.opcode);
                let done = self.flush_result(opcode.unwrap_or(Opcode::Nop), counter);
                self.end_deferred(at, done);
                self.flush_inflight(at + 1);
                continue;
            }
            if !port.resumes() {
                if self.transport == Transport::Ud {
                    at += 1;
                    continue;
                }
                break;
            }
            let parsed = parse_copy(bytes, self.transport, counter, self.qpn);
            let Ok((ctrl, parsed)) = parsed else { break };
            let (peer, chunks) = (self.peer, &mut scratch.chunks);
            let (mut done, reply) = issue(&parsed, &ctrl, None, peer, self.qpn, chunks, port);
            match self.judge(reply, port) {
                Step::Wait => break,
                Step::Done => {}
                Step::Fail(syndrome) => {
                    done.completed.failure = Some(syndrome);
                    self.fall(port);
                    self.flush_inflight(at + 1);
                }
            }
            self.end_deferred(at, done);
        }
        self.drain(port);
    }

    fn end_deferred(&mut self, at: usize, done: Done) {
        self.inflight[at] = Inflight::Done(done);
        self.deferred -= 1;
    }

    /// What was done behind a failure does not count.
    fn flush_inflight(&mut self, from: usize) {
        for later in self.inflight.range_mut(from..) {
            if let Inflight::Done(done) = later {
                *done = flushed(done.completed.opcode, done.completed.counter);
            }
        }
    }

    fn fail_malformed<P: Port>(&mut self, port: &mut P) {
        // Its length cannot be trusted: take one block, so that the flush that follows ends.
        let done = flushed(Opcode::Nop, self.next);
        self.next = self.next.wrapping_add(1);
        self.fail(done, Syndrome::LocalQpOperation, port);
    }

    /// Completes the WQE at `next` as flushed.
    fn flush_one<Q: SendQueue, P: Port>(
        &mut self,
        posted: u16,
        queue: &Q,
        port: &mut P,
        scratch: &mut Scratch,
    ) {
        let (_, len) = queue.fetch(self.next, &mut scratch.wqe.0);
        let parsed = parse_copy(&scratch.wqe.0[..len], self.transport, self.next, self.qpn);
        let (opcode, blocks) =
            parsed.map_or((Opcode::Nop, 1), |(ctrl, wqe)| (wqe.opcode, wqebbs(ctrl.octowords)));
        let done = self.flush_result(opcode, self.next);
        let left = posted.wrapping_sub(self.next);
        self.next = self.next.wrapping_add(blocks.min(left));
        self.finish(done, port);
    }
}
