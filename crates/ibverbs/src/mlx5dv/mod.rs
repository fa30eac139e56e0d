//! A ConnectX under the driver `mlx5`: libibverbs and libmlx5 make the queues, and say where they are.
//!
//! ```text
//!  mlx5::Nic ── create ─▶ Device ── mlx5dv_create_*, ibv_create_* ─▶ kernel
//!      │                    └──── mlx5dv_init_obj: rings, doorbell records, registers
//!      └── WQEs, doorbells ─────────────────────────────────────────▶ adapter
//! ```
//!
//! Devices, ports, GIDs, keys, memory, channels and events are those of the rest of this crate. libmlx5 is opened
//! at run time, as libibverbs is.
//!
//! # Who uses what
//!
//! - A queue that libmlx5 has described belongs to the driver: libmlx5 does not look at it any more. Its own
//!   clean-up of completion queues is turned off by `mlx5dv_init_obj`.
//! - Queue pairs share BlueFlame registers, so each register has a lock
//!   ([`BlueFlame::share`](mlx5::BlueFlame::share)).
//! - A queue pair keeps its completion queues and its shared receive queue, so the kernel never refuses to destroy
//!   one of those.
//!
//! Sources: `mlx5dv_init_obj(3)`, `mlx5dv_create_qp(3)`; rdma-core `providers/mlx5/verbs.c`, `mlx5.c`.

mod abi;
mod api;
mod cq;
mod device;
mod initiator;
mod qp;
mod registers;
mod rings;
mod shared;
mod srq;

pub use cq::Cq;
pub use device::{Device, open};
pub use initiator::{DcPeer, LibraryInitiator};
pub use qp::Qp;
pub use rings::{LibraryRings, LibrarySrqRing};
pub use srq::Srq;
