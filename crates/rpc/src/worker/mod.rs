//! The worker: what one thread uses to call and to serve.
//!
//! [`Worker`] is made of parts that know nothing of each other, each in its module:
//!
//! | part | owns |
//! |---|---|
//! | [`SendSide`] | send queues, their completions and doorbells, memory of peers that are gone |
//! | [`ReceiveSide`] | receives, announcements that came early, the batch in hand |
//! | [`PeerTable`] | peers, and the lists of those that are to be looked at |
//! | [`Transfers`] | READs and WRITEs of large bodies and one-sided access |
//! | [`Notices`] | what the handler is to be told |
//! | [`Timers`] | the time, and what is due by it |
//! | [`Resources`] | the NIC, and how queue pairs and memory are made |
//!
//! The other modules are what the worker does with them: `commands`, `leases`, `access` and `connect` for
//! the program; `poll`, `dispatch`, `completions`, `flush` and `upkeep` inside [`Worker::poll`].

mod access;
mod commands;
mod completions;
mod connect;
mod dispatch;
mod flush;
mod in_flight;
mod leases;
mod notices;
mod partial_bodies;
mod peers;
mod poll;
mod receive;
mod resources;
mod send;
mod spares;
mod stats;
mod timers;
mod transfers;
mod upkeep;
mod window;

use std::{rc::Rc, time::Duration};

use proto::copyrpc::{Connection, Counters};
use verbs::{Access, ArmError, Channel as _, Nic};

use crate::{
    Config, NicFailure, OpenError, PeerId,
    mirrors::Mirrors,
    partial_calls::EndedCalls,
    peer::{Live, Peer},
    pool::{Budget, LargeMemory, Pool},
    token::DroppedTokens,
};

use notices::Notices;
use peers::PeerTable;
use receive::ReceiveSide;
use resources::Resources;
use send::SendSide;
pub use stats::{BodyStats, Stats};
use timers::{Keepalive, Timers};
use transfers::Transfers;
use window::SendWindow;

/// A call to be made.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Number of the method, whose meaning is the handler's business.
    pub method: u16,
    /// Longest response that is to come through the ring: so much of it is set aside.
    pub response_bytes: usize,
    /// The deadline, counted from the last poll.
    pub timeout: Duration,
    /// Comes back with the response.
    pub cookie: u64,
    /// The caller that a body is counted for which goes by rendezvous; `None`: the peer.
    pub caller: Option<u64>,
}

impl Default for Call {
    /// Method 0, a response of up to 232 bytes, 5 seconds.
    fn default() -> Self {
        let timeout = Duration::from_secs(5);
        Self { method: 0, response_bytes: 232, timeout, cookie: 0, caller: None }
    }
}

/// Calls and serves on one thread. See the [crate documentation](crate).
pub struct Worker<N: Nic> {
    // Dropped in this order: queue pairs before the memory that they use.
    send: SendSide<N>,
    receive: ReceiveSide<N>,
    peers: PeerTable<N>,
    transfers: Transfers<N>,
    /// Where bodies of peers are read to: of no remote rights, so no peer has a key of it.
    landing: Pool<N>,
    /// Of all memory for bodies.
    budget: Rc<Budget>,
    mirrors: Mirrors<N>,
    tokens: DroppedTokens,
    begun_calls: EndedCalls,
    notices: Notices,
    timers: Timers,
    /// `None`: the policy has none.
    window: Option<SendWindow>,
    keepalive: Keepalive,
    stats: Stats,
    is_polling: bool,
    nic_failure: Option<NicFailure>,
    resources: Resources<N>,
}

impl<N: Nic> Worker<N> {
    /// A worker without peers. `now_ns` is of the clock that polls will be told.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(nic: N, config: Config, now_ns: u64) -> Result<Self, OpenError> {
        let resources = Resources::open(nic, config)?;
        let config = resources.config();
        let budget = Budget::new(config);
        let send = SendSide::new(config.send_queues(), resources.create_send_cq()?);
        let mut worker = Self {
            send,
            receive: resources.create_receive_side()?,
            peers: PeerTable::new(config.peers_max),
            transfers: Transfers::new(),
            landing: Pool::new(config.access(Access::LOCAL_WRITE), &budget),
            budget,
            mirrors: Mirrors::new(config.peers_max),
            tokens: DroppedTokens::default(),
            begun_calls: EndedCalls::default(),
            notices: Notices::default(),
            timers: Timers::new(now_ns),
            window: SendWindow::new(config.flush, now_ns),
            keepalive: Keepalive::new(config.keepalive, now_ns),
            stats: Stats::default(),
            is_polling: false,
            nic_failure: None,
            resources,
        };
        if worker.resources.is_dc() {
            let initiators = worker.resources.config().dcis;
            (0..initiators).try_for_each(|index| worker.open_initiator::<OpenError>(index))?;
        }
        Ok(worker)
    }

    /// The worker's counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats { bodies: self.transfers.stats, ..self.stats }
    }

    /// The worker's settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.resources.config()
    }

    /// The NIC that it uses.
    #[must_use]
    pub fn nic(&self) -> &N {
        self.resources.nic()
    }

    /// What the NIC said after which the worker is of no more use: calls end at their deadlines, and no
    /// new connection works. It is to be dropped, and another one opened.
    #[must_use]
    pub fn nic_failure(&self) -> Option<NicFailure> {
        self.nic_failure
    }

    /// Counters of the connection to a peer; `None`: there is no connection.
    #[must_use]
    pub fn counters(&self, peer: PeerId) -> Option<Counters> {
        self.peers.connection(peer).map(Connection::counters)
    }

    /// Whether calls can be made to a peer.
    #[must_use]
    pub fn is_connected(&self, peer: PeerId) -> bool {
        self.peers.connection(peer).is_some()
    }

    /// Memory for bodies that go by rendezvous, now.
    #[must_use]
    pub fn large_memory(&self) -> LargeMemory {
        self.budget.memory()
    }

    /// Whether memory for bodies was given back since this was asked last: a call that found
    /// [none](crate::CallError::NoMemory) may be made again.
    pub fn take_freed_memory(&mut self) -> bool {
        self.budget.take_freed()
    }

    /// Peers that are connected or invited.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Tells the counters of connections that did something since the last time that this was called, and
    /// perhaps of some others.
    pub fn visit_active(&mut self, visit: impl FnMut(PeerId, Counters)) {
        self.peers.visit_active(visit);
    }

    /// Time of the last poll.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.timers.now_ns()
    }

    /// Looks at a clock between two polls.
    pub(crate) fn observe(&mut self, now_ns: u64) {
        self.timers.observe(now_ns);
    }

    #[inline]
    fn peer(&mut self, id: PeerId) -> Option<&mut Peer<N>> {
        self.peers.get(id)
    }

    #[inline]
    fn live(&mut self, id: PeerId) -> Option<&mut Live<N>> {
        self.peers.live(id)
    }

    // Sleeping

    /// Makes [`channel`](Self::channel) readable when something arrives. Poll once more after it,
    /// then sleep.
    ///
    /// # Errors
    ///
    /// [`ArmError`]: [`Config::may_sleep`] is off.
    pub fn arm(&mut self) -> Result<(), ArmError> {
        self.receive.arm()?;
        self.send.arm()
    }

    /// The completion channel to sleep on; `None`: [`Config::may_sleep`] is off.
    #[must_use]
    pub fn channel(&self) -> Option<&N::Channel> {
        self.resources.channel()
    }

    /// Posts what is due, then sleeps until something arrives, at most for `timeout`, and not past the
    /// next thing that is due by time. Poll afterwards. Returns whether something arrived.
    ///
    /// # Errors
    ///
    /// [`ArmError`]: [`Config::may_sleep`] is off.
    pub fn sleep(&mut self, timeout: Duration) -> Result<bool, ArmError> {
        self.flush();
        self.arm()?;
        let now_ns = self.now_ns();
        let left_ns = self.wake_ns().map_or(u64::MAX, |due_ns| due_ns.saturating_sub(now_ns));
        let due = timeout.min(Duration::from_nanos(left_ns));
        let timeout = self.nic().poll_timeout().map_or(due, |nic| due.min(nic));
        Ok(self.channel().is_some_and(|channel| channel.wait(timeout)))
    }

    /// The time of the next work if nothing arrives; `None`: there is none.
    #[must_use]
    pub fn wake_ns(&self) -> Option<u64> {
        let now_ns = self.now_ns();
        let is_idle = self.notices.is_empty()
            && self.receive.is_idle()
            && !self.transfers.has_arrivals()
            && self.transfers.ended_len() == 0
            && self.tokens.is_empty()
            && self.begun_calls.is_empty();
        if !is_idle {
            return Some(now_ns);
        }
        let connections = self.peers.timed_connections();
        let due_ns = connections.filter_map(|connection| connection.wake_ns(now_ns)).min();
        let probe_ns = self.keepalive.due_ns().filter(|_| self.peers.len() > 0);
        let has_memory =
            self.budget.memory().registered_bytes > 0 || !self.transfers.spares.is_empty();
        let release_ns = has_memory.then(|| self.timers.release_look_ns());
        let window = self.window.as_ref().filter(|_| self.peers.has_dirty());
        let stall_ns = window.and_then(|window| window.stalls_ns(self.send.unfinished()));
        [due_ns, probe_ns, release_ns, stall_ns].into_iter().flatten().min()
    }
}
