//! Clients whose calls are futures.

use std::time::Duration;

use client::{CallError, Filler, FutureCall, FutureClient, To, bulk::Slice};

/// A client whose calls are futures: what the futures of a service call with.
pub trait FutureCalls: Clone {
    /// A call that is on its way. Dropping it gives it up.
    type Call: Future<Output = Result<Vec<u8>, CallError>>;

    /// The deadline of a call that names none.
    fn timeout(&self) -> Duration;

    /// Makes a call.
    fn call_within(&self, to: To, body: &[u8], timeout: Duration) -> Self::Call;

    /// Makes a call with a body of `len_bytes` bytes that `fill` puts where the daemon reads them. `None`, as by default:
    /// the client cannot, and nothing was filled.
    fn call_in_place_within(
        &self,
        to: To,
        len_bytes: usize,
        timeout: Duration,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Option<Self::Call> {
        let _ = (to, len_bytes, timeout, fill);
        None
    }
}

impl FutureCalls for FutureClient {
    type Call = FutureCall;

    fn timeout(&self) -> Duration {
        Self::timeout(self)
    }

    fn call_within(&self, to: To, body: &[u8], timeout: Duration) -> FutureCall {
        Self::call_within(self, to, body, timeout)
    }

    fn call_in_place_within(
        &self,
        to: To,
        len_bytes: usize,
        timeout: Duration,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Option<FutureCall> {
        Some(Self::call_in_place_within(self, to, len_bytes, timeout, fill))
    }
}

#[cfg(feature = "tokio")]
impl FutureCalls for client::tokio::TokioClient {
    type Call = client::tokio::TokioCall;

    fn timeout(&self) -> Duration {
        Self::timeout(self)
    }

    fn call_within(&self, to: To, body: &[u8], timeout: Duration) -> Self::Call {
        Self::call_within(self, to, body, timeout)
    }
}

/// A client whose calls are futures and lend memory: what the futures of a lending service call with.
pub trait LendingCalls: FutureCalls {
    /// Makes a call with slices that the service may use until it answers.
    fn call_bulk(&self, to: To, body: &[u8], slices: &[Slice<'_>], timeout: Duration)
    -> Self::Call;
}

impl LendingCalls for FutureClient {
    fn call_bulk(
        &self,
        to: To,
        body: &[u8],
        slices: &[Slice<'_>],
        timeout: Duration,
    ) -> FutureCall {
        Self::call_bulk(self, to, body, slices, timeout)
    }
}

#[cfg(feature = "tokio")]
impl LendingCalls for client::tokio::TokioClient {
    fn call_bulk(
        &self,
        to: To,
        body: &[u8],
        slices: &[Slice<'_>],
        timeout: Duration,
    ) -> Self::Call {
        Self::call_bulk(self, to, body, slices, timeout)
    }
}
