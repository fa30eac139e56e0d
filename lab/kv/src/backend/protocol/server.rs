//! The daemon thread's end.

use std::{collections::BTreeMap, io, net::IpAddr};

use os::clock;
use protocols::{Config, OpenError, Replies, Request, Status};
use verbs::Nic;

use super::{meeting::Meeting, nap};
use crate::backend::{BackendError, Contact, Counters, Roster, Server, ServerTurn, Service};

/// A server of all clients.
pub struct ProtocolServer<N: Nic> {
    nic: N,
    server: protocols::Server<N>,
    meeting: Meeting,
    clients: u16,
    desk: Desk,
    batch_sizes: BTreeMap<u32, u64>,
    waits: u64,
    /// Requests that were served while waiting.
    early: usize,
}

/// Why clients could not be accepted.
#[derive(Debug, thiserror::Error)]
enum AcceptError {
    #[error(transparent)]
    Meeting(#[from] io::Error),
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Answers requests where they arrive.
struct Desk {
    service: Service,
    answer: Vec<u8>,
    served: usize,
}

impl<N: Nic> protocols::Service<N> for Desk {
    #[inline]
    fn request(&mut self, replies: &mut Replies<'_, N>, request: Request<'_>) {
        self.served += 1;
        self.answer.clear();
        (self.service)(request.body, &mut self.answer);
        // It fails only if the client is gone, or accepts too little, which it then is told.
        let _ = replies.reply(request.token, Status::Ok, &self.answer);
    }
}

impl<N: Nic> ProtocolServer<N> {
    pub(super) fn open(
        nic: N,
        config: &Config,
        clients: u16,
        address: IpAddr,
        service: Service,
    ) -> Result<Self, BackendError> {
        let server = protocols::Server::open(nic.clone(), config, clock::now_ns())
            .map_err(|cause| BackendError::new("cannot open a server", cause))?;
        let meeting = Meeting::open(address)
            .map_err(|cause| BackendError::new("cannot listen for clients", cause))?;
        let desk = Desk { service, answer: Vec::new(), served: 0 };
        let batch_sizes = BTreeMap::new();
        Ok(Self { nic, server, meeting, clients, desk, batch_sizes, waits: 0, early: 0 })
    }

    fn poll(&mut self) -> usize {
        self.desk.served = 0;
        self.server.poll(clock::now_ns(), &mut self.desk);
        self.desk.served
    }
}

impl<N: Nic> Server for ProtocolServer<N> {
    fn contact(&self) -> Contact {
        Contact(self.meeting.address().to_string())
    }

    fn join(&mut self, _roster: &Roster, deadline_ns: u64) -> Result<(), BackendError> {
        let Self { server, meeting, clients, .. } = self;
        let answer = |greeting: &[u8]| server.accept(greeting).map_err(AcceptError::from);
        let answered = meeting.answer_all(*clients, deadline_ns, answer);
        answered.map_err(|cause| BackendError::new("cannot accept every client", cause))
    }

    /// The protocol's own budget of completions bounds a turn.
    fn turn(&mut self, _budget: usize) -> Result<ServerTurn, BackendError> {
        let served = self.poll() + std::mem::take(&mut self.early);
        if let Some(band) = served.checked_ilog2() {
            *self.batch_sizes.entry(1 << band).or_default() += 1;
        }
        Ok(ServerTurn::of_answers(served))
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        self.early += self.poll();
        if self.early == 0 {
            self.waits += 1;
            nap(&self.nic, deadline_ns);
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        let mut counters =
            Counters { batch_sizes: self.batch_sizes.clone(), ..Counters::default() };
        counters.count("daemon", "waits", self.waits);
        for (name, count) in self.server.counts() {
            counters.count("daemon", name, count);
        }
        counters
    }
}
