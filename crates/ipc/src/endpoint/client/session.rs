//! A client on an operating system: a [`ClientCore`] over mapped memory, driven by the clock and by a
//! connection. All kinds of clients are made of it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use os::{
    clock,
    fdpass::SendError,
    idle::{Idle, IdleStep, Wait},
    unix::UnixConnection,
};

use crate::{
    endpoint::{
        client::{
            calls::{CallId, ClientCalls},
            connection::{self, ConnectError, Connected, Introduced, ServerConnection, ServerLife},
            core::{ClientCore, Polled},
        },
        lifeline::Lifeline,
        status::{CallError, CallOutcome, LentOutcome, lend},
    },
    ring::MessageBytes,
};

/// Time between two looks at the socket while polling, each a system call.
const LOOK_INTERVAL_NS: u64 = 1_000_000;

/// Longest sleep without a look around: nothing depends on it.
const SLEEP_NS_MAX: u64 = 1_000_000_000;

/// The configuration of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// The waiting mode.
    pub wait: Wait,
    /// Deadline of a call that does not name its own.
    pub timeout: Duration,
    /// The longest wait for the server's answer to a connection.
    pub connect_timeout: Duration,
    /// Generation that calls begin with: near a wrap in tests.
    #[doc(hidden)]
    pub first_generation: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            wait: Wait::default(),
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            first_generation: 0,
        }
    }
}

/// The terms that client and server agreed on at connect, until the client connects anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Longest request, in bytes.
    pub request_bytes_max: usize,
    /// Longest response, in bytes.
    pub response_bytes_max: usize,
    /// Differs between any two servers that ever listened at the path.
    pub server_generation: u64,
}

/// A client on its way to a server to which it [is introduced](crate::Introducer).
#[derive(Debug)]
pub struct Newcomer(UnixConnection);

/// How far an introduction has come.
#[derive(Debug)]
pub enum NewcomerState<T, N = Newcomer> {
    /// The server has not looked yet.
    NotYet(N),
    /// Client and server share memory.
    Arrived(T),
}

impl Newcomer {
    /// A client that knows no server yet, and the descriptor that the introducer is to hand to one.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn new() -> Result<(Self, OwnedFd), ConnectError> {
        let (own, given) = UnixConnection::pair()?;
        Ok((Self(own), given))
    }

    /// A client whose socket is this one.
    #[cfg(test)]
    pub(crate) fn of(socket: UnixConnection) -> Self {
        Self(socket)
    }

    /// Looks for the server's welcome. Never waits.
    pub(crate) fn arrive<C>(
        self,
        config: ClientConfig,
    ) -> Result<NewcomerState<ClientSession<C>>, ConnectError> {
        Ok(match connection::introduced(self.0)? {
            Introduced::NotYet(connection) => NewcomerState::NotYet(Self(connection)),
            Introduced::Connected(connected) => {
                NewcomerState::Arrived(ClientSession::of(*connected, None, config))
            }
        })
    }
}

impl<T> NewcomerState<T> {
    pub(crate) fn map<U>(self, f: impl FnOnce(T) -> U) -> NewcomerState<U> {
        match self {
            Self::NotYet(newcomer) => NewcomerState::NotYet(newcomer),
            Self::Arrived(arrived) => NewcomerState::Arrived(f(arrived)),
        }
    }
}

#[derive(Debug)]
pub(crate) struct ClientSession<C> {
    core: ClientCore<C>,
    connection: ServerConnection,
    server_generation: u64,
    /// `None`: it was introduced.
    path: Option<PathBuf>,
    config: ClientConfig,
    /// Of calls that name none.
    timeout_ns: u64,
    idle: Idle,
    looked_ns: u64,
}

impl<C> ClientSession<C> {
    pub(crate) fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        let connected = connection::connect(path, config.connect_timeout)?;
        Ok(Self::of(connected, Some(path.to_owned()), config))
    }

    fn of(connected: Connected, path: Option<PathBuf>, config: ClientConfig) -> Self {
        let Connected { connection, welcome, memory } = connected;
        Self {
            core: ClientCore::new(&welcome, memory, config.first_generation),
            connection,
            server_generation: welcome.server_generation,
            path,
            config,
            timeout_ns: clock::duration_ns(config.timeout),
            idle: Idle::default(),
            looked_ns: clock::now_ns(),
        }
    }

    /// Ends all calls, then connects anew. If that fails, the old state remains.
    pub(crate) fn reconnect(
        &mut self,
        done: &mut impl FnMut(C, CallOutcome<'_>),
    ) -> Result<(), ConnectError> {
        let path = self.path.as_deref().ok_or(ConnectError::Closed)?;
        let fresh = Self::connect(path, self.config)?;
        let reason = self.gone().unwrap_or(CallError::ServerGone);
        self.core.fail_all(reason, done);
        *self = fresh;
        Ok(())
    }

    pub(crate) fn calls(&self) -> &ClientCalls<C> {
        self.core.calls()
    }

    /// The deadline of a call that names none.
    pub(crate) fn timeout_ns(&self) -> u64 {
        self.timeout_ns
    }

    pub(crate) fn lifeline(&self) -> Lifeline {
        self.connection.lifeline()
    }

    pub(crate) fn gone(&self) -> Option<CallError> {
        self.core.gone()
    }

    pub(crate) fn terms(&self) -> Terms {
        Terms {
            request_bytes_max: self.calls().request_bytes_max(),
            response_bytes_max: self.calls().response_bytes_max(),
            server_generation: self.server_generation,
        }
    }

    #[inline]
    pub(crate) fn submit<M: MessageBytes + ?Sized>(
        &mut self,
        request: &M,
        timeout_ns: u64,
        context: C,
    ) -> Result<CallId, (CallError, C)> {
        if self.connection.is_forked() {
            return Err((CallError::ForkedHandle, context));
        }
        self.core.publish(request, timeout_ns, context)
    }

    /// Sends the server a descriptor, before the request that tells what it is for.
    pub(crate) fn send_descriptor(&self, fd: BorrowedFd<'_>) -> Result<(), CallError> {
        if self.connection.is_forked() {
            return Err(CallError::ForkedHandle);
        }
        let deadline_ns = clock::now_ns().saturating_add(self.timeout_ns);
        self.connection.send(fd, deadline_ns).map_err(|error| match error {
            SendError::TimedOut => CallError::Deadline,
            _ => CallError::ServerGone,
        })
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.connection.is_forked()
    }

    pub(crate) fn abandon(&mut self, id: CallId) -> Option<C> {
        self.core.abandon(id)
    }

    /// Sees to it that the server notices what was published.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if !self.connection.is_forked() && self.core.flush() {
            self.connection.wake();
        }
    }

    /// Reports calls that ended, at most one per call entry. Never sleeps.
    #[inline]
    pub(crate) fn poll(&mut self, done: &mut impl FnMut(C, CallOutcome<'_>)) -> usize {
        if self.connection.is_forked() {
            return self.core.fail_all(CallError::ForkedHandle, done);
        }
        self.announce();
        let Polled { ended, is_clock_due } = self.core.poll(done);
        if ended > 0 {
            self.idle.reset();
            return ended;
        }
        if is_clock_due { self.tick(done) + self.core.end_if_gone(done) } else { 0 }
    }

    /// Like [`poll`](Self::poll), with responses where they lie.
    #[inline]
    pub(crate) fn poll_lent(&mut self, done: &mut impl FnMut(C, LentOutcome<'_>)) -> usize {
        let mut fail = |context, outcome: CallOutcome<'_>| done(context, lend(outcome));
        if self.connection.is_forked() {
            return self.core.fail_all(CallError::ForkedHandle, &mut fail);
        }
        self.announce();
        let Polled { ended, is_clock_due } = self.core.poll_lent(done);
        if ended > 0 {
            self.idle.reset();
            return ended;
        }
        if !is_clock_due {
            return 0;
        }
        let expired = self.tick(&mut |context, outcome| done(context, lend(outcome)));
        expired + self.core.end_if_gone_lent(done)
    }

    /// Before a poll: tells the server of requests, and ends a nap.
    #[inline(always)]
    fn announce(&mut self) {
        if self.core.announce() {
            self.connection.wake();
        }
        if self.core.is_armed() {
            self.end_nap();
        }
    }

    /// The checks that need a clock or a system call: deadlines and the server's death.
    #[cold]
    fn tick(&mut self, done: &mut impl FnMut(C, CallOutcome<'_>)) -> usize {
        let now_ns = clock::now_ns();
        let ended = self.core.tick(now_ns, done);
        if now_ns.saturating_sub(self.looked_ns) >= LOOK_INTERVAL_NS {
            self.look(0);
        }
        ended
    }

    fn look(&mut self, timeout_ns: u64) {
        let life = self.connection.look(timeout_ns);
        self.looked_ns = clock::now_ns();
        self.core.looked(life == ServerLife::Gone);
        if self.path.is_none() {
            self.core.note_untaken(|| self.connection.is_server_dead());
        }
    }

    /// From now on the descriptor of this client is readable, too, when that of another one is.
    pub(crate) fn watch(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        self.connection.watch(other)
    }

    pub(crate) fn unwatch(&self, other: BorrowedFd<'_>) {
        self.connection.unwatch(other);
    }

    pub(crate) fn take_other(&mut self) -> bool {
        self.connection.take_other()
    }

    /// Looks whether the server is there.
    pub(crate) fn look_now(&mut self) {
        if !self.connection.is_forked() {
            self.look(0);
        }
    }

    /// Ends all calls.
    pub(crate) fn end(&mut self, done: &mut impl FnMut(C, CallOutcome<'_>)) {
        self.core.fail_all(CallError::ServerGone, done);
    }

    /// The first step of [`rest`](Self::rest), for a driver that waits for other things, too.
    #[inline]
    pub(crate) fn idle_step(&mut self) -> IdleStep {
        let step = self.idle.step(self.config.wait);
        if step == IdleStep::Yielded {
            self.core.hurry_clock();
        }
        step
    }

    pub(crate) fn reset_idle(&mut self) {
        self.idle.reset();
    }

    pub(crate) fn hurry_clock(&mut self) {
        self.core.hurry_clock();
    }

    /// Sleeps, once [armed](Self::arm).
    pub(crate) fn nap(&mut self, deadline_ns: u64) {
        let until_ns = deadline_ns.min(self.core.earliest_deadline_ns());
        let timeout_ns = until_ns.saturating_sub(clock::now_ns());
        self.look(timeout_ns.min(SLEEP_NS_MAX));
        self.core.disarm();
    }

    /// After an empty poll: spins, yields or sleeps, the latter at most until a deadline.
    #[inline]
    pub(crate) fn rest(&mut self, deadline_ns: u64) {
        match self.idle.step(self.config.wait) {
            IdleStep::Spun => {}
            IdleStep::Yielded => self.core.hurry_clock(),
            IdleStep::Sleep => self.sleep(deadline_ns),
        }
    }

    #[cold]
    fn sleep(&mut self, deadline_ns: u64) {
        if self.arm() {
            self.nap(deadline_ns);
        }
        self.core.disarm();
    }

    /// After a wait for the descriptor by other means, which took no wakeup.
    #[cold]
    fn end_nap(&mut self) {
        self.core.disarm();
        self.look(0);
    }

    /// Announces that this client sleeps; `false` if there is something to do instead.
    pub(crate) fn arm(&mut self) -> bool {
        if self.connection.is_forked() {
            return false;
        }
        self.flush();
        self.core.arm(clock::now_ns())
    }
}

impl<C> AsFd for ClientSession<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}
