//! UCX active messages from client to daemon thread: what programs use today.
//!
//! ```text
//! client thread: worker ── an endpoint per daemon thread ── active message, with the flag "reply" ──▶ worker: daemon thread
//!                       ◀── active message by that endpoint ───────────────────────────────────────
//! header: token     no header: a ping, or the answer to one
//! ```
//!
//! One context per process, one worker per thread. UCX chooses between eager messages and rendezvous. Contacts are
//! addresses of workers; both sides connect, so that the endpoint for a reply belongs to the server. UCX connects
//! when something is sent: a client pings every server before its first call.
//!
//! - A request is an active message with the flag `UCP_AM_SEND_FLAG_REPLY` and the token as its header. `rndv` sets
//!   `UCX_RNDV_THRESH`. `ucp_am_recv_data_nbx` fetches a large message; an eager one is read where UCX keeps it.
//! - `block` and `adaptive` ask for `UCP_FEATURE_WAKEUP`: a thread arms its worker and polls the event descriptor.
//! - UCX 1.13 has no failure handler over shared memory. With `sm` and `all` endpoints have the error mode `none`,
//!   and the job notices a dead process; with `tcp` and `rc_mlx5` the mode is `peer`, and clients learn of a lost
//!   daemon.
//! - A daemon's turn makes progress until nothing is found, up to 256 requests.
//! - libucs takes over SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGHUP when it is opened; module `ucp` restores them. It
//!   writes warnings to standard output unless `UCX_LOG_FILE` names another place.

mod client;
mod options;
mod server;

use std::time::Duration;

use os::clock;

use super::{Backend, BackendError, Contact, Counters, JobSetup, Service};
use crate::{
    place::{ClientId, Shard},
    ucp::{self, UcxAddress, UcxContext, UcxWorker},
};

pub use client::UcxClient;
pub use server::UcxServer;

pub(super) use options::SWITCHES;

/// Longest sleep of a client that waits for servers to connect.
const JOIN_NAP: Duration = Duration::from_millis(1);

/// Why this machine cannot run the backend, if so.
pub(super) fn missing() -> Option<String> {
    ucp::version().err().map(|error| error.to_string())
}

/// The backend of one process.
#[derive(Clone, Debug)]
pub struct UcxAm {
    setup: JobSetup,
    context: UcxContext,
}

impl UcxAm {
    /// The backend of one process.
    ///
    /// # Errors
    ///
    /// [`BackendError`]: UCX is not there, or has no transport that was asked for.
    pub fn open(setup: JobSetup) -> Result<Self, BackendError> {
        let context = UcxContext::open(options::config(&setup))
            .map_err(|cause| BackendError::new("cannot open UCX", cause))?;
        Ok(Self { setup, context })
    }

    fn worker(&self) -> Result<(UcxWorker, Contact), BackendError> {
        let opened = UcxWorker::open(&self.context).and_then(|worker| {
            let contact = Contact(worker.address()?.to_string());
            Ok((worker, contact))
        });
        opened.map_err(|cause| BackendError::new("cannot open a worker", cause))
    }
}

impl Backend for UcxAm {
    type Client = UcxClient;
    type Server = UcxServer;

    fn server(&self, _shard: Shard, service: Service) -> Result<UcxServer, BackendError> {
        let (worker, contact) = self.worker()?;
        Ok(UcxServer::new(worker, contact, service))
    }

    fn client(&self, _client: ClientId) -> Result<UcxClient, BackendError> {
        let (worker, contact) = self.worker()?;
        Ok(UcxClient::new(worker, contact, self.setup.message_bytes_max))
    }
}

fn address_of(contact: &Contact) -> Result<UcxAddress, BackendError> {
    let address = contact.0.parse::<UcxAddress>();
    address.map_err(|cause| BackendError::new("a contact makes no sense", cause))
}

/// Sleeps until something may have come, or the deadline.
fn sleep(worker: &UcxWorker, deadline_ns: u64) -> Result<(), BackendError> {
    let left = Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns()));
    worker.wait(left).map_err(|cause| BackendError::new("cannot wait for UCX", cause))
}

fn counters(worker: &UcxWorker, side: &str, waits: u64) -> Counters {
    let ucp::UcxCounts { sent_at_once, sent_later, sends_failed, kept, fetched, lost, .. } =
        worker.counts();
    let mut counters = Counters::default();
    for (name, count) in [
        ("waits", waits),
        ("sends at once", sent_at_once),
        ("sends later", sent_later),
        ("sends failed", sends_failed),
        ("messages kept", kept),
        ("messages fetched", fetched),
        ("messages lost", lost),
    ] {
        counters.count(side, name, count);
    }
    counters
}

#[cfg(test)]
mod tests;
