//! Sessions between the callers and the providers of a node, without the daemon.
//!
//! ```text
//!  caller    client::direct::DirectCalls  counts calls, asks, looks for the welcome, leaves, forgets
//!            ipc::sans_os::ClientCore  the calls of each session
//!  daemon    admission, DirectSessions, Introducer: as on every node, over real sockets, which never wait
//!  provider  ipc::sans_os::ServerCore  the sessions; what the daemon tells comes by ipc::sans_os::read_introducer
//! ```
//!
//! Made up is the way of the memory: on the heap, handed over by a number that the welcome carries, where production sends
//! descriptors. So are wakeups and news of a death, which take time.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    os::fd::OwnedFd,
    rc::Rc,
};

use client::{
    direct::DirectSession,
    message::{DirectHead, DirectRecord, origin},
};
use ipc::{
    CallOutcome, ClientId, ClientProcess, Introduction, NewcomerState, RequestId,
    sans_os::{
        ClientCore, ClientMemory, IntroducerMessage, Notice, OpenRequest, ServerCore, Welcome,
        read_introducer,
    },
};
use os::{
    clock,
    fdpass::RecvError,
    unix::{UnixConnection, user_id},
};
use rpc::Status;
use zerocopy::FromBytes as _;

use super::{history::History, plan::Plan};
use crate::world::{RandomStream, Time};

/// Calls in flight of a session, as of providers.
const DEPTH: u16 = 32;
/// Sessions of a provider.
const SESSIONS_MAX: u16 = 64;
/// What an introducer says that is read at a time.
const NEWS_MAX: usize = 8;
/// A request that is not answered at once is within so long.
const HELD_NS: u64 = 5_000;

/// The process of the simulator, which is that of all clients: the kernel says so of their sockets.
pub(super) fn own_process() -> ClientProcess {
    ClientProcess { uid: user_id(), pid: std::process::id() }
}

/// Memory of sessions that was given away and not mapped yet, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Desk {
    last: u64,
    given: BTreeMap<u64, Given>,
}

#[derive(Debug)]
struct Given {
    welcome: Welcome,
    memory: ClientMemory,
    is_host_dead: Rc<Cell<bool>>,
}

/// The desk of all nodes.
pub(super) type SharedDesk = Rc<RefCell<Desk>>;

/// A caller whose provider has not welcomed it.
#[derive(Debug)]
pub(super) struct Newcomer {
    socket: UnixConnection,
    desk: SharedDesk,
}

impl Newcomer {
    /// It, and what the daemon is to hand to the provider.
    pub(super) fn new(desk: &SharedDesk) -> Option<(Self, OwnedFd)> {
        let (socket, given) = UnixConnection::pair().ok()?;
        Some((Self { socket, desk: Rc::clone(desk) }, given))
    }
}

/// A session, as its caller has it.
#[derive(Debug)]
pub(super) struct Session {
    core: ClientCore<u64>,
    socket: UnixConnection,
    number: u64,
    /// As a handle of the provider's process says.
    is_host_dead: Rc<Cell<bool>>,
}

impl DirectSession for Session {
    type Newcomer = Newcomer;

    const IS_SINGLE: bool = false;

    fn arrive(
        newcomer: Newcomer,
        config: ipc::ClientConfig,
    ) -> Option<NewcomerState<Self, Newcomer>> {
        let mut number = [0; size_of::<u64>()];
        match newcomer.socket.recv(&mut number, 0, clock::NOW) {
            Ok(_) => {}
            Err(RecvError::TimedOut) => return Some(NewcomerState::NotYet(newcomer)),
            Err(_) => return None,
        }
        let number = u64::from_le_bytes(number);
        let given = newcomer.desk.borrow_mut().given.remove(&number)?;
        let Given { welcome, memory, is_host_dead } = given;
        let core = ClientCore::new(&welcome, memory, config.first_generation);
        let Newcomer { socket, .. } = newcomer;
        Some(NewcomerState::Arrived(Self { core, socket, number, is_host_dead }))
    }

    fn is_ending(&self) -> bool {
        self.core.gone().is_some() || self.core.is_asked_to_leave()
    }

    fn is_idle(&self) -> bool {
        self.core.in_flight() == 0
    }
}

impl Session {
    pub(super) fn core(&mut self) -> &mut ClientCore<u64> {
        &mut self.core
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn in_flight(&self) -> usize {
        self.core.in_flight()
    }

    pub(super) fn earliest_deadline_ns(&self) -> u64 {
        self.core.earliest_deadline_ns()
    }

    pub(super) fn has_response(&self) -> bool {
        self.core.has_response()
    }

    /// Whether it is over, which its caller has not looked at.
    pub(super) fn has_ended(&self) -> bool {
        self.core.gone().is_none() && self.is_over()
    }

    fn is_over(&self) -> bool {
        self.socket.is_closed().unwrap_or(true)
    }

    /// Reports calls that have ended; returns how many.
    pub(super) fn poll(
        &mut self,
        now_ns: u64,
        done: &mut impl FnMut(u64, CallOutcome<'_>),
    ) -> usize {
        let mut ended = self.core.poll(done).ended + self.core.tick(now_ns, done);
        self.core.looked(self.is_over());
        self.core.note_untaken(|| self.is_host_dead.get());
        ended += self.core.end_if_gone(done);
        ended
    }
}

/// A session, as its provider has it.
struct Hosted {
    id: ClientId,
    tag: u64,
    number: u64,
    socket: UnixConnection,
}

impl Drop for Hosted {
    fn drop(&mut self) {
        self.socket.shut_down();
    }
}

/// What a step of a provider leads to.
#[derive(Default)]
pub(super) struct Hosting {
    /// Requests that were taken or answered.
    pub(super) handled: usize,
    /// Answers were given.
    pub(super) has_answered: bool,
    /// Sessions whose callers sleep and have answers.
    pub(super) wakes: Vec<u64>,
}

/// A provider's way to answer callers without the daemon.
pub(super) struct Host {
    server: ServerCore,
    channel: UnixConnection,
    sessions: Vec<Hosted>,
    desk: SharedDesk,
    is_dead: Rc<Cell<bool>>,
    /// What the daemon told, in order.
    told: VecDeque<IntroducerMessage>,
    /// Requests that were executed, their answers, and when these are given.
    held: Vec<(RequestId, Vec<u8>, Time)>,
    /// Answers that the daemon does not know of, by the tags of sessions.
    untold: BTreeMap<u64, u32>,
}

impl Host {
    /// It, and what the daemon is to have.
    pub(super) fn new(plan: &Plan, desk: &SharedDesk) -> Option<(Self, OwnedFd)> {
        let (channel, given) = UnixConnection::pair().ok()?;
        let config = ipc::ServerConfig { depth: DEPTH, clients_max: SESSIONS_MAX, ..plan.ipc() };
        let server = ServerCore::on_heap(config).ok()?;
        let host = Self {
            server,
            channel,
            sessions: Vec::new(),
            desk: Rc::clone(desk),
            is_dead: Rc::default(),
            told: VecDeque::new(),
            held: Vec::new(),
            untold: BTreeMap::new(),
        };
        Some((host, given))
    }

    /// Takes what the daemon tells, and looks for callers that are gone; whether there is something to do.
    pub(super) fn has_news(&mut self) -> bool {
        for _ in 0..NEWS_MAX {
            match read_introducer(&self.channel) {
                IntroducerMessage::Nothing | IntroducerMessage::End => break,
                told => self.told.push_back(told),
            }
        }
        !self.told.is_empty() || self.sessions.iter().any(Hosted::is_over)
    }

    /// The caller of this session rings.
    pub(super) fn woken(&mut self, number: u64) {
        if let Some(hosted) = self.sessions.iter().find(|hosted| hosted.number == number) {
            self.server.woken(hosted.id);
        }
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.sessions.iter().any(|hosted| hosted.number == number)
    }

    /// A turn.
    pub(super) fn step(
        &mut self,
        (rank, now, now_ns): (u32, Time, u64),
        random: &mut RandomStream,
        history: &mut History,
    ) -> Hosting {
        let mut hosting = Hosting::default();
        if self.has_news() {
            hosting.wakes = self.hear();
        }
        self.answer_held(now, &mut hosting);
        while let Some(request) = self.server.take() {
            hosting.handled += 1;
            let OpenRequest { id, payload, replies } = request;
            if replies.is_abandoned(id) {
                let [status, origin] = [Status::DeadlineExceeded.code(), origin::NOT_EXECUTED];
                // A caller that is gone needs no answer.
                let _ = replies.reply_error(id, u32::from_le_bytes([status, origin, 0, 0]));
                continue;
            }
            let Ok((_, body)) = DirectHead::read_from_prefix(payload) else {
                history.fail(|| format!("a provider of rank {rank} got {} B", payload.len()));
                continue;
            };
            let mut answer = Vec::new();
            history.execute((rank, rank), body, &mut answer);
            let at =
                if random.happens(500) { now } else { now + Time::from_ns(random.number(HELD_NS)) };
            self.held.push((id, answer, at));
        }
        self.answer_held(now, &mut hosting);
        if self.server.is_clock_due() && self.server.tick(now_ns) {
            self.server.housekeep(now_ns);
        }
        hosting.wakes.extend(self.do_notices());
        hosting
    }

    /// Admits callers, retires sessions, and forgets those that have ended; returns whom to wake.
    fn hear(&mut self) -> Vec<u64> {
        let mut wakes = Vec::new();
        while let Some(told) = self.told.pop_front() {
            // Before a slot is given to another caller.
            wakes.extend(self.do_notices());
            match told {
                IntroducerMessage::Introduced(socket, introduction) => {
                    self.admit(socket, introduction)
                }
                IntroducerMessage::Retire(tag) => self.server.retire(tag),
                IntroducerMessage::AskToLeave(tag) => self.server.ask_to_leave(tag),
                IntroducerMessage::Nothing
                | IntroducerMessage::Foreign
                | IntroducerMessage::End => {}
            }
        }
        let over = self.sessions.extract_if(.., |hosted| hosted.is_over());
        for hosted in over {
            self.server.departed(hosted.id);
        }
        wakes
    }

    fn admit(&mut self, socket: UnixConnection, introduction: Introduction) {
        let Ok(Some((id, welcome, memory))) = self.server.admit_on_heap() else { return };
        let Introduction { tag, process } = introduction;
        self.server.set_process(id, process);
        self.server.set_tag(id, Some(tag));
        let mut desk = self.desk.borrow_mut();
        desk.last += 1;
        let number = desk.last;
        let is_host_dead = Rc::clone(&self.is_dead);
        desk.given.insert(number, Given { welcome, memory, is_host_dead });
        // A caller that is gone reads nothing.
        let _ = socket.send(&number.to_le_bytes(), &[], clock::NOW);
        self.sessions.push(Hosted { id, tag, number, socket });
    }

    fn answer_held(&mut self, now: Time, hosting: &mut Hosting) {
        for (id, answer, _) in self.held.extract_if(.., |(_, _, at)| *at <= now) {
            hosting.handled += 1;
            hosting.has_answered = true;
            // A caller that is gone needs no answer.
            let _ = self.server.replies().reply(id, &answer);
            if let Some(hosted) = self.sessions.iter().find(|hosted| hosted.id == id.client()) {
                *self.untold.entry(hosted.tag).or_default() += 1;
            }
        }
    }

    /// When the next answer is due.
    pub(super) fn due(&self) -> Option<Time> {
        self.held.iter().map(|(_, _, at)| *at).min()
    }

    /// The sessions of callers that are to be woken.
    fn do_notices(&mut self) -> Vec<u64> {
        let mut wakes = Vec::new();
        while let Some(notice) = self.server.next_notice() {
            match notice {
                Notice::Wake(slot) => {
                    let sleeper = self.sessions.iter().find(|hosted| hosted.id.slot() == slot);
                    wakes.extend(sleeper.map(|hosted| hosted.number));
                }
                Notice::Disconnect(slot) => {
                    self.sessions.retain(|hosted| hosted.id.slot() != slot);
                }
            }
        }
        wakes
    }

    /// Before a sleep; `false`: there is something to do. Callers to be woken besides.
    pub(super) fn arm(&mut self) -> (bool, Vec<u64>) {
        let may_sleep = self.server.arm();
        (may_sleep && !self.has_news(), self.do_notices())
    }

    pub(super) fn wake_up(&mut self) {
        self.server.wake_up();
    }

    /// What the daemon is to be told of calls that went without it.
    pub(super) fn take_counts(&mut self) -> Vec<DirectRecord> {
        let record = |(tag, count): (u64, u32)| DirectRecord {
            tag: tag.into(),
            count: count.into(),
            status: Status::Ok.code(),
            is_of_service: 1,
            reserved: [0; 2],
        };
        std::mem::take(&mut self.untold).into_iter().map(record).collect()
    }

    /// Its process ends, killed or by itself.
    pub(super) fn end(&mut self, is_killed: bool) {
        if !is_killed {
            self.server.abandon_introduced();
        }
        self.is_dead.set(true);
    }
}

impl Hosted {
    fn is_over(&self) -> bool {
        self.socket.is_closed().unwrap_or(true)
    }
}

/// What clients sent their daemon beside their requests.
#[derive(Default)]
pub(super) struct Descriptors(Vec<(ClientId, OwnedFd)>);

impl Descriptors {
    /// One at a time of each client.
    pub(super) fn put(&mut self, client: ClientId, descriptor: OwnedFd) {
        self.0.retain(|(of, _)| *of != client);
        self.0.push((client, descriptor));
    }

    pub(super) fn take(&mut self, client: ClientId) -> Option<OwnedFd> {
        let at = self.0.iter().position(|(of, _)| *of == client)?;
        Some(self.0.swap_remove(at).1)
    }
}
