//! How a call ended, in the words that all languages have.

use copyrpc::{CallError, Status};

/// Who says so: the numbers of `copyrpc.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Service,
    NoMethod,
    NoService,
    NoRank,
    Daemon,
    DaemonGone,
    Library,
    Denied,
}

impl Origin {
    pub(crate) fn of_number(number: u32) -> Self {
        let all = [
            Self::Service,
            Self::NoMethod,
            Self::NoService,
            Self::NoRank,
            Self::Daemon,
            Self::DaemonGone,
            Self::Library,
            Self::Denied,
        ];
        all[number as usize - 1]
    }
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) status: Status,
    pub(crate) origin: Origin,
    pub(crate) is_not_executed: bool,
    /// What the service adds.
    pub(crate) detail: Vec<u8>,
    pub(crate) words: String,
}

impl From<CallError> for Told {
    fn from(error: CallError) -> Self {
        let origin = match &error {
            CallError::Service(_) => Origin::Service,
            CallError::NoMethod(_) => Origin::NoMethod,
            CallError::NoService(_) => Origin::NoService,
            CallError::NoRank(_) => Origin::NoRank,
            CallError::Denied(_) => Origin::Denied,
            CallError::Daemon(_) => Origin::DaemonGone,
            CallError::NotSent(_) if error.is_daemon_gone() => Origin::DaemonGone,
            CallError::NotSent(_) | CallError::LendsTooMuch { .. } => Origin::Library,
            _ => Origin::Daemon,
        };
        Self {
            status: error.status(),
            origin,
            is_not_executed: error.is_certainly_not_executed(),
            detail: error.detail().to_vec(),
            words: error.to_string(),
        }
    }
}
