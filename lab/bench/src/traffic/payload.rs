//! Bytes that tell a right message from a wrong one.

use verbs::MemoryRegion;

use crate::{error::Error, sample::SamplePlan};

/// Bytes of a small message.
pub(crate) const SMALL_BYTES: usize = 32;
/// Bytes of a word.
pub(crate) const WORD_BYTES: usize = size_of::<u64>();
/// Bytes that are filled or compared at once.
const CHUNK_BYTES: usize = 4096;

/// Small message number `index`; its last word is the sequence number.
#[inline]
pub(crate) fn small(sample: &SamplePlan, index: u64) -> [u8; SMALL_BYTES] {
    let sequence = sample.sequence(index);
    let words = [word(sequence, 0), word(sequence, 1), word(sequence, 2), sequence];
    let mut bytes = [0; SMALL_BYTES];
    for (bytes, word) in bytes.chunks_exact_mut(WORD_BYTES).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Compares a small message, or the tail of one.
#[inline]
pub(crate) fn check_small(sample: &SamplePlan, index: u64, found: &[u8]) -> Result<(), Error> {
    let expected = small(sample, index);
    let expected = &expected[SMALL_BYTES - found.len()..];
    if found == expected { Ok(()) } else { Err(first_difference(index, 0, found, expected)) }
}

/// Word number `position` of a pattern.
#[inline]
pub(crate) fn word(seed: u64, position: u64) -> u64 {
    (seed ^ position.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(position)
}

/// Fills `len_bytes` (a multiple of 8) at `offset` with the pattern of `sample`.
pub(crate) fn fill(
    region: &impl MemoryRegion,
    offset: usize,
    len_bytes: usize,
    sample: &SamplePlan,
) {
    let mut chunk = [0; CHUNK_BYTES];
    for begin in (0..len_bytes).step_by(CHUNK_BYTES) {
        let chunk = &mut chunk[..CHUNK_BYTES.min(len_bytes - begin)];
        pattern(chunk, begin, sample);
        region.write(offset + begin, chunk);
    }
}

/// Compares a large message at `offset`; its last word is `stamp`, if it has one.
pub(crate) fn verify(
    region: &impl MemoryRegion,
    offset: usize,
    len_bytes: usize,
    message: &Message<'_>,
) -> Result<(), Error> {
    let (mut found, mut expected) = ([0; CHUNK_BYTES], [0; CHUNK_BYTES]);
    for begin in (0..len_bytes).step_by(CHUNK_BYTES) {
        let len = CHUNK_BYTES.min(len_bytes - begin);
        let (found, expected) = (&mut found[..len], &mut expected[..len]);
        pattern(expected, message.pattern_offset + begin, message.sample);
        if let (Some(stamp), true) = (message.stamp, begin + len == len_bytes) {
            expected[len - WORD_BYTES..].copy_from_slice(&stamp.to_ne_bytes());
        }
        region.read(offset + begin, found);
        if found != expected {
            return Err(first_difference(message.index, begin, found, expected));
        }
    }
    Ok(())
}

/// What a large message should be.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    /// Its sample.
    pub(crate) sample: &'a SamplePlan,
    /// Its number.
    pub(crate) index: u64,
    /// Where in the pattern it begins.
    pub(crate) pattern_offset: usize,
    /// Its last word, if that is not of the pattern.
    pub(crate) stamp: Option<u64>,
}

fn pattern(chunk: &mut [u8], begin: usize, sample: &SamplePlan) {
    let first = (begin / WORD_BYTES) as u64;
    for (bytes, position) in chunk.chunks_exact_mut(WORD_BYTES).zip(first..) {
        bytes.copy_from_slice(&word(sample.number, position).to_ne_bytes());
    }
}

#[cold]
fn first_difference(index: u64, begin: usize, found: &[u8], expected: &[u8]) -> Error {
    let words = found.chunks(WORD_BYTES).zip(expected.chunks(WORD_BYTES));
    let equal = words.take_while(|(found, expected)| found == expected).count();
    Error::WrongBytes { index, offset_bytes: begin + equal * WORD_BYTES }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use verbs::{Lkey, MemoryError, Rkey};

    use super::*;

    /// A region of plain bytes.
    struct Bytes(RefCell<Vec<u8>>);

    impl MemoryRegion for Bytes {
        fn addr(&self) -> u64 {
            0
        }
        fn len_bytes(&self) -> usize {
            self.0.borrow().len()
        }
        fn lkey(&self) -> Lkey {
            Lkey::new(0)
        }
        fn rkey(&self) -> Rkey {
            Rkey::new(0)
        }
        fn read(&self, offset: usize, to: &mut [u8]) {
            to.copy_from_slice(&self.0.borrow()[offset..offset + to.len()]);
        }
        fn write(&self, offset: usize, from: &[u8]) {
            self.0.borrow_mut()[offset..offset + from.len()].copy_from_slice(from);
        }
        fn load_u64(&self, offset: usize) -> u64 {
            let mut word = [0; WORD_BYTES];
            self.read(offset, &mut word);
            u64::from_ne_bytes(word)
        }
        fn deregister(self) -> Result<(), MemoryError> {
            Ok(())
        }
    }

    fn sample(number: u64) -> SamplePlan {
        SamplePlan { count: 1, number, ..SamplePlan::default() }
    }

    #[test]
    fn every_single_wrong_byte_of_a_small_message_is_noticed() {
        let right = small(&sample(3), 9);
        check_small(&sample(3), 9, &right).unwrap();
        check_small(&sample(3), 9, &right[24..]).unwrap();
        for position in 0..SMALL_BYTES {
            let mut wrong = right;
            wrong[position] ^= 1;
            let error = check_small(&sample(3), 9, &wrong).unwrap_err();
            let offset = position / WORD_BYTES * WORD_BYTES;
            assert!(
                matches!(error, Error::WrongBytes { index: 9, offset_bytes } if offset_bytes == offset)
            );
        }
        assert!(check_small(&sample(3), 10, &right).is_err(), "another message");
        assert!(check_small(&sample(4), 9, &right).is_err(), "another sample");
    }

    #[test]
    fn a_large_message_is_compared_to_its_last_byte() {
        let (sample, len) = (sample(5), 2 * CHUNK_BYTES + 64);
        let region = Bytes(RefCell::new(vec![0; len + 8]));
        fill(&region, 8, len, &sample);
        let message = |stamp| Message { sample: &sample, index: 1, pattern_offset: 0, stamp };
        verify(&region, 8, len, &message(None)).unwrap();
        region.write(8 + len - WORD_BYTES, &77_u64.to_ne_bytes());
        verify(&region, 8, len, &message(Some(77))).unwrap();
        for position in [0, CHUNK_BYTES, len - WORD_BYTES - 1] {
            region.0.borrow_mut()[8 + position] ^= 0x80;
            let error = verify(&region, 8, len, &message(Some(77))).unwrap_err();
            let offset = position / WORD_BYTES * WORD_BYTES;
            assert!(
                matches!(error, Error::WrongBytes { offset_bytes, .. } if offset_bytes == offset)
            );
            region.0.borrow_mut()[8 + position] ^= 0x80;
        }
        let error = verify(&region, 8, len, &message(Some(78)));
        assert!(error.is_err(), "the message before");
    }
}
