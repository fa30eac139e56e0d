//! Workers on the software NIC, both on one thread unless a test says otherwise.

mod access;
mod basics;
mod batching;
mod double;
mod ends;
mod faulty;
mod futures;
mod hostile;
mod landed;
mod large;
mod large_memory;
mod limits;
mod named;
mod panics;
mod parts;
mod pieces;
mod rig;
mod sleep;
