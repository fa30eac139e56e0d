//! Calls of futures on their way through one pipeline: those that wait for room there, those that are in flight, and
//! those that are made again later.
//!
//! ```text
//! push ─▶ held ─▶ ready ─▶ pipeline ─▶ ended
//!           ▲       ▲          │
//!           └ due ──┴── retry ─┘
//! ```
//!
//! A deadline counts from the push. One place of the pipeline is kept free for the message that tells the daemon of calls
//! that were given up.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    time::Duration,
};

use ipc::{CallId, Filler};
use os::clock;

use crate::{
    CallError, ClientConfig, ConnectError, Pipeline, Retry, SubmitError, To,
    bulk::{Connection, lending::Beside},
    retry::RetryBudget,
};

/// Calls that wait, at most: more are refused.
const HELD_MAX: usize = 1 << 16;

/// How a call ended.
pub(crate) type Answer = Result<Vec<u8>, CallError>;

/// A call that is to be made.
#[derive(Debug)]
pub(crate) struct NewCall<T> {
    /// Names the call: no other call of the queue ever has this number, and later calls have larger ones.
    pub(crate) number: u64,
    pub(crate) to: To,
    pub(crate) deadline_ns: u64,
    /// Number of its trace; 0: it has none.
    pub(crate) trace: u64,
    pub(crate) beside: Beside,
    /// What is handed back with the answer.
    pub(crate) context: T,
}

#[derive(Debug)]
struct Call<T> {
    number: u64,
    to: To,
    deadline_ns: u64,
    trace: u64,
    /// Before this it is not made again; 0: it was not made yet.
    due_ns: u64,
    retries: u32,
    /// Taken out while it is in flight.
    beside: Beside,
    context: T,
}

/// A call that is in flight.
#[derive(Debug)]
struct Sent {
    id: CallId,
    /// Its body, if it may be made again.
    body: Option<Vec<u8>>,
    beside: Beside,
}

/// Calls of one client.
#[derive(Debug)]
pub(crate) struct CallQueue<T> {
    pipeline: Pipeline<Call<T>>,
    retry: Retry,
    budget: RetryBudget,
    /// Retries so far: what their waits are spread by.
    seed: u64,
    /// Calls that are not in flight, and their bodies.
    held: BTreeMap<u64, (Call<T>, Vec<u8>)>,
    /// Those that wait for room.
    ready: BTreeSet<u64>,
    /// Those that are made again later: when, and which.
    due: BTreeSet<(u64, u64)>,
    /// Deadlines of those that are held.
    deadlines: BTreeSet<(u64, u64)>,
    /// Calls that are in flight.
    sent: BTreeMap<u64, Sent>,
    ended: Vec<(T, Answer)>,
}

impl<T> CallQueue<T> {
    pub(crate) fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        Ok(Self {
            pipeline: Pipeline::connect(path, config)?,
            retry: config.retry,
            budget: RetryBudget::default(),
            seed: u64::from(std::process::id()) << 32,
            held: BTreeMap::new(),
            ready: BTreeSet::new(),
            due: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            sent: BTreeMap::new(),
            ended: Vec::new(),
        })
    }

    /// Connects anew, to the same daemon or its successor. Calls in flight end, and calls that wait go to it.
    pub(crate) fn reconnect(&mut self) -> Result<(), ConnectError> {
        let Self { pipeline, sent, ended, .. } = self;
        pipeline.reconnect(|call, answer| {
            sent.remove(&call.number);
            ended.push((call.context, answer.map(<[u8]>::to_vec)));
        })
    }

    /// Takes a call, which is sent at once if there is room.
    pub(crate) fn push(&mut self, call: NewCall<T>, body: Vec<u8>) {
        let Some(call) = self.admit(call) else { return };
        if self.ready.is_empty() && self.has_room() && self.is_in_order(&call.beside) {
            self.send(call, body, clock::now_ns());
        } else {
            self.hold(call, body, 0);
        }
    }

    /// Like [`push`](Self::push), of a body that `fill` puts where the daemon reads it, if the call is sent at once, and
    /// only once. Otherwise it is put to private memory.
    pub(crate) fn push_filled(
        &mut self,
        call: NewCall<T>,
        len_bytes: usize,
        fill: impl FnOnce(&mut Filler<'_>),
    ) {
        if self.retry.retries_max > 0 || !self.ready.is_empty() || !self.has_room() {
            let mut body = vec![0; len_bytes];
            let mut filler = Filler::from(&mut *body);
            fill(&mut filler);
            let is_given_up = filler.is_given_up();
            filler.finish();
            if is_given_up {
                self.ended.push((call.context, Err(CallError::NotSent(ipc::CallError::GivenUp))));
                return;
            }
            return self.push(call, body);
        }
        let Some(call) = self.admit(call) else { return };
        let (number, to) = (call.number, call.to);
        let left = left(&call, clock::now_ns());
        self.pipeline.set_trace(call.trace);
        match self.pipeline.submit_in_place_within(to, len_bytes, left, call, fill) {
            Ok(id) => {
                drop(self.sent.insert(number, Sent { id, body: None, beside: Beside::Nothing }));
            }
            Err(SubmitError { error, context }) => self.ended.push((context.context, Err(error))),
        }
    }

    fn admit(&mut self, call: NewCall<T>) -> Option<Call<T>> {
        let NewCall { number, to, deadline_ns, trace, beside, context } = call;
        if self.held.len() >= HELD_MAX {
            let error = ipc::CallError::Full { depth: HELD_MAX };
            self.ended.push((context, Err(CallError::NotSent(error))));
            return None;
        }
        self.budget.earn(&self.retry);
        Some(Call { number, to, deadline_ns, trace, due_ns: 0, retries: 0, beside, context })
    }

    /// Whether a call can be sent, and the daemon be told of calls that were given up beside it.
    fn has_room(&self) -> bool {
        let is_told_apart = self.pipeline.depth() > 1;
        self.pipeline.free() > usize::from(is_told_apart)
    }

    /// Whether nothing that is under way keeps a call from being sent.
    fn is_in_order(&self, beside: &Beside) -> bool {
        !beside.is_region() || self.pipeline.can_register()
    }

    /// Whether the first call that waits can be sent.
    fn can_send(&self) -> bool {
        let first = self.ready.first().and_then(|number| self.held.get(number));
        first.is_some_and(|(call, _)| self.has_room() && self.is_in_order(&call.beside))
    }

    fn hold(&mut self, mut call: Call<T>, body: Vec<u8>, due_ns: u64) {
        call.due_ns = due_ns;
        self.deadlines.insert((call.deadline_ns, call.number));
        if due_ns == 0 {
            self.ready.insert(call.number);
        } else {
            self.due.insert((due_ns, call.number));
        }
        self.held.insert(call.number, (call, body));
    }

    fn release(&mut self, number: u64) -> Option<(Call<T>, Vec<u8>)> {
        let (call, body) = self.held.remove(&number)?;
        self.deadlines.remove(&(call.deadline_ns, number));
        self.ready.remove(&number);
        self.due.remove(&(call.due_ns, number));
        Some((call, body))
    }

    fn send(&mut self, mut call: Call<T>, body: Vec<u8>, now_ns: u64) {
        let (number, to, left) = (call.number, call.to, left(&call, now_ns));
        let beside = std::mem::take(&mut call.beside);
        self.pipeline.set_trace(call.trace);
        let submitted = match &beside {
            Beside::Nothing => self.pipeline.submit_within(to, &body, left, call),
            Beside::Slices(slices) => self.pipeline.submit_lending(to, &body, slices, left, call),
            Beside::Region(fd, connection) => {
                self.pipeline.submit_region((fd.as_fd(), *connection), &body, left, call)
            }
        };
        match submitted {
            Ok(id) => {
                let body = (self.retry.retries_max > 0).then_some(body);
                self.sent.insert(number, Sent { id, body, beside });
            }
            Err(SubmitError { error, mut context }) => {
                context.beside = beside;
                self.settle(context, Some(body), error);
            }
        }
    }

    /// A call ended with an error: it is made again later, or its caller is told.
    fn settle(&mut self, mut call: Call<T>, body: Option<Vec<u8>>, error: CallError) {
        let wait = clock::duration_ns(self.retry.wait(call.retries, self.seed));
        let due_ns = clock::now_ns().saturating_add(wait).max(1);
        let may = call.retries < self.retry.retries_max
            && due_ns < call.deadline_ns
            && self.retry.applies_to(&error);
        match body {
            Some(body) if may && self.budget.spend() => {
                call.retries += 1;
                self.seed = self.seed.wrapping_add(1);
                self.hold(call, body, due_ns);
            }
            _ => self.ended.push((call.context, Err(error))),
        }
    }

    /// Sends what there is room for, and takes what the daemon says. Returns how many calls it sent or ended.
    pub(crate) fn turn(&mut self) -> usize {
        if self.pipeline.is_forked() {
            self.cancel_all(ipc::CallError::ForkedHandle);
            return self.ended.len();
        }
        let now_ns = if self.held.is_empty() { 0 } else { clock::now_ns() };
        let mut count = self.expire(now_ns);
        while let Some((due_ns, number)) = self.due.first().copied()
            && due_ns <= now_ns
        {
            self.due.pop_first();
            self.ready.insert(number);
        }
        while self.can_send()
            && let Some(number) = self.ready.first().copied()
            && let Some((call, body)) = self.release(number)
        {
            count += 1;
            self.send(call, body, now_ns);
        }
        self.pipeline.flush();
        count + self.poll()
    }

    fn poll(&mut self) -> usize {
        let Self { pipeline, sent, ended, .. } = self;
        let (mut failed, mut has_registered) = (Vec::new(), false);
        let count = pipeline.poll(|mut call, answer| {
            let mut body = None;
            if let Some(sent) = sent.remove(&call.number) {
                has_registered |= sent.beside.is_region();
                (body, call.beside) = (sent.body, sent.beside);
            }
            match answer {
                Ok(answer) => ended.push((call.context, Ok(answer.to_vec()))),
                Err(error) => failed.push((call, body, error)),
            }
        });
        if has_registered {
            self.pipeline.registered();
        }
        for (call, body, error) in failed {
            self.settle(call, body, error);
        }
        count
    }

    /// Ends calls that wait and whose deadline has passed.
    fn expire(&mut self, now_ns: u64) -> usize {
        let mut count = 0;
        while let Some((deadline_ns, number)) = self.deadlines.first().copied()
            && deadline_ns <= now_ns
            && let Some((call, _)) = self.release(number)
        {
            count += 1;
            let error = CallError::NotSent(ipc::CallError::Deadline);
            self.ended.push((call.context, Err(error)));
        }
        count
    }

    /// Gives a call up, unless it has ended. Whoever executes it is told.
    pub(crate) fn cancel(&mut self, number: u64) -> Option<T> {
        if let Some((call, _)) = self.release(number) {
            return Some(call.context);
        }
        if self.sent.get(&number).is_some_and(|sent| sent.beside.is_region()) {
            // Nothing else gets its descriptor, and nobody is told.
            return None;
        }
        let sent = self.sent.remove(&number)?;
        let call = self.pipeline.cancel(sent.id)?;
        self.pipeline.flush();
        Some(call.context)
    }

    /// After the last call was given up, when nobody polls any more: tells the daemon of all that were. That waits, for
    /// `longest`, only if more were given up together than there are places for messages.
    pub(crate) fn tell_given_up(&mut self, longest: Duration) {
        let until_ns = clock::deadline_ns(longest);
        loop {
            self.turn();
            if !self.is_empty() || !self.pipeline.has_untold() || clock::now_ns() >= until_ns {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Gives all calls up, with this reason.
    pub(crate) fn cancel_all(&mut self, reason: ipc::CallError) {
        while let Some((number, _)) = self.held.first_key_value() {
            let number = *number;
            if let Some((call, _)) = self.release(number) {
                self.ended.push((call.context, Err(CallError::NotSent(reason))));
            }
        }
        while let Some((_, sent)) = self.sent.pop_first() {
            if let Some(call) = self.pipeline.cancel(sent.id) {
                self.ended.push((call.context, Err(CallError::Daemon(reason))));
            }
        }
        self.pipeline.flush();
    }

    /// The calls that ended since they were taken last, each with its answer.
    pub(crate) fn take_ended(&mut self) -> Vec<(T, Answer)> {
        std::mem::take(&mut self.ended)
    }

    /// Whether all calls have ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.pipeline.in_flight() == 0
    }

    /// Before a sleep: what is to be waited for besides [`next_ns`](Self::next_ns). `None`: nothing, there is something
    /// to do.
    pub(crate) fn arm(&mut self) -> Option<Awaits> {
        if self.can_send() || !self.ended.is_empty() {
            return None;
        }
        if self.pipeline.awaits_answers() {
            return self.pipeline.arm().then_some(Awaits::Daemon);
        }
        // The calls of a connection that is gone end with the next look.
        (self.pipeline.in_flight() == 0).then_some(Awaits::Time)
    }

    /// When there is something to do if the daemon says nothing, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) fn next_ns(&self) -> u64 {
        let of_held = [self.deadlines.first(), self.due.first()];
        let of_held = of_held.into_iter().flatten().map(|(time_ns, _)| *time_ns).min();
        self.pipeline.earliest_deadline_ns().min(of_held.unwrap_or(u64::MAX))
    }

    /// Whether this process is a `fork(2)` of the one that connected.
    pub(crate) fn is_forked(&self) -> bool {
        self.pipeline.is_forked()
    }

    /// The connection of now: each has a descriptor of its own.
    pub(crate) fn connection(&self) -> Connection {
        self.pipeline.connection()
    }
}

/// What a sleep ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaits {
    /// Time alone.
    Time,
    /// The descriptor becomes readable, or time passes.
    Daemon,
}

impl<T> AsFd for CallQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipeline.as_fd()
    }
}

/// Time until the deadline of a call.
fn left<T>(call: &Call<T>, now_ns: u64) -> Duration {
    Duration::from_nanos(call.deadline_ns.saturating_sub(now_ns))
}
