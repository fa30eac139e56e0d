//! The engine: what a ConnectX does with a WQE. Performs no I/O, never blocks, spawns or reads time.
//!
//! ```text
//!  send queue ──▶ Requester ── Request ──▶ Port::carry ──▶ responder::respond ──▶ peer's card
//!  (mlx5 bytes)   retries,                 (the drive)      checks, placement,     (memory, CQEs)
//!  send CQ   ◀── order, errors ◀── Reply ─────────────────  receives
//! ```
//!
//! WRITEs and SENDs of one piece on RC and DC take the short way of module `plain`: no copy of the WQE,
//! and `Port::carry_plain` instead of `Port::carry`.
//!
//! # Seams
//!
//! A *drive* decides when the engine runs, and how a [`Request`] reaches the other port:
//!
//! | drive | runs [`Requester::advance`] | `Port::carry` | time |
//! |---|---|---|---|
//! | inline (here) | in the doorbell, on the caller's thread | calls the responder on the peer's mapped card | monotonic clock |
//! | thread (here) | when it sees a doorbell record move | the same | monotonic clock |
//! | simulator (to come) | when the cost model says that the NIC gets to it | schedules the request; the responder runs on the peer's heap-backed card ([`Card::create`](crate::card::Card::create)) when it arrives | virtual |
//! | under libmlx5 (to come) | polls doorbell records of foreign queues | sends request and payload through a byte ring | monotonic clock |
//!
//! The last two answer later: they need one more [`Reply`], "not yet", handled like a deferred
//! request (`Requester::deferred`), which strict mode exercises already.

mod chunk;
mod issue;
mod packet;
mod plain;
mod requester;
mod responder;

pub(crate) use chunk::{Chunk, Order, copy};
pub(crate) use packet::{Extent, Key, Reply, Request, Verb};
pub(crate) use plain::{Carried, respond_to_plain};
pub(crate) use requester::{
    Activity, Completed, Port, Requester, Scratch, SendQueue, SendState, WQE_BYTES_MAX,
};
pub(crate) use responder::{Arrival, Memory, MemoryFault, respond};

#[cfg(test)]
mod requester_tests;
#[cfg(test)]
mod tests;
