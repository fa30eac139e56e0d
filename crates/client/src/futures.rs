//! Calls as futures, on any executor that runs local tasks.

use std::{
    path::Path,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use ipc::{Filled, Filler};
use zerocopy::IntoBytes as _;

use crate::{CallError, ClientConfig, ConnectError, To, call_head, ipc_config, patience};

/// A process's connection to its daemon, whose calls are futures.
///
/// It belongs to one thread, and needs no executor of its own kind: one thread per client waits in the kernel
/// while all calls wait, and wakes their tasks. A call is made at once, and goes on if nobody polls it.
///
/// ```no_run
/// # use copyrpc_client::{ClientConfig, FutureClient, To};
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let client = FutureClient::connect("/run/user/1000/copyrpc/job.sock".as_ref(), ClientConfig::default())?;
/// let calls = [0, 1, 2].map(|rank| client.call(To { rank, service: 17, method: 1 }, b"hello"));
/// for call in calls {
///     println!("{:?}", call.await?);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FutureClient {
    ipc: ipc::FutureClient,
    config: ClientConfig,
}

impl FutureClient {
    /// Connects to the daemon whose socket is at `path`. Blocks as long as that takes.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        Ok(Self { ipc: ipc::FutureClient::connect(path, ipc_config(config))?, config })
    }

    /// Makes a call, with the configured deadline. Dropping the future gives the call up; it may be executed.
    pub fn call(&self, to: To, body: &[u8]) -> FutureCall {
        self.call_within(to, body, self.config.timeout)
    }

    /// Like [`call`](Self::call), with a deadline of its own.
    pub fn call_within(&self, to: To, body: &[u8], timeout: Duration) -> FutureCall {
        let head = call_head(to, timeout, self.config.response_bytes, 0);
        let parts = [head.as_bytes(), body];
        let ipc = self.ipc.call_parts_within(&parts, patience(timeout));
        FutureCall { was_sent: ipc.was_sent(), ipc, to }
    }

    /// Like [`call`](Self::call), with a body of `len_bytes` bytes that `fill` puts, at once, where the daemon
    /// reads them. What it does not put is zeros. If it panics or [gives up](Filler::give_up), no call is made; it
    /// panics if it uses this client or a clone of it.
    pub fn call_in_place(
        &self,
        to: To,
        len_bytes: usize,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> FutureCall {
        let timeout = self.config.timeout;
        let head = call_head(to, timeout, self.config.response_bytes, 0);
        let head = [head.as_bytes()];
        let request = Filled::behind(&head, len_bytes, fill);
        let ipc = self.ipc.call_filled_within(&request, patience(timeout));
        FutureCall { was_sent: ipc.was_sent(), ipc, to }
    }
}

/// A call that is on its way: its answer.
#[derive(Debug)]
#[must_use = "dropping a call gives it up"]
pub struct FutureCall {
    ipc: ipc::ResponseFuture,
    to: To,
    was_sent: bool,
}

impl Future for FutureCall {
    type Output = Result<Vec<u8>, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(answer) = Pin::new(&mut self.ipc).poll(context) else {
            return Poll::Pending;
        };
        Poll::Ready(answer.map_err(|error| {
            let detail = self.ipc.take_detail();
            match self.was_sent {
                true => CallError::of(ipc::Failed { error, detail: &detail }, self.to),
                false => CallError::not_sent(error),
            }
        }))
    }
}
