//! What processes of a node use: calls through their daemon, and services that they provide.
//!
//! ```no_run
//! use copyrpc_node::client::{Client, ClientConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut client = Client::connect("/run/user/1000/copyrpc/job.sock".as_ref(), ClientConfig::default())?;
//! let answer = client.call(3, 17, 1, b"to service 17 on rank 3, method 1")?;
//! # let _ = answer; Ok(()) }
//! ```

mod pipeline;
mod provider;

use std::{path::Path, time::Duration};

use zerocopy::IntoBytes as _;

pub use ipc::{ConnectError, Wait};
pub use pipeline::{Pipeline, Refused};
pub use proto::Status;
pub use provider::{Inbound, ProvideError, Provider};

use crate::wire::{CallHead, DAEMON, HERE, method};

/// How much longer than the daemon a client waits: the daemon knows better why a call ended.
const GRACE: Duration = Duration::from_millis(500);

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// How long a call may take that does not say so itself; 71 minutes at most.
    pub timeout: Duration,
    /// What to do while waiting for answers.
    pub wait: Wait,
    /// Longest response that needs no detour: so much room is set aside for each.
    pub response_bytes: u32,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(5), wait: Wait::default(), response_bytes: 232 }
    }
}

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The service, its node or the daemon said so.
    #[error("{0}")]
    Status(Status),
    /// The daemon of this node could not be reached.
    #[error(transparent)]
    Daemon(ipc::CallError),
}

impl CallError {
    /// In the vocabulary of statuses.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Status(status) => *status,
            Self::Daemon(ipc::CallError::Deadline) => Status::DeadlineExceeded,
            Self::Daemon(ipc::CallError::TooLarge { .. }) => Status::OutOfRange,
            Self::Daemon(ipc::CallError::Full { .. }) => Status::ResourceExhausted,
            Self::Daemon(_) => Status::Unavailable,
        }
    }
}

impl From<ipc::CallError> for CallError {
    fn from(error: ipc::CallError) -> Self {
        match error {
            ipc::CallError::HandlerError(code) => {
                let status = u8::try_from(code).ok().and_then(Status::from_code);
                Self::Status(status.unwrap_or(Status::Unknown))
            }
            ipc::CallError::ResourceExhausted => Self::Status(Status::ResourceExhausted),
            ipc::CallError::NotAnswered => Self::Status(Status::Unknown),
            ipc::CallError::ResponseTooLarge => Self::Status(Status::OutOfRange),
            error => Self::Daemon(error),
        }
    }
}

/// A process's connection to its daemon, for one call at a time.
#[derive(Debug)]
pub struct Client {
    ipc: ipc::SyncClient,
    config: ClientConfig,
    request: Vec<u8>,
}

impl Client {
    /// Connects to the daemon whose socket is at `path`: see [`Runtime`](crate::runtime::Runtime).
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(path: &Path, config: ClientConfig) -> Result<Self, ConnectError> {
        let ipc = ipc::SyncClient::connect(path, ipc_config(config))?;
        Ok(Self { ipc, config, request: Vec::new() })
    }

    /// Connects again, to the same daemon or its successor.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the client stays as it was.
    pub fn reconnect(&mut self) -> Result<(), ConnectError> {
        self.ipc.reconnect()
    }

    /// Calls a method of a service on a rank, [`HERE`] for that of this node, and waits for the answer,
    /// which is valid until the next call.
    ///
    /// # Errors
    ///
    /// [`CallError`]. A call that ended without an answer may have been executed.
    pub fn call(
        &mut self,
        rank: u32,
        service: u16,
        method: u16,
        body: &[u8],
    ) -> Result<&[u8], CallError> {
        self.call_within(rank, service, method, body, self.config.timeout)
    }

    /// Like [`call`](Self::call), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn call_within(
        &mut self,
        rank: u32,
        service: u16,
        method: u16,
        body: &[u8],
        timeout: Duration,
    ) -> Result<&[u8], CallError> {
        let to = To { rank, service, method };
        write_request(&mut self.request, to, timeout, self.config.response_bytes, body);
        Ok(self.ipc.call_within(&self.request, timeout.saturating_add(GRACE))?)
    }

    /// Asks the daemon of a rank for nothing but an answer.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn ping(&mut self, rank: u32, body: &[u8]) -> Result<&[u8], CallError> {
        self.call(rank, DAEMON, method::PING, body)
    }

    /// Rank of this node, and how many there are.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn who(&mut self) -> Result<(u32, u32), CallError> {
        let answer = self.call(HERE, DAEMON, method::WHO, &[])?;
        match answer.as_chunks() {
            ([rank, size], []) => Ok((u32::from_le_bytes(*rank), u32::from_le_bytes(*size))),
            _ => Err(CallError::Status(Status::Internal)),
        }
    }

    /// Differs between any two lives of the daemon.
    #[must_use]
    pub fn daemon_generation(&self) -> u64 {
        self.ipc.terms().server_generation
    }
}

/// Which method of which service where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct To {
    /// Rank of the node; [`HERE`]: this one.
    pub rank: u32,
    /// Number of the service.
    pub service: u16,
    /// Number of the method.
    pub method: u16,
}

fn write_request(
    request: &mut Vec<u8>,
    to: To,
    timeout: Duration,
    response_bytes: u32,
    body: &[u8],
) {
    let head = CallHead {
        rank: to.rank.into(),
        service: to.service.into(),
        method: to.method.into(),
        // 0 would mean that the daemon chooses.
        timeout_us: u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX).max(1).into(),
        response_bytes: response_bytes.into(),
    };
    request.clear();
    request.extend_from_slice(head.as_bytes());
    request.extend_from_slice(body);
}

fn ipc_config(config: ClientConfig) -> ipc::ClientConfig {
    let timeout = config.timeout.saturating_add(GRACE);
    ipc::ClientConfig { wait: config.wait, timeout, ..ipc::ClientConfig::default() }
}
