//! The head of a request: all that queues, threads and providers share of it.

use client::message::CallerHead;

use crate::{client_port::ClientTag, limits::CallerId};

/// A request without its body, its key and the address of its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHead {
    /// The caller whose share the request counts for.
    pub(crate) caller_id: CallerId,
    /// Process, user and trace of the caller, as far as known.
    pub(crate) caller: CallerHead,
    /// Rank of the caller's node.
    pub(crate) from_rank: u32,
    /// Rank of the service's node.
    pub(crate) rank: u32,
    pub(crate) service: u16,
    pub(crate) method: u16,
    pub(crate) deadline_ns: u64,
    /// Longest answer that needs no detour; 0: it is not known.
    pub(crate) response_bytes: usize,
}

/// A call to another node, without its body.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing {
    pub(crate) head: RequestHead,
    /// Its client, among those of all threads.
    pub(crate) client: ClientTag,
    pub(crate) taken_ns: u64,
}
