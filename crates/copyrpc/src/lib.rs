//! RPC for RDMA clusters: many processes, one daemon per node, few queue pairs.
//!
//! ```text
//!  process ─┐ shared memory                                     shared memory ┌─ process
//!  process ─┼────────────▶ daemon ═══ RDMA WRITE_WITH_IMM ═══▶ daemon ◀───────┼─ process
//!  process ─┘              of node A   many calls in each      of node B      └─ process
//! ```
//!
//! A process calls with a [`Client`], one call at a time, or a [`Pipeline`], many at a time. A process that
//! offers a service has a [`Provider`]. Both connect to the daemon of their node: the command `copyrpc
//! daemon`, or a thread of some program, as here:
//!
//! ```
//! # #[cfg(all(feature = "daemon", feature = "nic"))] {
//! use copyrpc::{Client, ClientConfig, HERE, JobId, Provider, Runtime, Status, To};
//! use copyrpc::{daemon::{self, BackgroundDaemon}, nic::Selection};
//!
//! let folder = std::env::temp_dir().join(format!("greetings-{}", std::process::id()));
//! let runtime = Runtime::new(folder.clone(), JobId::new("greetings")?, "")?;
//! let socket = runtime.socket();
//! let nic = Selection::from_env();
//! let daemon = BackgroundDaemon::start(daemon::alone(runtime), nic, |_| Default::default())?;
//!
//! // A service, in this or another process of the node.
//! let provider = Provider::register(&socket, 17, ClientConfig::default())?;
//! let serving = std::thread::spawn(move || {
//!     provider.serve(|request, answer| {
//!         answer.extend_from_slice(b"hello, ");
//!         answer.extend_from_slice(request.body);
//!         Some(Status::Ok)
//!     })
//! });
//!
//! // A client, in a process of any node: a method of a service on a rank, and a body.
//! let mut client = Client::connect(&socket, ClientConfig::default())?;
//! assert_eq!(client.call(To::new(HERE, 17, 0), b"world"), Ok(&b"hello, world"[..]));
//!
//! daemon.stop()?; // and with it the provider's connection ends
//! assert!(serving.join().is_ok());
//! std::fs::remove_dir_all(folder)?;
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to begin
//!
//! | task | names |
//! |---|---|
//! | call, one at a time | [`Client`], [`ClientConfig`], [`To`], [`HERE`] |
//! | call, many at a time | [`Pipeline`], [`FutureClient`], `tokio` |
//! | call one of several ranks, or all | [`Spread`], [`Route`] |
//! | offer a service | [`Provider`], [`Offer`], [`Inbound`], [`Request`] |
//! | define a service as a trait | [`typed`] |
//! | find the daemon | [`Runtime`], [`JobId`] |
//! | understand a failure, call again | [`CallError`], [`Status`], [`Retry`] |
//! | move long results and memory | [`stream`], [`bulk`] |
//! | avoid a copy | [`Filler`], [`LentBytes`], [`InPlace`] |
//!
//! Modules for programs with more to do:
//!
//! | module | feature | content |
//! |---|---|---|
//! | [`typed`] | `typed` | services as traits: client, futures and server from one definition |
//! | `tokio` | `tokio`, off by default | calls as futures of tokio |
//! | `tower` | `tower`, off by default | clients of futures as services of tower |
//! | – | `tracing`, off by default | `Inbound::span`, `RequestContext::span`, and a span around each call of a [`Client`] |
//! | [`daemon`] | `daemon` | a daemon inside a program, and services that are functions of it |
//! | [`nic`] | `nic` | NICs by name; the software NIC needs no hardware and no privilege |
//! | [`rpc`] | `rpc` | calls over a NIC, without a daemon |
//! | [`ipc`] | always | calls between processes of one machine, without a daemon |
//! | [`queues`] | `queues` | queues between threads of one process |
//! | [`report`], [`name`] | always | clients, peers and services of a daemon; numbers of names |
//!
//! A program that only calls and serves says `default-features = false`.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "tokio")]
#[doc(inline)]
pub use client::tokio;
#[cfg(feature = "tower")]
#[doc(inline)]
pub use client::tower;
pub use client::{
    CallError, CallId, Client, ClientConfig, ConnectError, Context, Filler, FutureCall,
    FutureClient, InPlace, Inbound, JobId, JobIdError, LentBytes, Offer, OfferedService, Overfull,
    Pipeline, ProvideError, Provider, ProviderStop, Request, RequestContext, Retry, Route,
    ServiceError, Spread, Status, SubmitError, To, Wait,
    message::HERE,
    name,
    runtime::{Runtime, RuntimeError},
    stream,
};
#[doc(inline)]
pub use ipc;

pub mod bulk;
pub mod report;

#[cfg(feature = "daemon")]
pub mod daemon;
#[cfg(feature = "queues")]
#[doc(inline)]
pub use inproc as queues;
#[cfg(feature = "nic")]
#[doc(inline)]
pub use nics as nic;
#[cfg(feature = "rpc")]
pub mod rpc;
#[cfg(feature = "typed")]
pub mod typed;
