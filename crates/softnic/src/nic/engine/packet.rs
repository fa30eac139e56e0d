//! What travels between ports: one request per message, one reply per request.

use wire::{
    cqe::Syndrome,
    ids::{DcKey, Lid, QKey, Qpn, Rkey},
};

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Send,
    Write,
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// What gives the right to be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// RC: the queue pairs are connected to each other.
    Connected,
    Ud(QKey),
    Dc(DcKey),
}

/// How much of a request to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it.
    Whole,
    /// Only the checks: strict mode moves the data later, but a refusal comes in order. It makes that many
    /// READs and atomics which are outstanding.
    Checks { outstanding: usize },
}

/// The header of a message. Its payload travels beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) verb: Verb,
    pub(crate) extent: Extent,
    pub(crate) key: Key,
    pub(crate) from: (Lid, Qpn),
    pub(crate) to: Qpn,
    pub(crate) service_level: u8,
    /// A global route header came with it; of a datagram, `addr` says which.
    pub(crate) has_grh: bool,
    pub(crate) solicited: bool,
    pub(crate) imm: Option<u32>,
    /// Bytes to place or to read; 8 for an atomic.
    pub(crate) len_bytes: u32,
    /// Remote memory; of a datagram with a global route header, [`GlobalRoute`](super::global_route::GlobalRoute).
    pub(crate) addr: u64,
    pub(crate) rkey: Rkey,
}

/// What the requester learns.
///
/// Its tag is a word: a narrow one, stored and then loaded as part of a word, stalls behind every
/// store that still waits for a peer's cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Reply {
    /// Done. READ data has been placed.
    Ack,
    /// Done; the value before the atomic.
    Value(u64),
    /// No receive is posted.
    NotReady { wait_ns: u64 },
    /// Refused: the CQE syndrome that the requester reports.
    Refused(Syndrome),
    /// No answer: nobody is there, or not yet, or it dropped the message.
    Silence,
    /// Somebody is there, but has not shown its memory yet; ask again soon.
    Connecting,
    /// The peer is known to be dead: no use in retrying.
    Dead,
    /// The request has left as a packet: [`Requester::settle`](super::Requester::settle) takes its answer.
    Later,
}
