//! The server's loop, one turn at a time.

use std::{
    os::fd::{AsFd, BorrowedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
    thread,
};

use os::clock;

use crate::{
    bell,
    poller::{Poller, Ready},
    server::{
        config::ServerConfig,
        door::BindError,
        entrance::Entrance,
        house::House,
        key::{Key, Kind as KeyKind},
        ledger::Taken,
        lobby::Lobby,
        stats::Stats,
        token::{ClientId, Dropped, ReplyError, Request, Token},
    },
    status::{EvictReason, Kind},
    wait::{Idle, Step, timeout_ns},
};

/// Turns in a row without a request after which a client is no longer polled.
const POLLED_TURNS: u32 = 512;

/// Turns after which responses are announced with a barrier.
const FLUSH_TURNS: u32 = 8;

/// Turns or requests between two looks at the clock.
const CLOCK_STEPS: u32 = 32;

/// Time between two looks at the descriptors, each a system call.
const SERVICE_INTERVAL_NS: u64 = 500_000;

/// Time between two looks at the rings of all clients: bounds what a cleared bit can cost.
const SWEEP_INTERVAL_NS: u64 = 100_000_000;

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
    house: House,
    entrance: Entrance,
    poller: Poller,
    /// Places of the clients that are polled.
    polled: Vec<u16>,
    /// Places of clients with responses that they were not told of.
    dirty: Vec<u16>,
    dropped: Arc<Dropped>,
    /// Private copy of the latest request.
    copy: Box<[u8]>,
    /// Index into `polled` of the client whose turn it is.
    cursor: usize,
    /// Requests that this client may still send in this turn.
    budget: u32,
    /// Wider than `budget`, lest the compiler load both at once: see `Ledger`.
    turn_requests: u64,
    /// Turns with and, in a row, without requests since somebody became dirty.
    busy_turns: u32,
    empty_turns: u32,
    steps: u32,
    serviced_ns: u64,
    swept_ns: u64,
    idle: Idle,
    stats: Stats,
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
        let lobbies = Lobby::team(count, &config)?.into_iter().enumerate();
        lobbies
            .map(|(number, lobby)| Self::open((number == 0).then_some(path), Some(lobby), config))
            .collect()
    }

    fn open(
        path: Option<&Path>,
        lobby: Option<Lobby>,
        config: ServerConfig,
    ) -> Result<Self, BindError> {
        let house = House::new(config)?;
        let poller =
            Poller::new().map_err(|source| BindError::Os { call: "epoll_create1", source })?;
        let entrance = Entrance::open(path, lobby, &poller)?;
        Ok(Self {
            house,
            entrance,
            poller,
            polled: Vec::with_capacity(usize::from(config.clients_max)),
            dirty: Vec::with_capacity(usize::from(config.clients_max)),
            dropped: Arc::default(),
            copy: vec![0; config.request_bytes_max as usize].into(),
            cursor: 0,
            budget: config.turn_budget,
            turn_requests: 0,
            busy_turns: 0,
            empty_turns: 0,
            steps: 0,
            serviced_ns: 0,
            swept_ns: 0,
            idle: Idle::default(),
            stats: Stats::default(),
        })
    }

    /// The next request, or `None` at the end of a turn; then call [`rest`](Self::rest).
    #[inline]
    pub fn recv(&mut self) -> Option<Request<'_>> {
        let (place, taken) = self.next()?;
        self.stats.requests += 1;
        crate::pause::at("request.taken");
        let session = self.house.sessions[usize::from(place)].as_deref_mut()?;
        Some(Request {
            payload: &self.copy[..taken.len_bytes],
            client: ClientId { place, generation: session.generation },
            taken,
            session,
            dirty: &mut self.dirty,
            stats: &mut self.stats,
            dropped: &self.dropped,
            is_answered: false,
        })
    }

    /// Takes the next request of this turn.
    #[inline]
    fn next(&mut self) -> Option<(u16, Taken)> {
        if self.cursor == 0 && self.budget == self.house.config().turn_budget && !self.begin() {
            return None;
        }
        while let Some(&place) = self.polled.get(self.cursor) {
            match self.take_of(place) {
                Ok(Some(taken)) => return Some((place, taken)),
                Ok(None) => self.cursor += 1,
                Err(reason) => self.expel(place, reason),
            }
            self.budget = self.house.config().turn_budget;
        }
        self.end();
        None
    }

    /// Takes one request of one client, if it has one and the budget for it.
    #[inline]
    fn take_of(&mut self, place: u16) -> Result<Option<Taken>, EvictReason> {
        let turn_budget = self.house.config().turn_budget;
        let Some(session) = self.house.sessions[usize::from(place)].as_deref_mut() else {
            return Ok(None);
        };
        if self.budget == 0 {
            return Ok(None);
        }
        let taken = session.ledger.take(&mut self.copy)?;
        if taken.is_some() {
            session.empty_turns = 0;
            self.budget -= 1;
            self.turn_requests += 1;
        } else if self.budget == turn_budget {
            session.empty_turns += 1;
        }
        Ok(taken)
    }

    /// Begins a turn: whose rings to look at. `false` in a forked child, which must not serve.
    #[inline]
    fn begin(&mut self) -> bool {
        if self.house.is_forked() {
            return false;
        }
        for word in 0..usize::from(self.house.config().clients_max).div_ceil(64) {
            let bits = self.house.bits(word);
            if bits != 0 {
                self.take_hints(word, bits);
            }
        }
        true
    }

    #[cold]
    fn take_hints(&mut self, word: usize, mut bits: u64) {
        while bits != 0 {
            let place = word * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if let Ok(place) = u16::try_from(place) {
                self.promote(place);
            }
        }
    }

    /// Polls a client from now on, if there is one.
    fn promote(&mut self, place: u16) {
        let session = self.house.sessions.get_mut(usize::from(place)).and_then(Option::as_mut);
        if let Some(session) = session.filter(|session| !session.is_polled) {
            session.is_polled = true;
            session.empty_turns = 0;
            session.ledger.attention().promote();
            self.polled.push(place);
        }
    }

    /// Ends a turn: tells clients, and sometimes looks at the clock.
    #[inline]
    fn end(&mut self) {
        self.cursor = 0;
        let requests = core::mem::take(&mut self.turn_requests);
        if requests > 0 {
            self.idle.reset();
        }
        if !self.dirty.is_empty() {
            self.flush_soon(requests > 0);
        }
        self.steps = self.steps.saturating_add(1 + u32::try_from(requests).unwrap_or(u32::MAX - 1));
        if self.steps >= CLOCK_STEPS {
            self.steps = 0;
            self.look_at_clock();
        }
    }

    /// Tells clients that are known to sleep at once, and looks with a barrier a few turns later.
    #[inline]
    fn flush_soon(&mut self, is_busy: bool) {
        if is_busy {
            self.busy_turns += 1;
            self.empty_turns = 0;
            for place in &self.dirty {
                if let Some(session) = &mut self.house.sessions[usize::from(*place)] {
                    session.tell();
                }
            }
        } else {
            self.empty_turns += 1;
        }
        if self.busy_turns >= FLUSH_TURNS || self.empty_turns >= FLUSH_TURNS {
            self.flush();
        }
    }

    /// Tells clients that sleep that they have responses.
    #[inline]
    fn flush(&mut self) {
        (self.busy_turns, self.empty_turns) = (0, 0);
        if self.dirty.is_empty() {
            return;
        }
        bell::after_responses();
        for place in self.dirty.drain(..) {
            if let Some(session) = &mut self.house.sessions[usize::from(place)] {
                session.is_dirty = false;
                session.tell();
            }
        }
    }

    fn look_at_clock(&mut self) {
        self.demote_quiet();
        let now_ns = clock::now_ns();
        if now_ns.saturating_sub(self.serviced_ns) >= SERVICE_INTERVAL_NS {
            self.service(0);
        }
    }

    /// Stops polling clients that have been quiet.
    fn demote_quiet(&mut self) {
        let sessions = &mut self.house.sessions;
        self.polled.retain(|place| {
            let Some(session) = sessions[usize::from(*place)].as_deref_mut() else { return false };
            if session.empty_turns < POLLED_TURNS {
                return true;
            }
            session.ledger.attention().demote();
            session.is_polled = session.ledger.has_request();
            if session.is_polled {
                session.ledger.attention().promote();
                session.empty_turns = 0;
            }
            session.is_polled
        });
    }

    /// Waits for and handles what the kernel has to say, then what time has brought.
    #[cold]
    fn service(&mut self, timeout_ns: u64) {
        for ready in self.poller.wait(timeout_ns) {
            self.handle(ready);
        }
        self.answer_dropped();
        let now_ns = clock::now_ns();
        self.serviced_ns = now_ns;
        self.entrance.expire(now_ns, &self.poller);
        if now_ns.saturating_sub(self.swept_ns) >= SWEEP_INTERVAL_NS {
            self.swept_ns = now_ns;
            self.sweep(now_ns);
        }
        self.flush();
    }

    /// Answers requests whose tokens were dropped.
    fn answer_dropped(&mut self) {
        for id in self.dropped.take() {
            self.stats.unanswered += 1;
            // Gone clients need no answer.
            let _ = self.answer(id, Kind::NotAnswered, &[]);
        }
    }

    fn handle(&mut self, ready: Ready) {
        let key = Key::from_word(ready.key);
        let client = ClientId { place: key.place, generation: key.generation };
        match key.kind {
            KeyKind::Listener => {
                self.entrance.accept(key, &mut self.house, &self.poller, &mut self.stats);
            }
            KeyKind::Pending => {
                let Self { entrance, house, poller, stats, .. } = self;
                entrance.greet(key.generation, house, poller, stats);
            }
            KeyKind::Process => self.depart(client),
            KeyKind::Socket => {
                let Some(session) = self.house.session(client) else { return };
                match session.drain() {
                    Ok(true) if !ready.hung_up => self.promote(client.place),
                    Ok(_) => self.depart(client),
                    Err(reason) => self.expel(client.place, reason),
                }
            }
        }
    }

    fn depart(&mut self, client: ClientId) {
        if self.house.session(client).is_some() {
            self.stats.departed += 1;
            self.remove(client.place);
        }
    }

    #[cold]
    fn expel(&mut self, place: u16, reason: EvictReason) {
        if let Some(session) = &self.house.sessions[usize::from(place)] {
            session.ledger.write_eviction(reason);
            self.stats.evicted += 1;
            // The end of its connection wakes the client, which reads why.
            self.remove(place);
        }
    }

    fn remove(&mut self, place: u16) {
        let left = self.house.remove(place, &self.poller);
        if let Some(uid) = left {
            self.entrance.left(uid);
        }
        self.polled.retain(|polled| *polled != place);
        self.dirty.retain(|dirty| *dirty != place);
    }

    /// Looks at the rings of clients that are not polled, in case a hint was lost, and for clients
    /// that do not read.
    fn sweep(&mut self, now_ns: u64) {
        let stall_timeout_ns = timeout_ns(self.house.config().stall_timeout);
        for place in 0..self.house.config().clients_max {
            let Some(session) = self.house.sessions[usize::from(place)].as_deref_mut() else {
                continue;
            };
            if session.stalled_ns(now_ns) > stall_timeout_ns {
                self.expel(place, EvictReason::Stalled);
            } else if !session.is_polled && session.ledger.has_request() {
                self.stats.missed_hints += 1;
                self.promote(place);
            }
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
            self.stats.panics += u64::from(panicked);
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
    pub fn reply(&mut self, token: Token, response: &[u8]) -> Result<(), ReplyError> {
        let max_bytes = self.house.config().response_bytes_max as usize;
        if response.len() > max_bytes {
            self.redeem(token, Kind::TooLarge, &[])?;
            return Err(ReplyError::TooLarge { len_bytes: response.len(), max_bytes });
        }
        self.redeem(token, Kind::Ok, response)
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
    pub fn reply_error(&mut self, token: Token, code: u32) -> Result<(), ReplyError> {
        self.redeem(token, Kind::HandlerError, &code.to_le_bytes())
    }

    fn redeem(&mut self, token: Token, kind: Kind, message: &[u8]) -> Result<(), ReplyError> {
        assert!(token.is_of(&self.dropped), "a token is answered by the server that gave it");
        self.answer(token.redeem(), kind, message)
    }

    fn answer(
        &mut self,
        id: crate::server::token::RequestId,
        kind: Kind,
        message: &[u8],
    ) -> Result<(), ReplyError> {
        let session = self.house.session(id.client).ok_or(ReplyError::ClientGone)?;
        let answered = session.answer(id.call, id.serial, kind, message);
        answered.map_err(|_| ReplyError::ClientGone)?;
        session.mark_dirty(id.client.place, &mut self.dirty);
        self.stats.responses += 1;
        Ok(())
    }

    /// After a turn: spins, yields or sleeps as configured if it was empty, at most until a
    /// deadline in nanoseconds of `CLOCK_MONOTONIC`. Returns at once if there was something to do.
    #[inline]
    pub fn rest(&mut self, deadline_ns: u64) {
        if self.house.is_forked() {
            return thread::yield_now();
        }
        match self.idle.step(self.house.config().wait) {
            Step::Spun => {}
            Step::Yielded => self.steps = CLOCK_STEPS,
            Step::Sleep => self.sleep(deadline_ns),
        }
    }

    #[cold]
    fn sleep(&mut self, deadline_ns: u64) {
        if self.arm() {
            self.stats.sleeps += 1;
            let timeout_ns = deadline_ns.saturating_sub(clock::now_ns());
            self.service(timeout_ns.min(SWEEP_INTERVAL_NS));
        }
        self.house.asleep().wake_up();
    }

    /// Before waiting for the descriptor of [`AsFd`] by other means: `true` if there is nothing to
    /// do now, so that the descriptor will become readable. Wait for at most 100 ms, then call
    /// [`service_now`](Self::service_now).
    pub fn arm(&mut self) -> bool {
        if self.house.is_forked() {
            return false;
        }
        self.answer_dropped();
        self.flush();
        for place in core::mem::take(&mut self.polled) {
            let Some(session) = self.house.sessions[usize::from(place)].as_deref_mut() else {
                continue;
            };
            session.ledger.attention().demote();
            session.is_polled = false;
            if session.ledger.has_request() {
                self.promote(place);
            }
        }
        self.house.asleep().fall_asleep();
        self.polled.is_empty() && !self.house.has_bits()
    }

    /// Handles what made the descriptor readable, and ends the nap that [`arm`](Self::arm) began.
    pub fn service_now(&mut self) {
        if self.house.is_forked() {
            return;
        }
        self.house.asleep().wake_up();
        self.service(0);
    }

    /// Evicts a client, which can read the reason.
    pub fn evict(&mut self, client: ClientId) {
        if self.house.session(client).is_some() {
            self.expel(client.place, EvictReason::Operator);
        }
    }

    /// Clients that are connected.
    pub fn clients(&self) -> impl Iterator<Item = ClientId> {
        let sessions = self.house.sessions.iter().zip(0u16..);
        sessions.filter_map(|(session, place)| {
            Some(ClientId { place, generation: session.as_ref()?.generation })
        })
    }

    /// Requests of a client that were taken and not answered.
    #[must_use]
    pub fn unanswered(&mut self, client: ClientId) -> usize {
        self.house.session(client).map_or(0, |session| session.ledger.unanswered())
    }

    /// Process id of a client, by the kernel.
    #[must_use]
    pub fn client_pid(&mut self, client: ClientId) -> Option<u32> {
        Some(self.house.session(client)?.connection.peer_credentials().pid)
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let refused = self.stats.refused + self.entrance.turned_away();
        Stats { clients: self.house.count(), refused, ..self.stats }
    }

    /// Differs between any two servers that ever listened at the path.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.house.server_generation()
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
        if self.house.is_forked() {
            self.entrance.forget();
        }
    }
}
