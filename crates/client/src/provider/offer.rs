//! Offers of services, and their errors.

use std::{fmt, time::Duration};

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
///
/// ```no_run
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{ClientConfig, ProvideError, Provider, Runtime};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let socket = Runtime::from_env()?.socket();
/// match Provider::register(&socket, 17, ClientConfig::default()) {
///     Err(ProvideError::Taken(service)) => println!("service {service} has a provider"),
///     provider => drop(provider?),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
pub enum ProvideError {
    /// There is no daemon.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Another process or the daemon itself provides it.
    #[error(
        "service {0} is already offered on this node; several processes can offer it if each says that it is shared"
    )]
    Taken(OfferedService),
    /// Another process shares a service of this number, and means another one.
    #[error(
        "service {0} is offered on this node by a process that calls it otherwise, or means other types: both must be of one version, or the names share a number"
    )]
    Mismatch(OfferedService),
    /// The rights of the node do not let this process offer it.
    #[error("this process may not offer service {0}: see COPYRPC_RIGHTS of the daemon")]
    Denied(OfferedService),
    /// The service cannot be described.
    #[error("name and methods of service {0} take more than a daemon keeps")]
    TooLong(OfferedService),
    /// The daemon is gone, or evicted this process.
    #[error(transparent)]
    Call(#[from] CallError),
    /// There is no thread, or nothing to wake one with.
    #[error("cannot start what serves: {0}")]
    Os(#[source] std::io::Error),
}

impl ProvideError {
    /// Whether the daemon speaks another version: this process can never offer anything there.
    pub(crate) fn is_of_another_version(&self) -> bool {
        matches!(self, Self::Connect(ConnectError::Handshake(ipc::HandshakeError::Version { .. })))
    }
}

/// A service that a process offers, as errors name it.
///
/// ```
/// # use copyrpc_client as copyrpc;
/// use copyrpc::OfferedService;
///
/// let service = OfferedService { number: 17, name: "metadata".into() };
/// assert_eq!(service.to_string(), "`metadata` (17)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedService {
    /// Its number.
    pub number: u16,
    /// Its name; empty if it has none.
    pub name: String,
}

impl fmt::Display for OfferedService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.is_empty() {
            write!(f, "{}", self.number)
        } else {
            write!(f, "`{}` ({})", self.name.escape_debug(), self.number)
        }
    }
}

impl ProvideError {
    /// The error of an offer that the daemon refused.
    pub(crate) fn refused(service: OfferedService, error: CallError) -> Self {
        match error {
            CallError::Unanswered(Status::AlreadyExists) => Self::Taken(service),
            CallError::Unanswered(Status::FailedPrecondition) => Self::Mismatch(service),
            CallError::Unanswered(Status::PermissionDenied) => Self::Denied(service),
            error => error.into(),
        }
    }
}

/// A service that this process offers: its number, its methods, and how many requests it takes at a time.
///
/// ```no_run
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{ClientConfig, Offer, Provider, Retry, Runtime};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let offer = Offer::named("metadata").shared().window(64).reconnecting(Retry::standard());
/// let socket = Runtime::from_env()?.socket();
/// let provider = Provider::offer(&socket, &offer, ClientConfig::default())?;
/// # drop(provider);
/// # Ok(()) }
/// ```
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
    /// The service, as errors name it.
    pub(crate) fn named_service(&self) -> OfferedService {
        OfferedService { number: self.service, name: self.description.name.clone() }
    }

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

    /// The name of the service for the daemon: no process that names it otherwise can share it.
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

    /// The message for the daemon.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_offer_names_its_service() {
        let refused = CallError::Unanswered(Status::PermissionDenied);
        let words = |offer: &Offer| {
            ProvideError::refused(offer.named_service(), refused.clone()).to_string()
        };
        let number = name::service_number("metadata");
        let named = words(&Offer::named("metadata"));
        assert!(named.contains(&format!("service `metadata` ({number})")), "{named}");
        let numbered = words(&Offer::new(17));
        assert!(numbered.contains("service 17: "), "{numbered}");
    }
}
