//! Runs the copyrpc core on any NIC.
//!
//! ```text
//!  program        call, reply                          Handler::{request, ended}   
//!                    │                                        ▲
//!  Worker         Connection (proto) ── batch ──┐      Connection (proto)
//!                                               │             ▲ copied once
//!  verbs::Nic     send queue: WRITE_IMM ────────┴──▶ ring, one completion per batch
//! ```
//!
//! A [`Worker`] is what one thread uses: it owns queue pairs, rings and connections, and does
//! everything inside [`Worker::poll`]. Two workers become peers by handing each other an
//! [`Invitation`], by any means.
//!
//! Guarantees of a call: it ends exactly once, with a response or a [`Status`], at the latest at its
//! deadline plus 250 µs plus the time between polls. A request is executed at most once. A callback
//! that panics ends its poll, and costs nothing but its own message.

#![forbid(unsafe_code)]

mod body;
mod config;
mod contact;
mod early;
mod entropy;
mod error;
pub mod futures;
mod handler;
mod large;
mod mirrors;
mod partial_calls;
mod peer;
mod piece;
mod pool;
mod queue;
mod receives;
mod region;
mod token;
mod worker;

pub use config::{Config, ConfigError, TransportKind};
pub use contact::{ContactError, Invitation};
pub use entropy::Entropy;
pub use error::{
    CallError, CloseReason, ConnectError, NicFailure, OpenError, ReplyError, TransferError,
};
pub use handler::{Body, BodyForm, CallEnd, Delivery, Fetch, Handler, Request};
pub use partial_calls::PartialCall;
pub use peer::PeerId;
pub use piece::{BodyPiece, LandedBody};
pub use pool::{Account, LargeMemory};
pub use proto::{
    Status,
    copyrpc::{Busy, CallId, Counters, FlushPolicy, RequestId, Violation},
};
pub use region::{LocalRegion, Range, RemoteRegion};
pub use token::Token;
pub use worker::{BodyStats, Call, Stats, Worker};
