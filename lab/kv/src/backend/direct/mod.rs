//! Each client owns an endpoint of the NIC: copyrpc from client to daemon thread, no daemon in
//! between.
//!
//! ```text
//! client thread ── queue pair per daemon thread ── WRITE_IMM ──▶ daemon thread
//!
//! contact of one end: an invitation for each end of the other kind, in hexadecimal, in order
//! ```

mod client;
mod options;
mod server;

use nics::Opener;
use rpc::{Invitation, PeerId, Worker};
use verbs::Nic;

use super::{Backend, BackendError, Contact, JobSetup, Service};
use crate::place::{ClientId, Shard};

pub use client::DirectClient;
pub use server::DirectServer;

pub(super) use options::{SWITCHES, config as worker_config, response_bytes};

/// The backend of one process: each of its threads opens a port of its own.
#[derive(Clone, Debug)]
pub struct Direct<O> {
    setup: JobSetup,
    opener: O,
}

impl<O: Opener> Backend for Direct<O> {
    type Client = DirectClient<O::Nic>;
    type Server = DirectServer<O::Nic>;

    fn server(&self, shard: Shard, service: Service) -> Result<Self::Server, BackendError> {
        let clients = self.setup.topology.clients();
        let (worker, peers, contact) = self.invite(clients)?;
        Ok(DirectServer::new(worker, peers, contact, usize::from(shard.0), service))
    }

    fn client(&self, client: ClientId) -> Result<Self::Client, BackendError> {
        let shards = self.setup.topology.shards();
        let (worker, peers, contact) = self.invite(shards)?;
        Ok(DirectClient::new(worker, peers, contact, usize::from(client.0), &self.setup))
    }
}

/// A worker, its peers in order, and the contact that invites them.
type Invited<N> = (Worker<N>, Vec<PeerId>, Contact);

impl<O: Opener> Direct<O> {
    /// The backend of one process, on the NIC of `opener`.
    pub fn new(setup: JobSetup, opener: O) -> Self {
        Self { setup, opener }
    }

    /// A worker with a place for each of `count` ends of the other kind.
    fn invite(&self, count: u16) -> Result<Invited<O::Nic>, BackendError> {
        let failed = |cause| BackendError::new("cannot open an endpoint", cause);
        let nic = self
            .opener
            .open()
            .map_err(|cause| BackendError::new("cannot open an endpoint", cause))?;
        let config = options::config(&self.setup, count);
        let mut worker = Worker::open(nic, config, os::clock::now_ns())
            .map_err(|cause| BackendError::new("cannot open an RPC worker", cause))?;
        let mut peers = Vec::with_capacity(usize::from(count));
        let mut contact = String::new();
        for _ in 0..count {
            let (peer, invitation) = worker.invite().map_err(failed)?;
            peers.push(peer);
            write_hex(invitation.as_bytes(), &mut contact);
        }
        Ok((worker, peers, Contact(contact)))
    }
}

/// Connects each of `peers` to the end of that number, which invites this end as its number `me`.
fn join<N: Nic>(
    worker: &mut Worker<N>,
    peers: &[PeerId],
    contacts: &[Contact],
    me: usize,
) -> Result<(), BackendError> {
    for (peer, Contact(contact)) in peers.iter().zip(contacts) {
        let invitation = nth_invitation(contact, me)
            .ok_or_else(|| BackendError::new("cannot connect", "a contact makes no sense"))?;
        worker
            .connect(*peer, &invitation)
            .map_err(|cause| BackendError::new("cannot connect", cause))?;
    }
    Ok(())
}

fn write_hex(bytes: &[u8], to: &mut String) {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
    for byte in bytes {
        to.push(digit(byte >> 4));
        to.push(digit(byte & 15));
    }
}

/// Invitation number `index` of a contact.
fn nth_invitation(contact: &str, index: usize) -> Option<Invitation> {
    let digits = 2 * Invitation::BYTES;
    let text = contact.as_bytes().get(index * digits..(index + 1) * digits)?;
    let value =
        |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let byte = |pair: &[u8]| Some(value(pair[0])? << 4 | value(pair[1])?);
    let bytes = text.chunks_exact(2).map(byte).collect::<Option<Vec<_>>>()?;
    Invitation::from_bytes(&bytes).ok()
}

#[cfg(test)]
mod tests;
