//! The work of every client: registers of 64 B behind a service, whose every answer is known beforehand.
//!
//! A client is the only writer of its registers, so it knows what each holds. A value is a word, eight times:
//!
//! ```text
//! word   key (32 bit) | version << 32      little-endian
//! get    body: key                         answer: the value
//! put    body: key, new value              answer: the value before
//! ```
//!
//! One call in 20 is a `put`. Calls in flight together are to different registers.

use std::cell::RefCell;

use copyrpc::{
    Inbound,
    typed::{Failure, Raw, service},
};

/// Registers of each client: a multiple of the calls in flight.
pub(crate) const KEYS: u32 = 1024;
/// One call in so many is a `put`.
const PUT_EVERY: u64 = 20;
/// Bytes of a value.
const VALUE_BYTES: usize = 64;
const KEY_BYTES: usize = size_of::<u32>();
const WORD_BYTES: usize = size_of::<u64>();

service! {
    /// Registers, by their numbers.
    pub(crate) trait Registers("registers"), client RegistersClient, futures RegistersFutures, codec Raw {
        /// The value of a register.
        fn get(key: Vec<u8>) -> Vec<u8>;
        /// Sets a register, and returns its value before.
        fn put(pair: Vec<u8>) -> Vec<u8>;
    }
}

/// What the provider of a node has.
#[derive(Debug)]
pub(crate) struct Stored {
    /// By key.
    words: RefCell<Vec<u64>>,
    /// One answer in so many is wrong; for tests of clients.
    wrong_every: Option<u64>,
    answered: RefCell<u64>,
}

impl Stored {
    pub(crate) fn new(keys: u32, wrong_every: Option<u64>) -> Self {
        let words = (0..keys).map(|key| word(key, 0)).collect();
        Self { words: RefCell::new(words), wrong_every, answered: RefCell::new(0) }
    }

    fn value(&self, word: u64) -> Vec<u8> {
        let mut answered = self.answered.borrow_mut();
        *answered += 1;
        let mut value = value(word).to_vec();
        if self.wrong_every.is_some_and(|every| answered.is_multiple_of(every)) {
            value[VALUE_BYTES - 1] ^= 1;
        }
        value
    }
}

impl Registers for Stored {
    fn get(&self, _: &Inbound<'_>, key: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let index = index_of(&key).ok_or_else(|| Failure::invalid("no key"))?;
        let word = self.words.borrow().get(index).copied();
        word.map(|word| self.value(word)).ok_or_else(|| Failure::not_found("no such register"))
    }

    fn put(&self, _: &Inbound<'_>, pair: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let index = index_of(&pair).ok_or_else(|| Failure::invalid("no key"))?;
        let new = pair.get(KEY_BYTES..).and_then(word_of);
        let new = new.ok_or_else(|| Failure::invalid("no value"))?;
        let mut words = self.words.borrow_mut();
        let word = words.get_mut(index).ok_or_else(|| Failure::not_found("no such register"))?;
        let before = std::mem::replace(word, new);
        Ok(self.value(before))
    }
}

fn index_of(body: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(*body.first_chunk()?)).ok()
}

fn word(key: u32, version: u32) -> u64 {
    u64::from(key) | u64::from(version) << 32
}

fn value(word: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    value.as_chunks_mut::<WORD_BYTES>().0.fill(word.to_le_bytes());
    value
}

/// The word of a value, if all its bytes are right.
fn word_of(bytes: &[u8]) -> Option<u64> {
    let word = u64::from_le_bytes(*bytes.first_chunk()?);
    (bytes == value(word)).then_some(word)
}

/// A call, and what it is answered with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) is_put: bool,
    /// The word that the answer consists of.
    pub(crate) answer: u64,
    body: [u8; KEY_BYTES + VALUE_BYTES],
}

impl Planned {
    pub(crate) fn body(&self) -> &[u8] {
        if self.is_put { &self.body } else { &self.body[..KEY_BYTES] }
    }
}

/// Whether an answer consists of this word.
pub(crate) fn is_right(answer: &[u8], word: u64) -> bool {
    word_of(answer) == Some(word)
}

/// The calls of a client, in order.
#[derive(Debug)]
pub(crate) struct Plan {
    first_key: u32,
    versions: Vec<u32>,
    /// Number of the next call.
    pub(crate) number: u64,
}

impl Plan {
    pub(crate) fn new(first_key: u32) -> Self {
        Self { first_key, versions: vec![0; KEYS as usize], number: 0 }
    }

    pub(crate) fn next(&mut self) -> Planned {
        let slot = u32::try_from(self.number % u64::from(KEYS)).unwrap_or(0);
        let is_put = self.number.is_multiple_of(PUT_EVERY);
        self.number += 1;
        let key = self.first_key + slot;
        let version = &mut self.versions[slot as usize];
        let answer = word(key, *version);
        let mut body = [0; KEY_BYTES + VALUE_BYTES];
        body[..KEY_BYTES].copy_from_slice(&key.to_le_bytes());
        if is_put {
            *version = version.wrapping_add(1);
            body[KEY_BYTES..].copy_from_slice(&value(word(key, *version)));
        }
        Planned { is_put, answer, body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_an_answer_is_looked_at() {
        let right = value(word(7, 9));
        assert!(is_right(&right, word(7, 9)));
        assert!(!is_right(&right, word(7, 8)) && !is_right(&right[..63], word(7, 9)));
        for index in 0..VALUE_BYTES {
            let mut wrong = right;
            wrong[index] ^= 1;
            assert!(!is_right(&wrong, word(7, 9)), "byte {index}");
        }
    }

    #[test]
    fn a_plan_knows_what_it_has_put() {
        let mut plan = Plan::new(3 * KEYS);
        let first = plan.next();
        assert!(first.is_put && first.answer == word(3 * KEYS, 0), "{first:?}");
        assert_eq!(word_of(&first.body()[KEY_BYTES..]), Some(word(3 * KEYS, 1)));
        let lap = (1..=u64::from(KEYS)).map(|_| plan.next()).last().unwrap();
        assert_eq!(lap.answer, word(3 * KEYS, 1), "the same register, a lap later");
    }
}
