//! The messages of a daemon's threads to each other.

use ids::slots::Key;
use inproc::Token;
use rpc::Status;

use crate::{
    client_port::ClientTag,
    direct_link::DirectNewcomer,
    request_head::{Outgoing, RequestHead},
    source::PrivateBody,
};

/// A request of one thread to another.
pub(super) enum ThreadRequest {
    /// Call a node whose connection the other thread owns.
    Call { call: Outgoing, body: Vec<u8> },
    /// Answer a request for a service that the other thread offers.
    Serve { head: RequestHead, asked: AskedBy, body: PrivateBody },
    /// It is not answered.
    Notice(ThreadNotice),
}

/// Names a request of a thread to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskedBy {
    /// The thread that asked.
    pub(super) thread: u32,
    /// The request, as that thread knows it.
    pub(super) key: Key,
}

/// What a thread says to another one without an answer.
#[derive(Clone, Debug)]
pub(super) enum ThreadNotice {
    /// Nobody waits for what this client of the thread called.
    Forget(ClientTag),
    /// Nobody waits for the answer to this request.
    Cancel(AskedBy),
    /// This client of the thread may call a provider of the other one.
    Introduce(DirectNewcomer),
    /// A process of the thread offers this service, too.
    Shared(u16),
}

/// The answer to a [`ThreadRequest`].
pub(super) struct ThreadReply {
    pub(super) status: Status,
    pub(super) body: Vec<u8>,
}

/// The call of this thread that a request to another thread is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum ThreadCall {
    /// A call to a rank.
    Peer { key: Key, rank: u32 },
    /// A request for a service.
    Provider { key: Key, service: u16 },
}

/// A message of another thread.
pub(super) enum ThreadEvent {
    /// It is to be answered with [`ThreadHandle::answer`](crate::ThreadHandle).
    Request(ThreadRequest, Token),
    /// It is not answered.
    Notice(ThreadNotice),
    /// A request of this thread was answered.
    Reply { to: ThreadCall, status: Status, body: Vec<u8> },
}
