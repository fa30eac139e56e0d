//! One error type per operation.

use std::io;

use proto::{
    Status,
    erpc::{client, management::Refusal, server},
};
use verbs::{CreateError, Lid, MemoryError, ModifyError, PostRecvError};

use crate::erpc::ConfigError;

/// Why an endpoint was not made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The settings contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The NIC refused a queue.
    #[error("cannot create the endpoint's queues: {0}")]
    Create(#[from] CreateError),
    /// The NIC refused memory.
    #[error("cannot register the endpoint's packets: {0}")]
    Memory(#[from] MemoryError),
    /// The NIC refused a state.
    #[error("cannot start the endpoint's queue pair: {0}")]
    Modify(#[from] ModifyError),
    /// The NIC refused a receive.
    #[error("cannot post the endpoint's receives: {0}")]
    Receive(#[from] PostRecvError),
    /// The socket of the management packets cannot be opened.
    #[error("cannot listen for management packets: {0}")]
    Socket(#[from] io::Error),
}

/// Why no session was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Disconnect one first, or raise `sessions_max`.
    #[error("all {0} sessions are taken; disconnect one, or raise `sessions_max`")]
    Full(u32),
    /// Management packets carry IPv4 addresses.
    #[error("the server's address must be IPv4")]
    Address,
}

/// Why a call was not made. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The session: see there.
    #[error(transparent)]
    Session(#[from] client::CallError),
    /// The session is being made. Poll, then try again.
    #[error("the session is not connected yet; poll, then call again")]
    Connecting,
    /// As many calls as may are in flight or wait. Poll, then try again.
    #[error("all {0} calls of the endpoint are taken; poll, or raise `calls_max`")]
    Busy(u32),
    /// There is no such session, or the peer made it.
    #[error("no session of this side has that name; connect again")]
    NoSession,
}

impl CallError {
    /// Whether the same call may be accepted later.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Connecting | Self::Busy(_) | Self::Session(client::CallError::Busy(_)))
    }
}

/// Why an answer was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The session has ended meanwhile.
    #[error("the caller is gone, so the answer has no receiver")]
    Gone,
    /// Too long, or answered before.
    #[error(transparent)]
    Refused(#[from] server::RespondError),
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// This side disconnected it.
    #[error("disconnected by this side")]
    Closed,
    /// The client disconnected it.
    #[error("disconnected by the client")]
    Disconnected,
    /// The server did not want it.
    #[error("the server refused: {0}")]
    Refused(#[from] Refusal),
    /// No route leads from an IPv4 address to one that is none.
    #[error(
        "this port sends from GID {own} and the server from {theirs}, and no route leads from an IPv4 address to \
         one that is none: choose rows alike by COPYRPC_NIC_GID_INDEX (the original eRPC has row 1)"
    )]
    GidKinds {
        /// Of this port.
        own: verbs::Gid,
        /// Of the server's.
        theirs: verbs::Gid,
    },
    /// No answer to management packets came in time.
    #[error("the server did not answer in time")]
    ConnectTimeout,
    /// The peer owed answers and was silent for too long.
    #[error("the peer is silent; it is taken for dead")]
    Silent,
    /// The peer's process has begun anew, or has given the session up.
    #[error("the peer knows the session no more")]
    Forgotten,
    /// The process or node behind the port is gone.
    #[error("the peer's port {0} is gone")]
    PeerGone(Lid),
    /// The own queue pair failed.
    #[error("the endpoint's queue pair failed and was started anew")]
    QueuePair,
}

impl CloseReason {
    /// How calls end that were in flight.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Closed => Status::Cancelled,
            _ => Status::Unavailable,
        }
    }

    /// Whether it is worth connecting again.
    pub(crate) fn is_failure(&self) -> bool {
        !matches!(self, Self::Closed | Self::Disconnected)
    }
}
