//! Many calls at a time, reported to a closure.

use std::{
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    time::{Duration, Instant},
};

use ipc::{CallId, Filled, Filler, LentBytes};
use zerocopy::IntoBytes as _;

use crate::{
    CallError, ClientConfig, ConnectError, To, call_head, ipc_config, message::CallExtra, patience,
};

/// Why a call was not made; the context comes back.
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
    ipc: ipc::PipelinedClient<(To, C)>,
    config: ClientConfig,
    trace: u64,
    /// Calls that ended with a connection that was replaced, not yet reported.
    ended: Vec<(C, CallError)>,
    /// After how many attempts to find a daemon that is gone, and when the next may be.
    attempts: u32,
    attempt_at: Option<Instant>,
}

impl<C> Pipeline<C> {
    /// Connects to the daemon whose socket is at `path`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        let ipc = ipc::PipelinedClient::connect(path, ipc_config(config))?;
        let (ended, attempt_at) = (Vec::new(), None);
        Ok(Self { ipc, config, trace: 0, ended, attempts: 0, attempt_at })
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
        self.ipc.reconnect(|(to, context), answer| {
            done(context, answer.map_err(|failed| CallError::of(failed, to)));
        })
    }

    /// From now on, handlers are told that calls belong to the trace of this number, and who calls; 0: no
    /// longer.
    pub fn set_trace(&mut self, trace: u64) {
        self.trace = trace;
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
        let found = self.ipc.reconnect(|(to, context), answer| {
            if let Err(failed) = answer {
                ended.push((context, CallError::of(failed, to)));
            }
        });
        if found.is_ok() {
            (self.attempts, self.attempt_at) = (0, None);
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
    /// them. What it does not put is zeros. If it panics or [gives up](Filler::give_up), no call is made.
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
        let head = call_head(to, timeout, self.config.response_bytes, self.trace);
        let extra = CallExtra { trace: self.trace.into() };
        let extra = if self.trace == 0 { &[][..] } else { extra.as_bytes() };
        let head = [head.as_bytes(), extra];
        let request = Filled::behind(&head, len_bytes, fill);
        let submitted = self.ipc.submit_filled_within(&request, patience(timeout), (to, context));
        submitted.map_err(not_submitted)
    }

    fn submit_once(
        &mut self,
        to: To,
        body: &[u8],
        timeout: Duration,
        context: C,
    ) -> Result<CallId, SubmitError<C>> {
        let head = call_head(to, timeout, self.config.response_bytes, self.trace);
        let extra = CallExtra { trace: self.trace.into() };
        let extra = if self.trace == 0 { &[][..] } else { extra.as_bytes() };
        let parts = [head.as_bytes(), extra, body];
        let submitted = self.ipc.submit_parts_within(&parts, patience(timeout), (to, context));
        submitted.map_err(not_submitted)
    }

    /// Sees to it that the daemon notices all calls so far.
    pub fn flush(&mut self) {
        self.ipc.flush();
    }

    /// Reports calls that ended, and returns their number. Never sleeps.
    pub fn poll(&mut self, mut done: impl FnMut(C, Result<&[u8], CallError>)) -> usize {
        let reported = self.report_ended(|context, error| done(context, Err(error)));
        reported
            + self.ipc.poll_outcomes(|(to, context), outcome| {
                done(context, outcome.map_err(|failed| CallError::of(failed, to)));
            })
    }

    /// Like [`poll`](Self::poll), with answers that are lent where the daemon put them, during the call of the
    /// closure.
    pub fn poll_lent(
        &mut self,
        mut done: impl FnMut(C, Result<LentBytes<'_>, CallError>),
    ) -> usize {
        let reported = self.report_ended(|context, error| done(context, Err(error)));
        reported
            + self.ipc.poll_lent(|(to, context), outcome| {
                done(context, outcome.map_err(|failed| CallError::of(failed, to)));
            })
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
        self.ipc.rest();
    }

    /// Before waiting for the descriptor by other means: `true` if it will become readable. Wait no
    /// longer than to [`earliest_deadline_ns`](Self::earliest_deadline_ns), then poll.
    pub fn arm(&mut self) -> bool {
        self.ipc.arm()
    }

    /// When the next call ends even if the daemon says nothing, in nanoseconds of `CLOCK_MONOTONIC`;
    /// `u64::MAX` if there is none. Exact after [`arm`](Self::arm).
    #[must_use]
    pub fn earliest_deadline_ns(&self) -> u64 {
        self.ipc.earliest_deadline_ns()
    }

    /// Stops waiting for a call, and returns its context unless it has ended. It may be executed.
    pub fn cancel(&mut self, id: CallId) -> Option<C> {
        self.ipc.cancel(id).map(|(_, context)| context)
    }

    /// Calls in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.ipc.in_flight() + self.ended.len()
    }

    /// Most calls in flight.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.ipc.depth()
    }
}

fn not_submitted<C>(refused: ipc::SubmitError<(To, C)>) -> SubmitError<C> {
    SubmitError { error: CallError::not_sent(refused.error), context: refused.context.1 }
}

impl<C> AsFd for Pipeline<C> {
    /// Readable when there is something to poll for, if [`Pipeline::arm`] said so.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ipc.as_fd()
    }
}
