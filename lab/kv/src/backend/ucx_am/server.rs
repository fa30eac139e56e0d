//! The daemon thread's end.

use std::collections::BTreeMap;

use super::{address_of, counters, sleep};
use crate::{
    backend::{BackendError, Contact, Counters, Roster, Server, ServerTurn, Service},
    ucp::{Event, UcxWorker},
};

/// A worker with an endpoint per client.
pub struct UcxServer {
    worker: UcxWorker,
    contact: Contact,
    service: Service,
    answer: Vec<u8>,
    /// Answers that UCX refused: their clients are gone, or have more calls than they may.
    unsent: u64,
    batch_sizes: BTreeMap<u32, u64>,
    waits: u64,
}

impl UcxServer {
    pub(super) fn new(worker: UcxWorker, contact: Contact, service: Service) -> Self {
        let (answer, batch_sizes) = (Vec::new(), BTreeMap::new());
        Self { worker, contact, service, answer, unsent: 0, batch_sizes, waits: 0 }
    }

    /// Answers what one poll finds; returns how many requests, and how many events.
    fn poll(&mut self) -> (usize, usize) {
        let mut served = 0;
        let Self { worker, service, answer, unsent, .. } = self;
        let events = worker.poll(&mut |event| {
            // A client that goes away is no error, and one without an endpoint is none of this job.
            let Event::Message { header, from: Some(from), body } = event else { return };
            answer.clear();
            if header.is_some() {
                served += 1;
                service(body, answer);
            }
            *unsent += u64::from(worker.send(from, header, answer).is_err());
        });
        (served, events)
    }
}

impl Server for UcxServer {
    fn contact(&self) -> Contact {
        self.contact.clone()
    }

    fn join(&mut self, roster: &Roster, _deadline_ns: u64) -> Result<(), BackendError> {
        for contact in &roster.clients {
            let connected = self.worker.connect(&address_of(contact)?);
            connected.map_err(|cause| BackendError::new("cannot connect to a client", cause))?;
        }
        Ok(())
    }

    /// Polls until nothing is found: UCX looks at a few messages at a time.
    fn turn(&mut self, budget: usize) -> Result<ServerTurn, BackendError> {
        let mut turn = ServerTurn::default();
        while turn.served < budget {
            let (served, events) = self.poll();
            turn.served += served;
            turn.handled += events;
            if events == 0 {
                break;
            }
        }
        if let Some(band) = turn.served.checked_ilog2() {
            *self.batch_sizes.entry(1 << band).or_default() += 1;
        }
        Ok(turn)
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        self.waits += 1;
        sleep(&self.worker, deadline_ns)
    }

    fn counters(&self) -> Counters {
        let batch_sizes = self.batch_sizes.clone();
        let mut counters = Counters { batch_sizes, ..counters(&self.worker, "daemon", self.waits) };
        counters.count("daemon", "answers unsent", self.unsent);
        counters
    }
}
