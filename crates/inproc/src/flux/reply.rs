//! Events of a poll.

use core::fmt;

use super::node::{Node, Origin};
use crate::{Unanswered, deferred::Token, spsc::Discipline};

/// The event that [`Node::poll`] found.
pub enum Event<'n, Q, R, U, D: Discipline> {
    /// A call of another node, or of this one.
    Request {
        /// The caller.
        from: usize,
        /// The message of the peer.
        request: Q,
        /// Answers it, now or later.
        reply: Responder<'n, Q, R, U, D>,
    },
    /// A message that expects no reply.
    Notice {
        /// The sender.
        from: usize,
        /// The message of the peer.
        notice: Q,
    },
    /// The end of a call.
    Reply {
        /// The node that was called.
        from: usize,
        /// As passed to [`Node::call`].
        user: U,
        /// The response, or why there is none.
        result: Result<R, Unanswered>,
    },
}

impl<Q: fmt::Debug, R: fmt::Debug, U: fmt::Debug, D: Discipline> fmt::Debug
    for Event<'_, Q, R, U, D>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request { from, request, .. } => {
                f.debug_tuple("Request").field(from).field(request).finish()
            }
            Self::Notice { from, notice } => {
                f.debug_tuple("Notice").field(from).field(notice).finish()
            }
            Self::Reply { from, user, result } => {
                f.debug_tuple("Reply").field(from).field(user).field(result).finish()
            }
        }
    }
}

/// Obligation to answer one request. Dropping it answers with [`Unanswered::Dropped`].
#[must_use = "dropping a responder answers its request with an error"]
pub struct Responder<'n, Q, R, U, D: Discipline> {
    node: &'n mut Node<Q, R, U, D>,
    /// None once answered or deferred.
    origin: Option<Origin>,
}

impl<'n, Q, R, U, D: Discipline> Responder<'n, Q, R, U, D> {
    pub(super) fn new(node: &'n mut Node<Q, R, U, D>, origin: Origin) -> Self {
        Self { node, origin: Some(origin) }
    }

    /// Answers now. Never fails, and never waits.
    #[inline]
    pub fn send(mut self, response: R) {
        if let Some(origin) = self.origin.take() {
            self.node.send_reply(origin, Ok(response));
        }
    }

    /// Promises to answer later, by [`Node::reply`] of the same node. The token may visit other
    /// threads meanwhile.
    ///
    /// # Errors
    ///
    /// The responder comes back if the node has `tokens_max` tokens out: answer now, or drop it.
    pub fn defer(mut self) -> Result<Token, Self> {
        match self.origin.and_then(|origin| self.node.defer(origin)) {
            Some(token) => {
                self.origin = None;
                Ok(token)
            }
            None => Err(self),
        }
    }
}

impl<Q, R, U, D: Discipline> Drop for Responder<'_, Q, R, U, D> {
    #[inline]
    fn drop(&mut self) {
        if let Some(origin) = self.origin.take() {
            self.node.send_reply(origin, Err(Unanswered::Dropped));
        }
    }
}

impl<Q, R, U, D: Discipline> fmt::Debug for Responder<'_, Q, R, U, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").finish_non_exhaustive()
    }
}
