//! Queues between the threads of one process, and who leads them.
//!
//! | module | from, to | what |
//! |---|---|---|
//! | [`spsc`] | one thread, one thread | a bounded ring, in three disciplines |
//! | [`mpsc`] | many threads, one thread | a ring per producer, and a bit per ring |
//! | [`service`] | many clients, one server | requests and responses over such lanes |
//! | [`flux`] | any of n threads, any other | calls, notices and replies over such lanes |
//! | [`leadership`] | a thread that leads, one that watches | which of them has what both use |
//! | [`mpmc`] | many threads, many threads | one bounded ring |
//!
//! Each module's documentation says how many cache lines an operation is designed to move. `spsc`,
//! `mpsc` and the modules on top of them take the [`spsc::Discipline`] as a type parameter.
//!
//! # Architecture invariant
//!
//! Everything is bounded, a full queue hands the item back, and no item is lost: an item that is queued when
//! a party leaves is delivered, or dropped exactly once. Nothing waits except the functions called
//! `wait`, and they take a deadline; [`spsc::Consumer::pop`] may pause for some instructions.

mod deferred;
pub mod flux;
pub mod leadership;
mod lock;
pub mod mpmc;
pub mod mpsc;
mod parker;
pub mod service;
pub mod spsc;

pub use deferred::{ForeignToken, Token, Unanswered};
pub use parker::{Alarm, Waiting};
