//! One error type per operation.

use proto::{Status, scalerpc::client};
use verbs::{CreateError, Lid, MemoryError, ModifyError, PostRecvError, PostSendError, WcFailure};

use crate::scalerpc::{ConfigError, ContactError};

/// Why a server or a client was not made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A setting is not possible.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The end of a block is read as the sign that all of it is there, which this NIC does not promise.
    #[error(
        "device `{device}` does not place the bytes of a WRITE in order, so the end of a block says nothing of the rest: \
         requests are noticed by `Detection::Immediate` alone"
    )]
    Unordered {
        /// Its name.
        device: String,
    },
    /// The NIC refused a queue.
    #[error("cannot create queues: {0}")]
    Create(#[from] CreateError),
    /// The NIC refused memory.
    #[error("cannot register blocks: {0}")]
    Memory(#[from] MemoryError),
    /// The NIC refused a state.
    #[error("cannot start a queue pair: {0}")]
    Modify(#[from] ModifyError),
    /// The NIC refused a receive.
    #[error("cannot post receives: {0}")]
    Receive(#[from] PostRecvError),
}

/// Why a client and a server did not become peers.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Close one first, or raise `clients_max`.
    #[error("all {0} places for clients are taken; raise `clients_max`")]
    Full(u16),
    /// As when a server is made.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The peer's invitation is none.
    #[error("the peer's invitation is broken: {0}")]
    Contact(#[from] ContactError),
    /// The server's blocks are longer than this client accepts.
    #[error("the server's blocks of {theirs} B exceed {max} B; raise `block_bytes_max`")]
    Block {
        /// Of the server.
        theirs: u32,
        /// Accepted.
        max: u32,
    },
    /// It is connected, or was closed.
    #[error("the client is connected or closed; open another one")]
    NotNew,
}

/// Why a call was not made. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Slots, or the end of the connection.
    #[error(transparent)]
    Core(#[from] client::CallError),
    /// A message has one block.
    #[error("a message of {len_bytes} B exceeds the {max_bytes} B of a block; raise `block_bytes`")]
    TooLong {
        /// Of the message.
        len_bytes: usize,
        /// Possible.
        max_bytes: usize,
    },
    /// The client has not been connected.
    #[error("the client is not connected")]
    NotConnected,
}

impl CallError {
    /// Whether the same call may be accepted later.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Core(client::CallError::Busy(_)))
    }
}

/// Why an answer was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The client is gone.
    #[error("the caller is gone, so the answer has no receiver")]
    Gone,
    /// The caller got [`Status::OutOfRange`].
    #[error(
        "a response of {len_bytes} B exceeds the {max_bytes} B of a block; the caller gets an error"
    )]
    TooLong {
        /// Of the response.
        len_bytes: usize,
        /// Possible.
        max_bytes: usize,
    },
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// This side closed it.
    #[error("closed by this side")]
    Closed,
    /// The NIC could not reach the peer.
    #[error("the connection failed: {0}")]
    Failed(WcFailure),
    /// The NIC took no request.
    #[error("the queue pair takes no requests: {0}")]
    Refused(PostSendError),
    /// The client did not leave its zone in time.
    #[error("the client did not leave its zone in time")]
    Silent,
    /// The peer broke the protocol.
    #[error("the peer sent what no correct peer sends")]
    Violation,
    /// The process or node behind the port is gone.
    #[error("the peer's port {0} is gone")]
    PeerGone(Lid),
}

impl CloseReason {
    /// How calls end that were in flight.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Closed => Status::Cancelled,
            Self::Violation => Status::Internal,
            _ => Status::Unavailable,
        }
    }
}
