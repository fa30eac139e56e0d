//! Memory that calls lend: the answering process reads and writes it, between nodes by the NIC.
//!
//! A process makes a [`BulkRegion`], which its daemon registers once. A call carries [`Slice`]s of it, which a
//! [`BulkProvider`] on any node pulls from and pushes to. Rights end with the call.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use copyrpc::{Client, ClientConfig, Runtime, To};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut client = Client::connect(&Runtime::from_env()?.socket(), ClientConfig::default())?;
//! let region = client.bulk(64 << 20)?;
//! region.write(0, b"a checkpoint")?;
//! let slices = [region.slice(0, 12), region.writable(4096, 1 << 20)];
//! let to = To::new(3, 17, 1);
//! client.call_bulk(to, b"store the first, fill the second", &slices, Duration::from_secs(5))?;
//! # Ok(()) }
//! ```
//!
//! The provider, on rank 3:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use copyrpc::{ClientConfig, Runtime, Status, bulk::{BulkProvider, Direction, Move}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let second = Duration::from_secs(1);
//! let socket = Runtime::from_env()?.socket();
//! let mut provider = BulkProvider::offer(&socket, 17, ClientConfig::default())?;
//! let region = provider.bulk(64 << 20)?;
//! while let Some(request) = provider.next(second)? {
//!     let pull = Move { slice: 0, direction: Direction::Pull, offset: 0, local_offset: 0, len_bytes: 12 };
//!     provider.transfer(&request, &region, &[pull], second)?;
//!     provider.answer(request, Status::Ok, b"stored")?;
//! }
//! # Ok(()) }
//! ```

#[doc(inline)]
pub use client::bulk::{
    BulkError, BulkProvider, BulkRegion, BulkRequest, Direction, Move, RegionError, Slice,
    SliceLen, Ticket,
};
