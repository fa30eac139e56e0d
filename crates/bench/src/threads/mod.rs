//! Queues between threads of this process, every item checked.
//!
//! | shape | timed |
//! |---|---|
//! | [`Shape::Single`] | items one by one, the median of chunks of 16 Ki items |
//! | [`Shape::Batched`] | the same in batches of 32: reserve and commit, pop into a slice |
//! | [`Shape::RoundTrip`] | one item there and one back over two rings, the median of batches of 50 |
//! | [`Flux`] | calls of n threads that all call each other with 32 calls to each in flight |
//!
//! The threads pause (`spin_loop`) when they find a queue full or empty, as their users do.

use core::fmt::Debug;
use std::io;

use inproc::spsc;

use crate::{
    board::{Board, WaitError},
    plan::{LINE_ROUND_TRIP, LINE_STREAM, against, planned, references_of_lines},
    report::Metric,
    suite::{Job, Planned},
};

mod flux;
mod spsc_ring;

/// Slots of every ring.
const CAPACITY_ITEMS: usize = 1024;
/// Items per batch.
const BATCH_ITEMS: usize = 32;
/// Times that a ring's consumer returns credit per lap, where it does.
const CREDITS_PER_LAP: f64 = 8.0;

/// What travels: numbered in all its words, so that each is checked.
pub trait Item: Copy + Default + PartialEq + Debug + Send + 'static {
    /// The item with this number.
    fn new(number: u64) -> Self;
    /// The number in its first word.
    fn number(&self) -> u64;
}

impl Item for u64 {
    fn new(number: u64) -> Self {
        number
    }

    fn number(&self) -> u64 {
        *self
    }
}

impl Item for [u64; 8] {
    fn new(number: u64) -> Self {
        [number; 8]
    }

    fn number(&self) -> u64 {
        self[0]
    }
}

/// How two threads agree on which slots are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// [`spsc::Lamport`].
    Lamport,
    /// [`spsc::FastForward`].
    FastForward,
    /// [`spsc::Onesided`].
    Onesided,
}

/// How items travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One by one.
    Single,
    /// By 32.
    Batched,
    /// One there, one back.
    RoundTrip,
}

/// One producer, one consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// How they agree.
    pub discipline: Discipline,
    /// Whether an item is a line of 64 bytes, or a word of 8.
    pub is_line: bool,
    /// How items travel.
    pub shape: Shape,
}

/// Calls between any two of n threads, 8 bytes each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flux {
    /// Of every lane.
    pub discipline: Discipline,
    /// Number of threads.
    pub threads: usize,
}

/// What threads of this process do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Items through a ring.
    Ring(Ring),
    /// Calls.
    Flux(Flux),
}

/// Why threads have no number.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The kernel refused.
    #[error("cannot pin a thread to core {core}: {cause}")]
    Pin {
        /// The core.
        core: usize,
        /// As the kernel says.
        cause: io::Error,
    },
    /// An item is not the one that was pushed.
    #[error("item {number} arrived with other words")]
    WrongItem {
        /// Counted from 0.
        number: u64,
    },
    /// A call came back without its answer.
    #[error("call {number} came back with {found}")]
    WrongReply {
        /// Counted from 0.
        number: u64,
        /// What came instead.
        found: String,
    },
    /// They did not meet.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

impl Discipline {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lamport, Self::FastForward, Self::Onesided];

    fn name(self) -> &'static str {
        match self {
            Self::Lamport => "lamport",
            Self::FastForward => "fastforward",
            Self::Onesided => "onesided",
        }
    }

    /// Cache lines that one item moves as designed, in a ring that stays full (`true`) or empty.
    fn lines_per_item(self, is_line: bool, queues_up: bool) -> f64 {
        let item_bytes = if is_line { 64.0 } else { 8.0 };
        let stamped_lines = (item_bytes + 8.0) / 64.0;
        let credit_lines = 2.0 * CREDITS_PER_LAP / CAPACITY_ITEMS as f64;
        match (self, queues_up) {
            (Self::Lamport, true) => item_bytes / 64.0 + credit_lines,
            (Self::FastForward, true) => 2.0 * stamped_lines,
            (Self::Onesided, true) => stamped_lines + credit_lines,
            // The item's line and the tail's.
            (Self::Lamport, false) => 2.0,
            // Flag and item: one line if both fit it.
            (Self::FastForward | Self::Onesided, false) => stamped_lines.ceil(),
        }
    }
}

impl Ring {
    fn planned(self) -> Planned {
        let (discipline, len) = (self.discipline.name(), if self.is_line { "64B" } else { "8B" });
        let job = Job::Queue(Queue::Ring(self));
        let lines = |queues_up| self.discipline.lines_per_item(self.is_line, queues_up);
        match self.shape {
            Shape::RoundTrip => {
                let name = format!("spsc/round-trip/{len}/{discipline}");
                let cell = planned(&name, Metric::RoundTrip, job).lines(2.0 * lines(false));
                against(cell, LINE_ROUND_TRIP)
            }
            Shape::Single | Shape::Batched => {
                let shape = if self.shape == Shape::Single { "single" } else { "batched" };
                let name = format!("spsc/{shape}/{len}/{discipline}");
                against(planned(&name, Metric::Rate, job).lines(lines(true)), LINE_STREAM)
            }
        }
    }
}

impl Flux {
    fn planned(self) -> Planned {
        let name = format!("flux/{}-threads/{}", self.threads, self.discipline.name());
        // An item there, an item back; both with their stamp fit a line.
        let lines = 2.0 * self.discipline.lines_per_item(false, false);
        let job = Job::Queue(Queue::Flux(self));
        against(planned(&name, Metric::Rate, job).lines(lines), LINE_STREAM)
    }
}

/// The cells of `bench inproc`, after what they are compared with.
#[must_use]
pub fn plan(quick: bool) -> Vec<Planned> {
    let mut plan = references_of_lines();
    for shape in [Shape::Single, Shape::Batched, Shape::RoundTrip] {
        for is_line in [false, true] {
            let ring = |discipline| Ring { discipline, is_line, shape }.planned();
            plan.extend(Discipline::ALL.map(ring));
        }
    }
    let threads: &[usize] = if quick { &[2] } else { &[2, 4, 8] };
    for &threads in threads {
        plan.extend(Discipline::ALL.map(|discipline| Flux { discipline, threads }.planned()));
    }
    plan
}

/// Cores for the threads, and the words by which they tell each other of failures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stage<'a> {
    /// Taken in turn; the first two are those of the measurement.
    pub(crate) pool: &'a [usize],
    pub(crate) board: &'a Board,
}

impl Stage<'_> {
    /// Moves the calling thread to its core.
    fn enter(&self, thread: usize) -> Result<(), QueueError> {
        let core = self.pool[thread % self.pool.len()];
        crate::cores::pin(core).map_err(|cause| QueueError::Pin { core, cause })
    }

    /// Ends the waits of the other threads if this one failed.
    fn leave<T>(&self, result: Result<T, QueueError>) -> Result<T, QueueError> {
        result.inspect_err(|_| self.board.fail())
    }
}

impl Queue {
    /// Moves about `count` items, or calls; their rate in M/s, or ns per round trip.
    pub(crate) fn run(self, stage: Stage<'_>, count: u64) -> Result<f64, QueueError> {
        use Discipline::{FastForward, Lamport, Onesided};
        stage.board.reset();
        match self {
            Self::Ring(ring) => match (ring.discipline, ring.is_line) {
                (Lamport, false) => spsc_ring::run::<u64, spsc::Lamport>(ring, stage, count),
                (Lamport, true) => spsc_ring::run::<[u64; 8], spsc::Lamport>(ring, stage, count),
                (FastForward, false) => {
                    spsc_ring::run::<u64, spsc::FastForward>(ring, stage, count)
                }
                (FastForward, true) => {
                    spsc_ring::run::<[u64; 8], spsc::FastForward>(ring, stage, count)
                }
                (Onesided, false) => spsc_ring::run::<u64, spsc::Onesided>(ring, stage, count),
                (Onesided, true) => spsc_ring::run::<[u64; 8], spsc::Onesided>(ring, stage, count),
            },
            Self::Flux(Flux { discipline, threads }) => match discipline {
                Lamport => flux::run::<spsc::Lamport>(stage, threads, count),
                FastForward => flux::run::<spsc::FastForward>(stage, threads, count),
                Onesided => flux::run::<spsc::Onesided>(stage, threads, count),
            },
        }
    }

    /// Time per item or call, in ns, of a sample whose number was `value`.
    pub(crate) fn item_ns(self, value: f64) -> f64 {
        match self {
            Self::Ring(Ring { shape: Shape::RoundTrip, .. }) => value,
            Self::Ring(_) | Self::Flux(_) => 1e3 / value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both threads on one core: slow, and right.
    fn runs(queue: Queue) {
        let board = Board::new().unwrap();
        let pool = os::affinity::allowed_cores().unwrap();
        let value = queue.run(Stage { pool: &pool, board: &board }, 1000).unwrap();
        assert!(value.is_finite() && value > 0.0, "{queue:?}: {value}");
    }

    #[test]
    fn every_cell_of_rings_checks_its_items() {
        for planned in plan(false) {
            if let Job::Queue(queue @ Queue::Ring(_)) = planned.job {
                runs(queue);
            }
        }
    }

    #[test]
    fn every_thread_of_a_mesh_gets_its_replies() {
        for discipline in Discipline::ALL {
            runs(Queue::Flux(Flux { discipline, threads: 3 }));
        }
    }

    #[test]
    fn a_round_trip_of_small_items_is_designed_to_move_a_line_each_way() {
        for (discipline, lines) in [
            (Discipline::Lamport, 4.0),
            (Discipline::FastForward, 2.0),
            (Discipline::Onesided, 2.0),
        ] {
            let shape = Shape::RoundTrip;
            let planned = Ring { discipline, is_line: false, shape }.planned();
            assert_eq!(planned.cell.lines, Some(lines), "{discipline:?}");
        }
    }
}
