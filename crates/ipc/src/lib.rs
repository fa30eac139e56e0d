//! Request and response between processes over sealed shared memory, crash-safe.
//!
//! ```text
//!                    ┌─ up half ────── requests  ──▶ ┐
//!   client process ──┤                               ├── server process
//!                    └─ down half ◀── responses ─────┘    (sealed: only the server ever writes it)
//!            Unix socket: handshake, doorbells for sleepers, and notice of death
//! ```
//!
//! A [`Server`] makes all memory and sends each client its own two memfds; clients share with each
//! other nothing but one bit each. A client calls one at a time ([`SyncClient`]), many at a time
//! with a closure ([`AsyncClient`]) or as futures on any executor ([`FutureClient`]).
//!
//! # What can be relied on
//!
//! - Every call ends: with a response, or with a [`CallError`], at the latest at its deadline (5 s
//!   unless said otherwise). A deadline counts from the first look at the clock after the call, at
//!   most 64 polls later.
//! - The kernel tells of death, by socket and by pidfd: at once to those who sleep, within a
//!   millisecond to those who poll. No flag must be cleared and nothing is left behind but the
//!   socket's file, which the next server replaces.
//! - The server believes nothing that it reads: it copies once, checks the copy against private
//!   memory, and uses the copy. A client that breaks a rule is evicted, and can read why.
//! - A request is executed at most once. A call that ends without a response may have been executed.
//! - A handle in a forked child says [`CallError::ForkedHandle`] and touches nothing.
//!
//! # What a call costs
//!
//! As designed, for messages of up to 56 bytes while both sides poll:
//!
//! | per call | client | server |
//! |---|---|---|
//! | cache lines fetched from the other side | 1, the response | 1, the request |
//! | atomic read-modify-writes | 0 | 0 |
//! | full barriers | 1 per 8 polls with requests | 1 per 8 turns with responses |
//! | copies of the message | 2: request out, response in | 2: request in, response out |
//! | system calls, allocations | 0 | 0 |
//!
//! A line of message adds one transfer. A sleeping side costs the other one one `sendmsg(2)`, and
//! itself one `epoll_wait(2)` and one `recvmsg(2)`. Doorbells are datagrams, not futexes: one wait
//! covers the doorbell and the other side's death, and `MSG_DONTWAIT` cannot be undone by a client,
//! as `O_NONBLOCK` of a shared eventfd could. An idle server looks around ten times a second.
//!
//! `copyrpc bench ipc` measures it, between samples of what bare cache lines do; `docs/ipc.md` has
//! numbers, what was tried, and the design in depth.
//!
//! # Architecture invariant
//!
//! No geometry, index or count is ever read from shared memory. The server waits for no client:
//! every system call that touches a client's socket is non-blocking, and responses have a place
//! reserved with the request (see `ring`), so both directions cannot fill up and deadlock.

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
    pipe::{ClientConfig, Terms},
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
