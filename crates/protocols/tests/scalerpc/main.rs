//! A server and clients on the software NIC, all on one thread. Every byte of every answer is checked.

#![expect(clippy::cast_possible_truncation, reason = "lengths and numbers of tests are small")]

mod calls;
mod ends;
mod rig;
