//! Requests and answers of 56 bytes, one cache line each way: the least that a call can cost.
//!
//! ```text
//! slots 0 .. 63     requests   initiator → responder   │ number │ 7 words │
//! slots 64 .. 127   answers    responder → initiator   │ number │ 7 words │
//! ```
//!
//! A slot's number is stored last and announces the rest. At most [`RING_SLOTS`] are in flight, so a
//! slot is free again when its answer is here.

use std::time::{Duration, Instant};

use memory::sync::{AtomicU64, Ordering};

use crate::{
    board::{Board, Patience, SLOT_WORDS, WaitError},
    limit::LimitError,
    stats,
};

/// Slots each way.
pub(crate) const RING_SLOTS: usize = 64;
/// Answers per reading of the clock.
pub(crate) const CHUNK: u64 = 256;
/// Answers of a sample, at least.
pub(crate) const COUNT_MIN: u64 = 8 * CHUNK;
/// Longest wait for one answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// Ends the responder.
pub(crate) const STOP: u64 = u64::MAX;

type Slot = [AtomicU64; SLOT_WORDS];
/// What a slot carries beside its number.
type Words = [u64; SLOT_WORDS - 1];

fn rings(board: &Board) -> (&[Slot], &[Slot]) {
    let (requests, rest) = board.stream().split_at(RING_SLOTS);
    (requests, &rest[..RING_SLOTS])
}

#[expect(clippy::cast_possible_truncation, reason = "below the number of slots")]
fn slot(ring: &[Slot], number: u64) -> &Slot {
    &ring[(number % RING_SLOTS as u64) as usize]
}

#[inline]
fn put(slot: &Slot, number: u64, words: Words) {
    for (to, word) in slot[1..].iter().zip(words) {
        to.store(word, Ordering::Relaxed);
    }
    // SYNC(slot-number): pairs with the Acquire in `get`.
    slot[0].store(number, Ordering::Release);
}

#[inline]
fn get(slot: &Slot, number: u64) -> Option<Words> {
    // SYNC(slot-number): pairs with the Release in `put`.
    if slot[0].load(Ordering::Acquire) != number {
        return None;
    }
    let mut words = Words::default();
    for (word, from) in words.iter_mut().zip(&slot[1..]) {
        *word = from.load(Ordering::Relaxed);
    }
    Some(words)
}

#[inline]
fn wait(slot: &Slot, number: u64, patience: &mut Patience<'_>) -> Result<Words, WaitError> {
    loop {
        if let Some(words) = get(slot, number) {
            return Ok(words);
        }
        patience.wait()?;
    }
}

#[inline]
fn check(words: Words, expected: u64) -> Result<(), LimitError> {
    match words.into_iter().find(|word| *word != expected) {
        None => Ok(()),
        Some(found) => Err(LimitError::Checksum { found, expected }),
    }
}

/// Initiator's side of about `count` requests, `in_flight` at a time: ns per answer, the median of
/// chunks. Every word of each answer is checked.
pub(crate) fn initiate(board: &Board, in_flight: u64, count: u64) -> Result<f64, LimitError> {
    let (requests, answers) = rings(board);
    let in_flight = in_flight.min(RING_SLOTS as u64);
    let mut patience = board.patience(PATIENCE);
    let ask = |number: u64| put(slot(requests, number), number, [number ^ STOP; SLOT_WORDS - 1]);
    (1..=in_flight).for_each(ask);
    let mut chunks_ns = Vec::with_capacity(4096);
    let mut last = Instant::now();
    let last_number = count.max(COUNT_MIN);
    for number in 1..=last_number {
        let words = wait(slot(answers, number), number, &mut patience)?;
        check(words, number)?;
        if number + in_flight <= last_number {
            ask(number + in_flight);
        }
        if number % CHUNK == 0 {
            patience.progress();
            let now = Instant::now();
            chunks_ns.push((now - last).as_secs_f64() * 1e9 / CHUNK as f64);
            last = now;
        }
    }
    put(slot(requests, last_number + 1), last_number + 1, [STOP; SLOT_WORDS - 1]);
    Ok(stats::median(&mut chunks_ns))
}

/// Responder's side: answers until the initiator stops.
pub(crate) fn respond(board: &Board) -> Result<(), LimitError> {
    let (requests, answers) = rings(board);
    let mut patience = board.patience(PATIENCE);
    for number in 1.. {
        let words = wait(slot(requests, number), number, &mut patience)?;
        patience.progress();
        if words == [STOP; SLOT_WORDS - 1] {
            return Ok(());
        }
        check(words, number ^ STOP)?;
        put(slot(answers, number), number, words.map(|word| word ^ STOP));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn requests_that_lap_their_ring_are_all_answered() {
        for in_flight in [1, 32, 64] {
            let board = Board::new().unwrap();
            thread::scope(|scope| {
                let responder = scope.spawn(|| respond(&board));
                assert!(initiate(&board, in_flight, 3000).unwrap() > 0.0);
                responder.join().unwrap().unwrap();
            });
        }
    }

    #[test]
    fn a_request_with_a_wrong_word_is_noticed() {
        let board = Board::new().unwrap();
        let (requests, _) = rings(&board);
        put(slot(requests, 1), 1, [1 ^ STOP, 1 ^ STOP, 5, 0, 0, 0, 0]);
        assert!(matches!(respond(&board), Err(LimitError::Checksum { .. })));
    }
}
