//! What all client styles share: calls, a connection, and waiting.

use std::{
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use os::clock;

use crate::{
    bell,
    client::{
        core::{Broken, CallId, Core},
        link::{self, ConnectError, Connected, Life, Link},
    },
    status::{CallError, EvictReason},
    wait::{Idle, Step, Wait, timeout_ns},
};

/// Empty polls between two looks at the clock.
const CLOCK_POLLS: u32 = 64;

/// Polls after which requests are announced with a barrier: longer than a server that polls takes.
const FLUSH_POLLS: u32 = 8;

/// Time between two looks at the socket while polling, each a system call.
const LOOK_INTERVAL_NS: u64 = 1_000_000;

/// Longest sleep without a look around: nothing depends on it.
const SLEEP_NS_MAX: u64 = 1_000_000_000;

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// What to do while waiting for responses.
    pub wait: Wait,
    /// Deadline of a call that does not name its own.
    pub timeout: Duration,
    /// How long the server may take to answer a connection.
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

/// What client and server agreed on at connect, until the client connects anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Longest request, in bytes.
    pub request_bytes_max: usize,
    /// Longest response, in bytes.
    pub response_bytes_max: usize,
    /// Differs between any two servers that ever listened at the path.
    pub server_generation: u64,
}

#[derive(Debug)]
pub(crate) struct Pipe<C> {
    core: Core<C>,
    link: Link,
    path: PathBuf,
    config: ClientConfig,
    /// Of calls that name none.
    timeout_ns: u64,
    idle: Idle,
    /// Requests were published that the server was not told of.
    is_unflushed: bool,
    /// Polls since then.
    unflushed_polls: u32,
    empty_polls: u32,
    looked_ns: u64,
    /// The server was told that this client sleeps.
    is_armed: bool,
    epoch: u32,
    /// Why no call will ever be answered again.
    gone: Option<CallError>,
}

impl<C> Pipe<C> {
    pub(crate) fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        let connected = link::connect(path, config.connect_timeout)?;
        let Connected { link, up, down, position } = connected;
        Ok(Self {
            core: Core::new(up, down, position, config.first_generation),
            link,
            path: path.to_owned(),
            config,
            timeout_ns: timeout_ns(config.timeout),
            idle: Idle::default(),
            is_unflushed: false,
            unflushed_polls: 0,
            empty_polls: 0,
            looked_ns: clock::now_ns(),
            is_armed: false,
            epoch: 0,
            gone: None,
        })
    }

    /// Ends all calls, then connects anew. If that fails, the old state remains.
    pub(crate) fn reconnect(
        &mut self,
        done: &mut impl FnMut(C, Result<&[u8], CallError>),
    ) -> Result<(), ConnectError> {
        let fresh = Self::connect(&self.path, self.config)?;
        let reason = self.gone.unwrap_or(CallError::ServerGone);
        self.core.fail_all(reason, done);
        *self = fresh;
        Ok(())
    }

    pub(crate) fn core(&self) -> &Core<C> {
        &self.core
    }

    /// How long a call may take that does not name its own deadline.
    pub(crate) fn timeout_ns(&self) -> u64 {
        self.timeout_ns
    }

    pub(crate) fn gone(&self) -> Option<CallError> {
        self.gone
    }

    pub(crate) fn terms(&self) -> Terms {
        Terms {
            request_bytes_max: self.core.request_bytes_max(),
            response_bytes_max: self.core.response_bytes_max(),
            server_generation: self.link.server_generation(),
        }
    }

    #[inline]
    pub(crate) fn submit(
        &mut self,
        request: &[u8],
        timeout_ns: u64,
        context: C,
    ) -> Result<CallId, (CallError, C)> {
        if self.link.is_forked() {
            return Err((CallError::ForkedHandle, context));
        }
        if let Some(error) = self.gone {
            return Err((error, context));
        }
        let id = self.core.submit(request, timeout_ns, context)?;
        self.is_unflushed = true;
        Ok(id)
    }

    pub(crate) fn abandon(&mut self, id: CallId) -> Option<C> {
        self.core.abandon(id)
    }

    /// Sees to it that the server notices what was published.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.unflushed_polls = 0;
        if core::mem::take(&mut self.is_unflushed)
            && !self.link.is_forked()
            && bell::must_ring(self.core.attention())
        {
            self.link.ring();
        }
    }

    /// Rings at once if the server is known not to look, and with a barrier a few polls later.
    #[inline]
    fn flush_soon(&mut self) {
        self.unflushed_polls += 1;
        if self.unflushed_polls >= FLUSH_POLLS || self.core.attention().is_unattended() {
            self.flush();
        }
    }

    /// Reports calls that ended, at most one per call entry. Never sleeps.
    #[inline]
    pub(crate) fn poll(&mut self, done: &mut impl FnMut(C, Result<&[u8], CallError>)) -> usize {
        if self.link.is_forked() {
            return self.core.fail_all(CallError::ForkedHandle, done);
        }
        if self.is_unflushed {
            self.flush_soon();
        }
        if self.is_armed {
            self.end_nap();
        }
        let count = self.receive_all(done);
        if count > 0 {
            self.empty_polls = 0;
            self.idle.reset();
            return count;
        }
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if self.empty_polls.is_multiple_of(CLOCK_POLLS) || self.gone.is_some() {
            return self.tick(done);
        }
        0
    }

    #[inline]
    fn receive_all(&mut self, done: &mut impl FnMut(C, Result<&[u8], CallError>)) -> usize {
        for count in 0..self.core.depth() {
            match self.core.receive(done) {
                Ok(true) => {}
                Ok(false) => return count,
                Err(Broken) => {
                    self.gone = Some(CallError::ServerBroken);
                    return count;
                }
            }
        }
        self.core.depth()
    }

    /// What needs a clock or a system call: deadlines and the server's death.
    #[cold]
    fn tick(&mut self, done: &mut impl FnMut(C, Result<&[u8], CallError>)) -> usize {
        let now_ns = clock::now_ns();
        self.core.stamp(now_ns);
        let mut count = self.core.expire(now_ns, done);
        if now_ns.saturating_sub(self.looked_ns) >= LOOK_INTERVAL_NS {
            self.look(0);
        }
        if let Some(error) = self.gone {
            // What was answered before the end is answered.
            count += self.receive_all(done);
            count += self.core.fail_all(error, done);
        }
        count
    }

    fn look(&mut self, timeout_ns: u64) {
        let life = self.link.look(timeout_ns);
        self.looked_ns = clock::now_ns();
        let evicted = EvictReason::from_word(self.core.eviction_word()).map(CallError::Evicted);
        if life == Life::Gone || evicted.is_some() {
            self.gone = self.gone.or(evicted).or(Some(CallError::ServerGone));
        }
    }

    /// After an empty poll: spins, yields or sleeps, the latter at most until a deadline.
    #[inline]
    pub(crate) fn rest(&mut self, deadline_ns: u64) {
        match self.idle.step(self.config.wait) {
            Step::Spun => {}
            Step::Yielded => self.empty_polls = CLOCK_POLLS - 1,
            Step::Sleep => self.sleep(deadline_ns),
        }
    }

    #[cold]
    fn sleep(&mut self, deadline_ns: u64) {
        if self.arm() {
            let until_ns = deadline_ns.min(self.core.earliest_deadline_ns());
            let timeout_ns = until_ns.saturating_sub(clock::now_ns());
            self.look(timeout_ns.min(SLEEP_NS_MAX));
        }
        self.disarm();
    }

    /// After a wait for the descriptor by other means, which took no doorbell.
    #[cold]
    fn end_nap(&mut self) {
        self.disarm();
        self.look(0);
    }

    /// Announces that this client sleeps; `false` if there is something to do instead.
    pub(crate) fn arm(&mut self) -> bool {
        if self.link.is_forked() {
            return false;
        }
        self.flush();
        self.core.stamp(clock::now_ns());
        self.core.armed().arm(&mut self.epoch);
        self.is_armed = true;
        !self.core.has_response() && self.core.eviction_word() == 0 && self.gone.is_none()
    }

    fn disarm(&mut self) {
        if core::mem::take(&mut self.is_armed) {
            self.core.armed().disarm(&mut self.epoch);
            self.empty_polls = CLOCK_POLLS - 1;
        }
    }
}

impl<C> AsFd for Pipe<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}
