//! ConnectX driver: builds work queue entries and reads completions in the device's own format.
//!
//! [`Nic`] is a [`verbs::Nic`] over anything that reads and writes these bytes, a
//! [`device::Device`]: the adapter itself, or the software NIC. The device makes queues and changes
//! their state; from then on driver and device meet in memory alone.
//!
//! ```text
//!         ┌─ sq ─┐
//!  Qp ────┴─ rq ─┤── WQEs, doorbell records ──▶┌────────┐
//!  Srq ──────────┘                             │ device │
//!  Cq ◀──────────────────────── completions ───┤        │
//!  Qp, Cq ─────────────── doorbell registers ─▶└────────┘   device::DeviceQp, device::DeviceCq
//! ```
//!
//! # Order
//!
//! WQE stores, then the doorbell record (Release, [`memory::barrier::before_dbrec`]), then the
//! register ([`memory::barrier::before_doorbell`]). Completions the other way round: the last word
//! (Acquire, [`memory::barrier::after_ownership`]), then the rest, then the consumer index
//! (Release). Posting and polling allocate nothing, except that the first receive after a datagram
//! or DC queue was attached may grow a list.
//!
//! Source: rdma-core `providers/mlx5`.

mod address;
mod attached;
mod blueflame;
mod cq;
pub mod device;
mod dump;
mod entries;
mod nic;
mod operations;
mod options;
mod qp;
mod ring;
mod rq;
mod sq;
mod srq;

pub use blueflame::BlueFlame;
pub use cq::Cq;
pub use nic::Nic;
pub use operations::{DumpError, OperationDump, operations};
pub use options::{CqeSize, DoorbellMode, Options};
pub use qp::Qp;
pub use srq::Srq;
