//! Memory that others touch too: regions shared with processes or a device, checked access to
//! them, copies across that border, and the order in which the other side sees stores.
//!
//! # Architecture invariant
//!
//! This is the only crate that names an atomic type, a fence, inline assembly or `mmap`. Everybody
//! else imports atomics from [`sync`], which `--cfg loom` replaces, and calls barriers by the name
//! of their use ([`barrier`]). No function here returns a reference to plain bytes of a region:
//! another process may write them at any time. What is shared is either an atomic or copied.

#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "this crate gives instructions and mappings their names"
)]

pub mod barrier;
pub mod copy;
mod in_place;
pub mod lent;
pub mod line;
pub mod mmio;
pub mod region;
pub mod sync;
#[cfg(not(loom))]
pub mod view;

pub use in_place::{Filler, LentBytes, Overfull};
pub use line::Line;
pub use region::{MapError, MapFault, Protection, Region, SealError};
#[cfg(not(loom))]
pub use view::{SharedLayout, Span, ViewError};
