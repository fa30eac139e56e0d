//! Request and response between processes over sealed shared memory, crash-safe.

#[doc(hidden)]
pub mod bell;
#[doc(hidden)]
pub mod header;
#[doc(hidden)]
pub mod ring;

mod pause;

#[cfg(not(loom))]
mod client;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod half;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod handshake;
#[cfg(not(loom))]
mod poller;
#[cfg(not(loom))]
mod server;
#[cfg(not(loom))]
mod status;
#[cfg(not(loom))]
mod wait;

#[cfg(not(loom))]
pub use client::{
    core::CallId,
    future::{Call, FutureClient},
    link::ConnectError,
    pipe::ClientConfig,
    pipelined::{AsyncClient, Refused},
    sync::SyncClient,
};
#[cfg(not(loom))]
#[doc(hidden)]
pub use server::ledger;

#[cfg(not(loom))]
pub use handshake::{HandshakeError, RefuseReason};
#[cfg(not(loom))]
pub use server::{
    BindError, ClientId, ConfigError, ReplyError, Request, Server, ServerConfig, Stats, Token,
};
#[cfg(not(loom))]
pub use status::{CallError, EvictReason};
#[cfg(not(loom))]
pub use wait::Wait;

#[cfg(all(test, not(any(loom, miri))))]
mod tests;

#[cfg(all(test, not(loom)))]
mod model;
