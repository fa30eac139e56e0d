//! Calls and answers.

use memory::LentBytes;
use proto::{
    Status,
    copyrpc::{Call as CoreCall, CallId, CallRefused, ReplyError as CoreReplyError, RequestId},
};
use verbs::Nic;

use super::{Call, Worker};
use crate::{
    Account, CallError, PeerId, ReplyError, Token,
    body::{Filled, Parts, Passed, SentBody},
    large::large,
    pool::{Buffer, Purchase},
    token::{Answering, DroppedToken},
};

impl<N: Nic> Worker<N> {
    /// Makes a call. It leaves at a later [`poll`](Self::poll), when the flush policy says so.
    ///
    /// # Errors
    ///
    /// [`CallError`]: nothing has changed.
    #[inline]
    pub fn call(&mut self, peer: PeerId, call: &Call, body: &[u8]) -> Result<CallId, CallError> {
        self.call_parts(peer, call, &[body])
    }

    /// Makes a call whose body is gathered from `parts`, in order and without gaps: a header and a
    /// payload need not lie side by side. Otherwise as [`call`](Self::call).
    ///
    /// # Errors
    ///
    /// [`CallError`]: nothing has changed.
    #[inline]
    pub fn call_parts(
        &mut self,
        peer: PeerId,
        call: &Call,
        parts: &[&[u8]],
    ) -> Result<CallId, CallError> {
        self.call_body(peer, call, Parts(parts))
    }

    /// Makes a call whose body is gathered from `heads`, and from `rest`, which others may write meanwhile: the bytes of
    /// `rest` are copied once, to the batch or to lent memory. Otherwise as [`call`](Self::call).
    ///
    /// # Errors
    ///
    /// [`CallError`]: nothing has changed.
    pub fn call_lent(
        &mut self,
        peer: PeerId,
        call: &Call,
        heads: &[&[u8]],
        rest: LentBytes<'_>,
    ) -> Result<CallId, CallError> {
        self.call_body(peer, call, Passed { heads: Parts(heads), rest })
    }

    /// Makes a call whose body `fill` writes, in `len_bytes` of private memory. Bytes that it does not
    /// write are zeros, or what earlier messages to the same peer left there. If it panics, the call is
    /// made with what it has written.
    ///
    /// # Errors
    ///
    /// [`CallError`]: nothing has changed and `fill` was not called.
    #[inline]
    pub fn call_with(
        &mut self,
        peer: PeerId,
        call: &Call,
        len_bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<CallId, CallError> {
        self.call_body(peer, call, Filled { len_bytes, fill })
    }

    #[inline]
    fn call_body(
        &mut self,
        peer: PeerId,
        call: &Call,
        body: impl SentBody,
    ) -> Result<CallId, CallError> {
        let now_ns = self.now_ns();
        let (caller, call) = (call.caller, core_call(call, now_ns));
        let live = self.peers.live_dirty(peer).ok_or(CallError::NotConnected)?;
        if body.len_bytes() > live.connection.request_bytes_max() {
            return self.call_large(peer, (&call, caller), body);
        }
        let (id, to) = live.connection.call(&call, body.len_bytes(), now_ns)?;
        body.write(to);
        Ok(id)
    }

    /// Lends the body to the peer, which fetches it.
    #[cold]
    fn call_large(
        &mut self,
        peer: PeerId,
        (call, caller): (&CoreCall, Option<u64>),
        body: impl SentBody,
    ) -> Result<CallId, CallError> {
        let now_ns = self.now_ns();
        let account = Account { caller, method: Some(call.method) };
        let len_bytes = body.len_bytes();
        let buffer = self.take_for_call(peer, account, len_bytes)?;
        let live = self.live(peer).ok_or(CallError::NotConnected)?;
        match live.connection.call_large(call, large(&buffer), now_ns) {
            Ok(id) => {
                // The peer reads it only once the batch has left, at a later poll.
                live.bodies.lend_request(id, buffer, |to, private| body.lend(to, private));
                self.transfers.stats.copied_bytes += len_bytes as u64;
                Ok(id)
            }
            Err(refused) => Err(refused.into()),
        }
    }

    /// Memory for the body of a call, which the peer fetches.
    pub(super) fn take_for_call(
        &mut self,
        peer: PeerId,
        account: Account,
        len_bytes: usize,
    ) -> Result<Buffer<N>, CallError> {
        let live = self.live(peer).ok_or(CallError::NotConnected)?;
        let max_bytes = live.connection.config().peer.large_bytes_max as usize;
        if len_bytes > max_bytes {
            return Err(CallError::TooLong { len_bytes, max_bytes });
        }
        self.take_lent(&Purchase { peer, account, len_bytes })
            .map_err(|_| CallError::NoMemory { len_bytes })
    }

    /// Gives a call up: it ends with [`Status::Cancelled`] at the next poll, unless it has ended.
    /// The peer is told; it may have executed the call.
    pub fn cancel(&mut self, peer: PeerId, call: CallId) {
        let Some(live) = self.live(peer) else { return };
        if let Some(cookie) = live.connection.cancel(call) {
            self.notices.call_ended(cookie, Status::Cancelled);
            self.peers.mark_dirty(peer);
        }
    }

    /// Gives up the calls to a peer for whose cookies `is_unwanted` holds, as [`cancel`](Self::cancel)
    /// does. It looks at every call to the peer.
    pub fn cancel_all(&mut self, peer: PeerId, is_unwanted: impl Fn(u64) -> bool) {
        let Self { peers, notices, .. } = self;
        let Some(live) = peers.live(peer) else { return };
        let mut count = 0_usize;
        live.connection.cancel_all(is_unwanted, |cookie| {
            notices.call_ended(cookie, Status::Cancelled);
            count += 1;
        });
        if count > 0 {
            self.peers.mark_dirty(peer);
        }
    }

    /// Answers a request. There is always a place for the answer; it leaves at a later poll.
    ///
    /// The token must be of this worker: what it names is somebody else elsewhere. Only debug builds
    /// look, and panic.
    ///
    /// # Errors
    ///
    /// [`ReplyError`]; the request counts as answered.
    #[inline]
    pub fn reply(&mut self, token: Token, status: Status, body: &[u8]) -> Result<(), ReplyError> {
        self.reply_parts(token, status, &[body])
    }

    /// Answers a request with a body that is gathered from `parts`, in order and without gaps. Otherwise
    /// as [`reply`](Self::reply).
    ///
    /// # Errors
    ///
    /// [`ReplyError`]; the request counts as answered.
    #[inline]
    pub fn reply_parts(
        &mut self,
        token: Token,
        status: Status,
        parts: &[&[u8]],
    ) -> Result<(), ReplyError> {
        self.reply_body(token, status, Parts(parts))
    }

    /// Answers a request with a body that others may write meanwhile, which is copied once. Otherwise as
    /// [`reply`](Self::reply).
    ///
    /// # Errors
    ///
    /// [`ReplyError`]; the request counts as answered.
    pub fn reply_lent(
        &mut self,
        token: Token,
        status: Status,
        body: LentBytes<'_>,
    ) -> Result<(), ReplyError> {
        self.reply_body(token, status, Passed { heads: Parts(&[]), rest: body })
    }

    /// Answers a request with a body that `fill` writes, in `len_bytes` of private memory. Bytes that it
    /// does not write are zeros, or what earlier messages to the same peer left there. If it panics, the
    /// answer is what it has written.
    ///
    /// # Errors
    ///
    /// [`ReplyError`]; the request counts as answered.
    #[inline]
    pub fn reply_with(
        &mut self,
        token: Token,
        status: Status,
        len_bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), ReplyError> {
        self.reply_body(token, status, Filled { len_bytes, fill })
    }

    #[inline]
    fn reply_body(
        &mut self,
        token: Token,
        status: Status,
        body: impl SentBody,
    ) -> Result<(), ReplyError> {
        debug_assert!(token.is_of(&self.tokens), "a token is answered by the worker that gave it");
        let Answering { peer, request: id, method, lease, is_begun } = token.redeem();
        if lease.is_some() {
            self.end_lease(peer, lease);
        }
        if is_begun {
            self.forget_begun(peer, id);
        }
        let now_ns = self.now_ns();
        let live = self.peers.live_dirty(peer).ok_or(ReplyError::Gone)?;
        let outcome = match live.connection.reply(id, status, body.len_bytes(), now_ns) {
            Ok(to) => {
                body.write(to);
                return Ok(());
            }
            Err(CoreReplyError::TooLong { .. }) if status == Status::Ok => {
                self.reply_large(peer, (id, method), body)
            }
            Err(error) => Err(error.into()),
        };
        match outcome {
            Err(ReplyError::TooLong { .. }) => self.answer(peer, id, Status::OutOfRange),
            // It was executed, so it is not for want of room that it was not.
            Err(ReplyError::NoMemory { .. }) => self.answer(peer, id, Status::Unavailable),
            _ => {}
        }
        outcome
    }

    /// Lends the answer to the caller, which fetches it.
    #[cold]
    fn reply_large(
        &mut self,
        peer: PeerId,
        (id, method): (RequestId, u16),
        body: impl SentBody,
    ) -> Result<(), ReplyError> {
        let (now_ns, len_bytes) = (self.now_ns(), body.len_bytes());
        let buffer = self.take_for_answer(peer, method, len_bytes)?;
        let live = self.live(peer).ok_or(ReplyError::Gone)?;
        match live.connection.reply_large(id, large(&buffer), now_ns) {
            Ok(()) => {
                live.bodies.lend_response(id, buffer, |to, private| body.lend(to, private));
                self.transfers.stats.copied_bytes += len_bytes as u64;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Answers without body, which fits whatever the caller set aside.
    pub(super) fn answer(&mut self, peer: PeerId, id: RequestId, status: Status) {
        let now_ns = self.now_ns();
        if let Some(live) = self.peers.live_dirty(peer) {
            // It fails only if the request was answered, and then nothing is owed.
            let _ = live.connection.reply(id, status, 0, now_ns);
        }
    }

    /// Longest body that answers a request without a detour; 0 if its caller is gone. An answer that is no
    /// success must fit it.
    #[must_use]
    pub fn answer_bytes_max(&mut self, token: &Token) -> usize {
        let Answering { peer, request, .. } = token.answering;
        let bytes = self.live(peer).and_then(|live| live.connection.response_bytes_max(request));
        bytes.unwrap_or(0)
    }

    /// Whether the caller of a request does not wait any more.
    #[must_use]
    pub fn is_cancelled(&mut self, token: &Token) -> bool {
        let Answering { peer, request, .. } = token.answering;
        self.live(peer).is_none_or(|live| live.connection.is_cancelled(request))
    }

    /// Answers requests whose tokens were dropped.
    #[inline]
    pub(super) fn answer_dropped(&mut self) {
        if !self.tokens.is_empty() {
            self.answer_all_dropped();
        }
    }

    #[cold]
    fn answer_all_dropped(&mut self) {
        let dropped = self.tokens.take();
        self.stats.tokens_dropped += dropped.len() as u64;
        for DroppedToken { answering, status } in dropped {
            let Answering { peer, request, lease, is_begun, .. } = answering;
            self.end_lease(peer, lease);
            if is_begun {
                self.forget_begun(peer, request);
            }
            self.answer(peer, request, status);
        }
    }
}

/// A call that is made now, as the protocol has it.
#[inline]
pub(super) fn core_call(call: &Call, now_ns: u64) -> CoreCall {
    let timeout_ns = u64::try_from(call.timeout.as_nanos()).unwrap_or(u64::MAX);
    CoreCall {
        method: call.method,
        response_bytes: call.response_bytes,
        deadline_ns: now_ns.saturating_add(timeout_ns),
        cookie: call.cookie,
    }
}

impl From<CoreReplyError> for ReplyError {
    fn from(error: CoreReplyError) -> Self {
        match error {
            CoreReplyError::NotThere => Self::Gone,
            CoreReplyError::TooLong { len_bytes, max_bytes } => {
                Self::TooLong { len_bytes, max_bytes }
            }
        }
    }
}

impl From<CallRefused> for CallError {
    fn from(refused: CallRefused) -> Self {
        match refused {
            CallRefused::Busy(busy) => Self::Busy(busy),
            CallRefused::TooLong { len_bytes, max_bytes } => Self::TooLong { len_bytes, max_bytes },
            CallRefused::NoPlace { asked_bytes, max_bytes } => {
                Self::NoPlace { asked_bytes, max_bytes }
            }
        }
    }
}
