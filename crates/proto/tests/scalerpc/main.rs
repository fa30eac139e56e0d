//! ScaleRPC in virtual time: one server, many clients, memory that remembers who wrote what.

#![expect(clippy::cast_possible_truncation, reason = "lengths and numbers of tests are small")]

mod hostile;
#[path = "../hostile/mod.rs"]
mod hostile_bytes;
mod long;
mod named;
#[path = "../scalerpc_check/mod.rs"]
mod scalerpc_check;
mod step;
mod storms;
mod world;
