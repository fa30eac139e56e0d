//! A client: the production core of a client process, and a program that calls, or one that serves.

use client::message::{CallHead, DAEMON, HERE, ServeHead, WorkHead, method};
use ipc::{CallError, CallOutcome, sans_os::ClientCore};
use rpc::Status;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{
    history::{self, End, History, Made},
    node::{EMBEDDED, PROVIDED},
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

/// What a client has in flight.
const CALL: u64 = 0;
const REGISTER: u64 = 1 << 62;
const SERVE: u64 = 1 << 63;

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
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stepped {
    /// The daemon sleeps and is to be woken.
    pub(super) wakes_daemon: bool,
    /// Requests were published, or announced: a daemon that polls finds them.
    pub(super) has_told: bool,
    /// When to step again if nothing comes; `None`: never.
    pub(super) again: Option<Time>,
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
        }
    }

    fn window(&self, plan: &Plan) -> usize {
        self.greedy_window.unwrap_or(plan.window)
    }

    /// Whether an answer waits for it.
    pub(super) fn has_response(&self) -> bool {
        self.core.has_response()
    }

    /// Calls that have not ended.
    pub(super) fn in_flight(&self) -> usize {
        self.core.in_flight()
    }

    /// Its daemon or its own process is gone: all calls end.
    pub(super) fn end(&mut self, history: &mut History, now: Time) {
        self.core.looked(true);
        let _ = self.core.end_if_gone(&mut |call, _| {
            if call & (REGISTER | SERVE) == CALL {
                history.ended(call, Err(End::DaemonGone), now);
            }
        });
    }

    /// One step: polls, calls, tells the daemon, and looks at deadlines.
    pub(super) fn step(&mut self, around: &mut Surroundings<'_>) -> Stepped {
        if self.is_asleep {
            self.core.disarm();
            self.is_asleep = false;
        }
        self.is_parked = false;
        let ended = self.poll(around);
        let has_published = self.publish(around);
        self.is_untold |= has_published;
        let mut has_told = has_published;
        let mut wakes_daemon = self.core.announce();
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
            let may_sleep = !self.is_sleeper || self.core.arm(around.now_ns);
            if may_sleep {
                (self.is_asleep, self.is_parked) = (self.is_sleeper, true);
                again = self.due(around);
            } else {
                self.core.disarm();
            }
        }
        Stepped { wakes_daemon, has_told, again }
    }

    /// When there is something to do although nothing comes.
    fn due(&self, around: &Surroundings<'_>) -> Option<Time> {
        let deadline_ns = self.core.earliest_deadline_ns();
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
        [deadline, call].into_iter().flatten().min()
    }

    fn poll(&mut self, around: &mut Surroundings<'_>) -> usize {
        let Self { core, role, next_call, random, .. } = self;
        let mut work = None;
        let Surroundings { plan, history, now, rank, now_ns, .. } = around;
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
            call => {
                let outcome = judged(history, call, outcome);
                history.ended(call, outcome, *now);
            }
        };
        let polled = core.poll(&mut done);
        let ended = polled.ended + core.tick(*now_ns, &mut done);
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
                self.role = Role::Provider { is_registered: false, is_waiting: is_made };
                self.next_call = around.now + RETRY;
                is_made
            }
            Role::Provider { .. } => {
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
        let late_ns = if *is_disturbed { GRACE_NS + timeout_ns / 50 } else { 0 } + SLACK_NS;
        let due = *now + Time::from_ns(timeout_ns + late_ns);
        let parts: [&[u8]; 2] = [head.as_bytes(), &body];
        match self.core.submit_parts(&parts, timeout_ns + GRACE_NS, number) {
            Ok(_) => {
                let at = *now;
                let from = *rank;
                history.made(Made { from, client, to, at, due, response_bytes, must_succeed });
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

/// What an outcome is for the history; what no honest daemon does is a failure.
fn judged<'a>(history: &mut History, call: u64, outcome: CallOutcome<'a>) -> Result<&'a [u8], End> {
    outcome.map_err(|failed| match failed.error {
        CallError::Deadline => End::Deadline,
        CallError::ServerGone => End::DaemonGone,
        CallError::ResourceExhausted => End::Status(Status::ResourceExhausted.code()),
        CallError::HandlerError(code) => {
            // Behind the status stands who says so: `client::message::origin`.
            let [code, ..] = code.to_le_bytes();
            let is_expected = Status::from_code(code).is_some_and(|status| {
                matches!(
                    status,
                    Status::DeadlineExceeded
                        | Status::ResourceExhausted
                        | Status::Unavailable
                        | Status::Unimplemented
                )
            });
            if !is_expected {
                history.fail(|| format!("call {call} ended with status {code}"));
            }
            End::Status(code)
        }
        error => {
            history.fail(|| format!("call {call} ended with: {error}"));
            End::Deadline
        }
    })
}
