//! Runs the eRPC core on any NIC.
//!
//! ```text
//!  program       call, reply                         Handler::{request, response}
//!                   │                                        ▲
//!  Endpoint      Client (proto) ── one packet ──┐      Server (proto)
//!                                               │            ▲ copied once
//!  verbs::Nic    UD send queue: SEND ───────────┴──▶ receive of one packet
//!  UDP socket    management packets: connect, ping, disconnect
//! ```
//!
//! An [`Endpoint`] is what one thread uses: one UD queue pair serves all of its sessions. It does everything
//! inside [`Endpoint::poll`]. A session is made by [`Endpoint::connect`], over management packets; it survives
//! lost packets, notices a dead peer, and connects again.
//!
//! A call ends exactly once, with a response or a [`Status`], at the latest at its deadline
//! plus 500 µs plus the time between polls. A request is executed at most once per session.

mod config;
mod datagrams;
mod endpoint;
mod error;
mod handler;
mod session;
mod socket;

pub use config::{Config, ConfigError, Congestion, ConnectOptions};
pub use endpoint::{Call, Endpoint, Stats};
pub use error::{CallError, CloseReason, ConnectError, OpenError, ReplyError};
pub use handler::{Handler, Request, Token};
pub use proto::Status;
pub use session::{SessionId, SessionState};
pub use socket::ManagementPort;
