//! The engine: what a ConnectX does with a WQE. Performs no I/O, never blocks, spawns or reads time.
//!
//! ```text
//!  send queue ──▶ Requester ── Request ──▶ Port::carry ──▶ responder::respond ──▶ peer's card
//!  (mlx5 bytes)   retries,                 (the drive)      checks, placement,     (memory, CQEs)
//!  send CQ   ◀── order, errors ◀── Reply ─────────────────  receives
//! ```
//!
//! WRITEs and SENDs of one piece on RC and DC, and SENDs on UD, take a short way: module `plain` makes the request without a
//! copy of the WQE, `Port::carry_plain` carries it, and module `arrive` does the responder's part.
//!
//! # Seams
//!
//! A *drive* decides when the engine runs, and how a [`Request`] reaches the other port:
//!
//! | drive | runs [`Requester::advance`] | a request leaves by | time |
//! |---|---|---|---|
//! | inline | in the doorbell, on the caller's thread | `Port::carry`: calls the responder on the peer's mapped card | monotonic clock |
//! | thread | when it sees a doorbell record move | the same | monotonic clock |
//! | virtual | when the owner of time calls [`VirtualPort::issue`](crate::VirtualPort::issue) | `Port::send`: a [`Packet`] that owns its bytes | a [`Timeline`](crate::Timeline) |
//!
//! Where a request leaves as a packet, its answer comes later: module `pending` keeps it outstanding, in order,
//! and `Requester::settle` takes the answer. Module `stream` is the other end. Queues of foreign programs, and
//! ports on other machines, need the same.

mod advance;
mod arrive;
mod atomic;
mod chunk;
mod global_route;
mod issue;
mod message;
mod packet;
mod pending;
mod plain;
mod port;
mod requester;
mod responder;
mod scratch;
mod stream;

pub(crate) use arrive::respond_to_plain;
pub(crate) use chunk::{Chunk, Order, copy, copy_out_of};
pub(crate) use message::Sequence;
pub use message::{DecodeError, Packet, ReplyPacket};
pub(crate) use packet::{Extent, Key, Reply, Request, Verb};
pub(crate) use port::{Carried, Completed, Port, SendQueue, WQE_BYTES_MAX};
pub(crate) use requester::{Activity, Requester, SendState};
pub(crate) use responder::{Answered, Arrival, Memory, MemoryFault, respond};
pub(crate) use scratch::Scratch;
pub(crate) use stream::{Arriving, Outcome, Stream, Streams};

#[cfg(test)]
pub(crate) use stream::KEEP_NS as STREAM_KEEP_NS;

#[cfg(test)]
mod requester_tests;
#[cfg(test)]
mod tests;
