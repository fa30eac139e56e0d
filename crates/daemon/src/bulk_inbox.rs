//! Messages about bulk memory that the dispatcher found in a turn. [`bulk`](crate::bulk) handles them behind the
//! rest of the turn.

use rpc::{PeerId, Status, Token};

use crate::client_port::ClientPort;

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

/// A request of a client.
pub(crate) struct ClientMessage<P: ClientPort> {
    pub(crate) client: P::Client,
    pub(crate) reply_to: P::ReplyTo,
    pub(crate) method: u16,
    pub(crate) body: Vec<u8>,
}

/// A request of another daemon.
pub(crate) struct PeerMessage {
    pub(crate) token: Token,
    pub(crate) rank: u32,
    pub(crate) method: u16,
    pub(crate) timeout_us: u32,
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
    pub(crate) requests: Vec<ClientMessage<P>>,
    pub(crate) calls: Vec<PeerMessage>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) closed: Vec<PeerId>,
}

impl<P: ClientPort> Default for BulkInbox<P> {
    fn default() -> Self {
        let (requests, calls) = (Vec::new(), Vec::new());
        Self { requests, calls, outcomes: Vec::new(), closed: Vec::new() }
    }
}

impl<P: ClientPort> BulkInbox<P> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let Self { requests, calls, outcomes, closed } = self;
        requests.is_empty() && calls.is_empty() && outcomes.is_empty() && closed.is_empty()
    }

    /// A client asked for something.
    pub(crate) fn request(
        &mut self,
        client: P::Client,
        reply_to: P::ReplyTo,
        method: u16,
        body: &[u8],
    ) {
        self.requests.push(ClientMessage { client, reply_to, method, body: body.to_vec() });
    }

    /// Another daemon asked for something.
    pub(crate) fn peer_request(
        &mut self,
        token: Token,
        rank: u32,
        method: u16,
        timeout_us: u32,
        body: &[u8],
    ) {
        self.calls.push(PeerMessage { token, rank, method, timeout_us, body: body.to_vec() });
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
