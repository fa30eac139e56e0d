//! copyrpc: many small calls in one RDMA WRITE WITH IMMEDIATE.
//!
//! ```text
//!   side A                                                side B
//!   calls ──▶ ┌ Outbox ┐   WRITE_IMM: one batch    ┌ Inbox ┐ ──▶ requests
//!   answers ─▶└────────┘ ─────────────────────────▶└───────┘ ──▶ responses
//!             ┌ Inbox  ┐                           ┌ Outbox┐ ◀── answers
//!        ◀──  └────────┘ ◀─────────────────────────└───────┘ ◀── calls
//! ```
//!
//! Each side owns a ring in registered memory that only the other one writes. A batch carries
//! requests and responses in the order in which they were made, and says how much of the reverse
//! ring is free again. [`Connection`] is one side; its driver moves the bytes.
//!
//! The rules, with the numbers that comments and tests cite, are in `docs/protocol/copyrpc.md`.

mod batch;
mod calls;
mod connection;
mod flush;
mod geometry;
mod hello;
mod imm;
mod inbox;
mod layout;
mod outbox;
mod served;
mod violation;

pub use batch::{Large, Message, Messages};
pub use calls::CallId;
pub use connection::{Call, CallRefused, Config, Connection, Counters, Incoming, Rare, Usage};
pub use flush::FlushPolicy;
pub use geometry::{Geometry, GeometryError};
pub use hello::{BATCHES_MAX, Features, HELLO_BYTES, Hello, HelloError, VERSION};
pub use imm::{Imm, SLOTS_MAX};
pub use inbox::{Arrival, Lease};
pub use layout::{BATCH_HEADER_BYTES, LAYOUT_HASH, LINE_BYTES, response_bytes, response_lines};
pub use outbox::{Departure, Emission};
pub use served::{ReplyError, RequestId};
pub use violation::Violation;

/// Bytes of the words, beside the ring, that credit is written to.
pub const CREDIT_BYTES: usize = 16;

/// Why a call must wait. Nothing has changed; poll and try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Busy {
    /// The peer has not given back enough of its ring.
    #[error("the peer's ring is full")]
    Ring,
    /// This side's ring has no place for another response.
    #[error("responses to calls in flight take all of the ring's share for them")]
    Responses,
    /// All calls are in flight.
    #[error("all calls are in flight")]
    Calls,
}
