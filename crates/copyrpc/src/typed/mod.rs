//! Services as traits: one definition makes a trait to implement, a client, and a client of futures.
//!
//! ```
//! use copyrpc::typed::{Failure, service};
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
//!     fn stat(&self, _: &copyrpc::Inbound<'_>, path: String) -> Result<u64, Failure> {
//!         std::fs::metadata(path).map(|file| file.len()).map_err(Failure::not_found)
//!     }
//!     fn rename(&self, _: &copyrpc::Inbound<'_>, from: String, to: String) -> Result<bool, Failure> {
//!         Ok(from != to)
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> { if false {
//! let socket = copyrpc::Runtime::from_env()?.socket();
//! let config = copyrpc::ClientConfig::default();
//! let provider = copyrpc::Provider::offer(&socket, &<dyn Metadata>::offer(), config)?;
//! provider.serve_on(4, |request, answer| <dyn Metadata>::dispatch(&Files, request, answer))?;
//!
//! // In another process, of any node:
//! let client = copyrpc::Client::connect(&socket, config)?;
//! let length = MetadataClient::new(client, 3).stat("/etc/hostname".into())?;
//! # let _ = length; } Ok(()) }
//! ```
//!
//! A provider that answers on one thread has its values written where the daemon reads them, if their codec knows
//! their length ([`Encode::len_bytes`]):
//!
//! ```no_run
//! # use copyrpc::typed::{Failure, Raw, service};
//! # service! { trait Store("store"), client StoreClient, futures StoreFutures, codec Raw {
//! #     fn get(key: Vec<u8>) -> Vec<u8>;
//! # } }
//! # fn serve(provider: copyrpc::Provider, store: impl Store) -> Result<(), copyrpc::ProvideError> {
//! provider.serve_in_place(|request| Some(<dyn Store>::dispatch_in_place(&store, request)))
//! # }
//! ```
//!
//! Calls as futures are made by a [`FutureClient`](client::FutureClient), on one thread, or by a `TokioClient` (feature
//! `tokio`), on all: `MetadataFutures::new(client, rank)` takes either. `within` names a deadline: of the next call of
//! a `MetadataClient`, of all calls of the copy that it returns of `MetadataFutures`.
//!
//! The methods of an `async trait` are futures. The future of a cancelled call is dropped at its next await:
//!
//! ```no_run
//! # use copyrpc::typed::{Failure, service};
//! service! {
//!     async trait Clock("clock"), client ClockClient, futures ClockFutures {
//!         fn now() -> u64;
//!     }
//! }
//!
//! struct Local;
//! impl Clock for Local {
//!     async fn now(&self, _: copyrpc::RequestContext) -> Result<u64, Failure> {
//!         Ok(7)
//!     }
//! }
//!
//! # fn serve(provider: copyrpc::Provider) -> Result<(), copyrpc::ProvideError> {
//! provider.run_async(|request| <dyn Clock>::dispatch(&Local, request))
//! # }
//! ```
//!
//! A result that is longer than an answer travels in [pages](Page): each answer has some of its items, and says where the
//! next begin, so the service keeps nothing between two calls. [`pages`] and [`future_pages`] ask for one after the other:
//!
//! ```no_run
//! # use copyrpc::typed::{Page, pages, service};
//! service! {
//!     trait Names("names"), client NamesClient, futures NamesFutures {
//!         /// Names that begin like this, behind `after`.
//!         fn list(begin: String, after: Option<String>) -> Page<String, String>;
//!     }
//! }
//!
//! # fn print(mut client: NamesClient) -> Result<(), copyrpc::typed::TypedError> {
//! for names in pages(|after| client.list("a".into(), after)) {
//!     println!("{:?}", names?);
//! }
//! # Ok(()) }
//! ```
//!
//! The calls of a `lending trait` carry slices of memory, which the service pulls from and pushes to. It is served by a
//! [`BulkProvider`](client::bulk::BulkProvider), and handlers get a [`Lent`]:
//!
//! ```no_run
//! # use copyrpc::typed::{Failure, Lent, service};
//! use copyrpc::bulk::BulkRegion;
//!
//! service! {
//!     lending trait Blocks("blocks"), client BlocksClient, futures BlocksFutures {
//!         /// Keeps what the first slice has; returns its length.
//!         fn keep(name: String) -> u64;
//!     }
//! }
//!
//! struct Memory(BulkRegion);
//! impl Blocks for Memory {
//!     fn keep(&mut self, lent: &mut Lent<'_>, name: String) -> Result<u64, Failure> {
//!         lent.pull(0, &mut self.0)
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> { if false {
//! # let socket = copyrpc::Runtime::from_env()?.socket();
//! # let config = copyrpc::ClientConfig::default();
//! # let second = std::time::Duration::from_secs(1);
//! let mut provider = <dyn Blocks>::offer(&socket, config)?;
//! let mut memory = Memory(provider.bulk(1 << 20)?);
//! while let Some(work) = provider.next(second)? {
//!     <dyn Blocks>::answer(&mut memory, &mut provider, work)?;
//! }
//!
//! // In another process, of any node:
//! let mut blocks = BlocksClient::new(copyrpc::Client::connect(&socket, config)?, 3);
//! let region = blocks.client().bulk(1 << 20)?;
//! let kept = blocks.keep(&[region.slice(0, 4096)], "first".into())?;
//! # let _ = kept; } Ok(()) }
//!
//! // Or by futures:
//! # async fn keep(client: client::FutureClient) -> Result<(), Box<dyn std::error::Error>> {
//! let region = client.bulk(1 << 20).await?;
//! let blocks = BlocksFutures::new(client, 3);
//! let kept = blocks.keep(&[region.slice(0, 4096)], "second".into()).await?;
//! # let _ = kept; Ok(()) }
//! ```
//!
//! The rights of a handler end with its call: at the deadline, which [`Lent::time_left`] tells, or when the caller gives up,
//! as [`Lent::is_cancelled`] says.
//!
//! Names are what callers and services agree by: each stands for a number ([`client::name`]). With its first
//! call a client also asks for the service's types, so that a service of another version is an error of its own:
//! [`TypedError::Mismatch`]. A call that lends memory carries the types that it means.
//!
//! | codec | values |
//! |---|---|
//! | [`Postcard`], if none is named | what `serde` knows |
//! | `Json` (feature `json`) | what `serde` knows, for callers in C and Python too: arguments are an array |
//! | [`Raw`] | bytes: `fn get(key: Vec<u8>) -> Vec<u8>` |
//! | one of your own | types with [`Encode`] and [`Decode`] for it |

mod calls;
mod codec;
mod failure;
mod lent;
mod macros;
mod method;
mod page;

pub use calls::{FutureCalls, LendingCalls};
#[doc(hidden)]
pub use client;
#[cfg(feature = "json")]
pub use codec::Json;
pub use codec::{CodecError, Decode, Encode, Postcard, Raw};
pub use failure::{Failure, TypedError};
pub use lent::Lent;
pub use page::{FuturePages, Page, Pages, future_pages, pages};

pub use crate::service;

/// The answer of a service's `dispatch_in_place`, for [`Provider::serve_in_place`](client::Provider::serve_in_place).
pub type InPlaceAnswer = client::InPlace<Box<dyn FnOnce(&mut client::Filler<'_>)>>;

/// Functions and types that the macro's expansion names. Nothing here is stable.
#[doc(hidden)]
pub mod glue;
