//! The side that calls.
//!
//! ```text
//!  blocking  pipelined                     what programs use
//!      └─────────┘
//!  session ▶ connection                    an operating system: a socket, a pidfd, epoll, the clock
//!      ▼
//!  core ▶ calls                            no operating system: memory and time are given to it
//! ```

pub(crate) mod blocking;
pub(crate) mod calls;
pub(crate) mod connection;
pub(crate) mod core;
pub(crate) mod pipelined;
pub(crate) mod session;
