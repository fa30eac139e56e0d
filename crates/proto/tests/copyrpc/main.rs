//! Two connections on virtual time: interleavings, full rings, wraps, faults.

mod hostile;
mod interleavings;
mod metastable;
mod named;
mod pair;
