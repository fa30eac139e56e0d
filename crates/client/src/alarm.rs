//! A thread that wakes the tasks of a client of futures, so that these need no executor of a certain kind.

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    thread::{self, JoinHandle},
    time::Duration,
};

use os::{clock, event::EventFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest wait without a look around: nothing depends on it.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// What the thread waits for.
#[derive(Debug)]
struct Wanted {
    /// The latest waker of each call.
    wakers: BTreeMap<u64, Waker>,
    /// When they are woken at the latest.
    at_ns: u64,
    /// The descriptor that wakes them when it is readable.
    readable: Option<Arc<OwnedFd>>,
    /// The client is gone.
    is_over: bool,
}

#[derive(Debug)]
struct Shared {
    wanted: Mutex<Wanted>,
    /// Interrupts the wait of the thread.
    interrupt: EventFd,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes tasks when a descriptor becomes readable or time has passed. Joined on drop.
#[derive(Debug)]
pub(crate) struct Alarm {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The process that has the thread: a forked child has none.
    pid: u32,
}

impl Alarm {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let wanted =
            Wanted { wakers: BTreeMap::new(), at_ns: u64::MAX, readable: None, is_over: false };
        let interrupt = EventFd::new().map_err(io::Error::other)?;
        let shared = Arc::new(Shared { wanted: Mutex::new(wanted), interrupt });
        let its = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("copyrpc-alarm".into()).spawn(move || run(&its))?;
        Ok(Self { shared, thread: Some(thread), pid: std::process::id() })
    }

    /// Wakes the task of a call once, at this time at the latest, and earlier if `readable` becomes readable. Returns the
    /// waker that the call had before: what dropping that does is the affair of its executor.
    pub(crate) fn set(
        &self,
        call: u64,
        waker: &Waker,
        at_ns: u64,
        readable: Option<&Arc<OwnedFd>>,
    ) -> Option<Waker> {
        let mut wanted = self.shared.lock();
        let is_first = wanted.wakers.is_empty();
        let displaced = wanted.wakers.insert(call, waker.clone());
        let is_same = match (&wanted.readable, readable) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        if is_first || at_ns < wanted.at_ns || !is_same {
            wanted.at_ns = at_ns;
            wanted.readable = readable.cloned();
            drop(wanted);
            // Fails only on a descriptor that is no event.
            let _ = self.shared.interrupt.signal();
        }
        displaced
    }

    /// Wakes the task of a call no more.
    pub(crate) fn forget(&self, call: u64) -> Option<Waker> {
        self.shared.lock().wakers.remove(&call)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return; // the thread is the parent's, and may have held the lock at the fork
        }
        self.shared.lock().is_over = true;
        let _ = self.shared.interrupt.signal();
        if let Some(thread) = self.thread.take() {
            // Nothing in it panics but waking, which is the affair of executors.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
    loop {
        let (at_ns, readable) = {
            let wanted = shared.lock();
            if wanted.is_over {
                return;
            }
            match wanted.wakers.is_empty() {
                true => (u64::MAX, None),
                false => (wanted.at_ns, wanted.readable.clone()),
            }
        };
        let left = Duration::from_nanos(at_ns.saturating_sub(clock::now_ns())).min(WAIT_MAX);
        let timeout =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut fds = vec![PollFd::new(&shared.interrupt, PollFlags::IN)];
        fds.extend(readable.as_deref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        // An error is a signal: the loop looks around.
        let _ = poll(&mut fds, Some(&timeout));
        let is_readable = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        let _ = shared.interrupt.drain();
        if is_readable || clock::now_ns() >= at_ns {
            let wakers = std::mem::take(&mut shared.lock().wakers);
            wakers.into_values().for_each(Waker::wake);
        }
    }
}
