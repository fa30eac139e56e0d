//! Completions: the NIC's reports on finished requests.

use ids::{Lid, Qpn};

/// One completed work request. Consumed exactly once: pass it to
/// [`QueuePair::retire`](crate::QueuePair::retire) or
/// [`SharedReceiveQueue::retire`](crate::SharedReceiveQueue::retire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an unretired completion leaks queue space"]
pub struct Completion {
    /// The local queue pair.
    pub qpn: Qpn,
    /// The value that `post_send` or `post_recv` returned for the request. A send completion also completes
    /// every earlier request of its queue.
    pub wqe: u16,
    /// The operation, finished or failed.
    pub kind: CompletionKind,
    /// `None` if it worked. Otherwise only `qpn`, `wqe` and `kind.is_receive()` mean anything.
    pub failure: Option<WcFailure>,
    /// Payload bytes received, read, or (atomics) returned. For UD this excludes the 40-byte GRH
    /// area at the start of the buffer.
    pub len_bytes: u32,
    /// Immediate data, in host order.
    pub imm: Option<u32>,
    /// The sender (UD and DC receives). A DC target never gives it up for payload that is in the completion.
    pub source: Option<Source>,
    /// The sender asked for a solicited event. Always clear without
    /// [`Capabilities::SOLICITED`](crate::Capabilities::SOLICITED).
    pub solicited: bool,
    /// The payload is in the completion queue, not in the buffers: see
    /// [`CompletionQueue::inline_data`](crate::CompletionQueue::inline_data).
    pub in_cqe: bool,
}

/// The operation of a completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionKind {
    /// SEND, with or without immediate data, left.
    Send,
    /// WRITE, with or without immediate data, was placed.
    Write,
    /// READ data has arrived.
    Read,
    /// Compare-and-swap; the old value has arrived.
    CompareSwap,
    /// Fetch-and-add; the old value has arrived.
    FetchAdd,
    /// A NOP was passed.
    Nop,
    /// A send-side request failed; which one, `wqe` tells.
    SendError,
    /// A SEND arrived.
    Recv,
    /// A WRITE with immediate data arrived: one receive consumed, its buffers untouched.
    RecvWriteImm,
    /// A receive failed or was flushed.
    RecvError,
}

impl CompletionKind {
    /// Whether this completes a receive request.
    #[must_use]
    pub fn is_receive(self) -> bool {
        matches!(self, Self::Recv | Self::RecvWriteImm | Self::RecvError)
    }
}

/// Why a request failed: `enum ibv_wc_status` without success.
///
/// Source: IBTA 11.6.2; `ibv_poll_cq(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum WcStatus {
    /// A message longer than the receive, or than the path's limit.
    #[error("local length error")]
    LocalLength,
    /// A request that makes no sense on its queue pair.
    #[error("local queue pair operation error")]
    LocalQpOperation,
    /// A local key, range or permission that does not fit the request.
    #[error("local protection error")]
    LocalProtection,
    /// The queue pair was already in the error state: the request was not tried.
    #[error("flushed: the queue pair is in the error state")]
    Flushed,
    /// Binding a memory window failed.
    #[error("memory window bind error")]
    MemoryWindowBind,
    /// The peer's answer was out of protocol.
    #[error("bad response from the peer")]
    BadResponse,
    /// An incoming operation touched local memory that it must not.
    #[error("local access error")]
    LocalAccess,
    /// The peer found the request malformed or not enabled.
    #[error("the peer rejected the request as invalid")]
    RemoteInvalidRequest,
    /// The peer's key, range or permission does not fit the request.
    #[error("the peer refused access to its memory")]
    RemoteAccess,
    /// The peer failed to carry the request out.
    #[error("the peer failed to carry the request out")]
    RemoteOperation,
    /// The peer did not acknowledge within the retry limit: it is gone, or the path is.
    #[error("no acknowledgement from the peer within the retry limit")]
    RetryExceeded,
    /// The peer posted no receive within the retry limit.
    #[error("the peer had no receive posted within the retry limit")]
    RnrRetryExceeded,
    /// The peer aborted the operation.
    #[error("the peer aborted the operation")]
    RemoteAborted,
    /// The device failed; the queue pair is of no more use.
    #[error("fatal error of the device")]
    Fatal,
    /// The peer did not answer in time (datagram services).
    #[error("no response from the peer in time")]
    ResponseTimeout,
    /// Anything else: [`WcFailure::vendor`] is all there is to know.
    #[error("error without a verbs code")]
    General,
}

/// Why a request failed, and the device's own detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} (vendor code {vendor:#04x})")]
pub struct WcFailure {
    /// The verbs-level reason.
    pub status: WcStatus,
    /// The device's own code; the device's manual describes it.
    pub vendor: u32,
}

/// Sender of a datagram or DC request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its queue pair.
    pub qpn: Qpn,
    /// Its port.
    pub lid: Lid,
    /// The buffer starts with a valid global route header.
    pub has_grh: bool,
}
