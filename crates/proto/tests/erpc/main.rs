//! Both ends of an eRPC session: over a network that loses, repeats and reorders packets, and packet by
//! packet.

#![expect(clippy::cast_possible_truncation, reason = "lengths and names of tests are small")]

#[path = "../erpc_check/mod.rs"]
mod erpc_check;
mod hostile;
#[path = "../hostile/mod.rs"]
mod hostile_bytes;
mod network;
mod packets;
