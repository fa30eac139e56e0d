//! The sending half of a queue pair: what it remembers, what a reply means, and completion in order.
//!
//! Module `advance` takes the WQEs: by `plain`, the short way, or one by one; by `pending` where answers come later.

use std::collections::VecDeque;

use verbs::{RtsAttr, Transport};
use wire::{
    cqe::Syndrome,
    ids::{Lid, Qpn},
    wqe::Opcode,
};

use super::{
    Reply, Sequence,
    port::{Completed, Done, Port},
};

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
    /// It was sent, and its answer has not come.
    Pending(Pending),
}

/// A request that is outstanding.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) wqe: Box<[u8]>,
    /// What is completed if it succeeds.
    pub(super) done: Done,
    pub(super) sequence: Sequence,
    /// Not to be sent again.
    pub(super) is_sent: bool,
}

impl Pending {
    /// Whether only its own answer settles it.
    pub(super) fn has_result(&self) -> bool {
        has_result(self.done.completed.opcode)
    }
}

/// Whether requests of this kind bring something back.
pub(super) fn has_result(opcode: Opcode) -> bool {
    opcode == Opcode::RdmaRead || opcode.is_atomic()
}

/// How the stream of a queue pair stands.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Of the next request.
    pub(super) next: Sequence,
    /// Requests in flight that are not settled.
    pub(super) outstanding: usize,
    /// DCI: when the last request was sent.
    pub(super) last_ns: u64,
    /// When the oldest of them is sent again.
    pub(super) answer_due_ns: Option<u64>,
}

/// Sending half of one queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(super) transport: Transport,
    pub(super) qpn: Qpn,
    /// RC without answers: what has been sent is done.
    pub(crate) is_unreliable: bool,
    /// RC: the peer.
    pub(super) peer: Option<(Lid, Qpn)>,
    pub(super) state: SendState,
    pub(super) attr: RtsAttr,
    /// Counter of the next WQE to take, in WQEBBs.
    pub(super) next: u16,
    pub(super) retries_left: u8,
    rnr_left: u8,
    pub(super) retry_at_ns: Option<u64>,
    /// The request that waits until then has no retry left.
    pub(super) is_last_wait: bool,
    /// Since when a peer that is there has not shown its memory.
    connecting_since_ns: Option<u64>,
    /// Something above was used up since the last success.
    pub(super) has_retried: bool,
    pub(super) inflight: VecDeque<Inflight>,
    /// What the next request fails with, before the flush.
    pub(super) pending_error: Option<Syndrome>,
    /// How many of `inflight` are deferred.
    pub(super) deferred: usize,
    /// DCI: the target of the requests in flight.
    pub(super) connected: Option<(Lid, Qpn)>,
    /// Where answers come later: the stream of requests.
    pub(super) outgoing: Outgoing,
}

/// Result of trying one WQE.
pub(super) enum Step {
    Done,
    /// Keep it; retry later.
    Wait,
    Fail(Syndrome),
}

impl Requester {
    pub(crate) fn new(transport: Transport, qpn: Qpn, is_unreliable: bool) -> Self {
        Self {
            transport,
            qpn,
            is_unreliable,
            peer: None,
            state: SendState::Stopped,
            attr: RtsAttr::default(),
            next: 0,
            retries_left: 0,
            rnr_left: 0,
            retry_at_ns: None,
            is_last_wait: false,
            connecting_since_ns: None,
            has_retried: false,
            inflight: VecDeque::new(),
            pending_error: None,
            deferred: 0,
            connected: None,
            outgoing: Outgoing::default(),
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

    /// RTS, with these attributes if it comes from RTR.
    pub(crate) fn start(&mut self, attr: Option<&RtsAttr>) {
        if let Some(attr) = attr {
            self.attr = *attr;
            self.outgoing.next = Sequence { connection: 0, psn: attr.sq_psn.get() };
        }
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
        self.outgoing = Outgoing::default();
    }

    /// The peer is gone. If nothing is outstanding, the next request learns it.
    pub(crate) fn lose_peer(&mut self) {
        self.pending_error = Some(Syndrome::RetryExceeded);
        self.set_state(SendState::Flushing);
    }

    pub(super) fn refill_retries(&mut self) {
        self.retries_left = self.attr.retry_count;
        self.rnr_left = self.attr.rnr_retry;
        self.retry_at_ns = None;
        self.is_last_wait = false;
        self.connecting_since_ns = None;
        self.has_retried = false;
    }

    /// Completes what is done at the front.
    pub(super) fn drain<P: Port>(&mut self, port: &mut P) {
        while let Some(Inflight::Done(done)) = self.inflight.front() {
            complete(done, port);
            self.inflight.pop_front();
        }
    }

    /// What a reply means for the request that got it.
    #[inline]
    pub(super) fn judge<P: Port>(&mut self, reply: Reply, port: &mut P) -> Step {
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
    pub(super) fn retry<P: Port>(&mut self, reply: Reply, port: &mut P) -> Step {
        self.has_retried = true;
        match reply {
            Reply::Silence => {
                self.is_last_wait = !self.use_retry();
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

    /// Takes one of the retries that a loss costs; `false`: there is none.
    pub(super) fn use_retry(&mut self) -> bool {
        self.has_retried = true;
        let left = self.retries_left.checked_sub(1);
        self.retries_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Nobody has answered the last attempt in time: what is outstanding learns it, the oldest first.
    #[cold]
    pub(super) fn give_up<P: Port>(&mut self, port: &mut P) {
        self.pending_error = Some(Syndrome::RetryExceeded);
        self.fall(port);
    }

    #[inline]
    pub(super) fn finish<P: Port>(&mut self, done: Done, port: &mut P) {
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

    pub(super) fn fall<P: Port>(&mut self, port: &mut P) {
        self.set_state(SendState::Flushing);
        port.fell();
    }

    /// A request that is flushed; the first one after the peer's death says why.
    pub(super) fn flush_result(&mut self, opcode: Opcode, counter: u16) -> Done {
        let mut done = flushed(opcode, counter);
        if let Some(pending_error) = self.pending_error.take() {
            done.completed.failure = Some(pending_error);
        }
        done
    }
}

pub(super) fn nanos(duration: core::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn flushed(opcode: Opcode, counter: u16) -> Done {
    let failure = Some(Syndrome::Flushed);
    Done { completed: Completed { opcode, counter, len_bytes: 0, failure }, signaled: true }
}

pub(super) fn complete<P: Port>(done: &Done, port: &mut P) {
    if done.signaled || done.completed.failure.is_some() {
        port.complete(&done.completed);
    }
}
