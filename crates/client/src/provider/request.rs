//! A request that is answered later, by any thread.

use std::{future::poll_fn, sync::Arc, time::Duration};

use proto::Status;

use crate::provider::{
    cancellation::Cancellation,
    inbound::{Context, Inbound},
    outbox::{Answered, Outbox, Work},
    process_clock::{OsClock, ProviderClock},
    verdict::Verdict,
};

/// The caller's rank, deadline, user, process and trace, and the method of a request.
///
/// ```no_run
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{Provider, ProvideError, Status};
///
/// # fn serve(provider: Provider) -> Result<(), ProvideError> {
/// provider.run_async(|request| async move {
///     let context = request.context().clone();
///     if context.is_cancelled() {
///         return;
///     }
///     request.reply(Status::Ok, context.rank.to_le_bytes().to_vec());
/// })
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Rank of the caller's node.
    pub rank: u32,
    /// Number of the method.
    pub method: u16,
    /// Deadline, user, process and trace of the caller.
    pub caller: Context,
    cancellation: Arc<Cancellation>,
}

impl RequestContext {
    /// Time until the caller gives up.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.caller.time_left()
    }

    /// Whether the answer has no receiver any more: the deadline has passed, the caller died or gave up, or
    /// the daemon is gone, or the provider was stopped and waits no longer.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled() || self.time_left().is_zero()
    }

    /// Ends when the request is cancelled, or the daemon is gone.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + use<> {
        let cancellation = Arc::clone(&self.cancellation);
        poll_fn(move |task| cancellation.poll(task.waker()))
    }

    pub(super) fn cancellation(&self) -> &Arc<Cancellation> {
        &self.cancellation
    }
}

/// A request, and the obligation to answer it: by any thread, at any time, in any order.
///
/// Dropped without an answer it ends with [`Status::Unknown`], with [`Status::Internal`] if a panic drops it, and with
/// [`Status::DeadlineExceeded`] after its deadline.
///
/// ```no_run
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{Provider, ProvideError, Status};
///
/// # fn serve(provider: Provider) -> Result<(), ProvideError> {
/// let (queue, requests) = std::sync::mpsc::channel::<copyrpc::Request>();
/// std::thread::spawn(move || {
///     for request in requests {
///         let answer = request.body().to_vec();
///         request.reply(Status::Ok, answer);
///     }
/// });
/// provider.run(|request| queue.send(request).expect("the thread serves"))
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a request tells the caller that there is no answer"]
pub struct Request {
    context: RequestContext,
    body: Vec<u8>,
    outbox: Arc<Outbox>,
    epoch: u64,
    work: Work,
    is_answered: bool,
}

impl Request {
    pub(super) fn new(
        outbox: &Arc<Outbox>,
        epoch: u64,
        work: Work,
        inbound: &Inbound<'_>,
        caller: Context,
    ) -> Self {
        let cancellation = inbound.cancellation.map(Cancellation::of_request);
        let context = RequestContext {
            rank: inbound.rank,
            method: inbound.method,
            caller,
            cancellation: Arc::new(cancellation.unwrap_or_default()),
        };
        let (body, outbox) = (inbound.body.to_vec(), Arc::clone(outbox));
        Self { context, body, outbox, epoch, work, is_answered: false }
    }

    /// The caller's rank, deadline, user, process and trace, and the method.
    #[must_use]
    pub fn context(&self) -> &RequestContext {
        &self.context
    }

    /// Number of the method.
    #[must_use]
    pub fn method(&self) -> u16 {
        self.context.method
    }

    /// Body of the request.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Takes what it carries.
    #[must_use]
    pub fn take_body(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.body)
    }

    /// Answers. With a status that is no success, `body` is its detail; if the deadline has passed,
    /// the caller gets that instead.
    pub fn reply(mut self, status: Status, body: Vec<u8>) {
        self.answer(Verdict::of_service(status, Some(self.context.caller), &OsClock), body);
    }

    /// Ends a request that nobody waits for, and that was not handed to the service; hands any other back.
    #[doc(hidden)] // for simulators
    #[must_use]
    pub fn end_if_cancelled(mut self, clock: &impl ProviderClock) -> Option<Self> {
        if self.context.caller.is_late(clock) {
            self.answer(Verdict::TOO_LATE, Vec::new());
        } else if self.context.cancellation.is_told() {
            self.answer(Verdict::GIVEN_UP, Vec::new());
        } else {
            return Some(self);
        }
        None
    }

    /// Its name, of whoever answers it at once, on the thread that talks to the daemon.
    pub(super) fn into_work(mut self) -> Work {
        self.is_answered = true;
        self.work
    }

    fn answer(&mut self, verdict: Verdict, body: Vec<u8>) {
        self.is_answered = true;
        let (work, epoch) = (self.work, self.epoch);
        self.outbox.push(Answered { work, epoch, verdict, body });
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.is_answered {
            let is_panicking = std::thread::panicking();
            let status = if is_panicking { Status::Internal } else { Status::Unknown };
            self.answer(
                Verdict::of_service(status, Some(self.context.caller), &OsClock),
                Vec::new(),
            );
        }
    }
}

/// Ends a provider.
///
/// ```no_run
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{Provider, ProvideError, Status};
///
/// # fn serve(provider: Provider) -> Result<(), ProvideError> {
/// let stop = provider.stop_handle();
/// std::thread::spawn(move || {
///     std::thread::park(); // until the program is to end
///     stop.stop();
/// });
/// provider.serve_on(2, |_, _| Status::Ok)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ProviderStop(pub(super) Arc<Outbox>);

impl ProviderStop {
    /// Ends it soon.
    pub fn stop(&self) {
        self.0.stop();
    }
}
