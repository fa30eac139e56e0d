//! One error type per operation.

use proto::{
    Status,
    copyrpc::{Busy, HelloError, Violation},
};
use verbs::{Cqn, CreateError, Lid, MemoryError, ModifyError, PostRecvError};

use crate::{ConfigError, ContactError, Range};

/// Why a worker was not made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The settings contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The NIC refused a queue.
    #[error("cannot create the worker's queues: {0}")]
    Create(#[from] CreateError),
    /// The NIC refused a state.
    #[error("cannot start the worker's queues: {0}")]
    Modify(#[from] ModifyError),
    /// The NIC refused a receive.
    #[error("cannot post the worker's receives: {0}")]
    Receive(#[from] PostRecvError),
}

/// Why two workers did not become peers.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Close a peer first, or raise `peers_max`.
    #[error("all {max} slots for peers are taken; close a peer or raise `peers_max`")]
    Full {
        /// Slots.
        max: u16,
    },
    /// The NIC refused a queue.
    #[error("cannot create a queue pair for the peer: {0}")]
    Create(#[from] CreateError),
    /// The NIC refused memory.
    #[error("cannot register a ring for the peer: {0}")]
    Memory(#[from] MemoryError),
    /// The NIC refused the connection.
    #[error("cannot connect to the peer: {0}")]
    Modify(#[from] ModifyError),
    /// The NIC refused a receive.
    #[error("cannot post receives for the peer: {0}")]
    Receive(#[from] PostRecvError),
    /// The peer's invitation is none.
    #[error("the peer's invitation is broken: {0}")]
    Contact(#[from] ContactError),
    /// The peer's version or sizes.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The peer's ring would take too much memory here.
    #[error("the peer's ring of {theirs} B exceeds {max} B; raise `peer_ring_bytes_max`")]
    Ring {
        /// Of the peer.
        theirs: usize,
        /// Accepted.
        max: usize,
    },
    /// The peer uses another transport, or another kind of address.
    #[error("the peer uses {theirs}, this side {ours}; configure both alike")]
    Transport {
        /// Of the peer.
        theirs: &'static str,
        /// Of this side.
        ours: &'static str,
    },
    /// DC: the peer's port takes less than this side's initiators send.
    #[error(
        "the peer's port takes {theirs}, this side's initiators send {ours}; configure both alike"
    )]
    Path {
        /// The MTUs of the peer's port.
        theirs: String,
        /// The MTU of this side.
        ours: String,
    },
    /// The peer was never invited, is connected, or was closed.
    #[error("the peer does not wait for an invitation; invite it first, once")]
    NotInvited,
}

/// Why a call was not made. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Back-pressure: poll, then try again.
    #[error("{0}; poll, then call again")]
    Busy(#[from] Busy),
    /// Too long.
    #[error(
        "a body of {len_bytes} B exceeds the {max_bytes} B that the peer accepts; send it in parts, or \
         raise its `large_bytes`"
    )]
    TooLong {
        /// Of the body.
        len_bytes: usize,
        /// Possible.
        max_bytes: usize,
    },
    /// No response of this length fits.
    #[error(
        "a response of up to {asked_bytes} B exceeds the {max_bytes} B that the ring's share has room for; \
         raise `response_bytes` of the worker, or lower that of the call: a longer one comes by rendezvous"
    )]
    NoPlace {
        /// Asked for.
        asked_bytes: usize,
        /// Longest that there is room for.
        max_bytes: usize,
    },
    /// The memory for large bodies of this caller, of this method or of all is in use. Poll, then try again.
    #[error(
        "no registered memory for a body of {len_bytes} B: as much is in use as `large_memory_bytes` and its \
         like allow; poll, then call again"
    )]
    NoMemory {
        /// Of the body.
        len_bytes: usize,
    },
    /// A future's worker was called inside a callback, which has the worker itself.
    #[error("called inside a callback; use the worker that it is given")]
    Nested,
    /// The peer is not connected, or not any more.
    #[error("the peer is not connected; invite and connect it again")]
    NotConnected,
}

/// Why memory of a peer is not accessed. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// Back-pressure: poll, then try again.
    #[error("all {0} accesses are in flight; poll, then try again")]
    Busy(usize),
    /// The peer's region is shorter.
    #[error("{0:?} exceeds the peer's region")]
    Remote(Range),
    /// This side's region is shorter, or 2 GiB are exceeded.
    #[error("{0:?} exceeds this side's region, or 2 GiB")]
    Local(Range),
    /// The peer is not connected, or not any more.
    #[error("the peer is not connected; invite and connect it again")]
    NotConnected,
}

/// Why an answer was not sent. The request counts as answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// Too long; the caller was told [`Status::OutOfRange`]. Only an answer that is [`Status::Ok`] may
    /// come by rendezvous.
    #[error(
        "a response of {len_bytes} B exceeds the {max_bytes} B that the caller accepts, which gets an error: \
         raise its `large_bytes`, or `response_bytes` of the call if this is no `Ok`"
    )]
    TooLong {
        /// Of the response.
        len_bytes: usize,
        /// Accepted.
        max_bytes: usize,
    },
    /// There is no registered memory for it; the caller was told [`Status::Unavailable`], for its call
    /// was executed.
    #[error(
        "no registered memory for a response of {len_bytes} B: as much is in use as `large_memory_bytes` and \
         its like allow; the caller gets no answer: raise them"
    )]
    NoMemory {
        /// Of the response.
        len_bytes: usize,
    },
    /// The connection has ended meanwhile.
    #[error("the caller is gone, so the answer has no receiver")]
    Gone,
}

/// Why a worker is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NicFailure {
    /// Completions were lost, and with them the end of what they were about.
    #[error(
        "completion queue {0} has overrun and reports nothing any more; this program has to be started anew \
         (the queue has an entry for all that can be outstanding: this is a bug of the program or of its NIC)"
    )]
    CqOverrun(Cqn),
    /// No object of the device works.
    #[error(
        "the NIC has failed; its program has to be started anew once the system's log says that it works"
    )]
    Device,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// This side closed it.
    #[error("closed by this side")]
    Closed,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Violation(#[from] Violation),
    /// The NIC could not reach the peer, or the peer refused an access.
    #[error("the connection failed: {0}")]
    Failed(verbs::WcFailure),
    /// The NIC could not take a request.
    #[error("the queue pair went to an error state")]
    QueuePair,
    /// The process or node behind the port is gone.
    #[error("the peer's port {0} is gone")]
    PeerGone(Lid),
    /// There is no memory, here or there, to reach the peer.
    #[error(transparent)]
    NoMemory(#[from] verbs::Shortage),
}

impl CloseReason {
    /// The status of the calls that were in flight.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Closed => Status::Cancelled,
            Self::Violation(_) => Status::Internal,
            Self::Failed(_) | Self::QueuePair | Self::PeerGone(_) | Self::NoMemory(_) => {
                Status::Unavailable
            }
        }
    }
}
