//! Counts before others can read them: an addition in private memory, whoever may be looking.

use crate::metrics::{
    Phase, Recorder,
    counters::{Counter, Timing},
};

/// Counts for a [`Recorder`]. What is counted gets into the file when it is [published](Self::publish),
/// at the latest when this is dropped.
///
/// Values of a distribution that come in a row are often the same one, as those of calls that travel
/// in one batch are: a row is kept as one value and its length.
#[derive(Debug)]
pub struct Tally {
    recorder: Recorder,
    /// By counter: what is to be added.
    counts: [u64; Counter::ALL.len()],
    /// By timing: the values that came last.
    runs: [Run; Timing::ALL.len()],
}

/// The same value several times.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    value: u64,
    count: u64,
}

impl Tally {
    /// Counts nothing yet.
    #[must_use]
    pub fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            counts: [0; Counter::ALL.len()],
            runs: [Run::default(); Timing::ALL.len()],
        }
    }

    /// Counts `amount` more.
    #[inline]
    pub fn add(&mut self, counter: Counter, amount: u64) {
        let count = &mut self.counts[counter as usize];
        *count = count.wrapping_add(amount);
    }

    /// Counts one value of a distribution.
    #[inline]
    pub fn record(&mut self, timing: Timing, value: u64) {
        self.record_all(timing, value, 1);
    }

    /// Counts a value of a distribution `count` times.
    #[inline]
    pub fn record_all(&mut self, timing: Timing, value: u64, count: u64) {
        let run = &mut self.runs[timing as usize];
        if run.value == value {
            run.count += count;
        } else {
            self.end_run(timing, Run { value, count });
        }
    }

    /// Out of line, so that what is done for most values stays short.
    #[inline(never)]
    fn end_run(&mut self, timing: Timing, next: Run) {
        let last = core::mem::replace(&mut self.runs[timing as usize], next);
        self.recorder.record_all(timing, last.value, last.count);
    }

    /// What was counted so far, published or not.
    pub(crate) fn total(&self, counter: Counter) -> u64 {
        self.recorder.total(counter).wrapping_add(self.counts[counter as usize])
    }

    /// Time of a part of the loop so far.
    pub(crate) fn phase_ns(&self, phase: Phase) -> u64 {
        self.recorder.sum(phase.timing())
    }

    /// Lets others read all that was counted.
    pub fn publish(&mut self) {
        for (counter, count) in Counter::ALL.iter().zip(&mut self.counts) {
            if *count > 0 {
                self.recorder.add(*counter, core::mem::take(count));
            }
        }
        for (timing, run) in Timing::ALL.iter().zip(&mut self.runs) {
            if run.count > 0 {
                self.recorder.record_all(*timing, run.value, core::mem::take(&mut run.count));
            }
        }
    }

    /// The recorder itself, for counts that are rare enough to be written where others read them.
    pub fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.publish();
    }
}
