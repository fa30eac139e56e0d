//! Many calls at a time, reported to a closure: no allocation per call, no thread, no executor.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    time::Duration,
};

use memory::Filler;
use os::{clock, idle::IdleStep};

use crate::{
    endpoint::{
        client::{
            calls::CallId,
            connection::ConnectError,
            session::{ClientConfig, ClientSession, Newcomer, NewcomerState, Terms},
        },
        lifeline::Lifeline,
        status::{CallError, CallOutcome, LentOutcome},
    },
    ring::{Filled, MessageBytes},
};

/// Why a request was not sent; the context comes back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct SubmitError<C> {
    /// Why nothing was sent.
    pub error: CallError,
    /// The context that the caller passed with the call.
    pub context: C,
}

/// A client with up to `depth` calls in flight, each with a context of type `C`.
///
/// ```no_run
/// # use copyrpc_ipc::{PipelinedClient, ClientConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut client = PipelinedClient::connect("/run/user/1000/x/ipc".as_ref(), ClientConfig::default())?;
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
/// # use copyrpc_ipc::PipelinedClient;
/// fn call_again(client: &mut PipelinedClient<()>) {
///     client.poll(|(), _| drop(client.submit(b"again", ())));
/// }
/// ```
///
/// It can move to another thread, but not be used by two at a time:
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<copyrpc_ipc::PipelinedClient<u32>>();
/// ```
#[derive(Debug)]
pub struct PipelinedClient<C> {
    session: ClientSession<C>,
}

impl<C> PipelinedClient<C> {
    /// Connects to the server that listens at `path`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        Ok(Self { session: ClientSession::connect(path, config)? })
    }

    /// The client to which an introduction leads, if it has come so far. Never waits.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: it leads nowhere.
    pub fn introduced(
        newcomer: Newcomer,
        config: ClientConfig,
    ) -> Result<NewcomerState<Self>, ConnectError> {
        Ok(newcomer.arrive(config)?.map(|session| Self { session }))
    }

    /// Connects again, to the same server or its successor, and ends calls that are in flight.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the client stays as it was.
    pub fn reconnect(
        &mut self,
        mut done: impl FnMut(C, CallOutcome<'_>),
    ) -> Result<(), ConnectError> {
        self.session.reconnect(&mut done)
    }

    /// Publishes a request, with the configured deadline. The server may not notice before the next
    /// [`flush`](Self::flush) or [`poll`](Self::poll), so that many requests cost one barrier.
    ///
    /// # Errors
    ///
    /// [`SubmitError`], in particular [`CallError::Full`].
    #[inline]
    pub fn submit(&mut self, request: &[u8], context: C) -> Result<CallId, SubmitError<C>> {
        self.submit_ns(request, self.session.timeout_ns(), context)
    }

    /// Like [`submit`](Self::submit), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`SubmitError`].
    #[inline]
    pub fn submit_within(
        &mut self,
        request: &[u8],
        timeout: Duration,
        context: C,
    ) -> Result<CallId, SubmitError<C>> {
        self.submit_ns(request, clock::duration_ns(timeout), context)
    }

    /// Like [`submit`](Self::submit), of a request in parts, which are gathered in the server's memory.
    ///
    /// # Errors
    ///
    /// [`SubmitError`].
    #[inline]
    pub fn submit_parts(
        &mut self,
        request: &[&[u8]],
        context: C,
    ) -> Result<CallId, SubmitError<C>> {
        self.submit_ns(request, self.session.timeout_ns(), context)
    }

    /// Like [`submit_parts`](Self::submit_parts), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`SubmitError`].
    #[inline]
    pub fn submit_parts_within(
        &mut self,
        request: &[&[u8]],
        timeout: Duration,
        context: C,
    ) -> Result<CallId, SubmitError<C>> {
        self.submit_ns(request, clock::duration_ns(timeout), context)
    }

    /// Like [`submit`](Self::submit), of a request that is filled where the server reads it, with a deadline
    /// of its own.
    ///
    /// # Errors
    ///
    /// [`SubmitError`]. Then nothing was filled.
    #[inline]
    pub fn submit_filled_within<F: FnOnce(&mut Filler<'_>)>(
        &mut self,
        request: &Filled<'_, F>,
        timeout: Duration,
        context: C,
    ) -> Result<CallId, SubmitError<C>> {
        self.submit_ns(request, clock::duration_ns(timeout), context)
    }

    #[inline]
    fn submit_ns<M: MessageBytes + ?Sized>(
        &mut self,
        request: &M,
        timeout_ns: u64,
        context: C,
    ) -> Result<CallId, SubmitError<C>> {
        let submitted = self.session.submit(request, timeout_ns, context);
        submitted.map_err(|(error, context)| SubmitError { error, context })
    }

    /// Sees to it that the server notices all requests so far.
    #[inline]
    pub fn flush(&mut self) {
        self.session.flush();
    }

    /// Reports calls that ended, and returns their number. Never sleeps.
    ///
    /// The response is a private copy, valid during the call of the closure.
    #[inline]
    pub fn poll(&mut self, mut done: impl FnMut(C, Result<&[u8], CallError>)) -> usize {
        self.poll_outcomes(|context, outcome| done(context, outcome.map_err(|failed| failed.error)))
    }

    /// Like [`poll`](Self::poll), with what handlers say about their errors.
    #[inline]
    pub fn poll_outcomes(&mut self, mut done: impl FnMut(C, CallOutcome<'_>)) -> usize {
        self.session.poll(&mut done)
    }

    /// Like [`poll_outcomes`](Self::poll_outcomes), with responses that are lent where the server put them,
    /// during the call of the closure.
    #[inline]
    pub fn poll_lent(&mut self, mut done: impl FnMut(C, LentOutcome<'_>)) -> usize {
        self.session.poll_lent(&mut done)
    }

    /// After a poll that reported nothing: spins, yields or sleeps as configured, at most until the
    /// earliest deadline of a call (a second if there is none). Then poll again.
    #[inline]
    pub fn rest(&mut self) {
        self.session.rest(u64::MAX);
    }

    /// Like [`rest`](Self::rest), and at most until `deadline_ns`, in nanoseconds of `CLOCK_MONOTONIC`.
    pub fn rest_until(&mut self, deadline_ns: u64) {
        self.session.rest(deadline_ns);
    }

    /// From now on the descriptor of this client is readable, too, when that of `other` is, which lives at most as long.
    ///
    /// # Errors
    ///
    /// Of the kernel, `epoll_ctl(2)`.
    pub fn watch(&self, other: &Self) -> io::Result<()> {
        self.session.watch(other.as_fd())
    }

    /// Ends what [`watch`](Self::watch) began.
    pub fn unwatch(&self, other: &Self) {
        self.session.unwatch(other.as_fd());
    }

    /// Whether another client that is [watched](Self::watch) had something to say since the last question, as far as this
    /// client has looked.
    pub fn take_other(&mut self) -> bool {
        self.session.take_other()
    }

    /// Looks whether the server is there: a system call, which polls make now and then.
    pub fn look(&mut self) {
        self.session.look_now();
    }

    /// Ends all calls.
    pub fn end(&mut self, mut done: impl FnMut(C, CallOutcome<'_>)) {
        self.session.end(&mut done);
    }

    /// The first step of [`rest`](Self::rest), for a program that polls several clients: if it is to sleep, it
    /// [arms](Self::arm) all, and then [naps](Self::nap) with the one that watches the others.
    #[inline]
    pub fn idle_step(&mut self) -> IdleStep {
        self.session.idle_step()
    }

    /// Something was found elsewhere: the next rests are short ones.
    #[inline]
    pub fn reset_idle(&mut self) {
        self.session.reset_idle();
    }

    /// Time may have passed: the next empty poll looks at the clock.
    #[inline]
    pub fn hurry_clock(&mut self) {
        self.session.hurry_clock();
    }

    /// Sleeps, once [armed](Self::arm), at most until `deadline_ns`.
    pub fn nap(&mut self, deadline_ns: u64) {
        self.session.nap(deadline_ns);
    }

    /// Before waiting for the descriptor of [`AsFd`] by other means: `true` if there is nothing to
    /// do now, so that the descriptor will become readable. Wait no longer than to
    /// [`earliest_deadline_ns`](Self::earliest_deadline_ns), then poll.
    pub fn arm(&mut self) -> bool {
        self.session.arm()
    }

    /// When the next call misses its deadline, in nanoseconds of `CLOCK_MONOTONIC`; `u64::MAX` if
    /// there is none. Exact after [`arm`](Self::arm).
    #[must_use]
    pub fn earliest_deadline_ns(&self) -> u64 {
        self.session.calls().earliest_deadline_ns()
    }

    /// Stops waiting for a call, and returns its context unless it has ended. The server is not
    /// told; a late response is discarded, and frees the entry that the call still holds.
    pub fn cancel(&mut self, id: CallId) -> Option<C> {
        self.session.abandon(id)
    }

    /// Whether a call was [cancelled](Self::cancel) and still holds its entry, which no other call has before the late
    /// response was read.
    #[must_use]
    pub fn holds_entry(&self, id: CallId) -> bool {
        self.session.calls().is_abandoned(id)
    }

    /// Calls that were submitted and have not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.session.calls().in_flight()
    }

    /// Requests that could be submitted now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.session.calls().free()
    }

    /// Whether the server asks this client, which was introduced, to make no more calls and to leave.
    #[inline]
    #[must_use]
    pub fn is_asked_to_leave(&self) -> bool {
        self.session.calls().is_asked_to_leave()
    }

    /// Why no call will ever be answered again, as far as this client has looked.
    #[must_use]
    pub fn gone(&self) -> Option<CallError> {
        self.session.gone()
    }

    /// Tells other threads of the end of this session, until the client connects anew.
    #[must_use]
    pub fn lifeline(&self) -> Lifeline {
        self.session.lifeline()
    }

    /// Whether this process is a `fork(2)` of the one that made the client.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.session.is_forked()
    }

    /// Most calls in flight, late responses included.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.session.calls().depth()
    }

    /// Sends the server a descriptor, one at a time: before the request that tells what it is for.
    ///
    /// # Errors
    ///
    /// [`CallError`]. A server that takes no descriptors evicts this client.
    pub fn send_descriptor(&self, fd: BorrowedFd<'_>) -> Result<(), CallError> {
        self.session.send_descriptor(fd)
    }

    /// The terms agreed on at connect.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.session.terms()
    }
}

impl<C> AsFd for PipelinedClient<C> {
    /// Readable when there is something to poll for, if [`PipelinedClient::arm`] said so.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.session.as_fd()
    }
}
