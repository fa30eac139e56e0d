//! Bounded single-producer single-consumer rings, in three disciplines that can be compared.
//!
//! A [`Discipline`] is the answer to two questions: how does the producer learn that a slot is free,
//! and how does the consumer learn that it is full? Everything else (items, drops, batches,
//! hang-up) is shared code, so a difference between two disciplines is a difference in protocol.
//!
//! | discipline | slot is full | slot is free | lines moved per item, queue kept short |
//! |---|---|---|---|
//! | [`Lamport`] | `tail` index | credit, every 1/8 lap | `size / 64` + 2 for `tail` (per batch) + 16 per lap |
//! | [`FastForward`] | flag in the slot | flag in the slot | `(size + 8) / 64`, in both directions |
//! | [`Onesided`] | generation in the slot | credit, every 1/8 lap | `(size + 8) / 64` + 16 per lap |
//!
//! # Beside a peer
//!
//! [`Lamport`] against `rtrb` 0.4, the best peer: 1024 slots, two virtual cores of an AMD EPYC that share a
//! cache (near) or not (far), median of three (range). `compare queues 3 lamport`, several runs.
//!
//! | | near | times rtrb | far | times rtrb |
//! |---|---|---|---|---|
//! | 8 B, one by one, M/s | 545 (533 to 549) | 0.88 to 0.93 | 333 (297 to 354) | 2.0 to 2.2 |
//! | 64 B, one by one, M/s | 69 (67 to 71) | 0.86 to 0.89 | 17.6 (16.5 to 17.7) | 0.98 to 1.06 |
//! | 8 B, slices of 32, M/s | 940 (934 to 962) | 1.25 | 232 (222 to 319) | 1.03 to 1.4 |
//! | 64 B, slices of 32, M/s | 99 (99 to 105) | 0.95 | 30 (29 to 31) | 0.95 |
//! | 8 B, round trip, ns | 72 (71 to 78) | 0.67 to 0.96 | 460 (455 to 499) | 0.98 to 1.11 |
//! | 64 B, round trip, ns | 203 (202 to 205) | 1.01 to 1.03 | 841 (810 to 857) | 1.05 to 1.18 |
//!
//! A push and a pop of 8 bytes, with the loop and the check around them, take 44 instructions (callgrind,
//! one thread), those of `rtrb` 49; asking for lines ahead is 7 of the 44. Gains:
//!
//! - *Asking for lines ahead*, by both ends. Far, one by one: 8 B 180 → 365 M/s. The producer alone
//!   gained nothing, the consumer alone a third: each then waits for the other.
//! - *Pauses of a consumer that follows closely.* Far, 64 B: 13.2 → 17 M/s, near 60 → 69. Each look at the
//!   index takes its line there and back, and a closer consumer finds fewer items per look (four of 64 B). Items
//!   of 8 bytes lost by it near, 545 → 361, so they have none.
//!
//! The limit of single items near is not the number of instructions: variants that differ in one store, or in
//! where the compiler puts a branch, made 350 to 860 M/s of 8 bytes, by whether they settle with the queue
//! long or short. Which of the two a variant settles in, nothing that was tried explains.
//!
//! Positions count items ever moved, and slot `position % slots` holds the item: a position never
//! comes back. No operation allocates, blocks, or makes a system call; single pushes and pops are
//! wait-free and use no read-modify-write instruction.

mod consumer;
mod credit;
mod fastforward;
mod lamport;
mod onesided;
mod producer;
mod ring;

use core::fmt;

use self::ring::{Ring, Rules};
pub use self::{
    consumer::{Batch, Consumer},
    fastforward::FastForward,
    lamport::Lamport,
    onesided::Onesided,
    producer::{Producer, Reservation},
};

/// The protocol by which two threads agree on which slots are full: [`Lamport`], [`FastForward`] or [`Onesided`].
pub trait Discipline: Rules {}

/// The queue was full. Hands the item back; retry once the consumer has popped.
#[derive(PartialEq, Eq, thiserror::Error)]
#[error("queue is full: retry after the consumer has popped")]
pub struct Full<T>(pub T);

impl<T> fmt::Debug for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Full(_)")
    }
}

/// Creates a queue that holds at least `capacity_items`, and allocates all it will ever use.
///
/// The number of slots is a power of two, so the queue may hold more; [`Producer::capacity_items`]
/// tells how many items surely fit. [`FastForward`] needs a slot per item and never holds more than
/// that. [`Lamport`] and [`Onesided`] return credit in batches of an eighth of a lap, and keep as many
/// slots in reserve: 1024 slots for 897 items, and 2048 for 1024.
///
/// # Panics
///
/// If `capacity_items` is zero, or the slots would not fit the address space.
#[must_use]
pub fn channel<T, D: Discipline>(capacity_items: usize) -> (Producer<T, D>, Consumer<T, D>) {
    assert!(capacity_items > 0, "a queue holds at least one item");
    let ring = Ring::shared(capacity_items);
    (Producer::new(ring.clone()), Consumer::new(ring))
}
