//! What a queue is asked to be.

use wire::ids::DcKey;

use crate::{Nic, Transport};

/// Size of a completion queue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CqeSize {
    /// 64 bytes; payloads up to 32 bytes can be scattered to the entry.
    #[default]
    B64,
    /// 128 bytes; payloads up to 64 bytes can be scattered to the entry.
    B128,
}

impl CqeSize {
    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::B64 => 64,
            Self::B128 => 128,
        }
    }
}

/// A completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqConfig {
    /// Rounded up to a power of two.
    pub entries: u32,
    /// Size of an entry.
    pub cqe_size: CqeSize,
    /// Allow queues to attach whose completions might not all fit. The default refuses that at
    /// creation, because a CQ that overruns is dead.
    pub allow_overcommit: bool,
}

impl CqConfig {
    /// `entries` 64-byte entries, never overcommitted.
    #[must_use]
    pub const fn new(entries: u32) -> Self {
        Self { entries, cqe_size: CqeSize::B64, allow_overcommit: false }
    }
}

/// A shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqConfig {
    /// Buffers that can be posted at once; rounded up to a power of two.
    pub entries: u32,
    /// Scatter entries per buffer.
    pub sges_max: u8,
}

/// One direction of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSize {
    /// For sends in 64-byte WQE basic blocks, for receives in requests; rounded up to a power of
    /// two. Zero: the queue does not exist.
    pub entries: u32,
    /// Gather or scatter entries per request.
    pub sges_max: u8,
}

/// How a send queue is rung.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DoorbellMode {
    /// BlueFlame when a single small request is pending, else an 8-byte doorbell.
    #[default]
    Auto,
    /// Always the 8-byte doorbell.
    Plain,
}

/// A queue pair.
#[derive(Debug)]
pub struct QpConfig<'a, N: Nic> {
    /// Service type.
    pub transport: Transport,
    /// Completions of sends.
    pub send_cq: &'a N::Cq,
    /// Completions of receives. May be the same queue.
    pub recv_cq: &'a N::Cq,
    /// Where receives come from instead of an own receive queue. A DCT needs one.
    pub srq: Option<&'a N::Srq>,
    /// Send queue.
    pub send: QueueSize,
    /// Receive queue; ignored with an SRQ.
    pub recv: QueueSize,
    /// How the send queue is rung.
    pub doorbell: DoorbellMode,
    /// Let the NIC put small payloads into the completion instead of the buffers.
    pub scatter_to_cqe: bool,
    /// A DCT's access key; ignored otherwise.
    pub access_key: DcKey,
}

impl<'a, N: Nic> QpConfig<'a, N> {
    /// 64 WQE basic blocks and 64 receives, one scatter/gather entry each, one CQ for both.
    pub fn new(transport: Transport, cq: &'a N::Cq) -> Self {
        Self {
            transport,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            send: QueueSize { entries: 64, sges_max: 1 },
            recv: QueueSize { entries: 64, sges_max: 1 },
            doorbell: DoorbellMode::Auto,
            scatter_to_cqe: false,
            access_key: DcKey::default(),
        }
    }
}
