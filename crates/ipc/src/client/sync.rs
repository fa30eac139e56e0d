//! One call at a time, blocking.

use std::{path::Path, time::Duration};

use os::clock;

use crate::{
    client::{
        link::ConnectError,
        pipe::{ClientConfig, Pipe, Terms},
    },
    status::CallError,
    wait::timeout_ns,
};

/// A client that makes one call at a time and waits for its response.
///
/// It can move to another thread, but not be used by two at a time:
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<copyrpc_ipc::SyncClient>();
/// ```
#[derive(Debug)]
pub struct SyncClient {
    pipe: Pipe<()>,
}

impl SyncClient {
    /// Connects to the server that listens at `path`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        Ok(Self { pipe: Pipe::connect(path, config)? })
    }

    /// Connects again, to the same server or its successor.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the client stays as it was.
    pub fn reconnect(&mut self) -> Result<(), ConnectError> {
        self.pipe.reconnect(&mut |(), _| {})
    }

    /// Sends a request and waits for its response, with the configured deadline.
    ///
    /// The response is a private copy, valid until the next call.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    #[inline]
    pub fn call(&mut self, request: &[u8]) -> Result<&[u8], CallError> {
        self.call_ns(request, self.pipe.timeout_ns())
    }

    /// Like [`call`](Self::call), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    #[inline]
    pub fn call_within(&mut self, request: &[u8], timeout: Duration) -> Result<&[u8], CallError> {
        self.call_ns(request, timeout_ns(timeout))
    }

    #[inline]
    fn call_ns(&mut self, request: &[u8], mut timeout_ns: u64) -> Result<&[u8], CallError> {
        let mut outcome = None;
        loop {
            match self.pipe.submit(request, timeout_ns, ()) {
                Ok(_) => break,
                // All entries wait for late responses of calls that missed their deadline.
                Err((CallError::Full { .. }, ())) => {
                    timeout_ns = self.wait_for_entry(timeout_ns)?
                }
                Err((error, ())) => return Err(error),
            }
        }
        loop {
            self.pipe.poll(&mut |(), response| outcome = Some(response.map(<[u8]>::len)));
            match outcome {
                Some(Ok(len_bytes)) => return Ok(self.pipe.core().copied(len_bytes)),
                Some(Err(error)) => return Err(error),
                None => self.pipe.rest(u64::MAX),
            }
        }
    }

    /// Returns what is left of the time.
    #[cold]
    pub(crate) fn wait_for_entry(&mut self, timeout_ns: u64) -> Result<u64, CallError> {
        let deadline_ns = clock::now_ns().saturating_add(timeout_ns);
        loop {
            self.pipe.poll(&mut |(), _| {});
            if let Some(error) = self.pipe.gone() {
                return Err(error);
            }
            let now_ns = clock::now_ns();
            if self.pipe.core().has_free() {
                return Ok(deadline_ns.saturating_sub(now_ns));
            }
            if now_ns >= deadline_ns {
                return Err(CallError::Full { depth: self.pipe.core().depth() });
            }
            self.pipe.rest(deadline_ns);
        }
    }

    /// What was agreed on at connect.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.pipe.terms()
    }
}
