//! One open port: its card, its peers, its queues, and the work that belongs to no single queue.

use core::time::Duration;
use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak},
};

use memory::{
    Region, barrier,
    sync::{Arc, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
use os::{clock, rendezvous::RendezvousError};
use verbs::{AsyncEvent, Cqn, CreateError, Lid, NicAttributes};

use crate::{
    card::{Card, Owner, Table, layout::Limits},
    channel::ChannelShared,
    config::{Config, Drive},
    fabric::{CHANNELS_MAX, Export, Fabric, News, Peer},
    left_behind::LeftBehind,
    memory::Segments,
    objects::{CqShared, RqShared},
    qp::QpShared,
    shared::presence::Presence,
    strict::Violation,
    thread::Worker,
};

/// Events and violations that are kept for the program to fetch: of events the last, of violations, which
/// lead to each other, the first.
const LOG_MAX: usize = 1024;

/// Between looks at the sockets.
const SERVE_NS: u64 = 1_000_000;
/// The same while some port has not answered yet.
const SERVE_CONNECTING_NS: u64 = 20_000;

/// How long a program may sleep while a queue pair waits for something to change at a peer.
const SLEEP_WANTING: Duration = Duration::from_micros(50);

/// How long it may sleep while ports come and go, and once none has for [`QUIET_NS`]: so long may the
/// next one wait to be let in. What connected ports do needs no call of this one.
const SLEEP_STIRRED: Duration = Duration::from_millis(10);
const SLEEP_QUIET: Duration = Duration::from_millis(100);
const QUIET_NS: u64 = 1_000_000_000;

/// Idle polls between looks at the clock, and at what peers did.
const IDLE_POLLS: u32 = 64;

/// How long to wait until no executor is inside an object that goes away.
pub(crate) const QUIESCE_NS: u64 = 500_000_000;
/// The same where housekeeping can come back: it runs inside polls.
pub(crate) const QUIESCE_BRIEFLY_NS: u64 = 200_000;

/// State of one port, shared by its objects.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) lid: Lid,
    pub(crate) attributes: NicAttributes,
    pub(crate) owner: Owner,
    /// Segments of this port.
    pub(crate) segments: Segments,
    fabric: Mutex<Fabric>,
    peers: RwLock<HashMap<u16, Arc<Peer>>>,
    qps: RwLock<HashMap<u32, Weak<QpShared>>>,
    cqs: RwLock<HashMap<u32, Weak<CqShared>>>,
    rqs: RwLock<HashMap<u32, Weak<RqShared>>>,
    /// Counts changes of `qps`, for the NIC thread.
    pub(crate) qps_version: AtomicU64,
    /// Queue pairs with [`QpShared::want`] set.
    pub(crate) wanting: AtomicUsize,
    serve_at_ns: AtomicU64,
    /// When a port was last connecting, came or went.
    stirred_ns: AtomicU64,
    next_id: AtomicU32,
    events: Mutex<VecDeque<AsyncEvent>>,
    violations: Mutex<Vec<Violation>>,
    /// Dead peers whose traces are still to be cleaned up.
    left: Mutex<Vec<Arc<Peer>>>,
    /// Who cleans up. Before locks of queue pairs and that of the fabric.
    reaping: Mutex<()>,
    /// Destroyed objects that somebody has not left yet, and when to look again; `u64::MAX`: there are
    /// none.
    pub(crate) left_behind: Mutex<Vec<LeftBehind>>,
    pub(crate) look_at_ns: AtomicU64,
    /// The NIC thread, with [`Drive::Thread`].
    pub(crate) worker: OnceLock<Worker>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Changes under these locks are single calls, so a panic in between leaves them consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn upgraded<T>(map: &RwLock<HashMap<u32, Weak<T>>>) -> Vec<Arc<T>> {
    let map = map.read().unwrap_or_else(PoisonError::into_inner);
    map.values().filter_map(Weak::upgrade).collect()
}

fn insert<T>(map: &RwLock<HashMap<u32, Weak<T>>>, index: u32, object: &Arc<T>) {
    let mut map = map.write().unwrap_or_else(PoisonError::into_inner);
    map.insert(index, Arc::downgrade(object));
}

fn remove<T>(map: &RwLock<HashMap<u32, Weak<T>>>, index: u32) {
    map.write().unwrap_or_else(PoisonError::into_inner).remove(&index);
}

impl Context {
    pub(crate) fn open(config: Config) -> Result<Arc<Self>, OpenFailure> {
        let bytes = config.card_mib << 20;
        let limits =
            Limits { mrs: 4096, qps: 2048, cqs: 1024, rqs: 1024, ro_bytes: bytes, rw_bytes: bytes };
        let card = Card::create(limits, false)?;
        let fabric = Fabric::join(&config.fabric, card.clone())?;
        let lid = Lid::new(fabric.lid);
        let context = Arc::new(Self {
            attributes: NicAttributes {
                name: "soft".into(),
                cqes_max: 1 << 22,
                wqes_max: 1 << 15,
                blueflame_bytes: 256,
                message_bytes_max: 1 << 31,
                reads_max: 16,
            },
            lid,
            owner: Owner::new(card),
            segments: Segments::default(),
            fabric: Mutex::new(fabric),
            peers: RwLock::default(),
            qps: RwLock::default(),
            cqs: RwLock::default(),
            rqs: RwLock::default(),
            qps_version: AtomicU64::new(0),
            wanting: AtomicUsize::new(0),
            serve_at_ns: AtomicU64::new(0),
            stirred_ns: AtomicU64::new(clock::now_ns()),
            next_id: AtomicU32::new(1),
            events: Mutex::default(),
            violations: Mutex::default(),
            left: Mutex::default(),
            reaping: Mutex::default(),
            left_behind: Mutex::default(),
            look_at_ns: AtomicU64::new(u64::MAX),
            worker: OnceLock::new(),
            config,
        });
        if context.config.drive == Drive::Thread {
            let worker = Worker::start(Arc::downgrade(&context))?;
            context.worker.get_or_init(|| worker);
        }
        Ok(context)
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

    /// A number for a segment, channel or protection domain; never 0.
    pub(crate) fn new_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add_qp(&self, index: u32, qp: &Arc<QpShared>) {
        insert(&self.qps, index, qp);
        self.qps_version.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn forget_qp(&self, index: u32) {
        remove(&self.qps, index);
        self.qps_version.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn add_cq(&self, cq: &Arc<CqShared>) {
        insert(&self.cqs, cq.index(), cq);
    }

    pub(crate) fn forget_cq(&self, index: u32) {
        remove(&self.cqs, index);
    }

    pub(crate) fn add_rq(&self, rq: &Arc<RqShared>) {
        insert(&self.rqs, rq.index(), rq);
    }

    pub(crate) fn forget_rq(&self, index: u32) {
        remove(&self.rqs, index);
    }

    pub(crate) fn qps(&self) -> Vec<Arc<QpShared>> {
        upgraded(&self.qps)
    }

    pub(crate) fn cqs(&self) -> Vec<Arc<CqShared>> {
        upgraded(&self.cqs)
    }

    pub(crate) fn rqs(&self) -> Vec<Arc<RqShared>> {
        upgraded(&self.rqs)
    }

    /// Shows a segment to peers. Later ones have greater numbers.
    pub(crate) fn add_segment(&self, region: &Arc<Region>) -> u32 {
        let mut fabric = lock(&self.fabric);
        let id = self.new_id();
        self.segments.insert(id, region.clone());
        fabric.export(Export::Segment { id, region: region.clone() });
        id
    }

    /// Shows a channel to peers, if there are not as many as they take.
    pub(crate) fn add_channel(&self, channel: &ChannelShared) -> Result<(), CreateError> {
        let mut fabric = lock(&self.fabric);
        if fabric.channels() == CHANNELS_MAX {
            let (object, limit) = ("completion channel", CHANNELS_MAX);
            return Err(CreateError::Exhausted { object, limit });
        }
        fabric.export(Export::Channel { id: channel.id, event: channel.event.clone() });
        Ok(())
    }

    pub(crate) fn forget_channel(&self, id: u32) {
        lock(&self.fabric).export(Export::ChannelGone { id });
    }

    pub(crate) fn export(&self, export: Export) {
        lock(&self.fabric).export(export);
    }

    pub(crate) fn add_event(&self, event: AsyncEvent) {
        let mut events = lock(&self.events);
        if events.len() == LOG_MAX {
            events.pop_front();
        }
        events.push_back(event);
    }

    pub(crate) fn poll_event(&self) -> Option<AsyncEvent> {
        self.progress();
        lock(&self.events).pop_front()
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
        let known = self.peers.read().unwrap_or_else(PoisonError::into_inner).get(&lid).cloned();
        known.filter(|peer| peer.has_let_in()).ok_or_else(|| {
            let connecting = lock(&self.fabric).connect(lid);
            if connecting {
                self.serve_at_ns.store(0, Ordering::Relaxed);
            }
            connecting
        })
    }

    /// Called when a poll found nothing: does what a device would do in the meantime, now and then.
    /// Returns whether this was such a time.
    #[inline]
    pub(crate) fn idle(&self, polls: &mut u32) -> bool {
        *polls = polls.wrapping_add(1);
        let is_time = self.wanting.load(Ordering::Relaxed) > 0 || polls.is_multiple_of(IDLE_POLLS);
        if is_time {
            self.progress();
        }
        is_time
    }

    fn is_called(&self) -> bool {
        self.owner.card.shared().attention.load(Ordering::Relaxed) != 0
    }

    /// Does everything that can be done now.
    #[cold]
    pub(crate) fn progress(&self) {
        if clock::now_ns() >= self.serve_at_ns.load(Ordering::Relaxed) {
            self.serve();
        }
        if self.is_called() {
            self.heed();
        }
        if self.wanting.load(Ordering::Relaxed) > 0 {
            for qp in self.qps() {
                qp.run_if_wanted();
            }
        }
    }

    /// Serves the sockets, unless another thread is at it.
    fn serve(&self) {
        let Ok(mut fabric) = self.fabric.try_lock() else { return };
        let has_stirred = self.attend(&mut fabric);
        let is_connecting = fabric.is_connecting();
        drop(fabric);
        let (now_ns, pause) =
            (clock::now_ns(), if is_connecting { SERVE_CONNECTING_NS } else { SERVE_NS });
        self.serve_at_ns.store(now_ns + pause, Ordering::Relaxed);
        if is_connecting || has_stirred {
            self.stirred_ns.store(now_ns, Ordering::Relaxed);
        }
        self.reap();
        // A peer that was not told of a channel yet, or died before it signaled, has woken nobody.
        for cq in self.cqs() {
            cq.wake_if_due();
        }
        self.collect();
    }

    /// Reads the sockets now: something that a peer has sent is needed.
    pub(crate) fn fetch(&self) {
        self.attend(&mut lock(&self.fabric));
        memory::sync::thread::yield_now();
    }

    /// Before a queue pair is connected to port `lid`: a dead one of this number must not take the new
    /// connection with it. Takes locks of queue pairs.
    pub(crate) fn prepare_to_meet(&self, lid: u16) {
        let mut fabric = lock(&self.fabric);
        if fabric.has_lost(lid) {
            self.attend(&mut fabric);
        }
        drop(fabric);
        self.reap();
    }

    /// Serves the sockets, and takes note of who came and went, while nobody else looks who is there.
    /// Says whether anybody did.
    fn attend(&self, fabric: &mut Fabric) -> bool {
        let News { joined, left } = fabric.serve();
        let has_stirred = !joined.is_empty() || !left.is_empty();
        if has_stirred {
            let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
            for peer in &left {
                peers.remove(&peer.lid);
            }
            peers.extend(joined.into_iter().map(|peer| (peer.lid, peer)));
        }
        lock(&self.left).extend(left);
        has_stirred
    }

    /// Cleans up after dead peers. Takes locks of queue pairs, so it must not run under one.
    fn reap(&self) {
        // Whoever meets the next port of a dead one's number waits here until that is finished.
        let _one_thread = lock(&self.reaping);
        let left = core::mem::take(&mut *lock(&self.left));
        for peer in left {
            crate::reap::reap(self, &peer);
            lock(&self.fabric).forget(peer.lid);
            self.add_event(AsyncEvent::PeerGone(Lid::new(peer.lid)));
        }
    }

    /// Looks at what peers did to this port's queues.
    fn heed(&self) {
        // SYNC(attention): pairs with the `Release` of whoever set it.
        if self.owner.card.shared().attention.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        for cq in self.cqs() {
            if cq.view.is_overrun() && cq.report_overrun() {
                self.add_event(AsyncEvent::CqOverrun(Cqn::from_low_bits(cq.index())));
            }
        }
        for qp in self.qps() {
            qp.heed_faults();
        }
    }

    /// Waits until every executor that may be inside an object of this port has left once. The
    /// object was made invalid before.
    ///
    /// # Errors
    ///
    /// The port that did not leave in time.
    pub(crate) fn quiesce(&self, wait_ns: u64) -> Result<(), u16> {
        self.attend(&mut lock(&self.fabric));
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

    /// How long a program may sleep without calling in.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        if self.worker.get().is_some() {
            return None;
        }
        if self.wanting.load(Ordering::Relaxed) > 0 {
            return Some(SLEEP_WANTING);
        }
        let quiet_ns = clock::now_ns().saturating_sub(self.stirred_ns.load(Ordering::Relaxed));
        Some(if quiet_ns < QUIET_NS { SLEEP_STIRRED } else { SLEEP_QUIET })
    }
}

/// Waits until every executor of `card` that is inside now has left.
fn leave(card: &Card, deadline_ns: u64, is_dead: impl Fn() -> bool) -> Result<(), ()> {
    let words = (1..card.limits.qps).filter_map(|index| card.qp(index));
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

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenFailure {
    #[error(transparent)]
    Map(#[from] memory::MapError),
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    #[error("cannot start the NIC thread: {0}")]
    Thread(#[from] std::io::Error),
}

#[cfg(all(test, not(miri)))]
mod tests {
    use verbs::{
        Access, CqConfig, Endpoint, InitAttr, Mtu, Nic as _, QKey, QpConfig, QpState, Qpn,
        QueuePair as _, RcPeer, RnrTimer, RtrAttr, Transition, Transport,
    };

    use super::*;
    use crate::{Config, Nic, fabric::small_card, open};

    type Qp = <Nic as verbs::Nic>::Qp;

    fn queue_pair(nic: &Nic) -> Qp {
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
        nic.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq)).unwrap()
    }

    /// INIT and RTR, with a peer at port `lid`.
    fn connect(nic: &Nic, qp: &mut Qp, lid: u16) {
        let Endpoint { mut address, .. } = nic.endpoint(qp);
        address.route = verbs::Route::Lid(Lid::new(lid));
        let peer = RcPeer { qpn: Qpn::from_low_bits(1), address, rq_psn: Default::default() };
        let access = Access::empty();
        qp.modify(&Transition::Init(InitAttr { access, qkey: QKey::default() })).unwrap();
        qp.modify(&Transition::Rtr(RtrAttr {
            path_mtu: Mtu::B4096,
            peer: Some(peer),
            rnr_timer: RnrTimer::from_code(1),
            reads_in_max: 1,
        }))
        .unwrap();
    }

    fn meet(context: &Context, other: &mut Fabric) {
        while context.import(other.lid).is_err() {
            other.serve();
            context.fetch();
        }
    }

    /// Its peers may hear of the new one before they have looked at the socket of the old one.
    #[test]
    fn a_dead_port_takes_no_connection_to_its_successor_with_it() {
        let fabric = format!("reborn-{}", std::process::id());
        let config = Config { fabric: fabric.clone(), card_mib: 8, ..Config::default() };
        let nic = open(&config).unwrap();
        let context = &nic.device().0;
        let mut dead = Fabric::join(&fabric, small_card()).unwrap();
        let lid = dead.lid;
        meet(context, &mut dead);
        let [mut before, mut after] = [(); 2].map(|()| queue_pair(&nic));
        connect(&nic, &mut before, lid);
        assert_eq!(before.state(), QpState::Rtr);
        context.serve_at_ns.store(u64::MAX, Ordering::Relaxed); // asleep
        drop(dead);
        let mut successor = Fabric::join_as(lid, &fabric, small_card()).unwrap();
        connect(&nic, &mut after, lid);
        context.serve();
        assert_eq!(before.state(), QpState::Err);
        assert_eq!(after.state(), QpState::Rtr);
        assert_eq!(context.poll_event(), Some(AsyncEvent::PeerGone(Lid::new(lid))));
        meet(context, &mut successor);
        assert_eq!(after.state(), QpState::Rtr);
    }

    #[test]
    fn a_port_is_not_used_before_it_has_let_this_one_in() {
        let fabric = format!("outside-{}", std::process::id());
        let config = Config { fabric: fabric.clone(), card_mib: 8, ..Config::default() };
        let nic = open(&config).unwrap();
        let context = &nic.device().0;
        let mut other = Fabric::join(&fabric, small_card()).unwrap();
        other.mourn(context.lid.get());
        for _ in 0..10 {
            assert_eq!(context.import(other.lid).map(drop), Err(true), "somebody is there");
            other.serve();
            context.fetch();
        }
        other.forget(context.lid.get());
        meet(context, &mut other);
    }

    /// Nobody may ever fetch them.
    #[test]
    fn of_events_the_last_are_kept_and_of_violations_the_first() {
        let fabric = format!("logs-{}", std::process::id());
        let nic = open(&Config { fabric, card_mib: 8, ..Config::default() }).unwrap();
        let context = &nic.device().0;
        for qpn in 1..=u32::try_from(LOG_MAX + 10).unwrap() {
            context.add_event(AsyncEvent::QpFatal(Qpn::from_low_bits(qpn)));
            context.add_violation(Violation::BadWqe { qpn, counter: 0, cause: "none" });
        }
        let events: Vec<_> = core::iter::from_fn(|| context.poll_event()).collect();
        let first = AsyncEvent::QpFatal(Qpn::from_low_bits(11));
        assert_eq!((events.len(), events[0]), (LOG_MAX, first));
        let violations = context.take_violations();
        assert_eq!(violations.len(), LOG_MAX);
        assert!(matches!(violations[0], Violation::BadWqe { qpn: 1, .. }));
    }

    #[test]
    fn a_port_sleeps_longer_while_nobody_comes_or_goes() {
        let fabric = format!("quiet-{}", std::process::id());
        let config = Config { fabric, card_mib: 8, ..Config::default() };
        let (nic, other) = (open(&config).unwrap(), open(&config).unwrap());
        let context = &nic.device().0;
        context.stirred_ns.store(0, Ordering::Relaxed);
        context.serve();
        assert_eq!(context.poll_timeout(), Some(SLEEP_QUIET));
        let imported = other.device().0.import(context.lid.get());
        assert!(matches!(imported, Err(true)), "somebody is there, and has not answered yet");
        context.serve();
        assert_ne!(context.stirred_ns.load(Ordering::Relaxed), 0);
        context.stirred_ns.store(u64::MAX, Ordering::Relaxed); // now, however slow this machine is
        assert_eq!(context.poll_timeout(), Some(SLEEP_STIRRED));
    }
}
