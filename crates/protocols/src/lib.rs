//! eRPC and ScaleRPC on any NIC ([`erpc`], [`scalerpc`]), and one interface to them and to the protocol of copyrpc.
//!
//! ```text
//!  Caller ── call ──▶ copyrpc: rings over RC or DC   ──▶ Server ── Service::request
//!         ◀─ answer ─ eRPC: datagrams                ◀── Replies::reply
//!                     ScaleRPC: pools over RC
//! ```
//!
//! A [`Service`] and a program of [`Answers`] are written once; [`Config::protocol`] says what carries their
//! calls. A request beyond a protocol's abilities is a typed error, [`Unsupported`]:
//!
//! | | copyrpc | eRPC | ScaleRPC |
//! |---|---|---|---|
//! | methods | 16 bits | 0 to 254 | 16 bits |
//! | statuses of answers | all | `Ok` | all |
//! | longest body | `large_bytes`, fetched by READ | 8 MB less headers | a block |
//! | calls in flight per connection | `calls_max` | 8, others wait | `slots` |

#![forbid(unsafe_code)]

pub mod erpc;
pub mod scalerpc;

mod bodies;
mod caller;
mod config;
mod counts;
mod error;
mod flush_names;
mod server;

pub use caller::{Answers, Call, Caller};
pub use config::{Config, Protocol, UnknownProtocol};
pub use error::{CallError, OpenError, ReplyError, Unsupported};
pub use flush_names::{FLUSH_FORMS, flush_policy};
pub use proto::Status;
pub use server::{Replies, Request, Server, Service, Token};
