//! Calls as futures, on any executor.
//!
//! A pending call polls the worker itself and asks to be polled again, so it needs no reactor and
//! no thread: `block_on` of any executor is enough. A program that would rather sleep waits on
//! [`Worker::channel`] and calls [`AsyncWorker::poll`] when it is readable.

use core::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};
use std::{collections::HashMap, rc::Rc};

use proto::{Status, copyrpc::CallId};
use verbs::Nic;

use crate::{Call, CallError, CloseReason, Handler, PeerId, Request, Worker};

/// Cookies with this bit belong to futures; the program's own must not have it.
pub const FUTURE_COOKIE: u64 = 1 << 63;

enum Outcome {
    Waiting(Option<Waker>),
    Ended(Status, Vec<u8>),
}

struct Inner<N: Nic, H> {
    worker: Worker<N>,
    demux: Demux<H>,
    clock: fn() -> u64,
    next: u64,
}

/// Takes responses of futures, and hands everything else to the program's handler.
struct Demux<H> {
    handler: H,
    outcomes: HashMap<u64, Outcome>,
}

impl<N: Nic, H: Handler<N>> Handler<N> for Demux<H> {
    fn request(&mut self, worker: &mut Worker<N>, request: Request<'_>) {
        self.handler.request(worker, request);
    }

    fn response(&mut self, worker: &mut Worker<N>, cookie: u64, status: Status, body: &[u8]) {
        if cookie & FUTURE_COOKIE == 0 {
            return self.handler.response(worker, cookie, status, body);
        }
        // None: the future was dropped.
        let Some(outcome) = self.outcomes.get_mut(&cookie) else { return };
        let before = core::mem::replace(outcome, Outcome::Ended(status, body.to_vec()));
        if let Outcome::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }

    fn closed(&mut self, worker: &mut Worker<N>, peer: PeerId, reason: CloseReason) {
        self.handler.closed(worker, peer, reason);
    }
}

/// A worker whose calls are futures. Clones are handles of the same worker, on the same thread.
pub struct AsyncWorker<N: Nic, H> {
    inner: Rc<RefCell<Inner<N, H>>>,
}

impl<N: Nic, H> Clone for AsyncWorker<N, H> {
    fn clone(&self) -> Self {
        Self { inner: Rc::clone(&self.inner) }
    }
}

impl<N: Nic, H: Handler<N>> AsyncWorker<N, H> {
    /// Takes a worker; `handler` serves requests, and `clock` tells polls the time.
    pub fn new(worker: Worker<N>, handler: H, clock: fn() -> u64) -> Self {
        let demux = Demux { handler, outcomes: HashMap::new() };
        let inner = Inner { worker, demux, clock, next: 0 };
        Self { inner: Rc::new(RefCell::new(inner)) }
    }

    /// Makes a call. Dropping the future cancels it.
    ///
    /// # Errors
    ///
    /// [`CallError`]: nothing has changed. [`CallError::Nested`] inside a callback, which has the
    /// worker itself.
    pub fn call(
        &self,
        peer: PeerId,
        call: &Call,
        body: &[u8],
    ) -> Result<CallFuture<N, H>, CallError> {
        let mut inner = self.inner.try_borrow_mut().map_err(|_| CallError::Nested)?;
        let cookie = inner.next | FUTURE_COOKIE;
        let id = inner.worker.call(peer, &Call { cookie, ..*call }, body)?;
        inner.next = (inner.next + 1) & !FUTURE_COOKIE;
        inner.demux.outcomes.insert(cookie, Outcome::Waiting(None));
        Ok(CallFuture { worker: self.clone(), peer, id, cookie })
    }

    /// Polls the worker; inside a callback it does nothing and returns 0.
    pub fn poll(&self) -> usize {
        let Ok(mut inner) = self.inner.try_borrow_mut() else { return 0 };
        let Inner { worker, demux, clock, .. } = &mut *inner;
        worker.poll(clock(), demux)
    }

    /// Lends the worker and the handler; `None` inside a callback.
    pub fn with<T>(&self, lend: impl FnOnce(&mut Worker<N>, &mut H) -> T) -> Option<T> {
        let mut inner = self.inner.try_borrow_mut().ok()?;
        let Inner { worker, demux, .. } = &mut *inner;
        Some(lend(worker, &mut demux.handler))
    }
}

/// A call: ends with the response, or with a status that is not [`Status::Ok`].
#[must_use = "dropping the future cancels the call"]
pub struct CallFuture<N: Nic, H: Handler<N>> {
    worker: AsyncWorker<N, H>,
    peer: PeerId,
    id: CallId,
    cookie: u64,
}

impl<N: Nic, H: Handler<N>> Future for CallFuture<N, H> {
    type Output = Result<Vec<u8>, Status>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.worker.poll();
        let waker = context.waker();
        if let Ok(mut inner) = self.worker.inner.try_borrow_mut() {
            let outcomes = &mut inner.demux.outcomes;
            match outcomes.remove(&self.cookie) {
                Some(Outcome::Ended(Status::Ok, body)) => return Poll::Ready(Ok(body)),
                Some(Outcome::Ended(status, _)) => return Poll::Ready(Err(status)),
                _ => {
                    let waiting = Outcome::Waiting(Some(waker.clone()));
                    outcomes.insert(self.cookie, waiting);
                }
            }
        }
        waker.wake_by_ref();
        Poll::Pending
    }
}

impl<N: Nic, H: Handler<N>> Drop for CallFuture<N, H> {
    fn drop(&mut self) {
        // Inside a callback the call goes on, and its response is dropped.
        let Ok(mut inner) = self.worker.inner.try_borrow_mut() else { return };
        if let Some(Outcome::Waiting(_)) = inner.demux.outcomes.remove(&self.cookie) {
            inner.worker.cancel(self.peer, self.id);
        }
    }
}
