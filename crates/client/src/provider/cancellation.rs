//! Whether the answer to a request has a receiver.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    task::{Poll, Waker},
};

use ipc::Lifeline;
use memory::sync::{AtomicBool, AtomicU64, Ordering};
use os::clock;

use crate::provider::stop_sign::StopSign;

/// Between two questions to the kernel whether a session has ended.
const LOOK_NS: u64 = 1_000_000;

/// The session with the daemon that requests come by, as handlers of any thread see it.
#[derive(Debug)]
pub(super) struct DaemonSession {
    /// `None`: no other thread asks.
    pub(super) lifeline: Option<Lifeline>,
    pub(super) stop_sign: Arc<StopSign>,
}

/// The sign that a request is cancelled: the caller died, gave up or was refused by
/// its deadline, the daemon is gone, or the provider was stopped and waits no longer.
#[derive(Debug, Default)]
pub struct Cancellation {
    /// A hint that only grows: nothing else is published by it.
    is_cancelled: AtomicBool,
    /// Tasks that wait for it.
    waiters: Mutex<Vec<Waker>>,
    daemon: Option<Arc<DaemonSession>>,
    /// Of a client that called without the daemon in between.
    caller: Option<Lifeline>,
    /// When the kernel was asked.
    looked_ns: AtomicU64,
}

impl Cancellation {
    /// Of all requests of a session with the daemon, or of a client's session beside it.
    pub(super) fn of_session(daemon: &Arc<DaemonSession>, caller: Option<&Lifeline>) -> Self {
        let (daemon, caller) = (Some(Arc::clone(daemon)), caller.cloned());
        Self { daemon, caller, ..Self::default() }
    }

    /// Of one request of the sessions that `session` is of.
    pub(super) fn of_request(session: &Self) -> Self {
        let (daemon, caller) = (session.daemon.clone(), session.caller.clone());
        Self { daemon, caller, ..Self::default() }
    }

    /// Whether it is so, as far as this process was told. The end of a session is noticed by whoever asks, too: a handler
    /// may keep the thread that would be told.
    #[inline]
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.is_told() || self.has_session_ended()
    }

    /// Whether the thread that reads was told.
    #[inline]
    pub(super) fn is_told(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Asks the kernel, and not each time.
    fn has_session_ended(&self) -> bool {
        let Some(daemon) = &self.daemon else { return false };
        let now_ns = clock::now_ns();
        if now_ns.saturating_sub(self.looked_ns.load(Ordering::Relaxed)) < LOOK_NS {
            return false;
        }
        self.looked_ns.store(now_ns, Ordering::Relaxed);
        let has_ended = daemon.stop_sign.is_over(now_ns)
            || daemon.lifeline.as_ref().is_some_and(Lifeline::is_cut)
            || self.caller.as_ref().is_some_and(Lifeline::is_cut);
        if has_ended {
            self.cancel();
        }
        has_ended
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
        if self.is_told() {
            return Poll::Ready(());
        }
        if !waiters.iter().any(|waiter| waiter.will_wake(waker)) {
            waiters.push(waker.clone());
        }
        Poll::Pending
    }
}
