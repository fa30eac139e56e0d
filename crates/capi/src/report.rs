//! How results become statuses, and what is remembered of the latest failure of a thread.

use std::{
    cell::RefCell,
    ffi::{CString, c_char, c_int, c_void},
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
};

use client::{
    CallError, ConnectError, ProvideError, Status, SubmitError,
    bulk::{BulkError, RegionError},
};

use crate::{c_text, place};

/// As in `copyrpc.h`.
const ORIGIN_NONE: i32 = 0;
const ORIGIN_SERVICE: i32 = 1;
const ORIGIN_NO_METHOD: i32 = 2;
const ORIGIN_NO_SERVICE: i32 = 3;
const ORIGIN_NO_RANK: i32 = 4;
const ORIGIN_DAEMON: i32 = 5;
const ORIGIN_DAEMON_GONE: i32 = 6;
const ORIGIN_LIBRARY: i32 = 7;
const ORIGIN_DENIED: i32 = 8;

/// Why a function failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: Status,
    origin: i32,
    not_executed: bool,
    text: String,
    detail: Box<[u8]>,
}

impl Failure {
    pub(crate) fn argument(text: &str) -> Self {
        Self::new(Status::InvalidArgument, ORIGIN_LIBRARY, text)
    }

    /// There is no connection.
    pub(crate) fn library(error: impl Display) -> Self {
        Self::new(Status::Unavailable, ORIGIN_LIBRARY, &error.to_string())
    }

    /// There is no connection, or the environment says something that has no meaning.
    pub(crate) fn connect(error: &ConnectError) -> Self {
        match error {
            ConnectError::Variable { .. } => Self::refused(Status::InvalidArgument, error),
            error => Self::library(error),
        }
    }

    /// This library refused something.
    pub(crate) fn refused(status: Status, error: impl Display) -> Self {
        Self::new(status, ORIGIN_LIBRARY, &error.to_string())
    }

    fn new(status: Status, origin: i32, text: &str) -> Self {
        Self { status, origin, not_executed: true, text: text.to_owned(), detail: Box::default() }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let origin = match &error {
            CallError::Service(_) => ORIGIN_SERVICE,
            CallError::NoMethod(_) => ORIGIN_NO_METHOD,
            CallError::NoService(_) => ORIGIN_NO_SERVICE,
            CallError::NoRank(_) => ORIGIN_NO_RANK,
            CallError::Denied(_) => ORIGIN_DENIED,
            CallError::Daemon(_) => ORIGIN_DAEMON_GONE,
            CallError::NotSent(_) if error.is_daemon_gone() => ORIGIN_DAEMON_GONE,
            CallError::NotSent(_) | CallError::LendsTooMuch { .. } => ORIGIN_LIBRARY,
            _ => ORIGIN_DAEMON,
        };
        Self {
            status: error.status(),
            origin,
            not_executed: error.is_certainly_not_executed(),
            text: error.to_string(),
            detail: error.detail().into(),
        }
    }
}

impl From<BulkError> for Failure {
    fn from(error: BulkError) -> Self {
        match error {
            BulkError::Daemon(error) => error.into(),
            BulkError::Memory(error) => Self::refused(Status::ResourceExhausted, error),
            error => Self::new(error.status(), ORIGIN_DAEMON, &error.to_string()),
        }
    }
}

impl From<RegionError> for Failure {
    fn from(error: RegionError) -> Self {
        let status = match error {
            RegionError::Range { .. } => Status::OutOfRange,
            RegionError::Forked => Status::FailedPrecondition,
        };
        Self::new(status, ORIGIN_LIBRARY, &error.to_string())
    }
}

impl<C> From<SubmitError<C>> for Failure {
    fn from(refused: SubmitError<C>) -> Self {
        refused.error.into()
    }
}

impl From<ProvideError> for Failure {
    fn from(error: ProvideError) -> Self {
        let text = error.to_string();
        match error {
            ProvideError::Taken(_) => Self::new(Status::AlreadyExists, ORIGIN_DAEMON, &text),
            ProvideError::Mismatch(_) => {
                Self::new(Status::FailedPrecondition, ORIGIN_DAEMON, &text)
            }
            ProvideError::Denied(_) => Self::new(Status::PermissionDenied, ORIGIN_DENIED, &text),
            ProvideError::TooLong(_) => Self::new(Status::OutOfRange, ORIGIN_LIBRARY, &text),
            ProvideError::Call(error) => error.into(),
            ProvideError::Connect(error) => Self::connect(&error),
            _ => Self::library(text),
        }
    }
}

/// The latest failure of a thread, as its texts are handed out.
struct Last {
    text: CString,
    failure: Failure,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Runs a function of the library at its border: a panic ends here, and a failure is remembered.
pub(crate) fn status_of(run: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let ended = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        let text = "the library panicked; its message is on standard error";
        Err(Failure { not_executed: false, ..Failure::new(Status::Internal, ORIGIN_LIBRARY, text) })
    });
    remember(ended.err())
}

/// Says to this thread how something ended, and returns the status.
pub(crate) fn remember(failure: Option<Failure>) -> i32 {
    let last = failure.map(|failure| {
        let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
        Last { text, failure }
    });
    let status = last.as_ref().map_or(Status::Ok, |last| last.failure.status);
    LAST.with_borrow_mut(|place| *place = last);
    i32::from(status.code())
}

/// Runs a function that has no status; a panic gives `otherwise`.
pub(crate) fn value_of<T>(otherwise: T, run: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(otherwise)
}

/// See `copyrpc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn copyrpc_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ref().map_or(c_text(c""), |last| last.text.as_ptr()))
}

/// See `copyrpc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn copyrpc_last_origin() -> i32 {
    LAST.with_borrow(|last| last.as_ref().map_or(ORIGIN_NONE, |last| last.failure.origin))
}

/// See `copyrpc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn copyrpc_last_not_executed() -> c_int {
    LAST.with_borrow(|last| last.as_ref().is_some_and(|last| last.failure.not_executed)).into()
}

/// See `copyrpc.h`.
///
/// # Safety
///
/// `length` is null, or that of a `size_t` of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copyrpc_last_detail(length: *mut usize) -> *const c_void {
    let (detail, bytes) = LAST.with_borrow(|last| {
        let detail = last.as_ref().map_or(&[][..], |last| &last.failure.detail);
        (detail.as_ptr().cast(), detail.len())
    });
    // SAFETY: the caller owns the place.
    unsafe { place::store(length, bytes) };
    detail
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each kind of refusal has a status of its own.
    #[test]
    fn why_there_is_no_region_is_told_by_the_status() {
        let told = |error: BulkError| {
            let Failure { status, origin, not_executed, .. } = error.into();
            (status, origin, not_executed)
        };
        let len_bytes = 1 << 45;
        for (error, status) in [
            (BulkError::NeverLends, Status::Unimplemented),
            (BulkError::Share { len_bytes }, Status::ResourceExhausted),
            (BulkError::TooLong { len_bytes }, Status::OutOfRange),
            (BulkError::Unfit, Status::InvalidArgument),
        ] {
            assert_eq!(told(error), (status, ORIGIN_DAEMON, true));
        }
        let gone = BulkError::Daemon(CallError::NotHeld);
        assert_eq!(told(gone), (Status::NotFound, ORIGIN_DAEMON, true));
    }
}
