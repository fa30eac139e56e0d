//! Every byte layout that an mlx5 NIC and its driver share, with a writer and a reader for each.
//!
//! ```text
//!  driver                                  NIC (or the software NIC)
//!    wqe::WqeWriter      ── send queue ──▶   wqe::SendWqe
//!    wqe::RecvWqeWriter  ── RQ, SRQ ─────▶   wqe::RecvWqe
//!    doorbell            ── records, UAR ▶   doorbell
//!    cqe::Cqe::parse     ◀───── CQ ───────   cqe::CqeView::encode
//! ```
//!
//! [`wqe::PlainSend`], [`wqe::plain_receive`] and [`cqe::PlainArrival`] read, by a few words, what
//! nearly all traffic is.
//!
//! Nothing here allocates, blocks or touches device memory: the caller moves the bytes. Readers
//! return typed errors and never panic, whatever the bytes; writers panic only on the documented
//! misuse by their caller.
//!
//! Source: rdma-core `providers/mlx5/mlx5dv.h` and, for meanings, the *Mellanox Adapters
//! Programmer's Reference Manual* (PRM).

#![no_std]
#![forbid(unsafe_code)]

pub mod cqe;
pub mod doorbell;
pub mod ids;
pub mod wqe;
