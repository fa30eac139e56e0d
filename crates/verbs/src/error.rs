//! One error per operation.

use wire::ids::{Cqn, Lid, Qpn};

use crate::{QpState, Transport};

/// Why an object could not be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A size is zero, too large, or inconsistent.
    #[error("{what} of {asked} is not possible: {limit}")]
    Size {
        /// What was sized.
        what: &'static str,
        /// What was asked.
        asked: u64,
        /// The rule that forbids it.
        limit: &'static str,
    },
    /// Completions of all attached queues might not fit: the CQ would overrun.
    #[error(
        "completion queue {cqn} has {entries} entries, but {needed} completions can be outstanding; \
         create it larger or set `allow_overcommit`"
    )]
    CqTooSmall {
        /// The queue.
        cqn: Cqn,
        /// Its entries.
        entries: u32,
        /// Completions that attached queues can produce before any is polled.
        needed: u32,
    },
    /// This transport cannot be built like that.
    #[error("a {transport:?} queue pair {rule}")]
    Transport {
        /// Service type.
        transport: Transport,
        /// The rule that is broken.
        rule: &'static str,
    },
    /// The device has no room for another object.
    #[error("the device has no room for another {object}: {limit} exist; destroy some first")]
    Exhausted {
        /// Kind of object.
        object: &'static str,
        /// Limit of the device.
        limit: u32,
    },
    /// The operating system or the driver refused.
    #[error("{object}: {cause}")]
    System {
        /// What was being made.
        object: &'static str,
        /// What went wrong and what helps.
        cause: String,
    },
}

/// Why memory could not be registered or deregistered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Remote write or atomic access without local write access.
    #[error("access {0:?} is inconsistent: remote write and atomic access need LOCAL_WRITE")]
    Access(crate::Access),
    /// Zero bytes, or more than the device can register.
    #[error("cannot register {len_bytes} B: 1 to {max_bytes} B are possible")]
    Length {
        /// Asked for.
        len_bytes: u64,
        /// Limit of the device.
        max_bytes: u64,
    },
    /// No key is free.
    #[error("all {limit} memory keys are in use; deregister some region first")]
    NoKey {
        /// Limit of the device.
        limit: u32,
    },
    /// A peer was stopped in the middle of an access: the memory stays mapped and the key invalid.
    #[error(
        "peer {peer} is stopped inside an access to this region; its memory is kept until that peer \
         continues or dies"
    )]
    Busy {
        /// The peer's port.
        peer: Lid,
    },
    /// The operating system refused.
    #[error("cannot allocate or map {len_bytes} B: {cause}")]
    System {
        /// Size of the region.
        len_bytes: u64,
        /// What went wrong and what helps.
        cause: String,
    },
}

/// Why a queue pair did not change state. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// There is no such arrow in the state machine.
    #[error("a {transport:?} queue pair cannot go from {from:?} to {to:?}")]
    WrongTransition {
        /// Service type.
        transport: Transport,
        /// Present state.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// RC needs a peer; other transports have none.
    #[error("a {transport:?} queue pair {rule}")]
    Peer {
        /// Service type.
        transport: Transport,
        /// The rule that is broken.
        rule: &'static str,
    },
    /// A number that the queue pair's context has no room for.
    #[error("{what} is {value}, but at most {max}")]
    Attribute {
        /// Which.
        what: &'static str,
        /// The number.
        value: u8,
        /// The largest that there is.
        max: u8,
    },
    /// The driver refused.
    #[error("device refused the transition to {to:?}: {cause}")]
    Device {
        /// State asked for.
        to: QpState,
        /// What went wrong.
        cause: String,
    },
}

/// Why a send request was not queued. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostSendError {
    /// Back-pressure: retire completions and post again.
    #[error("send queue full: {needed} WQE blocks needed, {free} free; retire completions first")]
    QueueFull {
        /// Blocks this request takes.
        needed: u16,
        /// Blocks free now.
        free: u16,
    },
    /// The queue pair is not in a state that sends.
    #[error("queue pair is in state {0:?}; sends need RTS")]
    State(QpState),
    /// More gather entries, or inline bytes, than the queue was created for.
    #[error("request takes {asked} octowords, a WQE of this queue has at most {max}")]
    TooLarge {
        /// 16-byte units needed.
        asked: u16,
        /// 16-byte units possible.
        max: u16,
    },
    /// The request does not fit the transport.
    #[error("a {transport:?} queue pair {rule}")]
    Transport {
        /// Service type.
        transport: Transport,
        /// The rule that is broken.
        rule: &'static str,
    },
    /// An atomic's result buffer is not 8 bytes.
    #[error("an atomic returns 8 bytes, its buffer has {0}")]
    AtomicLength(u32),
}

/// Why a receive request was not queued. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostRecvError {
    /// Back-pressure: retire completions and post again.
    #[error("receive queue full: all {entries} entries are posted")]
    QueueFull {
        /// Entries of the queue.
        entries: u32,
    },
    /// More scatter entries than the queue was created for.
    #[error("{asked} scatter entries, at most {max} are possible")]
    TooManySges {
        /// Entries of the request.
        asked: usize,
        /// Entries possible.
        max: u8,
    },
    /// Receives of this queue pair come from its SRQ, or it never receives.
    #[error("this queue pair has no receive queue of its own")]
    NoQueue,
    /// The queue pair is in state RESET.
    #[error("queue pair is in state {0:?}; receives need INIT or later")]
    State(QpState),
}

/// Why a completion queue could not be armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArmError {
    /// It was created without a channel.
    #[error("completion queue has no channel: pass one to `create_cq`")]
    NoChannel,
}

/// What happened outside any request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion found no free entry; the CQ reports nothing any more.
    CqOverrun(Cqn),
    /// The queue pair went to ERR by itself.
    QpFatal(Qpn),
    /// The queue pair is in ERR and will take no more WQE from its SRQ.
    LastWqeReached(Qpn),
    /// The process or node behind a port is gone.
    PeerGone(Lid),
}
