//! A request, as its handler sees it.

use std::time::Duration;

use os::clock;

use crate::provider::{cancellation::Cancellation, process_clock::ProviderClock};

/// A request for a service of this node.
///
/// ```no_run
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{Provider, ProvideError, Status};
///
/// # fn serve(provider: Provider) -> Result<(), ProvideError> {
/// provider.serve_on(4, |request, answer| {
///     if request.is_cancelled() {
///         return Status::Cancelled;
///     }
///     answer.extend_from_slice(format!("rank {}, {:?}", request.rank, request.body).as_bytes());
///     Status::Ok
/// })
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Inbound<'a> {
    /// Rank of the caller's node.
    pub rank: u32,
    /// Number of the method.
    pub method: u16,
    /// The body: a private copy, which no caller can change.
    pub body: &'a [u8],
    /// Deadline and caller. Functions of the daemon's program get none.
    pub context: Option<Context>,
    /// The sign that the caller is gone. A handler that keeps the thread which reads, as of
    /// [`Provider::serve`](crate::Provider::serve), sees the end of the session with the daemon, or with a caller that
    /// calls without it, alone. `None`: functions of the daemon's program.
    pub cancellation: Option<&'a Cancellation>,
}

impl Inbound<'_> {
    /// Whether the answer has no receiver any more: the deadline has passed, or
    /// [`cancellation`](Self::cancellation) says so.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_some_and(Cancellation::is_cancelled)
            || self.context.is_some_and(|context| context.time_left().is_zero())
    }
}

/// The deadline, user, process and trace of a request.
///
/// ```
/// # use copyrpc_client as copyrpc;
/// use copyrpc::Inbound;
///
/// fn is_root(request: &Inbound<'_>) -> bool {
///     request.context.is_some_and(|context| context.uid == Some(0))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The caller's deadline, in nanoseconds of this process's `CLOCK_MONOTONIC`.
    pub deadline_ns: u64,
    /// User of the caller, by the kernel of its node. `None`: unknown.
    pub uid: Option<u32>,
    /// Process of the caller on its node, which has the rank of the request.
    pub pid: Option<u32>,
    /// Number of the caller's trace; 0: it has none.
    pub trace: u64,
}

impl Context {
    /// Time until the caller gives up.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        Duration::from_nanos(self.deadline_ns.saturating_sub(clock::now_ns()))
    }

    /// Whether the caller has given up by this clock.
    #[inline]
    pub(super) fn is_late(&self, clock: &impl ProviderClock) -> bool {
        self.deadline_ns <= clock.now_ns()
    }
}
