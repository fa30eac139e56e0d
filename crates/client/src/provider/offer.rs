//! What is offered, and why not.

use std::time::Duration;

use proto::Status;
use zerocopy::IntoBytes as _;

use crate::{
    CallError, ConnectError, Description, Retry,
    message::{IS_SHARED, MethodRecord, OfferHead, WANTS_CONTEXT},
    name,
};

/// Requests that a provider has at a time, unless it says otherwise.
pub(super) const WINDOW: usize = 16;

/// Why a service is not provided.
#[derive(Debug, thiserror::Error)]
pub enum ProvideError {
    /// There is no daemon.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Another process or the daemon itself provides it.
    #[error(
        "service {0} is already offered on this node; if all who offer it say that it is shared, several can"
    )]
    Taken(u16),
    /// Another process shares a service of this number, but means another one.
    #[error(
        "service {0} is offered on this node by a process that calls it otherwise, or means other types: both must be of one version, or the names share a number"
    )]
    Mismatch(u16),
    /// The rights of the node do not let this process offer it.
    #[error("this process may not offer service {0}: see COPYRPC_RIGHTS of the daemon")]
    Denied(u16),
    /// The service cannot be described.
    #[error("name and methods of service {0} take more than a daemon keeps")]
    TooLong(u16),
    /// The daemon is gone, or evicted this process.
    #[error(transparent)]
    Call(#[from] CallError),
    /// There is no thread, or nothing to wake one with.
    #[error("cannot start what serves: {0}")]
    Os(#[source] std::io::Error),
}

impl ProvideError {
    /// Why the daemon does not want a service offered.
    pub(crate) fn refused(service: u16, error: CallError) -> Self {
        match error {
            CallError::Unanswered(Status::AlreadyExists) => Self::Taken(service),
            CallError::Unanswered(Status::FailedPrecondition) => Self::Mismatch(service),
            CallError::Unanswered(Status::PermissionDenied) => Self::Denied(service),
            error => error.into(),
        }
    }
}

/// A service that this process offers: its number, its methods, and how many requests it takes at a time.
#[derive(Clone, Debug)]
pub struct Offer {
    pub(crate) service: u16,
    pub(crate) description: Description,
    pub(crate) is_shared: bool,
    pub(crate) window: Option<usize>,
    pub(crate) retry: Retry,
    /// How long a daemon is looked for; `None`: for as long as the process lives.
    pub(crate) reconnect_max: Option<Duration>,
}

impl Offer {
    /// The service of this number, which this process alone offers on its node, and which is over when the
    /// daemon goes.
    #[must_use]
    pub fn new(service: u16) -> Self {
        let description = Description::default();
        let (retry, reconnect_max) = (Retry::NEVER, None);
        Self { service, description, is_shared: false, window: None, retry, reconnect_max }
    }

    /// The service of this name: see [`name::service_number`].
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self::new(name::service_number(name)).with_name(name)
    }

    /// Tells the daemon what the service is called: nobody who calls it otherwise can share it.
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.description.name);
        self
    }

    /// Tells the daemon what the service's methods mean: a caller can look, and nobody who means something
    /// else can share it.
    #[must_use]
    pub fn with_methods(mut self, methods: &[MethodRecord]) -> Self {
        methods.clone_into(&mut self.description.methods);
        self
    }

    /// Others may offer the service beside this process: the daemon gives each request to the one that has
    /// the fewest. All must say so.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.is_shared = true;
        self
    }

    /// How many requests this process has at a time. What it has waits for it, and for nobody else: few are
    /// fair, many are fast.
    #[must_use]
    pub fn window(mut self, requests: usize) -> Self {
        self.window = Some(requests.max(1));
        self
    }

    /// When the daemon goes, its successor is looked for, and the service offered again: for as long as the process
    /// lives, with the waits of `retry` between two looks. The number of its retries means nothing here, but
    /// [`Retry::NEVER`] does: the daemon is not looked for. The provider ends when it is
    /// [stopped](crate::Provider::stop_handle).
    #[must_use]
    pub fn reconnecting(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Like [`reconnecting`](Self::reconnecting), and gives up when there is no daemon for this long.
    #[must_use]
    pub fn reconnecting_within(self, retry: Retry, longest: Duration) -> Self {
        Self { reconnect_max: Some(longest), ..self.reconnecting(retry) }
    }

    /// What the daemon is told.
    pub(super) fn message(&self) -> Vec<u8> {
        let shared = if self.is_shared { IS_SHARED } else { 0 };
        let head = OfferHead {
            service: self.service.into(),
            flags: (shared | WANTS_CONTEXT).into(),
            name_bytes: u16::try_from(self.description.name.len()).unwrap_or(u16::MAX).into(),
            reserved: 0.into(),
        };
        let mut message = head.as_bytes().to_vec();
        message.extend(self.description.encode());
        message
    }
}
