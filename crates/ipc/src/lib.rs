//! Request and response between processes over sealed shared memory, crash-safe.

#[doc(hidden)]
pub mod bell;
#[doc(hidden)]
pub mod header;
#[doc(hidden)]
pub mod ring;

mod pause;
