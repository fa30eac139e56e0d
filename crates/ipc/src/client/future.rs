//! Calls as futures, on any executor that runs local tasks.

use core::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};
use std::{os::fd::AsFd as _, path::Path, rc::Rc, time::Duration};

use crate::{
    client::{
        core::CallId,
        link::ConnectError,
        pipe::{ClientConfig, Pipe, Terms},
        reactor::Reactor,
    },
    status::CallError,
    wait::timeout_ns,
};

/// What a call is waiting for, shared by its future and the client.
#[derive(Debug, Default)]
struct Slot {
    outcome: Option<Result<Vec<u8>, CallError>>,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Inner {
    pipe: Pipe<Rc<RefCell<Slot>>>,
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
        let pipe = Pipe::connect(path, config)?;
        let os = |source| ConnectError::Os { call: "start of the waiting thread", source };
        let reactor = Reactor::start(pipe.as_fd().try_clone_to_owned().map_err(os)?).map_err(os)?;
        Ok(Self(Rc::new(RefCell::new(Inner { pipe, reactor }))))
    }

    /// Hands out responses, and wakes those who wait for them, who may come straight back to here.
    fn poll(&self) -> usize {
        let mut woken = Vec::new();
        let count = self.0.borrow_mut().pipe.poll(&mut |slot: Rc<RefCell<Slot>>, response| {
            let mut slot = slot.borrow_mut();
            slot.outcome = Some(response.map(<[u8]>::to_vec));
            woken.extend(slot.waker.take());
        });
        woken.into_iter().for_each(Waker::wake);
        count
    }

    /// What was agreed on at connect.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.0.borrow().pipe.terms()
    }

    /// Sends a request; the future is its response. It need not be polled for the server to answer.
    ///
    /// Dropping the future abandons the call: a late response is discarded.
    pub fn call(&self, request: &[u8]) -> Call {
        let timeout_ns = self.0.borrow().pipe.timeout_ns();
        self.call_ns(request, timeout_ns)
    }

    /// Like [`call`](Self::call), with a deadline of its own.
    pub fn call_within(&self, request: &[u8], timeout: Duration) -> Call {
        self.call_ns(request, timeout_ns(timeout))
    }

    fn call_ns(&self, request: &[u8], timeout_ns: u64) -> Call {
        let slot = Rc::new(RefCell::new(Slot::default()));
        let mut inner = self.0.borrow_mut();
        let submitted = inner.pipe.submit(request, timeout_ns, Rc::clone(&slot));
        inner.pipe.flush();
        let id = match submitted {
            Ok(id) => Some(id),
            Err((error, slot)) => {
                slot.borrow_mut().outcome = Some(Err(error));
                None
            }
        };
        Call { client: self.clone(), slot, id }
    }
}

/// A call that is on its way.
#[derive(Debug)]
#[must_use = "dropping a call abandons it"]
pub struct Call {
    client: FutureClient,
    slot: Rc<RefCell<Slot>>,
    /// `None` if nothing was sent, or the call has ended.
    id: Option<CallId>,
}

impl Future for Call {
    type Output = Result<Vec<u8>, CallError>;

    /// Polled again after it was ready, it stays pending.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let outcome = self.slot.borrow_mut().outcome.take();
            if let Some(outcome) = outcome {
                self.id = None;
                return Poll::Ready(outcome);
            }
            let Some(id) = self.id else { return Poll::Pending };
            if self.client.poll() > 0 {
                continue;
            }
            self.slot.borrow_mut().waker = Some(context.waker().clone());
            let mut inner = self.client.0.borrow_mut();
            if inner.pipe.arm() {
                let deadline_ns = inner.pipe.core().earliest_deadline_ns();
                let waker = context.waker();
                // Dropped after the borrow has ended, as below.
                let _displaced = inner.reactor.wake_when_readable(id.call(), waker, deadline_ns);
                drop(inner);
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // Dropped below, after the borrow has ended: a waker may belong to anybody.
            let _slot = self.client.0.borrow_mut().pipe.abandon(id);
        }
    }
}
