//! Why something of UCX is not to be had, with the remedy.

use core::ffi::CStr;
use core::fmt;

use crate::ucp::{
    abi::{OK, RawStatus},
    api::{Api, LibraryError},
};

/// A status of UCX that is an error.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UcxStatus(pub(crate) RawStatus);

impl UcxStatus {
    /// The library's text about it.
    #[must_use]
    pub fn text(self) -> String {
        let Ok(api) = Api::load() else { return format!("status {}", self.0) };
        // SAFETY: any number is allowed, and the text is constant or of this thread.
        let text = unsafe { (api.ucs_status_string)(self.0) };
        // SAFETY: a string of C that is unchanged until it is copied.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// The remedy, for errors that say too little.
    fn remedy(self) -> &'static str {
        match self.0 {
            -6 => "; UCX_TLS names no transport that both ends have: compare `ucx_info -d` on both",
            -14 => "; UCX_TLS names no transport of this machine: `ucx_info -d` lists them",
            -4 => "; raise `ulimit -l`, and the size of /dev/shm",
            -12 | -5 => "; `ucx_info -cf` lists names and values of settings",
            _ => "",
        }
    }
}

impl fmt::Debug for UcxStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UcxStatus({}: {})", self.0, self.text())
    }
}

impl fmt::Display for UcxStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.text(), self.remedy())
    }
}

/// Why a context, a worker or an endpoint cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UcxError {
    /// The library cannot be used.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A function of the library failed.
    #[error("UCX cannot {what}: {status}")]
    Call {
        /// The task that failed.
        what: String,
        /// Its reason.
        status: UcxStatus,
    },
    /// The kernel refused to wait for the worker's descriptor.
    #[error("cannot wait for UCX's event descriptor: {0}")]
    Wait(std::io::Error),
}

/// `status` of a task, as a result.
pub(crate) fn check(what: &str, status: RawStatus) -> Result<(), UcxError> {
    match status {
        OK => Ok(()),
        status => Err(UcxError::Call { what: what.to_owned(), status: UcxStatus(status) }),
    }
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// [`crate::ucp::Config::sends_max`] sends are not complete. Poll, then try again.
    #[error("no room for another message; poll first")]
    Full,
    /// The endpoint has failed, or is of another worker.
    #[error("the endpoint is closed")]
    Closed,
    /// It can never fit.
    #[error("a message of {len_bytes} B exceeds the {max_bytes} B of this worker")]
    TooLarge {
        /// Of the message.
        len_bytes: usize,
        /// [`crate::ucp::Config::message_bytes_max`].
        max_bytes: usize,
    },
    /// The library refused it.
    #[error("UCX cannot send: {0}")]
    Failed(UcxStatus),
}
