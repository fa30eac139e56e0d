//! Messages about bulk memory that the dispatcher found in a turn. [`bulk`](crate::bulk) handles them behind the
//! rest of the turn.

use std::collections::HashSet;

use rpc::{PeerId, Status};

use crate::{client_port::ClientPort, request::Request};

/// Set in the cookies of what [`bulk`](crate::bulk) asks of the worker: no slot of another table is so high.
const MARK: u64 = 1 << 31;

/// A cookie that [`unmarked`] recognizes.
pub(crate) fn marked(key: u64) -> u64 {
    key | MARK
}

/// The key in a cookie of this module.
pub(crate) fn unmarked(cookie: u64) -> u64 {
    cookie & !MARK
}

/// A request for the daemon itself, of a client or of another daemon, which is about bulk memory.
pub(crate) struct BulkMessage<P: ClientPort> {
    /// Without its body.
    pub(crate) request: Request<'static, P>,
    pub(crate) body: Vec<u8>,
}

/// The end of something that was asked of the worker.
pub(crate) struct Outcome {
    pub(crate) cookie: u64,
    pub(crate) status: Status,
    /// `None`: it ended without an answer.
    pub(crate) body: Option<Vec<u8>>,
}

/// Filled while clients and the NIC are looked at, emptied in the same turn: what it holds is bounded by
/// what these bring in one.
pub(crate) struct BulkInbox<P: ClientPort> {
    pub(crate) messages: Vec<BulkMessage<P>>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) closed: Vec<PeerId>,
    /// Calls of clients of this node that their processes gave up, for the next look at deadlines.
    pub(crate) given_up: HashSet<P::ReplyTo>,
}

impl<P: ClientPort> Default for BulkInbox<P> {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            outcomes: Vec::new(),
            closed: Vec::new(),
            given_up: HashSet::new(),
        }
    }
}

impl<P: ClientPort> BulkInbox<P> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.outcomes.is_empty() && self.closed.is_empty()
    }

    /// A client, or another daemon, asked for something.
    pub(crate) fn request(&mut self, request: Request<'_, P>) {
        let body = request.body.private().to_vec();
        self.messages.push(BulkMessage { request: request.without_body(), body });
    }

    /// Something that was asked of the worker has ended, `body` being the answer if there is one. Returns
    /// whether it was this module that asked.
    #[inline]
    pub(crate) fn outcome(&mut self, cookie: u64, status: Status, body: Option<&[u8]>) -> bool {
        let is_ours = cookie & MARK != 0;
        if is_ours {
            self.outcomes.push(Outcome { cookie, status, body: body.map(<[u8]>::to_vec) });
        }
        is_ours
    }

    /// A connection has ended.
    pub(crate) fn disconnected(&mut self, peer: PeerId) {
        self.closed.push(peer);
    }
}
