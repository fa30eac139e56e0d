//! Checks over arbitrary bytes, shared by the fuzz targets and by `cargo test`.
//!
//! Parse, encode, parse gives the same meaning; encoding that meaning again gives the same bytes.

pub(crate) mod cqe;
pub(crate) mod wqe;
