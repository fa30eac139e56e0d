//! Callbacks of a program: requests, responses, beginnings and ends of sessions.

use ids::slots::Key;
use proto::{Status, erpc::server::RequestId};
use verbs::Nic;

use crate::erpc::{CloseReason, Endpoint, SessionId};

/// Names a request that waits for an answer. Dropping it leaves the caller to its deadline.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a request without an answer occupies its slot until the session ends"]
pub struct Token {
    pub(crate) session: Key,
    pub(crate) request: RequestId,
}

/// A request as it arrived.
#[derive(Debug)]
pub struct Request<'a> {
    /// To be answered, now or later.
    pub token: Token,
    /// Names the handler: 0 to 254.
    pub req_type: u8,
    /// Its body: a private copy, valid during the callback.
    pub body: &'a [u8],
}

/// Callbacks of [`Endpoint::poll`].
///
/// They get the endpoint, so they may call, reply, cancel and disconnect from inside. A poll from inside a
/// callback does nothing and returns 0.
pub trait Handler<N: Nic> {
    /// A client asks. To answer later, keep the token.
    fn request(&mut self, endpoint: &mut Endpoint<N>, request: Request<'_>);

    /// A call has ended: `cookie` is that of the call. `body` is empty unless `status` is
    /// [`Status::Ok`].
    fn response(&mut self, endpoint: &mut Endpoint<N>, cookie: u64, status: Status, body: &[u8]);

    /// A call has ended without an answer. `was_sent`: it may have been executed.
    fn ended(&mut self, endpoint: &mut Endpoint<N>, cookie: u64, status: Status, was_sent: bool) {
        let _ = was_sent;
        self.response(endpoint, cookie, status, &[]);
    }

    /// A session that this side asked for can be used.
    fn connected(&mut self, endpoint: &mut Endpoint<N>, session: SessionId) {
        let _ = (endpoint, session);
    }

    /// A session has ended, or, if it connects again, begins anew. Its calls have ended.
    fn closed(&mut self, endpoint: &mut Endpoint<N>, session: SessionId, reason: CloseReason) {
        let _ = (endpoint, session, reason);
    }
}
