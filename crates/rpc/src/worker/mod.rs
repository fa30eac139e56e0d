//! The worker: what one thread uses to call and to serve.

mod agenda;
mod commands;
mod connect;
mod departures;
mod dispatch;
mod leases;
mod poll;
mod transfers;

use std::{
    collections::VecDeque,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use proto::{
    Status,
    copyrpc::{Connection, Counters, Geometry},
};
use verbs::{
    Arm, ArmError, Channel as _, Completion, CompletionQueue as _, CqConfig, DcKey, Nic, Transport,
};

use crate::{
    CloseReason, Config, OpenError, PeerId, TransportKind,
    peer::{Link, Live, Peer},
    queue::{Queue, QueueIndex},
    receives::SharedReceives,
    token::Dropped,
};

use agenda::Agenda;
pub(crate) use agenda::Marks;
use dispatch::Rest;
use transfers::Transfer;

/// A call to be made.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Which method; the handler's business.
    pub method: u16,
    /// Longest response that is to come through the ring: so much of it is set aside.
    pub response_bytes: usize,
    /// When it ends at the latest, counted from the last poll.
    pub timeout: Duration,
    /// Comes back with the response.
    pub cookie: u64,
}

impl Default for Call {
    /// Method 0, a response of up to 232 bytes, 5 seconds.
    fn default() -> Self {
        Self { method: 0, response_bytes: 232, timeout: Duration::from_secs(5), cookie: 0 }
    }
}

/// What a worker has seen besides what its connections count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Polls.
    pub polls: u64,
    /// Completions of receives.
    pub arrivals: u64,
    /// Immediates that name no connection, or not the one of their queue pair. Ignored.
    pub unknown_imms: u64,
    /// Connections closed because the peer broke the protocol.
    pub violations: u64,
    /// Connections that failed.
    pub failures: u64,
    /// Batches that found no space in the send queue, and were posted later.
    pub send_queue_full: u64,
    /// Requests that were answered because their tokens were dropped, by panics too.
    pub tokens_dropped: u64,
}

/// A place for a peer.
struct Place<N: Nic> {
    generation: u32,
    peer: Option<Peer<N>>,
}

/// What is left of a peer while an initiator may still work for it.
struct Departed<N: Nic> {
    id: PeerId,
    queue: u16,
    /// Owns memory that requests name.
    _link: Link<N>,
}

impl<N: Nic> Place<N> {
    fn id(&self, slot: u16) -> PeerId {
        PeerId { slot, generation: self.generation }
    }

    /// Who is here: the `slot`th place.
    #[inline]
    fn named(&mut self, slot: u16) -> Option<(PeerId, &mut Peer<N>)> {
        let id = self.id(slot);
        Some((id, self.peer.as_mut()?))
    }

    /// The peer, if it is the one who is here.
    #[inline]
    fn at(&mut self, id: PeerId) -> Option<&mut Peer<N>> {
        if self.generation == id.generation { self.peer.as_mut() } else { None }
    }

    #[inline]
    fn live(&mut self, id: PeerId) -> Option<&mut Live<N>> {
        self.at(id)?.live()
    }

    fn connection(&self) -> Option<&Connection> {
        match &self.peer.as_ref()?.link {
            Link::Live(live) => Some(&live.connection),
            Link::Invited { .. } => None,
        }
    }
}

/// Calls and serves on one thread. See the [crate documentation](crate).
pub struct Worker<N: Nic> {
    // Dropped in this order: queue pairs before the queues and the memory that they use.
    /// RC: one for each place; DC: initiators.
    queues: Vec<Option<Queue<N>>>,
    dct: Option<N::Qp>,
    peers: Vec<Place<N>>,
    /// DC: peers whose connection has ended and whose memory an initiator may still use.
    departed: Vec<Departed<N>>,
    receives: Option<SharedReceives<N>>,
    recv_cq: N::Cq,
    send_cq: N::Cq,
    /// None: this worker never sleeps.
    channel: Option<N::Channel>,
    pd: N::Pd,
    nic: N,

    config: Config,
    geometry: Geometry,
    key: DcKey,
    queue_of: QueueIndex,
    /// Queues that were posted to and not rung.
    unrung: Vec<u16>,
    agenda: Agenda,
    /// Calls that ended outside a poll.
    ended: VecDeque<(u64, Status)>,
    closed: VecDeque<(PeerId, CloseReason)>,
    /// Batches that came before the invitation of their peer.
    early: VecDeque<u32>,
    /// A receive that was taken from the queue and is not handled: in a poll, or beside `interrupted`.
    ahead: Option<Completion>,
    /// What a callback that panicked left of its batch.
    interrupted: Option<Box<Rest>>,
    dropped: Dropped,
    transfers: Vec<Option<Transfer<N>>>,
    /// One-sided accesses among them.
    accesses: usize,
    /// Those that found no space in a queue.
    unposted: VecDeque<usize>,
    /// Those that have completed.
    transferred: VecDeque<usize>,
    large_scratch: Vec<u8>,
    /// Private copy of the batch that is being handled. Empty while one is.
    scratch: Box<[u8]>,
    is_polling: bool,
    /// Nothing has arrived after the batch that is being handled.
    is_last_arrival: bool,
    /// Whose batch was handled last.
    last_peer: Option<PeerId>,
    now_ns: u64,
    timers_ns: u64,
    flushed_ns: u64,
    stats: Stats,
}

impl<N: Nic> Worker<N> {
    /// A worker without peers. `now_ns` is of the clock that polls will be told.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(nic: N, config: Config, now_ns: u64) -> Result<Self, OpenError> {
        let geometry = config.geometry()?;
        let pd = nic.alloc_pd()?;
        let channel = config.may_sleep.then(|| nic.create_channel()).transpose()?;
        // Never overcommitted: whatever can be outstanding has an entry (pitfall 14).
        let queues = match config.transport {
            TransportKind::Rc => config.peers_max,
            TransportKind::Dc => config.dcis,
        };
        let is_shared = config.is_shared();
        let receive_queues = if is_shared { 1 } else { config.peers_max };
        let sends = u32::from(queues) * u32::from(config.send_blocks.next_power_of_two());
        let recvs =
            u32::from(receive_queues) * u32::from(config.receive_entries().next_power_of_two());
        let send_cq = nic.create_cq(&CqConfig::new(sends), channel.as_ref())?;
        let recv_cq = nic.create_cq(&CqConfig::new(recvs), channel.as_ref())?;
        let receives = if is_shared {
            let mut receives = SharedReceives::new(&nic, &pd, config.receive_entries())?;
            receives.fill()?;
            Some(receives)
        } else {
            None
        };
        let place = |_| Place { generation: 0, peer: None };
        let mut worker = Self {
            queues: (0..queues).map(|_| None).collect(),
            dct: None,
            peers: (0..config.peers_max).map(place).collect(),
            departed: Vec::new(),
            receives,
            recv_cq,
            send_cq,
            channel,
            pd,
            nic,
            geometry,
            key: DcKey::new(random()),
            queue_of: QueueIndex::default(),
            unrung: Vec::new(),
            agenda: Agenda::default(),
            ended: VecDeque::new(),
            closed: VecDeque::new(),
            early: VecDeque::new(),
            ahead: None,
            interrupted: None,
            dropped: Dropped::default(),
            transfers: Vec::new(),
            accesses: 0,
            unposted: VecDeque::new(),
            transferred: VecDeque::new(),
            large_scratch: Vec::new(),
            scratch: vec![0; geometry.batch_bytes_max()].into(),
            is_polling: false,
            is_last_arrival: true,
            last_peer: None,
            now_ns,
            timers_ns: now_ns,
            flushed_ns: now_ns,
            stats: Stats::default(),
            config,
        };
        worker.open_dc()?;
        Ok(worker)
    }

    /// What it has seen.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The NIC that it uses.
    #[must_use]
    pub fn nic(&self) -> &N {
        &self.nic
    }

    /// What the connection to a peer has done; `None`: there is none.
    #[must_use]
    pub fn counters(&self, peer: PeerId) -> Option<Counters> {
        self.connection(peer).map(Connection::counters)
    }

    /// Whether calls can be made to a peer.
    #[must_use]
    pub fn is_connected(&self, peer: PeerId) -> bool {
        self.connection(peer).is_some()
    }

    /// Peers that have a place, connected or invited.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.peers.iter().filter(|place| place.peer.is_some()).count()
    }

    /// Time of the last poll.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Looks at a clock between two polls.
    pub(crate) fn observe(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    fn transport(&self) -> Transport {
        match self.config.transport {
            TransportKind::Rc => Transport::Rc,
            TransportKind::Dc => Transport::Dci,
        }
    }

    #[inline]
    fn peer(&mut self, id: PeerId) -> Option<&mut Peer<N>> {
        self.peers.get_mut(usize::from(id.slot))?.at(id)
    }

    fn connection(&self, id: PeerId) -> Option<&Connection> {
        let place = self.peers.get(usize::from(id.slot))?;
        if place.generation == id.generation { place.connection() } else { None }
    }

    #[inline]
    fn live(&mut self, id: PeerId) -> Option<&mut Live<N>> {
        self.peers.get_mut(usize::from(id.slot))?.live(id)
    }

    /// The connection to a peer that will have something to post.
    #[inline]
    fn live_dirty(&mut self, id: PeerId) -> Option<&mut Live<N>> {
        let Self { peers, agenda, .. } = self;
        let peer = peers.get_mut(usize::from(id.slot))?.at(id)?;
        agenda.add_dirty(id, peer);
        peer.live()
    }

    // Sleeping

    /// Makes [`channel`](Self::channel) readable when something arrives. Poll once more after it,
    /// then sleep.
    ///
    /// # Errors
    ///
    /// [`ArmError`]: [`Config::may_sleep`] is off.
    pub fn arm(&mut self) -> Result<(), ArmError> {
        self.recv_cq.arm(Arm::Next)?;
        self.send_cq.arm(Arm::Next)
    }

    /// What to sleep on; `None`: [`Config::may_sleep`] is off.
    #[must_use]
    pub fn channel(&self) -> Option<&N::Channel> {
        self.channel.as_ref()
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
        let due_ns = self.wake_ns();
        let left_ns = due_ns.map_or(u64::MAX, |due_ns| due_ns.saturating_sub(self.now_ns));
        let due = timeout.min(Duration::from_nanos(left_ns));
        let timeout = self.nic.poll_timeout().map_or(due, |nic| due.min(nic));
        Ok(self.channel.as_ref().is_some_and(|channel| channel.wait(timeout)))
    }

    /// When something is to be done though nothing arrives; `None`: nothing is.
    #[must_use]
    pub fn wake_ns(&self) -> Option<u64> {
        let is_idle = self.ended.is_empty()
            && self.closed.is_empty()
            && self.early.is_empty()
            && self.transferred.is_empty()
            && self.interrupted.is_none()
            && self.dropped.borrow().is_empty();
        if !is_idle {
            return Some(self.now_ns);
        }
        let connections = self.agenda.timed.iter().filter_map(|id| self.connection(*id));
        connections.filter_map(|connection| connection.wake_ns(self.now_ns)).min()
    }
}

/// Sixty-four bits that other processes cannot guess.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
