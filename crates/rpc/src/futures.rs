//! Calls as futures, on any executor.
//!
//! A pending call polls the worker itself and asks to be polled again, so it needs no reactor and
//! no thread: `block_on` of any executor is enough. A program that would rather sleep waits on
//! [`Worker::channel`] and calls [`AsyncWorker::poll`] when it is readable.

use core::{
    cell::{RefCell, RefMut},
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};
use std::{collections::BTreeMap, rc::Rc};

use proto::{
    Status,
    copyrpc::{CallId, RequestId},
};
use verbs::Nic;

use crate::{
    Body, BodyPiece, Call, CallEnd, CallError, CloseReason, Delivery, Fetch, Handler, PeerId,
    Request, Worker,
};

/// Cookies with this bit belong to futures; the program's own must not have it.
pub const FUTURE_COOKIE: u64 = 1 << 63;

enum Outcome {
    Waiting(Option<Waker>),
    Ended(Status, Vec<u8>),
}

struct Shared<N: Nic, H> {
    inner: RefCell<Inner<N, H>>,
    /// Calls whose futures were dropped, to be cancelled: inside a callback that must wait.
    dropped: RefCell<Vec<Dropped>>,
}

struct Inner<N: Nic, H> {
    worker: Worker<N>,
    demux: Demux<H>,
    clock: Box<dyn FnMut() -> u64>,
    next: u64,
}

struct Dropped {
    peer: PeerId,
    id: CallId,
    cookie: u64,
}

impl<N: Nic, H> Shared<N, H> {
    /// The worker, once it knows which calls nobody waits for; `None` inside a callback.
    fn lend(&self) -> Option<RefMut<'_, Inner<N, H>>> {
        let mut inner = self.inner.try_borrow_mut().ok()?;
        for Dropped { peer, id, cookie } in self.dropped.take() {
            if let Some(Outcome::Waiting(_)) = inner.demux.outcomes.remove(&cookie) {
                inner.worker.cancel(peer, id);
            }
        }
        Some(inner)
    }
}

/// Takes ends of futures' calls, and hands everything else to the program's handler.
struct Demux<H> {
    handler: H,
    outcomes: BTreeMap<u64, Outcome>,
}

#[deny(clippy::missing_trait_methods, reason = "a default would keep something from the handler")]
impl<N: Nic, H: Handler<N>> Handler<N> for Demux<H> {
    fn request(&mut self, worker: &mut Worker<N>, request: Request, body: Body<'_, N>) {
        self.handler.request(worker, request, body);
    }

    fn ended(&mut self, worker: &mut Worker<N>, cookie: u64, end: CallEnd<'_, N>) {
        if cookie & FUTURE_COOKIE == 0 {
            return self.handler.ended(worker, cookie, end);
        }
        // None: the future was dropped.
        let Some(outcome) = self.outcomes.get_mut(&cookie) else { return };
        let ended = Outcome::Ended(end.status(), end.bytes().into_owned());
        if let Outcome::Waiting(Some(waker)) = core::mem::replace(outcome, ended) {
            waker.wake();
        }
    }

    fn wants(&mut self, fetch: Fetch) -> Delivery {
        match fetch {
            // A future takes the whole of its answer.
            Fetch::Answer(cookie, _) if cookie & FUTURE_COOKIE != 0 => Delivery::default(),
            Fetch::Answer(..) | Fetch::Request(..) => self.handler.wants(fetch),
        }
    }

    fn piece(&mut self, cookie: u64, piece: &BodyPiece<'_, N>) {
        self.handler.piece(cookie, piece);
    }

    fn cancelled(&mut self, worker: &mut Worker<N>, peer: PeerId, request: RequestId) {
        self.handler.cancelled(worker, peer, request);
    }

    fn closed(&mut self, worker: &mut Worker<N>, peer: PeerId, reason: CloseReason) {
        self.handler.closed(worker, peer, reason);
    }

    fn posting(&mut self) {
        self.handler.posting();
    }
}

/// A worker whose calls are futures. Clones are handles of the same worker, on the same thread.
pub struct AsyncWorker<N: Nic, H> {
    shared: Rc<Shared<N, H>>,
}

impl<N: Nic, H> Clone for AsyncWorker<N, H> {
    fn clone(&self) -> Self {
        Self { shared: Rc::clone(&self.shared) }
    }
}

impl<N: Nic, H: Handler<N>> AsyncWorker<N, H> {
    /// Takes a worker; `handler` serves requests, and `clock` tells polls the time. The clock may be of the
    /// program's own making: a simulator's, for example.
    pub fn new(worker: Worker<N>, handler: H, clock: impl FnMut() -> u64 + 'static) -> Self {
        let demux = Demux { handler, outcomes: BTreeMap::new() };
        let inner = RefCell::new(Inner { worker, demux, clock: Box::new(clock), next: 0 });
        Self { shared: Rc::new(Shared { inner, dropped: RefCell::default() }) }
    }

    /// Makes a call, whose timeout counts from now. Dropping the future cancels it.
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
        let mut inner = self.shared.lend().ok_or(CallError::Nested)?;
        let now_ns = (inner.clock)();
        inner.worker.observe(now_ns);
        let cookie = inner.next | FUTURE_COOKIE;
        let id = inner.worker.call(peer, &Call { cookie, ..*call }, body)?;
        inner.next = (inner.next + 1) & !FUTURE_COOKIE;
        inner.demux.outcomes.insert(cookie, Outcome::Waiting(None));
        Ok(CallFuture { worker: self.clone(), peer, id, cookie })
    }

    /// Polls the worker; inside a callback it does nothing and returns 0.
    pub fn poll(&self) -> usize {
        let Some(mut inner) = self.shared.lend() else { return 0 };
        let Inner { worker, demux, clock, .. } = &mut *inner;
        worker.poll(clock(), demux)
    }

    /// Lends the worker and the handler; `None` inside a callback.
    pub fn with<T>(&self, lend: impl FnOnce(&mut Worker<N>, &mut H) -> T) -> Option<T> {
        let mut inner = self.shared.lend()?;
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
        if let Some(mut inner) = self.worker.shared.lend() {
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
        let Self { peer, id, cookie, ref worker } = *self;
        worker.shared.dropped.borrow_mut().push(Dropped { peer, id, cookie });
        drop(worker.shared.lend());
    }
}
