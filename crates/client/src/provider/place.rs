//! The world around a provider's session: its connection to the daemon, the server of introduced clients, the clock.

use std::{fmt::Debug, os::fd::BorrowedFd, os::fd::OwnedFd, time::Duration};

use ipc::{CallError, CallOutcome, Lifeline, OpenRequest, Replies, ServerConfig, Terms};

use crate::provider::{asks::Asks, process_clock::ProviderClock};

/// The place where a provider's session runs: a process of its own, or a simulator.
pub trait ProviderPlace: Debug {
    /// The time that deadlines are compared with.
    type Clock: ProviderClock;
    /// The connection to the daemon.
    type Daemon: DaemonConnection;
    /// The server of clients that the daemon introduces.
    type Clients: IntroducedClients;

    /// Time between two messages to the daemon about calls that went without it.
    const COUNTS_INTERVAL: Duration;

    /// Its clock.
    fn clock(&self) -> &Self::Clock;

    /// A server for introduced clients, and the end of its channel that the daemon is to have; `None`: there is none.
    fn serve_clients(&mut self, config: ServerConfig) -> Option<(Self::Clients, OwnedFd)>;
}

/// A connection to the daemon, with calls in flight.
pub trait DaemonConnection: Debug {
    /// Publishes a request in parts, with the deadline of the connection.
    ///
    /// # Errors
    ///
    /// [`CallError`], in particular [`CallError::Full`].
    fn submit_parts(&mut self, parts: &[&[u8]], asks: Asks) -> Result<(), CallError>;

    /// The same, without a deadline: work may be long in coming, and the kernel tells of the daemon's end.
    ///
    /// # Errors
    ///
    /// [`CallError`], in particular [`CallError::Full`].
    fn submit_endless(&mut self, parts: &[&[u8]], asks: Asks) -> Result<(), CallError>;

    /// Reports calls that ended.
    fn poll_outcomes(&mut self, done: impl FnMut(Asks, CallOutcome<'_>));

    /// Sees to it that the daemon notices all requests so far.
    fn flush(&mut self);

    /// Before a sleep; `false`: there is something to read.
    fn arm(&mut self) -> bool;

    /// Calls that have not ended.
    fn in_flight(&self) -> usize;

    /// Calls that could be made now.
    fn free(&self) -> usize;

    /// Most calls in flight.
    fn depth(&self) -> usize;

    /// The longest messages.
    fn terms(&self) -> Terms;

    /// Tells other threads of the end of the connection, where there are other threads.
    fn lifeline(&self) -> Option<Lifeline>;

    /// Gives the daemon a descriptor, before the call that says what it is for.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the daemon is gone, or reads nothing.
    fn send_descriptor(&mut self, fd: BorrowedFd<'_>) -> Result<(), CallError>;
}

/// A server of clients that the daemon introduces.
pub trait IntroducedClients: Debug {
    /// The next request; `None`: the turn is over.
    fn take(&mut self) -> Option<OpenRequest<'_>>;

    /// Answers requests by their ids.
    fn replies(&mut self) -> &mut Replies;

    /// Takes so many requests of a client in a turn, at most.
    fn set_turn_budget(&mut self, requests: u32);

    /// A turn in which nothing more is taken.
    fn pause(&mut self);

    /// Before a sleep; `false`: there is something to do.
    fn arm(&mut self) -> bool;

    /// After a sleep.
    fn wake_up(&mut self);

    /// Whether any client is connected.
    fn has_clients(&self) -> bool;
}
