//! Whether the answer to a request has a receiver.

use std::{
    mem,
    sync::{Mutex, PoisonError},
    task::{Poll, Waker},
};

use memory::sync::{AtomicBool, Ordering};

/// The sign that a request is cancelled: the caller died, gave up or was refused by
/// its deadline, or the daemon is gone.
#[derive(Debug, Default)]
pub struct Cancellation {
    /// A hint that only grows: nothing else is published by it.
    is_cancelled: AtomicBool,
    /// Tasks that wait for it.
    waiters: Mutex<Vec<Waker>>,
}

impl Cancellation {
    /// Whether it is so, as far as this process was told.
    #[inline]
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    pub(super) fn cancel(&self) {
        let waiters = {
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            // Under the lock: a task that waits is either in the list, or sees this.
            self.is_cancelled.store(true, Ordering::Relaxed);
            mem::take(&mut *waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }

    pub(super) fn poll(&self, waker: &Waker) -> Poll<()> {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_cancelled() {
            return Poll::Ready(());
        }
        if !waiters.iter().any(|waiter| waiter.will_wake(waker)) {
            waiters.push(waker.clone());
        }
        Poll::Pending
    }
}
