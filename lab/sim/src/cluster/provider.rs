//! A program that serves: the production session of a provider, in the place of a simulated process.
//!
//! ```text
//!  production  client::ProviderSession   requests of daemon and clients, answers, cancellation, counts, sleep
//!  made up     SimPlace                  the connection on the heap, the driver of the clients' server, the clock
//! ```

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use client::{Asks, DaemonConnection, ProviderClock as _, ProviderPlace};
use ipc::{CallError, CallOutcome, Lifeline, ServerConfig, Terms, sans_os::ClientCore};

use super::{
    direct::{SharedDesk, SimClients},
    plan::{ENDLESS_NS, Plan},
    sim_clock::SimClock,
};

/// A simulated process.
#[derive(Debug)]
pub(super) struct SimPlace {
    clock: SimClock,
    desk: SharedDesk,
    is_direct: bool,
}

impl SimPlace {
    pub(super) fn new(plan: &Plan, clock: &SimClock, desk: &SharedDesk) -> Self {
        Self { clock: clock.clone(), desk: Rc::clone(desk), is_direct: plan.is_direct }
    }
}

impl ProviderPlace for SimPlace {
    type Clock = SimClock;
    type Daemon = SimConnection;
    type Clients = SimClients;

    /// A run lasts for less than a millisecond.
    const COUNTS_INTERVAL: Duration = Duration::from_micros(20);

    fn clock(&self) -> &SimClock {
        &self.clock
    }

    fn serve_clients(&mut self, config: ServerConfig) -> Option<(SimClients, OwnedFd)> {
        if !self.is_direct {
            return None;
        }
        SimClients::new(config, &self.clock, &self.desk)
    }
}

/// A provider's connection to its daemon.
#[derive(Debug)]
pub(super) struct SimConnection {
    core: ClientCore<Asks>,
    clock: SimClock,
    terms: Terms,
    depth: usize,
    /// Calls that ask for a request, in flight.
    works: usize,
    /// What the daemon is to have, beside the call that says what it is for.
    descriptor: Option<OwnedFd>,
    /// Requests were published, or announced.
    has_told: bool,
    /// The daemon sleeps and is to be woken.
    wakes_daemon: bool,
}

impl SimConnection {
    pub(super) fn new(plan: &Plan, core: ClientCore<Asks>, clock: &SimClock) -> Self {
        let config = plan.ipc();
        let terms = Terms {
            request_bytes_max: config.request_bytes_max as usize,
            response_bytes_max: config.response_bytes_max as usize,
            server_generation: 0,
        };
        Self {
            core,
            clock: clock.clone(),
            terms,
            depth: config.depth.into(),
            works: 0,
            descriptor: None,
            has_told: false,
            wakes_daemon: false,
        }
    }

    pub(super) fn has_response(&self) -> bool {
        self.core.has_response()
    }

    /// Calls that ask for a request and are not answered.
    pub(super) fn works(&self) -> usize {
        self.works
    }

    pub(super) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptor.take()
    }

    /// Whether the daemon was told something, and whether it is to be woken.
    pub(super) fn take_told(&mut self) -> (bool, bool) {
        (std::mem::take(&mut self.has_told), std::mem::take(&mut self.wakes_daemon))
    }

    fn submit(&mut self, parts: &[&[u8]], timeout_ns: u64, asks: Asks) -> Result<(), CallError> {
        self.core.submit_parts(parts, timeout_ns, asks).map_err(|(error, _)| error)?;
        self.works += usize::from(asks == Asks::Work);
        self.has_told = true;
        Ok(())
    }
}

impl DaemonConnection for SimConnection {
    fn submit_parts(&mut self, parts: &[&[u8]], asks: Asks) -> Result<(), CallError> {
        self.submit(parts, ENDLESS_NS, asks)
    }

    fn submit_endless(&mut self, parts: &[&[u8]], asks: Asks) -> Result<(), CallError> {
        self.submit(parts, u64::MAX, asks)
    }

    fn poll_outcomes(&mut self, mut done: impl FnMut(Asks, CallOutcome<'_>)) {
        let Self { core, works, wakes_daemon, .. } = self;
        core.disarm();
        *wakes_daemon |= core.announce();
        let mut done = |asks, outcome: CallOutcome<'_>| {
            *works -= usize::from(asks == Asks::Work);
            done(asks, outcome);
        };
        core.poll(&mut done);
        core.tick(self.clock.now_ns(), &mut done);
    }

    fn flush(&mut self) {
        self.wakes_daemon |= self.core.flush();
    }

    fn arm(&mut self) -> bool {
        self.flush();
        self.core.arm(self.clock.now_ns())
    }

    fn in_flight(&self) -> usize {
        self.core.in_flight()
    }

    fn free(&self) -> usize {
        // A provider abandons no call, so each entry that is in use has one in flight.
        self.depth - self.core.in_flight()
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn terms(&self) -> Terms {
        self.terms
    }

    fn lifeline(&self) -> Option<Lifeline> {
        None
    }

    fn send_descriptor(&mut self, fd: BorrowedFd<'_>) -> Result<(), CallError> {
        let given = fd.as_fd().try_clone_to_owned().map_err(|_| CallError::ServerGone)?;
        self.descriptor = Some(given);
        Ok(())
    }
}
