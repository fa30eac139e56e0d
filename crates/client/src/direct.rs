//! Calls that go to a provider of the own node without the daemon in between.
//!
//! A client counts its calls by destination. After some to one, it asks the daemon to introduce it there. The daemon
//! judges that as it judges a call, and hands the provider a socket; until the provider's welcome has come, and again when
//! the session has ended, calls go through the daemon.

use std::{fmt::Debug, time::Duration};

use ipc::{Newcomer, NewcomerState};
use proto::Status;
use zerocopy::IntoBytes as _;

use crate::{
    CallError, To,
    message::{CallExtra, DAEMON, DirectHead, HAS_TRACE, IS_SINGLE, WantedHead},
};

/// Destinations that are counted at a time, by a hash of them.
const PLACES: usize = 16;

/// Calls to a destination after which an introduction is asked for.
const MEET_AFTER: u32 = 64;

/// The same, after one that came to nothing.
const MEET_AGAIN_AFTER: u32 = 4096;

/// Calls that count at most: so many calls to others of the same place, and a session is given up.
const HEAT_MAX: u32 = 8192;

/// Calls between two looks for the welcome of a provider.
const CALLS_PER_LOOK: u32 = 8;

/// Looks after which a provider that says nothing is not waited for any more.
const LOOKS_MAX: u32 = 4096;

/// How far it has come with a destination.
#[derive(Debug)]
enum State<N> {
    /// Calls are counted.
    Counting {
        /// So many of them lead to an introduction.
        meet_after: u32,
    },
    /// The daemon is asked.
    Asked,
    /// The provider was handed a socket, and so many looks found no welcome.
    Coming(N, u32),
    /// There is a session, in this place of their list.
    Open(usize),
}

#[derive(Debug)]
struct Place<N> {
    rank: u32,
    service: u16,
    /// Calls, less those to other destinations of the place.
    heat: u32,
    state: State<N>,
}

impl<N> Place<N> {
    fn new(to: To) -> Self {
        let state = State::Counting { meet_after: MEET_AFTER };
        Self { rank: to.rank, service: to.service, heat: 0, state }
    }

    #[inline]
    fn is_of(&self, to: To) -> bool {
        (self.rank, self.service) == (to.rank, to.service)
    }

    /// Calls are counted from 0.
    fn count_anew(&mut self, meet_after: u32) {
        self.heat = 0;
        self.state = State::Counting { meet_after };
    }
}

/// The way of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum CallWay {
    /// Through the daemon.
    Daemon,
    /// The same, and it is time for an introduction: ask, and [tell](DirectCalls::asked).
    Meet(usize),
    /// By this session.
    Session(usize),
}

/// A client of a provider.
pub trait DirectSession: Sized {
    /// It, before the provider has welcomed it.
    type Newcomer: Debug;
    /// The session to which an introduction leads; `None`: it leads nowhere.
    fn arrive(
        newcomer: Self::Newcomer,
        config: ipc::ClientConfig,
    ) -> Option<NewcomerState<Self, Self::Newcomer>>;
    /// Whether no more calls are to be made in it: it answers none, or its server asks the client to leave.
    fn is_ending(&self) -> bool;
    /// Whether calls are made one at a time.
    const IS_SINGLE: bool;
    /// Whether nothing is in flight.
    fn is_idle(&self) -> bool;
}

#[derive(Debug)]
struct Opened<T> {
    place: usize,
    /// In the generations of its calls.
    number: u64,
    session: T,
}

/// The destinations of one client, and its sessions.
#[derive(Debug)]
pub struct DirectCalls<T: DirectSession> {
    places: [Option<Place<T::Newcomer>>; PLACES],
    sessions: Vec<Opened<T>>,
    config: ipc::ClientConfig,
    /// The daemon knows of no introductions.
    is_off: bool,
    /// Sessions that were ever opened.
    opened: u64,
    /// Sessions that were opened or are over since the last look.
    news: Vec<News<T>>,
}

/// What became of a session.
#[derive(Debug)]
pub enum News<T> {
    /// This one was opened, a moment ago.
    Opened(usize),
    /// It is over, and nothing is in flight.
    Over(T),
}

/// Of the generations of calls, those of each session begin with its number.
const GENERATION_SHIFT: u32 = 40;

impl<T: DirectSession> DirectCalls<T> {
    pub fn new(config: ipc::ClientConfig) -> Self {
        let (places, sessions, news) = ([const { None }; PLACES], Vec::new(), Vec::new());
        Self { places, sessions, config, is_off: false, opened: 0, news }
    }

    /// Counts a call, and says how it is to go.
    #[inline]
    pub fn way(&mut self, to: To) -> CallWay {
        let index = place_of(to);
        if let Some(place) = &mut self.places[index]
            && let State::Open(at) = place.state
            && place.is_of(to)
            && !self.sessions[at].session.is_ending()
        {
            place.heat = (place.heat + 1).min(HEAT_MAX);
            return CallWay::Session(at);
        }
        if to.service == DAEMON || self.is_off { CallWay::Daemon } else { self.count(index, to) }
    }

    fn count(&mut self, index: usize, to: To) -> CallWay {
        let Self { places, sessions, .. } = self;
        let place = places[index].get_or_insert_with(|| Place::new(to));
        let is_idle = match place.state {
            State::Open(at) => sessions[at].session.is_idle(),
            State::Asked => false,
            State::Counting { .. } | State::Coming(..) => true,
        };
        if !place.is_of(to) {
            place.heat = place.heat.saturating_sub(1);
            if place.heat == 0 && is_idle {
                self.replace(index, to);
            }
            return CallWay::Daemon;
        }
        place.heat = (place.heat + 1).min(HEAT_MAX);
        match &mut place.state {
            State::Counting { meet_after } if place.heat >= *meet_after => {
                place.state = State::Asked;
                return CallWay::Meet(index);
            }
            State::Coming(..) => self.look(index),
            // It is gone, or to be left: the next one is found through the daemon.
            State::Open(_) if is_idle => self.replace(index, to),
            State::Counting { .. } | State::Asked | State::Open(_) => {}
        }
        CallWay::Daemon
    }

    /// A place is of this destination from now on, and its session is over.
    #[cold]
    fn replace(&mut self, index: usize, to: To) {
        let before = self.places[index].replace(Place::new(to));
        if let Some(Place { state: State::Open(at), .. }) = before {
            let opened = self.sessions.swap_remove(at);
            self.news.push(News::Over(opened.session));
            if let Some(moved) = self.sessions.get(at)
                && let Some(place) = &mut self.places[moved.place]
            {
                place.state = State::Open(at);
            }
        }
    }

    /// Forgets sessions that are gone, or to be left, and idle.
    #[cold]
    pub fn close_gone(&mut self) {
        while let Some(at) = self
            .sessions
            .iter()
            .position(|Opened { session, .. }| session.is_ending() && session.is_idle())
        {
            self.close(at);
        }
    }

    /// Forgets a session in which nothing is in flight.
    pub fn close(&mut self, at: usize) {
        let index = self.sessions[at].place;
        if let Some(Place { rank, service, .. }) = self.places[index] {
            self.replace(index, To { rank, service, method: 0 });
        }
    }

    /// Looks for the welcome of a provider, now and then.
    #[cold]
    fn look(&mut self, index: usize) {
        let Some(place) = &mut self.places[index] else { return };
        if !place.heat.is_multiple_of(CALLS_PER_LOOK) && place.heat < HEAT_MAX {
            return;
        }
        let again = State::Counting { meet_after: MEET_AGAIN_AFTER };
        let State::Coming(newcomer, looks) = std::mem::replace(&mut place.state, again) else {
            return;
        };
        let number = self.opened + 1;
        let config =
            ipc::ClientConfig { first_generation: number << GENERATION_SHIFT, ..self.config };
        match T::arrive(newcomer, config) {
            Some(NewcomerState::NotYet(newcomer)) if looks < LOOKS_MAX => {
                place.state = State::Coming(newcomer, looks + 1);
            }
            Some(NewcomerState::Arrived(session)) => {
                place.state = State::Open(self.sessions.len());
                self.opened = number;
                self.news.push(News::Opened(self.sessions.len()));
                self.sessions.push(Opened { place: index, number, session });
            }
            Some(NewcomerState::NotYet(_)) | None => place.count_anew(MEET_AGAIN_AFTER),
        }
    }

    /// What is asked for the destination of a place.
    pub fn wanted(&self, index: usize) -> WantedHead {
        let to = self.places[index].as_ref().map_or((0, 0), |place| (place.rank, place.service));
        let flags = if T::IS_SINGLE { IS_SINGLE } else { 0 };
        WantedHead { rank: to.0.into(), service: to.1.into(), flags: flags.into() }
    }

    /// How it went with an introduction.
    #[cold]
    pub fn asked(&mut self, index: usize, outcome: Result<T::Newcomer, CallError>) {
        // A daemon of an earlier version knows of no such method.
        self.is_off |= outcome.as_ref().is_err_and(|it| it.status() == Status::Unimplemented);
        if let Some(place) = &mut self.places[index]
            && matches!(place.state, State::Asked)
        {
            place.count_anew(MEET_AGAIN_AFTER);
            if let Ok(newcomer) = outcome {
                place.state = State::Coming(newcomer, 0);
            }
        }
    }

    /// There is a new connection to a daemon, which introduces anew.
    pub fn begin_anew(&mut self) {
        self.is_off = false;
        for place in self.places.iter_mut().flatten() {
            if !matches!(place.state, State::Open(_)) {
                place.count_anew(MEET_AFTER);
            }
        }
    }

    /// Whether there are no sessions.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// A session that [`way`](Self::way) named.
    #[inline]
    pub fn session(&mut self, at: usize) -> Option<&mut T> {
        self.sessions.get_mut(at).map(|opened| &mut opened.session)
    }

    /// The session that a call was made in, by the generation of that.
    pub fn session_of_call(&mut self, generation: u64) -> Option<&mut T> {
        let number = generation >> GENERATION_SHIFT;
        let opened = self.sessions.iter_mut().find(|opened| opened.number == number);
        opened.map(|opened| &mut opened.session)
    }

    /// All sessions, to be looked at.
    #[inline]
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.sessions.iter().map(|opened| &opened.session)
    }

    /// All sessions.
    #[inline]
    pub fn sessions(&mut self) -> impl Iterator<Item = &mut T> {
        self.sessions.iter_mut().map(|opened| &mut opened.session)
    }

    /// What became of sessions since the last question.
    #[inline]
    pub fn take_news(&mut self) -> Vec<News<T>> {
        std::mem::take(&mut self.news)
    }

    #[inline]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }
}

/// Where a destination is counted.
#[inline]
fn place_of(to: To) -> usize {
    let mixed = (to.rank ^ u32::from(to.service) << 16).wrapping_mul(0x9e37_79b1);
    (mixed >> (u32::BITS - PLACES.ilog2())) as usize
}

/// The heads of a call without the daemon.
pub struct DirectHeads {
    head: DirectHead,
    extra: CallExtra,
    has_trace: bool,
}

impl DirectHeads {
    #[inline]
    pub fn new(method: u16, timeout: Duration, trace: u64) -> Self {
        let has_trace = trace != 0;
        let head = DirectHead {
            method: method.into(),
            flags: if has_trace { HAS_TRACE } else { 0 }.into(),
            timeout_us: u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX).max(1).into(),
        };
        Self { head, extra: CallExtra { trace: trace.into() }, has_trace }
    }

    #[inline]
    pub fn parts(&self) -> [&[u8]; 2] {
        [self.head.as_bytes(), if self.has_trace { self.extra.as_bytes() } else { &[] }]
    }
}

/// Whether a call ended because its provider is gone, or its session was ended.
pub fn is_session_over(error: ipc::CallError) -> bool {
    use ipc::CallError::{Evicted, NotTaken, ServerBroken, ServerGone};
    matches!(error, ServerGone | Evicted(_) | ServerBroken | NotTaken)
}

/// How a call ended whose session is over. Where the daemon is gone, too, that is the reason.
#[cold]
pub fn over_error(error: ipc::CallError, daemon: Option<ipc::CallError>) -> CallError {
    match (error, daemon) {
        (ipc::CallError::NotTaken, Some(daemon)) => CallError::NotSent(daemon),
        (ipc::CallError::NotTaken, None) => CallError::Refused(Status::Unavailable),
        (_, Some(daemon)) => CallError::Daemon(daemon),
        (_, None) => CallError::Unanswered(Status::Unavailable),
    }
}

/// How a call ended that a provider was told of, and whose session goes on.
pub(crate) fn direct_error(failed: ipc::Failed<'_>, to: To) -> CallError {
    match failed.error {
        ipc::CallError::Deadline => CallError::Unanswered(Status::DeadlineExceeded),
        error if is_session_over(error) => over_error(error, None),
        _ => CallError::of(failed, to),
    }
}

impl DirectSession for ipc::BlockingClient {
    type Newcomer = Newcomer;
    const IS_SINGLE: bool = true;

    fn arrive(newcomer: Newcomer, config: ipc::ClientConfig) -> Option<NewcomerState<Self>> {
        Self::introduced(newcomer, config).ok()
    }

    #[inline]
    fn is_ending(&self) -> bool {
        self.gone().is_some() || self.is_asked_to_leave()
    }

    fn is_idle(&self) -> bool {
        true
    }
}

impl<C> DirectSession for ipc::PipelinedClient<C> {
    type Newcomer = Newcomer;
    const IS_SINGLE: bool = false;

    fn arrive(newcomer: Newcomer, config: ipc::ClientConfig) -> Option<NewcomerState<Self>> {
        Self::introduced(newcomer, config).ok()
    }

    #[inline]
    fn is_ending(&self) -> bool {
        self.gone().is_some() || self.is_asked_to_leave()
    }

    fn is_idle(&self) -> bool {
        self.in_flight() == 0
    }
}
