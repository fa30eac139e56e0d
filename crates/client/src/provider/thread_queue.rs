//! What the threads of a provider are to do.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use memory::sync::{AtomicU32, Ordering};

use crate::provider::request::Request;

/// What a thread is to do.
pub(super) enum Job {
    /// Answer a request.
    Serve(Request),
    /// Talk to the daemon.
    Lead,
}

#[derive(Default)]
struct Jobs {
    /// Never more than the provider's window.
    requests: VecDeque<Request>,
    lead: bool,
    /// Threads that wait for a job.
    idle: usize,
    is_over: bool,
}

/// Jobs that wait for a thread.
#[derive(Default)]
pub(super) struct ThreadQueue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
    /// Requests in a row that took less time than to hand them on: a hint.
    quick: AtomicU32,
}

impl ThreadQueue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, request: Request) {
        self.lock().requests.push_back(request);
        self.changed.notify_one();
    }

    /// Makes a thread talk to the daemon, if one has nothing else to do; returns whether.
    pub(super) fn lead(&self) -> bool {
        let mut jobs = self.lock();
        if jobs.idle == 0 || !jobs.requests.is_empty() {
            return false;
        }
        jobs.lead = true;
        drop(jobs);
        self.changed.notify_one();
        true
    }

    /// There will be no more jobs.
    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// The next job; `None`: there will be none.
    pub(super) fn take(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if let Some(request) = jobs.requests.pop_front() {
                return Some(Job::Serve(request));
            }
            if std::mem::take(&mut jobs.lead) {
                return Some(Job::Lead);
            }
            if jobs.is_over {
                return None;
            }
            jobs.idle += 1;
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            jobs.idle -= 1;
        }
    }

    /// Counts a request that was answered.
    pub(super) fn count(&self, is_quick: bool) {
        let quick = if is_quick { self.quick().saturating_add(1) } else { 0 };
        self.quick.store(quick, Ordering::Relaxed);
    }

    /// Requests in a row that took less time than to hand them on.
    pub(super) fn quick(&self) -> u32 {
        self.quick.load(Ordering::Relaxed)
    }
}
