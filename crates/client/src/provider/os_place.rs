//! The place of a provider that is a process: a connection over shared memory, a server of clients, the machine's clock.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};

use ipc::{CallError, CallOutcome, Lifeline, OpenRequest, Replies, ServerConfig, Terms};
use os::idle::Idle;

use crate::provider::{
    asks::Asks,
    daemon_search::DaemonSearch,
    place::{DaemonConnection, IntroducedClients, ProviderPlace},
    process_clock::OsClock,
};

/// A process.
#[derive(Debug)]
pub struct OsPlace {
    pub(in crate::provider) search: DaemonSearch,
    pub(in crate::provider) idle: Idle,
    clock: OsClock,
}

impl OsPlace {
    pub(in crate::provider) fn new(search: DaemonSearch) -> Self {
        Self { search, idle: Idle::default(), clock: OsClock }
    }
}

impl ProviderPlace for OsPlace {
    type Clock = OsClock;
    type Daemon = ipc::PipelinedClient<Asks>;
    type Clients = ipc::Server;

    const COUNTS_INTERVAL: Duration = Duration::from_millis(100);

    fn clock(&self) -> &OsClock {
        &self.clock
    }

    fn serve_clients(&mut self, config: ServerConfig) -> Option<(ipc::Server, OwnedFd)> {
        ipc::Server::introduced(config).ok()
    }
}

impl DaemonConnection for ipc::PipelinedClient<Asks> {
    fn submit_parts(&mut self, parts: &[&[u8]], asks: Asks) -> Result<(), CallError> {
        let sent = Self::submit_parts(self, parts, asks);
        sent.map(drop).map_err(|refused| refused.error)
    }

    #[inline]
    fn submit_endless(&mut self, parts: &[&[u8]], asks: Asks) -> Result<(), CallError> {
        let sent = self.submit_parts_within(parts, Duration::MAX, asks);
        sent.map(drop).map_err(|refused| refused.error)
    }

    #[inline]
    fn poll_outcomes(&mut self, done: impl FnMut(Asks, CallOutcome<'_>)) {
        Self::poll_outcomes(self, done);
    }

    #[inline]
    fn flush(&mut self) {
        Self::flush(self);
    }

    fn arm(&mut self) -> bool {
        Self::arm(self)
    }

    fn in_flight(&self) -> usize {
        Self::in_flight(self)
    }

    fn free(&self) -> usize {
        Self::free(self)
    }

    fn depth(&self) -> usize {
        Self::depth(self)
    }

    fn terms(&self) -> Terms {
        Self::terms(self)
    }

    fn lifeline(&self) -> Option<Lifeline> {
        Some(Self::lifeline(self))
    }

    fn send_descriptor(&mut self, fd: BorrowedFd<'_>) -> Result<(), CallError> {
        Self::send_descriptor(self, fd)
    }
}

impl IntroducedClients for ipc::Server {
    #[inline]
    fn take(&mut self) -> Option<OpenRequest<'_>> {
        Self::take(self)
    }

    #[inline]
    fn replies(&mut self) -> &mut Replies {
        Self::replies(self)
    }

    fn set_turn_budget(&mut self, requests: u32) {
        Self::set_turn_budget(self, requests);
    }

    #[inline]
    fn pause(&mut self) {
        Self::pause(self);
    }

    fn arm(&mut self) -> bool {
        Self::arm(self)
    }

    fn wake_up(&mut self) {
        self.service_now();
    }

    fn has_clients(&self) -> bool {
        self.clients().next().is_some()
    }
}
