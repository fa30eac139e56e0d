//! Messages of 32 bytes, each announced elsewhere: the least that a WRITE WITH IMMEDIATE can cost.
//!
//! ```text
//! slots 0 .. 255      entries   initiator → responder   │ number │
//! slots 256 .. 511    entries   responder → initiator   │ number │
//! slot 1024           message   initiator → responder   │ 4 words │
//! slot 1032           message   responder → initiator   │ 4 words │
//! ```
//!
//! Two lines each way: a message is written where the one before it lay, and then the next entry of a
//! ring, as a NIC writes memory and a completion queue. Nothing else is done.

use std::time::Instant;

use memory::sync::{AtomicU64, Ordering};

use crate::{
    board::{Board, Patience, SLOT_WORDS},
    limit::LimitError,
    slots::{CHUNK, COUNT_MIN, PATIENCE, STOP},
    stats,
};

/// Entries each way.
const ENTRIES: usize = 256;
/// Slot of the message to the responder.
const MESSAGE: usize = 1024;
/// Far enough that no prefetcher takes both messages for neighbours.
const APART: usize = 8;
/// Words of a message.
const WORDS: usize = 4;

type Slot = [AtomicU64; SLOT_WORDS];

/// One direction.
#[derive(Clone, Copy)]
struct Way<'a> {
    entries: &'a [Slot],
    message: &'a Slot,
}

/// To the responder, and back.
fn ways(board: &Board) -> [Way<'_>; 2] {
    let slots = board.stream();
    let (there, rest) = slots.split_at(ENTRIES);
    [
        Way { entries: there, message: &slots[MESSAGE] },
        Way { entries: &rest[..ENTRIES], message: &slots[MESSAGE + APART] },
    ]
}

impl Way<'_> {
    #[expect(clippy::cast_possible_truncation, reason = "below the number of entries")]
    fn entry(&self, number: u64) -> &AtomicU64 {
        &self.entries[(number % ENTRIES as u64) as usize][0]
    }

    #[inline]
    fn put(&self, number: u64, word: u64) {
        for to in &self.message[..WORDS] {
            to.store(word, Ordering::Relaxed);
        }
        // SYNC(announced-entry): pairs with the Acquire in `get`.
        self.entry(number).store(number, Ordering::Release);
    }

    /// The words of the message, which are all the same.
    #[inline]
    fn get(&self, number: u64, patience: &mut Patience<'_>) -> Result<u64, LimitError> {
        // SYNC(announced-entry): pairs with the Release in `put`.
        while self.entry(number).load(Ordering::Acquire) != number {
            patience.wait()?;
        }
        let expected = self.message[0].load(Ordering::Relaxed);
        for word in &self.message[1..WORDS] {
            let found = word.load(Ordering::Relaxed);
            if found != expected {
                return Err(LimitError::Checksum { found, expected });
            }
        }
        Ok(expected)
    }
}

/// Initiator's side of about `count` round trips: ns each, the median of chunks. Every answer is
/// checked.
pub(crate) fn initiate(board: &Board, count: u64) -> Result<f64, LimitError> {
    let [there, back] = ways(board);
    let mut patience = board.patience(PATIENCE);
    let mut chunks_ns = Vec::with_capacity(4096);
    let mut last = Instant::now();
    let last_number = count.max(COUNT_MIN);
    for number in 1..=last_number {
        there.put(number, number ^ STOP);
        let found = back.get(number, &mut patience)?;
        if found != number {
            return Err(LimitError::Checksum { found, expected: number });
        }
        if number % CHUNK == 0 {
            patience.progress();
            let now = Instant::now();
            chunks_ns.push((now - last).as_secs_f64() * 1e9 / CHUNK as f64);
            last = now;
        }
    }
    there.put(last_number + 1, STOP);
    Ok(stats::median(&mut chunks_ns))
}

/// Responder's side: answers until the initiator stops.
pub(crate) fn respond(board: &Board) -> Result<(), LimitError> {
    let [there, back] = ways(board);
    let mut patience = board.patience(PATIENCE);
    for number in 1.. {
        let word = there.get(number, &mut patience)?;
        patience.progress();
        if word == STOP {
            return Ok(());
        }
        back.put(number, word ^ STOP);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn messages_that_lap_their_ring_are_all_answered() {
        let board = Board::new().unwrap();
        thread::scope(|scope| {
            let responder = scope.spawn(|| respond(&board));
            assert!(initiate(&board, 3000).unwrap() > 0.0);
            responder.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_message_with_a_wrong_word_is_noticed() {
        let board = Board::new().unwrap();
        let [there, _] = ways(&board);
        there.message[2].store(5, Ordering::Relaxed);
        there.entry(1).store(1, Ordering::Relaxed);
        assert_eq!(respond(&board), Err(LimitError::Checksum { found: 5, expected: 0 }));
    }
}
