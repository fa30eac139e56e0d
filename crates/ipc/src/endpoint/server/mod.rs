//! The side that answers.
//!
//! A server is one thread's work, done in *turns*: look at the rings of the clients that are polled,
//! answer, wake those that sleep. Clients that have been quiet are not polled; they set a bit when
//! they have something, so a turn costs what the active clients cost.
//!
//! ```text
//!  run       acceptor ▶ listener, handoff     an operating system: sockets, pidfds, epoll, the clock
//!   │        sockets                          `run` drives the core, and does what it asks for
//!   ▼
//!  core      replies, request                 no operating system: memory and time are given to it
//!            session_table ▶ session ▶ call_table
//! ```

pub mod call_table;
pub(crate) mod core;
pub mod large;
pub(crate) mod session_table;

mod acceptor;
mod config;
mod handoff;
mod handshakes;
mod id;
mod introduced;
pub(crate) mod introduction;
mod listener;
mod poll_key;
mod replies;
mod request;
mod run;
mod session;
mod sockets;
mod stall;
mod stats;

pub use config::{ConfigError, ServerConfig};
pub use id::{ClientCensus, ClientId, ClientProcess, RequestId};
pub use introduction::{Introducer, Introduction};
pub use listener::BindError;
pub use replies::{Replies, ReplyError};
pub use request::{LentRequest, OpenRequest, ReplyToken, Request, TakenBytes, TakenRequest};
pub use run::Server;
pub use stats::{Rejection, Rejections, Stats};
