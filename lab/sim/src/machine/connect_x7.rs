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

/// A daemon takes a client's call from shared memory, and executes it or encodes it, in ns. Fitted: 964 ns of one rank for
/// 16 of them.
pub const TAKE_NS: f64 = 60.0;

/// A daemon posts a batch, in ns. Fitted: phases of two ranks that do it.
pub const FLUSH_NS: f64 = 20.0;

/// From a response in a client's memory to its next request, in ns. A call of one client takes 631 ns on such a machine with
/// another ring; of that, the daemon's part is taken off.
pub const CLIENT_NS: f64 = 520.0;

/// Mean of what a client takes longer, in ns. Assumed.
pub const CLIENT_JITTER_NS: f64 = 40.0;
