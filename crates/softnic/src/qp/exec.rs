//! Executing a queue pair: the engine's requester, and the port that it works on.

use std::collections::{HashMap, VecDeque};

use memory::sync::Arc;
use os::clock;
use verbs::{Access, Gid, Lid, Qpn, Transport};
use wire::{
    cqe::{self, CqeView, Scatter, Syndrome},
    wqe::{self, Sge},
};

use super::{QpShared, wake_own};
use crate::{
    card::{layout::address_word, target::Target},
    config::Link,
    context::Context,
    engine::{
        Activity, Arrival, Carried, Chunk, Completed, Key, Memory as _, Order, Port, Reply,
        Request, Requester, Scratch, respond, respond_to_plain,
    },
    fabric::Peer,
    memory::{MrCache, PortMemory},
    strict::{Random, Violation},
};

/// WQEs that one call executes.
const BUDGET: usize = 1 << 15;

/// Destinations that a UD or DC queue pair remembers.
const DESTINATIONS_MAX: usize = 4096;

/// Completions that strict mode holds back.
const HELD_MAX: usize = 64;

/// What belongs to the thread that executes the queue pair.
#[derive(Debug)]
pub(super) struct Exec {
    pub(super) requester: Requester,
    scratch: Scratch,
    local: MrCache,
    destinations: Destinations,
    wakes: Vec<Wake>,
    strict: Option<Strict>,
}

/// What strict mode remembers.
#[derive(Debug)]
struct Strict {
    random: Random,
    held: VecDeque<Completed>,
}

/// How a call to [`Exec::advance`] went.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) activity: Activity,
    /// The requester has failed since the last call.
    pub(super) fell: bool,
}

impl Exec {
    pub(super) fn new(transport: Transport, qpn: Qpn, strict: Option<u64>) -> Self {
        let strict = strict.map(|seed| Strict {
            random: Random::new(seed ^ u64::from(qpn.get()) << 32),
            held: VecDeque::new(),
        });
        Self {
            requester: Requester::new(transport, qpn),
            scratch: Scratch::new(),
            local: MrCache::default(),
            destinations: Destinations::new(transport),
            wakes: Vec::new(),
            strict,
        }
    }

    pub(super) fn reset(&mut self, transport: Transport, qpn: Qpn) {
        let seed = self.strict.as_mut().map(|strict| strict.random.next());
        *self = Self::new(transport, qpn, seed);
    }

    /// The queue pair goes away: nothing of it completes any more.
    pub(super) fn stop(&mut self) {
        self.requester.stop();
        if let Some(strict) = &mut self.strict {
            strict.held.clear();
        }
    }

    pub(super) fn connect(&mut self, lid: u16, qpn: Qpn) {
        self.requester.connect((Lid::new(lid), qpn));
    }

    #[inline]
    pub(super) fn advance(&mut self, qp: &QpShared, posted: u16) -> Ran {
        let Some(ring) = qp.send_ring() else {
            return Ran { activity: Activity::Idle, fell: false };
        };
        let mut port = ExecPort {
            qp,
            local: &mut self.local,
            destinations: &mut self.destinations,
            wakes: &mut self.wakes,
            strict: self.strict.as_mut(),
            fell: false,
        };
        if port.strict.is_some() {
            port.release_held();
        }
        let mut activity =
            self.requester.advance(posted, ring, &mut port, &mut self.scratch, BUDGET);
        let fell = port.fell;
        if port.strict.is_some_and(|strict| !strict.held.is_empty()) {
            activity = Activity::More;
        }
        ring.set_executed(self.requester.next());
        Ran { activity, fell }
    }

    /// Signals the channels of queues that got something.
    #[inline]
    pub(super) fn signal(&mut self, context: &Context) {
        while let Some(wake) = self.wakes.pop() {
            wake.signal(&mut self.destinations, context);
        }
    }
}

/// A completion queue with a channel that got something.
#[derive(Debug)]
enum Wake {
    Own(Arc<crate::objects::CqShared>, bool),
    /// That of a destination, which says the rest.
    Peer(Whither),
    /// That of one that is no destination any more, and whether it got something solicited.
    Former(Box<Destination>, bool),
}

impl Wake {
    #[inline]
    fn signal(self, destinations: &mut Destinations, context: &Context) {
        match self {
            Self::Own(cq, solicited) => wake_own(&cq, solicited),
            Self::Peer(key) => {
                let Some(destination) = destinations.get_mut(key) else { return };
                if let Some(solicited) = destination.due.take() {
                    destination.signal(solicited, context);
                }
            }
            Self::Former(destination, solicited) => destination.signal(solicited, context),
        }
    }
}

/// A queue pair that was sent to, ready for more.
#[derive(Debug)]
struct Destination {
    peer: Arc<Peer>,
    target: Target,
    remote: MrCache,
    /// Its completion queue has a channel, and got something; whether that was solicited.
    due: Option<bool>,
}

impl Destination {
    /// Notes that its completion queue got something; `key` is its own.
    #[inline(always)]
    fn note(&mut self, solicited: bool, key: Whither, wakes: &mut Vec<Wake>) {
        if self.target.cq.channel == 0 {
            return;
        }
        if self.due.is_none() {
            wakes.push(Wake::Peer(key));
        }
        self.due = Some(solicited || self.due == Some(true));
    }

    /// What is due, of one that is forgotten.
    fn wake(mut self: Box<Self>) -> Option<Wake> {
        self.due.take().map(|solicited| Wake::Former(self, solicited))
    }

    #[inline]
    fn signal(&self, solicited: bool, context: &Context) {
        let cq = &self.target.cq;
        if cq.armed().fires(solicited) && !self.peer.signal(cq.channel) {
            self.signal_late(context);
        }
    }

    /// A channel is shown before its queue is: it is in the socket.
    #[cold]
    fn signal_late(&self, context: &Context) {
        context.fetch();
        let cq = &self.target.cq;
        if !self.peer.signal(cq.channel) {
            // Its owner is gone, or has not found room in the socket: stay armed, so that the next
            // completion tries again.
            cq.armed().arm(crate::shared::arm::NEXT);
        }
    }
}

/// Places of a queue pair that sends to many, a power of two.
const NEAR_COUNT: usize = 64;

/// [`address_word`] of where a message goes.
type Whither = u64;

/// The last destination of a place.
type Near = Option<(Whither, Box<Destination>)>;

/// Destinations: the last one of each place without a look-up.
#[derive(Debug)]
struct Destinations {
    /// As many as a power of two; a single one where there is only one peer.
    near: Box<[Near]>,
    others: HashMap<Whither, Box<Destination>>,
}

impl Destinations {
    fn new(transport: Transport) -> Self {
        let count = if transport == Transport::Rc { 1 } else { NEAR_COUNT };
        Self { near: (0..count).map(|_| None).collect(), others: HashMap::new() }
    }

    /// Ports give the same numbers to their queue pairs: spread both.
    #[inline(always)]
    fn place(&self, key: Whither) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "masked to the number of places")]
        let spread = (key + 5 * (key >> 32)) as usize;
        spread & (self.near.len() - 1)
    }

    /// The destination, resolved again if it has changed. What is due to those that are forgotten for it
    /// goes to `wakes`.
    #[inline(always)]
    fn find(
        &mut self,
        key: Whither,
        qp: &QpShared,
        wakes: &mut Vec<Wake>,
    ) -> Result<&mut Destination, Reply> {
        if self.current(key).is_none() {
            self.look_up(key, qp, wakes)?;
        }
        let place = self.place(key);
        self.near[place].as_mut().map(|(_, destination)| &mut **destination).ok_or(Reply::Silence)
    }

    /// The destination, if it was the last one of its place and has not changed.
    #[inline(always)]
    fn current(&mut self, key: Whither) -> Option<&mut Destination> {
        let place = self.place(key);
        Self::checked(self.near.get_mut(place)?, key)
    }

    /// [`current`](Self::current) where there is only one place.
    #[inline(always)]
    fn only(&mut self, key: Whither) -> Option<&mut Destination> {
        Self::checked(self.near.first_mut()?, key)
    }

    #[inline(always)]
    fn checked(near: &mut Near, key: Whither) -> Option<&mut Destination> {
        let (last, destination) = near.as_mut()?;
        let hit = *last == key && !destination.peer.is_buried() && destination.target.is_current();
        hit.then_some(&mut **destination)
    }

    /// The destination, changed or not.
    #[inline]
    fn get_mut(&mut self, key: Whither) -> Option<&mut Destination> {
        let place = self.place(key);
        match self.near.get_mut(place) {
            Some(Some((last, destination))) if *last == key => Some(destination),
            _ => self.others.get_mut(&key).map(|destination| &mut **destination),
        }
    }

    /// Whoever comes and goes leaves nothing mapped but the last one.
    fn forget_buried(&mut self) {
        self.others.retain(|_, destination| !destination.peer.is_buried());
        for near in &mut self.near {
            near.take_if(|(_, destination)| destination.peer.is_buried());
        }
    }

    #[cold]
    fn look_up(&mut self, key: Whither, qp: &QpShared, wakes: &mut Vec<Wake>) -> Result<(), Reply> {
        #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
        let (lid, qpn) = ((key >> 32) as u16, key as u32);
        let place = self.place(key);
        if let Some((last, destination)) = self.near[place].take() {
            if self.others.len() >= DESTINATIONS_MAX {
                wakes.extend(self.others.drain().filter_map(|(_, former)| former.wake()));
            }
            self.others.insert(last, destination);
        }
        let mut found = self.others.remove(&key);
        if let Some(destination) = found.take_if(|destination| destination.peer.is_buried()) {
            drop(destination);
            return Err(Reply::Dead);
        }
        let destination = match found {
            Some(destination) if destination.target.is_current() => destination,
            stale => {
                let peer = match stale {
                    Some(stale) => {
                        let peer = stale.peer.clone();
                        wakes.extend(stale.wake());
                        peer
                    }
                    None => {
                        self.forget_buried();
                        qp.context.import(lid).map_err(|connecting| {
                            if connecting { Reply::Connecting } else { Reply::Silence }
                        })?
                    }
                };
                let target = Qpn::new(qpn).and_then(|qpn| Target::resolve(&peer.card, qpn));
                let target = target.ok_or(Reply::Silence)?;
                Box::new(Destination { peer, target, remote: MrCache::default(), due: None })
            }
        };
        self.near[place] = Some((key, destination));
        Ok(())
    }
}

/// The port, as the requester of one queue pair uses it.
struct ExecPort<'a> {
    qp: &'a QpShared,
    local: &'a mut MrCache,
    destinations: &'a mut Destinations,
    wakes: &'a mut Vec<Wake>,
    strict: Option<&'a mut Strict>,
    fell: bool,
}

impl ExecPort<'_> {
    /// Strict mode: writes completions that were held back, sometimes.
    #[cold]
    fn release_held(&mut self) {
        let Some(strict) = &mut self.strict else { return };
        if strict.held.is_empty() || !strict.random.one_in(2) {
            return;
        }
        for completed in core::mem::take(&mut strict.held) {
            self.write_completion(&completed);
        }
    }

    #[inline]
    fn write_completion(&mut self, completed: &Completed) {
        let qp = self.qp;
        let user_index = wire::ids::UserIndex::from_low_bits(qp.qpn.get());
        let cqe = match completed.failure {
            None => CqeView::Requester(cqe::Requester {
                opcode: completed.opcode,
                qpn: qp.qpn,
                wqe_counter: completed.counter,
                user_index,
                byte_cnt: completed.len_bytes,
                scatter: Scatter::Memory,
                timestamp: 0,
            }),
            Some(syndrome) => CqeView::Error(cqe::Error {
                is_requester: true,
                qpn: qp.qpn,
                wqe_counter: completed.counter,
                user_index,
                send_opcode: completed.opcode.code(),
                syndrome,
                vendor_syndrome: 0,
            }),
        };
        let view = &qp.send_cq.view;
        let Ok(position) = view.reserve(qp.context.lid.get()) else {
            // The queue is marked; housekeeping finds it and fells its queue pairs.
            return;
        };
        view.publish_at(position, &cqe, &[], || {});
        if qp.send_cq.channel.is_some() {
            let failed = completed.failure.is_some();
            match self.wakes.last_mut() {
                Some(Wake::Own(cq, solicited)) if Arc::ptr_eq(cq, &qp.send_cq) => {
                    *solicited |= failed;
                }
                _ => self.wakes.push(Wake::Own(qp.send_cq.clone(), failed)),
            }
        }
    }
}

impl Port for ExecPort<'_> {
    fn lid(&self) -> Lid {
        self.qp.context.lid
    }

    #[inline(always)]
    fn local(&mut self, sge: &Sge, write: bool) -> Result<Chunk, Syndrome> {
        let context = &self.qp.context;
        let mut memory = PortMemory {
            cache: self.local,
            card: &context.owner.card,
            segments: &context.segments,
            context,
        };
        let need = if write { Access::LOCAL_WRITE } else { Access::empty() };
        memory
            .locate(sge.lkey.get(), sge.addr, u64::from(sge.len_bytes), need, self.qp.pd)
            .map_err(|_| Syndrome::LocalProtection)
    }

    fn destination(&self, av: &wqe::Av) -> Lid {
        match (self.qp.context.config.link, av.extension) {
            (Link::Roce, Some(extension)) => {
                let bytes = extension.rgid.to_bytes();
                Lid::new(u16::from_be_bytes([bytes[14], bytes[15]]))
            }
            _ => Lid::new(av.rlid),
        }
    }

    #[inline(always)]
    fn carry(&mut self, to: Lid, request: &Request, local: &[Chunk]) -> Reply {
        let key = address_word(to, request.to);
        let destination = match self.destinations.find(key, self.qp, self.wakes) {
            Ok(destination) => destination,
            Err(reply) => return reply,
        };
        let order = match &mut self.strict {
            Some(strict) => Order::Shuffled(strict.random.next()),
            None => Order::Ascending,
        };
        let memory = PortMemory {
            cache: &mut destination.remote,
            card: &destination.peer.card,
            segments: &destination.peer.segments,
            context: &self.qp.context,
        };
        let target = &destination.target;
        let answered = respond(Arrival { request, local, target, memory, order });
        if let Some(solicited) = answered.arrived {
            destination.note(solicited, key, self.wakes);
        }
        answered.reply
    }

    #[inline(always)]
    fn carry_plain(&mut self, to: Lid, request: Request, payload: Chunk) -> Carried {
        let key = address_word(to, request.to);
        let found = match request.key {
            Key::Connected => self.destinations.only(key),
            Key::Ud(_) | Key::Dc(_) => self.destinations.current(key),
        };
        let Some(destination) = found else { return Carried::Declined };
        let mut memory = PortMemory {
            cache: &mut destination.remote,
            card: &destination.peer.card,
            segments: &destination.peer.segments,
            context: &self.qp.context,
        };
        let mut arrived = None;
        let target = &destination.target;
        let carried = respond_to_plain(request, payload, target, &mut memory, |solicited| {
            arrived = Some(solicited);
        });
        if let Some(solicited) = arrived {
            destination.note(solicited, key, self.wakes);
        }
        carried
    }

    #[inline]
    fn complete(&mut self, completed: &Completed) {
        if let Some(strict) = &mut self.strict {
            strict.held.push_back(*completed);
            // A failure is reported at once: what is flushed after it must not come before it.
            if strict.held.len() < HELD_MAX && completed.failure.is_none() {
                return self.release_held();
            }
            for completed in core::mem::take(&mut strict.held) {
                self.write_completion(&completed);
            }
            return;
        }
        self.write_completion(completed);
    }

    fn fell(&mut self) {
        self.fell = true;
        self.qp.note_fall();
    }

    fn defers(&mut self) -> bool {
        self.strict.as_mut().is_some_and(|strict| strict.random.one_in(2))
    }

    #[inline]
    fn is_plain(&self) -> bool {
        self.strict.is_none()
    }

    fn resumes(&mut self) -> bool {
        self.strict.as_mut().is_none_or(|strict| strict.random.one_in(2))
    }

    fn malformed(&mut self, counter: u16, cause: &'static str) {
        let qpn = self.qp.qpn.get();
        self.qp.context.add_violation(Violation::BadWqe { qpn, counter, cause });
    }

    fn now_ns(&mut self) -> u64 {
        clock::now_ns()
    }
}

/// GID of a port: link-local, with its LID in the last bytes.
pub(crate) fn gid_of(lid: Lid) -> Gid {
    let [high, low] = lid.get().to_be_bytes();
    Gid::new([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0xff, 0xfe, 0, high, low])
}

#[cfg(all(test, not(miri)))]
mod tests {
    use verbs::{
        Access, CompletionQueue as _, CqConfig, InitAttr, Mtu, Nic as _, Op, QKey, QpConfig,
        QueuePair as _, RnrTimer, RtrAttr, RtsAttr, SendRequest, Transition, Transport,
    };

    use crate::{Config, open};

    /// The NIC thread may have a queue pair in its hands that the program destroys.
    #[test]
    fn nothing_that_strict_mode_holds_back_completes_after_a_queue_pair_is_destroyed() {
        let fabric = format!("destroyed-{}", std::process::id());
        let config = Config { fabric, card_mib: 8, strict: Some(3), ..Config::default() };
        let nic = open(&config).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let mut cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
        let mut qp = nic.create_qp(&pd, &QpConfig::new(Transport::Ud, &cq)).unwrap();
        let init = InitAttr { access: Access::empty(), qkey: QKey::default() };
        let rtr = RtrAttr {
            path_mtu: Mtu::B4096,
            peer: None,
            rnr_timer: RnrTimer::from_code(1),
            reads_in_max: 1,
        };
        qp.modify(&Transition::Init(init)).unwrap();
        qp.modify(&Transition::Rtr(rtr)).unwrap();
        qp.modify(&Transition::Rts(RtsAttr::default())).unwrap();
        let in_hand = nic.device().0.qps().pop().unwrap();
        let is_held = || {
            // SAFETY: no other thread knows the queue pair.
            let exec = unsafe { &*in_hand.exec.get() };
            !exec.strict.as_ref().unwrap().held.is_empty()
        };
        let posted = (0..60).find(|_| {
            qp.post_send(&SendRequest::signaled(Op::Nop)).unwrap();
            qp.ring_send();
            is_held()
        });
        assert!(posted.is_some(), "nothing is held back");
        drop(qp);
        (0..100).for_each(|_| in_hand.run());
        assert_eq!(cq.poll(), None);
    }
}
