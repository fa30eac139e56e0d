//! What a provider does when its daemon is gone.

use std::time::{Duration, Instant};

use os::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    CallError,
    provider::{
        offer::ProvideError,
        session::{Connected, Session, register},
    },
};

/// The shortest wait between two looks for a daemon that is gone.
const RECONNECT_WAIT_MIN: Duration = Duration::from_millis(1);

impl Session {
    /// The daemon is gone: looks for its successor, and offers the service there, or gives up. `turn` does what else is
    /// to be done meanwhile.
    pub(super) fn recover(
        &mut self,
        error: CallError,
        turn: &mut dyn FnMut() -> usize,
    ) -> Result<(), ProvideError> {
        // What the daemon introduced ends with it. Whoever serves may wait for the handlers before this is dropped.
        self.reception = None;
        self.cancel_given();
        if !error.is_daemon_gone() || self.offer.retry.retries_max == 0 {
            return Err(error.into());
        }
        self.epoch = self.outbox.begin_epoch();
        let begin = Instant::now();
        let mut number = 0_u32;
        while !self.outbox.is_stopped() {
            match register(&self.path, &self.offer, self.config) {
                Ok(Connected { ipc, clock }) => {
                    self.ipc = ipc;
                    self.clock = clock;
                    self.backlog.clear();
                    self.begin();
                    self.attempts = 0;
                    return self.ask();
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
            self.pause(wait.max(RECONNECT_WAIT_MIN), turn);
            number = number.saturating_add(1);
        }
        Ok(())
    }

    /// Waits, unless the provider is stopped. Answers to a daemon that is gone are dropped.
    fn pause(&mut self, wait: Duration, turn: &mut dyn FnMut() -> usize) {
        let until_ns = clock::deadline_ns(wait);
        loop {
            while self.outbox.take_answer().is_some() {}
            turn();
            let left_ns = until_ns.saturating_sub(clock::now_ns());
            if left_ns == 0 || self.outbox.is_stopped() {
                return;
            }
            if self.outbox.doze() {
                let left = Duration::from_nanos(left_ns);
                let timeout = Timespec {
                    tv_sec: left.as_secs().cast_signed(),
                    tv_nsec: left.subsec_nanos().into(),
                };
                let mut fds = [PollFd::new(self.outbox.event(), PollFlags::IN)];
                // An error is a signal: the loop looks around.
                let _ = poll(&mut fds, Some(&timeout));
            }
            self.outbox.awake();
        }
    }
}
