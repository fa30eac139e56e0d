//! Each client owns an endpoint of the NIC: copyrpc from client to daemon thread, no daemon in
//! between.
//!
//! ```text
//! client thread ── queue pair per daemon thread ── WRITE_IMM ──▶ daemon thread
//!
//! contact of one end: an invitation for each end of the other kind, in hexadecimal, in order
//! ```

mod client;
mod inbox;
mod options;
mod server;

use rpc::{Invitation, PeerId, Worker};
use softnic::Nic;

use super::{Backend, BackendError, Contact, Service, Setup};
use crate::place::{ClientId, Shard};

pub use client::DirectClient;
pub use server::DirectServer;

pub(super) use options::{SWITCHES, config as worker_config, response_bytes};

/// The software NIC's name.
const SOFT: &str = "soft";

/// What the process as a whole has: what its threads need to open their own NICs.
#[derive(Clone, Debug)]
pub struct Direct {
    setup: Setup,
    nic: softnic::Config,
}

/// Settings of the NIC that a job asks for.
pub(super) fn soft_nic(setup: &Setup) -> Result<softnic::Config, BackendError> {
    if setup.nic != SOFT {
        let cause = format!("this version drives `{SOFT}` only");
        return Err(BackendError::new(format!("cannot open the NIC `{}`", setup.nic), cause));
    }
    softnic::Config::from_lookup(|variable| setup.nic_knobs.get(variable).cloned())
        .map_err(|cause| BackendError::new("cannot configure the software NIC", cause))
}

impl Backend for Direct {
    type Client = DirectClient;
    type Server = DirectServer;

    fn open(setup: &Setup, _rank: u16) -> Result<Self, BackendError> {
        Ok(Self { nic: soft_nic(setup)?, setup: setup.clone() })
    }

    fn server(&self, shard: Shard, service: Service) -> Result<DirectServer, BackendError> {
        let clients = self.setup.topology.clients();
        let (worker, peers, contact) = self.invite(clients)?;
        Ok(DirectServer::new(worker, peers, contact, usize::from(shard.0), service))
    }

    fn client(&self, client: ClientId) -> Result<DirectClient, BackendError> {
        let shards = self.setup.topology.shards();
        let (worker, peers, contact) = self.invite(shards)?;
        Ok(DirectClient::new(worker, peers, contact, usize::from(client.0), &self.setup))
    }
}

impl Direct {
    /// A worker with a place for each of `count` ends of the other kind.
    fn invite(&self, count: u16) -> Result<(Worker<Nic>, Vec<PeerId>, Contact), BackendError> {
        let failed = |cause| BackendError::new("cannot open an endpoint", cause);
        let nic = softnic::open(&self.nic)
            .map_err(|cause| BackendError::new("cannot open the software NIC", cause))?;
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
fn join(
    worker: &mut Worker<Nic>,
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
