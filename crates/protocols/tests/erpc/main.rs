//! Endpoints on the software NIC, both on one thread. Every byte of every answer is checked.

#![expect(clippy::cast_possible_truncation, reason = "lengths and numbers of tests are small")]

mod basics;
mod cases;
mod ends;
mod long;
mod lossy;
mod rig;
