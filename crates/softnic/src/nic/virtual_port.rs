//! Drive *virtual*: ports on the heap whose time and packets come from outside.
//!
//! ```text
//!  program ── doorbell ──▶ Timeline::runnable            the owner of time
//!                          VirtualPort::issue   ──▶ Packet ──┐ when it likes
//!  peer      VirtualPort::respond ◀──────────────────────────┘
//!               └──▶ ReplyPacket ──▶ VirtualPort::settle ──▶ completion
//! ```
//!
//! Nothing here has a socket, a shared mapping, a thread or a clock. Calls on one thread have the same effect
//! in the same order each time, and regions have the same addresses. A [`Packet`] owns its bytes and has a
//! form in bytes, so ports may as well be in other processes or on other machines.

use std::{ops::Range, sync::Weak};

use memory::sync::{Arc, thread};
use verbs::{Access, AsyncEvent, GidRoute, Lid, PortRoute, Qpn, Transport};
use wire::cqe::Syndrome;

pub use crate::nic::engine::{DecodeError, Packet, ReplyPacket};
use crate::{
    nic::{
        card::target::Target,
        engine::{
            Answered, Arrival, Arriving, Chunk, Extent, Key, Memory as _, Order, Outcome, Reply,
            Request, Verb, respond,
        },
        housekeeping::Housekeeping,
        memory::{MrCache, PortMemory},
        port_state::{PortState, lock},
        qp::wake_own,
        timeline::{Issued, NextWqe},
    },
    shared::presence::Presence,
};

/// Why a request is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// "Receiver not ready": the sender waits for so long and sends it again.
    NotReady {
        /// The time until the requester tries again, ns.
        wait_ns: u64,
    },
    /// "Remote operation error": the queue pair that sent it fails.
    Failed,
    /// It is run as if the key of the memory that it names were not valid any more.
    Revoked,
}

/// A port of the software NIC as the owner of time drives it. Clones drive the same port, which closes with
/// the last handle of its program.
#[derive(Clone, Debug)]
pub struct VirtualPort {
    lid: Lid,
    housekeeping: Weak<Housekeeping>,
}

impl VirtualPort {
    pub(crate) fn new(housekeeping: &Arc<Housekeeping>) -> Self {
        Self { lid: housekeeping.port.lid, housekeeping: Arc::downgrade(housekeeping) }
    }

    /// The port's LID.
    #[must_use]
    pub fn lid(&self) -> Lid {
        self.lid
    }

    /// Bytes of all memory that is registered with the port.
    #[must_use]
    pub fn registered_bytes(&self) -> usize {
        self.housekeeping.upgrade().map_or(0, |housekeeping| housekeeping.port.segments.bytes())
    }

    /// The WQE that [`issue`](Self::issue) takes next; `None` if nothing is posted.
    #[must_use]
    pub fn peek(&self, qp: Qpn) -> Option<NextWqe> {
        self.housekeeping.upgrade()?.qp(qp)?.peek()
    }

    /// Executes at most one WQE of a queue pair, or sends one of its requests again.
    #[must_use]
    pub fn issue(&self, qp: Qpn) -> Issued {
        let Some(housekeeping) = self.housekeeping.upgrade() else { return Issued::Idle };
        let issued = housekeeping.qp(qp).map_or(Issued::Idle, |qp| qp.issue());
        housekeeping.attend();
        issued
    }

    /// Runs a request that has arrived at this port. `None`: it is dropped, as one that has no right to be
    /// run, one that comes too early, or a datagram.
    #[must_use]
    pub fn respond(&self, packet: &Packet) -> Option<ReplyPacket> {
        self.answer(packet, None)
    }

    /// As [`respond`](Self::respond), but a request that would be run now is not: this is its answer. For
    /// worlds with faults.
    #[must_use]
    pub fn refuse(&self, packet: &Packet, refusal: Refusal) -> Option<ReplyPacket> {
        self.answer(packet, Some(refusal))
    }

    /// Writes bytes of a WRITE that has arrived and will be [run](Self::respond) next, as a fabric without order
    /// does before its last bytes and its completion. `false`: it is no WRITE, or is not to be run next.
    /// For worlds with faults.
    pub fn place(&self, packet: &Packet, bytes: Range<usize>) -> bool {
        self.inside(packet, |housekeeping| place(housekeeping, packet, bytes)).is_some()
    }

    /// All completion queues of the port have overrun. For worlds with faults.
    pub fn overrun(&self) {
        let Some(housekeeping) = self.housekeeping.upgrade() else { return };
        housekeeping.cqs().iter().for_each(|cq| cq.view.mark_overrun());
        housekeeping.attend();
    }

    /// Runs `inside` while the port shows its memory to the packet's sender.
    fn inside<T>(
        &self,
        packet: &Packet,
        inside: impl FnOnce(&Housekeeping) -> Option<T>,
    ) -> Option<T> {
        let housekeeping = self.housekeeping.upgrade().filter(|_| packet.to == self.lid)?;
        let presence = housekeeping.port.owner.card.qp(0).map(|entry| Presence(&entry.presence))?;
        while !presence.try_enter() {
            thread::yield_now();
        }
        let result = inside(&housekeeping);
        presence.leave();
        housekeeping.attend();
        result
    }

    fn answer(&self, packet: &Packet, instead: Option<Refusal>) -> Option<ReplyPacket> {
        let Outcome { reply, data } =
            self.inside(packet, |housekeeping| answer(housekeeping, packet, instead))?;
        let request = &packet.request;
        let from = (self.lid, request.to);
        Some(ReplyPacket { to: request.from, from, sequence: packet.sequence, reply, data })
    }

    /// The answer that a packet was dropped, from a port where
    /// [`is_reliable`](crate::Timeline::is_reliable).
    #[must_use]
    pub fn dropped(packet: &Packet) -> ReplyPacket {
        let Packet { to, request, sequence, .. } = packet;
        let (to, from) = (request.from, (*to, request.to));
        ReplyPacket { to, from, sequence: *sequence, reply: Reply::Silence, data: Vec::new() }
    }

    /// The port `lid` is gone with all that was on its way: queue pairs that are connected to it go to ERR,
    /// and requests to it end with *retry exceeded*. Another one may have the LID afterwards.
    pub fn lose_peer(&self, lid: Lid) {
        let Some(housekeeping) = self.housekeeping.upgrade() else { return };
        let port = &housekeeping.port;
        lock(&port.streams).lose_peer(lid);
        for qp in housekeeping.qps() {
            let is_connected = qp.transport == Transport::Rc && qp.peer_lid() == Some(lid.get());
            qp.lose_peer(lid.get());
            qp.lose_target(lid);
            if is_connected {
                port.add_event(AsyncEvent::QpFatal(qp.qpn));
            }
        }
        port.add_event(AsyncEvent::PeerGone(lid));
    }

    /// The port `lid` has ended in good order: as on a network, nobody is told. Requests that wait for it end with
    /// *retry exceeded*, and so will later ones, whose packets are [dropped](Self::dropped).
    pub fn part_from_peer(&self, lid: Lid) {
        let Some(housekeeping) = self.housekeeping.upgrade() else { return };
        let port = &housekeeping.port;
        lock(&port.streams).lose_peer(lid);
        for qp in housekeeping.qps().iter().filter(|qp| qp.lose_target(lid)) {
            port.add_event(AsyncEvent::QpFatal(qp.qpn));
        }
    }

    /// Takes the answer to a packet of this port; `false` if nothing waits for it. The queue pair may have
    /// something to do afterwards.
    pub fn settle(&self, answer: &ReplyPacket) -> bool {
        let (lid, qpn) = answer.to;
        let Some(housekeeping) = self.housekeeping.upgrade().filter(|_| lid == self.lid) else {
            return false;
        };
        let settled = housekeeping.qp(qpn).is_some_and(|qp| qp.settle(answer));
        housekeeping.attend();
        settled
    }
}

impl PortState {
    /// LID that a route leads to: on RoCE it is in the last bytes of the GID, unless somebody else knows.
    pub(crate) fn lid_of(&self, route: &PortRoute) -> Lid {
        let known = self.timeline().and_then(|timeline| timeline.lid_of(route));
        known.unwrap_or_else(|| match route {
            PortRoute::Lid(lid) | PortRoute::Global(lid, _) => *lid,
            PortRoute::Gid(GidRoute { gid, .. }) => {
                let bytes = gid.to_bytes();
                Lid::new(u16::from_be_bytes([bytes[14], bytes[15]]))
            }
        })
    }
}

fn answer(
    housekeeping: &Housekeeping,
    packet: &Packet,
    instead: Option<Refusal>,
) -> Option<Outcome> {
    let request = &packet.request;
    let resolve = || Target::resolve(&housekeeping.port.owner.card, request.to);
    let is_unanswered = matches!(request.key, Key::Ud(_))
        || housekeeping.qp(request.to).is_some_and(|qp| qp.is_unreliable());
    if is_unanswered {
        run(housekeeping, packet, &resolve()?);
        return None;
    }
    let name = (request.to, request.from);
    let mut streams = lock(&housekeeping.port.streams);
    if let Key::Dc(_) = request.key {
        // Only a target that exists has streams.
        let is_known = streams.get_mut(&name).is_some();
        let wait_ns = if is_known { 0 } else { resolve()?.rnr_wait_ns };
        if !streams.connect(name, packet.sequence.connection, housekeeping.port.now_ns()) {
            return Some(Reply::NotReady { wait_ns }.into());
        }
    }
    let stream = streams.get_mut(&name)?;
    stream.touch(housekeeping.port.now_ns());
    if stream.connection() != packet.sequence.connection {
        return None;
    }
    // What is known is answered even by a queue pair that has failed since.
    let outcome = match stream.arriving(packet.sequence) {
        Arriving::Early => {
            let is_unordered = housekeeping.port.config.profile.is_unordered();
            if is_unordered
                && packet.is_silent_write()
                && stream.may_place(packet.sequence)
                && may_write(housekeeping, packet)
            {
                let placed = place_at(housekeeping, packet, 0..packet.payload.len());
                if placed.is_some() {
                    stream.note_placed(packet.sequence);
                }
            }
            return None;
        }
        Arriving::Answered(outcome) => outcome,
        Arriving::Again if request.verb == Verb::Read => run(housekeeping, packet, &resolve()?),
        Arriving::Again => Reply::Ack.into(),
        Arriving::InOrder => {
            let outcome = match instead {
                Some(Refusal::NotReady { wait_ns }) => Reply::NotReady { wait_ns }.into(),
                Some(Refusal::Failed) => Reply::Refused(Syndrome::RemoteOperation).into(),
                Some(Refusal::Revoked) => run(housekeeping, &packet.revoked(), &resolve()?),
                None if stream.take_placed(packet.sequence) => {
                    run(housekeeping, &packet.placed(), &resolve()?)
                }
                None => run(housekeeping, packet, &resolve()?),
            };
            stream.note(&outcome);
            outcome
        }
    };
    (outcome.reply != Reply::Silence).then_some(outcome)
}

fn run(housekeeping: &Housekeeping, packet: &Packet, target: &Target) -> Outcome {
    let request = &packet.request;
    let is_read = request.verb == Verb::Read;
    if is_read {
        // Before there is memory for the data: the length is whatever the sender says.
        let extent = Extent::Checks { outstanding: 1 };
        let checks = Request { extent, ..*request };
        let Answered { reply, .. } = run_at(housekeeping, &checks, &[], target);
        if reply != Reply::Ack {
            return reply.into();
        }
    }
    let mut data = vec![0; if is_read { request.len_bytes as usize } else { 0 }];
    let local = if request.has_payload() {
        let ptr = packet.payload.as_ptr().cast_mut();
        [Chunk { ptr, len: packet.payload.len(), is_inline: false }]
    } else {
        [Chunk { ptr: data.as_mut_ptr(), len: data.len(), is_inline: false }]
    };
    let Answered { reply, arrived } = run_at(housekeeping, request, &local, target);
    if let Some(solicited) = arrived
        && let Some(cq) = housekeeping.cq(target.cq.index)
    {
        wake_own(&cq, solicited);
    }
    if reply != Reply::Ack {
        data.clear();
    }
    Outcome { reply, data }
}

/// See [`VirtualPort::place`].
fn place(housekeeping: &Housekeeping, packet: &Packet, bytes: Range<usize>) -> Option<()> {
    let request = &packet.request;
    let name = (request.to, request.from);
    let mut streams = lock(&housekeeping.port.streams);
    let stream = streams.get_mut(&name)?;
    let is_next = stream.connection() == packet.sequence.connection
        && matches!(stream.arriving(packet.sequence), Arriving::InOrder);
    if !is_next || request.verb != Verb::Write {
        return None;
    }
    drop(streams);
    place_at(housekeeping, packet, bytes)
}

/// Whether a WRITE of a connection would be done. One that would not fails its queue pair when its turn comes.
fn may_write(housekeeping: &Housekeeping, packet: &Packet) -> bool {
    let (port, request) = (&housekeeping.port, &packet.request);
    let Some(target) = Target::resolve(&port.owner.card, request.to) else { return false };
    let right = Access::REMOTE_WRITE;
    let mut memory = PortMemory {
        cache: &mut MrCache::default(),
        card: &port.owner.card,
        segments: &port.segments,
        port,
    };
    let (key, len_bytes) = (request.rkey.get(), u64::from(request.len_bytes));
    target.transport == Transport::Rc
        && target.is_peer(request.from)
        && target.access.contains(right)
        && memory.locate(key, request.addr, len_bytes, right, target.pd).is_ok()
}

/// Writes bytes of a WRITE, and says nothing of it.
fn place_at(housekeeping: &Housekeeping, packet: &Packet, bytes: Range<usize>) -> Option<()> {
    let request = &packet.request;
    let part = packet.payload.get(bytes.clone())?;
    let (offset, len_bytes) = (u64::try_from(bytes.start).ok()?, u32::try_from(part.len()).ok()?);
    let target = Target::resolve(&housekeeping.port.owner.card, request.to)?;
    // Without an immediate nothing is reported.
    let request =
        Request { addr: request.addr.wrapping_add(offset), len_bytes, imm: None, ..*request };
    let local = [Chunk { ptr: part.as_ptr().cast_mut(), len: part.len(), is_inline: false }];
    let Answered { reply, .. } = run_at(housekeeping, &request, &local, &target);
    (reply == Reply::Ack).then_some(())
}

fn run_at(
    housekeeping: &Housekeeping,
    request: &Request,
    local: &[Chunk],
    target: &Target,
) -> Answered {
    let memory = PortMemory {
        cache: &mut MrCache::default(),
        card: &housekeeping.port.owner.card,
        segments: &housekeeping.port.segments,
        port: &housekeeping.port,
    };
    respond(Arrival { request, local, target, memory, order: Order::Ascending })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use memory::sync::{AtomicU64, Ordering};
    use verbs::{
        Access, CqConfig, DcKey, Destination, InitAttr, Mtu, Nic as _, Op, Payload, Psn, QKey,
        QpConfig, QpState, QueuePair as _, RcPeer, RnrTimer, RtrAttr, RtsAttr, SendFlags,
        SendRequest, SharedReceiveQueue as _, SrqConfig, Transition, Transport,
    };

    use super::*;
    use crate::{Cause, Config, Timeline, nic::engine::STREAM_KEEP_NS, open_virtual};

    #[derive(Debug, Default)]
    struct Clock(AtomicU64);

    impl Timeline for Clock {
        fn now_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        fn runnable(&self, _: Lid, _: Qpn, _: Cause) {}

        fn idle(&self, _: Lid) -> bool {
            false
        }
    }

    #[test]
    fn a_peer_that_ends_well_fails_nothing_but_what_waits_for_it() {
        let clock = Arc::new(Clock::default());
        let config = Config { card_mib: 1, ..Config::default() };
        let open = |lid| open_virtual(&config, Lid::new(lid), clock.clone()).unwrap();
        let [(nic, port), (peer, _)] = [1, 2].map(open);
        let [mut qp, theirs] = [&nic, &peer].map(|nic| {
            let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(&CqConfig::new(128), None));
            nic.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq.unwrap())).unwrap()
        });
        let to = peer.endpoint(&theirs);
        let rtr = RtrAttr {
            path_mtu: Mtu::B4096,
            peer: Some(RcPeer { qpn: to.qpn, address: to.address, rq_psn: Psn::from_low_bits(0) }),
            rnr_timer: RnrTimer::from_code(1),
            reads_in_max: 1,
        };
        let init = InitAttr { access: Access::empty(), qkey: QKey::default() };
        qp.modify(&Transition::Init(init)).unwrap();
        qp.modify(&Transition::Rtr(rtr)).unwrap();
        qp.modify(&Transition::Rts(RtsAttr::default())).unwrap();
        port.part_from_peer(peer.device().0.port.lid);
        assert_eq!(qp.state(), QpState::Rts);
        let op = Op::Send { payload: Payload::Inline(&[]), imm: None };
        qp.post_send(&SendRequest { op, flags: SendFlags::SIGNALED, to: None }).unwrap();
        qp.ring_send();
        assert!(matches!(port.issue(qp.qpn()), Issued::Packet(_)));
        port.part_from_peer(Lid::new(3));
        assert_eq!(qp.state(), QpState::Rts, "it was another one");
        port.part_from_peer(Lid::new(2));
        assert_eq!(qp.state(), QpState::Err);
    }

    /// Its target may have forgotten it, and takes the next request for that of a stranger.
    #[test]
    fn a_dc_initiator_that_was_idle_for_long_connects_anew() {
        let clock = Arc::new(Clock::default());
        let open = |lid| {
            let config = Config { card_mib: 1, ..Config::default() };
            open_virtual(&config, Lid::new(lid), clock.clone()).unwrap()
        };
        let [(nic, from), (peer, to)] = [1, 2].map(open);
        let (pd, theirs) = (nic.alloc_pd().unwrap(), peer.alloc_pd().unwrap());
        let cq = nic.create_cq(&CqConfig::new(64), None).unwrap();
        let their_cq = peer.create_cq(&CqConfig::new(64), None).unwrap();
        let mut srq = peer.create_srq(&theirs, &SrqConfig { entries: 8, sges_max: 1 }).unwrap();
        let key = DcKey::new(3);
        let target = QpConfig {
            srq: Some(&srq),
            access_key: key,
            ..QpConfig::new(Transport::Dct, &their_cq)
        };
        let mut target = peer.create_qp(&theirs, &target).unwrap();
        let mut initiator = nic.create_qp(&pd, &QpConfig::new(Transport::Dci, &cq)).unwrap();
        for qp in [&mut target, &mut initiator] {
            let init = InitAttr { access: Access::empty(), qkey: QKey::default() };
            let rtr = RtrAttr {
                path_mtu: Mtu::B4096,
                peer: None,
                rnr_timer: RnrTimer::from_code(1),
                reads_in_max: 1,
            };
            qp.modify(&Transition::Init(init)).unwrap();
            qp.modify(&Transition::Rtr(rtr)).unwrap();
        }
        initiator.modify(&Transition::Rts(RtsAttr::default())).unwrap();
        let destination = Destination::Dc { to: peer.endpoint(&target), key };
        let mut connection = |at_ns| {
            clock.0.store(at_ns, Ordering::Relaxed);
            srq.post(&[]).unwrap();
            srq.ring();
            let op = Op::Send { payload: Payload::Inline(&[]), imm: None };
            initiator.post_send(&SendRequest::signaled(op).to(&destination)).unwrap();
            initiator.ring_send();
            let Issued::Packet(packet) = from.issue(initiator.qpn()) else { panic!("no packet") };
            let answer = to.respond(&packet).unwrap();
            assert_eq!(answer.reply, Reply::Ack);
            assert!(from.settle(&answer));
            packet.sequence.connection
        };
        let first = connection(0);
        assert_eq!(connection(STREAM_KEEP_NS), first);
        assert_ne!(connection(2 * STREAM_KEEP_NS + 1), first);
    }
}
