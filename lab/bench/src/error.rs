//! Why a benchmark has no number.

use measure::{
    ping_pong::ThreadsError,
    shared_words::{SharedWordsError, WaitError},
};
use os::child::{ChannelError, NoParentError, TypedMessageError};
use verbs::{
    CompletionKind, CreateError, MemoryError, ModifyError, PostRecvError, PostSendError, WcFailure,
};

/// Whatever was reported.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a benchmark has no number.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something was refused.
    #[error("{what}: {cause}")]
    Refused {
        /// The operation that failed.
        what: &'static str,
        /// As it was told.
        #[source]
        cause: Cause,
    },
    /// The control channel failed, or the two sides are not of the same version.
    #[error(transparent)]
    Control(#[from] TypedMessageError),
    /// Started by hand instead of by the parent.
    #[error(transparent)]
    NoParent(#[from] NoParentError),
    /// The other side, or another thread, does not answer.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The NIC reported a failure.
    #[error("{kind:?} failed: {failure}")]
    Completion {
        /// Kind of the request that failed.
        kind: CompletionKind,
        /// Syndrome of the completion.
        failure: WcFailure,
    },
    /// A message, an item or a checksum is not what was sent.
    #[error("message {index} arrived with {what} {found:#x}, not {expected:#x}")]
    Wrong {
        /// Its number within the sample.
        index: u64,
        /// The difference that was found.
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
    /// A call has no answer, or not its own.
    #[error("call {index}: {what}")]
    Call {
        /// Its number within the sample.
        index: u64,
        /// Status that the call ended with.
        what: String,
    },
    /// A message that nobody sent.
    #[error("a message arrived after the last one")]
    Stray,
    /// A cell needs a NIC that is not open, or was run before it was connected.
    #[error("this cell needs a NIC that is open and connected")]
    NoNic,
    /// The other side's reason.
    #[error("responder: {0}")]
    Responder(String),
    /// Both sides failed; usually the second because of the first.
    #[error("initiator: {initiator}; responder: {responder}")]
    Both {
        /// This side's reason.
        initiator: Box<Self>,
        /// The other side's reason.
        responder: String,
    },
    /// The other side answered something else than asked for.
    #[error("the other process answered out of turn: {0}")]
    OutOfTurn(String),
    /// A cell failed.
    #[error("cell {cell}: {cause}")]
    Cell {
        /// Its name.
        cell: String,
        /// Error of the cell.
        cause: Box<Self>,
    },
}

impl Error {
    /// `what` was tried, and refused for the reason that the closure is given.
    pub fn refused<E: Into<Cause>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |cause| Self::Refused { what, cause: cause.into() }
    }

    /// Whether the other process has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Control(TypedMessageError::Channel(ChannelError::Gone)))
    }

    /// Whether the other process sent nothing in time.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Control(TypedMessageError::Channel(ChannelError::TimedOut)))
    }
}

macro_rules! refusals {
    ($($cause:ty => $what:literal,)*) => {$(
        impl From<$cause> for Error {
            fn from(cause: $cause) -> Self {
                Self::Refused { what: $what, cause: cause.into() }
            }
        }
    )*};
}

refusals! {
    SharedWordsError => "no shared words",
    ThreadsError => "two-line round trip between threads",
    CreateError => "cannot create a queue",
    MemoryError => "cannot register memory",
    ModifyError => "cannot connect",
    PostSendError => "cannot post a send",
    PostRecvError => "cannot post a receive",
    rpc::OpenError => "cannot open a worker",
    rpc::ConnectError => "cannot connect a worker",
    rpc::ContactError => "the other process sent no invitation",
    rpc::CallError => "a call was refused",
    rpc::ReplyError => "an answer was refused",
    ipc::BindError => "cannot start the server",
    ipc::ConnectError => "cannot connect to the server",
    ipc::ReplyError => "cannot answer",
    serde_json::Error => "the other process sent a contact that makes no sense",
}
