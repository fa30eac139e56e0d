//! Counters of a server, from its start.

use crate::endpoint::handshake::RefuseReason;

/// Why a connection did not become a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The server has as many clients as it takes.
    Full,
    /// The user has as many clients as one user may have.
    UserLimit,
    /// The process has as many clients as one process may have.
    ProcessLimit,
    /// The server has no memory or no descriptor left for the client's memory.
    Resources,
    /// The server has no descriptor for the client's connection.
    Descriptors,
    /// The client speaks another version.
    Version,
    /// The process belongs to another user.
    ForeignUser,
    /// The connection ended, or was closed for its silence, before it said hello.
    NoHello,
}

impl Rejection {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Full,
        Self::UserLimit,
        Self::ProcessLimit,
        Self::Resources,
        Self::Descriptors,
        Self::Version,
        Self::ForeignUser,
        Self::NoHello,
    ];
}

impl From<RefuseReason> for Rejection {
    fn from(reason: RefuseReason) -> Self {
        match reason {
            RefuseReason::ServerFull => Self::Full,
            RefuseReason::UserLimit => Self::UserLimit,
            RefuseReason::ProcessLimit => Self::ProcessLimit,
            RefuseReason::Descriptors => Self::Descriptors,
            RefuseReason::Version => Self::Version,
            RefuseReason::ResourceExhausted | RefuseReason::Unknown => Self::Resources,
        }
    }
}

/// The number of connections that did not become clients, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejections([u64; Rejection::ALL.len()]);

impl Rejections {
    pub(crate) fn add(&mut self, cause: Rejection) {
        self.0[cause as usize] += 1;
    }

    /// Those of one cause.
    #[must_use]
    pub fn count(&self, cause: Rejection) -> u64 {
        self.0[cause as usize]
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Of both.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|cause| self.0[cause] + other.0[cause]))
    }
}

/// Counters of a server since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Clients connected now.
    pub clients: usize,
    /// Clients ever welcomed.
    pub welcomed: u64,
    /// Connections that did not become clients, by cause.
    pub rejections: Rejections,
    /// Clients that left or died.
    pub departed: u64,
    /// Clients that were evicted.
    pub evicted: u64,
    /// Requests taken.
    pub requests: u64,
    /// Requests answered, with or without success.
    pub responses: u64,
    /// Requests or tokens that a handler dropped.
    pub unanswered: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Requests without a wakeup bit: the client did not set it, or another client cleared it.
    pub missed_hints: u64,
    /// Times that the server slept.
    pub sleeps: u64,
    /// Times that a newcomer was refused, or accepting suspended, for lack of descriptors.
    pub accept_backoffs: u64,
}
