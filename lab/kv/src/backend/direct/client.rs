//! The client thread's end.

use std::time::Duration;

use os::clock;
use rpc::{Body, Call, CallEnd, CallError, CloseReason, Handler, PeerId, Request, Worker};
use verbs::{Channel as _, Nic};

use super::{join, options};
use crate::{
    backend::{
        BackendError, CallToken, Client, Contact, Counters, Event, JobSetup, Roster, SubmitError,
        found::Found, inbox::Inbox,
    },
    place::Shard,
};

/// A worker with a connection per shard.
pub struct DirectClient<N: Nic> {
    worker: Worker<N>,
    /// By shard.
    peers: Vec<PeerId>,
    contact: Contact,
    me: usize,
    call: Call,
    message_bytes_max: usize,
    /// What a poll found that had nobody to tell.
    found: Inbox<Found>,
    /// Why connections ended: at most one for each.
    losses: Vec<CloseReason>,
    waits: u64,
}

impl<N: Nic> DirectClient<N> {
    pub(super) fn new(
        worker: Worker<N>,
        peers: Vec<PeerId>,
        contact: Contact,
        me: usize,
        setup: &JobSetup,
    ) -> Self {
        let call = Call {
            method: 0,
            response_bytes: options::response_bytes(setup),
            timeout: Duration::from_nanos(setup.timeout_ns),
            ..Call::default()
        };
        let message_bytes_max = setup.message_bytes_max;
        Self {
            worker,
            peers,
            contact,
            me,
            call,
            message_bytes_max,
            found: Inbox::default(),
            losses: Vec::new(),
            waits: 0,
        }
    }
}

/// Passes on what a poll finds.
struct Listener<'a, F> {
    peers: &'a [PeerId],
    losses: &'a mut Vec<CloseReason>,
    tell: F,
}

impl<N: Nic, F: FnMut(Found, &[u8])> Handler<N> for Listener<'_, F> {
    #[inline(always)]
    fn request(&mut self, _: &mut Worker<N>, request: Request, _: Body<'_, N>) {
        drop(request.token); // nobody calls a client: the caller is told that there is no answer
    }

    #[inline(always)]
    fn ended(&mut self, _: &mut Worker<N>, cookie: u64, end: CallEnd<'_, N>) {
        (self.tell)(Found::Ended(cookie, end.status()), &end.bytes());
    }

    fn closed(&mut self, _: &mut Worker<N>, peer: PeerId, reason: CloseReason) {
        self.losses.push(reason);
        if let Some(shard) = self.peers.iter().position(|other| *other == peer) {
            (self.tell)(Found::Lost(shard), &[]);
        }
    }
}

impl<N: Nic> Client for DirectClient<N> {
    fn contact(&self) -> Contact {
        self.contact.clone()
    }

    fn join(&mut self, roster: &Roster, _deadline_ns: u64) -> Result<(), BackendError> {
        join(&mut self.worker, &self.peers, &roster.servers, self.me)
    }

    fn submit(&mut self, to: Shard, token: CallToken, request: &[u8]) -> Result<(), SubmitError> {
        let &peer = self.peers.get(usize::from(to.0)).ok_or(SubmitError::Gone(to))?;
        let call = Call { cookie: token.0, ..self.call };
        match self.worker.call(peer, &call, request) {
            Ok(_) => Ok(()),
            Err(CallError::Busy(_) | CallError::NoMemory { .. }) => Err(SubmitError::Full),
            Err(CallError::TooLong { .. } | CallError::NoPlace { .. }) => {
                let max_bytes = self.message_bytes_max;
                Err(SubmitError::TooLarge { len_bytes: request.len(), max_bytes })
            }
            Err(CallError::NotConnected | CallError::Nested) => Err(SubmitError::Gone(to)),
        }
    }

    /// One poll of the worker; it finds no more events than there are calls.
    fn poll(
        &mut self,
        _budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, BackendError> {
        let mut count = 0;
        while let Some((found, bytes)) = self.found.pop() {
            sink(found.event(bytes));
            count += 1;
        }
        let tell = |found: Found, bytes: &[u8]| {
            sink(found.event(bytes));
            count += 1;
        };
        let Self { worker, peers, losses, .. } = self;
        worker.poll(clock::now_ns(), &mut Listener { peers, losses, tell });
        Ok(count)
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        let Self { worker, peers, found, losses, .. } = self;
        // Arm, then look once more, then sleep: what came before the arming is not slept over.
        worker.arm().map_err(|cause| BackendError::new("cannot wait for the NIC", cause))?;
        let tell = |event, bytes: &[u8]| found.push(event, bytes);
        worker.poll(clock::now_ns(), &mut Listener { peers, losses, tell });
        if found.is_empty() {
            self.waits += 1;
            sleep(worker, deadline_ns);
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        let mut counters = counters(&self.worker, &self.peers, "client", self.waits);
        for reason in &self.losses {
            *counters.named.entry(format!("client lost: {reason}")).or_default() += 1;
        }
        counters
    }
}

/// Sleeps until an armed queue fires, or the deadline, or something else is due.
pub(super) fn sleep<N: Nic>(worker: &Worker<N>, deadline_ns: u64) {
    let until_ns = worker.wake_ns().map_or(deadline_ns, |due_ns| due_ns.min(deadline_ns));
    let left = Duration::from_nanos(until_ns.saturating_sub(clock::now_ns()));
    let nap = worker.nic().poll_timeout().map_or(left, |nic| left.min(nic));
    if let Some(channel) = worker.channel() {
        channel.wait(nap);
    }
}

/// What a worker and its connections count.
pub(super) fn counters<N: Nic>(
    worker: &Worker<N>,
    peers: &[PeerId],
    side: &str,
    waits: u64,
) -> Counters {
    let mut counters = Counters::default();
    let stats = worker.stats();
    let mut add = |name: &str, count: u64| {
        *counters.named.entry(format!("{side} {name}")).or_default() += count;
    };
    add("waits", waits);
    add("polls", stats.polls);
    add("send queue full", stats.send_queue_full);
    for peer in peers.iter().filter_map(|&peer| worker.counters(peer)) {
        add("batches out", peer.batches_out);
        add("messages out", peer.messages_out);
        add("batches in", peer.batches_in);
        add("messages in", peer.messages_in);
        add("ring full", peer.ring_full);
    }
    counters
}
