//! ScaleRPC: calls by one-sided WRITEs into a pool that groups of clients use in turn.
//!
//! ```text
//!  client  IDLE ──announce──▶ WARMUP ──first response──▶ PROCESS ──event──▶ IDLE
//!                entry │                    ▲  block           │ ack
//!                      ▼                    │                  ▼
//!  server  Announced ─READ─▶ Warm ─slice─▶ Active ──slice ends──▶ Retiring ─▶ Idle
//! ```
//!
//! After Chen, Lu, Shu: *Scalable RDMA RPC on Reliable Connection with Efficient Resource Sharing*, `EuroSys`
//! 2019. Its open points are decided by the rules with numbers in `docs/protocol/scalerpc.md`. [`Client`]
//! and [`Server`] name slots, zones and generations; the driver owns the bytes, the queue pairs and the clock.

pub mod client;
mod message;
pub mod server;
mod step;

pub use client::Client;
pub use message::{
    Entry, GENERATION_MAX, HEADER_BYTES, Imm, Mapping, MessageError, SLOTS_MAX, Trailer,
};
pub use server::Server;
pub use step::{Exchange, follow_ns};

/// Why a message changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// It is of a call that was executed, answered or given up.
    Late,
    /// It is in a zone, or of an announcement, that is not its sender's any more.
    Generation,
    /// No correct peer sends it now.
    Unexpected,
}
