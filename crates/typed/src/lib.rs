//! Services as traits: one definition makes a trait to implement, a client, and a client of futures.
//!
//! ```
//! use copyrpc_typed::{Failure, service};
//!
//! service! {
//!     /// Where files are.
//!     pub trait Metadata("metadata"), client MetadataClient, futures MetadataFutures {
//!         /// Length of a file.
//!         fn stat(path: String) -> u64;
//!         fn rename(from: String, to: String) -> bool;
//!     }
//! }
//!
//! struct Files;
//! impl Metadata for Files {
//!     fn stat(&self, _: &client::Inbound<'_>, path: String) -> Result<u64, Failure> {
//!         std::fs::metadata(path).map(|told| told.len()).map_err(Failure::not_found)
//!     }
//!     fn rename(&self, _: &client::Inbound<'_>, from: String, to: String) -> Result<bool, Failure> {
//!         Ok(from != to)
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> { if false {
//! let socket = client::Runtime::from_env()?.socket();
//! let config = client::ClientConfig::default();
//! let provider = client::Provider::offer(&socket, &<dyn Metadata>::offer(), config)?;
//! provider.serve_on(4, |request, answer| <dyn Metadata>::dispatch(&Files, request, answer))?;
//!
//! // In another process, of any node:
//! let client = client::Client::connect(&socket, config)?;
//! let length = MetadataClient::new(client, 3).stat("/etc/hostname".into())?;
//! # let _ = length; } Ok(()) }
//! ```
//!
//! A provider that answers on one thread has its values written where the daemon reads them, if their codec knows
//! their length ([`Encode::len_bytes`]):
//!
//! ```no_run
//! # use copyrpc_typed::{Failure, Raw, service};
//! # service! { trait Store("store"), client StoreClient, futures StoreFutures, codec Raw {
//! #     fn get(key: Vec<u8>) -> Vec<u8>;
//! # } }
//! # fn serve(provider: client::Provider, store: impl Store) -> Result<(), client::ProvideError> {
//! provider.serve_in_place(|request| Some(<dyn Store>::dispatch_in_place(&store, request)))
//! # }
//! ```
//!
//! Calls as futures are made by a [`FutureClient`](client::FutureClient), on one thread, or by a `TokioClient` (feature
//! `tokio`), on all: `MetadataFutures::new(client, rank)` takes either. `within` names a deadline: of the next call of
//! a `MetadataClient`, of all calls of the copy that it returns of `MetadataFutures`.
//!
//! The methods of an `async trait` are futures. One that nobody waits for any more is dropped at its next await:
//!
//! ```no_run
//! # use copyrpc_typed::{Failure, service};
//! service! {
//!     async trait Clock("clock"), client ClockClient, futures ClockFutures {
//!         fn now() -> u64;
//!     }
//! }
//!
//! struct Local;
//! impl Clock for Local {
//!     async fn now(&self, _: client::RequestContext) -> Result<u64, Failure> {
//!         Ok(7)
//!     }
//! }
//!
//! # fn serve(provider: client::Provider) -> Result<(), client::ProvideError> {
//! provider.run_async(|request| <dyn Clock>::dispatch(&Local, request))
//! # }
//! ```
//!
//! Names are what callers and services agree by: each stands for a number ([`client::name`]). With its first
//! call a client also asks what the service's types are, so that a service of another version is told apart
//! from nonsense: [`TypedError::Mismatch`].
//!
//! | codec | values |
//! |---|---|
//! | [`Postcard`], if none is named | what `serde` knows |
//! | `Json` (feature `json`) | what `serde` knows, for callers in C and Python too: arguments are an array |
//! | [`Raw`] | bytes: `fn get(key: Vec<u8>) -> Vec<u8>` |
//! | one of your own | what it implements [`Encode`] and [`Decode`] for |

#![forbid(unsafe_code)]

mod calls;
mod codec;
mod failure;
mod macros;

pub use calls::FutureCalls;
#[doc(hidden)]
pub use client;
#[cfg(feature = "json")]
pub use codec::Json;
#[cfg(feature = "postcard")]
pub use codec::Postcard;
pub use codec::{CodecError, Decode, Encode, Raw};
pub use failure::{Failure, TypedError};

/// What a service's `dispatch_in_place` answers with, for [`Provider::serve_in_place`](client::Provider::serve_in_place).
pub type InPlaceAnswer = client::InPlace<Box<dyn FnOnce(&mut client::Filler<'_>)>>;

/// Functions and types that the macro's expansion names. Nothing here is stable.
#[doc(hidden)]
pub mod glue;
