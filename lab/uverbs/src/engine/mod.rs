//! One process's port: its objects, its queues, and what goes to and comes from other ports.

mod event_pipe;
mod events;
mod gids;
mod objects;
mod strict;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    sync::Arc,
};

use mlx5::device::{Device as _, DeviceQp as _};
use softnic::{AdapterProfile, Channel, Config, Device, Issued, Packet, VirtualPort, open_virtual};
use verbs::{Lid, LinkLayer, QpState};

use crate::{
    clock::Clock,
    condition::Watch,
    fabric::{Fabric, Frame, Gone},
};
pub(crate) use event_pipe::EventPipe;
pub(crate) use objects::{
    Ah, Attributes, Context, Cq, HasUsers, Mr, Pd, Qp, Service, Srq, Table, Users, Wait,
};
pub(crate) use strict::{MARK, Strict};

/// Requests that one queue pair sends before the others have their turn.
const TURN: usize = 64;

/// Address space for slots and claims, in MiB; only what is used is allocated.
const CARD_MIB: usize = 64;

/// Why a process has no port.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("no LID on fabric `{fabric}`: {error}")]
    Fabric { fabric: String, error: io::Error },
    #[error(transparent)]
    Open(#[from] softnic::OpenError),
    #[error("no completion channel: {0}")]
    Channel(#[from] verbs::CreateError),
}

/// The port of this process.
#[derive(Debug)]
pub(crate) struct Engine {
    // Objects come before the device: they are dropped first.
    pub(crate) qps: Table<Qp>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) cqs: Table<Cq>,
    pub(crate) mrs: Table<Mr>,
    pub(crate) pds: Table<Pd>,
    pub(crate) ahs: Table<Ah>,
    pub(crate) contexts: HashMap<u32, Context>,
    /// Completion channels by the descriptor that the program reads.
    pub(crate) channels: HashMap<i32, Arc<EventPipe>>,
    /// Pages of doorbell registers that the program has mapped, too.
    pub(crate) doorbells: Vec<memory::Region>,
    /// What makes completion queues watch whether they are armed; nobody waits on it.
    pub(crate) armable: Channel,
    pub(crate) device: Device,
    pub(crate) lid: Lid,
    pub(crate) link: LinkLayer,
    pub(crate) profile: AdapterProfile,
    /// `None`: rings are not checked.
    strict: Option<Strict>,
    port: VirtualPort,
    clock: Arc<Clock>,
    fabric: Fabric,
    own: VecDeque<Frame>,
    pub(crate) condition: Watch,
    /// Contexts of a device that has failed since: commands on them fail.
    pub(crate) dead: HashSet<u32>,
}

impl Engine {
    pub(crate) fn start(
        fabric: &str,
        link: LinkLayer,
        profile: AdapterProfile,
        is_strict: bool,
    ) -> Result<Self, StartError> {
        let joined = Fabric::join(fabric)
            .map_err(|error| StartError::Fabric { fabric: fabric.to_owned(), error })?;
        let clock = Arc::new(Clock::default());
        let (card_mib, fabric) = (CARD_MIB, fabric.to_owned());
        let config = Config { fabric, link, card_mib, profile, ..Config::default() };
        let (nic, port) = open_virtual(&config, joined.lid, clock.clone())?;
        let device = nic.device().clone();
        Ok(Self {
            qps: Table::default(),
            srqs: Table::default(),
            cqs: Table::default(),
            mrs: Table::default(),
            pds: Table::default(),
            ahs: Table::default(),
            contexts: HashMap::new(),
            channels: HashMap::new(),
            doorbells: Vec::new(),
            armable: device.create_channel()?,
            lid: joined.lid,
            link,
            profile,
            device,
            strict: is_strict.then(Strict::default),
            port,
            clock,
            fabric: joined,
            own: VecDeque::new(),
            condition: Watch::from_environment(),
            dead: HashSet::new(),
        })
    }

    /// Whether a program has anything that could send or receive.
    pub(crate) fn is_used(&self) -> bool {
        !self.qps.is_empty()
    }

    /// Descriptors that become readable when something arrives.
    pub(crate) fn descriptors(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        self.fabric.descriptors().collect()
    }

    /// Does what there is to do now; whether there was anything.
    pub(crate) fn step(&mut self) -> bool {
        self.look_at_condition();
        let mut did = self.receive();
        did |= self.run_queues();
        did |= self.run_own();
        did |= self.fabric.flush();
        did |= self.lose_peers();
        self.raise_events();
        self.check_rings();
        did
    }

    /// Does what has arrived, in steps that have an end even if more and more comes.
    pub(crate) fn catch_up(&mut self) {
        const STEPS: usize = 64;
        for _ in 0..STEPS {
            if !self.step() {
                break;
            }
        }
    }

    /// Sends what is posted.
    pub(crate) fn step_sends(&mut self) {
        self.run_queues();
        self.run_own();
        self.fabric.flush();
        self.raise_events();
        self.check_rings();
    }

    /// The device that is open as `context` is closed: what the program has left of it goes.
    pub(crate) fn close(&mut self, context: u32) {
        self.take_away(context);
        self.contexts.remove(&context);
        self.dead.remove(&context);
    }

    /// Takes the objects of a context away.
    fn take_away(&mut self, context: u32) {
        let left = self.qps.values_mut().filter(|qp| qp.context == context);
        left.for_each(|qp| qp.device.destroy());
        self.qps.retain(|qp| qp.context != context);
        self.srqs.retain(|srq| srq.context != context);
        self.cqs.retain(|cq| cq.context != context);
        self.mrs.retain(|mr| mr.context != context);
        self.ahs.retain(|ah| ah.context != context);
        self.pds.retain(|pd| pd.context != context);
    }

    /// Tells peers of a good end, and writes what waits for them, in at most so many steps.
    pub(crate) fn finish(&mut self, steps: usize) {
        self.fabric.say_goodbye();
        for _ in 0..steps {
            if !self.step() && !self.fabric.is_full() {
                break;
            }
        }
    }

    fn receive(&mut self) -> bool {
        let mut frames = self.fabric.receive();
        let did = !frames.is_empty();
        if self.profile == AdapterProfile::AdaptiveRouting {
            overtake(&mut frames);
        }
        frames.into_iter().for_each(|frame| self.take(frame));
        did
    }

    fn take(&mut self, frame: Frame) {
        match frame {
            Frame::Packet(packet) => {
                let is_lost = packet.source().0 != self.lid
                    && !(self.condition.now.is_up() && self.can_answer(&packet));
                let answer = if is_lost { None } else { self.port.respond(&packet) };
                let answer = match answer {
                    Some(answer) => answer,
                    None if self.is_unanswered(&packet) => return,
                    // Who sent it hears that it is gone: nothing else is lost here.
                    None => VirtualPort::dropped(&packet),
                };
                if answer.destination().0 == self.lid {
                    self.own.push_back(Frame::Answer(answer));
                } else {
                    self.fabric.send_answer(&answer);
                }
            }
            Frame::Early(packet) => {
                // Its answer is that of its turn.
                let _ = self.port.respond(&packet);
            }
            Frame::Answer(answer) => {
                self.port.settle(&answer);
                self.wake(answer.destination().1.get());
            }
        }
    }

    /// Whether its sender waits for no answer: it is a datagram, or of an unreliable connection.
    fn is_unanswered(&mut self, packet: &Packet) -> bool {
        let to = packet.destination().1;
        packet.is_datagram()
            || self.qps.values_mut().any(|qp| qp.service == Service::Uc && qp.device.number() == to)
    }

    fn run_own(&mut self) -> bool {
        let did = !self.own.is_empty();
        while let Some(frame) = self.own.pop_front() {
            self.take(frame);
        }
        did
    }

    fn wake(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.values_mut().find(|qp| qp.device.number().get() == qpn) {
            qp.wait = Wait::Ready;
        }
    }

    fn run_queues(&mut self) -> bool {
        for qpn in self.clock.take() {
            self.wake(qpn.get());
        }
        let mut did = false;
        let now_ns = os::clock::now_ns();
        for handle in self.qps.handles() {
            let Some(qp) = self.qps.get_mut(handle) else { continue };
            if qp.device.state() == QpState::Err {
                qp.device.received();
            }
            let posted = qp.device.posted();
            if qp.wait.is_over(posted, now_ns) {
                did |= self.run_queue(handle);
            }
        }
        did
    }

    /// Gives one queue pair its turn; whether it did anything.
    fn run_queue(&mut self, handle: u32) -> bool {
        for turn in 0..TURN {
            if self.fabric.is_full() {
                return turn > 0;
            }
            let Some(qp) = self.qps.get_mut(handle) else { return false };
            let posted = qp.device.posted();
            match self.port.issue(qp.device.number()) {
                Issued::Packet(packet) => self.send(packet),
                Issued::Done => {}
                Issued::WaitUntil(at_ns) => {
                    qp.wait = Wait::Until { at_ns, posted };
                    return turn > 0;
                }
                Issued::Idle => {
                    qp.wait = Wait::Posted(posted);
                    return turn > 0;
                }
            }
        }
        true
    }

    fn send(&mut self, packet: Packet) {
        if packet.destination().0 == self.lid {
            self.own.push_back(Frame::Packet(packet));
        } else if !(self.condition.now.is_up() && self.has_source(&packet)) {
            if !packet.is_datagram() {
                self.own.push_back(Frame::Answer(VirtualPort::dropped(&packet)));
            }
        } else if !self.fabric.send_packet(&packet) && !packet.is_datagram() {
            self.own.push_back(Frame::Answer(VirtualPort::dropped(&packet)));
        }
    }

    fn lose_peers(&mut self) -> bool {
        let gone = self.fabric.take_gone();
        for Gone { lid, is_lost } in &gone {
            if *is_lost {
                self.port.lose_peer(*lid);
            } else {
                self.port.part_from_peer(*lid);
            }
        }
        !gone.is_empty()
    }
}

/// Lets each second packet of a connection arrive before the one in front of it, too: what may be placed early is, and
/// completes when its turn comes.
fn overtake(frames: &mut Vec<Frame>) {
    let mut at = 1;
    while at < frames.len() {
        let early = match (&frames[at - 1], &frames[at]) {
            (Frame::Packet(older), Frame::Packet(newer)) if newer.is_beside(older) => newer.clone(),
            _ => {
                at += 1;
                continue;
            }
        };
        frames.insert(at - 1, Frame::Early(early));
        at += 3;
    }
}
