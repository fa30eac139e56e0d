//! The side that calls.

pub(crate) mod core;
pub(crate) mod future;
pub(crate) mod link;
pub(crate) mod pipe;
pub(crate) mod pipelined;
pub(crate) mod reactor;
pub(crate) mod sync;
