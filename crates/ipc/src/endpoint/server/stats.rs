//! Counters of a server, from its start.

/// Counters of a server since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Clients connected now.
    pub clients: usize,
    /// Clients ever welcomed.
    pub welcomed: u64,
    /// Clients ever refused, or disconnected before they were welcomed.
    pub refused: u64,
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
