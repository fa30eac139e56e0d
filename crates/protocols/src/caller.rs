//! The side that calls.

use core::time::Duration;
use std::net::SocketAddr;

use proto::Status;
use verbs::Nic;

use crate::{CallError, Config, OpenError, Protocol, Unsupported, counts, erpc, scalerpc};

/// Highest request type of eRPC.
const ERPC_METHOD_MAX: u16 = 254;

/// The arguments of a call, besides its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of the method.
    pub method: u16,
    /// The caller's name of the call: what [`Answers::answer`] says.
    pub cookie: u64,
    /// Room for the answer.
    pub response_bytes: usize,
    /// From now on.
    pub timeout: Duration,
}

impl Default for Call {
    fn default() -> Self {
        let timeout = Duration::from_secs(1);
        Self { method: 0, cookie: 0, response_bytes: 4096, timeout }
    }
}

/// Takes answers, whatever carried them.
pub trait Answers {
    /// A call has ended. `body` is empty unless a handler sent some.
    fn answer(&mut self, cookie: u64, status: Status, body: &[u8]);

    /// The connection of a lane has ended, and its calls have.
    fn closed(&mut self, lane: usize, reason: String) {
        let _ = (lane, reason);
    }
}

/// Calls one server over one or several connections, its *lanes*, on one thread.
pub struct Caller<N: Nic> {
    lanes: Lanes<N>,
}

enum Lanes<N: Nic> {
    Copyrpc {
        worker: Box<rpc::Worker<N>>,
        peers: Vec<(rpc::PeerId, rpc::Invitation)>,
    },
    Erpc {
        endpoint: Box<erpc::Endpoint<N>>,
        sessions: Vec<Option<erpc::SessionId>>,
        options: erpc::ConnectOptions,
    },
    Scalerpc {
        clients: Vec<scalerpc::Client<N>>,
    },
}

impl<N: Nic> Caller<N> {
    /// Opens a caller with so many lanes.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(nic: N, config: &Config, lanes: u16, now_ns: u64) -> Result<Self, OpenError> {
        let lanes = match config.protocol {
            Protocol::Copyrpc => {
                let mut worker = rpc::Worker::open(nic, config.copyrpc.clone(), now_ns)?;
                let peers = (0..lanes).map(|_| worker.invite()).collect::<Result<_, _>>()?;
                Lanes::Copyrpc { worker: Box::new(worker), peers }
            }
            Protocol::Erpc => {
                let endpoint = erpc::Endpoint::open(nic, config.erpc.clone(), now_ns)?;
                let sessions = vec![None; lanes.into()];
                let options = config.erpc_connect;
                Lanes::Erpc { endpoint: Box::new(endpoint), sessions, options }
            }
            Protocol::Scalerpc => {
                let scalerpc::ServerConfig { slots, block_bytes, .. } = config.scalerpc;
                let open = |_| {
                    let config = scalerpc::ClientConfig::default();
                    scalerpc::Client::open(nic.clone(), config, slots, block_bytes, now_ns)
                };
                let clients = (0..lanes).map(open).collect::<Result<_, _>>()?;
                Lanes::Scalerpc { clients }
            }
        };
        Ok(Self { lanes })
    }

    /// The message for the server about each lane.
    #[must_use]
    pub fn greetings(&self) -> Vec<Vec<u8>> {
        match &self.lanes {
            Lanes::Copyrpc { peers, .. } => {
                peers.iter().map(|(_, invitation)| invitation.as_bytes().to_vec()).collect()
            }
            Lanes::Erpc { sessions, .. } => vec![Vec::new(); sessions.len()],
            Lanes::Scalerpc { clients } => {
                clients.iter().map(|client| client.invitation().as_bytes().to_vec()).collect()
            }
        }
    }

    /// Connects each lane by what the server said to its greeting. Poll both sides until
    /// [`is_connected`](Self::is_connected).
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn connect(&mut self, answers: &[Vec<u8>]) -> Result<(), OpenError> {
        let broken = |what: &str| OpenError::Greeting(what.to_owned());
        match &mut self.lanes {
            Lanes::Copyrpc { worker, peers } => {
                for ((peer, _), answer) in peers.iter().zip(answers) {
                    let theirs = rpc::Invitation::from_bytes(answer);
                    let theirs = theirs.map_err(|error| OpenError::Greeting(error.to_string()))?;
                    worker.connect(*peer, &theirs)?;
                }
            }
            Lanes::Erpc { endpoint, sessions, options } => {
                for (session, answer) in sessions.iter_mut().zip(answers) {
                    let text = core::str::from_utf8(answer).map_err(|_| broken("no text"))?;
                    let (rpc_id, address) = text.split_once(' ').ok_or(broken("no address"))?;
                    let rpc_id = rpc_id.parse().map_err(|_| broken("no endpoint number"))?;
                    let address: SocketAddr = address.parse().map_err(|_| broken("no address"))?;
                    *session = Some(endpoint.connect(address, rpc_id, *options)?);
                }
            }
            Lanes::Scalerpc { clients } => {
                for (client, answer) in clients.iter_mut().zip(answers) {
                    let theirs = scalerpc::Invitation::from_bytes(answer);
                    let theirs = theirs.map_err(|error| OpenError::Greeting(error.to_string()))?;
                    client.connect(&theirs)?;
                }
            }
        }
        Ok(())
    }

    /// Whether calls can be made on every lane.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        match &self.lanes {
            Lanes::Copyrpc { .. } => true,
            Lanes::Erpc { endpoint, sessions, .. } => sessions.iter().all(|session| {
                let state = session.and_then(|session| endpoint.state(session));
                state == Some(erpc::SessionState::Connected)
            }),
            Lanes::Scalerpc { clients } => clients.iter().all(|c| c.state().is_some()),
        }
    }

    /// Makes a call. It leaves by a later poll.
    ///
    /// # Errors
    ///
    /// [`CallError`]; nothing has changed.
    #[inline]
    pub fn call(&mut self, lane: usize, call: &Call, body: &[u8]) -> Result<(), CallError> {
        let Call { method, cookie, response_bytes, timeout } = *call;
        let len_bytes = body.len();
        let no_lane = || CallError::Gone("there is no such lane".to_owned());
        match &mut self.lanes {
            Lanes::Copyrpc { worker, peers } => {
                let (peer, _) = peers.get(lane).ok_or_else(no_lane)?;
                let call =
                    rpc::Call { method, cookie, response_bytes, timeout, ..rpc::Call::default() };
                worker.call(*peer, &call, body).map(drop).map_err(of_copyrpc)
            }
            Lanes::Erpc { endpoint, sessions, .. } => {
                let session = sessions.get(lane).copied().flatten().ok_or_else(no_lane)?;
                let protocol = Protocol::Erpc;
                let max = ERPC_METHOD_MAX;
                let wrong = Unsupported::Method { protocol, method, max };
                let req_type = u8::try_from(method).ok().filter(|method| *method < u8::MAX);
                let req_type = req_type.ok_or(wrong)?;
                let max_bytes = endpoint.geometry().msg_bytes_max() as usize;
                if len_bytes > max_bytes {
                    return Err(Unsupported::Length { protocol, len_bytes, max_bytes }.into());
                }
                let response_bytes_max = u32::try_from(response_bytes).unwrap_or(u32::MAX);
                let call = erpc::Call { req_type, cookie, response_bytes_max, timeout };
                endpoint.call(session, &call, body).map(drop).map_err(|error| {
                    if error.is_temporary() { CallError::Busy } else { gone(error) }
                })
            }
            Lanes::Scalerpc { clients } => {
                let client = clients.get_mut(lane).ok_or_else(no_lane)?;
                let max_bytes = client.body_bytes_max();
                let protocol = Protocol::Scalerpc;
                if len_bytes > max_bytes {
                    return Err(Unsupported::Length { protocol, len_bytes, max_bytes }.into());
                }
                let call = scalerpc::Call { method, cookie, timeout };
                client.call(&call, body).map_err(|error| {
                    if error.is_temporary() { CallError::Busy } else { gone(error) }
                })
            }
        }
    }

    /// Takes arrivals, reports answers, and sends. Returns the number of arrivals.
    ///
    /// The protocols' own loops are compiled once for all programs, so `answers` is called by its table.
    pub fn poll(&mut self, now_ns: u64, answers: &mut dyn Answers) -> usize {
        match &mut self.lanes {
            Lanes::Copyrpc { worker, peers } => {
                worker.poll(now_ns, &mut Adapter { answers, lanes: peers })
            }
            Lanes::Erpc { endpoint, sessions, .. } => {
                endpoint.poll(now_ns, &mut Adapter { answers, lanes: sessions })
            }
            Lanes::Scalerpc { clients } => {
                let poll = |(lane, client): (usize, &mut scalerpc::Client<N>)| {
                    client.poll(now_ns, &mut Adapter { answers, lanes: &lane })
                };
                clients.iter_mut().enumerate().map(poll).sum()
            }
        }
    }

    /// Counts since the caller was opened, by name. Each protocol has its own.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        match &self.lanes {
            Lanes::Copyrpc { worker, .. } => counts::of_worker(worker),
            Lanes::Erpc { endpoint, .. } => counts::of_endpoint(endpoint),
            Lanes::Scalerpc { clients } => {
                let sum = |count: fn(scalerpc::ClientStats) -> u64| {
                    clients.iter().map(|client| count(client.stats())).sum()
                };
                vec![
                    ("entries", sum(|stats| stats.entries)),
                    ("requests written", sum(|stats| stats.written)),
                    ("turns ended", sum(|stats| stats.events)),
                ]
            }
        }
    }
}

fn gone(error: impl ToString) -> CallError {
    CallError::Gone(error.to_string())
}

fn of_copyrpc(error: rpc::CallError) -> CallError {
    let protocol = Protocol::Copyrpc;
    match error {
        rpc::CallError::Busy(_) | rpc::CallError::NoMemory { .. } => CallError::Busy,
        rpc::CallError::TooLong { len_bytes, max_bytes } => {
            Unsupported::Length { protocol, len_bytes, max_bytes }.into()
        }
        rpc::CallError::NoPlace { asked_bytes, max_bytes } => {
            Unsupported::Length { protocol, len_bytes: asked_bytes, max_bytes }.into()
        }
        other => gone(other),
    }
}

/// A program as each protocol's handler; `lanes` finds the lane of a connection.
struct Adapter<'a, L: ?Sized> {
    answers: &'a mut dyn Answers,
    lanes: &'a L,
}

impl<L: ?Sized> Adapter<'_, L> {
    fn closed(&mut self, lane: Option<usize>, reason: impl ToString) {
        if let Some(lane) = lane {
            self.answers.closed(lane, reason.to_string());
        }
    }
}

impl<N: Nic> rpc::Handler<N> for Adapter<'_, Vec<(rpc::PeerId, rpc::Invitation)>> {
    /// A caller serves no calls: the request is answered by dropping its token.
    fn request(&mut self, _: &mut rpc::Worker<N>, _: rpc::Request, _: rpc::Body<'_, N>) {}

    #[inline(always)]
    fn ended(&mut self, _: &mut rpc::Worker<N>, cookie: u64, end: rpc::CallEnd<'_, N>) {
        self.answers.answer(cookie, end.status(), &end.bytes());
    }

    fn closed(&mut self, _: &mut rpc::Worker<N>, peer: rpc::PeerId, reason: rpc::CloseReason) {
        self.closed(self.lanes.iter().position(|(other, _)| *other == peer), reason);
    }
}

impl<N: Nic> erpc::Handler<N> for Adapter<'_, Vec<Option<erpc::SessionId>>> {
    /// A caller serves no calls.
    fn request(&mut self, _: &mut erpc::Endpoint<N>, _: erpc::Request<'_>) {}

    #[inline]
    fn response(&mut self, _: &mut erpc::Endpoint<N>, cookie: u64, status: Status, body: &[u8]) {
        self.answers.answer(cookie, status, body);
    }

    fn closed(&mut self, _: &mut erpc::Endpoint<N>, id: erpc::SessionId, why: erpc::CloseReason) {
        self.closed(self.lanes.iter().position(|other| *other == Some(id)), why);
    }
}

impl scalerpc::Responses for Adapter<'_, usize> {
    #[inline]
    fn response(&mut self, cookie: u64, status: Status, body: &[u8]) {
        self.answers.answer(cookie, status, body);
    }

    fn closed(&mut self, reason: scalerpc::CloseReason) {
        self.closed(Some(*self.lanes), reason);
    }
}
