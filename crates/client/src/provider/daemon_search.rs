//! The daemon that a provider offers its service to, and what it does when that is gone.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use ipc::Wait;
use os::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    CallError, ClientConfig,
    provider::{
        asks::Asks,
        link::{DaemonLink, Registering},
        offer::{Offer, ProvideError},
        outbox::Outbox,
        process_clock::OsClock,
    },
};

/// The shortest wait between two looks for a daemon that is gone.
const RECONNECT_WAIT_MIN: Duration = Duration::from_millis(1);

/// A connection of a process.
type OsLink = DaemonLink<ipc::PipelinedClient<Asks>>;

/// Where a service is offered, and what is offered.
#[derive(Debug)]
pub(super) struct DaemonSearch {
    path: PathBuf,
    offer: Offer,
    config: ClientConfig,
    attempts: u32,
}

impl DaemonSearch {
    pub(super) fn new(path: &Path, offer: &Offer, config: ClientConfig) -> Self {
        Self { path: path.to_owned(), offer: offer.clone(), config, attempts: 0 }
    }

    pub(super) fn wait(&self) -> Wait {
        self.config.wait
    }

    /// Connects to the daemon and offers the service.
    ///
    /// # Errors
    ///
    /// [`ProvideError`]: the daemon does not want the service, or is gone.
    pub(super) fn connect(&self, outbox: &Outbox) -> Result<OsLink, ProvideError> {
        let ipc = ipc::PipelinedClient::connect(&self.path, crate::ipc_config(self.config)?)?;
        let mut registering = Registering::begin(ipc, &self.offer, &OsClock)?;
        let clock = loop {
            if let Some(registered) = registering.poll(&OsClock) {
                break registered?;
            }
            registering.connection_mut().rest();
        };
        Ok(registering.into_link(clock, outbox.stop_sign()))
    }

    /// Whether a daemon that ended so is looked for.
    pub(super) fn may_find(&self, error: &CallError) -> bool {
        error.is_daemon_gone() && self.offer.retry.retries_max > 0
    }

    /// Looks for the successor of a daemon that ended with `error`; `None`: the provider was stopped meanwhile. `turn`
    /// does what else is to be done.
    pub(super) fn find(
        &mut self,
        error: CallError,
        outbox: &Outbox,
        turn: &mut dyn FnMut() -> usize,
    ) -> Result<Option<OsLink>, ProvideError> {
        let begin = Instant::now();
        let mut number = 0_u32;
        while !outbox.is_stopped() {
            match self.connect(outbox) {
                Ok(link) => {
                    self.attempts = 0;
                    return Ok(Some(link));
                }
                Err(
                    error @ (ProvideError::Mismatch(_)
                    | ProvideError::Denied(_)
                    | ProvideError::TooLong(_)),
                ) => {
                    return Err(error);
                }
                Err(error) if error.is_of_another_version() => return Err(error),
                Err(_) => {}
            }
            if self.offer.reconnect_max.is_some_and(|longest| begin.elapsed() >= longest) {
                return Err(error.into());
            }
            self.attempts = self.attempts.wrapping_add(1);
            let wait = self.offer.retry.wait(number, self.attempts.into());
            pause(outbox, wait.max(RECONNECT_WAIT_MIN), turn);
            number = number.saturating_add(1);
        }
        Ok(None)
    }
}

/// Waits, unless the provider is stopped. Answers to a daemon that is gone are dropped.
fn pause(outbox: &Outbox, wait: Duration, turn: &mut dyn FnMut() -> usize) {
    let until_ns = clock::deadline_ns(wait);
    loop {
        while outbox.take_answer().is_some() {}
        turn();
        let left_ns = until_ns.saturating_sub(clock::now_ns());
        if left_ns == 0 || outbox.is_stopped() {
            return;
        }
        if outbox.doze() {
            let left = Duration::from_nanos(left_ns);
            let timeout = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut fds = [PollFd::new(outbox.event(), PollFlags::IN)];
            // An error is a signal: the loop looks around.
            let _ = poll(&mut fds, Some(&timeout));
        }
        outbox.awake();
    }
}
