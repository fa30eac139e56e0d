//! Many calls at a time, reported to a closure.

mod lending;
mod meeting;

use std::{
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    time::{Duration, Instant},
};

use ipc::{CallId, Filled, Filler, LentBytes};
use zerocopy::IntoBytes as _;

use crate::{
    CallError, ClientConfig, ConnectError, HERE, Status, To,
    bulk::Connection,
    call_head,
    direct::{DirectCalls, DirectHeads, direct_error},
    ipc_config,
    message::{CallExtra, DAEMON, method},
    patience,
    pipeline::meeting::{end_by_daemon, end_in_session},
};

/// Why a call was not made; the context comes back.
///
/// ```
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{Pipeline, To};
///
/// fn submit(pipeline: &mut Pipeline<String>, to: To, key: String) {
///     let body = key.clone();
///     if let Err(refused) = pipeline.submit(to, body.as_bytes(), key) {
///         println!("{}: {}", refused.context, refused.error);
///     }
/// }
/// ```
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct SubmitError<C> {
    /// Reason that nothing was sent.
    pub error: CallError,
    /// The context that the caller passed with the call.
    pub context: C,
}

/// A process's connection to its daemon with many calls in flight, each with a context of type `C`.
///
/// ```no_run
/// # use copyrpc_client::{ClientConfig, Pipeline, To};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut pipeline = Pipeline::connect("/run/user/1000/copyrpc/job.sock".as_ref(), ClientConfig::default())?;
/// for rank in 0..8 {
///     pipeline.submit(To { rank, service: 17, method: 1 }, b"hello", rank)?;
/// }
/// let mut left = 8;
/// while left > 0 {
///     left -= pipeline.poll(|rank, answer| println!("{rank}: {answer:?}"));
///     pipeline.rest();
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Pipeline<C> {
    ipc: Ipc<C>,
    /// Providers of this node that are called without the daemon.
    direct: DirectCalls<Ipc<C>>,
    /// On its way, while the daemon is asked to introduce it.
    newcomer: Option<ipc::Newcomer>,
    /// Messages about introductions that are under way.
    meeting: usize,
    given_up: GivenUp,
    config: ClientConfig,
    trace: u64,
    /// A region is being registered: descriptors of introductions would be taken for it.
    is_registering: bool,
    connection: Connection,
    /// Calls that ended with a connection that was replaced, not yet reported.
    ended: Vec<(C, CallError)>,
    /// After how many attempts to find a daemon that is gone, and when the next may be.
    attempts: u32,
    attempt_at: Option<Instant>,
}

type Ipc<C> = ipc::PipelinedClient<Sent<C>>;

/// What a message is about.
#[derive(Debug)]
enum Sent<C> {
    Call(To, C),
    /// Calls that were given up.
    GivenUp,
    /// Whether the daemon would introduce this process to the provider of a place.
    MayMeet(usize),
    /// That it does.
    Meet(usize),
}

/// Calls that were given up, and that the daemon is still to be told of.
#[derive(Debug)]
struct GivenUp {
    calls: Vec<CallId>,
    /// Messages that are under way.
    telling: usize,
    /// Whether the daemon takes such messages: a daemon of an earlier version does not.
    can_tell: bool,
}

impl GivenUp {
    /// A connection on which no call was given up.
    const NONE: Self = Self { calls: Vec::new(), telling: 0, can_tell: true };

    /// The daemon answered a message.
    fn told<T>(&mut self, outcome: &Result<T, ipc::Failed<'_>>) {
        self.telling = self.telling.saturating_sub(1);
        let refused = outcome.as_ref().err().map(|failed| CallError::of(*failed, TO_DAEMON));
        self.can_tell &= !refused.is_some_and(|it| it.status() == Status::Unimplemented);
    }
}

const TO_DAEMON: To = To { rank: HERE, service: DAEMON, method: method::CANCEL };

impl<C> Pipeline<C> {
    /// Connects to the daemon whose socket is at `path`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        let of_ipc = ipc_config(config)?;
        let ipc = ipc::PipelinedClient::connect(path, of_ipc)?;
        let (ended, attempt_at) = (Vec::new(), None);
        let given_up = GivenUp::NONE;
        let (trace, attempts) = (0, 0);
        let (is_registering, connection) = (false, Connection::first());
        let direct = DirectCalls::new(of_ipc);
        let (newcomer, meeting) = (None, 0);
        Ok(Self {
            ipc,
            direct,
            newcomer,
            meeting,
            given_up,
            config,
            trace,
            is_registering,
            connection,
            ended,
            attempts,
            attempt_at,
        })
    }

    /// Connects again, to the same daemon or its successor, and ends calls that are in flight.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the pipeline stays as it was.
    pub fn reconnect(
        &mut self,
        mut done: impl FnMut(C, Result<&[u8], CallError>),
    ) -> Result<(), ConnectError> {
        self.ipc.reconnect(|sent, answer| {
            if let Sent::Call(to, context) = sent {
                done(context, answer.map_err(|failed| CallError::of(failed, to)));
            }
        })?;
        for session in self.direct.sessions() {
            session.end(|sent, answer| {
                if let Sent::Call(to, context) = sent {
                    done(context, answer.map_err(|failed| direct_error(failed, to)));
                }
            });
        }
        self.connected();
        Ok(())
    }

    /// Calls from now on carry the number of a trace and their caller to handlers; 0: no longer.
    pub fn set_trace(&mut self, trace: u64) {
        self.trace = trace;
    }

    /// There is a new connection.
    fn connected(&mut self) {
        self.given_up = GivenUp::NONE;
        self.direct.begin_anew();
        self.meeting = 0;
        self.newcomer = None;
        // The descriptor is another one. A session that it does not tell of is looked at now and then.
        let _ = self.direct.all().try_for_each(|session| self.ipc.watch(session));
        self.is_registering = false;
        self.connection.replace();
        self.attempts = 0;
        self.attempt_at = None;
    }

    /// Looks for the daemon that is gone, or its successor, if the configuration allows retries and it is
    /// time to. Calls of the old connection are reported by the next poll.
    #[cold]
    fn find_daemon(&mut self) -> bool {
        let (retry, now) = (self.config.retry, Instant::now());
        if retry.retries_max == 0 || self.attempt_at.is_some_and(|at| now < at) {
            return false;
        }
        let ended = &mut self.ended;
        let found = self.ipc.reconnect(|sent, answer| {
            if let (Sent::Call(to, context), Err(failed)) = (sent, answer) {
                ended.push((context, CallError::of(failed, to)));
            }
        });
        if found.is_ok() {
            self.connected();
        } else {
            self.attempt_at = Some(now + retry.wait(self.attempts, u64::from(self.attempts)));
            self.attempts += 1;
        }
        found.is_ok()
    }

    /// Makes a call, with the configured deadline. The daemon may not notice before the next
    /// [`flush`](Self::flush) or [`poll`](Self::poll). If the daemon is gone, it is looked for first, as
    /// [`ClientConfig::retry`] allows.
    ///
    /// # Errors
    ///
    /// [`SubmitError`], in particular when as many calls are in flight as the daemon allows.
    pub fn submit(&mut self, to: To, body: &[u8], context: C) -> Result<CallId, SubmitError<C>> {
        self.submit_within(to, body, self.config.timeout, context)
    }

    /// Like [`submit`](Self::submit), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`SubmitError`].
    pub fn submit_within(
        &mut self,
        to: To,
        body: &[u8],
        timeout: Duration,
        context: C,
    ) -> Result<CallId, SubmitError<C>> {
        match self.submit_once(to, body, timeout, context) {
            Err(refused) if refused.error.is_daemon_gone() && self.find_daemon() => {
                self.submit_once(to, body, timeout, refused.context)
            }
            submitted => submitted,
        }
    }

    /// Like [`submit`](Self::submit), with a body of `len_bytes` bytes that `fill` puts where the daemon reads
    /// them. Other bytes are zeros. If it panics or [gives up](Filler::give_up), no call is made.
    ///
    /// # Errors
    ///
    /// [`SubmitError`]. Then nothing was filled, unless it gave up, and no daemon was looked for.
    pub fn submit_in_place(
        &mut self,
        to: To,
        len_bytes: usize,
        context: C,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<CallId, SubmitError<C>> {
        self.submit_in_place_within(to, len_bytes, self.config.timeout, context, fill)
    }

    /// Like [`submit_in_place`](Self::submit_in_place), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`SubmitError`].
    pub fn submit_in_place_within(
        &mut self,
        to: To,
        len_bytes: usize,
        timeout: Duration,
        context: C,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<CallId, SubmitError<C>> {
        let call = Sent::Call(to, context);
        if self.free() == 0 {
            return Err(self.full(call));
        }
        if let Some(session) = self.session_for(to) {
            let heads = DirectHeads::new(to.method, timeout, self.trace);
            let head = heads.parts();
            let head_bytes = head[0].len() + head[1].len();
            // What fills the rest does so once: from here on there is no other way.
            if let Some(session) = self.direct.session(session).filter(|session| {
                let max_bytes = session.terms().request_bytes_max;
                session.free() > 0 && head_bytes + len_bytes <= max_bytes
            }) {
                let request = Filled::behind(&head, len_bytes, fill);
                let submitted = session.submit_filled_within(&request, timeout, call);
                return submitted.map_err(not_submitted);
            }
        }
        let head = call_head(to, timeout, self.config.response_bytes, self.trace);
        let extra = CallExtra { trace: self.trace.into() };
        let extra = if self.trace == 0 { &[][..] } else { extra.as_bytes() };
        let head = [head.as_bytes(), extra];
        let request = Filled::behind(&head, len_bytes, fill);
        let submitted = self.ipc.submit_filled_within(&request, patience(timeout), call);
        submitted.map_err(not_submitted)
    }

    fn submit_once(
        &mut self,
        to: To,
        body: &[u8],
        timeout: Duration,
        context: C,
    ) -> Result<CallId, SubmitError<C>> {
        let mut call = Sent::Call(to, context);
        if self.free() == 0 {
            return Err(self.full(call));
        }
        if let Some(place) = self.session_for(to)
            && let Some(session) = self.direct.session(place)
        {
            let heads = DirectHeads::new(to.method, timeout, self.trace);
            let [head, extra] = heads.parts();
            match session.submit_parts_within(&[head, extra, body], timeout, call) {
                Ok(id) => return Ok(id),
                // The daemon has room, or says why there is none.
                Err(refused) => call = refused.context,
            }
        }
        let head = call_head(to, timeout, self.config.response_bytes, self.trace);
        let extra = CallExtra { trace: self.trace.into() };
        let extra = if self.trace == 0 { &[][..] } else { extra.as_bytes() };
        let parts = [head.as_bytes(), extra, body];
        let submitted = self.ipc.submit_parts_within(&parts, patience(timeout), call);
        submitted.map_err(not_submitted)
    }

    /// As many calls are in flight as may be, whichever way they went.
    #[cold]
    fn full(&self, call: Sent<C>) -> SubmitError<C> {
        // A connection that is gone says so first.
        let full = ipc::CallError::Full { depth: self.ipc.depth() };
        let error = self.ipc.gone().unwrap_or(full);
        not_submitted(ipc::SubmitError { error, context: call })
    }

    /// Sees to it that the daemon notices all calls so far, and those that were [given up](Self::cancel).
    pub fn flush(&mut self) {
        self.tell_given_up();
        self.ipc.flush();
        if !self.direct.is_empty() {
            self.direct.sessions().for_each(ipc::PipelinedClient::flush);
        }
    }

    /// Tells the daemon of calls that were given up: one message at a time, and more while most of the room is free.
    fn tell_given_up(&mut self) {
        if self.given_up.calls.is_empty() {
            return;
        }
        let is_roomy = self.ipc.free() > self.ipc.depth() / 2;
        if self.given_up.telling > 0 && !is_roomy {
            return;
        }
        let calls = std::mem::take(&mut self.given_up.calls);
        if !self.given_up.can_tell {
            return;
        }
        let head = call_head(TO_DAEMON, self.config.timeout, 0, 0);
        // The entry of a call that was answered meanwhile may be that of another one.
        let calls: Vec<_> = calls.into_iter().filter(|id| self.ipc.holds_entry(*id)).collect();
        if calls.is_empty() {
            return;
        }
        let numbers: Vec<u8> = calls.iter().flat_map(|id| id.call().to_le_bytes()).collect();
        let parts = [head.as_bytes(), &numbers];
        match self.ipc.submit_parts_within(&parts, patience(self.config.timeout), Sent::GivenUp) {
            Ok(_) => self.given_up.telling += 1,
            // A response makes room.
            Err(ipc::SubmitError { error: ipc::CallError::Full { .. }, .. }) => {
                self.given_up.calls = calls;
            }
            Err(_) => {}
        }
    }

    /// Reports calls that ended, and returns their number. Never sleeps.
    pub fn poll(&mut self, mut done: impl FnMut(C, Result<&[u8], CallError>)) -> usize {
        let reported = self.report_ended(|context, error| done(context, Err(error)));
        self.tell_given_up();
        let (mut told, mut met) = (0, Vec::new());
        let given_up = &mut self.given_up;
        let ended = self.ipc.poll_outcomes(|sent, outcome| {
            told += end_by_daemon(sent, outcome, given_up, &mut met, &mut done);
        });
        let mut over = Vec::new();
        let ended_direct = self.poll_sessions(met, |session| {
            session
                .poll_outcomes(|sent, outcome| end_in_session(sent, outcome, &mut over, &mut done))
        });
        self.report_over(over, |context, error| done(context, Err(error)));
        reported + ended - told + ended_direct
    }

    /// Like [`poll`](Self::poll), with answers that are lent where the daemon put them, during the call of the
    /// closure.
    pub fn poll_lent(
        &mut self,
        mut done: impl FnMut(C, Result<LentBytes<'_>, CallError>),
    ) -> usize {
        let reported = self.report_ended(|context, error| done(context, Err(error)));
        self.tell_given_up();
        let (mut told, mut met) = (0, Vec::new());
        let given_up = &mut self.given_up;
        let ended = self.ipc.poll_lent(|sent, outcome| {
            told += end_by_daemon(sent, outcome, given_up, &mut met, &mut done);
        });
        let mut over = Vec::new();
        let ended_direct = self.poll_sessions(met, |session| {
            session.poll_lent(|sent, outcome| end_in_session(sent, outcome, &mut over, &mut done))
        });
        self.report_over(over, |context, error| done(context, Err(error)));
        reported + ended - told + ended_direct
    }

    /// Reports calls that ended with a connection that was replaced.
    fn report_ended(&mut self, mut done: impl FnMut(C, CallError)) -> usize {
        let reported = self.ended.len();
        for (context, error) in self.ended.drain(..) {
            done(context, error);
        }
        reported
    }

    /// After a poll that reported nothing: spins, yields or sleeps as configured, at most until the
    /// earliest deadline. Then poll again.
    pub fn rest(&mut self) {
        self.tell_given_up();
        if self.direct.is_empty() {
            return self.ipc.rest();
        }
        match self.ipc.idle_step() {
            ipc::IdleStep::Spun => {}
            ipc::IdleStep::Yielded => {
                self.direct.sessions().for_each(ipc::PipelinedClient::hurry_clock);
            }
            ipc::IdleStep::Sleep => {
                if self.arm() {
                    self.ipc.nap(self.earliest_deadline_ns());
                }
            }
        }
    }

    /// Before waiting for the descriptor by other means: `true` if it will become readable. Wait no
    /// longer than to [`earliest_deadline_ns`](Self::earliest_deadline_ns), then poll.
    pub fn arm(&mut self) -> bool {
        // The last poll may have made room for the message.
        self.tell_given_up();
        let is_idle = self.ipc.arm();
        // All of them: those that are armed are looked at with the next poll.
        let busy = self.direct.sessions().filter(|session| session.free() < session.depth());
        busy.fold(is_idle, |is_idle, session| session.arm() & is_idle)
    }

    /// When the next call ends even if the daemon says nothing, in nanoseconds of `CLOCK_MONOTONIC`;
    /// `u64::MAX` if there is none. Exact after [`arm`](Self::arm).
    #[must_use]
    pub fn earliest_deadline_ns(&self) -> u64 {
        let of_sessions = self.direct.all().map(ipc::PipelinedClient::earliest_deadline_ns);
        of_sessions.fold(self.ipc.earliest_deadline_ns(), u64::min)
    }

    /// Stops waiting for a call, and returns its context unless it has ended. It may be executed. With the next
    /// [`flush`](Self::flush) or [`poll`](Self::poll) the daemon learns of it, and so does the handler; if all
    /// calls are in flight, with the first poll after a response.
    pub fn cancel(&mut self, id: CallId) -> Option<C> {
        if let Some(session) = self.direct.session_of_call(id.generation()) {
            // The provider sees it where it reads requests.
            return match session.cancel(id)? {
                Sent::Call(_, context) => Some(context),
                _ => None,
            };
        }
        match self.ipc.cancel(id)? {
            Sent::Call(_, context) => {
                self.given_up.calls.push(id);
                Some(context)
            }
            _ => None,
        }
    }

    /// Calls in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let messages = self.given_up.telling + self.meeting;
        let of_sessions: usize = self.direct.all().map(ipc::PipelinedClient::in_flight).sum();
        self.ipc.in_flight().saturating_sub(messages) + of_sessions + self.ended.len()
    }

    /// Calls that can be made now.
    #[inline]
    #[must_use]
    pub fn free(&self) -> usize {
        if self.direct.is_empty() {
            return self.ipc.free();
        }
        let taken = self.direct.all().map(|session| session.depth() - session.free());
        self.ipc.free().saturating_sub(taken.sum())
    }

    /// Whether the daemon or a provider has something to say: it was asked, and it is not known to be gone.
    pub(crate) fn awaits_answers(&self) -> bool {
        let mut all = [&self.ipc].into_iter().chain(self.direct.all());
        all.any(|client| client.gone().is_none() && client.free() < client.depth())
    }

    /// Calls that were [given up](Self::cancel), and hold their places until the daemon or the provider has answered: poll
    /// meanwhile.
    #[must_use]
    pub fn held(&self) -> usize {
        let all = [&self.ipc].into_iter().chain(self.direct.all());
        let alive = all.filter(|client| client.gone().is_none());
        alive.map(|client| client.depth() - client.free() - client.in_flight()).sum()
    }

    /// Whether the daemon is still to be told of calls that were given up.
    pub(crate) fn has_untold(&self) -> bool {
        !self.given_up.calls.is_empty()
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.ipc.is_forked()
    }

    /// The connection of now: each has a descriptor of its own.
    pub(crate) fn connection(&self) -> Connection {
        self.connection
    }

    /// Most calls in flight.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.ipc.depth()
    }
}

fn not_submitted<C>(refused: ipc::SubmitError<Sent<C>>) -> SubmitError<C> {
    let Sent::Call(_, context) = refused.context else {
        unreachable!("a call has a context");
    };
    SubmitError { error: CallError::not_sent(refused.error), context }
}

impl<C> AsFd for Pipeline<C> {
    /// Readable when there is something to poll for, if [`Pipeline::arm`] said so.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ipc.as_fd()
    }
}

#[cfg(test)]
mod tests;
