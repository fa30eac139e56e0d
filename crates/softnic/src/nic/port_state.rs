//! State of one port, which its objects share: its card, its peers, and what is noted for housekeeping.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock},
};

use memory::{
    Region, barrier,
    sync::{Arc, AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
use os::{clock, event::EventFd, unix::SocketError};
use verbs::{AsyncEvent, CreateError, Lid, LinkLayer, NicAttributes, PortRoute, Shortage};

use crate::nic::{
    card::{
        Card, Owner, Table,
        layout::{MrEntry, is_valid_key},
    },
    config::Config,
    engine::Streams,
    fabric::{CHANNELS_MAX, Export, Fabric, News, Peer},
    left_behind::LeftBehind,
    runner::Runner,
    segments::{FETCHES_MAX, Reach, Segments},
    strict::Violation,
    timeline::Timeline,
};
use crate::shared::presence::Presence;

/// Events and violations that are kept for the program to fetch: of events the last, of violations, which
/// lead to each other, the first.
pub(crate) const LOG_MAX: usize = 1024;

/// Time between two looks at who is still inside of what was left behind.
pub(crate) const LOOK_NS: u64 = 100_000_000;

/// How long to wait until no executor is inside an object that goes away.
pub(crate) const QUIESCE_NS: u64 = 500_000_000;
/// The same where housekeeping can come back: it runs inside polls.
pub(crate) const QUIESCE_BRIEFLY_NS: u64 = 200_000;

/// How the requests of a queue pair reach its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By calls on the mapped card of the port with this LID of the own fabric.
    Card(Lid),
    /// By packets to the port that has this LID in them.
    Packets(Lid),
}

impl Way {
    pub(crate) fn lid(self) -> Lid {
        match self {
            Self::Card(lid) | Self::Packets(lid) => lid,
        }
    }
}

/// State of one port, shared by its objects.
#[derive(Debug)]
pub(crate) struct PortState {
    pub(crate) config: Config,
    pub(crate) lid: Lid,
    pub(crate) attributes: NicAttributes,
    pub(crate) owner: Owner,
    /// Segments of this port.
    pub(crate) segments: Segments,
    /// A segment of this port or of a peer went, and queue pairs may still keep it mapped.
    pub(crate) has_stale_regions: AtomicBool,
    /// `None`: nothing of this port is shown to others, which reach it by packets.
    pub(crate) fabric: Option<Mutex<Fabric>>,
    peers: RwLock<BTreeMap<u16, Arc<Peer>>>,
    /// Queue pairs that are scheduled: `QpShared::is_scheduled`.
    pub(crate) scheduled_qps: AtomicUsize,
    pub(crate) serve_at_ns: AtomicU64,
    /// When a port was last connecting, came or went.
    pub(crate) changed_ns: AtomicU64,
    next_id: AtomicU32,
    pub(crate) events: Mutex<VecDeque<AsyncEvent>>,
    violations: Mutex<Vec<Violation>>,
    /// Dead peers whose traces are still to be cleaned up.
    pub(crate) left: Mutex<Vec<Arc<Peer>>>,
    /// Destroyed objects that somebody has not left yet, and when to look again; `u64::MAX`: there are
    /// none.
    pub(crate) left_behind: Mutex<Vec<LeftBehind>>,
    pub(crate) look_at_ns: AtomicU64,
    /// Who executes queue pairs, if not the thread that rings their doorbells.
    pub(crate) runner: OnceLock<Runner>,
    /// Drive *virtual*: what this port has taken of each stream of requests.
    pub(crate) streams: Mutex<Streams>,
    /// Drive *virtual*: where the next region begins, as requests name it.
    next_addr: AtomicU64,
}

/// Bits of an invented address below the port's LID, and what such addresses are a multiple of.
const ADDR_BITS: u32 = 44;
const ADDR_UNIT_BYTES: u64 = 4096;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Changes under these locks are single calls, so a panic in between leaves them consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Name of the device, unless a [`Timeline`] gives it another one.
pub(crate) const DEVICE: &str = "soft";

/// Strict mode shuffles the bytes of a message, as a relaxed-ordering fabric does.
fn capabilities(config: &Config) -> verbs::Capabilities {
    use verbs::Capabilities;
    let shuffled = if config.strict.is_some() {
        Capabilities::ORDERED_PLACEMENT
    } else {
        Capabilities::empty()
    };
    Capabilities::all() - shuffled - config.profile.absent()
}

impl PortState {
    pub(crate) fn new(config: Config, lid: Lid, card: Card, fabric: Option<Fabric>) -> Self {
        let sizes = config.profile.sizes();
        Self {
            attributes: NicAttributes {
                name: DEVICE.into(),
                capabilities: capabilities(&config),
                cqes_max: sizes.cqes_max,
                requests_max: sizes.requests_max,
                srq_entries_max: sizes.srq_entries_max,
                srq_sges_max: sizes.sges_max,
                sges_max: sizes.sges_max,
                inline_bytes_max: 512,
                cqe_payload_bytes_max: 0,
                message_bytes_max: wire::wqe::MESSAGE_BYTES_MAX,
                reads_max: sizes.reads_max,
            },
            lid,
            owner: Owner::new(card),
            segments: Segments::default(),
            has_stale_regions: AtomicBool::new(false),
            fabric: fabric.map(Mutex::new),
            peers: RwLock::default(),
            scheduled_qps: AtomicUsize::new(0),
            serve_at_ns: AtomicU64::new(0),
            changed_ns: AtomicU64::new(clock::now_ns()),
            next_id: AtomicU32::new(1),
            events: Mutex::default(),
            violations: Mutex::default(),
            left: Mutex::default(),
            left_behind: Mutex::default(),
            look_at_ns: AtomicU64::new(u64::MAX),
            runner: OnceLock::new(),
            streams: Mutex::default(),
            next_addr: AtomicU64::new(u64::from(lid.get()) << ADDR_BITS | ADDR_UNIT_BYTES),
            config,
        }
    }

    /// Drive *virtual*: who is told what the port needs.
    #[inline]
    pub(crate) fn timeline(&self) -> Option<&Arc<dyn Timeline>> {
        match self.runner.get() {
            Some(Runner::Timeline(timeline)) => Some(timeline),
            Some(Runner::Thread(_)) | None => None,
        }
    }

    /// Whether the network loses a packet, with a global route header or not.
    pub(crate) fn is_grh_missing(&self, has_grh: bool) -> bool {
        let is_needed =
            self.config.profile.needs_grh() && self.config.link == LinkLayer::InfiniBand;
        is_needed && !has_grh
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.timeline().map_or_else(clock::now_ns, |timeline| timeline.now_ns())
    }

    /// How a queue pair that is connected now reaches the port that `route` leads to.
    ///
    /// # Errors
    ///
    /// Why the kernel does not say whether that port is on this fabric.
    pub(crate) fn way_to(&self, route: &PortRoute) -> Result<Way, SocketError> {
        let Some(timeline) = self.timeline() else { return Ok(Way::Card(self.lid_of(route))) };
        if let Some(fabric) = &self.fabric
            && let Some((lid, instance)) = timeline.instance_of(route)
            && lock(fabric).find(lid.get(), instance)?
        {
            self.serve_at_ns.store(0, Ordering::Relaxed);
            return Ok(Way::Card(lid));
        }
        Ok(Way::Packets(self.lid_of(route)))
    }

    /// Drive *virtual*: an address for a region, the same in each run, that no other region of any port has.
    pub(crate) fn invent_addr(&self, len_bytes: u64) -> u64 {
        let len_bytes = len_bytes.next_multiple_of(ADDR_UNIT_BYTES) + ADDR_UNIT_BYTES;
        self.next_addr.fetch_add(len_bytes, Ordering::Relaxed)
    }

    pub(crate) fn limit(&self, table: Table) -> u32 {
        let limits = &self.owner.card.limits;
        match table {
            Table::Mr => limits.mrs,
            Table::Qp => limits.qps,
            Table::Cq => limits.cqs,
            Table::Rq => limits.rqs,
        }
    }

    /// Lets [`new_id`](Self::new_id) go on from this number, which is not 0.
    pub(crate) fn begin_ids(&self, first: u32) {
        self.next_id.store(first, Ordering::Relaxed);
    }

    /// A number for a segment, channel or protection domain; never 0.
    pub(crate) fn new_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Shows a segment to peers. Later ones have greater numbers.
    pub(crate) fn add_segment(&self, region: &Arc<Region>) -> u32 {
        let mut fabric = self.fabric.as_ref().map(lock);
        let id = self.new_id();
        self.segments.insert(id, region.clone());
        if let Some(fabric) = &mut fabric {
            fabric.export(Export::Segment { id, region: region.clone() });
        }
        id
    }

    /// Shows a channel to peers, if there are not as many as they take.
    pub(crate) fn add_channel(&self, id: u32, event: &Arc<EventFd>) -> Result<(), CreateError> {
        let Some(mut fabric) = self.fabric.as_ref().map(lock) else { return Ok(()) };
        if fabric.channels() == CHANNELS_MAX {
            let (object, limit) = ("completion channel", CHANNELS_MAX);
            return Err(CreateError::Exhausted { object, limit });
        }
        fabric.export(Export::Channel { id, event: event.clone() });
        Ok(())
    }

    /// Hides a segment from peers, and unmaps it here once no queue pair remembers it.
    pub(crate) fn remove_segment(&self, id: u32) {
        self.segments.remove(id);
        self.has_stale_regions.store(true, Ordering::Relaxed);
        self.export(Export::SegmentGone { id });
    }

    pub(crate) fn forget_channel(&self, id: u32) {
        self.export(Export::ChannelGone { id });
    }

    pub(crate) fn export(&self, export: Export) {
        if let Some(fabric) = &self.fabric {
            lock(fabric).export(export);
        }
    }

    pub(crate) fn add_event(&self, event: AsyncEvent) {
        let mut events = lock(&self.events);
        if events.len() == LOG_MAX {
            events.pop_front();
        }
        events.push_back(event);
    }

    pub(crate) fn add_violation(&self, violation: Violation) {
        let mut violations = lock(&self.violations);
        if violations.len() < LOG_MAX {
            violations.push(violation);
        }
    }

    pub(crate) fn take_violations(&self) -> Vec<Violation> {
        core::mem::take(&mut lock(&self.violations))
    }

    /// The port with this LID, if its memory may be used. Otherwise starts to connect;
    /// `Err(true)`: somebody is there.
    pub(crate) fn import(&self, lid: u16) -> Result<Arc<Peer>, bool> {
        let Some(fabric) = &self.fabric else { return Err(false) };
        let known = self.peers.read().unwrap_or_else(PoisonError::into_inner).get(&lid).cloned();
        known.filter(|peer| peer.has_admitted()).ok_or_else(|| {
            let connecting = lock(fabric).connect(lid);
            if connecting {
                self.serve_at_ns.store(0, Ordering::Relaxed);
            }
            connecting
        })
    }

    /// Maps the region that a key of a peer names, unless it is mapped. What else may be wrong with the key,
    /// an access tells.
    ///
    /// # Errors
    ///
    /// [`Shortage`].
    pub(crate) fn reach(&self, lid: u16, key: u32) -> Result<(), Shortage> {
        let known = self.peers.read().unwrap_or_else(PoisonError::into_inner).get(&lid).cloned();
        let Some(peer) = known else { return Ok(()) };
        let segment = |entry: &MrEntry| {
            // SYNC(mr-entry): pairs with the owner's `Release` when it registered the region.
            let valid = entry.key.load(Ordering::Acquire);
            let segment = u32::try_from(entry.segment.load(Ordering::Relaxed)).ok();
            segment.filter(|_| is_valid_key(valid, key))
        };
        let Some(segment) = peer.card.mr(key >> 8).and_then(segment) else { return Ok(()) };
        for _ in 0..FETCHES_MAX {
            match peer.segments.reach(segment) {
                Reach::Mapped => return Ok(()),
                Reach::Refused(shortage) => return Err(shortage),
                Reach::Absent => self.fetch(),
            }
        }
        Ok(())
    }

    /// Reads the sockets now: something that a peer has sent is needed.
    pub(crate) fn fetch(&self) {
        if let Some(fabric) = &self.fabric {
            self.serve_sockets(&mut lock(fabric));
        }
        memory::sync::thread::yield_now();
    }

    /// Serves the sockets, and takes note of who came and went, while nobody else looks who is there.
    /// Says whether anybody did.
    pub(crate) fn serve_sockets(&self, fabric: &mut Fabric) -> bool {
        let News { joined, left, shortages, has_lost_segments } = fabric.serve();
        if has_lost_segments || !left.is_empty() {
            self.has_stale_regions.store(true, Ordering::Relaxed);
        }
        shortages.into_iter().for_each(|shortage| self.add_event(AsyncEvent::NoMemory(shortage)));
        let has_changed = !joined.is_empty() || !left.is_empty();
        if has_changed {
            let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
            for peer in &left {
                peers.remove(&peer.lid);
            }
            peers.extend(joined.into_iter().map(|peer| (peer.lid, peer)));
        }
        lock(&self.left).extend(left);
        has_changed
    }

    /// Waits until every executor that may be inside an object of this port has left once. The
    /// object was made invalid before.
    ///
    /// # Errors
    ///
    /// The port that did not leave in time.
    pub(crate) fn quiesce(&self, wait_ns: u64) -> Result<(), u16> {
        if let Some(fabric) = &self.fabric {
            self.serve_sockets(&mut lock(fabric));
        }
        barrier::store_load();
        let deadline_ns = clock::now_ns() + wait_ns;
        let peers: Vec<_> = {
            let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
            peers.values().cloned().collect()
        };
        leave(&self.owner.card, deadline_ns, || false).map_err(|()| self.lid.get())?;
        for peer in peers {
            leave(&peer.card, deadline_ns, || peer.is_dead()).map_err(|()| peer.lid)?;
        }
        Ok(())
    }

    /// Keeps `object`, which was made invalid, until everybody has left. There are never more than the
    /// card has numbers for.
    pub(crate) fn leave_behind(&self, object: LeftBehind) {
        let mut objects = lock(&self.left_behind);
        objects.push(object);
        self.look_at_ns.store(clock::now_ns() + LOOK_NS, Ordering::Relaxed);
    }
}

/// Waits until every executor of `card` that is inside now has left.
fn leave(card: &Card, deadline_ns: u64, is_dead: impl Fn() -> bool) -> Result<(), ()> {
    // Number 0 is the responder of a port that is reached by packets.
    let words = (0..card.limits.qps).filter_map(|index| card.qp(index));
    let inside: Vec<_> = words
        .map(|entry| Presence(&entry.presence))
        .map(|presence| (presence, presence.observe()))
        .filter(|&(_, observed)| observed & 1 == 1)
        .collect();
    for (presence, observed) in inside {
        while !presence.has_left(observed) {
            if clock::now_ns() >= deadline_ns {
                return if is_dead() { Ok(()) } else { Err(()) };
            }
            memory::sync::thread::yield_now();
        }
    }
    Ok(())
}
