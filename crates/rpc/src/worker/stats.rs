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
    /// Bytes of batches that went to mirrors of rings, because they are too long for an entry of the send queue. Each was
    /// copied to its batch before, and is copied once more by its receiver.
    pub mirrored_bytes: u64,
    /// What bodies by rendezvous cost.
    pub bodies: BodyStats,
}

/// What bodies that go by rendezvous cost a worker. One that fits the ring costs none of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyStats {
    /// Bytes that the worker copied: to memory that a peer reads, and from where a READ put them to private memory. What
    /// a handler copies of a [piece](crate::BodyPiece) is the handler's.
    pub copied_bytes: u64,
    /// Bytes of private memory that were cleared before a body was copied there.
    pub cleared_bytes: u64,
    /// Bytes that READs and WRITEs moved, those of the program too.
    pub moved_bytes: u64,
    /// READs and WRITEs that were posted.
    pub pieces: u64,
    /// Most of them that were outstanding at a time.
    pub outstanding_max: u64,
    /// Polls that began while some were outstanding, and found none that had ended.
    pub polls_in_vain: u64,
}
