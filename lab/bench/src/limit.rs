//! What the machine itself can do, measured on the same cores in the same run.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use memory::sync::{AtomicU64, Ordering, hint};
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    ping_pong, rings,
    shared_words::{SLOT_WORDS, STREAM_SLOTS, SharedWord, SharedWords, WaitError},
};

/// Bytes that a copy cycles over, at the source and at the destination: out of L1, like the
/// transfers it is compared with.
pub const COPY_WINDOW_BYTES: usize = 1 << 20;
/// Slots between two updates of the consumer's count.
const CREDIT_SLOTS: u64 = 256;
/// Pauses of a consumer that has caught up: about a microsecond.
const PAUSES: u32 = 32;
/// Longest wait of one side for the other.
const PATIENCE: Duration = Duration::from_secs(30);

/// A limit that takes both processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedLimit {
    /// Two-line round trips, in ns.
    RoundTrip {
        /// Duration of the measurement, and of the warm-up before it.
        window: Duration,
    },
    /// One-way stream of 64-byte slots, in M/s.
    Stream,
    /// Round trips of messages that are announced in a ring, in ns: two lines each way.
    Announced,
    /// Requests and answers of one line each: ns per round trip, or M/s if several are in flight.
    Slots {
        /// Requests in flight.
        in_flight: u16,
    },
}

impl SharedLimit {
    /// Initiator's side of `count` messages. The words were reset before the responder was told.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn initiate(self, shared: &SharedWords, count: u64) -> Result<f64, Error> {
        match self {
            Self::RoundTrip { window } => Ok(ping_pong::round_trips(shared, window)?),
            Self::Stream => Ok(produce(shared, count)?),
            Self::Announced => rings::initiate::<true>(shared, 1, count),
            Self::Slots { in_flight: 1 } => rings::initiate::<false>(shared, 1, count),
            Self::Slots { in_flight } => {
                Ok(1e3 / rings::initiate::<false>(shared, in_flight.into(), count)?)
            }
        }
    }

    /// Responder's side.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn respond(self, shared: &SharedWords, count: u64) -> Result<(), Error> {
        match self {
            Self::RoundTrip { .. } => Ok(ping_pong::answer(shared)?),
            Self::Stream => consume(shared, count),
            Self::Announced => rings::respond::<true>(shared),
            Self::Slots { .. } => rings::respond::<false>(shared),
        }
    }
}

/// Slot `i` carries its number in each word; the first one publishes it.
fn produce(shared: &SharedWords, count: u64) -> Result<f64, WaitError> {
    let (slots, consumed) = (shared.stream(), shared.word(SharedWord::Received));
    let mut patience = shared.patience(PATIENCE);
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

fn consume(shared: &SharedWords, count: u64) -> Result<(), Error> {
    let (slots, consumed) = (shared.stream(), shared.word(SharedWord::Received));
    let mut patience = shared.patience(PATIENCE);
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
    let wrong = Error::Wrong { index: count, what: "a checksum", found, expected };
    if found == expected { Ok(()) } else { Err(wrong) }
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
#[derive(Debug, Default)]
pub struct Copier {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Copier {
    /// GiB/s of `memcpy` in pieces of `len_bytes`, for about `window`. Pieces cycle over
    /// [`COPY_WINDOW_BYTES`], or are longer.
    ///
    /// # Panics
    ///
    /// If `len_bytes` is 0, or if a copy went wrong.
    #[must_use]
    pub fn bandwidth(&mut self, len_bytes: usize, window: Duration) -> f64 {
        let cycle_bytes = len_bytes.max(COPY_WINDOW_BYTES);
        // Nonzero, and written: untouched zero pages would all be the same physical page.
        self.from.resize(cycle_bytes, 0xa5);
        self.to.resize(cycle_bytes, 0x5a);
        self.from[len_bytes - 1] = self.from[len_bytes - 1].wrapping_add(1);
        self.pass(len_bytes);
        let begin = Instant::now();
        let mut copied_bytes = 0;
        while begin.elapsed() < window {
            copied_bytes += self.pass(len_bytes);
        }
        let elapsed = begin.elapsed();
        let whole = cycle_bytes - cycle_bytes % len_bytes;
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
        let shared = SharedWords::new().unwrap();
        let (limit, count) = (SharedLimit::Stream, 3 * STREAM_SLOTS as u64 + 17);
        thread::scope(|scope| {
            let consumer = scope.spawn(|| limit.respond(&shared, count));
            assert!(limit.initiate(&shared, count).unwrap() > 0.0);
            consumer.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_stream_with_a_wrong_word_is_noticed() {
        let shared = SharedWords::new().unwrap();
        for (slot, number) in shared.stream().iter().zip(1..=4_u64) {
            for word in slot {
                word.store(number, Ordering::Relaxed);
            }
        }
        shared.stream()[2][5].store(99, Ordering::Relaxed);
        let error = consume(&shared, 4);
        let (found, expected) = (70 + 96, 70);
        let is_told = matches!(error, Err(Error::Wrong { found: f, expected: e, .. }) if (f, e) == (found, expected));
        assert!(is_told, "{error:?}");
    }

    #[test]
    fn copies_of_any_size_are_checked() {
        let mut copier = Copier::default();
        for len_bytes in [1, 64, 4096 - 1, COPY_WINDOW_BYTES, 4 * COPY_WINDOW_BYTES] {
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
