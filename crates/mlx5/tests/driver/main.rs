//! The driver against a device made of heap memory, which records what reaches its registers.
//!
//! Tests look at bytes: what the device would read, by hand-written hex and through `wire`'s reader;
//! and they write completions the way a device does.

mod accounting;
mod answers;
mod completions;
mod creation;
mod departures;
mod device;
mod doorbells;
mod next_hops;
mod receives;
mod requests;
mod shared_receives;
