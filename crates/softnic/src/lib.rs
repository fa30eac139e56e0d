//! A software ConnectX: the real driver's work queues, executed in shared memory.
//!
//! [`open()`] gives a [`Nic`]: the `mlx5` driver, unchanged, on a device made of memory. It needs no
//! hardware, no privilege and no kernel module; every process of one user on one machine that uses
//! the same fabric name is on the same network.
//!
//! ```text
//!  process A                                   process B
//!   mlx5 driver ── WQE, doorbell record         mlx5 driver ◀── CQE
//!        │ doorbell = function call                   ▲
//!   engine (requester) ─── Request ──▶ (responder, on A's thread) ── bytes and CQE into
//!                                                       B's mapped segments and card
//! ```
//!
//! The *inline* drive does all work in the caller's doorbell; the *thread* drive on one NIC thread
//! per port. Module `nic::engine` says where other drives fit. A peer that is killed leaves its
//! name in whatever it held, and module `nic::reap` finishes it.
//!
//! It finds bugs; it is no security boundary: peers are processes of the same user, and each maps
//! the memory that the other registers.

pub mod shared;

#[cfg(not(loom))]
mod nic;
#[cfg(not(loom))]
pub use nic::*;
