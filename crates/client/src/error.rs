//! Why a call has no answer.

use core::fmt;

use proto::{Status, bulk::SLICES_MAX};

use crate::{
    To,
    bulk::message::BODY_BYTES_MAX,
    message::{DAEMON, HERE, origin},
};

/// Why a call has no answer.
///
/// | variant | origin | executed |
/// |---|---|---|
/// | [`Service`](Self::Service), [`NoMethod`](Self::NoMethod) | the service | as the service says |
/// | [`NoService`](Self::NoService), [`NoRank`](Self::NoRank), [`NotHeld`](Self::NotHeld), [`Denied`](Self::Denied), [`Refused`](Self::Refused) | a daemon | no |
/// | [`Unanswered`](Self::Unanswered) | a daemon | perhaps |
/// | [`Daemon`](Self::Daemon) | this process: the own daemon does not answer | perhaps |
/// | [`LendsTooMuch`](Self::LendsTooMuch), [`NotSent`](Self::NotSent) | this process | no |
///
/// ```
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{CallError, Status, To};
///
/// let error = CallError::NoService(To::new(3, 17, 1));
/// assert_eq!(error.status(), Status::Unimplemented);
/// assert!(error.is_certainly_not_executed());
/// assert!(!CallError::Unanswered(Status::DeadlineExceeded).is_certainly_not_executed());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The service answered with a status that is no success.
    #[error("{0}")]
    Service(ServiceError),
    /// The service has no such method.
    #[error("service {} on {} has no method {}", .0.service, Place(&.0.rank), .0.method)]
    NoMethod(To),
    /// No process offers the service there. It was not executed.
    #[error("no process offers service {} on {}; offer it there, or call another rank", .0.service, Place(&.0.rank))]
    NoService(To),
    /// The job has no such rank. It was not executed.
    #[error("rank {0} does not exist in this job")]
    NoRank(u32),
    /// The daemon of this node holds no such region or transfer for this connection.
    #[error(
        "the daemon of this node holds no such region or transfer for this connection: it has ended or was forgotten, or \
         another connection made it"
    )]
    NotHeld,
    /// The rights of the job do not let this process call the service. It was not executed.
    #[error(
        "this process may not call service {} on {}: see COPYRPC_RIGHTS of the daemons",
        .0.service, Place(&.0.rank)
    )]
    Denied(To),
    /// A daemon did not hand the request on. It was not executed.
    #[error("a daemon refused the call: {}", Refusal(.0))]
    Refused(Status),
    /// A daemon ended the call without an answer of the service. It may have been executed.
    #[error("{0}")]
    Unanswered(Status),
    /// The daemon of this node did not answer. It may have been executed.
    #[error("the daemon of this node: {0}")]
    Daemon(ipc::CallError),
    /// A call that [lends memory](crate::bulk) has more slices or a longer body than there may be. It was not executed.
    #[error(
        "a call that lends memory has at most {SLICES_MAX} slices and a body of {BODY_BYTES_MAX} B, not {slices} and \
         {body_bytes} B; lend fewer, or put the body in a slice"
    )]
    LendsTooMuch {
        /// The slices of the call.
        slices: usize,
        /// Length of its body.
        body_bytes: usize,
    },
    /// Nothing was sent to the daemon of this node. It was not executed.
    #[error("nothing was sent to the daemon of this node: {}", Unsent(.0))]
    NotSent(ipc::CallError),
}

/// The status and detail with which a service refuses a request.
///
/// ```
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{CallError, Client, Status, To};
///
/// fn stat(client: &mut Client, path: &str) -> Result<Option<u64>, CallError> {
///     match client.call(To::new(0, 17, 1), path.as_bytes()) {
///         Ok(answer) => Ok(answer.first_chunk().map(|length| u64::from_le_bytes(*length))),
///         Err(CallError::Service(error)) if error.status == Status::NotFound => Ok(None),
///         Err(error) => Err(error),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceError {
    /// Its status.
    pub status: Status,
    /// Bytes of the service's own: at most 1024, and from other nodes no more than the caller set aside for a
    /// response.
    pub detail: Box<[u8]>,
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the service says: {}", self.status)?;
        match std::str::from_utf8(&self.detail) {
            Ok("") => Ok(()),
            Ok(text) => write!(f, ": {}", text.escape_debug()),
            Err(_) => write!(f, ", and {} bytes about it", self.detail.len()),
        }
    }
}

/// A rank, in words.
struct Place<'a>(&'a u32);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self.0 == HERE { f.write_str("this node") } else { write!(f, "rank {}", self.0) }
    }
}

/// Why nothing was sent, in words.
struct Unsent<'a>(&'a ipc::CallError);

impl fmt::Display for Unsent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // Its own words leave open what is known here.
            ipc::CallError::Deadline => {
                f.write_str("the deadline passed while the call waited for room")
            }
            ipc::CallError::TooLarge { len_bytes, max_bytes } => write!(
                f,
                "a request of {len_bytes} B with its heads is longer than the {max_bytes} B that a call carries; send \
                 it in parts, lend memory (bulk), or raise COPYRPC_MESSAGE_BYTES_MAX of the daemons"
            ),
            error => error.fmt(f),
        }
    }
}

/// A status of a call that was not executed, in words.
struct Refusal<'a>(&'a Status);

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // Its own words leave open what is known here.
            Status::Unavailable => f.write_str("the rank is not up, or drains"),
            Status::DeadlineExceeded => f.write_str("its deadline passed before it could be sent"),
            status => status.fmt(f),
        }?;
        f.write_str("; it was not executed")
    }
}

impl CallError {
    /// The status that stands for this error.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Service(error) => error.status,
            Self::NoMethod(_) | Self::NoService(_) => Status::Unimplemented,
            Self::NoRank(_) | Self::NotHeld => Status::NotFound,
            Self::Denied(_) => Status::PermissionDenied,
            Self::LendsTooMuch { .. } => Status::OutOfRange,
            Self::Refused(status) | Self::Unanswered(status) => *status,
            Self::Daemon(error) | Self::NotSent(error) => match error {
                ipc::CallError::Deadline => Status::DeadlineExceeded,
                ipc::CallError::TooLarge { .. } => Status::OutOfRange,
                ipc::CallError::Full { .. } => Status::ResourceExhausted,
                ipc::CallError::GivenUp | ipc::CallError::Closed => Status::Cancelled,
                _ => Status::Unavailable,
            },
        }
    }

    /// Whether the service certainly did not execute the call.
    #[must_use]
    pub fn is_certainly_not_executed(&self) -> bool {
        match self {
            Self::Service(_) | Self::Unanswered(_) | Self::Daemon(_) => false,
            Self::NoMethod(_)
            | Self::NoService(_)
            | Self::NoRank(_)
            | Self::NotHeld
            | Self::Denied(_)
            | Self::Refused(_)
            | Self::LendsTooMuch { .. }
            | Self::NotSent(_) => true,
        }
    }

    /// The bytes with which the service explains its status; empty if there are none.
    #[must_use]
    pub fn detail(&self) -> &[u8] {
        match self {
            Self::Service(error) => &error.detail,
            _ => &[],
        }
    }

    /// Whether the connection to the daemon is of no use any more.
    #[must_use]
    pub fn is_daemon_gone(&self) -> bool {
        use ipc::CallError::{Evicted, ServerBroken, ServerGone};
        let gone = |error: &ipc::CallError| matches!(error, ServerGone | Evicted(_) | ServerBroken);
        matches!(self, Self::Daemon(error) | Self::NotSent(error) if gone(error))
    }

    /// Whether the handle that made the call makes none any more: it was closed, or is the parent's of this process.
    pub(crate) fn is_handle_over(&self) -> bool {
        use ipc::CallError::{Closed, ForkedHandle};
        matches!(self, Self::Daemon(Closed | ForkedHandle) | Self::NotSent(Closed | ForkedHandle))
    }

    /// How a call to `to` ended that the daemon was told of.
    pub(crate) fn of(failed: ipc::Failed<'_>, to: To) -> Self {
        match failed.error {
            ipc::CallError::HandlerError(code) => Self::of_code(code, failed.detail, to),
            ipc::CallError::ResourceExhausted => Self::Refused(Status::ResourceExhausted),
            ipc::CallError::NotAnswered => Self::Unanswered(Status::Unknown),
            ipc::CallError::ResponseTooLarge => Self::Unanswered(Status::OutOfRange),
            error => Self::Daemon(error),
        }
    }

    /// Why a call to `to` was not made.
    pub(crate) fn not_sent(error: ipc::CallError) -> Self {
        Self::NotSent(error)
    }

    /// Why a call to the daemon was not made that waits for room until its deadline.
    pub(crate) fn not_sent_in_time(error: ipc::CallError) -> Self {
        match error {
            ipc::CallError::Full { .. } => Self::NotSent(ipc::CallError::Deadline),
            error => Self::NotSent(error),
        }
    }

    fn of_code(code: u32, detail: &[u8], to: To) -> Self {
        let [status, origin, ..] = code.to_le_bytes();
        let status = Status::from_code(status).unwrap_or(Status::Unknown);
        match (origin, status) {
            (origin::SERVICE, Status::Unimplemented) => Self::NoMethod(to),
            (origin::SERVICE, _) => Self::Service(ServiceError { status, detail: detail.into() }),
            (_, Status::Unimplemented) => Self::NoService(to),
            (_, Status::NotFound) if to.service == DAEMON && to.rank == HERE => Self::NotHeld,
            (_, Status::NotFound) => Self::NoRank(to.rank),
            (origin::NOT_EXECUTED, Status::PermissionDenied) => Self::Denied(to),
            (origin::NOT_EXECUTED, _) | (_, Status::ResourceExhausted) => Self::Refused(status),
            _ => Self::Unanswered(status),
        }
    }
}

/// How a request for the daemon of this node ended.
impl From<ipc::CallError> for CallError {
    fn from(error: ipc::CallError) -> Self {
        Self::of(error.into(), To { rank: HERE, service: DAEMON, method: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: To = To { rank: 3, service: 17, method: 1 };

    fn of(status: Status, origin: u8, detail: &[u8]) -> CallError {
        let code = u32::from_le_bytes([status.code(), origin, 0, 0]);
        CallError::of(ipc::Failed { error: ipc::CallError::HandlerError(code), detail }, TO)
    }

    #[test]
    fn who_says_so_decides_what_is_known() {
        let no_service = of(Status::Unimplemented, 0, b"");
        assert_eq!(no_service, CallError::NoService(TO));
        assert!(no_service.to_string().starts_with("no process offers service 17 on rank 3"));
        assert_eq!(of(Status::Unimplemented, origin::SERVICE, b""), CallError::NoMethod(TO));
        assert_eq!(of(Status::NotFound, 0, b""), CallError::NoRank(3));
        let not_there = of(Status::NotFound, origin::SERVICE, b"no such file");
        assert_eq!(not_there.detail(), b"no such file");
        assert_eq!(not_there.to_string(), "the service says: not found: no such file");
        assert!(!not_there.is_certainly_not_executed());
        let own = To { rank: HERE, service: DAEMON, method: 65 };
        let code = u32::from_le_bytes([Status::NotFound.code(), 0, 0, 0]);
        let failed = ipc::Failed { error: ipc::CallError::HandlerError(code), detail: b"" };
        assert_eq!(CallError::of(failed, own), CallError::NotHeld);
        let drains = of(Status::Unavailable, origin::NOT_EXECUTED, b"");
        assert!(drains.is_certainly_not_executed() && drains.to_string().contains("not executed"));
        let denied = of(Status::PermissionDenied, origin::NOT_EXECUTED, b"");
        assert_eq!(denied, CallError::Denied(TO));
        assert!(denied.is_certainly_not_executed(), "{denied}");
        assert!(!of(Status::Unavailable, 0, b"").is_certainly_not_executed());
        assert!(!of(Status::DeadlineExceeded, 0, b"").is_certainly_not_executed());
        let gone = CallError::of(ipc::CallError::ServerGone.into(), TO);
        assert!(gone.is_daemon_gone() && !gone.is_certainly_not_executed());
        assert_eq!(gone.status(), Status::Unavailable);
    }
}
