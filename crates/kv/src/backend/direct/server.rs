//! The daemon thread's end.

use std::collections::BTreeMap;

use os::clock;
use rpc::{Handler, PeerId, Request, Status, Worker};
use softnic::Nic;

use super::{
    client::{counters, sleep},
    inbox::Inbox,
    join,
};
use crate::backend::{BackendError, Contact, Counters, Roster, Server};

/// A worker with a connection per client.
pub struct DirectServer {
    worker: Worker<Nic>,
    /// By client.
    peers: Vec<PeerId>,
    contact: Contact,
    me: usize,
    requests: Inbox<rpc::Token>,
    turn_messages: u32,
    batch_sizes: BTreeMap<u32, u64>,
    waits: u64,
}

/// The duty to answer one request.
#[derive(Debug)]
pub struct Reply(rpc::Token);

impl DirectServer {
    pub(super) fn new(
        worker: Worker<Nic>,
        peers: Vec<PeerId>,
        contact: Contact,
        me: usize,
    ) -> Self {
        let (requests, batch_sizes) = (Inbox::default(), BTreeMap::new());
        Self { worker, peers, contact, me, requests, turn_messages: 0, batch_sizes, waits: 0 }
    }
}

struct Desk<'a>(&'a mut Inbox<rpc::Token>);

impl Handler<Nic> for Desk<'_> {
    fn request(&mut self, _: &mut Worker<Nic>, request: Request<'_>) {
        self.0.push(request.token, request.body);
    }

    fn response(&mut self, _: &mut Worker<Nic>, _: u64, _: Status, _: &[u8]) {}
}

impl Server for DirectServer {
    type Token = Reply;

    fn contact(&self) -> Contact {
        self.contact.clone()
    }

    fn join(&mut self, roster: &Roster, _deadline_ns: u64) -> Result<(), BackendError> {
        join(&mut self.worker, &self.peers, &roster.clients, self.me)
    }

    fn turn(&mut self) -> Result<(), BackendError> {
        if let Some(band) = std::mem::take(&mut self.turn_messages).checked_ilog2() {
            *self.batch_sizes.entry(1 << band).or_default() += 1;
        }
        self.worker.poll(clock::now_ns(), &mut Desk(&mut self.requests));
        Ok(())
    }

    fn next(&mut self) -> Option<(Reply, &[u8])> {
        let (token, request) = self.requests.pop()?;
        self.turn_messages += 1;
        Some((Reply(token), request))
    }

    fn reply(&mut self, token: Reply, answer: &[u8]) {
        // It fails only if the client is gone, or set too little aside, which it then is told.
        let _ = self.worker.reply(token.0, Status::Ok, answer);
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        self.worker.arm().map_err(|cause| BackendError::new("cannot wait for the NIC", cause))?;
        self.worker.poll(clock::now_ns(), &mut Desk(&mut self.requests));
        if self.requests.is_empty() {
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
