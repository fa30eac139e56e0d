//! Request and response between processes over sealed shared memory, crash-safe.
//!
//! ```text
//!                    ┌─ up half ────── requests  ──▶ ┐
//!   client process ──┤                               ├── server process
//!                    └─ down half ◀── responses ─────┘    (sealed: only the server ever writes it)
//!            Unix socket: handshake, wakeups for sleepers, and notice of death
//! ```
//!
//! A [`Server`] makes all memory and sends each client its own two memfds. Clients share one word per 64
//! clients with each other, in which each has a bit. A client makes one call at a time
//! ([`BlockingClient`]), or many at a time with a closure ([`PipelinedClient`]). A server answers a [`Request`]
//! at once or later, by its [`RequestId`]. [`sans_os`] has both sides without an operating system, for simulators.
//!
//! # What can be relied on
//!
//! - Every call ends: with a response, or with a [`CallError`], at the latest at its deadline (5 s
//!   unless said otherwise). A deadline counts from the first look at the clock after the call, at
//!   most 64 polls later.
//! - The kernel tells of death, by socket and by pidfd: at once to a side that sleeps, within a
//!   millisecond to one that polls. No flag must be cleared. Nothing is left behind but the socket's
//!   file, which the next server replaces.
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
//! itself one `epoll_wait(2)` and one `recvmsg(2)`. Wakeups are datagrams, not futexes: one wait
//! covers the wakeup and the other side's death, and `MSG_DONTWAIT` cannot be undone by a client,
//! as `O_NONBLOCK` of a shared eventfd could. An idle server looks around ten times a second.
//!
//! `copyrpc-lab bench ipc` measures it, between samples of what bare cache lines do; `docs/ipc.md` has
//! numbers, what was tried, and the design in depth.
//!
//! # Architecture invariant
//!
//! No geometry, index or count is ever read from shared memory. The server waits for no client:
//! every system call that touches a client's socket is non-blocking, and a response has a slot
//! reserved with the request (see `ring`), so both directions cannot fill up and deadlock.

#[doc(hidden)]
pub mod ending;
#[doc(hidden)]
pub mod header;
#[doc(hidden)]
pub mod ring;
#[doc(hidden)]
pub mod wakeup;

mod pause;

#[cfg(not(loom))]
mod endpoint;
#[cfg(not(loom))]
pub use ::memory::{Filler, LentBytes, Overfull};
#[cfg(not(loom))]
pub use endpoint::*;
#[cfg(not(loom))]
pub use ring::Filled;

#[cfg(all(test, not(any(loom, miri))))]
mod tests;

#[cfg(all(test, not(loom)))]
mod model;
