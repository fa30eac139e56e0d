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
//! # Single items, beside a peer
//!
//! [`Lamport`] takes 23 instructions per push and 52 per pop of 64 bytes (callgrind, the check of the item
//! included), `rtrb` 0.4 37 and 52. Even so it moved 0.8 times as many, since what limits single items is
//! the line of the index, which goes there and back once per refill. A pause of the consumer after it
//! has taken all that it knew of made 50 to 85 M items/s of 64 bytes where cores share a cache
//! (rtrb: 59), and changed nothing where they do not: 14 M/s (rtrb: 19). There slices of 32, which move
//! the index once per slice, make 35 M/s (rtrb: 31). Items of 8 bytes: 0.8 times rtrb in both, slices of
//! them 1.2 and 1.0 times. (`compare queues`, 1024 slots, 2 virtual cores of an AMD EPYC beside other work;
//! four pauses instead of one brought 8 bytes to 0.9 where no cache is shared, at 90 ns of delay.)
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

/// How two threads agree on which slots are full: [`Lamport`], [`FastForward`] or [`Onesided`].
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
