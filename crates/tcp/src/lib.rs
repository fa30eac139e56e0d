//! Ports of the software NIC that reach ports on other hosts over TCP.
//!
//! [`open()`] gives a [`softnic::Nic`]: the `mlx5` driver and the engine of the software NIC, unchanged.
//! Requests of its queue pairs leave as frames on one TCP stream per pair of ports; the engine of the other port runs
//! and answers them. It needs no RDMA, no privilege and no kernel module.
//!
//! ```text
//!  program ── WQE, doorbell ─▶ engine ── Packet ─▶ Outbox ══ frames, TCP ══▶ Assembler ── Packet ─▶ engine
//!                                ▲                                                              respond
//!                              settle ◀── ReplyPacket ── Assembler ◀══ frames ══ Outbox ◀── ReplyPacket ─┘
//! ```
//!
//! Nothing here has a thread: work is done when the program rings a doorbell, polls, or waits on a channel.
//! A program that sleeps wakes by the streams, whose readiness makes its completion channels readable.
//!
//! A port is addressed by a GID that holds its IPv4 address, TCP port and a random number of its life
//! ([`PortName`]). Streams begin with a handshake in which both ports prove that they know the secret
//! ([`handshake`]). After it bytes are neither encrypted nor signed, as on an RDMA fabric.
//!
//! # Streams
//!
//! - **One stream per pair of ports.** Either side dials. If both do at once, the stream of the port with the lower
//!   name counts; a port that has answered a hello dials no more. A hello counts the streams between the two that
//!   its sender has lost, so a late one never replaces a good one.
//! - **Frames.** A message is a packet or an answer of the engine, its payload cut into pieces of 64 KiB. Pieces of
//!   one queue pair are in order; queue pairs take turns by pieces, so that small messages pass between the pieces
//!   of a large one. Payloads above 2 KiB are written from the packet that owns them (`writev`), shorter ones are
//!   copied behind their header.
//! - **Acknowledgements.** Each request is answered, at least by "dropped" where a real responder would be silent;
//!   so a requester resends only after "dropped" and RNR. Of SENDs and WRITEs of one queue pair that arrive
//!   together the last one is acknowledged. An acknowledgement waits for the next write, or the next poll that
//!   finds nothing to read.
//! - **Flow control.** At most 4 MiB of requests that a port has not run are under way to it, or one longer
//!   message. A queue pair that has to wait keeps its requests in its send queue. READs wait at the responder while
//!   8 MiB of answers wait for the socket.
//! - **No thread.** A doorbell writes, an empty poll reads and writes, and the streams wake a program that sleeps
//!   on a completion channel: their readiness makes the channel's descriptor readable too. A program that never
//!   polls acknowledges nothing.
#![forbid(unsafe_code)]

mod aliases;
mod config;
#[doc(hidden)]
pub mod frame;
pub mod handshake;
mod link;
mod name;
mod network;
mod opening;
#[doc(hidden)]
pub mod outbox;
mod port;
mod secret;
mod shared;
mod stream;
mod window;

pub use self::{
    config::{Config, KNOBS},
    name::PortName,
    network::Counts,
    opening::{Handle, OpenError, open, open_with_handle},
    secret::{Secret, SecretError},
};
