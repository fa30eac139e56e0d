//! The turns of a provider: requests of daemon and clients within its window, what the daemon is told, and sleep.

use std::{sync::Arc, time::Duration};

use crate::{
    CallError,
    provider::{
        inbound::Context,
        outbox::Work,
        place::ProviderPlace,
        process_clock::ProviderClock,
        reception::{Reception, Taken},
        request::Request,
        requests::Take,
        session::{ProviderSession, Turned},
    },
};

/// Turns between two looks at the clock for what the daemon is to be told.
const LOOKS_PER_CLOCK: u32 = 256;

/// Longest sleep without a look around.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// What is known of a request of a daemon that says nothing.
const UNKNOWN: Context = Context { deadline_ns: u64::MAX, uid: None, pid: None, trace: 0 };

impl<P: ProviderPlace> ProviderSession<P> {
    /// Asks for requests that others answer, and to be told of those that nobody waits for.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the daemon is gone.
    pub fn begin_run(&mut self) -> Result<(), CallError> {
        self.link.begin_watching();
        self.ask()
    }

    /// A turn of a provider whose requests others answer. It is over once the provider was stopped, and all that was
    /// taken is answered. `turn` does what else is to be done.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the daemon is gone.
    pub fn run_step(
        &mut self,
        take: &mut dyn FnMut(Request),
        turn: &mut dyn FnMut() -> usize,
    ) -> Result<Turned, CallError> {
        let is_stopped = self.outbox.is_stopped();
        let has_ended = || {
            let now_ns = self.place.clock().now_ns();
            self.requests.is_empty() || self.outbox.stop_sign().is_over(now_ns)
        };
        if is_stopped && has_ended() {
            return Ok(Turned::Over);
        }
        let read = if is_stopped { self.learn() } else { self.take_requests(take) };
        let turned = turn();
        Ok(Turned::On(read? + self.send_answers()? + turned))
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

    /// After a turn that did something: tells the daemon of calls that went without it, if it is time to.
    #[inline]
    pub fn tell_counts(&mut self) {
        if self.reception.is_none() {
            return;
        }
        self.looks = self.looks.wrapping_add(1);
        // The clock is looked at now and then, and before each sleep.
        if self.looks.is_multiple_of(LOOKS_PER_CLOCK) {
            self.tell(false);
        }
    }

    /// Tells the daemon of calls that went without it, if it is time to, or at once. Answers have their entries first.
    pub(super) fn tell(&mut self, at_once: bool) {
        let Self { reception: Some(reception), link, requests, .. } = self else { return };
        if link.has_room(requests.of_daemon()) {
            link.tell(&reception.take_counts(at_once));
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

    /// Before a sleep: tells the daemon what it is to know by now. Returns how long the thread may sleep; `None`: there
    /// is something to do.
    pub fn doze(&mut self) -> Option<Duration> {
        self.tell(false);
        let Self { outbox, link, reception, .. } = self;
        let is_idle = outbox.doze() && link.arm() && reception.as_mut().is_none_or(Reception::arm);
        let sleep_max =
            || reception.as_ref().map_or(SLEEP_MAX, |reception| reception.sleep_max(SLEEP_MAX));
        is_idle.then(sleep_max)
    }

    /// After a sleep, and where [`doze`](Self::doze) said that there is none.
    pub fn awake(&mut self) {
        self.outbox.awake();
        if let Some(reception) = &mut self.reception {
            reception.wake_up();
        }
    }
}
