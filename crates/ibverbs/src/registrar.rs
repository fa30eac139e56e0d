//! A thread for registrations that would stop the thread that carries calls.
//!
//! A kernel pins each page of a region and tells the adapter of it: up to 300 ms for a GiB of 4 KiB pages, and as long to take it
//! back. Verbs are thread safe.

use std::{
    sync::mpsc::{SyncSender, TrySendError, sync_channel},
    thread,
};

/// Jobs that wait: more than a daemon lends regions at once.
const JOBS_MAX: usize = 1024;

type Job = Box<dyn FnOnce() + Send>;

/// The thread of one protection domain. It ends behind the last of them.
#[derive(Debug, Default)]
pub(crate) struct Registrar {
    jobs: Option<SyncSender<Job>>,
}

impl Registrar {
    /// Lets the thread do `job`; this thread does it if there is no other, or if that has too much to do.
    pub(crate) fn run(&mut self, job: impl FnOnce() + Send + 'static) {
        let mut job: Job = Box::new(job);
        if self.jobs.is_none() {
            self.jobs = start();
        }
        if let Some(jobs) = &self.jobs {
            match jobs.try_send(job) {
                Ok(()) => return,
                Err(TrySendError::Full(refused) | TrySendError::Disconnected(refused)) => {
                    job = refused
                }
            }
        }
        job();
    }
}

fn start() -> Option<SyncSender<Job>> {
    let (jobs, waiting) = sync_channel::<Job>(JOBS_MAX);
    let body = move || waiting.into_iter().for_each(|job| job());
    let builder = thread::Builder::new().name("registrations".to_owned());
    builder.spawn(body).ok().map(|_| jobs)
}
