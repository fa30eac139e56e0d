//! The statuses of a call.

/// The status of a call, in gRPC's vocabulary and numbers.
///
/// A handler may answer with any of them, also with those that the caller's own side says when there is no
/// answer: [`Cancelled`](Self::Cancelled), [`DeadlineExceeded`](Self::DeadlineExceeded),
/// [`Unavailable`](Self::Unavailable), and [`Internal`](Self::Internal). To a process that calls through a
/// daemon they look alike; a caller with a connection of its own learns which it is.
///
/// Source: gRPC, *Status codes and their use in gRPC*.
///
/// ```
/// # use copyrpc_proto as copyrpc;
/// use copyrpc::Status;
///
/// assert_eq!(Status::NotFound as u8, 5);
/// assert_ne!(Status::Ok, Status::Unavailable);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Status {
    /// The handler answered.
    #[error("ok")]
    Ok = 0,
    /// The caller gave up, or closed the connection.
    #[error("cancelled by the caller")]
    Cancelled = 1,
    /// The handler dropped the request, or answered with a code that does not exist.
    #[error("the handler gave no answer")]
    Unknown = 2,
    /// The handler does not accept the request.
    #[error("invalid argument")]
    InvalidArgument = 3,
    /// No response before the deadline. The call may have been executed.
    #[error("no response before the deadline; the call may have been executed")]
    DeadlineExceeded = 4,
    /// The entity that the request names does not exist.
    #[error("not found")]
    NotFound = 5,
    /// The entity that the request would create exists.
    #[error("already exists")]
    AlreadyExists = 6,
    /// The caller may not do that.
    #[error("permission denied")]
    PermissionDenied = 7,
    /// No memory, no place in a queue. Retry later.
    #[error("resources exhausted; retry later")]
    ResourceExhausted = 8,
    /// The system is not in a state that allows it.
    #[error("failed precondition")]
    FailedPrecondition = 9,
    /// A conflict with another call. Retry.
    #[error("aborted by a conflict; retry")]
    Aborted = 10,
    /// Past the end.
    #[error("out of range")]
    OutOfRange = 11,
    /// No such method.
    #[error("no such method")]
    Unimplemented = 12,
    /// The other side is broken.
    #[error("internal error of the other side")]
    Internal = 13,
    /// The peer is gone, or the connection to it. The call may have been executed.
    #[error("the peer is gone; the call may have been executed")]
    Unavailable = 14,
    /// Data is lost or damaged.
    #[error("data loss")]
    DataLoss = 15,
    /// The caller did not say who it is.
    #[error("unauthenticated")]
    Unauthenticated = 16,
}

impl Status {
    /// Every status, by number.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The status with this number.
    #[inline]
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Its number.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_found_by_its_number() {
        for status in Status::ALL {
            assert_eq!(Status::from_code(status.code()), Some(status));
        }
        assert_eq!(Status::from_code(17), None);
    }
}
