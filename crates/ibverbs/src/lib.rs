//! Any RDMA NIC that the system's libibverbs drives, as a [`verbs::Nic`].
//!
//! The library is opened at run time ([`open`]), so building needs neither it nor its headers, and a machine
//! without it is told what to install. The part of its ABI that is used stands in `abi`, and tests compare it
//! with what a C compiler makes of the headers.
//!
//! ```text
//!  Qp ── post ─▶ requests with copied inline bytes ── ring ─▶ ibv_post_send, one call for all of them
//!  Cq ◀─ poll ── stash ◀── 16 at once ── ibv_poll_cq
//!  Channel ── epoll of { completion channel, eventfd: what is in the stash when a queue is armed }
//! ```
//!
//! # What differs from the software NIC
//!
//! - Services are RC and UD. DC needs a ConnectX, and its formats.
//! - A NOP is a WRITE of zero bytes.
//! - A queue pair that is reset or dropped takes its completions along: what the device has completed is
//!   gathered first, so that buffers of a shared receive queue come back.
//! - Channels may become readable although no queue has fired; [`verbs::Channel::wait`] tells.
//!
//! Sources: `ibv_post_send(3)`, `ibv_modify_qp(3)`, `ibv_get_cq_event(3)`; rdma-core `libibverbs/verbs.h`.

mod abi;
mod ah;
pub mod any;
mod api;
mod channel;
mod context;
mod cq;
mod devices;
mod error;
mod forks;
mod gid;
mod huge;
pub mod mlx5dv;
mod modify;
mod mr;
pub mod nearest;
mod nic;
mod options;
mod posts;
mod qp;
mod recv;
mod registrar;
mod send;
mod srq;
mod wc;

#[cfg(test)]
mod fake;

pub use ah::Pd;
pub use channel::Channel;
pub use cq::Cq;
pub use error::{OpenError, Outlook};
pub use mr::Mr;
pub use nic::{Nic, open};
pub use options::{Config, KNOBS, MLX5_KNOBS};
pub use qp::Qp;
pub use srq::Srq;
