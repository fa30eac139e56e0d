//! Many calls at a time, reported to a closure: no allocation per call, no thread, no executor.

use std::{
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    time::Duration,
};

use crate::{
    client::{
        core::CallId,
        link::ConnectError,
        pipe::{ClientConfig, Pipe, Terms},
    },
    status::CallError,
    wait::timeout_ns,
};

/// Why a request was not sent; the context comes back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Refused<C> {
    /// Why.
    pub error: CallError,
    /// What was to be reported with the response.
    pub context: C,
}

/// A client with up to `depth` calls in flight, each with a context of type `C`.
///
/// ```no_run
/// # use copyrpc_ipc::{AsyncClient, ClientConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut client = AsyncClient::connect("/run/user/1000/x/ipc".as_ref(), ClientConfig::default())?;
/// for number in 0..8u32 {
///     client.submit(&number.to_le_bytes(), number)?;
/// }
/// let mut left = 8;
/// while left > 0 {
///     left -= client.poll(|number, response| println!("{number}: {response:?}"));
///     client.rest();
/// }
/// # Ok(()) }
/// ```
///
/// The closure cannot reach the client, so there is no re-entrance; it may collect what to do next.
///
/// ```compile_fail
/// # use copyrpc_ipc::AsyncClient;
/// fn call_again(client: &mut AsyncClient<()>) {
///     client.poll(|(), _| drop(client.submit(b"again", ())));
/// }
/// ```
///
/// It can move to another thread, but not be used by two at a time:
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<copyrpc_ipc::AsyncClient<u32>>();
/// ```
#[derive(Debug)]
pub struct AsyncClient<C> {
    pipe: Pipe<C>,
}

impl<C> AsyncClient<C> {
    /// Connects to the server that listens at `path`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        Ok(Self { pipe: Pipe::connect(path, config)? })
    }

    /// Connects again, to the same server or its successor, and ends calls that are in flight.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the client stays as it was.
    pub fn reconnect(
        &mut self,
        mut done: impl FnMut(C, Result<&[u8], CallError>),
    ) -> Result<(), ConnectError> {
        self.pipe.reconnect(&mut done)
    }

    /// Publishes a request, with the configured deadline. The server may not notice before the next
    /// [`flush`](Self::flush) or [`poll`](Self::poll), so that many requests cost one barrier.
    ///
    /// # Errors
    ///
    /// [`Refused`], in particular [`CallError::Full`].
    #[inline]
    pub fn submit(&mut self, request: &[u8], context: C) -> Result<CallId, Refused<C>> {
        self.submit_ns(request, self.pipe.timeout_ns(), context)
    }

    /// Like [`submit`](Self::submit), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    #[inline]
    pub fn submit_within(
        &mut self,
        request: &[u8],
        timeout: Duration,
        context: C,
    ) -> Result<CallId, Refused<C>> {
        self.submit_ns(request, timeout_ns(timeout), context)
    }

    #[inline]
    fn submit_ns(
        &mut self,
        request: &[u8],
        timeout_ns: u64,
        context: C,
    ) -> Result<CallId, Refused<C>> {
        let submitted = self.pipe.submit(request, timeout_ns, context);
        submitted.map_err(|(error, context)| Refused { error, context })
    }

    /// Sees to it that the server notices all requests so far.
    #[inline]
    pub fn flush(&mut self) {
        self.pipe.flush();
    }

    /// Reports calls that ended, and returns their number. Never sleeps.
    ///
    /// The response is a private copy, valid during the call of the closure.
    #[inline]
    pub fn poll(&mut self, mut done: impl FnMut(C, Result<&[u8], CallError>)) -> usize {
        self.pipe.poll(&mut done)
    }

    /// After a poll that reported nothing: spins, yields or sleeps as configured, at most until the
    /// earliest deadline of a call (a second if there is none). Then poll again.
    #[inline]
    pub fn rest(&mut self) {
        self.pipe.rest(u64::MAX);
    }

    /// Before waiting for the descriptor of [`AsFd`] by other means: `true` if there is nothing to
    /// do now, so that the descriptor will become readable. Wait no longer than to
    /// [`earliest_deadline_ns`](Self::earliest_deadline_ns), then poll.
    pub fn arm(&mut self) -> bool {
        self.pipe.arm()
    }

    /// When the next call misses its deadline, in nanoseconds of `CLOCK_MONOTONIC`; `u64::MAX` if
    /// there is none. Exact after [`arm`](Self::arm).
    #[must_use]
    pub fn earliest_deadline_ns(&self) -> u64 {
        self.pipe.core().earliest_deadline_ns()
    }

    /// Stops waiting for a call, and returns its context unless it has ended. The server is not
    /// told; a late response is discarded, and frees the entry that the call still holds.
    pub fn cancel(&mut self, id: CallId) -> Option<C> {
        self.pipe.abandon(id)
    }

    /// Calls that were submitted and have not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pipe.core().in_flight()
    }

    /// Most calls in flight, late responses included.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.pipe.core().depth()
    }

    /// What was agreed on at connect.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.pipe.terms()
    }
}

impl<C> AsFd for AsyncClient<C> {
    /// Readable when there is something to poll for, if [`AsyncClient::arm`] said so.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
