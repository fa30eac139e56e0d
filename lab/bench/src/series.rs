//! A series of numbered calls whose answers are checked: each is its request with the first word inverted.

use std::time::{Duration, Instant};

use protocols::Status;

use crate::{error::Error, sample::SamplePlan, stats::Laps};

/// Bytes of the word that numbers a call.
pub(crate) const WORD_BYTES: usize = size_of::<u64>();

/// The bytes of a body: 251 is prime, so no two lines are alike, nor two pages.
pub(crate) fn pattern(len_bytes: usize) -> Vec<u8> {
    (0..=250_u8).cycle().take(len_bytes).collect()
}

pub(crate) fn wrong(index: u64, what: impl ToString) -> Error {
    Error::Call { index, what: what.to_string() }
}

/// The calls of one sample, some of which are made before the clock starts.
pub(crate) struct Series {
    /// The high half of every body's first word.
    number: u64,
    /// Calls made, answered, and to be made.
    made: u64,
    done: u64,
    total: u64,
    /// Calls before the clock starts, and per reading of it.
    untimed: u64,
    batch: u64,
    /// One call at a time: batches of round trips are timed.
    is_ping_pong: bool,
    /// When the clock started, and the batches of round trips since.
    started: Option<(Instant, Laps)>,
    finished: Option<Instant>,
    /// Every body but its first word.
    pattern: Vec<u8>,
    /// Length of an answer: a whole body, or its first word.
    answer_bytes: usize,
}

impl Series {
    pub(crate) fn new(
        sample: &SamplePlan,
        depth: u16,
        body_bytes: usize,
        answer_bytes: usize,
    ) -> Self {
        let batch = sample.batch();
        let untimed = (sample.count / 8).max(u64::from(depth)).next_multiple_of(batch);
        Self {
            number: sample.number,
            made: 0,
            done: 0,
            total: untimed + sample.count,
            untimed,
            batch,
            is_ping_pong: depth == 1,
            started: None,
            finished: None,
            pattern: pattern(body_bytes),
            answer_bytes,
        }
    }

    /// The index of the next call, if one is left.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        (self.made < self.total).then_some(self.made)
    }

    /// The next call was made.
    #[inline]
    pub(crate) fn count_made(&mut self) {
        self.made += 1;
    }

    #[inline]
    pub(crate) fn body_bytes(&self) -> usize {
        self.pattern.len()
    }

    /// Writes the body of a call.
    #[inline]
    pub(crate) fn write_body(&self, index: u64, to: &mut [u8]) {
        to.copy_from_slice(&self.pattern);
        to[..WORD_BYTES].copy_from_slice(&self.word(index).to_ne_bytes());
    }

    /// The body of a call, in memory of the series.
    #[inline]
    pub(crate) fn body(&mut self, index: u64) -> &[u8] {
        let word = self.word(index);
        self.pattern[..WORD_BYTES].copy_from_slice(&word.to_ne_bytes());
        &self.pattern
    }

    fn word(&self, index: u64) -> u64 {
        self.number << 32 | index
    }

    /// Whether an answer is the right one.
    #[inline]
    pub(crate) fn check(&self, index: u64, status: Status, body: &[u8]) -> Result<(), Error> {
        let expected = &self.pattern[..self.answer_bytes];
        match body.split_first_chunk::<WORD_BYTES>() {
            _ if status != Status::Ok => Err(wrong(index, status)),
            Some((word, rest)) if body.len() == expected.len() => {
                if *word != (!self.word(index)).to_ne_bytes() {
                    Err(wrong(index, "its answer has another number"))
                } else if *rest != expected[WORD_BYTES..] {
                    Err(wrong(index, "its answer has other bytes"))
                } else {
                    Ok(())
                }
            }
            _ => Err(wrong(index, "its answer has another length")),
        }
    }

    /// A call was answered: reads the clock when it is time to.
    #[inline]
    pub(crate) fn count_done(&mut self) {
        self.done += 1;
        if self.done == self.untimed {
            self.started = Some((Instant::now(), Laps::start()));
        } else if self.is_ping_pong
            && self.done.is_multiple_of(self.batch)
            && let Some((_, laps)) = &mut self.started
        {
            laps.lap(self.batch);
        }
        if self.done == self.total {
            self.finished = Some(Instant::now());
        }
    }

    #[inline]
    pub(crate) fn is_finished(&self) -> bool {
        self.finished.is_some()
    }

    /// The time of all timed calls, and the median batch of round trips in ns if there were such batches.
    pub(crate) fn take_times(&mut self) -> Option<(Duration, Option<f64>)> {
        let ((begin, laps), end) = (self.started.take()?, self.finished?);
        let is_timed = self.is_ping_pong && !laps.is_empty();
        Some((end - begin, is_timed.then(|| laps.median_ns())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(count: u64) -> Series {
        let sample = SamplePlan { count, number: 3, ..SamplePlan::default() };
        Series::new(&sample, 1, 24, 24)
    }

    #[test]
    fn an_answer_has_the_inverted_number_and_the_bytes_of_its_call() {
        let mut series = series(100);
        let mut answer = series.body(5).to_vec();
        let number = series.check(5, Status::Ok, &answer).unwrap_err();
        assert!(number.to_string().contains("another number"), "{number}");
        answer[..WORD_BYTES].iter_mut().for_each(|byte| *byte = !*byte);
        series.check(5, Status::Ok, &answer).unwrap();
        series.body(6); // another call is made meanwhile
        series.check(5, Status::Ok, &answer).unwrap();
        assert!(series.check(6, Status::Ok, &answer).is_err());
        assert!(series.check(5, Status::Cancelled, &answer).is_err());
        let length = series.check(5, Status::Ok, &answer[..23]).unwrap_err();
        assert!(length.to_string().contains("another length"), "{length}");
        answer[23] ^= 1;
        let bytes = series.check(5, Status::Ok, &answer).unwrap_err();
        assert!(bytes.to_string().contains("other bytes"), "{bytes}");
    }

    #[test]
    fn a_series_ends_with_its_last_answer() {
        let mut series = series(100);
        let mut made = 0;
        while let Some(index) = series.next() {
            assert_eq!(index, made);
            series.count_made();
            made += 1;
        }
        assert!(made > 100, "some are not timed");
        for _ in 1..made {
            series.count_done();
        }
        assert!(!series.is_finished());
        series.count_done();
        assert!(series.is_finished());
        let (_, median) = series.take_times().unwrap();
        assert!(median.is_some());
    }
}
