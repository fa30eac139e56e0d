//! The sending half of a queue pair: takes WQEs in order, retries, completes in order.

use std::collections::VecDeque;

use verbs::{RtsAttr, Transport};
use wire::{
    cqe::Syndrome,
    ids::{Lid, Qpn},
    wqe::{self, Ctrl, CtrlFlags, Opcode, PlainKind, PlainSend, SendWqe, Sge, wqebbs},
};

use super::{
    Carried, Chunk, Extent, Reply, Request,
    issue::{issue, parse, parse_copy},
};

/// Longest send WQE.
pub(crate) const WQE_BYTES_MAX: usize = wqe::OCTOWORDS_MAX as usize * wqe::OCTOWORD_BYTES;

/// The ring that WQEs are fetched from.
pub(crate) trait SendQueue {
    /// Copies the WQE at `counter` to the start of `into`; returns its control segment, and its
    /// length in bytes as that states it.
    fn fetch(&self, counter: u16, into: &mut [u8; WQE_BYTES_MAX]) -> (Ctrl, usize);

    /// What the WQE at `counter` is, if it is plain.
    fn plain_kind(&self, counter: u16) -> Option<PlainKind>;

    /// The WQE at `counter` where it is, if it is of this plain kind and does not wrap; and where its
    /// inline payload is, if it has one.
    fn plain(
        &self,
        counter: u16,
        transport: wqe::Transport,
        kind: PlainKind,
        qpn: Qpn,
    ) -> Option<(PlainSend, *const u8)>;
}

/// A send completion, for the send CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completed {
    pub(crate) opcode: Opcode,
    pub(crate) counter: u16,
    pub(crate) len_bytes: u32,
    pub(crate) failure: Option<Syndrome>,
}

/// What the drive offers to the sending half.
pub(crate) trait Port {
    /// This port.
    fn lid(&self) -> Lid;

    /// Checks a local entry; `write` if the NIC is going to store there.
    ///
    /// # Errors
    ///
    /// The syndrome to report.
    fn local(&mut self, sge: &Sge, write: bool) -> Result<Chunk, Syndrome>;

    /// The port that an address vector leads to.
    fn destination(&self, av: &wqe::Av) -> Lid;

    /// Carries a request and its payload (or, for READs, the memory for it) to port `to`.
    fn carry(&mut self, to: Lid, request: &Request, local: &[Chunk]) -> Reply;

    /// [`carry`](Self::carry) of a plain WQE, whose payload is not empty.
    fn carry_plain(&mut self, to: Lid, request: Request, payload: Chunk) -> Carried;

    /// Writes a completion. On failure of the CQ itself the queue pair is moved to ERR.
    fn complete(&mut self, completed: &Completed);

    /// The queue pair fell to ERR (SQE for UD) by an error of its own.
    fn fell(&mut self);

    /// Strict mode: whether to let later requests overtake this READ, atomic or datagram.
    fn defers(&mut self) -> bool;

    /// Whether requests are carried whole and in order: not so in strict mode.
    fn is_plain(&self) -> bool;

    /// Strict mode: whether a deferred request runs now.
    fn resumes(&mut self) -> bool;

    /// A malformed WQE was found.
    fn malformed(&mut self, counter: u16, cause: &'static str);

    /// Now.
    fn now_ns(&mut self) -> u64;
}

/// What the send queue may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    /// RESET, INIT, RTR: nothing.
    Stopped,
    /// RTS.
    Running,
    /// SQD: nothing new is started.
    Drained,
    /// ERR or SQE: everything is flushed.
    Flushing,
}

/// How often to look whether a peer has shown its memory, and how long to wait for it.
const CONNECT_RETRY_NS: u64 = 20_000;
const CONNECT_NS_MAX: u64 = 10_000_000_000;

/// What is left to do after [`Requester::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Nothing until the next doorbell.
    Idle,
    /// Call again at this time.
    WaitUntil { at_ns: u64 },
    /// Call again soon.
    More,
}

/// A request that has left the ring and is not complete, or waits for one that is not.
#[derive(Debug)]
pub(super) enum Inflight {
    Done(Done),
    /// To be carried later: the private copy of its WQE.
    Deferred(Box<[u8]>, u16),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) completed: Completed,
    pub(super) signaled: bool,
}

/// Sending half of one queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(super) transport: Transport,
    pub(super) qpn: Qpn,
    /// RC: the peer.
    pub(super) peer: Option<(Lid, Qpn)>,
    pub(super) state: SendState,
    attr: RtsAttr,
    /// Counter of the next WQE to take, in WQEBBs.
    pub(super) next: u16,
    retries_left: u8,
    rnr_left: u8,
    retry_at_ns: Option<u64>,
    /// Since when a peer that is there has not shown its memory.
    connecting_since_ns: Option<u64>,
    /// Something above was used up since the last success.
    pub(super) has_retried: bool,
    pub(super) inflight: VecDeque<Inflight>,
    /// What the next request fails with, before the flush.
    doom: Option<Syndrome>,
    /// How many of `inflight` are deferred.
    deferred: usize,
    /// DCI: the target of the requests in flight.
    connected: Option<(Lid, Qpn)>,
}

/// Private copy of a WQE, aligned as the ring is.
#[derive(Debug)]
#[repr(align(64))]
struct WqeBuffer([u8; WQE_BYTES_MAX]);

/// Working space of [`Requester::advance`], reused so that the data path allocates nothing.
#[derive(Debug)]
pub(crate) struct Scratch {
    wqe: Box<WqeBuffer>,
    chunks: Vec<Chunk>,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let chunks = Vec::with_capacity(usize::from(wqe::OCTOWORDS_MAX));
        Self { wqe: Box::new(WqeBuffer([0; WQE_BYTES_MAX])), chunks }
    }
}

/// Result of trying one WQE.
enum Step {
    Done,
    /// Keep it; retry later.
    Wait,
    Fail(Syndrome),
}

impl Requester {
    pub(crate) fn new(transport: Transport, qpn: Qpn) -> Self {
        Self {
            transport,
            qpn,
            peer: None,
            state: SendState::Stopped,
            attr: RtsAttr::default(),
            next: 0,
            retries_left: 0,
            rnr_left: 0,
            retry_at_ns: None,
            connecting_since_ns: None,
            has_retried: false,
            inflight: VecDeque::new(),
            doom: None,
            deferred: 0,
            connected: None,
        }
    }

    /// Counter of the next WQE to take.
    pub(crate) fn next(&self) -> u16 {
        self.next
    }

    /// RTR of an RC queue pair.
    pub(crate) fn connect(&mut self, peer: (Lid, Qpn)) {
        self.peer = Some(peer);
    }

    /// RTS.
    pub(crate) fn start(&mut self, attr: &RtsAttr) {
        self.attr = *attr;
        self.state = SendState::Running;
        self.refill_retries();
    }

    /// SQD, ERR or SQE.
    pub(crate) fn set_state(&mut self, state: SendState) {
        self.state = state;
    }

    /// The queue pair goes away, and what it has in flight is forgotten.
    pub(crate) fn stop(&mut self) {
        self.set_state(SendState::Stopped);
        self.inflight.clear();
        self.deferred = 0;
    }

    /// The peer is gone. If nothing is outstanding, the next request learns it.
    pub(crate) fn lose_peer(&mut self) {
        self.doom = Some(Syndrome::RetryExceeded);
        self.set_state(SendState::Flushing);
    }

    pub(super) fn refill_retries(&mut self) {
        self.retries_left = self.attr.retry_count;
        self.rnr_left = self.attr.rnr_retry;
        self.retry_at_ns = None;
        self.connecting_since_ns = None;
        self.has_retried = false;
    }

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
            Err(cause) => {
                port.malformed(self.next, cause);
                self.fail_malformed(port);
                return true;
            }
        };
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
            issue(&parsed, &ctrl, extent, self.peer, self.qpn, &mut scratch.chunks, port)
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
                let done = self.doomed(opcode.unwrap_or(Opcode::Nop), counter);
                self.settle(at, done);
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
            let (mut done, reply) =
                issue(&parsed, &ctrl, Extent::Whole, peer, self.qpn, chunks, port);
            match self.judge(reply, port) {
                Step::Wait => break,
                Step::Done => {}
                Step::Fail(syndrome) => {
                    done.completed.failure = Some(syndrome);
                    self.fall(port);
                    self.flush_inflight(at + 1);
                }
            }
            self.settle(at, done);
        }
        self.drain(port);
    }

    fn settle(&mut self, at: usize, done: Done) {
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

    /// Completes what is done at the front.
    fn drain<P: Port>(&mut self, port: &mut P) {
        while let Some(Inflight::Done(done)) = self.inflight.front() {
            complete(done, port);
            self.inflight.pop_front();
        }
    }

    /// What a reply means for the request that got it.
    #[inline]
    fn judge<P: Port>(&mut self, reply: Reply, port: &mut P) -> Step {
        let step = match reply {
            Reply::Ack | Reply::Value(_) => Step::Done,
            Reply::Refused(syndrome) => Step::Fail(syndrome),
            Reply::Connecting => self.wait_for_connection(port),
            _ if self.transport == Transport::Ud => Step::Done,
            Reply::Dead => Step::Fail(Syndrome::RetryExceeded),
            reply => self.retry(reply, port),
        };
        if self.has_retried && matches!(step, Step::Done) {
            self.refill_retries();
        }
        step
    }

    /// A peer that is there shows its memory as soon as it calls into its NIC: poll for that.
    #[cold]
    fn wait_for_connection<P: Port>(&mut self, port: &mut P) -> Step {
        let now = port.now_ns();
        self.has_retried = true;
        let since = *self.connecting_since_ns.get_or_insert(now);
        if now.saturating_sub(since) > CONNECT_NS_MAX {
            let gives_up = self.transport != Transport::Ud;
            return if gives_up { Step::Fail(Syndrome::RetryExceeded) } else { Step::Done };
        }
        self.retry_at_ns = Some(now + CONNECT_RETRY_NS);
        Step::Wait
    }

    #[cold]
    fn retry<P: Port>(&mut self, reply: Reply, port: &mut P) -> Step {
        self.has_retried = true;
        match reply {
            Reply::Silence => {
                let Some(left) = self.retries_left.checked_sub(1) else {
                    return Step::Fail(Syndrome::RetryExceeded);
                };
                self.retries_left = left;
                let timeout = nanos(self.attr.ack_timeout);
                self.retry_at_ns = Some(port.now_ns().saturating_add(timeout));
                Step::Wait
            }
            Reply::NotReady { wait_ns } => {
                const FOR_EVER: u8 = 7;
                match self.rnr_left {
                    0 => return Step::Fail(Syndrome::RnrRetryExceeded),
                    FOR_EVER.. => {}
                    left => self.rnr_left = left - 1,
                }
                self.retry_at_ns = Some(port.now_ns().saturating_add(wait_ns));
                Step::Wait
            }
            _ => Step::Done,
        }
    }

    #[inline]
    fn finish<P: Port>(&mut self, done: Done, port: &mut P) {
        if self.inflight.is_empty() {
            complete(&done, port);
        } else {
            self.inflight.push_back(Inflight::Done(done));
        }
    }

    #[cold]
    pub(super) fn fail<P: Port>(&mut self, mut done: Done, syndrome: Syndrome, port: &mut P) {
        done.completed.failure = Some(syndrome);
        // Whoever sees the completion finds the queue pair in its new state.
        self.fall(port);
        self.finish(done, port);
    }

    fn fail_malformed<P: Port>(&mut self, port: &mut P) {
        // Its length cannot be trusted: take one block, so that the flush that follows ends.
        let done = flushed(Opcode::Nop, self.next);
        self.next = self.next.wrapping_add(1);
        self.fail(done, Syndrome::LocalQpOperation, port);
    }

    fn fall<P: Port>(&mut self, port: &mut P) {
        self.set_state(SendState::Flushing);
        port.fell();
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
        let done = self.doomed(opcode, self.next);
        let left = posted.wrapping_sub(self.next);
        self.next = self.next.wrapping_add(blocks.min(left));
        self.finish(done, port);
    }

    /// A request that is flushed; the first one after the peer's death says why.
    fn doomed(&mut self, opcode: Opcode, counter: u16) -> Done {
        let mut done = flushed(opcode, counter);
        if let Some(doom) = self.doom.take() {
            done.completed.failure = Some(doom);
        }
        done
    }
}

fn nanos(duration: core::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn flushed(opcode: Opcode, counter: u16) -> Done {
    let failure = Some(Syndrome::Flushed);
    Done { completed: Completed { opcode, counter, len_bytes: 0, failure }, signaled: true }
}

pub(super) fn complete<P: Port>(done: &Done, port: &mut P) {
    if done.signaled || done.completed.failure.is_some() {
        port.complete(&done.completed);
    }
}
