//! Calls and answers.

use proto::{
    Status,
    copyrpc::{Call as CoreCall, CallId, Connection, Refused, ReplyError as CoreReplyError},
};
use verbs::Nic;

use super::{Call, Worker};
use crate::{CallError, PeerId, ReplyError, Token};

impl<N: Nic> Worker<N> {
    /// Makes a call. It leaves at a later [`poll`](Self::poll), when the flush policy says so.
    ///
    /// # Errors
    ///
    /// [`CallError`]: nothing has changed.
    #[inline]
    pub fn call(&mut self, peer: PeerId, call: &Call, body: &[u8]) -> Result<CallId, CallError> {
        self.call_with(peer, call, body.len(), |to| to.copy_from_slice(body))
    }

    /// Makes a call whose body `fill` writes: `len_bytes` zeroed bytes of private memory.
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
        let now_ns = self.now_ns;
        let timeout_ns = u64::try_from(call.timeout.as_nanos()).unwrap_or(u64::MAX);
        let call = CoreCall {
            method: call.method,
            response_bytes: call.response_bytes,
            deadline_ns: now_ns.saturating_add(timeout_ns),
            cookie: call.cookie,
        };
        let live = self.live(peer).ok_or(CallError::NotConnected)?;
        let id = live.connection.call(&call, len_bytes, now_ns, fill)?;
        self.mark_dirty(peer);
        Ok(id)
    }

    /// Gives a call up: it ends with [`Status::Cancelled`] at the next poll, unless it has ended.
    /// The peer is told; it may have executed the call.
    pub fn cancel(&mut self, peer: PeerId, call: CallId) {
        let Some(live) = self.live(peer) else { return };
        if let Some(cookie) = live.connection.cancel(call) {
            self.ended.push_back((cookie, Status::Cancelled));
            self.mark_dirty(peer);
        }
    }

    /// Answers a request. There is always a place for the answer; it leaves at a later poll.
    ///
    /// # Errors
    ///
    /// [`ReplyError`]; the request counts as answered.
    #[inline]
    pub fn reply(&mut self, token: Token, status: Status, body: &[u8]) -> Result<(), ReplyError> {
        self.reply_with(token, status, body.len(), |to| to.copy_from_slice(body))
    }

    /// Answers a request with a body that `fill` writes: `len_bytes` zeroed bytes of private memory.
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
        let (peer, id) = token.redeem();
        let now_ns = self.now_ns;
        let live = self.live(peer).ok_or(ReplyError::Gone)?;
        let outcome = live.connection.reply(id, status, len_bytes, now_ns, fill);
        let outcome = match outcome {
            Ok(()) => Ok(()),
            Err(CoreReplyError::NotThere) => Err(ReplyError::Gone),
            Err(CoreReplyError::TooLong { len_bytes, max_bytes }) => {
                answer_empty(&mut live.connection, id, Status::OutOfRange, now_ns);
                Err(ReplyError::TooLong { len_bytes, max_bytes })
            }
        };
        self.mark_dirty(peer);
        outcome
    }

    /// Whether the caller of a request does not wait any more.
    #[must_use]
    pub fn is_cancelled(&mut self, token: &Token) -> bool {
        let (peer, request) = (token.peer, token.request);
        self.live(peer).is_none_or(|live| live.connection.is_cancelled(request))
    }

    /// Answers requests whose tokens were dropped.
    pub(super) fn answer_dropped(&mut self) {
        if self.dropped.borrow().is_empty() {
            return;
        }
        let dropped = self.dropped.take();
        for (peer, request) in dropped {
            let now_ns = self.now_ns;
            if let Some(live) = self.live(peer) {
                answer_empty(&mut live.connection, request, Status::Unknown, now_ns);
                self.mark_dirty(peer);
            }
        }
    }
}

/// An empty answer fits whatever the caller set aside.
fn answer_empty(
    connection: &mut Connection,
    id: proto::copyrpc::RequestId,
    status: Status,
    now_ns: u64,
) {
    // It fails only if the request was answered, and then nothing is owed.
    let _ = connection.reply(id, status, 0, now_ns, |_| ());
}

impl From<Refused> for CallError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Busy(busy) => Self::Busy(busy),
            Refused::TooLong { len_bytes, max_bytes } => Self::TooLong { len_bytes, max_bytes },
            Refused::NoPlace { asked_bytes, max_bytes } => Self::NoPlace { asked_bytes, max_bytes },
        }
    }
}
