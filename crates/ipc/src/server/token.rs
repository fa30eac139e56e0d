//! Requests, and the obligation to answer each exactly once.

use core::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

use memory::sync::{AtomicUsize, Ordering};

use crate::{
    server::{ledger::Taken, session::Session, stats::Stats},
    status::Kind,
};

/// Why a response did not reach its client. The request counts as answered in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The response is too long; the client was told so.
    #[error("a response of {len_bytes} B exceeds {max_bytes} B; raise `response_bytes_max`")]
    TooLarge {
        /// Length of the response.
        len_bytes: usize,
        /// Longest response.
        max_bytes: usize,
    },
    /// The client died, left or was evicted meanwhile.
    #[error("the client is gone")]
    ClientGone,
}

/// Names a client among all that a server ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId {
    pub(crate) place: u16,
    pub(crate) generation: u64,
}

/// Names a request among all that a server ever took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    pub(crate) client: ClientId,
    pub(crate) call: u16,
    pub(crate) serial: u64,
}

/// Where tokens leave word that they were dropped, from any thread.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    count: AtomicUsize,
    ids: Mutex<Vec<RequestId>>,
}

impl Dropped {
    fn push(&self, id: RequestId) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        // A hint, without order: who misses it looks again a turn later.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn take(&self) -> Vec<RequestId> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        self.count.fetch_sub(ids.len(), Ordering::Relaxed);
        core::mem::take(&mut ids)
    }
}

/// A request that is answered later: pass it to [`Server::reply`](crate::Server::reply).
///
/// Dropping it, on any thread, tells the client that there is no answer. It cannot be copied, so a
/// request is answered once:
///
/// ```compile_fail
/// fn twice(server: &mut copyrpc_ipc::Server, token: copyrpc_ipc::Token) {
///     server.reply(token, b"once");
///     server.reply(token, b"twice");
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping a token tells the client that there is no answer"]
pub struct Token {
    id: RequestId,
    /// `None` once it was answered.
    dropped: Option<Arc<Dropped>>,
}

impl Token {
    /// Who waits for the answer.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.id.client
    }

    pub(crate) fn redeem(mut self) -> RequestId {
        self.dropped = None;
        self.id
    }

    pub(crate) fn is_of(&self, dropped: &Arc<Dropped>) -> bool {
        self.dropped.as_ref().is_some_and(|ours| Arc::ptr_eq(ours, dropped))
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            dropped.push(self.id);
        }
    }
}

/// A request that was just taken. Dropping it tells the client that there is no answer.
#[derive(Debug)]
#[must_use = "dropping a request tells the client that there is no answer"]
pub struct Request<'s> {
    pub(crate) payload: &'s [u8],
    pub(crate) client: ClientId,
    pub(crate) taken: Taken,
    pub(crate) session: &'s mut Session,
    pub(crate) dirty: &'s mut Vec<u16>,
    pub(crate) stats: &'s mut Stats,
    pub(crate) dropped: &'s Arc<Dropped>,
    pub(crate) is_answered: bool,
}

impl<'s> Request<'s> {
    /// What the client sent: a private copy, which does not change under the handler.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'s [u8] {
        self.payload
    }

    /// Who sent it.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Answers. Never waits: the place of the response was reserved with the request.
    ///
    /// # Errors
    ///
    /// [`ReplyError::TooLarge`].
    #[inline]
    pub fn reply(self, response: &[u8]) -> Result<(), ReplyError> {
        // What is answered needs no drop, and what is not dropped need not be in memory.
        let mut request = ManuallyDrop::new(self);
        let max_bytes = request.session.ledger.response_bytes_max();
        if response.len() > max_bytes {
            request.answer(Kind::TooLarge, &[]);
            return Err(ReplyError::TooLarge { len_bytes: response.len(), max_bytes });
        }
        request.answer(Kind::Ok, response);
        Ok(())
    }

    /// Answers with an error code of the application.
    pub fn reply_error(mut self, code: u32) {
        self.answer(Kind::HandlerError, &code.to_le_bytes());
    }

    /// Answers that there are no resources for the request now, so that the client tries later.
    pub fn reply_exhausted(mut self) {
        self.answer(Kind::ResourceExhausted, &[]);
    }

    /// Answers later.
    pub fn defer(mut self) -> Token {
        self.is_answered = true;
        let (client, Taken { call, serial, .. }) = (self.client, self.taken);
        Token { id: RequestId { client, call, serial }, dropped: Some(Arc::clone(self.dropped)) }
    }

    #[inline]
    fn answer(&mut self, kind: Kind, message: &[u8]) {
        self.is_answered = true;
        let answered = self.session.answer(self.taken.call, self.taken.serial, kind, message);
        debug_assert!(answered.is_ok(), "taken just now, and answered once");
        self.session.mark_dirty(self.client.place, self.dirty);
        self.stats.responses += 1;
    }
}

impl Drop for Request<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_answered {
            self.stats.unanswered += 1;
            self.answer(Kind::NotAnswered, &[]);
        }
    }
}
