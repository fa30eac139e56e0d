//! Processes of a node: calls through the daemon of the node, and services that a process provides.
//!
//! | item | one idea |
//! |---|---|
//! | [`Client`] | one call at a time |
//! | [`Pipeline`] | many calls in flight, each with a context |
//! | [`FutureClient`] | calls as futures, on any executor |
//! | [`Spread`] | one of several ranks that offer a service, or all of them |
//! | [`stream`] | results in pieces |
//! | `tokio` | calls as futures of tokio, from any thread (feature `tokio`) |
//! | `tower` | clients of futures as services of tower (feature `tower`) |
//! | [`CallError`], [`Retry`] | the origin of a failure, and when a call is made again |
//! | [`Provider`] | answers requests for a service of this node |
//! | [`name`] | names of services and methods, and their numbers |
//! | [`bulk`] | memory that calls lend to the answering process |
//! | [`runtime`] | paths of a daemon's socket, lock and counters, and the lock itself |
//! | [`message`] | headers before bodies, between clients and daemons |
//!
//! ```no_run
//! use copyrpc_client::{Client, ClientConfig, To};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut client = Client::connect("/run/user/1000/copyrpc/job.sock".as_ref(), ClientConfig::default())?;
//! let answer = client.call(To::new(3, 17, 1), b"to service 17 on rank 3, method 1")?;
//! # let _ = answer; Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod alarm;
pub mod allocation;
pub mod bulk;
mod call_queue;
#[doc(hidden)] // for simulators
pub mod direct;
mod error;
mod futures;
mod in_place;
mod job;
pub mod message;
pub mod name;
mod pipeline;
mod provider;
mod report;
mod retry;
pub mod runtime;
mod spans;
mod spread;
pub mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;
#[cfg(feature = "tower")]
pub mod tower;
pub mod waiting;

use std::{
    os::fd::AsFd as _,
    path::Path,
    time::{Duration, Instant},
};

use zerocopy::IntoBytes as _;

pub use error::{CallError, ServiceError};
pub use futures::{FutureCall, FutureClient};

pub use ipc::{CallId, ConnectError, Filler, LentBytes, Overfull, Wait};
pub use job::{JOB_BYTES_MAX, JobId, JobIdError};
pub use message::HERE;
pub use name::Description;
pub use pipeline::{Pipeline, SubmitError};
pub use proto::Status;
#[doc(hidden)] // for simulators
pub use provider::{
    Asks, DaemonClock, DaemonConnection, IntroducedClients, ProviderClock, ProviderPlace,
    ProviderSession, Registering, Turned,
};
pub use provider::{
    Cancellation, Context, InPlace, Inbound, Offer, OfferedService, ProvideError, Provider,
    ProviderStop, Request, RequestContext,
};
pub use report::{ClientInfo, PeerInfo};
pub use retry::Retry;
pub use runtime::{Runtime, RuntimeError};
pub use spread::{Route, Spread};

use crate::{
    direct::{CallWay, DirectCalls, DirectHeads, direct_error, is_session_over, over_error},
    message::{CallExtra, CallHead, DAEMON, HAS_EXTRA, method},
    retry::RetryBudget,
};

/// How much longer than the daemon a client waits, at most: the daemon knows better why a call ended.
const GRACE_MAX: Duration = Duration::from_millis(500);

/// The same, at least: the daemon looks at deadlines once in a millisecond.
const GRACE_MIN: Duration = Duration::from_millis(3);

/// How long the client itself waits for a call with this deadline: a tenth longer, so that a deadline is met
/// also where the daemon is stopped.
pub(crate) fn patience(timeout: Duration) -> Duration {
    timeout.saturating_add((timeout / 10).clamp(GRACE_MIN, GRACE_MAX))
}

/// The configuration of a client.
///
/// ```
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{ClientConfig, Retry};
/// use std::time::Duration;
///
/// let config = ClientConfig {
///     timeout: Duration::from_millis(200),
///     retry: Retry::standard(),
///     ..ClientConfig::default()
/// };
/// assert_eq!(config.response_bytes, 232);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// The deadline of a call that names none; 71 minutes at most.
    pub timeout: Duration,
    /// The waiting mode; by default what `COPYRPC_CLIENT_WAIT` says: `busy`, `adaptive` or `block`. Without it,
    /// adaptive. If it says anything else, connecting fails with [`ConnectError::Variable`].
    pub wait: Wait,
    /// Longest response that never needs a detour: so much room is set aside for each. Daemons with room to spare set aside
    /// as much as responses of the service needed lately.
    pub response_bytes: u32,
    /// When a call is made again, and whether a lost daemon is looked for; by default never.
    pub retry: Retry,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            wait: waiting::chosen(),
            response_bytes: 232,
            retry: Retry::NEVER,
        }
    }
}

/// A process's connection to its daemon, for one call at a time.
///
/// ```no_run
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{Client, ClientConfig, Runtime, To};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut client = Client::connect(&Runtime::from_env()?.socket(), ClientConfig::default())?;
/// let to = To::new(3, 17, 1); // method 1 of service 17 on rank 3
/// let answer = client.call(to, b"hello")?;
/// println!("{} bytes", answer.len());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Client {
    ipc: ipc::BlockingClient,
    /// Providers of this node that are called without the daemon.
    direct: DirectCalls<ipc::BlockingClient>,
    /// The session by which the latest call went; `None`: it went through the daemon.
    latest: Option<usize>,
    config: ClientConfig,
    budget: RetryBudget,
    /// Retries so far: what their waits are spread by.
    retries: u64,
    trace: u64,
    connection: bulk::Connection,
}

impl Client {
    /// Connects to the daemon whose socket is at `path`: see [`Runtime`].
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        let of_ipc = ipc_config(config)?;
        let ipc = ipc::BlockingClient::connect(path, of_ipc)?;
        let seed = u64::from(std::process::id()) << 32;
        let direct = DirectCalls::new(of_ipc);
        let (budget, connection) = (RetryBudget::default(), bulk::Connection::first());
        let (latest, retries, trace) = (None, seed, 0);
        Ok(Self { ipc, direct, latest, config, budget, retries, trace, connection })
    }

    /// Connects again, to the same daemon or its successor.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the client stays as it was.
    pub fn reconnect(&mut self) -> Result<(), ConnectError> {
        self.direct.begin_anew();
        self.ipc.reconnect()?;
        self.connection.replace();
        Ok(())
    }

    /// Calls from now on carry the number of a trace and their caller to handlers; 0: no longer.
    pub fn set_trace(&mut self, trace: u64) {
        self.trace = trace;
    }

    /// Calls a method of a service on a rank, [`HERE`] for that of this node, and waits for the answer,
    /// which is valid until the next call.
    ///
    /// # Errors
    ///
    /// [`CallError`]. A call that ended without an answer may have been executed, unless the error says
    /// otherwise. It was made again as [`ClientConfig::retry`] allows.
    pub fn call(&mut self, to: To, body: &[u8]) -> Result<&[u8], CallError> {
        self.call_within(to, body, self.config.timeout)
    }

    /// Like [`call`](Self::call), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn call_within(
        &mut self,
        to: To,
        body: &[u8],
        timeout: Duration,
    ) -> Result<&[u8], CallError> {
        let len_bytes = spans::in_call(to, self.trace, || {
            self.retrying(timeout, |client, left| client.call_once(to, body, left))
        })?;
        Ok(self.response(len_bytes))
    }

    /// The answer to the latest call.
    #[inline]
    fn response(&self, len_bytes: usize) -> &[u8] {
        let session = self.latest.and_then(|at| self.direct.all().nth(at));
        session.unwrap_or(&self.ipc).response(len_bytes)
    }

    #[inline]
    fn call_once(&mut self, to: To, body: &[u8], timeout: Duration) -> Result<usize, CallError> {
        self.latest = None;
        if self.direct.has_news() {
            // Sessions that are over are dropped.
            drop(self.direct.take_news());
        }
        let mut left = timeout;
        match self.direct.way(to) {
            CallWay::Daemon => {}
            CallWay::Meet(place) => left = self.meet(place, timeout),
            CallWay::Session(place) => match self.call_session(place, to, body, timeout) {
                Ok(ended) => return ended,
                Err(time_left) => left = time_left,
            },
        }
        self.call_daemon(to, body, left)
    }

    /// Calls a provider by the session of a place; fails with the time that is left, if the call is to go through the
    /// daemon: the provider has not taken it, and never will.
    #[inline]
    fn call_session(
        &mut self,
        place: usize,
        to: To,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Result<usize, CallError>, Duration> {
        let Some(session) = self.direct.session(place) else { return Err(timeout) };
        let heads = DirectHeads::new(to.method, timeout, self.trace);
        let [head, extra] = heads.parts();
        if !session.has_room(head.len() + extra.len() + body.len()) {
            return Err(timeout);
        }
        let ended = session.call_parts_within(&[head, extra, body], timeout).map(<[u8]>::len);
        match ended {
            Ok(len_bytes) => {
                self.latest = Some(place);
                Ok(Ok(len_bytes))
            }
            Err(ipc::CallError::NotTaken) => Err(session.time_left(timeout)),
            Err(error) if !session.was_sent() => Ok(Err(CallError::not_sent(error))),
            Err(error) if is_session_over(error) => Ok(Err(self.over_error(error))),
            Err(error) => {
                Ok(Err(direct_error(ipc::Failed { error, detail: session.detail() }, to)))
            }
        }
    }

    /// How a call ended whose session is over.
    #[cold]
    fn over_error(&mut self, error: ipc::CallError) -> CallError {
        self.ipc.look();
        over_error(error, self.ipc.gone())
    }

    /// Asks the daemon for an introduction to the provider of a place; returns what is left of the time of a call.
    #[cold]
    fn meet(&mut self, place: usize, timeout: Duration) -> Duration {
        let start = Instant::now();
        let outcome = self.try_meet(place, start, timeout);
        self.direct.asked(place, outcome);
        timeout.saturating_sub(start.elapsed())
    }

    fn try_meet(
        &mut self,
        place: usize,
        start: Instant,
        timeout: Duration,
    ) -> Result<ipc::Newcomer, CallError> {
        let wanted = self.direct.wanted(place);
        let ask = |ipc: &mut ipc::BlockingClient, method| {
            let timeout = timeout.saturating_sub(start.elapsed());
            let to = To { rank: HERE, service: DAEMON, method };
            let head = call_head(to, timeout, 0, 0);
            let parts = [head.as_bytes(), wanted.as_bytes()];
            let ended = ipc.call_parts_within(&parts, patience(timeout)).map(drop);
            ended.map_err(CallError::from)
        };
        ask(&mut self.ipc, method::MAY_MEET)?;
        let made = ipc::Newcomer::new().map_err(|_| CallError::Refused(Status::ResourceExhausted));
        let (newcomer, socket) = made?;
        self.ipc.send_descriptor(socket.as_fd())?;
        ask(&mut self.ipc, method::MEET)?;
        Ok(newcomer)
    }

    fn call_daemon(&mut self, to: To, body: &[u8], timeout: Duration) -> Result<usize, CallError> {
        let head = call_head(to, timeout, self.config.response_bytes, self.trace);
        let extra = CallExtra { trace: self.trace.into() };
        let extra = if self.trace == 0 { &[][..] } else { extra.as_bytes() };
        let parts = [head.as_bytes(), extra, body];
        let ended = self.ipc.call_parts_within(&parts, patience(timeout)).map(<[u8]>::len);
        match ended {
            Ok(len_bytes) => Ok(len_bytes),
            Err(error) if !self.ipc.was_sent() => Err(CallError::not_sent_in_time(error)),
            Err(error) => Err(CallError::of(ipc::Failed { error, detail: self.ipc.detail() }, to)),
        }
    }

    /// Makes a call, and makes it again as [`ClientConfig::retry`] allows. `call` gets the time that is left.
    #[inline]
    fn retrying<T>(
        &mut self,
        timeout: Duration,
        mut call: impl FnMut(&mut Self, Duration) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        if self.config.retry.retries_max == 0 {
            call(self, timeout)
        } else {
            self.call_retrying(timeout, call)
        }
    }

    #[cold]
    fn call_retrying<T>(
        &mut self,
        timeout: Duration,
        mut call: impl FnMut(&mut Self, Duration) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let retry = self.config.retry;
        let (start, mut number) = (Instant::now(), 0);
        self.budget.earn(&retry);
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let error = match call(self, left) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let wait = retry.wait(number, self.retries);
            let is_in_time = start.elapsed() + wait < timeout;
            // Whether or not this call may be made again, the next one can be.
            if error.is_daemon_gone() && self.ipc.reconnect().is_ok() {
                self.connection.replace();
            }
            let may = is_in_time && number < retry.retries_max && retry.applies_to(&error);
            if !may || !self.budget.spend() {
                return Err(error);
            }
            number += 1;
            self.retries += 1;
            std::thread::sleep(wait);
        }
    }

    /// Asks the daemon of a rank for nothing but an answer.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn ping(&mut self, rank: u32, body: &[u8]) -> Result<&[u8], CallError> {
        self.call(To::new(rank, DAEMON, method::PING), body)
    }

    /// The name and the methods of a service on a rank.
    ///
    /// # Errors
    ///
    /// [`CallError`], in particular [`CallError::NoService`].
    pub fn describe(&mut self, rank: u32, service: u16) -> Result<Description, CallError> {
        self.describe_within(rank, service, self.config.timeout)
    }

    /// Like [`describe`](Self::describe), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn describe_within(
        &mut self,
        rank: u32,
        service: u16,
        timeout: Duration,
    ) -> Result<Description, CallError> {
        let body = service.to_le_bytes();
        let told = self.call_within(To::new(rank, DAEMON, method::DESCRIBE), &body, timeout);
        match told.map(Description::decode) {
            Ok(Some(description)) => Ok(description),
            Ok(None) => Err(CallError::Unanswered(Status::Internal)),
            Err(CallError::NoService(_)) => {
                Err(CallError::NoService(To { rank, service, method: 0 }))
            }
            Err(error) => Err(error),
        }
    }

    /// The deadline of a call that names none.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Rank of this node, and how many there are.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn who(&mut self) -> Result<(u32, u32), CallError> {
        let answer = self.call(To::new(HERE, DAEMON, method::WHO), &[])?;
        match answer.as_chunks() {
            ([rank, size], []) => Ok((u32::from_le_bytes(*rank), u32::from_le_bytes(*size))),
            _ => Err(CallError::Unanswered(Status::Internal)),
        }
    }

    /// Whether calls are made again after some errors, as [`ClientConfig::retry`] says.
    #[must_use]
    pub fn retries(&self) -> bool {
        self.config.retry.retries_max > 0
    }

    /// Differs between any two lives of the daemon.
    #[must_use]
    pub fn daemon_generation(&self) -> u64 {
        self.ipc.terms().server_generation
    }
}

/// A service of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceInfo {
    /// Its number.
    pub service: u16,
    /// Its name; empty if it has none.
    pub name: String,
    /// Whether its calls [lend memory](bulk). Such services have numbers of their own.
    pub lends_memory: bool,
    /// Processes that offer it; 0: a function of the daemon's program does.
    pub providers: u16,
    /// Requests that wait for one of them.
    pub waiting: u32,
    /// Requests that they have not answered.
    pub given: u32,
    /// Requests that came for it.
    pub requests: u64,
}

/// The destination of a call: rank, service, method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct To {
    /// Rank of the node; [`HERE`]: this one.
    pub rank: u32,
    /// Number of the service.
    pub service: u16,
    /// Number of the method.
    pub method: u16,
}

impl To {
    /// The method of this number, of the service of this number, on a rank.
    ///
    /// ```
    /// use copyrpc_client::{HERE, To};
    ///
    /// assert_eq!(To::new(HERE, 17, 1), To { rank: HERE, service: 17, method: 1 });
    /// ```
    #[must_use]
    pub const fn new(rank: u32, service: u16, method: u16) -> Self {
        Self { rank, service, method }
    }
}

/// The header of a call; the body follows it.
fn call_head(to: To, timeout: Duration, response_bytes: u32, trace: u64) -> CallHead {
    let extra = if trace == 0 { 0 } else { HAS_EXTRA };
    CallHead {
        rank: to.rank.into(),
        service: to.service.into(),
        method: to.method.into(),
        // 0 would mean that the daemon chooses.
        timeout_us: u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX).max(1).into(),
        response_bytes: (response_bytes.min(HAS_EXTRA - 1) | extra).into(),
    }
}

fn ipc_config(config: ClientConfig) -> Result<ipc::ClientConfig, ConnectError> {
    waiting::check()?;
    let timeout = patience(config.timeout);
    Ok(ipc::ClientConfig { wait: config.wait, timeout, ..ipc::ClientConfig::default() })
}
