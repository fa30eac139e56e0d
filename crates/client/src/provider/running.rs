//! A provider whose handlers run on threads of their own.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Condvar, Mutex, PoisonError},
    thread,
};

use proto::Status;

use crate::provider::{inbound::Inbound, offer::ProvideError, request::Request, session::Session};

/// Requests that wait for a thread: never more than the provider's window.
#[derive(Default)]
struct Queue {
    requests: Mutex<(VecDeque<Request>, bool)>,
    changed: Condvar,
}

impl Queue {
    fn push(&self, request: Request) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(request);
        self.changed.notify_one();
    }

    fn end(&self) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }

    /// The next request; `None`: there will be none.
    fn take(&self) -> Option<Request> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match requests.0.pop_front() {
                Some(request) => return Some(request),
                None if requests.1 => return None,
                None => {
                    let waited = self.changed.wait(requests);
                    requests = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

/// See [`Provider::serve_on`](crate::Provider::serve_on).
pub(super) fn serve_on(
    mut session: Session,
    threads: usize,
    serve: &(impl Fn(&Inbound<'_>, &mut Vec<u8>) -> Status + Sync),
) -> Result<(), ProvideError> {
    session.window_at_least(threads);
    let queue = Queue::default();
    thread::scope(|scope| {
        let started = (0..threads.max(1)).try_for_each(|_| {
            let thread = thread::Builder::new().name("copyrpc-serve".to_owned());
            thread.spawn_scoped(scope, || serve_queue(&queue, serve)).map(drop)
        });
        let served = match started {
            Ok(()) => session.run(&mut |request| queue.push(request), &mut || 0),
            Err(error) => Err(ProvideError::Os(error)),
        };
        queue.end();
        served
    })
}

fn serve_queue(queue: &Queue, serve: &impl Fn(&Inbound<'_>, &mut Vec<u8>) -> Status) {
    while let Some(request) = queue.take() {
        let Some(request) = request.end_if_cancelled() else { continue };
        let context = request.context();
        let inbound = Inbound {
            rank: context.rank,
            method: context.method,
            body: request.body(),
            context: Some(context.caller),
            cancellation: Some(context.cancellation()),
        };
        let mut answer = Vec::new();
        // What the handler captured is its own affair.
        let status = catch_unwind(AssertUnwindSafe(|| serve(&inbound, &mut answer)));
        let status = status.unwrap_or_else(|_| {
            answer.clear();
            Status::Internal
        });
        request.reply(status, answer);
    }
}
