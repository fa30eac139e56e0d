//! Unmodified verbs programs on the software NIC.
//!
//! The system's own libibverbs and libmlx5 find a device `mlx5_0` in a sysfs tree that [`launch`] makes, open it,
//! and write to it what they write to the kernel. Crate `preload`, which the loader puts before libc, hands these
//! calls to [`process`]; here they become objects of a port of the software NIC, whose rings are where libmlx5 has
//! put them.
//!
//! ```text
//!  program ─ libibverbs ─ libmlx5 ─ write(fd, command) ─▶ commands ─▶ Device::lend_* (softnic)
//!                            │ WQEs, doorbell records              Engine: doorbells, packets, answers
//!                            ▼                                          │
//!                      memory of the program ◀──── softnic's engine ────┘══ unix sockets ══ other processes
//! ```
//!
//! Each process has a port of its own, with a LID of its own, and touches only its own memory. What it sends to
//! other processes are the packets of [`softnic::VirtualPort`], on unix sockets with abstract names: a process
//! that is killed closes them, and its peers' queue pairs fail.

mod abi;
mod clock;
mod clock_page;
mod cm;
mod commands;
mod descriptors;
mod engine;
mod fabric;
pub mod launch;
pub mod matrix;
mod notice;
mod per_process;
mod polls;
pub mod process;
pub mod sysfs;

#[doc(hidden)]
pub use cm::check_message;
pub use commands::Refusal;
