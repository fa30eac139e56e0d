//! A process that answers requests for a service of its node.

use std::{path::Path, time::Duration};

use proto::Status;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    client::{CallError, ClientConfig, ConnectError, To, write_request},
    wire::{CALL_HEAD_BYTES, DAEMON, HERE, SERVE_HEAD_BYTES, ServeHead, WorkHead, method},
};

/// A request for a service of this node.
#[derive(Clone, Copy, Debug)]
pub struct Inbound<'a> {
    /// Rank of the caller's node.
    pub rank: u32,
    /// Which method.
    pub method: u16,
    /// What it carries: a private copy.
    pub body: &'a [u8],
}

/// Why a service is not provided.
#[derive(Debug, thiserror::Error)]
pub enum ProvideError {
    /// There is no daemon.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Another process or the daemon itself provides it.
    #[error("service {0} is already offered on this node")]
    Taken(u16),
    /// The daemon is gone, or evicted this process.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Provides one service: requests come one at a time.
///
/// The daemon notices when this process dies; requests that it was given end with
/// [`Status::Unavailable`], and the service can be provided anew.
#[derive(Debug)]
pub struct Provider {
    ipc: ipc::SyncClient,
    service: u16,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Provider {
    /// Registers `service` with the daemon whose socket is at `path`.
    ///
    /// # Errors
    ///
    /// [`ProvideError`].
    pub fn register(path: &Path, service: u16, config: ClientConfig) -> Result<Self, ProvideError> {
        let mut ipc = ipc::SyncClient::connect(path, super::ipc_config(config))?;
        let mut request = Vec::new();
        write_head(&mut request, method::REGISTER);
        request.extend_from_slice(&service.to_le_bytes());
        match ipc.call(&request).map_err(CallError::from) {
            Ok(_) => Ok(Self { ipc, service, request, answer: Vec::new() }),
            Err(CallError::Status(Status::AlreadyExists)) => Err(ProvideError::Taken(service)),
            Err(error) => Err(error.into()),
        }
    }

    /// Answers requests until `serve` gives no answer: that request ends with
    /// [`Status::Unavailable`], and the service is withdrawn. An answer that is longer than the daemon
    /// takes ends its request with [`Status::OutOfRange`].
    ///
    /// # Errors
    ///
    /// [`ProvideError::Call`] when the daemon is gone.
    pub fn serve(
        mut self,
        mut serve: impl FnMut(&Inbound<'_>, &mut Vec<u8>) -> Option<Status>,
    ) -> Result<(), ProvideError> {
        let (mut work, mut status) = (0, Status::Ok);
        let answer_bytes_max =
            self.ipc.terms().request_bytes_max.saturating_sub(CALL_HEAD_BYTES + SERVE_HEAD_BYTES);
        loop {
            if self.answer.len() > answer_bytes_max {
                status = Status::OutOfRange;
                self.answer.clear();
            }
            write_head(&mut self.request, method::SERVE);
            let head = ServeHead {
                work: work.into(),
                service: self.service.into(),
                status: status.code(),
                reserved: [0; 5],
            };
            self.request.extend_from_slice(head.as_bytes());
            self.request.extend_from_slice(&self.answer);
            // Without a deadline: work may be long in coming, and the kernel tells of the daemon's end.
            let next =
                self.ipc.call_within(&self.request, Duration::MAX).map_err(CallError::from)?;
            let (head, body) = WorkHead::read_from_prefix(next)
                .map_err(|_| CallError::Status(Status::Internal))?;
            self.answer.clear();
            work = head.work.get();
            let inbound = Inbound { rank: head.rank.get(), method: head.method.get(), body };
            match serve(&inbound, &mut self.answer) {
                Some(done) => status = done,
                None => return Ok(()),
            }
        }
    }
}

fn write_head(request: &mut Vec<u8>, method: u16) {
    let to = To { rank: HERE, service: DAEMON, method };
    write_request(request, to, Duration::MAX, 0, &[]);
}
