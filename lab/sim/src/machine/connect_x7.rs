//! What the measurements of ConnectX-7 machines have in common: one profile, of which the programs on them are apart.

/// A send queue of a daemon takes so long per work request, in ns. Fitted: connections without a daemon between them,
/// of 4, 8, 16 and 32 nodes. There the daemon of a node answers 1.64 to 1.70 million calls per second, each by a work
/// request of its own, so that one takes 590 to 608 ns. No other measurement was used.
///
/// It is the time of one send queue of one process and not of the NIC: a NIC carries requests of 46 clients beside
/// these answers, and so twice as many work requests.
pub const SEND_QUEUE_NS: f64 = 599.0;

/// From doorbell to visible completion at the other side, in ns. Fitted: 4.17 µs of a raw ping-pong.
pub const ONE_WAY_NS: f64 = 1960.0;

/// Mean of what that takes longer, in ns. Assumed.
pub const JITTER_NS: f64 = 60.0;
