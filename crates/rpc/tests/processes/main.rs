//! Two processes on the software NIC: one is killed, stopped, and talked to over many endpoints.
//!
//! ```text
//! this test                             the same test, run again as a child
//!   Caller ═══ calls, both ways ═════════ Echo: counts how often it executes each call
//!    └──────── stdin, stdout: invitations, one a line
//! ```
//!
//! The tests count what the whole process holds, so they take turns.

mod caller;
mod child;
mod ends;
