//! Two connections on virtual time: interleavings, full rings, wraps, faults.

#[path = "../batch_check/mod.rs"]
mod batch_check;
mod hostile;
mod interleavings;
#[cfg(not(miri))] // a second of nothing but arithmetic
mod metastable;
mod named;
mod pair;
mod steps;
mod told;
