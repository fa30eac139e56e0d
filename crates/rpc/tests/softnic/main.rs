//! Workers on the software NIC, both on one thread unless a test says otherwise.

mod basics;
mod batching;
mod double;
mod ends;
mod faulty;
mod futures;
mod hostile;
mod landed;
mod large;
mod limits;
mod named;
mod panics;
mod rig;
mod sleep;
