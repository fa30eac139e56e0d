//! Why traffic ended without a number.

use verbs::{
    CompletionKind, CreateError, Failure, MemoryError, ModifyError, PostRecvError, PostSendError,
};

use crate::{board::WaitError, duo::DuoError};

/// Why traffic ended without a number.
#[derive(Debug, thiserror::Error)]
pub enum TrafficError {
    /// No queue.
    #[error("cannot create a queue: {0}")]
    Create(#[from] CreateError),
    /// No memory.
    #[error("cannot register memory: {0}")]
    Memory(#[from] MemoryError),
    /// No connection.
    #[error("cannot connect: {0}")]
    Modify(#[from] ModifyError),
    /// The other side told something that is no contact.
    #[error("the other process named {0}, which cannot be connected to")]
    Contact(String),
    /// A send was refused.
    #[error("cannot post a send: {0}")]
    PostSend(#[from] PostSendError),
    /// A receive was refused.
    #[error("cannot post a receive: {0}")]
    PostRecv(#[from] PostRecvError),
    /// The NIC reported a failure.
    #[error("{kind:?} failed: {failure}")]
    Failed {
        /// What was tried.
        kind: CompletionKind,
        /// Why it failed.
        failure: Failure,
    },
    /// A message has the wrong length or immediate.
    #[error("message {index} arrived with {what} {found:#x}, not {expected:#x}")]
    WrongMessage {
        /// Number of the message within its sample.
        index: u64,
        /// What is wrong.
        what: &'static str,
        /// As it arrived.
        found: u64,
        /// As it was sent.
        expected: u64,
    },
    /// Bytes are not those that were sent.
    #[error("message {index} arrived with wrong bytes at offset {offset_bytes}")]
    WrongBytes {
        /// Number of the message within its sample.
        index: u64,
        /// First word that differs.
        offset_bytes: usize,
    },
    /// A message that nobody sent.
    #[error("a message arrived after the last one")]
    Stray,
    /// The other side does not answer.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The control connection failed.
    #[error(transparent)]
    Duo(#[from] DuoError),
}
