//! The daemon thread's end.

use std::collections::BTreeMap;

use os::clock;
use rpc::{Body, CallEnd, Handler, PeerId, Request, Status, Worker};
use verbs::Nic;

use super::{
    client::{counters, sleep},
    join,
};
use crate::backend::{BackendError, Contact, Counters, Roster, Server, ServerTurn, Service};

/// A worker with a connection per client.
pub struct DirectServer<N: Nic> {
    worker: Worker<N>,
    /// By client.
    peers: Vec<PeerId>,
    contact: Contact,
    me: usize,
    desk: Desk,
    batch_sizes: BTreeMap<u32, u64>,
    waits: u64,
    /// Requests that were served while waiting.
    early: usize,
}

impl<N: Nic> DirectServer<N> {
    pub(super) fn new(
        worker: Worker<N>,
        peers: Vec<PeerId>,
        contact: Contact,
        me: usize,
        service: Service,
    ) -> Self {
        let desk = Desk { service, answer: Vec::new(), served: 0 };
        Self { worker, peers, contact, me, desk, batch_sizes: BTreeMap::new(), waits: 0, early: 0 }
    }

    fn poll(&mut self) -> usize {
        self.desk.served = 0;
        self.worker.poll(clock::now_ns(), &mut self.desk);
        self.desk.served
    }
}

/// Answers requests where they arrive.
struct Desk {
    service: Service,
    answer: Vec<u8>,
    served: usize,
}

impl<N: Nic> Handler<N> for Desk {
    #[inline(always)]
    fn request(&mut self, worker: &mut Worker<N>, request: Request, body: Body<'_, N>) {
        self.served += 1;
        self.answer.clear();
        (self.service)(&body.bytes(), &mut self.answer);
        // It fails only if the client is gone, or accepts too little, which it then is told.
        let _ = worker.reply(request.token, Status::Ok, &self.answer);
    }

    #[inline(always)]
    fn ended(&mut self, _: &mut Worker<N>, _: u64, _: CallEnd<'_, N>) {}
}

impl<N: Nic> Server for DirectServer<N> {
    fn contact(&self) -> Contact {
        self.contact.clone()
    }

    fn join(&mut self, roster: &Roster, _deadline_ns: u64) -> Result<(), BackendError> {
        join(&mut self.worker, &self.peers, &roster.clients, self.me)
    }

    /// The worker's own budget of completions bounds a turn.
    fn turn(&mut self, _budget: usize) -> Result<ServerTurn, BackendError> {
        let served = self.poll() + std::mem::take(&mut self.early);
        if let Some(band) = served.checked_ilog2() {
            *self.batch_sizes.entry(1 << band).or_default() += 1;
        }
        Ok(ServerTurn::of_answers(served))
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        self.worker.arm().map_err(|cause| BackendError::new("cannot wait for the NIC", cause))?;
        // What came before the NIC was armed is not announced.
        self.early += self.poll();
        if self.early == 0 {
            self.waits += 1;
            sleep(&self.worker, deadline_ns);
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        let batch_sizes = self.batch_sizes.clone();
        Counters { batch_sizes, ..counters(&self.worker, &self.peers, "daemon", self.waits) }
    }
}
