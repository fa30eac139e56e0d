//! The sending half where answers come later: requests stay outstanding, in order, until they are settled.
//!
//! ```text
//!  issue    WQE ─▶ Port::send ─▶ outstanding, with a sequence number and a copy of the WQE
//!  settle   answer ─▶ keys checked again, READ data or an atomic's result placed ─▶ completed in order
//!  resend   RNR, or no answer in time: everything from there on once more (go-back-N)
//! ```
//!
//! The responder takes requests in the order of their sequence numbers ([`Stream`](super::Stream)), so an
//! answer acknowledges every SEND and WRITE before it. A READ or atomic is settled by its own answer only.
//! The requester owns all waiting: `retry_at_ns` after RNR, `answer_due_ns` for an answer.

use super::{
    Chunk, Reply, ReplyPacket, Scratch, Sequence, Verb,
    issue::{issue, parse_copy, place},
    port::{Done, Port},
    requester::{Inflight, Pending, Requester, SendState, Step, flushed, has_result, nanos},
    stream::KEEP_NS,
};
use verbs::Transport;
use wire::{
    cqe::Syndrome,
    ids::Lid,
    wqe::{Ctrl, CtrlFlags, Opcode, SendWqe, wqebbs},
};

/// Requests of one queue pair that may be outstanding.
const OUTSTANDING_MAX: usize = 64;

impl Requester {
    /// When [`advance`](Self::advance) has to be called if no answer comes.
    pub(crate) fn wake_at_ns(&self) -> Option<u64> {
        self.retry_at_ns.or(self.outgoing.answer_due_ns)
    }

    /// Whether it waits for an answer of a queue pair of port `lid`.
    pub(crate) fn waits_for(&self, lid: Lid) -> bool {
        let peer = self.peer.or(self.connected);
        self.outgoing.outstanding > 0 && peer.is_some_and(|(port, _)| port == lid)
    }

    /// Sends the WQE at `next`, whose bytes are `wqe`. `false`: it has to wait.
    pub(super) fn send_one<P: Port>(
        &mut self,
        wqe: &[u8],
        (ctrl, parsed): (&Ctrl, &SendWqe<'_>),
        chunks: &mut Vec<Chunk>,
        port: &mut P,
    ) -> bool {
        if self.must_hold(parsed, ctrl, port) {
            return false;
        }
        let target = parsed.av().as_ref().map(|av| (port.destination(av), av.destination));
        if self.transport == Transport::Dci {
            let idle_ns = port.now_ns().saturating_sub(self.outgoing.last_ns);
            let is_forgotten = self.outgoing.outstanding == 0 && idle_ns > KEEP_NS;
            if target != self.connected || is_forgotten {
                self.connected = target;
                self.outgoing.next = Sequence { connection: port.new_connection(), psn: 0 };
            }
            self.outgoing.last_ns = port.now_ns();
        }
        let sequence = self.outgoing.next;
        let is_refused = self.is_unreliable && has_result(parsed.opcode);
        let (done, reply) = if is_refused {
            let done = flushed(parsed.opcode, ctrl.index);
            (done, Reply::Refused(Syndrome::LocalQpOperation))
        } else {
            issue(parsed, ctrl, Some(sequence), self.peer, self.qpn, chunks, port)
        };
        // What fails here completes behind all that was sent before, whose answers are not known yet.
        if matches!(reply, Reply::Refused(_)) && self.outgoing.outstanding > 0 {
            return false;
        }
        self.next = self.next.wrapping_add(wqebbs(ctrl.octowords));
        match reply {
            Reply::Refused(syndrome) => self.fail(done, syndrome, port),
            Reply::Later if self.transport != Transport::Ud && !self.is_unreliable => {
                self.outgoing.next = sequence.next();
                self.outgoing.outstanding += 1;
                let request = Pending { wqe: wqe.into(), done, sequence, is_sent: true };
                self.inflight.push_back(Inflight::Pending(request));
                if self.outgoing.outstanding == 1 {
                    self.await_answer(port);
                }
            }
            // NOPs, and datagrams, which are not acknowledged.
            _ => self.finish(done, port),
        }
        true
    }

    /// Whether a WQE has to wait for answers: the window is full, it is fenced, it is a READ or atomic of
    /// which no more may be outstanding, or it goes to another DC target.
    fn must_hold<P: Port>(&self, wqe: &SendWqe<'_>, ctrl: &Ctrl, port: &P) -> bool {
        if self.outgoing.outstanding == 0 {
            return false;
        }
        let results = self.pending().filter(|(_, request)| request.has_result()).count();
        let to = wqe.av().as_ref().map(|av| (port.destination(av), av.destination));
        self.outgoing.outstanding >= OUTSTANDING_MAX
            || ctrl.flags.contains(CtrlFlags::FENCE) && results > 0
            || has_result(wqe.opcode) && results >= usize::from(self.attr.reads_out_max.max(1))
            || self.transport == Transport::Dci && to.is_some() && to != self.connected
    }

    fn pending(&self) -> impl Iterator<Item = (usize, &Pending)> {
        self.inflight.iter().enumerate().filter_map(|(at, inflight)| match inflight {
            Inflight::Pending(request) => Some((at, request)),
            _ => None,
        })
    }

    fn await_answer<P: Port>(&mut self, port: &mut P) {
        let is_sent = self.pending().any(|(_, request)| request.is_sent);
        let timeout = nanos(self.attr.ack_timeout);
        let is_sent = is_sent && !port.is_reliable();
        self.outgoing.answer_due_ns = is_sent.then(|| port.now_ns().saturating_add(timeout));
    }

    /// Flushes what is outstanding, or sends again what has to be.
    #[cold]
    pub(super) fn resume_pending<P: Port>(&mut self, port: &mut P, scratch: &mut Scratch) {
        if self.state == SendState::Flushing {
            return self.flush_pending(0);
        }
        if self.outgoing.answer_due_ns.is_some_and(|at_ns| port.now_ns() >= at_ns) {
            // The time that a retry waits has passed already.
            let has_retry = self.use_retry();
            let oldest = self.pending().next().map(|(at, _)| at);
            if let (false, Some(oldest)) = (has_retry, oldest) {
                return self.fail_at(oldest, Syndrome::RetryExceeded, port);
            }
            self.unsend(0);
        }
        let mut has_sent = false;
        for at in 0..self.inflight.len() {
            let Inflight::Pending(Pending { wqe, done, sequence, is_sent: false }) =
                &self.inflight[at]
            else {
                continue;
            };
            let counter = done.completed.counter;
            let Ok((ctrl, parsed)) = parse_copy(wqe, self.transport, counter, self.qpn) else {
                continue;
            };
            let (sequence, peer) = (Some(*sequence), self.peer);
            let chunks = &mut scratch.chunks;
            match issue(&parsed, &ctrl, sequence, peer, self.qpn, chunks, port).1 {
                Reply::Refused(syndrome) => {
                    // In order: what was sent before is settled first.
                    if self.pending().next().is_some_and(|(first, _)| first == at) {
                        self.fail_at(at, syndrome, port);
                    }
                    break;
                }
                _ => has_sent = true,
            }
            if let Inflight::Pending(request) = &mut self.inflight[at] {
                request.is_sent = true;
            }
        }
        if has_sent {
            self.await_answer(port);
        }
    }

    /// Everything from `from` on is to be sent again.
    fn unsend(&mut self, from: usize) {
        for inflight in self.inflight.range_mut(from..) {
            if let Inflight::Pending(request) = inflight {
                request.is_sent = false;
            }
        }
        self.outgoing.answer_due_ns = None;
    }

    /// Takes an answer. An answer to nothing that is outstanding, or one that cannot be right, changes
    /// nothing. `false`: it was such a one.
    pub(crate) fn settle<P: Port>(
        &mut self,
        answer: &ReplyPacket,
        port: &mut P,
        scratch: &mut Scratch,
    ) -> bool {
        if matches!(self.state, SendState::Stopped | SendState::Flushing) {
            return false;
        }
        let mut pending = self.pending();
        let found = pending.find(|(_, r)| r.is_sent && r.sequence == answer.sequence);
        let Some((at, _)) = found else { return false };
        drop(pending);
        if answer.reply == Reply::Silence && port.is_reliable() {
            // It was dropped, and so is what was sent behind it: as if no answer came.
            let due_ns = port.now_ns().saturating_add(nanos(self.attr.ack_timeout));
            self.outgoing.answer_due_ns.get_or_insert(due_ns);
            return true;
        }
        if matches!(answer.reply, Reply::Ack | Reply::Value(_)) {
            if self.overtakes_result(at) {
                return false;
            }
            match self.place_result(at, answer, port, scratch) {
                Placement::Impossible => return false,
                Placement::Done => {}
                Placement::Denied(syndrome) => return self.refuse_at(at, syndrome, port),
            }
            self.acknowledge_before(at);
            self.settle_at(at);
            let retry_at_ns = self.retry_at_ns;
            self.refill_retries();
            self.retry_at_ns = retry_at_ns;
            self.await_answer(port);
        } else {
            self.acknowledge_before(at);
            // Somebody answers: losses are counted from here.
            self.retries_left = self.attr.retry_count;
            let step = match answer.reply {
                Reply::NotReady { .. } | Reply::Connecting | Reply::Refused(_) | Reply::Dead => {
                    self.judge(answer.reply, port)
                }
                _ => return false,
            };
            if let Step::Fail(syndrome) = step {
                return self.refuse_at(at, syndrome, port);
            }
            self.unsend(at);
        }
        self.drain(port);
        true
    }

    /// Whether the request at `at` has a result, and so has one before it that is outstanding: results are
    /// stored in order, since they may go to the same memory. It will be asked for again.
    fn overtakes_result(&self, at: usize) -> bool {
        let mut results = self.pending().filter(|(_, request)| request.has_result());
        results.next().is_some_and(|(first, _)| first < at) && results.any(|(later, _)| later == at)
    }

    /// The request at `at` has failed: unless an earlier one is without its result, which will be asked
    /// for again.
    fn refuse_at<P: Port>(&mut self, at: usize, syndrome: Syndrome, port: &mut P) -> bool {
        self.acknowledge_before(at);
        let is_oldest = self.pending().next().is_some_and(|(first, _)| first == at);
        if is_oldest {
            self.fail_at(at, syndrome, port);
        }
        self.drain(port);
        is_oldest
    }

    /// Stores what a READ or atomic has brought; its keys may have changed since it was sent.
    fn place_result<P: Port>(
        &self,
        at: usize,
        answer: &ReplyPacket,
        port: &mut P,
        scratch: &mut Scratch,
    ) -> Placement {
        let Inflight::Pending(request) = &self.inflight[at] else { return Placement::Impossible };
        let Done { completed, .. } = request.done;
        let is_atomic = completed.opcode.is_atomic();
        let expected =
            if completed.opcode == Opcode::RdmaRead { completed.len_bytes as usize } else { 0 };
        if is_atomic != matches!(answer.reply, Reply::Value(_)) || answer.data.len() != expected {
            return Placement::Impossible;
        }
        if !request.has_result() {
            return Placement::Done;
        }
        let parsed = parse_copy(&request.wqe, self.transport, completed.counter, self.qpn);
        let Ok((_, wqe)) = parsed else { return Placement::Impossible };
        let result = match answer.reply {
            Reply::Value(old) => place(&wqe, &old.to_ne_bytes(), &mut scratch.chunks, port),
            _ => place(&wqe, &answer.data, &mut scratch.chunks, port),
        };
        result.map_or_else(Placement::Denied, |()| Placement::Done)
    }

    /// SENDs and WRITEs before `at` were taken in order.
    fn acknowledge_before(&mut self, at: usize) {
        for before in 0..at {
            if let Inflight::Pending(request) = &self.inflight[before]
                && request.is_sent
                && !request.has_result()
            {
                self.settle_at(before);
            }
        }
    }

    fn settle_at(&mut self, at: usize) {
        if let Inflight::Pending(request) = &self.inflight[at] {
            self.inflight[at] = Inflight::Done(request.done);
            self.outgoing.outstanding -= 1;
        }
    }

    /// The request at `at`, the oldest that is outstanding, fails; what was sent behind it is flushed.
    fn fail_at<P: Port>(&mut self, at: usize, syndrome: Syndrome, port: &mut P) {
        if let Inflight::Pending(request) = &mut self.inflight[at] {
            request.done.completed.failure = Some(syndrome);
        }
        self.settle_at(at);
        self.fall(port);
        self.flush_pending(at + 1);
    }

    /// Flushes everything from `from` on.
    fn flush_pending(&mut self, from: usize) {
        for at in from..self.inflight.len() {
            let completed = match &self.inflight[at] {
                Inflight::Pending(request) => request.done.completed,
                Inflight::Done(done) if from > 0 => done.completed,
                _ => continue,
            };
            self.settle_at(at);
            self.inflight[at] = Inflight::Done(if from == 0 {
                self.flush_result(completed.opcode, completed.counter)
            } else {
                flushed(completed.opcode, completed.counter)
            });
        }
        self.outgoing.answer_due_ns = None;
    }
}

/// What became of a result.
enum Placement {
    Done,
    /// The answer does not fit the request.
    Impossible,
    /// The memory for it may not be written.
    Denied(Syndrome),
}

impl super::Request {
    /// Whether its payload travels with it.
    pub(crate) fn has_payload(&self) -> bool {
        matches!(self.verb, Verb::Send | Verb::Write)
    }
}
