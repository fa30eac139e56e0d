//! Errors of both sides.

use std::fmt::{self, Display};

use client::{CallError, Status};

use crate::typed::CodecError;

/// Why a method does not succeed, as the caller sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its status.
    pub status: Status,
    /// Bytes of the service's own, for the caller: at most 1024.
    pub detail: Vec<u8>,
}

impl Failure {
    /// A status, and words about it.
    pub fn new(status: Status, words: impl Display) -> Self {
        Self { status, detail: words.to_string().into_bytes() }
    }

    /// [`Status::NotFound`]: what the request names does not exist.
    pub fn not_found(words: impl Display) -> Self {
        Self::new(Status::NotFound, words)
    }

    /// The arguments make no sense.
    pub fn invalid(words: impl Display) -> Self {
        Self::new(Status::InvalidArgument, words)
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self { status, detail: Vec::new() }
    }
}

/// Why a call of a method has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypedError {
    /// The call has no answer, or the service refused it.
    #[error("{}: {error}", Named(service, method))]
    Call {
        /// Name of the service.
        service: &'static str,
        /// Name of the method; empty: the question for the types of the service.
        method: &'static str,
        /// Reason that there is no answer.
        #[source]
        error: CallError,
    },
    /// The service means other types by this method. Nothing was called.
    #[error("the service means other types by `{method}`; both must be of one version")]
    Mismatch {
        /// Its name.
        method: &'static str,
    },
    /// The arguments have no bytes. Nothing was called.
    #[error("the arguments cannot be written: {0}")]
    Encode(#[source] CodecError),
    /// The answer is no value of its type.
    #[error("the answer cannot be read: {0}")]
    Decode(#[source] CodecError),
}

/// A method of a service by their names, or the service alone.
struct Named<'a>(&'a str, &'a str);

impl Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(service, method) = self;
        if method.is_empty() { write!(f, "`{service}`") } else { write!(f, "`{service}.{method}`") }
    }
}

impl TypedError {
    /// The status that stands for this error.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Call { error, .. } => error.status(),
            Self::Mismatch { .. } => Status::FailedPrecondition,
            Self::Encode(_) => Status::InvalidArgument,
            Self::Decode(_) => Status::DataLoss,
        }
    }
}

#[cfg(test)]
mod tests {
    use client::To;

    use super::*;

    #[test]
    fn an_error_of_a_call_names_service_and_method() {
        let to = To::new(3, 4711, 17);
        let error = |method, error| TypedError::Call { service: "metadata", method, error };
        let words = error("stat", CallError::NoMethod(to)).to_string();
        assert!(words.starts_with("`metadata.stat`: "), "{words}");
        let words = error("", CallError::NoService(to)).to_string();
        assert!(words.starts_with("`metadata`: "), "{words}");
    }
}
