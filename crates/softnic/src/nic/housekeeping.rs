//! The work of a port that belongs to no single queue: sockets, dead peers, faults, what was left behind.

use core::time::Duration;
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError, RwLock, Weak},
};

use memory::{
    barrier,
    sync::{Arc, AtomicU64, Ordering},
};
use os::clock;
use verbs::{AsyncEvent, Cqn, Lid, PortOptionError, PortTables, Qpn};

use crate::nic::{
    card::{Card, Table, layout::Limits},
    config::Config,
    fabric::{Fabric, JoinError},
    objects::{CqShared, RqShared},
    port_state::{DEVICE, LOOK_NS, PortState, QUIESCE_BRIEFLY_NS, lock},
    qp::QpShared,
    reap::{AllQueues, reap},
    runner::Runner,
    timeline::Timeline,
};
use crate::shared::port_lock::PortLock;

/// Between looks at the sockets.
const SERVE_NS: u64 = 1_000_000;
/// The same while some port has not answered yet.
const SERVE_CONNECTING_NS: u64 = 20_000;

/// How long a program may sleep while a queue pair waits for something to change at a peer.
const SLEEP_SCHEDULED: Duration = Duration::from_micros(50);

/// How long it may sleep while ports come and go, and once none has for [`QUIET_NS`]: so long may the
/// next one wait to be let in. What connected ports do needs no call of this one.
const SLEEP_CHANGING: Duration = Duration::from_millis(10);
const SLEEP_QUIET: Duration = Duration::from_millis(100);
const QUIET_NS: u64 = 1_000_000_000;

/// Idle polls between looks at the clock, and at what peers did.
const IDLE_POLLS: u32 = 64;
/// Idle polls between looks at packets, where a fabric is looked at, too. Divides [`IDLE_POLLS`].
const IDLE_POLLS_OF_MEMBER: u32 = 8;

/// Serves a port and knows its queues. Queues know the [`PortState`] only.
#[derive(Debug)]
pub(crate) struct Housekeeping {
    pub(crate) port: Arc<PortState>,
    qps: Queues<QpShared>,
    cqs: Queues<CqShared>,
    rqs: Queues<RqShared>,
    /// Counts queue pairs that were added, for the NIC thread.
    pub(crate) qps_version: AtomicU64,
    /// Who cleans up after the dead. Before locks of queue pairs and that of the fabric.
    reaping: Mutex<()>,
}

/// Queues by number. One that is dropped is forgotten when somebody looks.
#[derive(Debug)]
struct Queues<T>(RwLock<BTreeMap<u32, Weak<T>>>);

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T> Queues<T> {
    fn insert(&self, index: u32, queue: &Arc<T>) {
        let mut queues = self.0.write().unwrap_or_else(PoisonError::into_inner);
        queues.insert(index, Arc::downgrade(queue));
    }

    fn get(&self, index: u32) -> Option<Arc<T>> {
        let queues = self.0.read().unwrap_or_else(PoisonError::into_inner);
        queues.get(&index)?.upgrade()
    }

    fn all(&self) -> Vec<Arc<T>> {
        let queues = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let live: Vec<_> = queues.values().filter_map(Weak::upgrade).collect();
        let has_dropped = live.len() < queues.len();
        drop(queues);
        if has_dropped {
            let mut queues = self.0.write().unwrap_or_else(PoisonError::into_inner);
            queues.retain(|_, queue| queue.strong_count() > 0);
        }
        live
    }
}

fn limits(config: &Config) -> Limits {
    let bytes = config.card_mib << 20;
    Limits { mrs: 4096, qps: 2048, cqs: 1024, rqs: 1024, ro_bytes: bytes, rw_bytes: bytes }
}

impl Housekeeping {
    pub(crate) fn open(config: Config) -> Result<Arc<Self>, OpenFailure> {
        PortTables::single(DEVICE).check(&config.options)?;
        let (card, fabric) = Self::join(&config, None)?;
        let port = PortState::new(config, Lid::new(fabric.lid), card, Some(fabric));
        Ok(Arc::new(Self::new(port)))
    }

    pub(crate) fn join(
        config: &Config,
        instance: Option<u64>,
    ) -> Result<(Card, Fabric), OpenFailure> {
        let card = Card::create(limits(config), false)?;
        let fabric = Fabric::join(&config.fabric, card.clone(), instance)?;
        Ok((card, fabric))
    }

    /// A port on the heap that is driven from outside. It has no strict mode.
    pub(crate) fn open_virtual(
        config: Config,
        lid: Lid,
        timeline: Arc<dyn Timeline>,
    ) -> Result<Arc<Self>, OpenFailure> {
        let card = Card::create(limits(&config), !timeline.maps_card())?;
        Self::driven(PortState::new(Config { strict: None, ..config }, lid, card, None), timeline)
    }

    /// A port of a fabric that is also driven from outside. It has no strict mode.
    pub(crate) fn open_member(
        config: Config,
        (card, fabric): (Card, Fabric),
        timeline: Arc<dyn Timeline>,
    ) -> Result<Arc<Self>, OpenFailure> {
        let (config, lid) = (Config { strict: None, ..config }, Lid::new(fabric.lid));
        Self::driven(PortState::new(config, lid, card, Some(fabric)), timeline)
    }

    fn driven(mut port: PortState, timeline: Arc<dyn Timeline>) -> Result<Arc<Self>, OpenFailure> {
        timeline.describe(&mut port.attributes);
        PortTables::single(&port.attributes.name).check(&port.config.options)?;
        // Peers may remember an earlier port of this LID. DC connections of this one, which get such numbers,
        // have to be later: so they are if that one made fewer than one per 1024 ns.
        let first = u32::try_from((timeline.now_ns() >> 10) & u64::from(u32::MAX)).unwrap_or(1);
        port.begin_ids(first.max(1));
        port.runner.get_or_init(|| Runner::Timeline(timeline));
        Ok(Arc::new(Self::new(port)))
    }

    fn new(port: PortState) -> Self {
        Self {
            port: Arc::new(port),
            qps: Queues::default(),
            cqs: Queues::default(),
            rqs: Queues::default(),
            qps_version: AtomicU64::new(0),
            reaping: Mutex::default(),
        }
    }

    /// Knows a queue pair, and its own receive queue.
    pub(crate) fn add_qp(&self, qp: &Arc<QpShared>) {
        if let (false, Some(rq)) = (qp.has_srq, &qp.rq) {
            self.add_rq(rq);
        }
        self.qps.insert(qp.qpn.get(), qp);
        self.qps_version.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn add_cq(&self, cq: &Arc<CqShared>) {
        self.cqs.insert(cq.index(), cq);
    }

    pub(crate) fn add_rq(&self, rq: &Arc<RqShared>) {
        self.rqs.insert(rq.index(), rq);
    }

    pub(crate) fn qps(&self) -> Vec<Arc<QpShared>> {
        self.qps.all()
    }

    /// The queue pair of this number.
    pub(crate) fn qp(&self, qpn: Qpn) -> Option<Arc<QpShared>> {
        self.qps.get(qpn.get())
    }

    pub(crate) fn cqs(&self) -> Vec<Arc<CqShared>> {
        self.cqs.all()
    }

    /// The completion queue of this number.
    pub(crate) fn cq(&self, index: u32) -> Option<Arc<CqShared>> {
        self.cqs.get(index)
    }

    pub(crate) fn rqs(&self) -> Vec<Arc<RqShared>> {
        self.rqs.all()
    }

    pub(crate) fn poll_event(&self) -> Option<AsyncEvent> {
        self.progress();
        lock(&self.port.events).pop_front()
    }

    /// Called when a poll found nothing: does what a device would do in the meantime, now and then.
    /// Returns whether this was such a time.
    #[inline]
    pub(crate) fn idle(&self, polls: &mut u32) -> bool {
        *polls = polls.wrapping_add(1);
        let is_time =
            self.port.scheduled_qps.load(Ordering::Relaxed) > 0 || polls.is_multiple_of(IDLE_POLLS);
        if is_time {
            self.progress();
        }
        is_time
    }

    /// [`idle`](Self::idle) of a port that `timeline` carries packets for: what comes over the fabric comes without
    /// a call, so that the packets are looked at less often.
    pub(crate) fn idle_between(&self, timeline: &dyn Timeline, polls: &mut u32) -> bool {
        let is_time = self.idle(polls);
        if !is_time && polls.is_multiple_of(IDLE_POLLS_OF_MEMBER) {
            let happened = timeline.idle(self.port.lid);
            self.attend();
            return happened;
        }
        is_time
    }

    /// Looks at what was done to this port's queues, if anything was.
    pub(crate) fn attend(&self) {
        if self.port.owner.card.shared().attention.load(Ordering::Relaxed) != 0 {
            self.handle_attention();
        }
    }

    /// Does everything that can be done now.
    #[cold]
    pub(crate) fn progress(&self) {
        if self.port.has_stale_regions.load(Ordering::Relaxed) {
            self.forget_stale_regions();
        }
        if let Some(timeline) = self.port.timeline() {
            timeline.idle(self.port.lid);
            if self.port.fabric.is_none() {
                return self.attend();
            }
        }
        if clock::now_ns() >= self.port.serve_at_ns.load(Ordering::Relaxed) {
            self.serve();
        }
        self.attend();
        if self.port.scheduled_qps.load(Ordering::Relaxed) > 0 {
            for qp in self.qps() {
                qp.run_if_scheduled();
            }
        }
    }

    /// Has queue pairs forget regions that are no longer registered. A queue pair that is executed at this moment is
    /// asked again at the next call.
    fn forget_stale_regions(&self) {
        self.port.has_stale_regions.store(false, Ordering::Relaxed);
        let mut all_have = true;
        for qp in self.qps() {
            all_have &= qp.forget_stale_regions();
        }
        if !all_have {
            self.port.has_stale_regions.store(true, Ordering::Relaxed);
        }
    }

    /// Serves the sockets, unless another thread is at it.
    fn serve(&self) {
        let Some(Ok(mut fabric)) = self.port.fabric.as_ref().map(Mutex::try_lock) else { return };
        let has_changed = self.port.serve_sockets(&mut fabric);
        let is_connecting = fabric.is_connecting();
        drop(fabric);
        let (now_ns, pause) =
            (clock::now_ns(), if is_connecting { SERVE_CONNECTING_NS } else { SERVE_NS });
        self.port.serve_at_ns.store(now_ns + pause, Ordering::Relaxed);
        if is_connecting || has_changed {
            self.port.changed_ns.store(now_ns, Ordering::Relaxed);
        }
        self.reap();
        // A peer that was not told of a channel yet, or died before it signaled, has woken nobody.
        for cq in self.cqs() {
            cq.wake_if_due();
        }
        self.collect();
    }

    /// Before a queue pair is connected to port `lid`: a dead one of this number must not take the new
    /// connection with it. Takes locks of queue pairs.
    pub(crate) fn prepare_to_connect(&self, lid: u16) {
        let Some(mut fabric) = self.port.fabric.as_ref().map(lock) else { return };
        if fabric.has_lost(lid) {
            self.port.serve_sockets(&mut fabric);
        }
        drop(fabric);
        self.reap();
    }

    /// Cleans up after dead peers. Takes locks of queue pairs, so it must not run under one.
    fn reap(&self) {
        // Whoever meets the next port of a dead one's number waits here until that is finished.
        let _one_thread = lock(&self.reaping);
        let left = core::mem::take(&mut *lock(&self.port.left));
        for peer in left {
            let queues = AllQueues { qps: self.qps(), cqs: self.cqs(), rqs: self.rqs() };
            let lost = reap(&queues, self.port.lid.get(), &peer);
            if self.port.timeline().is_some() {
                // Its peers are not known by LID.
                lost.into_iter().for_each(|qpn| self.port.add_event(AsyncEvent::QpFatal(qpn)));
            }
            // Who has sent to it may remember it.
            peer.segments.clear();
            PortLock(&self.port.owner.card.shared().atomics).give(peer.lid);
            if let Some(fabric) = &self.port.fabric {
                lock(fabric).forget(peer.lid);
            }
            self.port.add_event(AsyncEvent::PeerGone(Lid::new(peer.lid)));
        }
    }

    /// Looks at what peers did to this port's queues.
    fn handle_attention(&self) {
        // SYNC(attention): pairs with the `Release` of whoever set it.
        if self.port.owner.card.shared().attention.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        for cq in self.cqs() {
            if cq.view.is_overrun() && cq.report_overrun() {
                self.port.add_event(AsyncEvent::CqOverrun(Cqn::from_low_bits(cq.index())));
            }
        }
        for qp in self.qps() {
            qp.handle_faults();
        }
    }

    /// How long a program may sleep without calling in.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let of_packets = match self.port.runner.get() {
            Some(Runner::Thread(_)) => return None,
            Some(Runner::Timeline(timeline)) if self.port.fabric.is_none() => {
                return Some(timeline.poll_timeout());
            }
            Some(Runner::Timeline(timeline)) => timeline.poll_timeout(),
            None => Duration::MAX,
        };
        if self.port.scheduled_qps.load(Ordering::Relaxed) > 0 {
            return Some(SLEEP_SCHEDULED.min(of_packets));
        }
        let quiet_ns = clock::now_ns().saturating_sub(self.port.changed_ns.load(Ordering::Relaxed));
        let of_fabric = if quiet_ns < QUIET_NS { SLEEP_CHANGING } else { SLEEP_QUIET };
        Some(of_fabric.min(of_packets))
    }

    /// Gives back what was left behind, if nobody is inside any more.
    pub(crate) fn collect(&self) {
        let now_ns = clock::now_ns();
        if now_ns < self.port.look_at_ns.load(Ordering::Relaxed) {
            return;
        }
        let objects = {
            // Changed under the lock: else what is left behind at this moment would never be looked at.
            let mut objects = lock(&self.port.left_behind);
            let next_ns = if objects.is_empty() { u64::MAX } else { now_ns + LOOK_NS };
            self.port.look_at_ns.store(next_ns, Ordering::Relaxed);
            core::mem::take(&mut *objects)
        };
        if objects.is_empty() {
            return;
        }
        barrier::store_load();
        if self.port.quiesce(QUIESCE_BRIEFLY_NS).is_err() {
            return lock(&self.port.left_behind).extend(objects);
        }
        // Not under the lock: a queue pair that is dropped comes back here.
        for object in objects {
            if let Some(index) = object.key_index {
                self.port.owner.return_index(Table::Mr, index);
            }
        }
    }
}

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenFailure {
    #[error(transparent)]
    Option(#[from] PortOptionError),
    #[error(transparent)]
    Map(#[from] memory::MapError),
    #[error(transparent)]
    Rendezvous(#[from] JoinError),
    #[error("cannot start the NIC thread: {0}")]
    Thread(#[from] std::io::Error),
}

#[cfg(all(test, not(miri)))]
mod tests {
    use verbs::{
        Access, CqConfig, InitAttr, Mtu, Nic as _, QKey, QpAddress, QpConfig, QpState, Qpn,
        QueuePair as _, RcPeer, RnrTimer, RtrAttr, Transition, Transport,
    };

    use super::*;
    use crate::{
        Config, Nic, Violation,
        nic::{
            fabric::{Export, small_card},
            port_state::LOG_MAX,
        },
        open,
    };

    type Qp = <Nic as verbs::Nic>::Qp;

    fn queue_pair(nic: &Nic) -> Qp {
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
        nic.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq)).unwrap()
    }

    /// INIT and RTR, with a peer at port `lid`.
    fn connect(nic: &Nic, qp: &mut Qp, lid: u16) {
        let QpAddress { mut address, .. } = nic.endpoint(qp);
        address.route = verbs::PortRoute::Lid(Lid::new(lid));
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

    fn meet(port: &PortState, other: &mut Fabric) {
        while port.import(other.lid).is_err() {
            other.serve();
            port.fetch();
        }
    }

    /// Its peers may hear of the new one before they have looked at the socket of the old one.
    #[test]
    fn a_dead_port_takes_no_connection_to_its_successor_with_it() {
        let fabric = format!("reborn-{}", std::process::id());
        let config = Config { fabric: fabric.clone(), card_mib: 8, ..Config::default() };
        let nic = open(&config).unwrap();
        let housekeeping = &nic.device().0;
        let port = &housekeeping.port;
        let mut dead = Fabric::join(&fabric, small_card(), None).unwrap();
        let lid = dead.lid;
        meet(port, &mut dead);
        let [mut before, mut after] = [(); 2].map(|()| queue_pair(&nic));
        connect(&nic, &mut before, lid);
        assert_eq!(before.state(), QpState::Rtr);
        port.serve_at_ns.store(u64::MAX, Ordering::Relaxed); // asleep
        drop(dead);
        let mut successor = Fabric::join_as(lid, &fabric, small_card(), None).unwrap();
        connect(&nic, &mut after, lid);
        housekeeping.serve();
        assert_eq!(before.state(), QpState::Err);
        assert_eq!(after.state(), QpState::Rtr);
        assert_eq!(housekeeping.poll_event(), Some(AsyncEvent::PeerGone(Lid::new(lid))));
        meet(port, &mut successor);
        assert_eq!(after.state(), QpState::Rtr);
    }

    /// A queue pair may know the port for as long as it likes.
    #[test]
    fn the_regions_of_a_dead_port_are_unmapped() {
        let fabric = format!("dead-regions-{}", std::process::id());
        let config = Config { fabric: fabric.clone(), card_mib: 8, ..Config::default() };
        let nic = open(&config).unwrap();
        let housekeeping = &nic.device().0;
        let port = &housekeeping.port;
        let mut dead = Fabric::join(&fabric, small_card(), None).unwrap();
        let region = memory::Region::memfd("copyrpc-test", 4096).unwrap();
        dead.export(Export::Segment { id: 1, region: Arc::new(region) });
        meet(port, &mut dead);
        let known = port.import(dead.lid).unwrap();
        while known.segments.len() == 0 {
            dead.serve();
            port.fetch();
        }
        drop(dead);
        while !known.is_marked_dead() {
            housekeeping.serve();
        }
        housekeeping.serve();
        assert_eq!(known.segments.len(), 0);
    }

    #[test]
    fn a_port_is_not_used_before_it_has_let_this_one_in() {
        let fabric = format!("outside-{}", std::process::id());
        let config = Config { fabric: fabric.clone(), card_mib: 8, ..Config::default() };
        let nic = open(&config).unwrap();
        let housekeeping = &nic.device().0;
        let port = &housekeeping.port;
        let mut other = Fabric::join(&fabric, small_card(), None).unwrap();
        other.quarantine(port.lid.get());
        for _ in 0..10 {
            assert_eq!(port.import(other.lid).map(drop), Err(true), "somebody is there");
            other.serve();
            port.fetch();
        }
        other.forget(port.lid.get());
        meet(port, &mut other);
    }

    /// Nobody may ever fetch them.
    #[test]
    fn of_events_the_last_are_kept_and_of_violations_the_first() {
        let fabric = format!("logs-{}", std::process::id());
        let nic = open(&Config { fabric, card_mib: 8, ..Config::default() }).unwrap();
        let housekeeping = &nic.device().0;
        let port = &housekeeping.port;
        for qpn in 1..=u32::try_from(LOG_MAX + 10).unwrap() {
            port.add_event(AsyncEvent::QpFatal(Qpn::from_low_bits(qpn)));
            port.add_violation(Violation::BadWqe { qpn, counter: 0, cause: "none" });
        }
        let events: Vec<_> = core::iter::from_fn(|| housekeeping.poll_event()).collect();
        let first = AsyncEvent::QpFatal(Qpn::from_low_bits(11));
        assert_eq!((events.len(), events[0]), (LOG_MAX, first));
        let violations = port.take_violations();
        assert_eq!(violations.len(), LOG_MAX);
        assert!(matches!(violations[0], Violation::BadWqe { qpn: 1, .. }));
    }

    #[test]
    fn a_port_sleeps_longer_while_nobody_comes_or_goes() {
        let fabric = format!("quiet-{}", std::process::id());
        let config = Config { fabric, card_mib: 8, ..Config::default() };
        let (nic, other) = (open(&config).unwrap(), open(&config).unwrap());
        let housekeeping = &nic.device().0;
        let port = &housekeeping.port;
        port.changed_ns.store(0, Ordering::Relaxed);
        housekeeping.serve();
        assert_eq!(housekeeping.poll_timeout(), Some(SLEEP_QUIET));
        let imported = other.device().0.port.import(port.lid.get());
        assert!(matches!(imported, Err(true)), "somebody is there, and has not answered yet");
        housekeeping.serve();
        assert_ne!(port.changed_ns.load(Ordering::Relaxed), 0);
        port.changed_ns.store(u64::MAX, Ordering::Relaxed); // now, however slow this machine is
        assert_eq!(housekeeping.poll_timeout(), Some(SLEEP_CHANGING));
    }
}
