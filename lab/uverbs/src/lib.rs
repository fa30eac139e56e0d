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
//!
//! # How it works
//!
//! - **Control path.** The library's `write` takes the commands that libibverbs writes to its kernel
//!   (`commands`). They say where libmlx5 has put rings and doorbell records; `Device::lend_*` makes objects of
//!   the software NIC of them. Each `ioctl` is a method that is absent (EPROTONOSUPPORT), so that libibverbs
//!   writes a command, or skips.
//! - **Data path.** WQEs and completions are where libmlx5 wrote them, or looks for them. The engine looks at
//!   doorbell records: on the thread that calls `ibv_post_send` and `ibv_poll_cq`, whose entries in the context
//!   are hooked, and else on a thread of its own, which sleeps between looks (20 µs after work, 0.5 ms later; 5
//!   µs while the program polls and the thread has worked lately). Programs that write doorbells themselves, as
//!   UCX's `*_mlx5` transports do, have that thread alone.
//! - **Between processes.** Each process is a port with a LID of its own. Packets and answers are frames on
//!   unix sockets with abstract names; `COPYRPC_UVERBS_FABRIC` (or `--fabric`) keeps groups of programs apart.
//!   A process touches only its own memory, so any memory can be registered.
//! - **Connections.** `/dev/infiniband/rdma_cm` is a channel of events, and `cm` runs the commands that
//!   librdmacm writes to it. A connection is a unix socket with an abstract name, on a thread of its own.
//! - **Ends.** A process that ends in good order informs no peer, as on a network: later requests to it fail
//!   with *transport retry exceeded*. A killed one closes its sockets: connected queue pairs fail with the
//!   same, and flush. rdma_cm reports both (`DISCONNECTED`), after the NIC has completed the peer's earlier
//!   messages, and, if the program polls, after 16 empty polls or 100 ms: on a fabric messages of rdma_cm pass
//!   both kernels and come long after the last completion, and a program that destroys its queue pair at once
//!   would lose it.
//! - **Events.** A completion raises one event, also if the program asks for the next event before it polls.
//!   Which queue is armed is read from its record, which is marked before the program knows the queue.
//! - **Memory that is freed while it is registered.** The engine asks the kernel for the pages before it copies
//!   (`madvise(2)`, `MADV_POPULATE_READ` and `_WRITE`): a request for memory that is not there, or that may not
//!   be written any more, fails with a protection error. Memory that another thread unmaps between question and
//!   copy is not caught. Kernels before 5.14 do not answer.
//! - **fork.** A child has a port of its own once it opens the device. Handles of its parent are of no use to
//!   it: commands on them fail, and the child's copies of the sockets are closed, so that the port ends with
//!   the parent. So it is with a copy of a device's descriptor.
//! - **SIGKILL** of `copyrpc-lab uverbs run` ends the program that it has started.

mod abi;
mod clock;
mod clock_page;
mod cm;
mod commands;
pub mod condition;
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
