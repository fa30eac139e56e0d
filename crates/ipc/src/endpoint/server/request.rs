//! Requests, and the obligation to answer each exactly once.

use core::mem::ManuallyDrop;
use std::sync::Arc;

use memory::{Filler, LentBytes};

use crate::{
    endpoint::{
        half::HalfShape,
        server::{
            id::{ClientId, RequestId},
            replies::{Dropped, Replies, ReplyError},
        },
        status::ResponseKind,
    },
    ring::MessageBytes,
};

/// A request that is answered later: pass it to [`Server::reply`](crate::Server::reply).
///
/// Dropping it, on any thread, tells the client that there is no answer. It cannot be copied, so a
/// request is answered once:
///
/// ```compile_fail
/// fn twice(server: &mut copyrpc_ipc::Server, token: copyrpc_ipc::ReplyToken) {
///     server.reply(token, b"once");
///     server.reply(token, b"twice");
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping a token tells the client that there is no answer"]
pub struct ReplyToken {
    id: RequestId,
    /// `None` once the request was answered.
    dropped: Option<Arc<Dropped>>,
}

impl ReplyToken {
    /// The client that waits for the answer.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.id.client
    }

    /// # Panics
    ///
    /// If another server gave the token.
    pub(crate) fn redeem(mut self, replies: &Replies) -> RequestId {
        let is_ours = |dropped| Arc::ptr_eq(dropped, &replies.dropped);
        let is_ours = self.dropped.as_ref().is_some_and(is_ours);
        assert!(is_ours, "a token is answered by the server that gave it");
        self.dropped = None;
        self.id
    }
}

impl Drop for ReplyToken {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            dropped.push(self.id);
        }
    }
}

/// A request that the caller of [`Server::take`](crate::Server::take) answers by its id, now or later.
///
/// Nothing reminds of a request that is never answered: its client waits until its deadline, and
/// loses one of its calls. [`Request`] and [`ReplyToken`] cannot be forgotten.
#[derive(Debug)]
pub struct OpenRequest<'s> {
    /// The address of the answer.
    pub id: RequestId,
    /// The body: a private copy, valid until the next request is taken.
    pub payload: &'s [u8],
    /// The replies to this request and those before it.
    pub replies: &'s mut Replies,
}

/// A request that was just taken. Dropping it tells the client that there is no answer.
#[derive(Debug)]
#[must_use = "dropping a request tells the client that there is no answer"]
pub struct Request<'s>(OpenRequest<'s>);

impl<'s> Request<'s> {
    #[inline]
    pub(crate) fn new(open: OpenRequest<'s>) -> Self {
        Self(open)
    }

    /// The name of the request, which is the address of its answer.
    #[inline]
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.0.id
    }

    /// The body: a private copy, which does not change under the handler.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'s [u8] {
        self.0.payload
    }

    /// The client that sent it.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.0.id.client
    }

    /// Answers other requests, by their ids, while this one is held.
    #[inline]
    pub fn replies(&mut self) -> &mut Replies {
        self.0.replies
    }

    /// Answers. Never waits: the slot of the response was reserved with the request.
    ///
    /// # Errors
    ///
    /// [`ReplyError::TooLarge`].
    #[inline]
    pub fn reply(self, response: &[u8]) -> Result<(), ReplyError> {
        self.respond(response)
    }

    /// Answers with the parts of a response, which are gathered in the client's memory.
    ///
    /// # Errors
    ///
    /// [`ReplyError::TooLarge`].
    #[inline]
    pub fn reply_parts(self, response: &[&[u8]]) -> Result<(), ReplyError> {
        self.respond(response)
    }

    /// Answers with `len_bytes` bytes that `fill` puts where the client reads them: no copy of the response is
    /// made but by `fill`. A `fill` that panics answers with
    /// [`NotAnswered`](crate::CallError::NotAnswered).
    ///
    /// # Errors
    ///
    /// [`ReplyError::TooLarge`]. Then nothing was filled.
    #[inline]
    pub fn reply_with(
        mut self,
        len_bytes: usize,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<(), ReplyError> {
        let OpenRequest { id, replies, .. } = &mut self.0;
        let replied = replies.reply_with(*id, len_bytes, fill);
        let _answered = ManuallyDrop::new(self);
        replied
    }

    #[inline]
    fn respond<M: MessageBytes + ?Sized>(self, response: &M) -> Result<(), ReplyError> {
        // What is answered needs no drop, and what is not dropped need not be in memory.
        let mut request = ManuallyDrop::new(self);
        let OpenRequest { id, replies, .. } = &mut request.0;
        let max_bytes = replies.table.config().response_bytes_max as usize;
        let len_bytes = response.len_bytes();
        if len_bytes > max_bytes {
            replies.fail_taken(*id, ResponseKind::TooLarge, b"".as_slice());
            return Err(ReplyError::TooLarge { len_bytes, max_bytes });
        }
        replies.answer_taken(*id, ResponseKind::Ok, response);
        Ok(())
    }

    /// Answers with an error code of the application.
    pub fn reply_error(self, code: u32) {
        let mut request = ManuallyDrop::new(self);
        let OpenRequest { id, replies, .. } = &mut request.0;
        replies.fail_taken(*id, ResponseKind::HandlerError, code.to_le_bytes().as_slice());
    }

    /// Answers that there are no resources for the request now, so that the client tries later.
    pub fn reply_exhausted(self) {
        let mut request = ManuallyDrop::new(self);
        let OpenRequest { id, replies, .. } = &mut request.0;
        replies.fail_taken(*id, ResponseKind::ResourceExhausted, b"".as_slice());
    }

    /// Answers later, with a token that cannot be forgotten.
    pub fn defer(self) -> ReplyToken {
        let request = ManuallyDrop::new(self);
        let OpenRequest { id, replies, .. } = &request.0;
        ReplyToken { id: *id, dropped: Some(Arc::clone(&replies.dropped)) }
    }

    /// Answers later, by the [`id`](Self::id).
    pub fn keep_open(self) -> RequestId {
        ManuallyDrop::new(self).0.id
    }
}

impl Drop for Request<'_> {
    #[inline]
    fn drop(&mut self) {
        let OpenRequest { id, replies, .. } = &mut self.0;
        if replies.fail_taken(*id, ResponseKind::NotAnswered, b"".as_slice()) {
            replies.stats.unanswered += 1;
        }
    }
}

impl<'s> TakenRequest<'s> {
    /// A request of that length, with its body where it was left.
    #[inline]
    pub(crate) fn of(request: OpenRequest<'s>, len_bytes: usize) -> Self {
        let OpenRequest { id, payload, replies } = request;
        if HalfShape::is_bulk(len_bytes) {
            let (lent, replies) = lend_bulk(id, len_bytes, replies);
            return Self { id, payload: TakenBytes::Lent(lent), replies };
        }
        if payload.len() < len_bytes {
            return Self { id, payload: TakenBytes::Left { head: payload, len_bytes }, replies };
        }
        Self { id, payload: TakenBytes::Private(payload), replies }
    }
}

/// The body of a request that was taken from the bulk area of its call, where it lies.
#[inline]
fn lend_bulk(
    id: RequestId,
    len_bytes: usize,
    replies: &mut Replies,
) -> (LentBytes<'_>, &mut Replies) {
    let session = replies.table.sessions[usize::from(id.client.slot)].as_deref();
    let body = session.map_or(LentBytes::from(&[][..]), |session| {
        let body = session.calls.lend(id.call, len_bytes);
        // SAFETY: mapped as long as the session is in the table. Only the server takes it out, which is
        // borrowed for as long as `replies` is.
        unsafe { LentBytes::new(body.as_ptr(), body.len()) }
    });
    (body, replies)
}

/// A request that was taken and is to be answered by its id, with its body where it was left.
#[derive(Debug)]
pub struct TakenRequest<'s> {
    /// The name of the request, which is the address of its answer.
    pub id: RequestId,
    /// The body, until the next request is taken.
    pub payload: TakenBytes<'s>,
    /// Answers requests by their ids. Once this one is answered, its client may put its next one where a lent
    /// body lies.
    pub replies: &'s mut Replies,
}

/// The body of a request.
#[derive(Clone, Copy, Debug)]
pub enum TakenBytes<'s> {
    /// A private copy.
    Private(&'s [u8]),
    /// Where the client put it, and may change it at any time.
    Lent(LentBytes<'s>),
    /// It [was left](crate::Server::leave_large) where the client put it until it is answered:
    /// [`Replies::read_left`] copies parts of it.
    Left {
        /// A private copy of its first bytes.
        head: &'s [u8],
        /// Its length.
        len_bytes: usize,
    },
}

/// A request whose body lies where the client put it, and may change it at any time. Dropping it tells the
/// client that there is no answer.
#[derive(Debug)]
#[must_use = "dropping a request tells the client that there is no answer"]
pub struct LentRequest<'s> {
    body: LentBytes<'s>,
    request: Request<'s>,
}

impl<'s> LentRequest<'s> {
    #[inline]
    pub(crate) fn new(id: RequestId, body: LentBytes<'s>, replies: &'s mut Replies) -> Self {
        Self { body, request: Request(OpenRequest { id, payload: &[], replies }) }
    }

    /// A request that was taken from the bulk area of its call, and lies there.
    #[inline]
    pub(crate) fn of_bulk(id: RequestId, len_bytes: usize, replies: &'s mut Replies) -> Self {
        let (body, replies) = lend_bulk(id, len_bytes, replies);
        Self::new(id, body, replies)
    }

    /// The name of the request, which is the address of its answer.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.request.id()
    }

    /// The body, until the next request is taken. Once the request is answered, the client puts its next one
    /// there.
    #[inline]
    #[must_use]
    pub fn body(&self) -> LentBytes<'s> {
        self.body
    }

    /// See [`Request::reply`].
    ///
    /// # Errors
    ///
    /// [`ReplyError::TooLarge`].
    #[inline]
    pub fn reply(self, response: &[u8]) -> Result<(), ReplyError> {
        self.request.reply(response)
    }

    /// See [`Request::reply_with`]: `fill` may put [parts of the body](Filler::put_lent), which are copied once.
    ///
    /// # Errors
    ///
    /// [`ReplyError::TooLarge`].
    #[inline]
    pub fn reply_with(
        self,
        len_bytes: usize,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<(), ReplyError> {
        self.request.reply_with(len_bytes, fill)
    }

    /// Answers with an error code of the application.
    pub fn reply_error(self, code: u32) {
        self.request.reply_error(code);
    }
}
