//! What a NIC reports when a request is done.

use wire::{
    cqe::Syndrome,
    ids::{Lid, Qpn},
};

/// One completed work request. Consumed exactly once: pass it to
/// [`QueuePair::retire`](crate::QueuePair::retire) or
/// [`SharedReceiveQueue::retire`](crate::SharedReceiveQueue::retire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an unretired completion leaks queue space"]
pub struct Completion {
    /// The local queue pair.
    pub qpn: Qpn,
    /// What `post_send` or `post_recv` returned for the request. A send completion also completes
    /// every earlier request of its queue.
    pub wqe: u16,
    /// What was done, or tried.
    pub kind: CompletionKind,
    /// `None` if it worked. Otherwise only `qpn`, `wqe` and `kind.is_receive()` mean anything.
    pub failure: Option<Failure>,
    /// Payload bytes received, read, or (atomics) returned. For UD this excludes the 40-byte GRH
    /// area at the start of the buffer.
    pub len_bytes: u32,
    /// Immediate data, in host order.
    pub imm: Option<u32>,
    /// Who sent it (UD and DC receives).
    pub source: Option<Source>,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// The payload is in the completion queue, not in the buffers: see
    /// [`CompletionQueue::inline_data`](crate::CompletionQueue::inline_data).
    pub in_cqe: bool,
}

/// What a completed request did.
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

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{syndrome} (vendor syndrome {vendor:#04x})")]
pub struct Failure {
    /// The verbs-level reason.
    pub syndrome: Syndrome,
    /// The device's own detail.
    pub vendor: u8,
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
