//! The steps of a provider: it offers its service, asks for requests, and answers them at once or later.

use std::{cell::RefCell, time::Duration};

use client::{DaemonConnection as _, Offer, ProviderSession, Registering, Request, Turned};
use ipc::sans_os::ClientCore;
use rpc::Status;

use super::{
    direct::{SharedDesk, SimClients},
    history::History,
    node::PROVIDED,
    plan::Plan,
    provider::{SimConnection, SimPlace},
    sim_clock::SimClock,
    surroundings::{POLL, Stepped, Surroundings},
};
use crate::world::{RandomStream, Time};

/// How long a provider waits before it offers its service again.
const RETRY: Time = Time::from_ns(100_000);
/// Handlers begin within one of these times, and last for one of them.
const BEGINS_NS: [u64; 4] = [1, 1, 2_000, 50_000];
const LASTS_NS: [u64; 3] = [1, 5_000, 20_000];

/// How a provider serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It answers where it reads.
    Reads,
    /// Handlers begin and end later.
    Queues,
    /// It answers nothing before the request is cancelled.
    Silent,
}

/// A request that a handler has.
struct Held {
    request: Request,
    /// What it will be answered with, once the handler has begun.
    answer: Option<Vec<u8>>,
    /// When the handler begins, or ends.
    at: Time,
    /// How long the handler lasts.
    lasts: Time,
}

/// How far a provider has come.
enum Stage {
    /// It is to offer its service.
    Waiting(SimConnection),
    /// The daemon has not answered.
    Offering(Registering<SimConnection>),
    /// The daemon has not said whether it introduces clients.
    Asking(ProviderSession<SimPlace>),
    Serving(ProviderSession<SimPlace>),
    /// It ended by itself, which fails the run.
    Over,
}

/// A client that serves.
pub(super) struct SimProvider {
    stage: Stage,
    way: Way,
    offer: Offer,
    clock: SimClock,
    desk: SharedDesk,
    random: RandomStream,
    held: RefCell<Vec<Held>>,
    /// When it offers its service.
    offers_at: Time,
    /// How long it may sleep.
    sleep_max: Option<Duration>,
}

impl SimProvider {
    pub(super) fn new(
        plan: &Plan,
        core: ClientCore<client::Asks>,
        mut random: RandomStream,
        desk: &SharedDesk,
    ) -> Self {
        let clock = SimClock::default();
        let way = match random.happens(300) {
            _ if plan.is_silent => Way::Silent,
            true => Way::Reads,
            false => Way::Queues,
        };
        let window = random.choose(&[None, Some(1), Some(4), Some(64)]);
        let offer = Offer::new(PROVIDED);
        let offer = if plan.shares_services { offer.shared() } else { offer };
        Self {
            stage: Stage::Waiting(SimConnection::new(plan, core, &clock)),
            way,
            offer: window.into_iter().fold(offer, Offer::window),
            clock,
            desk: desk.clone(),
            random,
            held: RefCell::default(),
            offers_at: Time::ZERO,
            sleep_max: None,
        }
    }

    fn connection(&self) -> Option<&SimConnection> {
        match &self.stage {
            Stage::Waiting(connection) => Some(connection),
            Stage::Offering(registering) => Some(registering.connection()),
            Stage::Asking(session) | Stage::Serving(session) => Some(session.connection()),
            Stage::Over => None,
        }
    }

    fn connection_mut(&mut self) -> Option<&mut SimConnection> {
        match &mut self.stage {
            Stage::Waiting(connection) => Some(connection),
            Stage::Offering(registering) => Some(registering.connection_mut()),
            Stage::Asking(session) | Stage::Serving(session) => Some(session.connection_mut()),
            Stage::Over => None,
        }
    }

    pub(super) fn has_response(&self) -> bool {
        self.connection().is_some_and(SimConnection::has_response)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.connection().map_or(0, |connection| connection.in_flight())
    }

    /// Its server of clients.
    pub(super) fn clients(&mut self) -> Option<&mut SimClients> {
        match &mut self.stage {
            Stage::Asking(session) | Stage::Serving(session) => session.clients(),
            _ => None,
        }
    }

    /// Whether its daemon has taken its offer.
    pub(super) fn is_serving(&self) -> bool {
        matches!(self.stage, Stage::Serving(_))
    }

    /// Requests that it has taken and not answered.
    pub(super) fn owed(&mut self) -> usize {
        let Stage::Serving(session) = &mut self.stage else { return 0 };
        let of_daemon = session.window().saturating_sub(session.connection().works());
        let of_clients = session.clients().map_or(0, SimClients::unanswered);
        of_daemon.max(session.unanswered()).max(self.held.borrow().len()) + of_clients
    }

    /// Looks at what came, and answers; returns how much there was.
    pub(super) fn turn(&mut self, around: &mut Surroundings<'_>) -> usize {
        self.clock.set(around.now_ns);
        if let Some(clients) = self.clients() {
            clients.hear();
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        let (stage, done) = self.advance(stage, around);
        self.stage = stage;
        if let Some(clients) = self.clients() {
            clients.end_turn();
        }
        done
    }

    fn advance(&mut self, stage: Stage, around: &mut Surroundings<'_>) -> (Stage, usize) {
        match stage {
            Stage::Waiting(connection) if around.now >= self.offers_at => {
                match Registering::begin(connection, &self.offer, &self.clock) {
                    Ok(registering) => (Stage::Offering(registering), 1),
                    Err(error) => ended(around, &error),
                }
            }
            Stage::Offering(mut registering) => match registering.poll(&self.clock) {
                None => (Stage::Offering(registering), 0),
                Some(Err(_)) => {
                    self.offers_at = around.now + RETRY;
                    (Stage::Waiting(registering.into_connection()), 1)
                }
                Some(Ok(clock)) => {
                    let place = SimPlace::new(around.plan, &self.clock, &self.desk);
                    match ProviderSession::new(place, (registering, clock), &self.offer) {
                        Ok(session) => (Stage::Asking(session), 1),
                        Err(error) => ended(around, &error),
                    }
                }
            },
            Stage::Asking(mut session) => {
                if !session.has_begun() {
                    return (Stage::Asking(session), 0);
                }
                let asked =
                    if self.way == Way::Reads { session.ask() } else { session.begin_run() };
                match asked {
                    Ok(()) => (Stage::Serving(session), 1),
                    Err(error) => ended(around, &error),
                }
            }
            Stage::Serving(session) => self.serve(session, around),
            stage => (stage, 0),
        }
    }

    /// A turn of production, with handlers of its own.
    fn serve(
        &mut self,
        mut session: ProviderSession<SimPlace>,
        around: &mut Surroundings<'_>,
    ) -> (Stage, usize) {
        let Surroundings { rank, now, history, .. } = around;
        let turned = match self.way {
            Way::Reads => session.serve_step(|inbound, answer| {
                Some(history.execute((*rank, *rank), inbound.body, answer))
            }),
            Way::Queues | Way::Silent => {
                let Self { held, random, clock, way, .. } = self;
                let mut draw = |within_ns: &[u64]| {
                    let within_ns = random.choose(within_ns);
                    Time::from_ns(random.number(within_ns))
                };
                let take = &mut |request| {
                    let at = *now + draw(&BEGINS_NS);
                    let one = Held { request, answer: None, at, lasts: draw(&LASTS_NS) };
                    held.borrow_mut().push(one);
                };
                let handlers = Handlers { way: *way, clock, rank: *rank, now: *now };
                session.run_step(take, &mut || handlers.turn(&mut held.borrow_mut(), history))
            }
        };
        match turned {
            Ok(Turned::On(count)) => {
                if count > 0 {
                    session.tell_counts();
                }
                (Stage::Serving(session), count)
            }
            Ok(Turned::Over) => ended(around, &"it was not stopped"),
            Err(error) => ended(around, &error),
        }
    }

    /// What a step leads to.
    pub(super) fn told(&mut self, around: &mut Surroundings<'_>, stepped: &mut Stepped) {
        if let Some(connection) = self.connection_mut() {
            let (has_told, wakes_daemon) = connection.take_told();
            stepped.has_told |= has_told;
            stepped.wakes_daemon |= wakes_daemon;
            if let Some(descriptor) = connection.take_descriptor() {
                around.descriptors.put(around.id, descriptor);
            }
        }
        if let Some(clients) = self.clients() {
            stepped.has_answered = clients.take_answered();
            stepped.wakes_callers = clients.take_wakes();
        }
    }

    /// Whether it may stop to poll, which it does to sleep if it is a `sleeper`.
    pub(super) fn may_park(&mut self, is_sleeper: bool) -> bool {
        self.sleep_max = None;
        if let Stage::Serving(session) = &mut self.stage
            && is_sleeper
        {
            self.sleep_max = session.doze();
            return self.sleep_max.is_some();
        }
        let Some(connection) = self.connection_mut() else { return true };
        connection.flush();
        !is_sleeper || connection.arm()
    }

    pub(super) fn awake(&mut self) {
        if let Stage::Serving(session) = &mut self.stage {
            session.awake();
        }
    }

    /// When there is something to do although nothing comes.
    pub(super) fn due(&self, around: &Surroundings<'_>) -> Option<Time> {
        let offers = matches!(self.stage, Stage::Waiting(_)).then_some(self.offers_at);
        let held = self.held.borrow();
        let held = held.iter().filter(|_| self.way != Way::Silent).map(|held| held.at).min();
        let slept = self.sleep_max.map(|max| around.now + Time::from_ns(nanoseconds(max)));
        let due = [offers, held, slept].into_iter().flatten().min();
        due.map(|due| due.max(around.now + POLL))
    }
}

/// A provider ended although it was not stopped.
fn ended(around: &mut Surroundings<'_>, error: &dyn std::fmt::Display) -> (Stage, usize) {
    let rank = around.rank;
    around.history.fail(|| format!("a provider of rank {rank} has ended by itself: {error}"));
    (Stage::Over, 0)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX >> 1)
}

/// The handlers of a provider, in one turn.
struct Handlers<'a> {
    way: Way,
    clock: &'a SimClock,
    rank: u32,
    now: Time,
}

impl Handlers<'_> {
    /// Begins and ends handlers; returns how many.
    fn turn(&self, held: &mut Vec<Held>, history: &mut History) -> usize {
        let mut done = 0;
        for one in std::mem::take(held) {
            if one.at > self.now && one.answer.is_some() {
                held.push(one);
                continue;
            }
            let has_begun = one.answer.is_some();
            let left = self.go_on(one, history);
            done += usize::from(left.as_ref().is_none_or(|one| one.answer.is_some() != has_begun));
            held.extend(left);
        }
        done
    }

    /// Does what is due with a request; hands it back if it is not answered.
    fn go_on(&self, one: Held, history: &mut History) -> Option<Held> {
        let Held { request, answer, at, lasts } = one;
        let answer = match answer {
            Some(answer) => answer,
            None => {
                let request = request.end_if_cancelled(self.clock)?;
                if at > self.now || self.way == Way::Silent {
                    return Some(Held { request, answer: None, at, lasts });
                }
                let mut answer = Vec::new();
                history.execute((self.rank, self.rank), request.body(), &mut answer);
                let at = self.now + lasts;
                if at > self.now {
                    return Some(Held { request, answer: Some(answer), at, lasts });
                }
                request.reply(Status::Ok, answer);
                return None;
            }
        };
        request.reply(Status::Ok, answer);
        None
    }
}
