//! The client thread's end.

use os::clock;
use protocols::Status;

use super::{address_of, counters, sleep};
use crate::{
    backend::{
        BackendError, CallToken, Client, Contact, Counters, Event, Roster, SubmitError,
        found::Found,
    },
    place::Shard,
    ucp::{self, SendError, UcxEndpoint, UcxError, UcxWorker},
};

/// A worker with an endpoint per shard.
#[derive(Debug)]
pub struct UcxClient {
    worker: UcxWorker,
    contact: Contact,
    /// By shard; `None`: it is gone.
    servers: Vec<Option<UcxEndpoint>>,
    message_bytes_max: usize,
    /// Why endpoints failed: at most one reason for each.
    losses: Vec<String>,
    waits: u64,
}

/// Why a client cannot go on to its first call.
#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error("shard {shard}: {cause}")]
    Unreachable { shard: usize, cause: UcxError },
    #[error("shard {shard}: {cause}")]
    Ping { shard: usize, cause: SendError },
    #[error("the connection ended: {0}")]
    Lost(String),
    #[error("{answered} of {servers} servers have answered")]
    Late { answered: usize, servers: usize },
}

impl UcxClient {
    pub(super) fn new(worker: UcxWorker, contact: Contact, message_bytes_max: usize) -> Self {
        let (servers, losses) = (Vec::new(), Vec::new());
        Self { worker, contact, servers, message_bytes_max, losses, waits: 0 }
    }

    /// Polls, and says of each event what it is to a caller; `None`: a server has answered a ping.
    fn poll_found(&mut self, tell: &mut impl FnMut(Option<Found>, &[u8])) -> usize {
        let Self { worker, servers, losses, .. } = self;
        worker.poll(&mut |event| match event {
            ucp::Event::Message { header, body, .. } => {
                tell(header.map(|token| Found::Ended(token, Status::Ok)), body);
            }
            ucp::Event::Closed { endpoint, reason } => {
                let shard = servers.iter().position(|server| *server == Some(endpoint));
                if let Some(shard) = shard {
                    servers[shard] = None;
                    losses.push(reason.to_string());
                    tell(Some(Found::Lost(shard)), &[]);
                }
            }
        })
    }

    fn connect(&mut self, roster: &Roster) -> Result<(), BackendError> {
        for (shard, contact) in roster.servers.iter().enumerate() {
            let connected = self.worker.connect(&address_of(contact)?);
            let endpoint = connected.map_err(|cause| JoinError::Unreachable { shard, cause });
            let endpoint = endpoint.and_then(|endpoint| {
                let pinged = self.worker.ask(endpoint, None, &[]);
                pinged.map(|()| endpoint).map_err(|cause| JoinError::Ping { shard, cause })
            });
            self.servers.push(Some(endpoint.map_err(cannot_connect)?));
        }
        Ok(())
    }
}

fn cannot_connect(cause: JoinError) -> BackendError {
    BackendError::new("cannot connect", cause)
}

impl Client for UcxClient {
    fn contact(&self) -> Contact {
        self.contact.clone()
    }

    fn join(&mut self, roster: &Roster, deadline_ns: u64) -> Result<(), BackendError> {
        self.connect(roster)?;
        let (mut answered, servers) = (0, self.servers.len());
        while answered < servers {
            self.poll_found(&mut |found, _| answered += usize::from(found.is_none()));
            if let Some(reason) = self.losses.first() {
                return Err(cannot_connect(JoinError::Lost(reason.clone())));
            }
            if clock::now_ns() > deadline_ns {
                return Err(cannot_connect(JoinError::Late { answered, servers }));
            }
            if answered < servers {
                sleep(&self.worker, deadline_ns.min(clock::deadline_ns(super::JOIN_NAP)))?;
            }
        }
        Ok(())
    }

    fn submit(&mut self, to: Shard, token: CallToken, request: &[u8]) -> Result<(), SubmitError> {
        let server = self.servers.get(usize::from(to.0)).copied().flatten();
        let server = server.ok_or(SubmitError::Gone(to))?;
        self.worker.ask(server, Some(token.0), request).map_err(|error| match error {
            SendError::Full => SubmitError::Full,
            SendError::TooLarge { len_bytes, .. } => {
                SubmitError::TooLarge { len_bytes, max_bytes: self.message_bytes_max }
            }
            // The next poll tells that it is lost.
            SendError::Closed | SendError::Failed(_) => SubmitError::Gone(to),
        })
    }

    /// One poll of the worker; UCX bounds what it finds.
    fn poll(
        &mut self,
        _budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, BackendError> {
        Ok(self.poll_found(&mut |found, bytes| {
            if let Some(found) = found {
                sink(found.event(bytes));
            }
        }))
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        self.waits += 1;
        sleep(&self.worker, deadline_ns)
    }

    fn counters(&self) -> Counters {
        let mut counters = counters(&self.worker, "client", self.waits);
        for reason in &self.losses {
            counters.count("client", &format!("lost: {reason}"), 1);
        }
        counters
    }
}
