//! The PMIx client library of the system: ranks of one launch share short texts through their launcher.
//!
//! ```text
//!  Session::start ─▶ PMIx_Init
//!  put(key, text) ─▶ PMIx_Put        kept by this process
//!  fence          ─▶ PMIx_Commit, PMIx_Fence with data collection: every rank comes, the texts are everywhere
//!  get(rank, key) ─▶ PMIx_Get
//!  drop           ─▶ PMIx_Finalize
//! ```
//!
//! The library is opened at run time ([`Session::start`]), so building needs neither it nor its headers. The part
//! of its ABI that is used stands in `abi`, where sizes and offsets are asserted.
//!
//! Every function may block for as long as the launcher likes: the library passes a timeout on, which servers may
//! ignore. A caller with a deadline makes the calls on a thread of their own.
//!
//! Source: PMIx Standard 4.1; OpenPMIx 4.2.2 `pmix.h` and `pmix_common.h` (Debian 12).

#![allow(unsafe_code, reason = "each call of the library")]

mod abi;
mod api;
mod error;
mod session;

pub use api::LIBRARY;
pub use error::PmixError;
pub use session::Session;
