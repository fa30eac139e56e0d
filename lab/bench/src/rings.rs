//! Round trips of small messages over bare memory: the least that a call, or a WRITE WITH IMMEDIATE, can cost.
//!
//! ```text
//! slots 0 .. 255      entries   initiator → responder   │ number │ 7 words │
//! slots 256 .. 511    entries   responder → initiator   │ number │ 7 words │
//! slot 1024           message   initiator → responder   │ 4 words │
//! slot 1032           message   responder → initiator   │ 4 words │
//! ```
//!
//! A message is one word, several times. In a ring of *slots* it lies in the entry behind the number: one line
//! each way. An *announced* message is written where the one before it lay, and then the next entry, as a NIC
//! writes memory and a completion queue: two lines each way. The number is stored last and announces the rest.

use std::time::Duration;

use memory::sync::{AtomicU64, Ordering};

use crate::{
    error::Error,
    shared_words::{Patience, SLOT_WORDS, SharedWords},
    stats::Laps,
};

/// Slots for entries each way.
const ENTRIES_MAX: usize = 256;
/// Entries of a ring of slots, and requests in flight at most.
const SLOT_ENTRIES: usize = 64;
/// Slot of the announced message to the responder.
const MESSAGE: usize = 1024;
/// Far enough that no prefetcher takes both messages for neighbours.
const APART: usize = 8;
/// Words of an announced message.
const WORDS: usize = 4;
/// Answers per reading of the clock.
const CHUNK: u64 = 256;
/// Answers of a sample, at least.
const COUNT_MIN: u64 = 8 * CHUNK;
/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Ends the responder.
const STOP: u64 = u64::MAX;

type Slot = [AtomicU64; SLOT_WORDS];

/// One direction.
#[derive(Clone, Copy)]
struct Way<'a, const ANNOUNCED: bool> {
    entries: &'a [Slot],
    message: &'a Slot,
}

/// To the responder, and back.
fn ways<const ANNOUNCED: bool>(shared: &SharedWords) -> [Way<'_, ANNOUNCED>; 2] {
    let slots = shared.stream();
    let way = |first: usize, message: usize| Way {
        entries: &slots[first..first + if ANNOUNCED { ENTRIES_MAX } else { SLOT_ENTRIES }],
        message: &slots[message],
    };
    [way(0, MESSAGE), way(ENTRIES_MAX, MESSAGE + APART)]
}

impl<const ANNOUNCED: bool> Way<'_, ANNOUNCED> {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "below the number of entries")]
    fn entry(&self, number: u64) -> &Slot {
        let entries = if ANNOUNCED { ENTRIES_MAX } else { SLOT_ENTRIES };
        &self.entries[number as usize % entries]
    }

    #[inline]
    fn words(&self, number: u64) -> &[AtomicU64] {
        if ANNOUNCED { &self.message[..WORDS] } else { &self.entry(number)[1..] }
    }

    #[inline]
    fn put(&self, number: u64, word: u64) {
        self.words(number).iter().for_each(|to| to.store(word, Ordering::Relaxed));
        // SYNC(ring-entry): pairs with the Acquire in `get`.
        self.entry(number)[0].store(number, Ordering::Release);
    }

    /// The word that the message is made of.
    #[inline]
    fn get(&self, number: u64, patience: &mut Patience<'_>) -> Result<u64, Error> {
        // SYNC(ring-entry): pairs with the Release in `put`.
        while self.entry(number)[0].load(Ordering::Acquire) != number {
            patience.wait()?;
        }
        let words = self.words(number);
        let expected = words[0].load(Ordering::Relaxed);
        for word in &words[1..] {
            check(number, word.load(Ordering::Relaxed), expected)?;
        }
        Ok(expected)
    }
}

#[inline]
fn check(index: u64, found: u64, expected: u64) -> Result<(), Error> {
    if found == expected {
        Ok(())
    } else {
        Err(Error::Wrong { index, what: "a word", found, expected })
    }
}

/// Initiator's side of about `count` requests, `in_flight` at a time: ns per answer, the median of chunks. Every
/// word of each answer is checked.
pub(crate) fn initiate<const ANNOUNCED: bool>(
    shared: &SharedWords,
    in_flight: u64,
    count: u64,
) -> Result<f64, Error> {
    let [there, back] = ways::<ANNOUNCED>(shared);
    let in_flight = in_flight.min(SLOT_ENTRIES as u64);
    let mut patience = shared.patience(PATIENCE);
    let ask = |number: u64| there.put(number, number ^ STOP);
    (1..=in_flight).for_each(ask);
    let mut laps = Laps::start();
    let last_number = count.max(COUNT_MIN);
    for number in 1..=last_number {
        check(number, back.get(number, &mut patience)?, number)?;
        if number + in_flight <= last_number {
            ask(number + in_flight);
        }
        if number % CHUNK == 0 {
            patience.progress();
            laps.lap(CHUNK);
        }
    }
    there.put(last_number + 1, STOP);
    Ok(laps.median_ns())
}

/// Responder's side: answers until the initiator stops.
pub(crate) fn respond<const ANNOUNCED: bool>(shared: &SharedWords) -> Result<(), Error> {
    let [there, back] = ways::<ANNOUNCED>(shared);
    let mut patience = shared.patience(PATIENCE);
    for number in 1.. {
        let word = there.get(number, &mut patience)?;
        patience.progress();
        if word == STOP {
            return Ok(());
        }
        check(number, word, number ^ STOP)?;
        back.put(number, word ^ STOP);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn laps<const ANNOUNCED: bool>(in_flight: u64) {
        let shared = SharedWords::new().unwrap();
        thread::scope(|scope| {
            let responder = scope.spawn(|| respond::<ANNOUNCED>(&shared));
            assert!(initiate::<ANNOUNCED>(&shared, in_flight, 3000).unwrap() > 0.0);
            responder.join().unwrap().unwrap();
        });
    }

    #[test]
    fn requests_that_lap_their_ring_are_all_answered() {
        laps::<true>(1);
        [1, 32, 64].into_iter().for_each(laps::<false>);
    }

    #[test]
    fn a_request_with_a_wrong_word_is_noticed() {
        let shared = SharedWords::new().unwrap();
        let [there, _] = ways::<false>(&shared);
        there.put(1, 1 ^ STOP);
        there.entry(1)[3].store(5, Ordering::Relaxed);
        assert!(matches!(respond::<false>(&shared), Err(Error::Wrong { found: 5, .. })));
        shared.reset();
        let [there, _] = ways::<true>(&shared);
        there.message[2].store(5, Ordering::Relaxed);
        there.entry(1)[0].store(1, Ordering::Relaxed);
        let error = respond::<true>(&shared);
        assert!(matches!(error, Err(Error::Wrong { found: 5, expected: 0, .. })), "{error:?}");
    }
}
