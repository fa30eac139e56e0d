//! Many calls at a time, reported to a closure.

use std::{
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    time::Duration,
};

use ipc::CallId;

use crate::client::{CallError, ClientConfig, ConnectError, GRACE, To, ipc_config, write_request};

/// Why a call was not made; the context comes back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Refused<C> {
    /// Why.
    pub error: CallError,
    /// What was to be reported with the answer.
    pub context: C,
}

/// A process's connection to its daemon with many calls in flight, each with a context of type `C`.
///
/// ```no_run
/// # use copyrpc_node::client::{ClientConfig, Pipeline, To};
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
    ipc: ipc::AsyncClient<C>,
    config: ClientConfig,
    request: Vec<u8>,
}

impl<C> Pipeline<C> {
    /// Connects to the daemon whose socket is at `path`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        let ipc = ipc::AsyncClient::connect(path, ipc_config(config))?;
        Ok(Self { ipc, config, request: Vec::new() })
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
        self.ipc.reconnect(|context, answer| done(context, answer.map_err(CallError::from)))
    }

    /// Makes a call, with the configured deadline. The daemon may not notice before the next
    /// [`flush`](Self::flush) or [`poll`](Self::poll).
    ///
    /// # Errors
    ///
    /// [`Refused`], in particular when as many calls are in flight as the daemon allows.
    pub fn submit(&mut self, to: To, body: &[u8], context: C) -> Result<CallId, Refused<C>> {
        self.submit_within(to, body, self.config.timeout, context)
    }

    /// Like [`submit`](Self::submit), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn submit_within(
        &mut self,
        to: To,
        body: &[u8],
        timeout: Duration,
        context: C,
    ) -> Result<CallId, Refused<C>> {
        write_request(&mut self.request, to, timeout, self.config.response_bytes, body);
        let submitted =
            self.ipc.submit_within(&self.request, timeout.saturating_add(GRACE), context);
        submitted
            .map_err(|refused| Refused { error: refused.error.into(), context: refused.context })
    }

    /// Sees to it that the daemon notices all calls so far.
    pub fn flush(&mut self) {
        self.ipc.flush();
    }

    /// Reports calls that ended, and returns their number. Never sleeps.
    pub fn poll(&mut self, mut done: impl FnMut(C, Result<&[u8], CallError>)) -> usize {
        self.ipc.poll(|context, answer| done(context, answer.map_err(CallError::from)))
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
        self.ipc.cancel(id)
    }

    /// Calls in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.ipc.in_flight()
    }

    /// Most calls in flight.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.ipc.depth()
    }
}

impl<C> AsFd for Pipeline<C> {
    /// Readable when there is something to poll for, if [`Pipeline::arm`] said so.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ipc.as_fd()
    }
}
