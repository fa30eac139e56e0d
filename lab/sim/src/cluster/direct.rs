//! Sessions between the callers and the providers of a node, without the daemon.
//!
//! ```text
//!  caller    client::direct::DirectCalls  counts calls, asks, looks for the welcome, leaves, forgets
//!            ipc::sans_os::ClientCore  the calls of each session
//!  daemon    admission, DirectSessions, Introducer: as on every node, over real sockets, which never wait
//!  provider  client::ProviderSession, its server of clients over ipc::sans_os::ServerCore; what the daemon tells
//!            comes by ipc::sans_os::read_introducer
//! ```
//!
//! Made up is the way of the memory: on the heap, handed over by a number that the welcome carries, where production sends
//! descriptors. So are wakeups and news of a death, which take time.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    fmt,
    os::fd::OwnedFd,
    rc::Rc,
};

use client::{IntroducedClients, ProviderClock as _, direct::DirectSession};
use ipc::{
    CallOutcome, ClientId, ClientProcess, Introduction, NewcomerState, OpenRequest, Replies,
    sans_os::{
        ClientCore, ClientMemory, IntroducerMessage, Notice, ServerCore, Welcome, read_introducer,
    },
};
use os::{
    clock,
    fdpass::RecvError,
    unix::{UnixConnection, user_id},
};

use super::sim_clock::SimClock;

/// What an introducer says that is read at a time.
const NEWS_MAX: usize = 8;

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
    number: u64,
    socket: UnixConnection,
}

impl Drop for Hosted {
    fn drop(&mut self) {
        self.socket.shut_down();
    }
}

/// The clients that a provider was introduced to: the driver of its server, over memory of this process.
pub(super) struct SimClients {
    server: ServerCore,
    clock: SimClock,
    channel: UnixConnection,
    sessions: Vec<Hosted>,
    desk: SharedDesk,
    is_dead: Rc<Cell<bool>>,
    /// Its process is killed, and says nothing more.
    is_killed: bool,
    /// What the daemon told, in order.
    told: VecDeque<IntroducerMessage>,
    /// Sessions whose callers are to be woken.
    wakes: Vec<u64>,
    /// Answers that callers may not have been told of.
    responses: u64,
    /// The turn ended with requests that were not taken.
    is_paused: bool,
}

impl fmt::Debug for SimClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimClients").field("sessions", &self.sessions.len()).finish_non_exhaustive()
    }
}

impl SimClients {
    /// They, and what the daemon is to have.
    pub(super) fn new(
        config: ipc::ServerConfig,
        clock: &SimClock,
        desk: &SharedDesk,
    ) -> Option<(Self, OwnedFd)> {
        let (channel, given) = UnixConnection::pair().ok()?;
        let clients = Self {
            server: ServerCore::on_heap(config).ok()?,
            clock: clock.clone(),
            channel,
            sessions: Vec::new(),
            desk: Rc::clone(desk),
            is_dead: Rc::default(),
            is_killed: false,
            told: VecDeque::new(),
            wakes: Vec::new(),
            responses: 0,
            is_paused: false,
        };
        Some((clients, given))
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

    /// What the kernel tells, before a turn.
    pub(super) fn hear(&mut self) {
        if !self.has_news() {
            return;
        }
        while let Some(told) = self.told.pop_front() {
            // Before a slot is given to another caller.
            self.deliver();
            match told {
                IntroducerMessage::Introduced(socket, introduction) => {
                    self.admit(socket, introduction);
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
    }

    /// What time has brought, after a turn.
    pub(super) fn end_turn(&mut self) {
        let (server, now_ns) = (&mut self.server, self.clock.now_ns());
        let is_paused = std::mem::take(&mut self.is_paused);
        if is_paused || server.is_clock_due() && server.tick(now_ns) {
            server.housekeep(now_ns);
        }
        self.deliver();
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
        self.sessions.push(Hosted { id, number, socket });
    }

    /// Does what the server asks for.
    fn deliver(&mut self) {
        while let Some(notice) = self.server.next_notice() {
            match notice {
                Notice::Wake(slot) => {
                    let sleeper = self.sessions.iter().find(|hosted| hosted.id.slot() == slot);
                    self.wakes.extend(sleeper.map(|hosted| hosted.number));
                }
                Notice::Disconnect(slot) => {
                    self.sessions.retain(|hosted| hosted.id.slot() != slot);
                }
            }
        }
    }

    /// Sessions whose callers sleep and are to be woken.
    pub(super) fn take_wakes(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.wakes)
    }

    /// Whether answers were given since the last question.
    pub(super) fn take_answered(&mut self) -> bool {
        let responses = self.server.stats().responses;
        std::mem::replace(&mut self.responses, responses) != responses
    }

    /// Requests that were taken and not answered.
    pub(super) fn unanswered(&mut self) -> usize {
        let Self { server, sessions, .. } = self;
        sessions.iter().map(|hosted| server.unanswered(hosted.id)).sum()
    }

    /// Its process is killed.
    pub(super) fn kill(&mut self) {
        self.is_killed = true;
    }
}

impl Drop for SimClients {
    fn drop(&mut self) {
        if !self.is_killed {
            self.server.abandon_introduced();
        }
        self.is_dead.set(true);
    }
}

impl IntroducedClients for SimClients {
    fn take(&mut self) -> Option<OpenRequest<'_>> {
        self.server.take()
    }

    fn replies(&mut self) -> &mut Replies {
        self.server.replies()
    }

    fn set_turn_budget(&mut self, requests: u32) {
        self.server.set_turn_budget(requests);
    }

    /// The next turn goes on where this one ends, as in production. There, responses are announced a few turns later.
    fn pause(&mut self) {
        self.is_paused = true;
    }

    fn arm(&mut self) -> bool {
        let is_idle = self.server.arm();
        self.deliver();
        is_idle && !self.has_news()
    }

    fn wake_up(&mut self) {
        self.server.wake_up();
    }

    fn has_clients(&self) -> bool {
        self.server.clients().next().is_some()
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
