//! The side that serves.

use proto::Status;
use verbs::Nic;

use crate::{Config, OpenError, Protocol, ReplyError, Unsupported, counts, erpc, scalerpc};

/// Names a request that waits for an answer.
#[derive(Debug)]
#[must_use = "a request without an answer leaves its caller to its deadline"]
pub struct Token(Inner);

#[derive(Debug)]
enum Inner {
    Copyrpc(rpc::Token),
    Erpc(erpc::Token),
    Scalerpc(scalerpc::Token),
}

/// A request as it arrived.
#[derive(Debug)]
pub struct Request<'a> {
    /// To be answered, now or later.
    pub token: Token,
    /// Number of the method.
    pub method: u16,
    /// Its body: a private copy, valid during the callback.
    pub body: &'a [u8],
}

/// Serves requests, whatever carries them.
pub trait Service<N: Nic> {
    /// A caller asks. To answer later, keep the token for [`Server::reply`].
    fn request(&mut self, replies: &mut Replies<'_, N>, request: Request<'_>);
}

/// Takes answers inside [`Service::request`].
pub enum Replies<'a, N: Nic> {
    /// Over copyrpc.
    Copyrpc(&'a mut rpc::Worker<N>),
    /// Over eRPC.
    Erpc(&'a mut erpc::Endpoint<N>),
    /// Over ScaleRPC.
    Scalerpc(&'a mut scalerpc::Server<N>),
}

impl<N: Nic> Replies<'_, N> {
    /// The carrier of the answer.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        match self {
            Self::Copyrpc(_) => Protocol::Copyrpc,
            Self::Erpc(_) => Protocol::Erpc,
            Self::Scalerpc(_) => Protocol::Scalerpc,
        }
    }

    /// Answers a request.
    ///
    /// # Errors
    ///
    /// [`ReplyError`].
    pub fn reply(&mut self, token: Token, status: Status, body: &[u8]) -> Result<(), ReplyError> {
        let protocol = self.protocol();
        let length = |len_bytes, max_bytes| Unsupported::Length { protocol, len_bytes, max_bytes };
        match (self, token.0) {
            (Self::Copyrpc(worker), Inner::Copyrpc(token)) => {
                worker.reply(token, status, body).map_err(|error| match error {
                    rpc::ReplyError::TooLong { len_bytes, max_bytes } => {
                        length(len_bytes, max_bytes).into()
                    }
                    other => ReplyError::Gone(other.to_string()),
                })
            }
            (Self::Erpc(_), Inner::Erpc(_)) if status != Status::Ok => {
                Err(Unsupported::Status { protocol, status }.into())
            }
            (Self::Erpc(endpoint), Inner::Erpc(token)) => {
                let max_bytes = endpoint.geometry().msg_bytes_max() as usize;
                if body.len() > max_bytes {
                    return Err(length(body.len(), max_bytes).into());
                }
                let replied = endpoint.reply(token, body);
                replied.map_err(|error| ReplyError::Gone(error.to_string()))
            }
            (Self::Scalerpc(server), Inner::Scalerpc(token)) => {
                server.reply(token, status, body).map_err(|error| match error {
                    scalerpc::ReplyError::TooLong { len_bytes, max_bytes } => {
                        length(len_bytes, max_bytes).into()
                    }
                    scalerpc::ReplyError::Gone => ReplyError::Gone(error.to_string()),
                })
            }
            _ => Err(ReplyError::Foreign),
        }
    }
}

/// Serves any number of callers on one thread.
pub enum Server<N: Nic> {
    /// Over copyrpc.
    Copyrpc(Box<rpc::Worker<N>>),
    /// Over eRPC.
    Erpc(Box<erpc::Endpoint<N>>),
    /// Over ScaleRPC.
    Scalerpc(Box<scalerpc::Server<N>>),
}

impl<N: Nic> Server<N> {
    /// Opens a server on a NIC.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(nic: N, config: &Config, now_ns: u64) -> Result<Self, OpenError> {
        Ok(match config.protocol {
            Protocol::Copyrpc => {
                Self::Copyrpc(Box::new(rpc::Worker::open(nic, config.copyrpc.clone(), now_ns)?))
            }
            Protocol::Erpc => {
                Self::Erpc(Box::new(erpc::Endpoint::open(nic, config.erpc.clone(), now_ns)?))
            }
            Protocol::Scalerpc => {
                let config = config.scalerpc.clone();
                Self::Scalerpc(Box::new(scalerpc::Server::open(nic, config, now_ns)?))
            }
        })
    }

    /// Accepts a lane of a caller by its greeting, and returns the message for the caller.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn accept(&mut self, greeting: &[u8]) -> Result<Vec<u8>, OpenError> {
        match self {
            Self::Copyrpc(worker) => {
                let theirs = rpc::Invitation::from_bytes(greeting);
                let theirs = theirs.map_err(|error| OpenError::Greeting(error.to_string()))?;
                let (peer, invitation) = worker.invite()?;
                worker.connect(peer, &theirs)?;
                Ok(invitation.as_bytes().to_vec())
            }
            Self::Erpc(endpoint) => {
                let address = endpoint.management_address();
                Ok(format!("{} {address}", endpoint.config().rpc_id).into_bytes())
            }
            Self::Scalerpc(server) => {
                let theirs = scalerpc::Invitation::from_bytes(greeting);
                let theirs = theirs.map_err(|error| OpenError::Greeting(error.to_string()))?;
                Ok(server.accept(&theirs)?.1.as_bytes().to_vec())
            }
        }
    }

    /// Takes arrivals, serves them, and sends. Returns the number of arrivals.
    ///
    /// The protocols' own loops are compiled once for all programs, so `service` is called by its table.
    pub fn poll(&mut self, now_ns: u64, service: &mut dyn Service<N>) -> usize {
        let mut adapter = Adapter(service);
        match self {
            Self::Copyrpc(worker) => worker.poll(now_ns, &mut adapter),
            Self::Erpc(endpoint) => endpoint.poll(now_ns, &mut adapter),
            Self::Scalerpc(server) => server.poll(now_ns, &mut adapter),
        }
    }

    /// Counts since the server was opened, by name. Each protocol has its own.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Copyrpc(worker) => counts::of_worker(worker),
            Self::Erpc(endpoint) => counts::of_endpoint(endpoint),
            Self::Scalerpc(server) => counts::of_server(server),
        }
    }

    /// Answers a request whose token was kept.
    ///
    /// # Errors
    ///
    /// [`ReplyError`].
    pub fn reply(&mut self, token: Token, status: Status, body: &[u8]) -> Result<(), ReplyError> {
        let mut replies = match self {
            Self::Copyrpc(worker) => Replies::Copyrpc(worker),
            Self::Erpc(endpoint) => Replies::Erpc(endpoint),
            Self::Scalerpc(server) => Replies::Scalerpc(server),
        };
        replies.reply(token, status, body)
    }
}

/// A service as each protocol's handler.
struct Adapter<'a, N: Nic>(&'a mut dyn Service<N>);

impl<N: Nic> rpc::Handler<N> for Adapter<'_, N> {
    #[inline(always)]
    fn request(
        &mut self,
        worker: &mut rpc::Worker<N>,
        request: rpc::Request,
        body: rpc::Body<'_, N>,
    ) {
        let rpc::Request { token, method, .. } = request;
        let request = Request { token: Token(Inner::Copyrpc(token)), method, body: &body.bytes() };
        self.0.request(&mut Replies::Copyrpc(worker), request);
    }

    fn ended(&mut self, _: &mut rpc::Worker<N>, _: u64, _: rpc::CallEnd<'_, N>) {}
}

impl<N: Nic> erpc::Handler<N> for Adapter<'_, N> {
    #[inline]
    fn request(&mut self, endpoint: &mut erpc::Endpoint<N>, request: erpc::Request<'_>) {
        let erpc::Request { token, req_type, body } = request;
        let method = req_type.into();
        let request = Request { token: Token(Inner::Erpc(token)), method, body };
        self.0.request(&mut Replies::Erpc(endpoint), request);
    }

    fn response(&mut self, _: &mut erpc::Endpoint<N>, _: u64, _: Status, _: &[u8]) {}
}

impl<N: Nic> scalerpc::Handler<N> for Adapter<'_, N> {
    #[inline]
    fn request(&mut self, server: &mut scalerpc::Server<N>, request: scalerpc::Request<'_>) {
        let scalerpc::Request { token, method, body } = request;
        let request = Request { token: Token(Inner::Scalerpc(token)), method, body };
        self.0.request(&mut Replies::Scalerpc(server), request);
    }
}
