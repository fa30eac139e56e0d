//! Queues between threads of this process, every item checked.
//!
//! | shape | timed |
//! |---|---|
//! | [`Shape::Single`] | items one by one, the median of chunks of 16 Ki items |
//! | [`Shape::Batched`] | the same in batches of 32: reserve and commit, pop into a slice |
//! | [`Shape::RoundTrip`] | one item there and one back over two rings, the median of batches of 50 |
//! | [`Flux`] | calls of n threads that all call each other with 32 calls to each in flight |
//! | [`ThreadTraffic::Channels`] | the same calls over a mesh of `std::sync::mpsc` channels |
//!
//! The threads pause (`spin_loop`) when they find a queue full or empty, as their users do.

use core::fmt::Debug;

use inproc::spsc;

use crate::{error::Error, shared_words::SharedWords};

mod channels;
mod flux;
pub mod spsc_ring;

/// Slots of every ring.
pub const CAPACITY_ITEMS: usize = 1024;
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
pub enum RingDiscipline {
    /// [`spsc::Lamport`].
    Lamport,
    /// [`spsc::FastForward`].
    FastForward,
    /// [`spsc::Onesided`].
    Onesided,
}

/// Number of items that one operation moves, and in which direction.
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
pub struct RingTraffic {
    /// Discipline of the two sides.
    pub discipline: RingDiscipline,
    /// Whether an item is a line of 64 bytes, or a word of 8.
    pub is_line: bool,
    /// Shape of the traffic.
    pub shape: Shape,
}

/// Calls between any two of n threads, 8 bytes each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flux {
    /// Of every lane.
    pub discipline: RingDiscipline,
    /// Number of threads.
    pub threads: usize,
}

/// What threads of this process do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadTraffic {
    /// Items through a ring.
    Ring(RingTraffic),
    /// Calls between threads over Flux.
    Flux(Flux),
    /// The same calls between so many threads over channels of the standard library.
    Channels(usize),
}

impl RingDiscipline {
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

impl ThreadTraffic {
    pub(crate) fn is_round_trip(self) -> bool {
        matches!(self, Self::Ring(RingTraffic { shape: Shape::RoundTrip, .. }))
    }

    /// The name of its cell.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Ring(RingTraffic { discipline, is_line, shape }) => {
                let shape = match shape {
                    Shape::RoundTrip => "round-trip",
                    Shape::Single => "single",
                    Shape::Batched => "batched",
                };
                let len = if is_line { "64B" } else { "8B" };
                format!("spsc/{shape}/{len}/{}", discipline.name())
            }
            Self::Flux(Flux { discipline, threads }) => {
                format!("flux/{threads}-threads/{}", discipline.name())
            }
            Self::Channels(threads) => format!("flux/{threads}-threads/std-channels"),
        }
    }

    /// Cache lines that an item, a round trip or a call moves, as designed.
    pub(crate) fn lines(self) -> f64 {
        match self {
            Self::Ring(RingTraffic { discipline, is_line, shape: Shape::RoundTrip }) => {
                2.0 * discipline.lines_per_item(is_line, false)
            }
            Self::Ring(RingTraffic { discipline, is_line, .. }) => {
                discipline.lines_per_item(is_line, true)
            }
            // An item there, an item back; both with their stamp fit a line.
            Self::Flux(Flux { discipline, .. }) => 2.0 * discipline.lines_per_item(false, false),
            // Nobody designed them for a number of lines: a message in a block, and the ends of its list.
            Self::Channels(_) => 2.0 * RingDiscipline::Lamport.lines_per_item(false, false),
        }
    }
}

/// What `bench inproc` measures.
#[must_use]
pub(crate) fn queues(quick: bool) -> Vec<ThreadTraffic> {
    let mut queues = Vec::new();
    for shape in [Shape::Single, Shape::Batched, Shape::RoundTrip] {
        for is_line in [false, true] {
            let ring = |discipline| ThreadTraffic::Ring(RingTraffic { discipline, is_line, shape });
            queues.extend(RingDiscipline::ALL.map(ring));
        }
    }
    let threads: &[usize] = if quick { &[2] } else { &[2, 4, 8] };
    for &threads in threads {
        queues.extend(
            RingDiscipline::ALL.map(|discipline| ThreadTraffic::Flux(Flux { discipline, threads })),
        );
        queues.push(ThreadTraffic::Channels(threads));
    }
    queues
}

/// Cores for the threads, and the words by which they tell each other of failures.
#[derive(Clone, Copy, Debug)]
pub struct ThreadSetup<'a> {
    /// Taken in turn; the first two are those of the measurement.
    pub pool: &'a [usize],
    /// By which they tell each other of failures.
    pub shared: &'a SharedWords,
}

impl ThreadSetup<'_> {
    /// Moves the calling thread to its core.
    fn enter(&self, thread: usize) -> Result<(), Error> {
        let core = self.pool[thread % self.pool.len()];
        crate::cores::pin(core).map_err(Error::refused("cannot pin a thread to its core"))
    }

    /// Ends the waits of the other threads if this one failed.
    fn leave<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.inspect_err(|_| self.shared.fail())
    }
}

impl ThreadTraffic {
    /// Moves about `count` items, or calls; their rate in M/s, or ns per round trip.
    pub(crate) fn run(self, stage: ThreadSetup<'_>, count: u64) -> Result<f64, Error> {
        stage.shared.reset();
        macro_rules! of_discipline {
            ($discipline:expr, $run:ident $(, $argument:expr)*) => {
                match $discipline {
                    RingDiscipline::Lamport => $run::<spsc::Lamport>($($argument),*),
                    RingDiscipline::FastForward => $run::<spsc::FastForward>($($argument),*),
                    RingDiscipline::Onesided => $run::<spsc::Onesided>($($argument),*),
                }
            };
        }
        fn run_ring<D: spsc::Discipline>(
            ring: RingTraffic,
            stage: ThreadSetup<'_>,
            count: u64,
        ) -> Result<f64, Error> {
            match ring.is_line {
                false => spsc_ring::run::<u64, D>(ring.shape, stage, count),
                true => spsc_ring::run::<[u64; 8], D>(ring.shape, stage, count),
            }
        }
        use flux::run as run_flux;
        match self {
            Self::Ring(ring) => of_discipline!(ring.discipline, run_ring, ring, stage, count),
            Self::Flux(Flux { discipline, threads }) => {
                of_discipline!(discipline, run_flux, stage, threads, count)
            }
            Self::Channels(threads) => channels::run(stage, threads, count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both threads on one core: slow, and right.
    fn runs(queue: ThreadTraffic) {
        let shared = SharedWords::new().unwrap();
        let pool = os::affinity::allowed_cores().unwrap();
        let value = queue.run(ThreadSetup { pool: &pool, shared: &shared }, 1000).unwrap();
        assert!(value.is_finite() && value > 0.0, "{queue:?}: {value}");
    }

    #[test]
    fn every_cell_of_rings_checks_its_items() {
        let is_ring = |queue: &ThreadTraffic| matches!(queue, ThreadTraffic::Ring(_));
        queues(false).into_iter().filter(is_ring).for_each(runs);
    }

    #[test]
    fn every_thread_of_a_mesh_gets_its_replies() {
        for discipline in RingDiscipline::ALL {
            runs(ThreadTraffic::Flux(Flux { discipline, threads: 3 }));
        }
        runs(ThreadTraffic::Channels(3));
    }

    #[test]
    fn a_round_trip_of_small_items_is_designed_to_move_a_line_each_way() {
        for (discipline, lines) in [
            (RingDiscipline::Lamport, 4.0),
            (RingDiscipline::FastForward, 2.0),
            (RingDiscipline::Onesided, 2.0),
        ] {
            let shape = Shape::RoundTrip;
            let found =
                ThreadTraffic::Ring(RingTraffic { discipline, is_line: false, shape }).lines();
            assert!((found - lines).abs() < 1e-9, "{discipline:?}");
        }
    }
}
