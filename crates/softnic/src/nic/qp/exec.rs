//! Executing a queue pair: the engine's requester, and the port that it works on.

use std::collections::VecDeque;

use memory::sync::Arc;
use verbs::{Access, GidRoute, Lid, LinkLayer, PortRoute, Qpn, Transport};
use wire::{
    cqe::{self, CqeView, Scatter, Syndrome},
    wqe::{self, Sge},
};

use super::{
    QpShared,
    destinations::{DestinationKey, Destinations, Wake},
};
use crate::nic::{
    engine::{
        Activity, Arrival, Carried, Chunk, Completed, Key, Memory as _, Order, Packet, Port, Reply,
        ReplyPacket, Request, Requester, Scratch, Sequence, copy_out_of, respond, respond_to_plain,
    },
    memory::{MrCache, PortMemory},
    port_state::{PortState, Way},
    strict::{Random, Violation},
};

/// WQEs that one call executes.
const BUDGET: usize = 1 << 15;

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
    mode: Mode,
    pace: Pace,
}

/// The time that WQEs take, where they take any.
#[derive(Debug)]
struct Pace {
    /// Of one; 0: they take none.
    wqe_ns: u64,
    /// When the first one in the ring has taken it.
    due_ns: Option<u64>,
}

/// How requests leave, and what is remembered for that.
#[derive(Debug)]
enum Mode {
    /// By calls on the mapped cards of peers.
    Plain,
    /// The same, as badly as hardware may.
    Strict(Strict),
    /// As packets: those that have left the queue pair and not yet its port. On a port that is also on a fabric a
    /// queue pair begins so, until it is connected to a port there.
    Packets(VecDeque<Packet>),
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
    pub(super) fn new(
        port: &PortState,
        transport: Transport,
        qpn: Qpn,
        is_unreliable: bool,
    ) -> Self {
        let mode = match port.config.strict {
            _ if port.timeline().is_some() => Mode::Packets(VecDeque::new()),
            None => Mode::Plain,
            Some(seed) => Mode::Strict(Strict {
                random: Random::new(seed ^ u64::from(qpn.get()) << 32),
                held: VecDeque::new(),
            }),
        };
        Self {
            requester: Requester::new(transport, qpn, is_unreliable),
            scratch: Scratch::new(),
            local: MrCache::default(),
            destinations: Destinations::new(transport),
            wakes: Vec::new(),
            mode,
            pace: Pace { wqe_ns: port.config.wqe_ns, due_ns: None },
        }
    }

    pub(super) fn reset(&mut self, port: &PortState, transport: Transport, qpn: Qpn) {
        let seed = match &mut self.mode {
            Mode::Strict(strict) => Some(strict.random.next()),
            Mode::Plain | Mode::Packets(_) => None,
        };
        *self = Self::new(port, transport, qpn, self.requester.is_unreliable);
        if let (Some(seed), Mode::Strict(strict)) = (seed, &mut self.mode) {
            strict.random = Random::new(seed ^ u64::from(qpn.get()) << 32);
        }
    }

    /// The queue pair goes away: nothing of it completes any more.
    pub(super) fn stop(&mut self) {
        self.requester.stop();
        match &mut self.mode {
            Mode::Plain => {}
            Mode::Strict(strict) => strict.held.clear(),
            Mode::Packets(packets) => packets.clear(),
        }
    }

    /// Forgets regions that are no longer registered, so that their bytes are unmapped.
    pub(super) fn forget_stale_regions(&mut self) {
        self.local.forget_stale();
        self.destinations.forget_stale_regions();
    }

    pub(super) fn connect(&mut self, way: Way, qpn: Qpn) {
        if let (Way::Card(_), Mode::Packets(_)) = (way, &self.mode) {
            self.mode = Mode::Plain;
        }
        self.requester.connect((way.lid(), qpn));
    }

    #[inline]
    pub(super) fn advance(&mut self, qp: &QpShared, posted: u16) -> Ran {
        if self.pace.wqe_ns != 0 {
            return self.advance_at_pace(qp, posted);
        }
        self.advance_by(qp, posted, BUDGET)
    }

    /// Executes the WQEs that have taken their time. Whoever calls late finds as many as were due meanwhile.
    #[cold]
    fn advance_at_pace(&mut self, qp: &QpShared, posted: u16) -> Ran {
        let now_ns = qp.port.now_ns();
        let mut ran = self.advance_by(qp, posted, 0);
        while self.requester.next() != posted {
            let due_ns = *self.pace.due_ns.get_or_insert(now_ns + self.pace.wqe_ns);
            if now_ns < due_ns {
                return ran;
            }
            let before = self.requester.next();
            let fell = ran.fell;
            ran = self.advance_by(qp, posted, 1);
            ran.fell |= fell;
            if self.requester.next() == before {
                // It waits for something else.
                return ran;
            }
            self.pace.due_ns = Some(due_ns + self.pace.wqe_ns);
        }
        self.pace.due_ns = None;
        ran
    }

    /// Executes at most `budget` WQEs. Not inlined: what is generic here is compiled once, and not for every crate that
    /// posts.
    pub(super) fn advance_by(&mut self, qp: &QpShared, posted: u16, budget: usize) -> Ran {
        let Some(ring) = qp.send_ring() else {
            return Ran { activity: Activity::Idle, fell: false };
        };
        let mut port = ExecPort {
            qp,
            local: &mut self.local,
            destinations: &mut self.destinations,
            wakes: &mut self.wakes,
            mode: &mut self.mode,
            fell: false,
        };
        if matches!(port.mode, Mode::Strict(_)) {
            port.release_held();
        }
        let mut activity =
            self.requester.advance(posted, ring, &mut port, &mut self.scratch, budget);
        let fell = port.fell;
        if matches!(port.mode, Mode::Strict(strict) if !strict.held.is_empty()) {
            activity = Activity::More;
        }
        ring.set_executed(self.requester.next());
        Ran { activity, fell }
    }

    /// The next packet that is to leave the port.
    pub(super) fn take_packet(&mut self) -> Option<Packet> {
        match &mut self.mode {
            Mode::Packets(packets) => packets.pop_front(),
            Mode::Plain | Mode::Strict(_) => None,
        }
    }

    /// Takes the answer to a packet. Says whether it was one that was waited for, and whether the
    /// requester has failed by it.
    pub(super) fn settle(&mut self, qp: &QpShared, answer: &ReplyPacket) -> (bool, bool) {
        let mut port = ExecPort {
            qp,
            local: &mut self.local,
            destinations: &mut self.destinations,
            wakes: &mut self.wakes,
            mode: &mut self.mode,
            fell: false,
        };
        let settled = self.requester.settle(answer, &mut port, &mut self.scratch);
        (settled, port.fell)
    }

    /// Signals the channels of queues that got something.
    #[inline]
    pub(super) fn signal(&mut self, port: &PortState) {
        while let Some(wake) = self.wakes.pop() {
            wake.signal(&mut self.destinations, port);
        }
    }
}

/// The port, as the requester of one queue pair uses it.
struct ExecPort<'a> {
    qp: &'a QpShared,
    local: &'a mut MrCache,
    destinations: &'a mut Destinations,
    wakes: &'a mut Vec<Wake>,
    mode: &'a mut Mode,
    fell: bool,
}

impl ExecPort<'_> {
    /// Strict mode: writes completions that were held back, sometimes.
    #[cold]
    fn release_held(&mut self) {
        let Mode::Strict(strict) = &mut self.mode else { return };
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
        let user_index = qp.user_index();
        let cqe = match completed.failure {
            None => CqeView::Requester(cqe::RequesterCqe {
                opcode: completed.opcode,
                qpn: qp.qpn,
                wqe_counter: completed.counter,
                user_index,
                byte_cnt: completed.len_bytes,
                scatter: Scatter::Memory,
                timestamp: 0,
            }),
            Some(syndrome) => CqeView::Error(cqe::ErrorCqe {
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
        let Ok(position) = view.reserve(qp.port.lid.get()) else {
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
        self.qp.port.lid
    }

    #[inline(always)]
    fn local(&mut self, sge: &Sge, write: bool) -> Result<Chunk, Syndrome> {
        let port = &self.qp.port;
        let mut memory = PortMemory {
            cache: self.local,
            card: &port.owner.card,
            segments: &port.segments,
            port,
        };
        let need = if write { Access::LOCAL_WRITE } else { Access::empty() };
        memory
            .locate(sge.lkey.get(), sge.addr, u64::from(sge.len_bytes), need, self.qp.pd)
            .map_err(|_| Syndrome::LocalProtection)
    }

    fn is_roce(&self) -> bool {
        self.qp.port.config.link == LinkLayer::Ethernet
    }

    fn destination(&self, av: &wqe::Av) -> Lid {
        match (self.qp.port.config.link, av.extension) {
            (LinkLayer::Ethernet, Some(extension)) => {
                let (gid, flow_label) = (extension.rgid, 0);
                let route = GidRoute { gid, hop_limit: 0, traffic_class: 0, flow_label };
                self.qp.port.lid_of(&PortRoute::Gid(route))
            }
            // Nobody has LID 0.
            _ if self.qp.port.is_grh_missing(av.extension.is_some_and(|e| e.has_grh())) => {
                Lid::new(0)
            }
            _ => Lid::new(av.rlid),
        }
    }

    #[inline(always)]
    fn carry(&mut self, to: Lid, request: &Request, local: &[Chunk]) -> Reply {
        let key = DestinationKey::new(to, request.to);
        let destination = match self.destinations.find(key, self.qp, self.wakes) {
            Ok(destination) => destination,
            Err(reply) => return reply,
        };
        let order = match &mut self.mode {
            Mode::Strict(strict) => Order::Shuffled(strict.random.next()),
            Mode::Plain | Mode::Packets(_) => Order::Ascending,
        };
        let memory = PortMemory {
            cache: &mut destination.remote,
            card: &destination.peer.card,
            segments: &destination.peer.segments,
            port: &self.qp.port,
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
        let key = DestinationKey::new(to, request.to);
        let found = match request.key {
            Key::Connected => self.destinations.only(key),
            Key::Ud(_) | Key::Dc(_) => self.destinations.current(key),
        };
        let Some(destination) = found else { return Carried::Declined };
        let mut memory = PortMemory {
            cache: &mut destination.remote,
            card: &destination.peer.card,
            segments: &destination.peer.segments,
            port: &self.qp.port,
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
        if let Mode::Strict(strict) = &mut self.mode {
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
        match &mut self.mode {
            Mode::Strict(strict) => strict.random.one_in(2),
            Mode::Plain | Mode::Packets(_) => false,
        }
    }

    #[inline]
    fn is_plain(&self) -> bool {
        matches!(self.mode, Mode::Plain)
    }

    fn resumes(&mut self) -> bool {
        match &mut self.mode {
            Mode::Strict(strict) => strict.random.one_in(2),
            Mode::Plain | Mode::Packets(_) => true,
        }
    }

    fn malformed(&mut self, counter: u16, cause: &'static str) {
        let qpn = self.qp.qpn.get();
        self.qp.port.add_violation(Violation::BadWqe { qpn, counter, cause });
    }

    fn now_ns(&mut self) -> u64 {
        self.qp.port.now_ns()
    }

    fn answers_later(&self) -> bool {
        matches!(self.mode, Mode::Packets(_))
    }

    fn is_reliable(&self) -> bool {
        self.qp.port.timeline().is_some_and(|timeline| timeline.is_reliable())
    }

    fn send(&mut self, to: Lid, request: &Request, sequence: Sequence, payload: &[Chunk]) {
        let Mode::Packets(packets) = &mut self.mode else { return };
        let len = if request.has_payload() { request.len_bytes as usize } else { 0 };
        let mut bytes = vec![0; len];
        // SAFETY: `local` checked the memory, or the payload is in a private copy of the WQE.
        unsafe { copy_out_of(payload, &mut bytes) };
        packets.push_back(Packet { to, request: *request, sequence, payload: bytes });
    }

    fn new_connection(&mut self) -> u32 {
        self.qp.port.new_id()
    }
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
            matches!(&exec.mode, super::Mode::Strict(strict) if !strict.held.is_empty())
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
