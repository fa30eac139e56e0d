//! The turns of a provider: requests of daemon and clients within its window, what the daemon is told, and sleep.

use std::{os::fd::AsFd, sync::Arc, time::Duration};

use os::{clock, idle::IdleStep};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    CallError,
    provider::{
        inbound::Context,
        offer::ProvideError,
        outbox::Work,
        reception::{Reception, Taken},
        request::Request,
        requests::Take,
        session::Session,
    },
};

/// Turns between two looks at the clock for what the daemon is to be told.
const LOOKS_PER_CLOCK: u32 = 256;

/// Longest sleep without a look around.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// What is known of a request of a daemon that says nothing.
const UNKNOWN: Context = Context { deadline_ns: u64::MAX, uid: None, pid: None, trace: 0 };

impl Session {
    /// See [`Provider::run`](crate::Provider::run); `turn` does what else is to be done, and says how much.
    pub(in crate::provider) fn run(
        &mut self,
        take: &mut dyn FnMut(Request),
        turn: &mut dyn FnMut() -> usize,
    ) -> Result<(), ProvideError> {
        self.begin_run()?;
        let take = &mut |request: Request| {
            if let Some(request) = request.end_if_cancelled() {
                take(request);
            }
        };
        while !self.run_turn(take, turn)? {}
        Ok(())
    }

    /// Asks for requests that others answer, and to be told of those that nobody waits for.
    pub(in crate::provider) fn begin_run(&mut self) -> Result<(), ProvideError> {
        self.link.begin_watching();
        self.ask()
    }

    /// A turn of a provider whose requests others answer. Returns whether it is over: it was stopped, and all that was
    /// taken is answered.
    pub(in crate::provider) fn run_turn(
        &mut self,
        take: &mut dyn FnMut(Request),
        turn: &mut dyn FnMut() -> usize,
    ) -> Result<bool, ProvideError> {
        let is_stopped = self.outbox.is_stopped();
        let has_ended =
            || self.requests.is_empty() || self.outbox.stop_sign().is_over(clock::now_ns());
        if is_stopped && has_ended() {
            self.hand_over();
            self.requests.cancel_all();
            return Ok(true);
        }
        let read = if is_stopped { self.learn() } else { self.take_requests(take) };
        let turned = turn();
        match read.and_then(|taken| Ok(taken + self.send_answers()?)) {
            Ok(count) => self.rest(count + turned > 0),
            Err(error) => self.recover(error, turn)?,
        }
        Ok(false)
    }

    /// Takes nothing more, and learns which requests nobody waits for.
    fn learn(&mut self) -> Result<usize, CallError> {
        self.read(&mut |_, _| None)?;
        if let Some(reception) = &mut self.reception {
            reception.pause();
        }
        self.cancel_abandoned();
        Ok(0)
    }

    /// Hands on requests that came, within the window; returns how many there were. Who begins one looks whether anybody
    /// waits for it.
    pub(in crate::provider) fn take_requests(
        &mut self,
        take: &mut dyn FnMut(Request),
    ) -> Result<usize, CallError> {
        let (outbox, epoch, mut count) = (Arc::clone(&self.outbox), self.epoch, 0);
        self.read_within_window(&mut |work, inbound| {
            count += 1;
            let caller = inbound.context.unwrap_or(UNKNOWN);
            let request = Request::new(&outbox, epoch, work, inbound, caller);
            let cancellation = Arc::clone(request.context().cancellation());
            take(request);
            Some(cancellation)
        })?;
        Ok(count)
    }

    /// Tells the daemon of calls that went without it, if it is time to, or at once.
    #[inline]
    pub(super) fn tell_counts(&mut self, at_once: bool) {
        let Some(reception) = &mut self.reception else { return };
        self.looks = self.looks.wrapping_add(1);
        // The clock is looked at now and then, and before each sleep.
        let is_due = at_once || self.looks.is_multiple_of(LOOKS_PER_CLOCK);
        if is_due && self.link.has_room() {
            self.link.tell(&reception.take_counts(at_once));
        }
    }

    /// Reads requests that came, of daemon and clients, as many as this process may have at a time, and which of them
    /// nobody waits for.
    fn read_within_window(&mut self, take: &mut Take<'_>) -> Result<(), CallError> {
        self.requests.give_backlog(&self.link, take);
        self.read(take)?;
        let Self { reception: Some(reception), requests, .. } = self else { return Ok(()) };
        let mut is_over = false;
        while !is_over && requests.has_room_for_clients() {
            is_over = !reception.take(|Taken { id, inbound, .. }| {
                let work = Work::Client(id);
                requests.give(work, take(work, &inbound));
            });
        }
        if !is_over {
            reception.pause();
        }
        self.cancel_abandoned();
        Ok(())
    }

    /// Cancels requests of clients that have given them up, or are gone.
    fn cancel_abandoned(&mut self) {
        let Self { reception: Some(reception), requests, .. } = self else { return };
        requests.cancel_of_clients(|id| reception.is_abandoned(id));
    }

    /// After a turn: looks again at once if it did something, else spins, yields or sleeps as configured.
    pub(in crate::provider) fn rest(&mut self, has_worked: bool) {
        if has_worked {
            self.idle.reset();
            return self.tell_counts(false);
        }
        if let IdleStep::Sleep = self.idle.step(self.search.wait()) {
            let Self { outbox, link, reception, .. } = self;
            if let Some(reception) = reception.as_mut().filter(|_| link.has_room()) {
                link.tell(&reception.take_counts(false));
            }
            let is_idle =
                outbox.doze() && link.arm() && reception.as_mut().is_none_or(Reception::arm);
            if is_idle {
                let sleep_max = reception.as_ref().map(|it| it.sleep_max(SLEEP_MAX));
                let sleep_max = sleep_max.unwrap_or(SLEEP_MAX);
                let timeout = Timespec {
                    tv_sec: sleep_max.as_secs().cast_signed(),
                    tv_nsec: sleep_max.subsec_nanos().into(),
                };
                let ours: [&dyn AsFd; 2] = [link, outbox.event()];
                let clients = reception.as_ref().map(|reception| reception as &dyn AsFd);
                let fds = ours.into_iter().chain(clients);
                let mut fds: Vec<_> =
                    fds.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
                // An error is a signal: the loop looks whether it should stop.
                let _ = poll(&mut fds, Some(&timeout));
            }
            outbox.awake();
            if let Some(reception) = reception {
                reception.wake_up();
            }
        }
    }
}
