//! What other threads tell the one that talks to the daemon.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, PoisonError},
};

use memory::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use os::event::EventFd;

use crate::provider::{offer::ProvideError, stop_sign::StopSign, verdict::Verdict};

/// Names a request: where its answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// To the daemon, which calls the request so.
    Daemon(u64),
    /// To the client itself.
    Client(ipc::RequestId),
}

/// An answer on its way to the thread that talks to the daemon.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) work: Work,
    pub(super) epoch: u64,
    pub(super) verdict: Verdict,
    pub(super) body: Vec<u8>,
}

/// Answers, wakeups and the end.
#[derive(Debug)]
pub(super) struct Outbox {
    answers: Mutex<VecDeque<Answered>>,
    /// Answers in the queue: a hint, which the lock settles.
    count: AtomicUsize,
    /// Tasks that were woken since the last look.
    woken: Mutex<Vec<usize>>,
    /// That thread sleeps, or is about to.
    is_asleep: AtomicBool,
    stop_sign: Arc<StopSign>,
    /// Counts connections to daemons.
    epoch: AtomicU64,
    /// Readable while something was said to a thread that sleeps.
    event: EventFd,
}

impl Outbox {
    /// # Errors
    ///
    /// [`ProvideError::Os`]: there is nothing to wake a thread with.
    pub(super) fn open() -> Result<Self, ProvideError> {
        let event = EventFd::new().map_err(|error| ProvideError::Os(io::Error::other(error)))?;
        Ok(Self {
            answers: Mutex::default(),
            count: AtomicUsize::new(0),
            woken: Mutex::default(),
            is_asleep: AtomicBool::new(false),
            stop_sign: Arc::new(StopSign::new()),
            epoch: AtomicU64::new(1),
            event,
        })
    }

    pub(super) fn event(&self) -> &EventFd {
        &self.event
    }

    pub(super) fn push(&self, answered: Answered) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push_back(answered);
        self.count.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// A task is to be polled.
    pub(super) fn wake_task(&self, task: usize) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        self.wake();
    }

    fn wake(&self) {
        // Sequentially consistent, as in `doze`: either this thread sees that the other sleeps, or the other
        // sees what this one said.
        if self.is_asleep.swap(false, Ordering::SeqCst) {
            // Fails only on a descriptor that is no event.
            let _ = self.event.signal();
        }
    }

    pub(super) fn stop(&self) {
        self.stop_sign.stop();
        self.wake();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop_sign.is_stopped()
    }

    pub(super) fn stop_sign(&self) -> &Arc<StopSign> {
        &self.stop_sign
    }

    /// The number of the connection that requests come by.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// There is another connection: requests of earlier ones are over.
    pub(super) fn begin_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(super) fn take_answer(&self) -> Option<Answered> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let answered = self.answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        if answered.is_some() {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
        answered
    }

    pub(super) fn take_woken(&self) -> Vec<usize> {
        std::mem::take(&mut self.woken.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says that the thread is about to sleep; `false` if there is something for it.
    pub(super) fn doze(&self) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        let has_woken = !self.woken.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        self.count.load(Ordering::SeqCst) == 0 && !has_woken && !self.is_stopped()
    }

    pub(super) fn awake(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
        let _ = self.event.drain();
    }
}
