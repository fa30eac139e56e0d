//! A program that calls, and checks each answer.

use std::time::Duration;

use client::{
    To,
    direct::{CallWay, DirectCalls, DirectHeads},
    message::{CallHead, DAEMON, HERE, method},
};
use ipc::{CallError, CallOutcome, sans_os::ClientCore};
use rpc::Status;
use zerocopy::IntoBytes as _;

use super::{
    direct::{Newcomer, Session},
    history::{self, End, History, Made},
    node::{EMBEDDED, PROVIDED},
    outcome::{judged, judged_in_session},
    plan::{ENDLESS_NS, GRACE_NS, Plan, TIMEOUT_NS},
    surroundings::{POLL, Stepped, Surroundings},
};
use crate::world::{RandomStream, Time};

/// Calls do not end later than this after their time, if nothing is wrong with their node: a look at
/// deadlines and some turns.
const SLACK_NS: u64 = 1_000_000 + 500_000;

/// What a caller has in flight: the number of a call, or one of these with the place of a destination.
const MAY_MEET: u64 = 1 << 61;
const MEET: u64 = 1 << 60;
/// No call has a number so high.
const CALLS: u64 = MEET;

/// A service of a node that is to be called once more when all faults are over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    pub(super) rank: u32,
    pub(super) is_provided: bool,
}

/// A client that calls.
pub(super) struct Caller {
    core: ClientCore<u64>,
    random: RandomStream,
    /// Number of the client at its node.
    number: u32,
    /// Calls that it has in flight, if it is greedier than others.
    greedy_window: Option<usize>,
    next_call: Time,
    /// The daemon may not know of requests.
    is_untold: bool,
    /// Calls that must succeed when all faults are over.
    pub(super) checks: Vec<Check>,
    direct: DirectCalls<Session>,
    /// It made its socket known to the daemon.
    newcomer: Option<Newcomer>,
    /// What the daemon said about introductions: the place, whether it was only asked, and whether it said yes.
    met: Vec<(usize, bool, bool)>,
}

impl Caller {
    pub(super) fn new(
        plan: &Plan,
        number: usize,
        core: ClientCore<u64>,
        mut random: RandomStream,
        now: Time,
    ) -> Self {
        Self {
            core,
            number: u32::try_from(number).unwrap_or(u32::MAX),
            greedy_window: plan.greedy_window.filter(|_| number == 0),
            next_call: now + Time::from_ns(random.number(plan.think_ns + plan.start_ns)),
            random,
            is_untold: false,
            checks: Vec::new(),
            direct: DirectCalls::new(ipc::ClientConfig::default()),
            newcomer: None,
            met: Vec::new(),
        }
    }

    fn window(&self, plan: &Plan) -> usize {
        self.greedy_window.unwrap_or(plan.window)
    }

    pub(super) fn has_response(&self) -> bool {
        self.core.has_response() || self.direct.all().any(Session::has_response)
    }

    /// Whether the kernel tells it something about its sessions.
    pub(super) fn has_direct_news(&self) -> bool {
        self.direct.all().any(Session::has_ended)
    }

    pub(super) fn calls_in(&self, session: u64) -> bool {
        self.direct.all().any(|it| it.number() == session)
    }

    /// Calls that have not ended.
    pub(super) fn in_flight(&self) -> usize {
        self.core.in_flight() + self.direct.all().map(Session::in_flight).sum::<usize>()
    }

    /// Its daemon or its own process is gone: all calls end.
    pub(super) fn end(&mut self, history: &mut History, now: Time) {
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

    /// Polls, and makes calls; returns how much there was.
    pub(super) fn turn(&mut self, around: &mut Surroundings<'_>, stepped: &mut Stepped) -> usize {
        let ended = self.poll(around);
        let has_published = self.publish(around);
        self.is_untold |= has_published;
        stepped.has_told = has_published;
        stepped.wakes_daemon = self.core.announce();
        for session in self.direct.sessions() {
            if session.core().announce() {
                stepped.wakes_hosts.push(session.number());
            }
        }
        ended + usize::from(has_published)
    }

    /// Before it polls no more: everybody is told, and calls have their deadlines.
    pub(super) fn flush(&mut self, around: &Surroundings<'_>, stepped: &mut Stepped) {
        stepped.wakes_daemon |= self.core.flush();
        stepped.has_told |= std::mem::take(&mut self.is_untold);
        // New calls get their deadlines; what is over was ended by the poll, at the same time.
        self.core.tick(around.now_ns, &mut |_, _| ());
        for session in self.direct.sessions() {
            if session.core().flush() {
                stepped.wakes_hosts.push(session.number());
            }
            session.core().tick(around.now_ns, &mut |_, _| ());
        }
    }

    /// Announces that it sleeps; `false`: there is something to do.
    pub(super) fn arm(&mut self, now_ns: u64) -> bool {
        let mut may_sleep = self.core.arm(now_ns);
        for session in self.direct.sessions() {
            may_sleep &= session.core().arm(now_ns) && !session.has_ended();
        }
        may_sleep
    }

    pub(super) fn awake(&mut self) {
        self.core.disarm();
        self.direct.sessions().for_each(|session| session.core().disarm());
    }

    /// Sessions that hold requests.
    pub(super) fn told(&self, stepped: &mut Stepped) {
        let with_requests = self.direct.all().filter(|session| session.in_flight() > 0);
        stepped.told = with_requests.map(Session::number).collect();
    }

    /// When there is something to do although nothing comes.
    pub(super) fn due(&self, around: &Surroundings<'_>) -> Option<Time> {
        let deadlines_ns = self.direct.all().map(Session::earliest_deadline_ns);
        let deadline_ns = deadlines_ns.fold(self.core.earliest_deadline_ns(), u64::min);
        let deadline = (deadline_ns != u64::MAX)
            .then(|| around.now + Time::from_ns(deadline_ns.saturating_sub(around.now_ns) + 1));
        let wants_more = !self.checks.is_empty()
            || !around.is_draining && self.core.in_flight() < self.window(around.plan);
        let call = wants_more.then(|| self.next_call.max(around.now + POLL));
        [deadline, call].into_iter().flatten().min()
    }

    fn poll(&mut self, around: &mut Surroundings<'_>) -> usize {
        let Self { core, direct, met, .. } = self;
        let Surroundings { history, now, now_ns, .. } = around;
        let mut done = |call: u64, outcome: CallOutcome<'_>| {
            if call & (MAY_MEET | MEET) != 0 {
                let place = usize::try_from(call & (CALLS - 1)).unwrap_or(0);
                return met.push((place, call & MAY_MEET != 0, outcome.is_ok()));
            }
            let outcome = judged(history, call, outcome);
            history.ended(call, outcome, *now);
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
        ended
    }

    /// Makes the calls that are due; whether there were any.
    fn publish(&mut self, around: &mut Surroundings<'_>) -> bool {
        if around.now < self.next_call {
            return false;
        }
        if !self.checks.is_empty() {
            let check = self.checks.remove(0);
            return self.call(around, check.rank, Some(check));
        }
        if around.is_draining || self.core.in_flight() >= self.window(around.plan) {
            return false;
        }
        let think_ns = self.random.number(around.plan.think_ns);
        self.next_call = around.now + Time::from_ns(think_ns);
        let Plan { nodes, peers_called, is_incast, .. } = *around.plan;
        let ranks = if is_incast { 1 } else { peers_called + 1 };
        let drawn = u32::try_from(self.random.number(ranks.into())).unwrap_or(0);
        // With all nodes the number is that of the rank.
        let first = if ranks < nodes && !is_incast { around.rank } else { 0 };
        let to = (first + drawn) % nodes;
        self.call(around, to, None)
    }

    fn call(&mut self, around: &mut Surroundings<'_>, to: u32, check: Option<Check>) -> bool {
        let must_succeed = check.is_some();
        let Surroundings { plan, history, rank, now, is_disturbed, .. } = around;
        let (is_greedy, client) = (self.greedy_window.is_some(), self.number);
        let random = &mut self.random;
        let is_hurried = !must_succeed && random.happens(plan.hurried_permille);
        let mut is_provided = plan.has_providers;
        let timeout_ns = match is_hurried {
            true => 20_000 + random.number(200_000),
            false if plan.is_silent && is_provided && !must_succeed && random.happens(500) => {
                ENDLESS_NS
            }
            false => TIMEOUT_NS,
        };
        is_provided &= !plan.is_silent || timeout_ns == ENDLESS_NS;
        is_provided &= check.is_none_or(|check| check.is_provided);
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
                self.checks.extend(check);
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
                    around.descriptors.put(around.id, given);
                    self.newcomer = Some(newcomer);
                    self.ask_to_meet(place, false);
                    self.is_untold = true;
                }
                None => self.direct.asked(place, Err(refused())),
            }
        }
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
