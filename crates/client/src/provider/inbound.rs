//! A request, as its handler sees it.

use std::time::Duration;

use os::clock;

/// A request for a service of this node.
#[derive(Clone, Copy, Debug)]
pub struct Inbound<'a> {
    /// Rank of the caller's node.
    pub rank: u32,
    /// Number of the method.
    pub method: u16,
    /// The body: a private copy, which no caller can change.
    pub body: &'a [u8],
    /// What else is known of it. Functions of the daemon's program learn it of callers of their own node
    /// that have a trace; providers of every caller.
    pub context: Option<Context>,
}

/// The deadline, user, process and trace of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The caller's deadline, in nanoseconds of `CLOCK_MONOTONIC` of this node.
    pub deadline_ns: u64,
    /// User of the caller, as the kernel of its node knows it. Known on the own node, and of callers of
    /// other nodes that have a trace.
    pub uid: Option<u32>,
    /// Process of the caller on its node; as far as the user.
    pub pid: Option<u32>,
    /// Number of the caller's trace; 0: it has none.
    pub trace: u64,
}

impl Context {
    /// Time until the caller gives up.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        Duration::from_nanos(self.deadline_ns.saturating_sub(clock::now_ns()))
    }
}
