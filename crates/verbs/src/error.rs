//! One error per operation.

use ids::{Cqn, Gid, Lid, Qpn};

use crate::{QpState, Transport};

/// Why an object could not be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A size is zero, too large, or inconsistent.
    #[error("{what} of {asked} is not possible: {limit}")]
    Size {
        /// The name of the refused size.
        what: &'static str,
        /// The size asked for.
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
        /// The kind of object that was being made.
        object: &'static str,
        /// The cause and its remedy.
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
    /// The NIC registers no memory that other processes made, and never will.
    #[error("this NIC registers no memory of other processes")]
    Foreign,
    /// Memory that another process made is not as it must be. The same request fails again.
    #[error("memory of another process is refused: {cause}")]
    Unfit {
        /// The problem, and the remedy.
        cause: String,
    },
    /// The operating system refused.
    #[error("cannot allocate or map {len_bytes} B: {cause}")]
    System {
        /// Size of the region.
        len_bytes: u64,
        /// The cause and its remedy.
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
        /// Name of the attribute.
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
        /// The cause.
        cause: String,
    },
}

/// Why a send request was not queued. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostSendError {
    /// Back-pressure: retire completions and post again.
    #[error("send queue full: all {requests} requests are outstanding; retire completions first")]
    QueueFull {
        /// Requests of the queue.
        requests: u32,
    },
    /// The queue pair is not in a state that sends.
    #[error("queue pair is in state {0:?}; sends need RTS")]
    State(QpState),
    /// More gather entries than the queue was created for.
    #[error("{asked} gather entries, at most {max} are possible")]
    TooManySges {
        /// Entries of the request that have bytes.
        asked: usize,
        /// Entries possible.
        max: u8,
    },
    /// More inline bytes than the queue was created for.
    #[error("{asked_bytes} B of inline payload, at most {max_bytes} B are possible")]
    InlineTooLong {
        /// Bytes of the request.
        asked_bytes: usize,
        /// Bytes possible.
        max_bytes: u16,
    },
    /// The request does not fit the transport.
    #[error("a {transport:?} queue pair {rule}")]
    Transport {
        /// Service type.
        transport: Transport,
        /// The rule that is broken.
        rule: &'static str,
    },
    /// The port knows no way to this address.
    #[error("no next hop to {0}: there is no route, or no host answers")]
    Unreachable(Gid),
    /// An atomic's result buffer is not 8 bytes.
    #[error("an atomic returns 8 bytes, its buffer has {0}")]
    AtomicLength(u32),
}

/// Why a receive request was not queued. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostRecvError {
    /// Back-pressure: retire completions and post again.
    #[error(
        "receive queue full: all {requests} requests are outstanding; retire completions first"
    )]
    QueueFull {
        /// Requests of the queue.
        requests: u32,
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
    /// The completion queue was created without a channel.
    #[error("completion queue has no channel: pass one to `create_cq`")]
    NoChannel,
}

/// An event that belongs to no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion found no free entry; the CQ reports nothing any more.
    CqOverrun(Cqn),
    /// The queue pair went to ERR by itself.
    QpFatal(Qpn),
    /// The queue pair is in ERR and will take no more WQE from its SRQ.
    LastWqeReached(Qpn),
    /// The process or node behind a port is gone. Only a NIC with
    /// [`Capabilities::PEER_GONE_EVENT`](crate::Capabilities::PEER_GONE_EVENT) says so.
    PeerGone(Lid),
    /// The port carries traffic again.
    PortUp,
    /// The port carries no traffic. Requests wait, and fail when their retries are used up.
    PortDown,
    /// The port's LID or GIDs changed: [`Nic::address`](crate::Nic::address) has the present ones, which peers
    /// have to learn.
    AddressChanged,
    /// The device failed: no object of it is of any more use.
    DeviceFatal,
    /// This process, or the one behind another port, was refused memory without which the two do not reach each other.
    NoMemory(Shortage),
}

/// Memory that was refused, and what needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no memory for {what} of port {peer}: {len_bytes} B were refused; raise the limit of address space \
     (`ulimit -v`; systemd: LimitAS) or of memory"
)]
pub struct Shortage {
    /// The resource.
    pub what: &'static str,
    /// Its size.
    pub len_bytes: u64,
    /// The port at the other end.
    pub peer: Lid,
}
