//! Calls as futures, on any executor that runs local tasks.

use core::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};
use std::{os::fd::AsFd as _, path::Path, rc::Rc, time::Duration};

use memory::Filler;
use os::clock;

use crate::{
    endpoint::{
        client::{
            calls::CallId,
            connection::ConnectError,
            reactor::Reactor,
            session::{ClientConfig, ClientSession, Terms},
        },
        status::CallError,
    },
    ring::{Filled, MessageBytes},
};

/// The outcome of a call, shared by its future and the client.
#[derive(Debug, Default)]
struct Completion {
    outcome: Option<Result<Vec<u8>, CallError>>,
    detail: Vec<u8>,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Inner {
    session: ClientSession<Rc<RefCell<Completion>>>,
    reactor: Reactor,
}

/// A client whose calls are futures.
///
/// Any future that is polled serves all of them. When all wait, one thread per client waits in the
/// kernel for the server, and wakes the tasks that wait.
///
/// It belongs to one thread:
///
/// ```compile_fail
/// fn sendable<T: Send>() {}
/// sendable::<copyrpc_ipc::FutureClient>();
/// ```
#[derive(Clone, Debug)]
pub struct FutureClient(Rc<RefCell<Inner>>);

impl FutureClient {
    /// Connects to the server that listens at `path`. Blocks as long as that takes.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        let session = ClientSession::connect(path, config)?;
        let os = |source| ConnectError::Os { call: "start of the waiting thread", source };
        let reactor =
            Reactor::start(session.as_fd().try_clone_to_owned().map_err(os)?).map_err(os)?;
        Ok(Self(Rc::new(RefCell::new(Inner { session, reactor }))))
    }

    /// Hands out responses, and wakes the tasks that wait for them, which may call this again at once.
    fn poll(&self) -> usize {
        let mut woken = Vec::new();
        // The one copy of a response is its future's.
        let count = self.0.borrow_mut().session.poll_lent(
            &mut |completion: Rc<RefCell<Completion>>, response| {
                let mut completion = completion.borrow_mut();
                completion.outcome = Some(response.map(|lent| lent.to_vec()).map_err(|failed| {
                    completion.detail = failed.detail.to_vec();
                    failed.error
                }));
                woken.extend(completion.waker.take());
            },
        );
        woken.into_iter().for_each(Waker::wake);
        count
    }

    /// The terms agreed on at connect.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.0.borrow().session.terms()
    }

    /// Sends a request; the future is its response. It need not be polled for the server to answer.
    ///
    /// Dropping the future abandons the call: a late response is discarded.
    pub fn call(&self, request: &[u8]) -> ResponseFuture {
        let timeout_ns = self.0.borrow().session.timeout_ns();
        self.call_ns(request, timeout_ns)
    }

    /// Like [`call`](Self::call), with a deadline of its own.
    pub fn call_within(&self, request: &[u8], timeout: Duration) -> ResponseFuture {
        self.call_ns(request, clock::duration_ns(timeout))
    }

    /// Like [`call`](Self::call), of a request in parts, which are gathered in the server's memory.
    pub fn call_parts(&self, request: &[&[u8]]) -> ResponseFuture {
        let timeout_ns = self.0.borrow().session.timeout_ns();
        self.call_ns(request, timeout_ns)
    }

    /// Like [`call_parts`](Self::call_parts), with a deadline of its own.
    pub fn call_parts_within(&self, request: &[&[u8]], timeout: Duration) -> ResponseFuture {
        self.call_ns(request, clock::duration_ns(timeout))
    }

    /// Like [`call_within`](Self::call_within), of a request that is filled where the server reads it, at once.
    /// What fills it must not use this client or a clone of it: that panics, and nothing is sent.
    pub fn call_filled_within<F: FnOnce(&mut Filler<'_>)>(
        &self,
        request: &Filled<'_, F>,
        timeout: Duration,
    ) -> ResponseFuture {
        self.call_ns(request, clock::duration_ns(timeout))
    }

    fn call_ns<M: MessageBytes + ?Sized>(&self, request: &M, timeout_ns: u64) -> ResponseFuture {
        let completion = Rc::new(RefCell::new(Completion::default()));
        let mut inner = self.0.borrow_mut();
        let submitted = inner.session.submit(request, timeout_ns, Rc::clone(&completion));
        inner.session.flush();
        let id = match submitted {
            Ok(id) => Some(id),
            Err((error, completion)) => {
                completion.borrow_mut().outcome = Some(Err(error));
                None
            }
        };
        ResponseFuture { client: self.clone(), completion, id }
    }
}

/// A call that is on its way.
#[derive(Debug)]
#[must_use = "dropping a call abandons it"]
pub struct ResponseFuture {
    client: FutureClient,
    completion: Rc<RefCell<Completion>>,
    /// `None` if nothing was sent, or the call has ended.
    id: Option<CallId>,
}

impl ResponseFuture {
    /// Whether the server was sent the request, and has not answered yet.
    #[must_use]
    pub fn was_sent(&self) -> bool {
        self.id.is_some()
    }

    /// What the handler says about its error, once; empty if it ended otherwise.
    pub fn take_detail(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.completion.borrow_mut().detail)
    }
}

impl Future for ResponseFuture {
    type Output = Result<Vec<u8>, CallError>;

    /// Polled again after it was ready, it stays pending.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let outcome = self.completion.borrow_mut().outcome.take();
            if let Some(outcome) = outcome {
                self.id = None;
                return Poll::Ready(outcome);
            }
            let Some(id) = self.id else { return Poll::Pending };
            if self.client.poll() > 0 {
                continue;
            }
            self.completion.borrow_mut().waker = Some(context.waker().clone());
            let mut inner = self.client.0.borrow_mut();
            if inner.session.arm() {
                let deadline_ns = inner.session.calls().earliest_deadline_ns();
                let waker = context.waker();
                // Dropped after the borrow has ended, as below.
                let _displaced = inner.reactor.wake_when_readable(id.call(), waker, deadline_ns);
                drop(inner);
                return Poll::Pending;
            }
        }
    }
}

impl Drop for ResponseFuture {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // Dropped below, after the borrow has ended: a waker may belong to anybody.
            let _completion = self.client.0.borrow_mut().session.abandon(id);
        }
    }
}
