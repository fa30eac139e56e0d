//! The inputs and outputs of a connection.

use crate::{
    Status,
    copyrpc::{
        Busy, batch::Large, calls::CallId, flush::FlushPolicy, hello::Hello, served::RequestId,
    },
};

/// A side's own hello and its peer's, and what only it needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The hello that this side sent.
    pub own: Hello,
    /// The hello that the peer sent.
    pub peer: Hello,
    /// The policy that decides when batches are posted.
    pub flush: FlushPolicy,
    /// A completion is asked for at least every so many batches.
    pub signal_interval: u16,
    /// Longest time that credit which the peer may need waits for a batch to ride on (rule C3.8).
    pub credit_delay_ns: u64,
}

/// A call to be made.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The method number; only the peer interprets it.
    pub method: u16,
    /// Longest response that is to come through the ring: so much of it is set aside. A longer
    /// response comes by rendezvous.
    pub response_bytes: usize,
    /// The deadline of the call.
    pub deadline_ns: u64,
    /// Comes back with the response.
    pub cookie: u64,
}

/// Why a call was not made. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallRefused {
    /// Back-pressure.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// Too long for the ring: name registered memory instead.
    #[error("a body of {len_bytes} B exceeds {max_bytes} B")]
    TooLong {
        /// Of the body.
        len_bytes: usize,
        /// Possible.
        max_bytes: usize,
    },
    /// No response fits.
    #[error(
        "the ring's share for responses has room for {max_bytes} B, a response may have {asked_bytes} B"
    )]
    NoPlace {
        /// Asked for.
        asked_bytes: usize,
        /// Longest that there is room for.
        max_bytes: usize,
    },
}

/// A message of the open batch, admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// To be answered once.
    Request {
        /// Its name.
        id: RequestId,
        /// Number of the method.
        method: u16,
        /// Time that the caller will wait.
        timeout_us: u32,
        /// Its body.
        body: &'a [u8],
    },
    /// A call has ended.
    Response {
        /// The call.
        call: CallId,
        /// Of the call.
        cookie: u64,
        /// The status of the call.
        status: Status,
        /// The response.
        body: &'a [u8],
    },
    /// Anything that most batches have none of.
    Rare(Rare),
}

/// Events other than plain requests and responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rare {
    /// To be answered once, when its body was fetched.
    LargeRequest {
        /// Its name.
        id: RequestId,
        /// Number of the method.
        method: u16,
        /// Time that the caller will wait.
        timeout_us: u32,
        /// The location of the body at the peer.
        large: Large,
    },
    /// A call will end when this was fetched: see [`Connection::fetched`](super::Connection::fetched).
    LargeResponse {
        /// The call.
        call: CallId,
        /// The location of the response at the peer.
        large: Large,
    },
    /// The caller has fetched the large response: the memory is free.
    Released(RequestId),
    /// The caller does not wait any more; the request is still to be answered.
    Cancelled(RequestId),
    /// The answer to a call that has ended for its caller.
    Late(CallId),
    /// A cancellation that crossed the answer.
    Crossed,
}

/// Counters of one connection since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches posted.
    pub batches_out: u64,
    /// Messages in them.
    pub messages_out: u64,
    /// Times that credit was written beside the peer's ring.
    pub credits_out: u64,
    /// Batches handled.
    pub batches_in: u64,
    /// Messages in them.
    pub messages_in: u64,
    /// Responses that came after their callers had given up.
    pub late: u64,
    /// Calls that ended at their deadline.
    pub expired: u64,
    /// Calls refused because the peer's ring was full.
    pub ring_full: u64,
    /// Polls that left a batch unposted because the peer had to handle others first.
    pub window_full: u64,
    /// From the first message of a batch to its posting, summed over batches posted. Times are those of
    /// polls: a batch that is posted in the poll that gathered it counts as 0.
    pub held_ns: u64,
    /// Times that the peer said that it has consumed batches.
    pub trips: u64,
    /// From posting the last of these to then, summed.
    pub trips_ns: u64,
}

/// Resources in use, which tests compare with those of before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the peer's ring: written and not given back, or built.
    pub ring_lines: u64,
    /// Calls in flight, or given up and not answered.
    pub calls: usize,
    /// Of this side's ring, for responses.
    pub call_budget_lines: u32,
    /// Of the peer's ring, for responses.
    pub served_budget_lines: u32,
    /// Cancellations and releases that wait for a place.
    pub control: usize,
}
