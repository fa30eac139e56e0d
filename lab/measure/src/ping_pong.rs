//! Two cache lines, two cores: the shortest round trip that polling software can make.
//!
//! The initiator stores a count to one line and polls the other, the responder answers there. This
//! is both the probe that tells the regime and the reference for every round trip.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use memory::sync::Ordering;

use crate::{
    cores::{self, Cores},
    shared_words::{Patience, SharedWord, SharedWords, WaitError},
    stats::Laps,
};

/// Ends the responder.
const STOP: u64 = u64::MAX;
/// Round trips between two looks at the clock: 10 µs or more, so that a reading costs nothing.
const BATCH: u32 = 100;
/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Duration of the round trips of a probe, half of it before the clock starts.
pub const PROBE_WINDOW: Duration = Duration::from_millis(6);

/// Initiator's side of `window` of warm-up and `window` of measuring: the median batch, in ns per
/// round trip. The responder must be in [`answer`], the words reset before it got there.
///
/// The answers are checked: each must be the count that was sent.
///
/// # Errors
///
/// [`WaitError`].
pub fn round_trips(shared: &SharedWords, window: Duration) -> Result<f64, WaitError> {
    let mut patience = shared.patience(PATIENCE);
    let mut count = 0;
    run(shared, &mut count, window, &mut patience)?;
    let laps = run(shared, &mut count, window, &mut patience)?;
    stop(shared);
    Ok(laps.median_ns())
}

fn run<'a>(
    shared: &'a SharedWords,
    count: &mut u64,
    window: Duration,
    patience: &mut Patience<'a>,
) -> Result<Laps, WaitError> {
    let begin = Instant::now();
    let mut laps = Laps::start();
    loop {
        for _ in 0..BATCH {
            *count += 1;
            round_trip(shared, *count, patience, Patience::wait)?;
        }
        if laps.lap(BATCH.into()) - begin >= window {
            return Ok(laps);
        }
    }
}

/// Initiator's side of one round trip, with another `count` than the last one; `wait` follows each look that finds no
/// answer.
///
/// # Errors
///
/// [`WaitError`].
#[inline]
pub fn round_trip<'a>(
    shared: &'a SharedWords,
    count: u64,
    patience: &mut Patience<'a>,
    wait: impl Fn(&mut Patience<'a>) -> Result<(), WaitError>,
) -> Result<(), WaitError> {
    let ping = shared.word(SharedWord::Ping);
    let pong = shared.word(SharedWord::Pong);
    // SYNC(ping): pairs with the Acquire in `answer_by`.
    ping.store(count, Ordering::Release);
    // SYNC(pong): pairs with the Release in `answer_by`.
    while pong.load(Ordering::Acquire) != count {
        wait(patience)?;
    }
    patience.progress();
    Ok(())
}

/// Initiator's side: ends the responder.
pub fn stop(shared: &SharedWords) {
    // SYNC(ping): the last count; the same pair as in `round_trip`.
    shared.word(SharedWord::Ping).store(STOP, Ordering::Release);
}

/// Responder's side: answers until the initiator stops.
///
/// # Errors
///
/// [`WaitError`].
pub fn answer(shared: &SharedWords) -> Result<(), WaitError> {
    answer_by(shared, Patience::wait)
}

/// As [`answer`]; `wait` follows each look that finds no count.
///
/// # Errors
///
/// [`WaitError`].
pub fn answer_by<'a>(
    shared: &'a SharedWords,
    wait: impl Fn(&mut Patience<'a>) -> Result<(), WaitError>,
) -> Result<(), WaitError> {
    let ping = shared.word(SharedWord::Ping);
    let pong = shared.word(SharedWord::Pong);
    let mut patience = shared.patience(PATIENCE);
    let mut answered = 0;
    loop {
        // SYNC(ping): pairs with the Release in `round_trip`.
        let count = ping.load(Ordering::Acquire);
        if count == answered {
            wait(&mut patience)?;
            continue;
        }
        patience.progress();
        if count == STOP {
            return Ok(());
        }
        // SYNC(pong): pairs with the Acquire in `round_trip`.
        pong.store(count, Ordering::Release);
        answered = count;
    }
}

/// Round trips between two threads of this process, in ns; the calling thread need not be pinned.
///
/// # Errors
///
/// [`ThreadsError`].
///
/// # Panics
///
/// If a measuring thread panics.
pub fn between_threads(
    cores: Cores,
    shared: &SharedWords,
    window: Duration,
) -> Result<f64, ThreadsError> {
    shared.reset();
    thread::scope(|scope| {
        let responder = scope.spawn(|| {
            pin_or_fail(cores.responder, shared)?;
            Ok::<_, ThreadsError>(answer(shared)?)
        });
        let initiator = scope.spawn(|| {
            pin_or_fail(cores.initiator, shared)?;
            Ok::<_, ThreadsError>(round_trips(shared, window)?)
        });
        let round_trip_ns = initiator.join().expect("no panics");
        responder.join().expect("no panics")?;
        round_trip_ns
    })
}

fn pin_or_fail(core: usize, shared: &SharedWords) -> io::Result<()> {
    cores::pin(core).inspect_err(|_| shared.fail())
}

/// Why two threads could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum ThreadsError {
    /// The kernel refused.
    #[error("cannot pin a thread to its core: {0}")]
    Pin(#[from] io::Error),
    /// They did not meet.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ping_is_answered_until_stop() {
        let shared = SharedWords::new().unwrap();
        let round_trip_ns = thread::scope(|scope| {
            let responder = scope.spawn(|| answer(&shared));
            let round_trip_ns = round_trips(&shared, Duration::from_millis(1));
            responder.join().unwrap().unwrap();
            round_trip_ns.unwrap()
        });
        assert!(round_trip_ns.is_finite() && round_trip_ns > 0.0);
        let ping = shared.word(SharedWord::Ping);
        let pong = shared.word(SharedWord::Pong);
        assert_eq!(ping.load(Ordering::Relaxed), STOP);
        assert_eq!(pong.load(Ordering::Relaxed) % u64::from(BATCH), 0);
    }
}
