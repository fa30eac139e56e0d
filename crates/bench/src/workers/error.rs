//! Why calls ended without a number.

use rpc::{CallError, CloseReason, ConnectError, ContactError, OpenError, ReplyError, Status};

use crate::{board::WaitError, duo::DuoError};

/// Why calls ended without a number.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// No port for the worker.
    #[error("cannot open a port for the sample: {0}")]
    Nic(String),
    /// No worker.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The other side told something that is no invitation.
    #[error("the other process sent no invitation: {0}")]
    Contact(#[from] ContactError),
    /// A call was refused, though its place was free.
    #[error("a call was refused: {0}")]
    Call(#[from] CallError),
    /// An answer was refused.
    #[error("an answer was refused: {0}")]
    Reply(#[from] ReplyError),
    /// A call ended otherwise than by its answer.
    #[error("call {index} ended with: {status}")]
    Status {
        /// Number of the call within its sample.
        index: u64,
        /// How it ended.
        status: Status,
    },
    /// An answer is not the one that was asked for.
    #[error("the answer to call {index} is wrong: {what}")]
    Wrong {
        /// Number of the call within its sample.
        index: u64,
        /// What is wrong about it.
        what: &'static str,
    },
    /// A connection ended during the sample.
    #[error("a connection ended: {0}")]
    Closed(CloseReason),
    /// The sample has no workers: it was run before it was connected.
    #[error("the sample was run before it was connected")]
    NotOpen,
    /// The other side does not answer.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The control connection failed.
    #[error(transparent)]
    Duo(#[from] DuoError),
}
