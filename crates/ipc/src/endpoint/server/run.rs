//! The server on an operating system: a [`ServerCore`] over memfds, driven by the clock, by sockets and
//! by pidfds.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
    thread,
};

use memory::Region;
use os::{
    clock,
    idle::{Idle, IdleStep},
    unix::UnixConnection,
};

use crate::{
    endpoint::{
        fork::ForkGuard,
        memory::{SLEEP_FLAG_BYTES, ServerMemory},
        poller::{Poller, Ready},
        server::{
            acceptor::Acceptor,
            config::ServerConfig,
            core::{Notice, SWEEP_INTERVAL_NS, ServerCore},
            handoff::Handoff,
            handshakes::{self, Handshakes},
            id::ClientId,
            listener::BindError,
            poll_key::{PollKey, Source},
            replies::{Replies, ReplyError},
            request::{LentRequest, OpenRequest, ReplyToken, Request, TakenRequest},
            sockets::{Datagram, Sockets},
            stats::Stats,
        },
        status::EvictReason,
    },
    wakeup,
};

/// Logarithm of the clients that a server of a team may ever have: their generations are its own.
const GENERATIONS_LOG2: u32 = 36;

/// Datagrams that are read in search of a descriptor.
const DESCRIPTOR_READS_MAX: usize = 64;

/// Answers requests of other processes.
///
/// ```no_run
/// # use copyrpc_ipc::{Server, ServerConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut server = Server::bind("/run/user/1000/x/ipc".as_ref(), ServerConfig::default())?;
/// loop {
///     server.serve(|request| {
///         let payload = request.payload();
///         // It fails if the response is too long, which the client is told, too.
///         let _ = request.reply(payload);
///     });
///     server.rest(u64::MAX);
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    core: ServerCore,
    sockets: Sockets,
    acceptor: Acceptor,
    handshakes: Handshakes,
    poller: Poller,
    idle: Idle,
}

impl Server {
    /// Begins to listen at `path`, in a private directory, which is created if need be. A lock file
    /// beside it keeps a second server out; what a dead one left behind is replaced. Of a `path` that
    /// begins with `@`, an abstract name (`unix(7)`), nothing is ever left.
    ///
    /// # Errors
    ///
    /// [`BindError`].
    pub fn bind(path: &Path, config: ServerConfig) -> Result<Self, BindError> {
        Self::open(Some(path), None, config)
    }

    /// As [`bind`](Self::bind), with `count` servers that share the clients, each for a thread of its
    /// own: a client belongs to the server that had fewest when it came. `clients_max` and
    /// `clients_per_user_max` count for all together.
    ///
    /// # Errors
    ///
    /// [`BindError`].
    pub fn bind_team(
        path: &Path,
        config: ServerConfig,
        count: usize,
    ) -> Result<Vec<Self>, BindError> {
        if count == 1 {
            return Ok(vec![Self::bind(path, config)?]);
        }
        let handoffs = Handoff::team(count, &config)?.into_iter().enumerate();
        handoffs
            .map(|(number, handoff)| {
                Self::open((number == 0).then_some(path), Some(handoff), config)
            })
            .collect()
    }

    /// A server of the clients that are [introduced](crate::Introducer) to it, and the end of its channel that the
    /// introducer is to have.
    ///
    /// # Errors
    ///
    /// [`BindError`].
    pub fn introduced(config: ServerConfig) -> Result<(Self, OwnedFd), BindError> {
        let (channel, of_introducer) = UnixConnection::pair()?;
        let server = Self::of_parts(config, 0, |poller| Acceptor::introduced(channel, poller))?;
        Ok((server, of_introducer))
    }

    fn open(
        path: Option<&Path>,
        handoff: Option<Handoff>,
        config: ServerConfig,
    ) -> Result<Self, BindError> {
        // Servers of one team never share a generation of a client.
        let first_generation = handoff.as_ref().map_or(0, Handoff::number) << GENERATIONS_LOG2;
        Self::of_parts(config, first_generation, |poller| Acceptor::open(path, handoff, poller))
    }

    fn of_parts(
        config: ServerConfig,
        first_generation: u64,
        acceptor: impl FnOnce(&Poller) -> Result<Acceptor, BindError>,
    ) -> Result<Self, BindError> {
        config.check()?;
        let fork = ForkGuard::new();
        // The lock lets one server bind at a time, so no two of a path share a nanosecond.
        let generations = (first_generation, clock::now_ns());
        let core = ServerCore::new(config, shared_memory(&config)?, generations, fork)?;
        let poller =
            Poller::new().map_err(|source| BindError::Os { call: "epoll_create1", source })?;
        let acceptor = acceptor(&poller)?;
        let sockets = Sockets::new(config.clients_max, config.takes_descriptors, fork);
        let (handshakes, idle) = (Handshakes::default(), Idle::default());
        Ok(Self { core, sockets, acceptor, handshakes, poller, idle })
    }

    /// The next request, or `None` at the end of a turn; then call [`rest`](Self::rest).
    #[inline]
    pub fn recv(&mut self) -> Option<Request<'_>> {
        self.take().map(Request::new)
    }

    /// Like [`recv`](Self::recv), for a caller that answers each request by its id, and may not
    /// forget to.
    #[inline]
    pub fn take(&mut self) -> Option<OpenRequest<'_>> {
        if let Some(taken) = self.core.next::<false>() {
            return Some(self.core.open(taken));
        }
        self.end_turn();
        None
    }

    /// Like [`recv`](Self::recv), with the body where the client put it: none of it is fetched that the handler
    /// does not read. Short bodies, and very long ones, are private copies all the same.
    #[inline]
    pub fn recv_lent(&mut self) -> Option<LentRequest<'_>> {
        debug_assert!(!self.core.copies.leaves(), "requests that are left are taken otherwise");
        if let Some(taken) = self.core.next::<true>() {
            return Some(self.core.open_lent(taken));
        }
        self.end_turn();
        None
    }

    /// From now on [`take_lent`](Self::take_lent) leaves large requests where they lie for whose first 64 bytes
    /// `leaves` holds: they are not copied before they are taken, and [`Replies::read_left`] copies them in parts.
    pub fn leave_large(&mut self, leaves: impl Fn(&[u8]) -> bool + Send + 'static) {
        self.core.copies.set_leaves(leaves);
    }

    /// Like [`take`](Self::take), with the body where [`recv_lent`](Self::recv_lent) has it.
    #[inline]
    pub fn take_lent(&mut self) -> Option<TakenRequest<'_>> {
        if let Some(taken) = self.core.next::<true>() {
            return Some(TakenRequest::of(self.core.open(taken), taken.1));
        }
        self.end_turn();
        None
    }

    /// A turn in which no more requests are taken: wakes clients, and sometimes looks at the clock.
    #[inline]
    pub fn pause(&mut self) {
        self.core.pause();
        self.end_turn();
    }

    /// Takes no more requests of clients that were introduced: each leaves once those that were taken are answered.
    pub fn retire(&mut self) {
        self.core.retire(None);
        self.deliver();
    }

    /// Wakes clients, and sometimes looks at the clock.
    #[inline]
    fn end_turn(&mut self) {
        if self.core.was_busy() {
            self.handshakes.note_busy();
            self.idle.reset();
        }
        self.deliver();
        if self.core.is_clock_due() && self.core.tick(clock::now_ns()) {
            self.service(0);
        }
    }

    /// Does what the core asks for.
    #[inline]
    fn deliver(&mut self) {
        while let Some(notice) = self.core.next_notice() {
            match notice {
                Notice::Wake(slot) => self.sockets.wake(slot),
                Notice::Disconnect(slot) => self.disconnect(slot),
            }
        }
    }

    fn disconnect(&mut self, slot: u16) {
        if let Some(owner) = self.sockets.close(slot, &self.poller) {
            self.acceptor.left(owner);
        }
    }

    /// Waits for and handles what the kernel has to say, then what time has brought.
    #[cold]
    fn service(&mut self, timeout_ns: u64) {
        self.handshakes.look();
        let mut newcomers = Vec::new();
        for ready in self.poller.wait(timeout_ns) {
            if PollKey::from_word(ready.key).is_of_newcomer() {
                newcomers.push(ready);
                continue;
            }
            self.handle(ready);
            // A slot is free for the next event only when its socket is closed.
            self.deliver();
        }
        handshakes::put_in_order(&mut newcomers);
        for ready in newcomers {
            self.handle_newcomer(ready);
            self.deliver();
        }
        let now_ns = clock::now_ns();
        self.acceptor.expire(now_ns, &self.poller);
        self.core.housekeep(now_ns);
        self.deliver();
    }

    /// Handles what comes of newcomers, as far as these have time.
    fn handle_newcomer(&mut self, ready: Ready) {
        let began_ns = clock::now_ns();
        if self.handshakes.may_begin(began_ns) {
            self.handle(ready);
            self.handshakes.worked(began_ns, clock::now_ns());
        }
    }

    fn handle(&mut self, ready: Ready) {
        let Self { core, sockets, acceptor, poller, .. } = self;
        let PollKey { source, slot, generation } = PollKey::from_word(ready.key);
        let client = ClientId { slot, generation };
        match source {
            Source::Listener => acceptor.accept(core, poller),
            Source::Handoff => acceptor.take_handed(core, sockets, poller),
            Source::Introducer => acceptor.read_introducer(core, sockets, poller),
            Source::Pending => acceptor.read_hello(generation, core, sockets, poller),
            Source::Process => self.depart(client),
            Source::Socket if core.is_served(client) => match sockets.read(slot) {
                Datagram::Foreign => core.evict(client, EvictReason::BadDatagram),
                Datagram::End => self.depart(client),
                _ if ready.hung_up => self.depart(client),
                Datagram::Wakeup => core.woken(client),
                Datagram::Descriptor | Datagram::Nothing => {}
            },
            Source::Socket => {}
        }
    }

    fn depart(&mut self, client: ClientId) {
        if self.core.is_served(client) {
            self.core.departed(client);
            self.disconnect(client.slot);
        }
    }

    /// Hands every request of one turn to `handler`, and returns their number.
    ///
    /// A handler that panics answers its request with [`NotAnswered`](crate::CallError::NotAnswered),
    /// and the server lives on.
    pub fn serve(&mut self, mut handler: impl FnMut(Request<'_>)) -> usize {
        let mut count = 0;
        loop {
            let panicked = match self.recv() {
                // It answers while it unwinds; what the handler captured is its own affair.
                Some(request) => catch_unwind(AssertUnwindSafe(|| handler(request))).is_err(),
                None => return count,
            };
            self.core.stats_mut().panics += u64::from(panicked);
            count += 1;
        }
    }

    /// Answers a deferred request.
    ///
    /// # Errors
    ///
    /// [`ReplyError`].
    ///
    /// # Panics
    ///
    /// If another server gave the token, of the same team or not.
    pub fn reply(&mut self, token: ReplyToken, response: &[u8]) -> Result<(), ReplyError> {
        let id = token.redeem(self.core.replies());
        self.core.replies().reply(id, response)
    }

    /// Answers a deferred request with an error code of the application.
    ///
    /// # Errors
    ///
    /// [`ReplyError::ClientGone`].
    ///
    /// # Panics
    ///
    /// As [`reply`](Self::reply) does.
    pub fn reply_error(&mut self, token: ReplyToken, code: u32) -> Result<(), ReplyError> {
        let id = token.redeem(self.core.replies());
        self.core.replies().reply_error(id, code)
    }

    /// Answers requests by their ids.
    #[inline]
    pub fn replies(&mut self) -> &mut Replies {
        self.core.replies()
    }

    /// After a turn: spins, yields or sleeps as configured if it was empty, at most until a
    /// deadline in nanoseconds of `CLOCK_MONOTONIC`. Returns at once if there was something to do.
    #[inline]
    pub fn rest(&mut self, deadline_ns: u64) {
        if self.core.is_forked() {
            return thread::yield_now();
        }
        match self.idle.step(self.core.config().wait) {
            IdleStep::Spun => {}
            IdleStep::Yielded => self.core.hurry_clock(),
            IdleStep::Sleep => self.sleep(deadline_ns),
        }
    }

    #[cold]
    fn sleep(&mut self, deadline_ns: u64) {
        if self.arm() {
            self.core.stats_mut().sleeps += 1;
            let timeout_ns = deadline_ns.saturating_sub(clock::now_ns());
            self.service(timeout_ns.min(SWEEP_INTERVAL_NS));
        }
        self.core.wake_up();
    }

    /// Before waiting for the descriptor of [`AsFd`] by other means: `true` if there is nothing to
    /// do now, so that the descriptor will become readable. Wait for at most 100 ms, then call
    /// [`service_now`](Self::service_now).
    pub fn arm(&mut self) -> bool {
        let is_idle = self.core.arm();
        self.deliver();
        is_idle
    }

    /// Handles what made the descriptor readable, and ends the nap that [`arm`](Self::arm) began.
    pub fn service_now(&mut self) {
        if self.core.is_forked() {
            return;
        }
        self.core.wake_up();
        self.service(0);
    }

    /// Evicts a client, which can read the reason.
    pub fn evict(&mut self, client: ClientId) {
        self.core.evict(client, EvictReason::Operator);
        self.deliver();
    }

    /// Clients that are connected.
    pub fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.core.clients()
    }

    /// Most requests taken of one client in a turn, from now on: at most as many as configured.
    pub fn set_turn_budget(&mut self, requests: u32) {
        self.core.set_turn_budget(requests);
    }

    /// Whether a client is connected.
    #[must_use]
    pub fn is_connected(&self, client: ClientId) -> bool {
        self.core.is_served(client)
    }

    /// Requests of a client that were taken and not answered.
    #[must_use]
    pub fn unanswered(&mut self, client: ClientId) -> usize {
        self.core.unanswered(client)
    }

    /// The descriptor that a client sent before it made the request that asks for this.
    pub fn take_descriptor(&mut self, client: ClientId) -> Option<OwnedFd> {
        if !self.core.is_served(client) {
            return None;
        }
        // Wakeups may be before it in the socket: no more than an honest client is ahead by.
        for _ in 0..DESCRIPTOR_READS_MAX {
            if let Some(fd) = self.sockets.take_descriptor(client.slot) {
                return Some(fd);
            }
            match self.sockets.read(client.slot) {
                Datagram::Descriptor => {}
                Datagram::Wakeup => self.core.woken(client),
                Datagram::Foreign | Datagram::Nothing | Datagram::End => return None,
            }
        }
        None
    }

    /// Counters of what the server did, from its start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let stats = self.core.stats();
        Stats { rejections: stats.rejections.and(self.acceptor.rejections()), ..stats }
    }

    /// Differs between any two servers that ever listened at the path.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.core.server_generation()
    }
}

impl AsFd for Server {
    /// Readable when there is something to do, if [`Server::arm`] said so.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.core.is_forked() {
            self.acceptor.forget();
        } else {
            self.core.abandon_introduced();
        }
    }
}

/// Memory for all clients of a server, sealed so that none can cut it off, and that none writes the
/// sleep flag.
fn shared_memory(config: &ServerConfig) -> Result<ServerMemory, BindError> {
    let wakeup_bits = Region::memfd("copyrpc-wakeups", wakeup::bits_bytes(config.clients_max))?;
    wakeup_bits.seal_size()?;
    let sleep_flag = Region::memfd("copyrpc-sleep-flag", SLEEP_FLAG_BYTES)?;
    sleep_flag.seal_future_write()?;
    Ok(ServerMemory { wakeup_bits: Arc::new(wakeup_bits), sleep_flag: Arc::new(sleep_flag) })
}
