//! RPC for RDMA clusters: many processes, one daemon per node, few queue pairs.
//!
//! ```text
//!  process ─┐ shared memory                                     shared memory ┌─ process
//!  process ─┼────────────▶ daemon ═══ RDMA WRITE_WITH_IMM ═══▶ daemon ◀───────┼─ process
//!  process ─┘              of node A   many calls in each      of node B      └─ process
//! ```
//!
//! A process needs a [`Client`] for one call at a time, a [`Pipeline`] for many, and a [`Provider`] to
//! answer those of all nodes. They need the daemon of their node, which is the command `copyrpc daemon`
//! or runs inside a program, as here:
//!
//! ```
//! use std::{sync::atomic::{AtomicBool, Ordering}, thread};
//! use copyrpc::{Client, ClientConfig, HERE, Provider, Runtime, Status};
//! # use std::{fmt::Debug, time::{Duration, Instant}};
//! # fn when_ready<T, E: Debug>(mut attempt: impl FnMut() -> Result<T, E>) -> T {
//! #     let end = Instant::now() + Duration::from_secs(20);
//! #     loop {
//! #         match attempt() {
//! #             Err(error) if Instant::now() > end => panic!("{error:?}"),
//! #             Err(_) => thread::yield_now(),
//! #             Ok(it) => return it,
//! #         }
//! #     }
//! # }
//! # let folder = std::env::temp_dir().join(format!("copyrpc-doctest-{}", std::process::id()));
//! let job = copyrpc::JobId::new("greetings")?;
//! let runtime = Runtime::new(folder.clone(), job, "")?;
//! let socket = runtime.socket();
//! # #[cfg(all(feature = "daemon", feature = "nic"))]
//! let alone = copyrpc::daemon::alone(runtime);
//! let stop = AtomicBool::new(false);
//!
//! # #[cfg(all(feature = "daemon", feature = "nic"))]
//! thread::scope(|scope| {
//!     scope.spawn(|| {
//!         let nic = copyrpc::nic::open().expect("a NIC");
//!         copyrpc::daemon::serve(&alone, nic, Default::default(), &stop)
//!     });
//!     // Both find the daemon as soon as it listens; other processes would name its socket, too.
//!     let provider = when_ready(|| Provider::register(&socket, 17, ClientConfig::default()));
//!     scope.spawn(move || {
//!         provider.serve(|request, answer| {
//!             answer.extend_from_slice(b"hello, ");
//!             answer.extend_from_slice(request.body);
//!             Some(Status::Ok)
//!         })
//!     });
//!     let mut client = when_ready(|| Client::connect(&socket, ClientConfig::default()));
//!     let (rank, service, method) = (HERE, 17, 0);
//!     assert_eq!(client.call(rank, service, method, b"world"), Ok(&b"hello, world"[..]));
//!     stop.store(true, Ordering::Relaxed); // ends the daemon, and with it the provider
//! });
//! # std::fs::remove_dir_all(folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | part | feature | for whom |
//! |---|---|---|
//! | [`Client`], [`Pipeline`], [`Provider`] | always | processes of a node |
//! | [`ipc`] | always | calls between processes of one machine, without a daemon |
//! | [`daemon`] | `daemon` | programs that embed a daemon, and services without a hand-over |
//! | [`rpc`] | `rpc` | calls over a NIC of one's own, without a daemon |
//! | [`nic`] | `nic` | the software NIC: no hardware, no privilege |
//! | [`queues`] | `queues` | threads of one process |
//!
//! All are defaults. A program that only calls and serves says `default-features = false`.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(inline)]
pub use ipc;
pub use node::{
    JobId, JobIdError,
    client::{
        CallError, Client, ClientConfig, ConnectError, Inbound, Pipeline, ProvideError, Provider,
        Refused, Status, To, Wait,
    },
    runtime::{Runtime, RuntimeError},
    wire::HERE,
};

#[cfg(feature = "daemon")]
pub mod daemon;
#[cfg(feature = "nic")]
pub mod nic;
#[cfg(feature = "queues")]
#[doc(inline)]
pub use inproc as queues;
#[cfg(feature = "rpc")]
pub mod rpc;
