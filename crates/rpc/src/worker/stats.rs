//! Counters of a worker.

/// Counters of a worker, besides those of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Polls.
    pub polls: u64,
    /// Completions of receives.
    pub arrivals: u64,
    /// Immediates that name no connection, or not the one of their queue pair. Ignored.
    pub unknown_imms: u64,
    /// Connections closed because the peer broke the protocol.
    pub violations: u64,
    /// Connections that failed.
    pub failures: u64,
    /// Times that there was no memory to reach a peer.
    pub shortages: u64,
    /// Batches that found no space in the send queue, and were posted later.
    pub send_queue_full: u64,
    /// Requests that were answered because their tokens were dropped, by panics too.
    pub tokens_dropped: u64,
    /// Writes without news that asked whether a silent peer is still there.
    pub keepalives: u64,
}
