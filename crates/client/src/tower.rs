//! Clients of futures as services of `tower`, for its layers: limits, loads, balance, retries.
//!
//! ```no_run
//! # use copyrpc_client::{FutureClient, To, tower::CallRequest};
//! # use tower_service::Service;
//! # async fn run(mut client: FutureClient) -> Result<(), Box<dyn std::error::Error>> {
//! let request = CallRequest::new(To { rank: 3, service: 17, method: 1 }, b"hello");
//! let answer = Service::call(&mut client, request).await?;
//! # let _ = answer; Ok(()) }
//! ```

use std::{
    task::{Context, Poll},
    time::Duration,
};

use tower_service::Service;

use crate::{CallError, FutureCall, FutureClient, To};

/// A call, as `tower` hands it on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRequest {
    /// The method, its service and its rank.
    pub to: To,
    /// The body.
    pub body: Vec<u8>,
    /// The deadline; `None`: that of the client.
    pub timeout: Option<Duration>,
}

impl CallRequest {
    /// A call with the deadline of the client that makes it.
    pub fn new(to: To, body: impl Into<Vec<u8>>) -> Self {
        Self { to, body: body.into(), timeout: None }
    }
}

impl Service<CallRequest> for FutureClient {
    type Response = Vec<u8>;
    type Error = CallError;
    type Future = FutureCall;

    /// A client is always ready: calls wait for room, each at most until its deadline.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: CallRequest) -> FutureCall {
        let timeout = request.timeout.unwrap_or(self.timeout());
        self.call_within(request.to, &request.body, timeout)
    }
}

#[cfg(feature = "tokio")]
impl Service<CallRequest> for crate::tokio::TokioClient {
    type Response = Vec<u8>;
    type Error = CallError;
    type Future = crate::tokio::TokioCall;

    /// A client is always ready: calls wait for room, each at most until its deadline.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: CallRequest) -> Self::Future {
        let timeout = request.timeout.unwrap_or(self.timeout());
        self.call_within(request.to, &request.body, timeout)
    }
}
