//! A thread that waits for a descriptor, so that futures need no executor of a certain kind.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::Waker,
    thread::{self, JoinHandle},
    time::Duration,
};

use os::clock;

use crate::endpoint::{fork::ForkGuard, poller::Poller};

/// Longest wait without a look around: nothing depends on it.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The tasks that the thread is to wake, and when.
#[derive(Debug, Default)]
struct WakeRequests {
    /// The latest of each call.
    wakers: Vec<(u16, Waker)>,
    deadline_ns: u64,
    /// The client is gone.
    is_over: bool,
}

#[derive(Debug, Default)]
struct Shared {
    requests: Mutex<WakeRequests>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, WakeRequests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes tasks when a descriptor becomes readable or a deadline passes. Joined on drop.
#[derive(Debug)]
pub(crate) struct Reactor {
    shared: Arc<Shared>,
    /// Interrupts the thread's wait.
    interrupt: Arc<os::event::EventFd>,
    thread: Option<JoinHandle<()>>,
    fork: ForkGuard,
}

impl Reactor {
    /// Starts the thread.
    pub(crate) fn start(readable: OwnedFd) -> io::Result<Self> {
        let interrupt = Arc::new(os::event::EventFd::new().map_err(io::Error::other)?);
        let poller = Poller::new()?;
        poller.add(&readable, 0)?;
        poller.add(&*interrupt, 1)?;
        let shared = Arc::new(Shared::default());
        let thread = thread::Builder::new().name("copyrpc-ipc".into()).spawn({
            let (shared, interrupt) = (Arc::clone(&shared), Arc::clone(&interrupt));
            move || {
                // Owned by the thread: watched until it ends.
                let _readable = readable;
                run(&shared, &poller, &interrupt);
            }
        })?;
        Ok(Self { shared, interrupt, thread: Some(thread), fork: ForkGuard::new() })
    }

    /// Wakes a task once, when the descriptor is readable or at the deadline. Returns the waker that was
    /// to be woken for this call before, and is not any more: what dropping that does is the executor's
    /// affair.
    pub(crate) fn wake_when_readable(
        &self,
        call: u16,
        waker: &Waker,
        deadline_ns: u64,
    ) -> Option<Waker> {
        let mut requests = self.shared.lock();
        let known = requests.wakers.iter_mut().find(|(known, _)| *known == call);
        let displaced = match known {
            Some((_, known)) => Some(core::mem::replace(known, waker.clone())),
            None => {
                requests.wakers.push((call, waker.clone()));
                None
            }
        };
        let is_earlier = requests.wakers.len() == 1 || deadline_ns < requests.deadline_ns;
        if is_earlier {
            requests.deadline_ns = deadline_ns;
            drop(requests);
            self.shared.changed.notify_one();
            // Fails only on a descriptor that is no event.
            let _ = self.interrupt.signal();
        }
        displaced
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        if self.fork.is_forked() {
            return; // the thread is the parent's, and the lock may be held by it for ever
        }
        self.shared.lock().is_over = true;
        self.shared.changed.notify_one();
        let _ = self.interrupt.signal();
        if let Some(thread) = self.thread.take() {
            // It does nothing that panics but waking, which is the executor's affair.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, poller: &Poller, interrupt: &os::event::EventFd) {
    loop {
        let mut requests = shared.lock();
        // Without a task to wake, a readable descriptor is of no interest.
        while requests.wakers.is_empty() && !requests.is_over {
            let waited = shared.changed.wait_timeout(requests, WAIT_MAX);
            requests = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if requests.is_over {
            return;
        }
        let deadline_ns = requests.deadline_ns;
        drop(requests);
        let left_ns = deadline_ns.saturating_sub(clock::now_ns());
        let timeout_ns = left_ns.min(u64::try_from(WAIT_MAX.as_nanos()).unwrap_or(u64::MAX));
        let is_readable = poller.wait(timeout_ns).any(|ready| ready.key == 0);
        // New requests are taken above.
        let _ = interrupt.drain();
        if is_readable || clock::now_ns() >= deadline_ns {
            let wakers = core::mem::take(&mut shared.lock().wakers);
            wakers.into_iter().for_each(|(_, waker)| waker.wake());
        }
    }
}
