//! Configurations of queues.

use ids::DcKey;

use crate::{Nic, Transport};

/// A completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqConfig {
    /// Rounded up to a power of two.
    pub entries: u32,
    /// Allow queues to attach whose completions might not all fit. The default refuses that at
    /// creation, because a CQ that overruns is dead.
    pub allow_overcommit: bool,
    /// The completion vector, modulo those of the device: the interrupt that wakes a sleeper. Queues of
    /// different threads are best on different ones, since a vector belongs to one core. NICs without
    /// interrupts take no notice.
    pub vector: u32,
}

impl CqConfig {
    /// `entries` entries, never overcommitted, on the first completion vector.
    #[must_use]
    pub const fn new(entries: u32) -> Self {
        Self { entries, allow_overcommit: false, vector: 0 }
    }
}

/// A shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqConfig {
    /// Buffers that can be posted at once.
    pub entries: u32,
    /// Scatter entries per buffer.
    pub sges_max: u8,
}

/// A send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendSize {
    /// Requests that can be outstanding, whatever their length. Zero: the queue does not exist.
    pub requests: u32,
    /// Gather entries per request.
    pub sges_max: u8,
    /// Bytes of [inline payload](crate::Payload::Inline) per request.
    pub inline_bytes_max: u16,
}

impl SendSize {
    /// No send queue.
    pub const NONE: Self = Self { requests: 0, sges_max: 0, inline_bytes_max: 0 };
}

/// A receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvSize {
    /// Requests that can be outstanding. Zero: the queue does not exist.
    pub requests: u32,
    /// Scatter entries per request.
    pub sges_max: u8,
}

impl RecvSize {
    /// No receive queue.
    pub const NONE: Self = Self { requests: 0, sges_max: 0 };
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
    /// The SRQ that receives are taken from instead of an own receive queue. A DCT needs one.
    pub srq: Option<&'a N::Srq>,
    /// Send queue.
    pub send: SendSize,
    /// Receive queue; ignored with an SRQ.
    pub recv: RecvSize,
    /// A DCT's access key; ignored otherwise.
    pub access_key: DcKey,
}

impl<'a, N: Nic> QpConfig<'a, N> {
    /// 64 sends and 64 receives, one scatter/gather entry each, 220 inline bytes, one CQ for both.
    pub fn new(transport: Transport, cq: &'a N::Cq) -> Self {
        Self {
            transport,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            send: SendSize { requests: 64, sges_max: 1, inline_bytes_max: 220 },
            recv: RecvSize { requests: 64, sges_max: 1 },
            access_key: DcKey::default(),
        }
    }
}
