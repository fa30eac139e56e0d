//! The side that answers.
//!
//! A server is one thread's work, done in *turns*: look at the rings of the clients that are polled,
//! answer, tell those who sleep. Clients that have been quiet are not polled; they leave a bit when
//! they have something, so a turn costs what the active clients cost.

mod config;
mod door;
mod entrance;
mod house;
mod key;
pub mod ledger;
mod lobby;
mod session;
mod stall;
mod stats;
mod token;
mod turn;

pub use config::{ConfigError, ServerConfig};
pub use door::BindError;
pub use stats::Stats;
pub use token::{ClientId, ReplyError, Request, Token};
pub use turn::Server;
