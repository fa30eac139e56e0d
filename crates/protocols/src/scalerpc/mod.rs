//! Runs the ScaleRPC core on any NIC.
//!
//! ```text
//!  program       call                                  Handler::request, reply
//!                  │                                        ▲
//!  Client        own block ── WRITE_IMM ──▶ zone of the pool ┤        Server
//!                own block ◀─ READ ──────── zone of the pool ┘ copied once
//!                own block ◀─ WRITE_IMM ─── response
//! ```
//!
//! A [`Server`] and a [`Client`] are what one thread uses each; they do everything inside `poll`. They become
//! peers by handing each other an [`Invitation`], by any means.
//!
//! A call ends exactly once, with a response or a [`Status`], at the latest at its deadline
//! plus the time between polls. A request is executed at most once.

mod client;
mod config;
mod contact;
mod error;
mod link;
mod server;

pub use client::{Call, Client, ClientStats, Responses};
pub use config::{ClientConfig, ConfigError, Detection, ServerConfig};
pub use contact::{ContactError, Invitation};
pub use error::{CallError, CloseReason, ConnectError, OpenError, ReplyError};
pub use proto::{
    Status,
    scalerpc::{
        Exchange,
        server::{ClientId, Counters},
    },
};
pub use server::{Handler, Request, Server, Token};
