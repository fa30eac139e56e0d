//! The server without an operating system: which sessions are polled, how many requests each may have
//! taken, whom to wake. Memory and time are given to it; what a driver is to do comes out as
//! [`Notice`]s.

use std::{collections::VecDeque, sync::Arc};

use memory::{MapError, Region};
use os::clock;

use crate::{
    endpoint::{
        fork::ForkGuard,
        half::{EAGER_BYTES_MAX, HalfShape},
        handshake::Welcome,
        memory::{ClientMemory, ServerMemory},
        server::{
            call_table::Taken,
            config::{ConfigError, ServerConfig},
            id::{ClientId, RequestId},
            large::LargeCopies,
            replies::Replies,
            request::{LentRequest, OpenRequest},
            session_table::SessionTable,
            stats::Stats,
        },
        status::EvictReason,
    },
    wakeup,
};

/// Turns in a row without a request after which a client is no longer polled.
const POLLED_TURNS: u32 = 512;

/// A request takes one more place of its client's turn for each so many bytes.
const LONG_BYTES: usize = 512;

/// Turns after which responses are announced with a barrier.
const FLUSH_TURNS: u32 = 8;

/// Turns or requests between two looks at the clock.
const CLOCK_STEPS: u32 = 32;

/// Time between two rounds of housekeeping.
const HOUSEKEEPING_INTERVAL_NS: u64 = 500_000;

/// Time between two looks at the rings of all clients: bounds what a cleared bit can cost.
pub(crate) const SWEEP_INTERVAL_NS: u64 = 100_000_000;

/// A task for the driver of a [`ServerCore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Send a wakeup to the client in this slot: it sleeps, and has responses.
    Wake(u16),
    /// End the connection to the client that was in this slot: it was evicted. Comes before the slot
    /// is given to another client if the driver takes all notices before it admits one.
    Disconnect(u16),
}

/// Takes requests of clients and gives answers, one turn at a time, over any memory and in any time.
///
/// The driver calls [`take`](Self::take) until there is nothing more in this turn, then
/// [`tick`](Self::tick) if [`is_clock_due`](Self::is_clock_due), and does what
/// [`next_notice`](Self::next_notice) says. [`Server`](crate::Server) drives it over memfds and sockets.
#[derive(Debug)]
pub struct ServerCore {
    pub(super) replies: Replies,
    /// Slots of the clients that are polled.
    pub(super) polled: Vec<u16>,
    notices: VecDeque<Notice>,
    /// Slots of clients whose sessions end once what was taken of them is answered.
    pub(super) retiring: Vec<u16>,
    /// Private copy of the latest request.
    copy: Box<[u8]>,
    pub(crate) copies: LargeCopies,
    /// Index into `polled` of the client whose turn it is.
    pub(super) cursor: usize,
    /// Most requests taken of one client in a turn.
    pub(super) turn_budget: u32,
    /// Requests that this client may still send in this turn.
    pub(super) budget: u32,
    /// Wider than `budget`, lest the compiler load both at once: see `CallTable`.
    turn_requests: u64,
    /// Whether the latest turn had requests.
    was_busy: bool,
    /// Turns with and, in a row, without requests since responses wait to be announced.
    busy_turns: u32,
    empty_turns: u32,
    steps: u32,
    housekept_ns: u64,
    swept_ns: u64,
}

impl ServerCore {
    /// A server without clients. `generations` are the one that clients are counted from, and the
    /// server's own.
    pub(crate) fn new(
        config: ServerConfig,
        memory: ServerMemory,
        generations: (u64, u64),
        fork: ForkGuard,
    ) -> Result<Self, ConfigError> {
        let table = SessionTable::new(config, memory, generations, fork)?;
        Ok(Self {
            replies: Replies::new(table),
            polled: Vec::with_capacity(usize::from(config.clients_max)),
            notices: VecDeque::new(),
            retiring: Vec::new(),
            copy: vec![0; EAGER_BYTES_MAX.min(config.request_bytes_max as usize)].into(),
            copies: LargeCopies::default(),
            cursor: 0,
            turn_budget: config.turn_budget,
            budget: config.turn_budget,
            turn_requests: 0,
            was_busy: false,
            busy_turns: 0,
            empty_turns: 0,
            steps: 0,
            housekept_ns: 0,
            swept_ns: 0,
        })
    }

    /// A server without clients, in memory of this process: for simulators and tests.
    ///
    /// # Errors
    ///
    /// [`HeapError`].
    pub fn on_heap(config: ServerConfig) -> Result<Self, HeapError> {
        config.check()?;
        let memory = ServerMemory::on_heap(config.clients_max)?;
        Ok(Self::new(config, memory, (0, 1), ForkGuard::unguarded())?)
    }

    // Requests

    /// The next request, or `None` at the end of a turn.
    #[inline]
    pub fn take(&mut self) -> Option<OpenRequest<'_>> {
        let taken = self.next::<false>()?;
        Some(self.open(taken))
    }

    /// Lends the request that [`next`](Self::next) took.
    #[inline]
    pub(crate) fn open(&mut self, (id, len_bytes): (RequestId, usize)) -> OpenRequest<'_> {
        self.replies.stats.requests += 1;
        crate::pause::at("request.taken");
        let payload = if HalfShape::is_large(len_bytes) {
            self.copies.latest()
        } else {
            &self.copy[..len_bytes]
        };
        OpenRequest { id, payload, replies: &mut self.replies }
    }

    /// Lends the request that [`next`](Self::next) took, where it lies if it was left there.
    #[inline]
    pub(crate) fn open_lent(&mut self, taken: (RequestId, usize)) -> LentRequest<'_> {
        let (id, len_bytes) = taken;
        if HalfShape::is_bulk(len_bytes) {
            return LentRequest::of_bulk(id, len_bytes, self.open((id, 0)).replies);
        }
        let OpenRequest { payload, replies, .. } = self.open(taken);
        LentRequest::new(id, payload.into(), replies)
    }

    /// Takes the next request of this turn; returns its length, too. If `LENDS`, bulk requests are left where
    /// they lie, for [`open_lent`](Self::open_lent).
    #[inline(always)]
    pub(crate) fn next<const LENDS: bool>(&mut self) -> Option<(RequestId, usize)> {
        let turn_budget = self.turn_budget;
        if self.cursor == 0 && self.budget == turn_budget && !self.begin() {
            return None;
        }
        while let Some(&slot) = self.polled.get(self.cursor) {
            match self.take_of::<LENDS>(slot) {
                Ok(Some(taken)) => return Some(taken),
                Ok(None) => self.cursor += 1,
                Err(reason) => self.evict_slot(slot, reason),
            }
            self.budget = self.turn_budget;
        }
        // The client whose turn a pause cut short may have left: the next turn begins anew.
        self.budget = self.turn_budget;
        self.end();
        None
    }

    /// Takes one request of one client, if it has one and the budget for it.
    #[inline]
    fn take_of<const LENDS: bool>(
        &mut self,
        slot: u16,
    ) -> Result<Option<(RequestId, usize)>, EvictReason> {
        let turn_budget = self.turn_budget;
        let Some(session) = self.replies.table.sessions[usize::from(slot)].as_deref_mut() else {
            return Ok(None);
        };
        if self.budget == 0 {
            return Ok(None);
        }
        let Some(taken) = session.calls.take_or_lend::<LENDS>(&mut self.copy, &mut self.copies)?
        else {
            if session.calls.is_copying() {
                // A piece of a large request is work, and enough for a turn.
                session.empty_turns = 0;
                self.turn_requests += 1;
            } else if session.calls.take_refusal() {
                session.empty_turns = 0;
                self.turn_requests += 1;
                session.mark_unannounced(slot, &mut self.replies.unannounced);
                self.replies.stats.requests += 1;
                self.replies.stats.responses += 1;
            } else if self.budget == turn_budget {
                session.empty_turns += 1;
            }
            return Ok(None);
        };
        session.empty_turns = 0;
        // A long request takes the place of several.
        let places = 1 + u32::try_from(taken.len_bytes / LONG_BYTES).unwrap_or(u32::MAX - 1);
        self.budget = self.budget.saturating_sub(places);
        self.turn_requests += 1;
        let client = ClientId { slot, generation: session.generation };
        let Taken { call, serial, len_bytes } = taken;
        Ok(Some((RequestId { client, call, serial }, len_bytes)))
    }

    /// Begins a turn: whose rings to look at. `false` in a forked child, which must not serve.
    #[inline]
    fn begin(&mut self) -> bool {
        if self.is_forked() {
            return false;
        }
        for word in 0..usize::from(self.replies.table.config().clients_max).div_ceil(64) {
            let bits = self.replies.table.take_bits(word);
            if bits != 0 {
                self.take_hints(word, bits);
            }
        }
        true
    }

    #[cold]
    fn take_hints(&mut self, word: usize, mut bits: u64) {
        while bits != 0 {
            let slot = word * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if let Ok(slot) = u16::try_from(slot) {
                self.promote(slot);
            }
        }
    }

    /// Polls a client from now on, if there is one.
    fn promote(&mut self, slot: u16) {
        let sessions = &mut self.replies.table.sessions;
        let session = sessions.get_mut(usize::from(slot)).and_then(Option::as_mut);
        if let Some(session) = session.filter(|it| !it.is_polled && !it.is_retired) {
            session.is_polled = true;
            session.empty_turns = 0;
            session.calls.polled_flag().promote();
            self.polled.push(slot);
        }
    }

    /// Ends a turn: announces responses, and counts towards the next look at the clock.
    #[inline]
    pub(super) fn end(&mut self) {
        self.cursor = 0;
        if !self.retiring.is_empty() {
            self.end_retired();
        }
        let requests = core::mem::take(&mut self.turn_requests);
        self.was_busy = requests > 0;
        if !self.replies.unannounced.is_empty() {
            self.flush_soon(requests > 0);
        }
        self.steps = self.steps.saturating_add(1 + u32::try_from(requests).unwrap_or(u32::MAX - 1));
    }

    /// Whether the latest turn had requests.
    #[inline]
    #[must_use]
    pub fn was_busy(&self) -> bool {
        self.was_busy
    }

    /// Most requests taken of one client in a turn, from the next turn on: at most as many as configured.
    pub fn set_turn_budget(&mut self, requests: u32) {
        // Between two turns alone: the budget of the first client says that none was looked at yet.
        if self.cursor == 0 && self.budget == self.turn_budget {
            self.turn_budget = requests.clamp(1, self.replies.table.config().turn_budget);
            self.budget = self.turn_budget;
        }
    }

    /// Answers requests by their ids.
    #[inline]
    pub fn replies(&mut self) -> &mut Replies {
        &mut self.replies
    }

    // Announcements

    /// Wakes clients that are known to sleep at once, and looks with a barrier a few turns later.
    #[inline]
    fn flush_soon(&mut self, is_busy: bool) {
        if is_busy {
            self.busy_turns += 1;
            self.empty_turns = 0;
            for &slot in &self.replies.unannounced {
                if let Some(session) = &mut self.replies.table.sessions[usize::from(slot)]
                    && session.needs_wakeup()
                {
                    self.notices.push_back(Notice::Wake(slot));
                }
            }
        } else {
            self.empty_turns += 1;
        }
        if self.busy_turns >= FLUSH_TURNS || self.empty_turns >= FLUSH_TURNS {
            self.flush();
        }
    }

    /// Wakes clients that sleep and have responses.
    #[inline]
    fn flush(&mut self) {
        (self.busy_turns, self.empty_turns) = (0, 0);
        if self.replies.unannounced.is_empty() {
            return;
        }
        wakeup::after_responses();
        for slot in self.replies.unannounced.drain(..) {
            if let Some(session) = &mut self.replies.table.sessions[usize::from(slot)] {
                session.is_unannounced = false;
                if session.needs_wakeup() {
                    self.notices.push_back(Notice::Wake(slot));
                }
            }
        }
    }

    /// The driver's next task, if any.
    #[inline]
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    // Time

    /// Whether so much was done that the driver is to [`tick`](Self::tick).
    #[inline]
    #[must_use]
    pub fn is_clock_due(&self) -> bool {
        self.steps >= CLOCK_STEPS
    }

    /// Time may have passed: the next turn makes the clock due.
    #[inline]
    pub fn hurry_clock(&mut self) {
        self.steps = CLOCK_STEPS;
    }

    /// Stops polling clients that have been quiet; `true` if it is time to
    /// [`housekeep`](Self::housekeep).
    pub fn tick(&mut self, now_ns: u64) -> bool {
        self.steps = 0;
        self.demote_quiet();
        now_ns.saturating_sub(self.housekept_ns) >= HOUSEKEEPING_INTERVAL_NS
    }

    /// Stops polling clients that have been quiet.
    fn demote_quiet(&mut self) {
        let sessions = &mut self.replies.table.sessions;
        self.polled.retain(|slot| {
            let Some(session) = sessions[usize::from(*slot)].as_deref_mut() else { return false };
            if session.empty_turns < POLLED_TURNS {
                return true;
            }
            session.calls.polled_flag().demote();
            session.is_polled = session.calls.has_request();
            if session.is_polled {
                session.calls.polled_flag().promote();
                session.empty_turns = 0;
            }
            session.is_polled
        });
    }

    /// Answers requests whose tokens were dropped, evicts clients that do not read, finds requests
    /// whose wakeup was lost, and announces responses.
    pub fn housekeep(&mut self, now_ns: u64) {
        self.replies.answer_dropped();
        self.housekept_ns = now_ns;
        if now_ns.saturating_sub(self.swept_ns) >= SWEEP_INTERVAL_NS {
            self.swept_ns = now_ns;
            self.sweep(now_ns);
        }
        self.flush();
    }

    /// Looks at the rings of clients that are not polled, in case a wakeup was lost, and for clients
    /// that do not read.
    fn sweep(&mut self, now_ns: u64) {
        let stall_timeout_ns = clock::duration_ns(self.replies.table.config().stall_timeout);
        for slot in 0..self.replies.table.config().clients_max {
            let session = self.replies.table.sessions[usize::from(slot)].as_deref_mut();
            let Some(session) = session else { continue };
            if session.stalled_ns(now_ns) > stall_timeout_ns {
                self.evict_slot(slot, EvictReason::Stalled);
            } else if !session.is_polled && !session.is_retired && session.calls.has_request() {
                self.replies.stats.missed_hints += 1;
                self.promote(slot);
            }
        }
    }

    // Sleep

    /// Before the driver sleeps: `true` if there is nothing to do now, so that a client that has
    /// something to do sends a wakeup. The driver takes all notices first, and ends the nap with
    /// [`wake_up`](Self::wake_up).
    pub fn arm(&mut self) -> bool {
        if self.is_forked() {
            return false;
        }
        self.replies.answer_dropped();
        self.flush();
        for slot in core::mem::take(&mut self.polled) {
            let session = self.replies.table.sessions[usize::from(slot)].as_deref_mut();
            let Some(session) = session else { continue };
            session.calls.polled_flag().demote();
            session.is_polled = false;
            if session.calls.has_request() {
                self.promote(slot);
            }
        }
        self.replies.table.asleep().fall_asleep();
        self.polled.is_empty() && !self.replies.table.has_bits()
    }

    /// Ends the nap that [`arm`](Self::arm) began.
    pub fn wake_up(&mut self) {
        self.replies.table.asleep().wake_up();
    }

    // Clients

    /// Bytes of the up and of the down half of each client.
    #[must_use]
    pub fn half_bytes(&self) -> (usize, usize) {
        self.replies.table.half_bytes()
    }

    /// As [`half_bytes`](Self::half_bytes), of what is allocated from the start.
    pub(crate) fn eager_bytes(&self) -> (usize, usize) {
        self.replies.table.eager_bytes()
    }

    /// Whether there is a slot for one more client.
    #[must_use]
    pub fn has_free(&self) -> bool {
        self.replies.table.has_free()
    }

    /// Gives a client with this memory a slot, and says what the client must be told; `None` if no slot
    /// is free.
    ///
    /// # Panics
    ///
    /// If a half is shorter than [`half_bytes`](Self::half_bytes).
    pub fn admit(&mut self, up: Arc<Region>, down: Arc<Region>) -> Option<(ClientId, Welcome)> {
        self.replies.table.admit(up, down)
    }

    /// As [`admit`](Self::admit), with memory of this process.
    ///
    /// # Errors
    ///
    /// [`MapError`].
    pub fn admit_on_heap(&mut self) -> Result<Option<(ClientId, Welcome, ClientMemory)>, MapError> {
        let (up_bytes, down_bytes) = self.half_bytes();
        let (up, down) = (Region::heap(up_bytes)?, Region::heap(down_bytes)?);
        let (up, down) = (Arc::new(up), Arc::new(down));
        let admitted = self.admit(Arc::clone(&up), Arc::clone(&down));
        let server = self.memory().clone();
        Ok(admitted.map(|(client, welcome)| (client, welcome, ClientMemory { up, down, server })))
    }

    /// A client sent a wakeup; it is evicted if it sends more of them than it has reasons for.
    pub fn woken(&mut self, client: ClientId) {
        let Some(session) = self.replies.table.session(client) else { return };
        match session.count_wakeup() {
            Ok(()) => self.promote(client.slot),
            Err(reason) => self.evict_slot(client.slot, reason),
        }
    }

    /// A client left or died. Its slot is free.
    pub fn departed(&mut self, client: ClientId) {
        if self.replies.table.session(client).is_some() {
            self.replies.stats.departed += 1;
            self.remove(client.slot);
        }
    }

    /// Evicts a client, which can read the reason.
    pub fn evict(&mut self, client: ClientId, reason: EvictReason) {
        if self.replies.table.session(client).is_some() {
            self.evict_slot(client.slot, reason);
        }
    }

    #[cold]
    pub(super) fn evict_slot(&mut self, slot: u16, reason: EvictReason) {
        if let Some(session) = &self.replies.table.sessions[usize::from(slot)] {
            session.calls.write_eviction(reason);
            self.replies.stats.evicted += 1;
            self.remove(slot);
            // The end of its connection wakes the client, which reads the reason.
            self.notices.push_back(Notice::Disconnect(slot));
        }
    }

    /// Takes back a client that could not be told of its admission, or is gone.
    pub(crate) fn remove(&mut self, slot: u16) {
        if let Some(session) = &mut self.replies.table.sessions[usize::from(slot)] {
            session.calls.end_copying(&mut self.copies);
        }
        self.replies.table.remove(slot);
        self.polled.retain(|polled| *polled != slot);
        self.replies.unannounced.retain(|unannounced| *unannounced != slot);
        self.notices.retain(|notice| *notice != Notice::Wake(slot));
    }

    /// Clients that are connected.
    pub fn clients(&self) -> impl Iterator<Item = ClientId> {
        let sessions = self.replies.table.sessions.iter().zip(0u16..);
        sessions.filter_map(|(session, slot)| {
            Some(ClientId { slot, generation: session.as_ref()?.generation })
        })
    }

    /// Whether a client is connected, to this process and not to its parent.
    pub fn is_served(&self, client: ClientId) -> bool {
        !self.is_forked()
            && self.replies.table.generation_of(client.slot) == Some(client.generation)
    }

    /// Requests of a client that were taken and not answered.
    #[must_use]
    pub fn unanswered(&mut self, client: ClientId) -> usize {
        self.replies.table.session(client).map_or(0, |session| session.calls.unanswered())
    }

    /// Counters of what the server did, from its start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats { clients: self.replies.table.count(), ..self.replies.stats }
    }

    pub(crate) fn stats_mut(&mut self) -> &mut Stats {
        &mut self.replies.stats
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        self.replies.table.config()
    }

    /// Memory that this server shares with all of its clients.
    #[must_use]
    pub fn memory(&self) -> &ServerMemory {
        self.replies.table.memory()
    }

    /// Differs between any two servers that a client may take for each other.
    pub(crate) fn server_generation(&self) -> u64 {
        self.replies.table.server_generation()
    }

    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.replies.table.is_forked()
    }
}

/// Why there is no server in memory of this process.
#[derive(Debug, thiserror::Error)]
pub enum HeapError {
    /// The configuration is impossible.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no memory.
    #[error(transparent)]
    Map(#[from] MapError),
}
