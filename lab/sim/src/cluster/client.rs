//! A client: the production core of a client process, and a program that calls, or one that serves.

use std::time::Duration;

use client::{
    To,
    direct::{CallWay, DirectCalls, DirectHeads},
    message::{CallHead, DAEMON, HERE, ServeHead, WorkHead, method},
};
use ipc::{CallError, CallOutcome, sans_os::ClientCore};
use rpc::Status;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{
    direct::{Descriptors, Host, Newcomer, Session, SharedDesk},
    history::{self, End, History, Made},
    node::{EMBEDDED, PROVIDED},
    outcome::{judged, judged_in_session},
    plan::{ENDLESS_NS, GRACE_NS, Plan, TIMEOUT_NS},
};
use crate::world::{RandomStream, Time};

/// Between two polls.
const POLL: Time = Time::from_ns(100);
/// Calls do not end later than this after their time, if nothing is wrong with their node: a look at
/// deadlines and some turns.
const SLACK_NS: u64 = 1_000_000 + 500_000;
/// How long a provider waits before it tries again.
const RETRY: Time = Time::from_ns(100_000);

/// What a client has in flight: the number of a call, or one of these.
const REGISTER: u64 = 1 << 62;
const SERVE: u64 = 1 << 63;
/// With the place of a destination.
const MAY_MEET: u64 = 1 << 61;
const MEET: u64 = 1 << 60;
const RECEIVE: u64 = 1 << 59;
const COUNTS: u64 = 1 << 58;
/// No call has a number so high.
const CALLS: u64 = COUNTS;
/// How often a provider tells of calls that went without the daemon.
const TELL: Time = Time::from_ns(20_000);

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Caller,
    /// It registers, and then answers.
    Provider {
        is_registered: bool,
        is_waiting: bool,
    },
}

/// What a step of a client leads to.
#[derive(Clone, Debug, Default)]
pub(super) struct Stepped {
    /// The daemon sleeps and is to be woken.
    pub(super) wakes_daemon: bool,
    /// Requests were published, or announced: a daemon that polls finds them.
    pub(super) has_told: bool,
    /// When to step again if nothing comes; `None`: never.
    pub(super) again: Option<Time>,
    /// Sessions that hold requests which their providers may not have seen, and those whose providers sleep.
    pub(super) told: Vec<u64>,
    pub(super) wakes_hosts: Vec<u64>,
    /// A provider answered callers, and those of these sessions sleep.
    pub(super) has_answered: bool,
    pub(super) wakes_callers: Vec<u64>,
}

/// What the world is for a client in one step.
pub(super) struct Surroundings<'a> {
    pub(super) plan: &'a Plan,
    pub(super) history: &'a mut History,
    pub(super) rank: u32,
    pub(super) now: Time,
    /// As its node's clock shows it.
    pub(super) now_ns: u64,
    /// No new calls are made, except those of `checks`.
    pub(super) is_draining: bool,
    /// Something is, or was, wrong with the node itself: its calls may end later than they should.
    pub(super) is_disturbed: bool,
    /// What goes to the daemon beside requests.
    pub(super) descriptors: &'a mut Descriptors,
    pub(super) desk: &'a SharedDesk,
}

/// One client of a node.
pub(super) struct Client {
    pub(super) id: ipc::ClientId,
    pub(super) slot: u16,
    core: ClientCore<u64>,
    pub(super) role: Role,
    random: RandomStream,
    /// Number of the client at its node.
    number: u32,
    /// Calls that it has in flight, if it is greedier than others.
    greedy_window: Option<usize>,
    is_sleeper: bool,
    pub(super) is_parked: bool,
    pub(super) is_asleep: bool,
    /// The step that is scheduled.
    pub(super) step: u64,
    /// When the client looks in any case.
    pub(super) timer: Option<Time>,
    polls: u32,
    next_call: Time,
    /// The daemon may not know of requests.
    is_untold: bool,
    /// Ranks that are to be called once more when all faults are over.
    pub(super) checks: Vec<u32>,
    /// Of a caller.
    direct: DirectCalls<Session>,
    /// It made its socket known to the daemon.
    newcomer: Option<Newcomer>,
    /// What the daemon said about introductions: the place, whether it was only asked, and whether it said yes.
    met: Vec<(usize, bool, bool)>,
    /// Of a provider.
    host: Option<Host>,
    next_counts: Time,
}

impl Client {
    pub(super) fn new(
        plan: &Plan,
        (name, number): (&str, usize),
        role: Role,
        (id, slot, core): (ipc::ClientId, u16, ClientCore<u64>),
        now: Time,
    ) -> Self {
        let mut random = RandomStream::new(plan.seed, name);
        Self {
            id,
            slot,
            core,
            role,
            number: u32::try_from(number).unwrap_or(u32::MAX),
            greedy_window: plan.greedy_window.filter(|_| number == 0),
            is_sleeper: random.happens(plan.sleepy_permille),
            is_parked: false,
            is_asleep: false,
            step: 0,
            timer: None,
            polls: 0,
            next_call: now + Time::from_ns(random.number(plan.think_ns + plan.start_ns)),
            random,
            is_untold: false,
            checks: Vec::new(),
            direct: DirectCalls::new(ipc::ClientConfig::default()),
            newcomer: None,
            met: Vec::new(),
            host: None,
            next_counts: now,
        }
    }

    fn window(&self, plan: &Plan) -> usize {
        self.greedy_window.unwrap_or(plan.window)
    }

    /// Whether an answer waits for it.
    pub(super) fn has_response(&self) -> bool {
        self.core.has_response() || self.direct.all().any(Session::has_response)
    }

    /// Whether the kernel tells it something about its sessions.
    pub(super) fn has_direct_news(&mut self) -> bool {
        self.host.as_mut().is_some_and(Host::has_news) || self.direct.all().any(Session::has_ended)
    }

    /// Whether it is the caller of this session.
    pub(super) fn calls_in(&self, session: u64) -> bool {
        self.direct.all().any(|it| it.number() == session)
    }

    /// Its sessions, if it is a provider.
    pub(super) fn host(&mut self) -> Option<&mut Host> {
        self.host.as_mut()
    }

    /// Calls that have not ended.
    pub(super) fn in_flight(&self) -> usize {
        self.core.in_flight() + self.direct.all().map(Session::in_flight).sum::<usize>()
    }

    /// Its daemon or its own process is gone: all calls end. A provider that is not killed says so to its callers.
    pub(super) fn end(&mut self, history: &mut History, now: Time, is_killed: bool) {
        if let Some(host) = &mut self.host {
            host.end(is_killed);
        }
        let Self { core, direct, .. } = self;
        for core in direct.sessions().map(Session::core).chain([core]) {
            core.looked(true);
            let _ = core.end_if_gone(&mut |call, _| {
                if call < CALLS {
                    history.ended(call, Err(End::DaemonGone), now);
                }
            });
        }
    }

    /// One step: polls, calls, tells the daemon, and looks at deadlines.
    pub(super) fn step(&mut self, around: &mut Surroundings<'_>) -> Stepped {
        if self.is_asleep {
            self.core.disarm();
            self.direct.sessions().for_each(|session| session.core().disarm());
            self.host.iter_mut().for_each(Host::wake_up);
            self.is_asleep = false;
        }
        self.is_parked = false;
        let mut stepped = Stepped::default();
        let ended = self.poll(around) + self.host_step(around, &mut stepped);
        let has_published = self.publish(around);
        self.is_untold |= has_published;
        let mut has_told = has_published;
        let mut wakes_daemon = self.core.announce();
        for session in self.direct.sessions() {
            if session.core().announce() {
                stepped.wakes_hosts.push(session.number());
            }
        }
        if ended > 0 || has_published {
            self.polls = 0;
        } else {
            self.polls += 1;
        }
        let mut again = Some(around.now + POLL);
        if self.polls >= around.plan.detail.polls {
            self.polls = 0;
            wakes_daemon |= self.core.flush();
            has_told |= std::mem::take(&mut self.is_untold);
            // New calls get their deadlines; what is over was ended by the poll, at the same time.
            self.core.tick(around.now_ns, &mut |_, _| ());
            for session in self.direct.sessions() {
                if session.core().flush() {
                    stepped.wakes_hosts.push(session.number());
                }
                session.core().tick(around.now_ns, &mut |_, _| ());
            }
            if !self.is_sleeper || self.arm(around.now_ns, &mut stepped) {
                (self.is_asleep, self.is_parked) = (self.is_sleeper, true);
                again = self.due(around);
            } else {
                self.core.disarm();
                self.direct.sessions().for_each(|session| session.core().disarm());
                self.host.iter_mut().for_each(Host::wake_up);
            }
        }
        stepped.told =
            self.direct.all().filter(|it| it.in_flight() > 0).map(Session::number).collect();
        Stepped { wakes_daemon, has_told, again, ..stepped }
    }

    /// Announces that it sleeps; `false`: there is something to do.
    fn arm(&mut self, now_ns: u64, stepped: &mut Stepped) -> bool {
        let mut may_sleep = self.core.arm(now_ns);
        for session in self.direct.sessions() {
            may_sleep &= session.core().arm(now_ns) && !session.has_ended();
        }
        if let Some(host) = &mut self.host {
            let (is_idle, wakes) = host.arm();
            may_sleep &= is_idle;
            stepped.wakes_callers.extend(wakes);
        }
        may_sleep
    }

    /// A provider looks after callers that were introduced, and tells its daemon of them; returns how much there was.
    fn host_step(&mut self, around: &mut Surroundings<'_>, stepped: &mut Stepped) -> usize {
        let Some(host) = &mut self.host else { return 0 };
        let Surroundings { rank, now, now_ns, history, .. } = around;
        let hosting = host.step((*rank, *now, *now_ns), &mut self.random, history);
        stepped.has_answered = hosting.has_answered;
        stepped.wakes_callers = hosting.wakes;
        if *now >= self.next_counts {
            self.next_counts = *now + TELL;
            let counts = host.take_counts();
            if !counts.is_empty() {
                let parts: [&[u8]; 2] = [&daemon_head(method::COUNTS), counts.as_bytes()];
                // What finds no room is not counted.
                self.is_untold |= self.core.submit_parts(&parts, TIMEOUT_NS, COUNTS).is_ok();
            }
        }
        hosting.handled
    }

    /// When there is something to do although nothing comes.
    fn due(&self, around: &Surroundings<'_>) -> Option<Time> {
        let deadlines_ns = self.direct.all().map(Session::earliest_deadline_ns);
        let deadline_ns = deadlines_ns.fold(self.core.earliest_deadline_ns(), u64::min);
        let deadline = (deadline_ns != u64::MAX)
            .then(|| around.now + Time::from_ns(deadline_ns.saturating_sub(around.now_ns) + 1));
        let wants_more = match self.role {
            Role::Caller => {
                !self.checks.is_empty()
                    || !around.is_draining && self.core.in_flight() < self.window(around.plan)
            }
            Role::Provider { is_waiting, .. } => !is_waiting,
        };
        let call = wants_more.then(|| self.next_call.max(around.now + POLL));
        let held = self.host.as_ref().and_then(Host::due);
        [deadline, call, held].into_iter().flatten().min()
    }

    fn poll(&mut self, around: &mut Surroundings<'_>) -> usize {
        let Self { core, role, next_call, direct, met, host, .. } = self;
        let mut work = None;
        let Surroundings { history, now, now_ns, .. } = around;
        let mut done = |call: u64, outcome: CallOutcome<'_>| match call {
            REGISTER => {
                let is_registered = outcome.is_ok();
                *role = Role::Provider { is_registered, is_waiting: false };
                *next_call = *now + if is_registered { Time::ZERO } else { RETRY };
            }
            SERVE => {
                *role = Role::Provider { is_registered: outcome.is_ok(), is_waiting: false };
                match outcome {
                    Ok(bytes) => work = Some(bytes.to_vec()),
                    Err(_) => *next_call = *now + RETRY,
                }
            }
            RECEIVE if outcome.is_err() => *host = None,
            RECEIVE | COUNTS => {}
            _ if call & (MAY_MEET | MEET) != 0 => {
                let place = usize::try_from(call & (CALLS - 1)).unwrap_or(0);
                met.push((place, call & MAY_MEET != 0, outcome.is_ok()));
            }
            call => {
                let outcome = judged(history, call, outcome);
                history.ended(call, outcome, *now);
            }
        };
        let polled = core.poll(&mut done);
        let mut ended = polled.ended + core.tick(*now_ns, &mut done);
        for session in direct.sessions() {
            ended += session.poll(*now_ns, &mut |call, outcome| {
                let outcome = judged_in_session(history, call, outcome);
                history.ended(call, outcome, *now);
            });
        }
        direct.close_gone();
        drop(direct.take_news());
        ended += met.len();
        self.meet(around);
        let Surroundings { plan, history, now, rank, .. } = around;
        let Self { next_call, random, .. } = self;
        if let Some(bytes) = work {
            *next_call = *now + Time::from_ns(random.number(2_000));
            if !plan.is_silent {
                self.serve(*rank, &bytes, history);
            }
        }
        ended
    }

    /// Makes the calls that are due; whether there were any.
    fn publish(&mut self, around: &mut Surroundings<'_>) -> bool {
        if around.now < self.next_call {
            return false;
        }
        match self.role {
            Role::Provider { is_waiting: true, .. } => false,
            Role::Provider { is_registered: false, .. } => {
                let parts: [&[u8]; 2] = [&daemon_head(method::REGISTER), &PROVIDED.to_le_bytes()];
                let is_made = self.core.submit_parts(&parts, TIMEOUT_NS, REGISTER).is_ok();
                // A provider that registers anew receives callers anew.
                self.host = None;
                self.role = Role::Provider { is_registered: false, is_waiting: is_made };
                self.next_call = around.now + RETRY;
                is_made
            }
            Role::Provider { .. } => {
                if around.plan.is_direct && self.host.is_none() {
                    self.receive(around);
                }
                self.ask(0, &[]);
                true
            }
            Role::Caller if !self.checks.is_empty() => {
                let to = self.checks.remove(0);
                self.call(around, to, true)
            }
            Role::Caller if around.is_draining => false,
            Role::Caller if self.core.in_flight() >= self.window(around.plan) => false,
            Role::Caller => {
                let think_ns = self.random.number(around.plan.think_ns);
                self.next_call = around.now + Time::from_ns(think_ns);
                let Plan { nodes, peers_called, is_incast, .. } = *around.plan;
                let ranks = if is_incast { 1 } else { peers_called + 1 };
                let drawn = u32::try_from(self.random.number(ranks.into())).unwrap_or(0);
                // With all nodes the number is that of the rank.
                let first = if ranks < nodes && !is_incast { around.rank } else { 0 };
                let to = (first + drawn) % nodes;
                self.call(around, to, false)
            }
        }
    }

    fn call(&mut self, around: &mut Surroundings<'_>, to: u32, must_succeed: bool) -> bool {
        let Surroundings { plan, history, rank, now, is_disturbed, .. } = around;
        let (is_greedy, client) = (self.greedy_window.is_some(), self.number);
        let random = &mut self.random;
        let is_hurried = !must_succeed && random.happens(plan.hurried_permille);
        let mut is_provided = plan.has_providers && !must_succeed;
        let timeout_ns = match is_hurried {
            true => 20_000 + random.number(200_000),
            false if plan.is_silent && is_provided && random.happens(500) => ENDLESS_NS,
            false => TIMEOUT_NS,
        };
        is_provided &= !plan.is_silent || timeout_ns == ENDLESS_NS;
        let mut draw_bytes = || {
            let most = random.choose(&[16, 64, plan.body_bytes_max]).min(plan.body_bytes_max);
            let most = if is_greedy { plan.body_bytes_max } else { most };
            u32::try_from(random.number(u64::from(most) + 1)).unwrap_or(0)
        };
        let (request_bytes, response_bytes) = (draw_bytes(), draw_bytes());
        let number = history.next_number();
        let body = history::request(number, request_bytes as usize, response_bytes);
        let service = if is_provided { PROVIDED } else { EMBEDDED };
        let head = CallHead {
            rank: to.into(),
            service: service.into(),
            method: 3.into(),
            timeout_us: u32::try_from(timeout_ns / 1000).unwrap_or(u32::MAX).into(),
            response_bytes: (response_bytes + 64).into(),
        };
        // A call that waits for room may end a little later than its client was told.
        let made =
            Made { from: *rank, client, to, at: *now, due: *now, response_bytes, must_succeed };
        if is_provided && plan.is_direct {
            let late_ns = if *is_disturbed { GRACE_NS } else { 0 } + SLACK_NS;
            let due = *now + Time::from_ns(timeout_ns + late_ns);
            if self.call_directly((to, service, number), &body, timeout_ns) {
                history.made(Made { due, ..made });
                return true;
            }
        }
        let late_ns = if *is_disturbed { GRACE_NS + timeout_ns / 50 } else { 0 } + SLACK_NS;
        let due = *now + Time::from_ns(timeout_ns + late_ns);
        let parts: [&[u8]; 2] = [head.as_bytes(), &body];
        match self.core.submit_parts(&parts, timeout_ns + GRACE_NS, number) {
            Ok(_) => {
                history.made(Made { due, ..made });
                true
            }
            Err((CallError::Full { .. }, _)) => {
                // Late responses hold entries.
                if must_succeed {
                    self.checks.push(to);
                }
                self.next_call = *now + Time::from_ns(1_000);
                false
            }
            Err((error, _)) => {
                let rank = *rank;
                history.fail(|| format!("a client of rank {rank} cannot call: {error}"));
                false
            }
        }
    }

    /// Makes a call in a session, if there is one with room for it. Others go through the daemon.
    fn call_directly(
        &mut self,
        (rank, service, number): (u32, u16, u64),
        body: &[u8],
        timeout_ns: u64,
    ) -> bool {
        let at = match self.direct.way(To { rank, service, method: 3 }) {
            CallWay::Session(at) => at,
            CallWay::Daemon => return false,
            CallWay::Meet(place) => {
                self.ask_to_meet(place, true);
                return false;
            }
        };
        let Some(session) = self.direct.session(at) else { return false };
        let heads = DirectHeads::new(3, Duration::from_nanos(timeout_ns), 0);
        let [head, extra] = heads.parts();
        session.core().submit_parts(&[head, extra, body], timeout_ns, number).is_ok()
    }

    /// Asks the daemon about an introduction, or for it.
    fn ask_to_meet(&mut self, place: usize, is_asking: bool) {
        let (of_method, kind) =
            if is_asking { (method::MAY_MEET, MAY_MEET) } else { (method::MEET, MEET) };
        let wanted = self.direct.wanted(place);
        let parts: [&[u8]; 2] = [&daemon_head(of_method), wanted.as_bytes()];
        if self.core.submit_parts(&parts, TIMEOUT_NS, kind | place as u64).is_err() {
            self.direct.asked(place, Err(refused()));
        }
    }

    /// Does what is to be done once the daemon has said something about introductions.
    fn meet(&mut self, around: &mut Surroundings<'_>) {
        for (place, is_asking, is_granted) in std::mem::take(&mut self.met) {
            if !is_granted {
                if !is_asking {
                    self.newcomer = None;
                }
                self.direct.asked(place, Err(refused()));
                continue;
            }
            if !is_asking {
                self.direct.asked(place, self.newcomer.take().ok_or_else(refused));
                continue;
            }
            // One at a time.
            let made = if self.newcomer.is_none() { Newcomer::new(around.desk) } else { None };
            match made {
                Some((newcomer, given)) => {
                    around.descriptors.put(self.id, given);
                    self.newcomer = Some(newcomer);
                    self.ask_to_meet(place, false);
                    self.is_untold = true;
                }
                None => self.direct.asked(place, Err(refused())),
            }
        }
    }

    /// A provider receives callers from now on.
    fn receive(&mut self, around: &mut Surroundings<'_>) {
        let Some((host, given)) = Host::new(around.plan, around.desk) else { return };
        let parts: [&[u8]; 2] = [&daemon_head(method::RECEIVE), &PROVIDED.to_le_bytes()];
        if self.core.submit_parts(&parts, TIMEOUT_NS, RECEIVE).is_ok() {
            around.descriptors.put(self.id, given);
            self.host = Some(host);
        }
    }

    /// A provider got a request: answers it, and asks for the next one.
    fn serve(&mut self, rank: u32, bytes: &[u8], history: &mut History) {
        let Ok((head, body)) = WorkHead::read_from_prefix(bytes) else {
            return history.fail(|| format!("the provider of rank {rank} got {} B", bytes.len()));
        };
        let mut answer = Vec::new();
        let status = history.execute((rank, rank), body, &mut answer);
        debug_assert_eq!(status, Status::Ok);
        self.ask(head.work.get(), &answer);
    }

    fn ask(&mut self, work: u64, answer: &[u8]) {
        let head = ServeHead {
            work: work.into(),
            service: PROVIDED.into(),
            status: Status::Ok.code(),
            origin: 0,
            reserved: [0; 4],
        };
        let parts: [&[u8]; 3] = [&daemon_head(method::SERVE), head.as_bytes(), answer];
        let is_waiting = self.core.submit_parts(&parts, u64::MAX, SERVE).is_ok();
        self.role = Role::Provider { is_registered: true, is_waiting };
    }
}

fn daemon_head(method: u16) -> Vec<u8> {
    let head = CallHead {
        rank: HERE.into(),
        service: DAEMON.into(),
        method: method.into(),
        timeout_us: u32::MAX.into(),
        response_bytes: 0.into(),
    };
    head.as_bytes().to_vec()
}

fn refused() -> client::CallError {
    client::CallError::Refused(Status::ResourceExhausted)
}
