//! eRPC: calls over datagrams, driven by the client, in packets that are answered one by one.
//!
//! ```text
//!  client                         server
//!    REQ 0 … REQ R-1   ─────────▶   CR 0 … CR R-2, then the handler
//!    RESP, packet 0    ◀─────────   answers REQ R-1
//!    RFR R … RFR R+S-2 ─────────▶   RESP, packets 1 … S-1
//! ```
//!
//! Wire-compatible with the original (Kalia, Kaminsky, Andersen: *Datacenter RPCs can be General and Fast*,
//! NSDI 2019). [`Client`] and [`Server`] are the two ends of a session. They name spans of messages; the
//! driver owns the bytes, the datagrams and the clock. Rules with numbers are in `docs/protocol/erpc.md`.

pub mod client;
pub mod congestion;
mod geometry;
pub mod management;
mod packet;
pub mod server;

pub use client::Client;
pub use geometry::{
    CREDITS, Geometry, HEADER_BYTES, Link, MSG_BYTES_MAX, Numbering, PKT_NUM_MAX, Span, WINDOW,
};
pub use packet::{
    HEADER_BYTES_MAX, Header, PacketError, PacketKind, REQ_NUM_MAX, REQ_TYPE_INVALID,
};
pub use server::Server;

/// Why a packet changed nothing. On a network that loses, repeats and reorders packets all of these
/// happen between correct peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// It belongs to a call that has ended.
    Late,
    /// It is not the next packet of its call.
    OutOfOrder,
    /// No correct peer sends it to this side, at this number or of this length.
    Unexpected,
    /// It has fewer bytes than its place in the message needs.
    Truncated,
}
