//! Active messages of UCX, by the system's libucp, which is opened at run time.
//!
//! Building needs neither the library nor its headers, and the error of a machine without it names the package
//! ([`LibraryError`]). The part of its ABI that is used stands in `abi`, and a test compares it with what a C
//! compiler makes of the headers, where those are installed.
//!
//! ```text
//!  UcxContext ─┬─ UcxWorker (a thread) ── UcxEndpoint ── send: bytes are copied, and kept until UCX is done
//!              │     ▲  │
//!              │     │  └─ poll: progress, then messages, ends of requests and lost peers, one by one
//!              │   mailbox ◀── callbacks of UCX, which only take notes
//!              └─ UcxWorker (another thread) …
//! ```
//!
//! # Who owns what
//!
//! - Bytes that UCX reads or writes belong to the worker, from the call that names them until the request is
//!   complete, or until the worker is destroyed.
//! - No callback calls UCX or anything that a user gave, so none unwinds. Results are handed out after
//!   `ucp_worker_progress` has returned.
//! - An endpoint's handle is used from `ucp_ep_create` to `ucp_ep_close_nbx`. The handle that comes with a message
//!   is only compared with those of this worker.
//!
//! Sources: UCX 1.13.1 `ucp/api/ucp.h`, `ucp/api/ucp_def.h`, `ucs/type/status.h`.

#![expect(unsafe_code, reason = "each call of the library")]

mod abi;
mod address;
mod api;
mod context;
mod endpoints;
mod error;
mod mailbox;
mod signals;
mod worker;

pub use address::{BadAddress, UcxAddress};
pub use api::LibraryError;
pub use context::{Config, UcxContext, version};
pub use endpoints::UcxEndpoint;
pub use error::{SendError, UcxError, UcxStatus};
pub use worker::{Event, UcxCounts, UcxWorker};
