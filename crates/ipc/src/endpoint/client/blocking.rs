//! One call at a time, blocking.

use std::{os::fd::BorrowedFd, path::Path, time::Duration};

use memory::{Filler, LentBytes};
use os::clock;

use crate::{
    endpoint::{
        client::{
            connection::ConnectError,
            session::{ClientConfig, ClientSession, Newcomer, NewcomerState, Terms},
        },
        status::CallError,
    },
    ring::{Filled, MessageBytes},
};

/// A client that makes one call at a time and waits for its response.
///
/// It can move to another thread, but not be used by two at a time:
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<copyrpc_ipc::BlockingClient>();
/// ```
#[derive(Debug)]
pub struct BlockingClient {
    session: ClientSession<()>,
    /// The server was sent the request of the latest call.
    was_sent: bool,
    /// Length of what the handler says about the error of the latest call.
    detail_bytes: usize,
}

impl BlockingClient {
    /// Connects to the server that listens at `path`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        Ok(Self {
            session: ClientSession::connect(path, config)?,
            was_sent: false,
            detail_bytes: 0,
        })
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
        let of = |session| Self { session, was_sent: false, detail_bytes: 0 };
        Ok(newcomer.arrive(config)?.map(of))
    }

    /// Connects again, to the same server or its successor.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the client stays as it was.
    pub fn reconnect(&mut self) -> Result<(), ConnectError> {
        self.session.reconnect(&mut |(), _| {})
    }

    /// Sends a request and waits for its response, with the configured deadline.
    ///
    /// The response is a private copy, valid until the next call.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    #[inline]
    pub fn call(&mut self, request: &[u8]) -> Result<&[u8], CallError> {
        self.call_ns(request, self.session.timeout_ns())
    }

    /// Like [`call`](Self::call), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    #[inline]
    pub fn call_within(&mut self, request: &[u8], timeout: Duration) -> Result<&[u8], CallError> {
        self.call_ns(request, clock::duration_ns(timeout))
    }

    /// Like [`call`](Self::call), of a request in parts, which are gathered in the server's memory.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    #[inline]
    pub fn call_parts(&mut self, request: &[&[u8]]) -> Result<&[u8], CallError> {
        self.call_ns(request, self.session.timeout_ns())
    }

    /// Like [`call_parts`](Self::call_parts), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    #[inline]
    pub fn call_parts_within(
        &mut self,
        request: &[&[u8]],
        timeout: Duration,
    ) -> Result<&[u8], CallError> {
        self.call_ns(request, clock::duration_ns(timeout))
    }

    /// Like [`call`](Self::call), of a request that `fill` puts where the server reads it: no copy of it is
    /// made but by `fill`.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    #[inline]
    pub fn call_with<F: FnOnce(&mut Filler<'_>)>(
        &mut self,
        len_bytes: usize,
        fill: F,
    ) -> Result<&[u8], CallError> {
        self.call_ns(&Filled::behind(&[], len_bytes, fill), self.session.timeout_ns())
    }

    /// Like [`call`](Self::call), with a response that is lent where the server put it, until the next call.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    #[inline]
    pub fn call_lent(&mut self, request: &[u8]) -> Result<LentBytes<'_>, CallError> {
        self.call_lent_ns(request, self.session.timeout_ns())
    }

    /// A call whose request is filled and whose response is read in place, with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    #[inline]
    pub fn call_in_place_within<F: FnOnce(&mut Filler<'_>)>(
        &mut self,
        request: &Filled<'_, F>,
        timeout: Duration,
    ) -> Result<LentBytes<'_>, CallError> {
        self.call_lent_ns(request, clock::duration_ns(timeout))
    }

    #[inline]
    fn call_lent_ns<M: MessageBytes + ?Sized>(
        &mut self,
        request: &M,
        timeout_ns: u64,
    ) -> Result<LentBytes<'_>, CallError> {
        self.send(request, timeout_ns)?;
        let mut outcome = None;
        while outcome.is_none() {
            self.session.poll_lent(&mut |(), response| {
                outcome = Some(response.map(drop).map_err(|it| (it.error, it.detail.len())));
            });
            if outcome.is_none() {
                self.session.rest(u64::MAX);
            }
        }
        if let Some(Err((error, detail_bytes))) = outcome {
            self.detail_bytes = detail_bytes;
            return Err(error);
        }
        Ok(self.session.calls().lent())
    }

    #[inline]
    fn call_ns<M: MessageBytes + ?Sized>(
        &mut self,
        request: &M,
        timeout_ns: u64,
    ) -> Result<&[u8], CallError> {
        self.send(request, timeout_ns)?;
        let mut outcome = None;
        loop {
            self.session.poll(&mut |(), response| {
                outcome = Some(response.map(<[u8]>::len).map_err(|it| (it.error, it.detail.len())));
            });
            match outcome {
                Some(Ok(len_bytes)) => return Ok(self.session.calls().copied(len_bytes)),
                Some(Err((error, detail_bytes))) => {
                    self.detail_bytes = detail_bytes;
                    return Err(error);
                }
                None => self.session.rest(u64::MAX),
            }
        }
    }

    #[inline]
    fn send<M: MessageBytes + ?Sized>(
        &mut self,
        request: &M,
        mut timeout_ns: u64,
    ) -> Result<(), CallError> {
        (self.was_sent, self.detail_bytes) = (false, 0);
        loop {
            match self.session.submit(request, timeout_ns, ()) {
                Ok(_) => break self.was_sent = true,
                // All entries wait for late responses of calls that missed their deadline.
                Err((CallError::Full { .. }, ())) => {
                    timeout_ns = self.wait_for_entry(timeout_ns)?
                }
                Err((error, ())) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns what is left of the time.
    #[cold]
    pub(crate) fn wait_for_entry(&mut self, timeout_ns: u64) -> Result<u64, CallError> {
        let deadline_ns = clock::now_ns().saturating_add(timeout_ns);
        loop {
            self.session.poll(&mut |(), _| {});
            if let Some(error) = self.session.gone() {
                return Err(error);
            }
            let now_ns = clock::now_ns();
            if self.session.calls().has_free() {
                return Ok(deadline_ns.saturating_sub(now_ns));
            }
            if now_ns >= deadline_ns {
                return Err(CallError::Full { depth: self.session.calls().depth() });
            }
            self.session.rest(deadline_ns);
        }
    }

    /// What is left of the time of a call that ended with [`CallError::NotTaken`] and had `timeout`.
    #[must_use]
    pub fn time_left(&self, timeout: Duration) -> Duration {
        match self.session.calls().untaken_deadline_ns() {
            0 => timeout,
            deadline_ns => clock::left(deadline_ns),
        }
    }

    /// Whether a call of this length can be made at once.
    #[must_use]
    pub fn has_room(&self, len_bytes: usize) -> bool {
        let calls = self.session.calls();
        calls.has_free() && len_bytes <= calls.request_bytes_max() && self.session.gone().is_none()
    }

    /// Looks whether the server is there: a system call, which calls make now and then.
    pub fn look(&mut self) {
        self.session.look_now();
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

    /// Whether the server was sent the request of the latest call: if not, it was not executed.
    #[must_use]
    pub fn was_sent(&self) -> bool {
        self.was_sent
    }

    /// The first bytes of the response to the latest call, once more.
    ///
    /// # Panics
    ///
    /// If there are more than the longest response has.
    #[must_use]
    pub fn response(&self, len_bytes: usize) -> &[u8] {
        self.session.calls().copied(len_bytes)
    }

    /// The response that was lent by the latest call, once more, if that was a call which lends.
    #[must_use]
    pub fn lent(&self) -> LentBytes<'_> {
        self.session.calls().lent()
    }

    /// Sends the server a descriptor, one at a time: before the request that tells what it is for.
    ///
    /// # Errors
    ///
    /// [`CallError`]. A server that takes no descriptors evicts this client.
    pub fn send_descriptor(&self, fd: BorrowedFd<'_>) -> Result<(), CallError> {
        self.session.send_descriptor(fd)
    }

    /// What the handler says about the error of the latest call; empty if that ended otherwise.
    #[must_use]
    pub fn detail(&self) -> &[u8] {
        self.session.calls().copied_detail(self.detail_bytes)
    }

    /// The terms agreed on at connect.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.session.terms()
    }
}
