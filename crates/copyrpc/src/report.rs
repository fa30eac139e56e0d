//! Reports of a daemon: its clients, its peers and the services of its node.
//!
//! ```no_run
//! use copyrpc::{Client, ClientConfig, Runtime};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut client = Client::connect(&Runtime::from_env()?.socket(), ClientConfig::default())?;
//! for service in client.services()? {
//!     println!("{} `{}`: {} requests", service.service, service.name, service.requests);
//! }
//! # Ok(()) }
//! ```

#[doc(inline)]
pub use client::{ClientInfo, Description, PeerInfo, ServiceInfo};
