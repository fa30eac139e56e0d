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
