//! What the machine itself can do, measured on the same cores in the same run.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use memory::sync::{AtomicU64, Ordering, hint};
use serde::{Deserialize, Serialize};

use crate::{
    announced,
    board::{Board, SLOT_WORDS, STREAM_SLOTS, WaitError, Word},
    pingpong, slots,
};

/// Bytes that a copy cycles over, at the source and at the destination: out of L1, like the
/// transfers it is compared with.
pub const COPY_WINDOW_BYTES: usize = 1 << 20;
/// Slots between two updates of the consumer's count.
const CREDIT_SLOTS: u64 = 256;
/// Pauses of a consumer that has caught up: about a microsecond.
const PAUSES: u32 = 32;
/// Longest wait of one side for the other.
const PATIENCE: Duration = Duration::from_secs(2);

/// A limit that takes both processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedLimit {
    /// Two-line round trips.
    RoundTrip {
        /// Duration of the measurement, and of the warm-up before it.
        window: Duration,
    },
    /// One-way stream of 64-byte slots.
    Stream {
        /// Number of slots.
        count: u64,
    },
    /// Round trips of messages that are announced in a ring: two lines each way.
    Announced {
        /// Number of round trips.
        count: u64,
    },
    /// Requests and answers of one line each.
    Slots {
        /// Requests in flight.
        in_flight: u16,
        /// Number of requests.
        count: u64,
    },
}

impl SharedLimit {
    /// Initiator's side; ns per round trip or answer, or millions of streamed slots per second. The words were reset
    /// before the responder was told.
    ///
    /// # Errors
    ///
    /// [`LimitError`].
    pub fn initiate(self, board: &Board) -> Result<f64, LimitError> {
        match self {
            Self::RoundTrip { window } => Ok(pingpong::round_trips(board, window)?),
            Self::Stream { count } => Ok(produce(board, count)?),
            Self::Announced { count } => announced::initiate(board, count),
            Self::Slots { in_flight, count } => slots::initiate(board, u64::from(in_flight), count),
        }
    }

    /// Responder's side.
    ///
    /// # Errors
    ///
    /// [`LimitError`].
    pub fn respond(self, board: &Board) -> Result<(), LimitError> {
        match self {
            Self::RoundTrip { .. } => Ok(pingpong::answer(board)?),
            Self::Stream { count } => consume(board, count),
            Self::Announced { .. } => announced::respond(board),
            Self::Slots { .. } => slots::respond(board),
        }
    }
}

/// Why a limit is no limit.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The other side is gone.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The machine, or this program, is broken.
    #[error("a word or checksum is {found:#x}, not {expected:#x}")]
    Checksum {
        /// In or over what arrived.
        found: u64,
        /// In or over what was sent.
        expected: u64,
    },
}

/// Slot `i` carries its number in each word; the first one publishes it.
fn produce(board: &Board, count: u64) -> Result<f64, WaitError> {
    let (slots, consumed) = (board.stream(), board.word(Word::Received));
    let mut patience = board.patience(PATIENCE);
    let mut free_until = STREAM_SLOTS as u64;
    let begin = Instant::now();
    for (slot, number) in slots.iter().cycle().zip(1..=count) {
        while number > free_until {
            // SYNC(stream-credit): pairs with the Release in `consume`.
            let fresh = consumed.load(Ordering::Acquire) + STREAM_SLOTS as u64;
            if fresh == free_until {
                patience.wait()?;
            } else {
                patience.progress();
            }
            free_until = fresh;
        }
        for word in &slot[1..] {
            word.store(number, Ordering::Relaxed);
        }
        // SYNC(stream-slot): pairs with the Acquire in `consume`.
        slot[0].store(number, Ordering::Release);
    }
    patience.progress();
    while consumed.load(Ordering::Acquire) != count {
        patience.wait()?;
    }
    Ok(per_second(count, begin.elapsed()) / 1e6)
}

fn consume(board: &Board, count: u64) -> Result<(), LimitError> {
    let (slots, consumed) = (board.stream(), board.word(Word::Received));
    let mut patience = board.patience(PATIENCE);
    let mut found = 0_u64;
    for (slot, number) in slots.iter().cycle().zip(1..=count) {
        // SYNC(stream-slot): pairs with the Release in `produce`.
        while slot[0].load(Ordering::Acquire) != number {
            patience.wait()?;
            fall_behind();
        }
        patience.progress();
        found = found.wrapping_add(sum(&slot[1..]));
        if number % CREDIT_SLOTS == 0 || number == count {
            // SYNC(stream-credit): pairs with the Acquire in `produce`.
            consumed.store(number, Ordering::Release);
        }
    }
    let expected = (SLOT_WORDS as u64 - 1).wrapping_mul(count * (count + 1) / 2);
    if found == expected { Ok(()) } else { Err(LimitError::Checksum { found, expected }) }
}

/// Lets the producer get ahead. A consumer that polls the line which is being written takes it away
/// from the producer at every word; a limit is what both reach when they do not meet.
fn fall_behind() {
    for _ in 0..PAUSES {
        hint::spin_loop();
    }
}

fn sum(words: &[AtomicU64]) -> u64 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)))
}

/// Source and destination of copies inside one process.
#[derive(Debug)]
pub struct Copier {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Default for Copier {
    fn default() -> Self {
        // Nonzero, and written: untouched zero pages would all be the same physical page.
        Self { from: vec![0xa5; COPY_WINDOW_BYTES], to: vec![0x5a; COPY_WINDOW_BYTES] }
    }
}

impl Copier {
    /// GiB/s of `memcpy` in pieces of `len_bytes`, for about `window`.
    ///
    /// # Panics
    ///
    /// If `len_bytes` is 0 or exceeds [`COPY_WINDOW_BYTES`], or if a copy went wrong.
    #[must_use]
    pub fn bandwidth(&mut self, len_bytes: usize, window: Duration) -> f64 {
        assert!((1..=COPY_WINDOW_BYTES).contains(&len_bytes), "{len_bytes} B is not copied here");
        self.from[len_bytes - 1] = self.from[len_bytes - 1].wrapping_add(1);
        self.pass(len_bytes);
        let begin = Instant::now();
        let mut copied_bytes = 0;
        while begin.elapsed() < window {
            copied_bytes += self.pass(len_bytes);
        }
        let elapsed = begin.elapsed();
        let whole = COPY_WINDOW_BYTES - COPY_WINDOW_BYTES % len_bytes;
        assert!(self.from[..whole] == self.to[..whole], "memcpy copied something else");
        gib_per_second(copied_bytes, elapsed)
    }

    fn pass(&mut self, len_bytes: usize) -> u64 {
        let (from, to) = (self.from.chunks_exact(len_bytes), self.to.chunks_exact_mut(len_bytes));
        let mut copied_bytes = 0;
        for (from, to) in from.zip(to) {
            to.copy_from_slice(black_box(from));
            black_box(&*to);
            copied_bytes += len_bytes as u64;
        }
        copied_bytes
    }
}

/// `count` events in `elapsed`, per second.
#[must_use]
pub fn per_second(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}

/// `bytes` in `elapsed`.
#[must_use]
pub fn gib_per_second(bytes: u64, elapsed: Duration) -> f64 {
    per_second(bytes, elapsed) / f64::from(1 << 30)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_stream_that_laps_its_ring_arrives_complete() {
        let board = Board::new().unwrap();
        let limit = SharedLimit::Stream { count: 3 * STREAM_SLOTS as u64 + 17 };
        thread::scope(|scope| {
            let consumer = scope.spawn(|| limit.respond(&board));
            assert!(limit.initiate(&board).unwrap() > 0.0);
            consumer.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_stream_with_a_wrong_word_is_noticed() {
        let board = Board::new().unwrap();
        for (slot, number) in board.stream().iter().zip(1..=4_u64) {
            for word in slot {
                word.store(number, Ordering::Relaxed);
            }
        }
        board.stream()[2][5].store(99, Ordering::Relaxed);
        let error = consume(&board, 4);
        assert_eq!(error, Err(LimitError::Checksum { found: 70 + 96, expected: 70 }));
    }

    #[test]
    fn copies_of_any_size_are_checked() {
        let mut copier = Copier::default();
        for len_bytes in [1, 64, 4096 - 1, COPY_WINDOW_BYTES] {
            assert!(copier.bandwidth(len_bytes, Duration::from_micros(100)) > 0.0);
        }
    }

    #[test]
    fn rates_have_their_units() {
        let second = Duration::from_secs(1);
        assert!((per_second(500, second / 2) - 1000.0).abs() < 1e-9);
        assert!((gib_per_second(3 << 30, second) - 3.0).abs() < 1e-9);
    }
}
