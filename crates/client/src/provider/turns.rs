//! The turns of a provider: requests of daemon and clients within its window, what the daemon is told, and sleep.

use std::{os::fd::AsFd, time::Duration};

use os::idle::IdleStep;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerocopy::IntoBytes as _;

use crate::{
    CallError,
    message::{DirectRecord, method},
    provider::{
        asks::{Asks, daemon_head},
        reception::Taken,
        request::Work,
        session::{Session, Take, parse},
    },
};

/// Turns between two looks at the clock for what the daemon is to be told.
const LOOKS_PER_CLOCK: u32 = 256;

/// Longest sleep without a look around.
const SLEEP_MAX: Duration = Duration::from_secs(1);

impl Session {
    /// Tells the daemon of calls that went without it, if it is time to, or at once.
    #[inline]
    pub(super) fn tell_counts(&mut self, at_once: bool) {
        let Some(reception) = &mut self.reception else { return };
        self.looks = self.looks.wrapping_add(1);
        // The clock is looked at now and then, and before each sleep.
        let is_due = at_once || self.looks.is_multiple_of(LOOKS_PER_CLOCK);
        if is_due && self.ipc.free() > 0 {
            let records = reception.take_counts(at_once);
            self.send_counts(&records);
        }
    }

    fn send_counts(&mut self, records: &[DirectRecord]) {
        if records.is_empty() {
            return;
        }
        let head = daemon_head(method::COUNTS);
        let parts = [head.as_bytes(), records.as_bytes()];
        // It fails if the daemon is gone.
        let _ = self.ipc.submit_parts_within(&parts, Duration::MAX, Asks::Sign);
        self.ipc.flush();
    }

    /// Reads requests that came, of daemon and clients, as many as this process may have at a time, and which of them
    /// nobody waits for.
    pub(super) fn read_within_window(&mut self, take: &mut Take<'_>) -> Result<(), CallError> {
        while self.given.len() < self.window
            && let Some(bytes) = self.backlog.pop_front()
        {
            if let Some((work, inbound)) = parse(&bytes, self.clock)
                && let Some(cancellation) = take(work, &inbound)
            {
                self.given.insert(work, cancellation);
            }
        }
        self.read(take)?;
        let Self { reception: Some(reception), given, window, .. } = self else { return Ok(()) };
        let mut is_over = false;
        while !is_over && given.len() < *window {
            is_over = !reception.take(|Taken { id, inbound, .. }| {
                let work = Work::Client(id);
                if let Some(cancellation) = take(work, &inbound) {
                    given.insert(work, cancellation);
                }
            });
        }
        if !is_over {
            reception.pause();
        }
        for (work, cancellation) in given {
            if let Work::Client(id) = work
                && reception.is_abandoned(*id)
            {
                cancellation.cancel();
            }
        }
        Ok(())
    }

    /// After a turn: looks again at once if it did something, else spins, yields or sleeps as configured.
    pub(super) fn rest(&mut self, has_worked: bool) {
        if has_worked {
            self.idle.reset();
            return self.tell_counts(false);
        }
        if let IdleStep::Sleep = self.idle.step(self.config.wait) {
            if let Some(reception) = self.reception.as_mut().filter(|_| self.ipc.free() > 0) {
                let records = reception.take_counts(false);
                self.send_counts(&records);
            }
            let Self { outbox, ipc, reception, .. } = self;
            let is_idle = outbox.doze()
                && ipc.arm()
                && reception.as_mut().is_none_or(|reception| reception.server.arm());
            if is_idle {
                let sleep_max = reception.as_ref().map(|it| it.sleep_max(SLEEP_MAX));
                let sleep_max = sleep_max.unwrap_or(SLEEP_MAX);
                let timeout = Timespec {
                    tv_sec: sleep_max.as_secs().cast_signed(),
                    tv_nsec: sleep_max.subsec_nanos().into(),
                };
                let ours: [&dyn AsFd; 2] = [ipc, outbox.event()];
                let clients = reception.as_ref().map(|reception| &reception.server as &dyn AsFd);
                let fds = ours.into_iter().chain(clients);
                let mut fds: Vec<_> =
                    fds.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
                // An error is a signal: the loop looks whether it should stop.
                let _ = poll(&mut fds, Some(&timeout));
            }
            outbox.awake();
            if let Some(reception) = reception {
                reception.server.service_now();
            }
        }
    }
}
