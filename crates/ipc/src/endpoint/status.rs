//! The ends of calls, and the causes of evictions.

use memory::LentBytes;

/// Why a client was evicted: the code that the server leaves in memory that the client can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub enum EvictReason {
    /// A slot carried a tag of neither this lap nor the one before.
    #[error("a slot of its request ring is out of sequence")]
    BadTag = 1,
    /// A request named a call beyond the depth.
    #[error("a request names a call that does not exist")]
    BadCall = 2,
    /// A request named a call that is in flight.
    #[error("a request names a call that is in flight")]
    CallInUse = 3,
    /// A request was longer than agreed.
    #[error("a request is longer than agreed")]
    BadLength = 4,
    /// A request was of a kind that does not exist.
    #[error("a request is of a kind that does not exist")]
    BadKind = 5,
    /// It woke the server more often than it sent requests.
    #[error("it woke the server without need")]
    WakeupStorm = 6,
    /// It sent something over the socket that is not in the protocol.
    #[error("it broke the protocol of the socket")]
    BadDatagram = 7,
    /// The operator of the server decided so.
    #[error("the server's operator evicted it")]
    Operator = 8,
    /// It left as many responses unread as it may have calls, for longer than the server allows.
    #[error("it was stopped, or did not read its responses, for too long")]
    Stalled = 9,
    /// The session came to its end: all that was taken was answered.
    #[error("the server takes no more requests of this session")]
    Retired = 10,
    /// A reason that a newer server knows.
    #[error("the server gave a reason that this version does not know")]
    Unknown = u32::MAX,
}

impl EvictReason {
    const ALL: [Self; 10] = [
        Self::BadTag,
        Self::BadCall,
        Self::CallInUse,
        Self::BadLength,
        Self::BadKind,
        Self::WakeupStorm,
        Self::BadDatagram,
        Self::Operator,
        Self::Stalled,
        Self::Retired,
    ];

    /// The reason that a word stands for, unless it stands for none.
    #[must_use]
    pub fn from_word(word: u32) -> Option<Self> {
        match word {
            0 => None,
            _ => Some(Self::ALL.into_iter().find(|r| *r as u32 == word).unwrap_or(Self::Unknown)),
        }
    }
}

/// Why a call has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The deadline passed. The server may or may not have executed the call, or may still do so.
    #[error("no response before the deadline; the call may have been executed")]
    Deadline,
    /// The server died or closed the connection. Reconnect; the call may have been executed.
    #[error("the server is gone; reconnect")]
    ServerGone,
    /// The server evicted this client. Reconnect once the reason is dealt with.
    #[error("the server evicted this client: {0}")]
    Evicted(EvictReason),
    /// The server is gone, or evicted this client, and had not taken the request: it was not executed.
    #[error("the server is gone, and had not taken the request")]
    NotTaken,
    /// The server wrote something that is not in the protocol.
    #[error("the server breaks the protocol; both sides must run compatible versions")]
    ServerBroken,
    /// This process has no memory for so long a request.
    #[error(
        "no memory for a request of {len_bytes} B; free some, or raise the limit of the container"
    )]
    NoMemory {
        /// Length of the request.
        len_bytes: usize,
    },
    /// The handler answered with an error code of the application.
    #[error("the handler failed with code {0}")]
    HandlerError(u32),
    /// The handler dropped the request, or panicked, or there was no memory for its answer.
    #[error("the handler gave no answer")]
    NotAnswered,
    /// The server has no resources for this call now. Retry later.
    #[error("the server has no resources for the call; retry later")]
    ResourceExhausted,
    /// The response was longer than agreed at connect.
    #[error("the response exceeds the agreed length; raise the server's `response_bytes_max`")]
    ResponseTooLarge,
    /// The request is longer than agreed at connect. Nothing was sent.
    #[error(
        "a request of {len_bytes} B exceeds the agreed {max_bytes} B; nothing was sent: send less, or raise the limit of the server"
    )]
    TooLarge {
        /// Length of the request.
        len_bytes: usize,
        /// Longest request.
        max_bytes: usize,
    },
    /// The program gave the request up while it filled it. Nothing was sent.
    #[error("the request was given up while it was filled; nothing was sent")]
    GivenUp,
    /// As many calls as agreed are in flight, late responses of abandoned calls included. Nothing
    /// was sent; retry after a response.
    #[error("all {depth} calls are in flight; nothing was sent, retry after a response")]
    Full {
        /// Calls in flight.
        depth: usize,
    },
    /// This process is a `fork(2)` of the one that made the handle. Connect anew; nothing was sent.
    #[error("the handle belongs to the parent of this process; connect anew")]
    ForkedHandle,
    /// The program closed the handle. Connect anew.
    #[error("the handle was closed; connect anew")]
    Closed,
}

/// A call without a response of the handler, and what the handler says about its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed<'a> {
    /// Why there is no response.
    pub error: CallError,
    /// What came with [`CallError::HandlerError`]: a private copy. Empty with any other error.
    pub detail: &'a [u8],
}

impl From<CallError> for Failed<'_> {
    fn from(error: CallError) -> Self {
        Self { error, detail: &[] }
    }
}

/// How a call ended: its response, or why there is none.
pub type CallOutcome<'a> = Result<&'a [u8], Failed<'a>>;

/// How a call ended whose response is lent where it lies.
pub type LentOutcome<'a> = Result<LentBytes<'a>, Failed<'a>>;

/// Lends a private copy.
#[inline]
pub(crate) fn lend(outcome: CallOutcome<'_>) -> LentOutcome<'_> {
    outcome.map(LentBytes::from)
}

/// ResponseKind of a response, as its header carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ResponseKind {
    Ok = 0,
    /// The message is the code, 4 bytes little-endian, and what the handler says about it.
    HandlerError = 1,
    NotAnswered = 2,
    ResourceExhausted = 3,
    TooLarge = 4,
}

impl ResponseKind {
    /// Bytes of the message of [`Self::HandlerError`].
    pub(crate) const CODE_BYTES: usize = size_of::<u32>();

    /// The result of a call whose response has this kind and this message.
    #[inline(always)]
    pub(crate) fn outcome(kind: u8, message: &[u8]) -> CallOutcome<'_> {
        if kind == Self::Ok as u8 { Ok(message) } else { Err(Self::error(kind, message)) }
    }

    #[cold]
    fn error(kind: u8, message: &[u8]) -> Failed<'_> {
        if kind == Self::HandlerError as u8
            && let Some((code, detail)) = message.split_first_chunk()
        {
            return Failed { error: CallError::HandlerError(u32::from_le_bytes(*code)), detail };
        }
        let error = match kind {
            _ if kind == Self::NotAnswered as u8 => CallError::NotAnswered,
            _ if kind == Self::ResourceExhausted as u8 => CallError::ResourceExhausted,
            _ if kind == Self::TooLarge as u8 => CallError::ResponseTooLarge,
            _ => CallError::ServerBroken,
        };
        error.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_its_word() {
        for reason in EvictReason::ALL {
            assert_eq!(EvictReason::from_word(reason as u32), Some(reason));
        }
        assert_eq!(EvictReason::from_word(0), None);
        assert_eq!(EvictReason::from_word(77), Some(EvictReason::Unknown));
    }

    #[test]
    fn pitfall_23_unknown_kinds_and_short_codes_are_errors_of_the_server() {
        assert_eq!(ResponseKind::outcome(0, b"yes"), Ok(&b"yes"[..]));
        let failed = |error, detail| Err(Failed { error, detail });
        let handler_error = CallError::HandlerError(7);
        assert_eq!(ResponseKind::outcome(1, &[7, 0, 0, 0]), failed(handler_error, b""));
        assert_eq!(ResponseKind::outcome(1, b"\x07\0\0\0why"), failed(handler_error, b"why"));
        assert_eq!(ResponseKind::outcome(1, &[7]), failed(CallError::ServerBroken, b""));
        assert_eq!(ResponseKind::outcome(15, &[]), failed(CallError::ServerBroken, b""));
    }
}
