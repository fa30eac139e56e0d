//! Interleaves the cells of a benchmark, with a probe before and after every sample.
//!
//! ```text
//! round 1:  probe  cell 3  probe  cell 1  probe  …  cell 2  probe
//! round 2:  probe  cell 2  probe  …
//! ```
//!
//! Taking all samples of one cell in a row would let a phase of the machine decide which is faster; the same order in
//! each round would let one cell always meet what its predecessor leaves behind.

use std::time::Instant;

use rand::{SeedableRng as _, seq::SliceRandom as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::{regime::Probes, rounds::Rounds};

/// How many messages shared a batch, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerBatch {
    /// Calls per batch.
    pub calls: f64,
    /// Answers per batch.
    pub answers: f64,
}

/// A set of cells that are measured together.
pub trait Experiment {
    /// Why a sample failed. The first failure ends the run: a wrong benchmark has no numbers.
    type Error;

    /// Number of cells.
    fn cells(&self) -> usize;

    /// Takes one untimed sample of `cell` and decides how long the real ones are.
    ///
    /// # Errors
    ///
    /// Whatever kept it from running.
    fn prepare(&mut self, cell: usize) -> Result<(), Self::Error>;

    /// Two-line round trip now, in ns.
    ///
    /// # Errors
    ///
    /// Whatever kept it from running.
    fn probe(&mut self) -> Result<f64, Self::Error>;

    /// Takes one sample of `cell`.
    ///
    /// # Errors
    ///
    /// Whatever kept it from running, wrong data included.
    fn sample(&mut self, cell: usize) -> Result<f64, Self::Error>;

    /// Messages per batch of the last sample, if it was of calls.
    fn per_batch(&self) -> Option<PerBatch> {
        None
    }
}

/// One sample of one cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Index of the cell.
    pub cell: usize,
    /// Number of the round: samples that have the same were taken shortly after each other.
    pub round: usize,
    /// The probes around it.
    pub probes: Probes,
    /// The measured value.
    pub value: f64,
    /// Of cells that make calls.
    pub per_batch: Option<PerBatch>,
}

/// Added to the number of a round, for its random order.
const SEED: u64 = 0x636f_7079_7270_6321;

/// The numbers below `len` in random order: always the same of one round.
#[must_use]
pub fn shuffled(len: usize, round: usize) -> Vec<usize> {
    let mut order = (0..len).collect::<Vec<_>>();
    order.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(SEED.wrapping_add(round as u64)));
    order
}

/// Prepares every cell, then runs all of them as often as `rounds` says, each round in an order of its own; `is_known` says
/// whether the samples so far are enough. `step` is called before each sample (preparation included) with the cell, and
/// says whether to go on: `None` if it did not.
///
/// # Errors
///
/// The first one of `workload`.
pub fn interleave<W: Experiment>(
    workload: &mut W,
    rounds: Rounds,
    is_known: impl Fn(&[Sample]) -> bool,
    step: impl FnMut(usize) -> bool,
) -> Result<Option<Vec<Sample>>, W::Error> {
    let mut samples = Vec::new();
    let is_whole = interleave_into(workload, rounds, is_known, &mut samples, step)?;
    Ok(is_whole.then_some(samples))
}

/// As [`interleave`], and samples that were taken before the end or a failure stay. Returns whether all were.
///
/// # Errors
///
/// The first one of `workload`.
pub fn interleave_into<W: Experiment>(
    workload: &mut W,
    rounds: Rounds,
    is_known: impl Fn(&[Sample]) -> bool,
    samples: &mut Vec<Sample>,
    mut step: impl FnMut(usize) -> bool,
) -> Result<bool, W::Error> {
    let begin = Instant::now();
    for cell in 0..workload.cells() {
        if !step(cell) {
            return Ok(false);
        }
        workload.prepare(cell)?;
    }
    let mut done = 0;
    while rounds.goes_on(done, begin.elapsed(), || is_known(samples)) {
        let round = done as usize;
        done += 1;
        let mut before_ns = workload.probe()?;
        for cell in shuffled(workload.cells(), round) {
            if !step(cell) {
                return Ok(false);
            }
            let value = workload.sample(cell)?;
            let per_batch = workload.per_batch();
            let after_ns = workload.probe()?;
            let probes = Probes { before_ns, after_ns };
            samples.push(Sample { cell, round, probes, value, per_batch });
            before_ns = after_ns;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const THREE: Rounds = Rounds::Exactly(3);

    /// Replays probes; a sample is its own number.
    struct Script {
        probes: VecDeque<f64>,
        samples: Vec<usize>,
        fail_at: Option<usize>,
    }

    impl Experiment for Script {
        type Error = usize;

        fn cells(&self) -> usize {
            2
        }

        fn prepare(&mut self, _: usize) -> Result<(), usize> {
            Ok(())
        }

        fn probe(&mut self) -> Result<f64, usize> {
            Ok(self.probes.pop_front().expect("as many probes as the schedule takes"))
        }

        fn sample(&mut self, cell: usize) -> Result<f64, usize> {
            self.samples.push(cell);
            let number = self.samples.len();
            if self.fail_at == Some(number) { Err(number) } else { Ok(number as f64) }
        }
    }

    fn script(probes: &[f64]) -> Script {
        Script { probes: probes.iter().copied().collect(), samples: Vec::new(), fail_at: None }
    }

    #[test]
    fn cells_take_turns_and_each_sample_lies_between_two_probes() {
        let mut script =
            script(&[100., 110., 480., /**/ 490., 490., 300., /**/ 90., 90., 90.]);
        let samples = interleave(&mut script, THREE, |_| false, |_| true).unwrap().unwrap();
        let orders = (0..3).flat_map(|round| shuffled(2, round)).collect::<Vec<_>>();
        assert_eq!(script.samples, orders);
        assert_eq!(script.probes.len(), 0, "one probe per sample and one per round");
        let found =
            samples.iter().map(|s| (s.round, s.value, s.probes.before_ns, s.probes.after_ns));
        let expected = [
            (0, 1., 100., 110.),
            (0, 2., 110., 480.),
            (1, 3., 490., 490.),
            (1, 4., 490., 300.),
            (2, 5., 90., 90.),
            (2, 6., 90., 90.),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_round_has_each_cell_once_and_rounds_differ_in_their_order() {
        let orders = (0..50).map(|round| shuffled(5, round)).collect::<Vec<_>>();
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
        assert_eq!(orders[3], shuffled(5, 3), "the same round, the same order");
        let firsts = |first| orders.iter().filter(|order| order[0] == first).count();
        assert!((0..5).all(|first| firsts(first) > 2), "each is first now and then: {orders:?}");
        assert!(shuffled(0, 1).is_empty());
    }

    #[test]
    fn rounds_end_once_enough_is_known() {
        let mut script = script(&[100.; 99]);
        let known = |samples: &[Sample]| samples.len() >= 16;
        let rounds = Rounds::Known(std::time::Duration::from_secs(3600));
        let samples = interleave(&mut script, rounds, known, |_| true).unwrap().unwrap();
        assert_eq!(samples.len(), 16, "eight rounds of two cells");
        assert_eq!(samples.last().map(|sample| sample.round), Some(7));
    }

    #[test]
    fn a_run_that_is_stopped_has_no_samples() {
        for allowed in 0..8_usize {
            let mut script = script(&[100.; 9]);
            let mut steps = 0;
            let samples = interleave(
                &mut script,
                THREE,
                |_| false,
                |_| {
                    steps += 1;
                    steps <= allowed
                },
            );
            assert_eq!(samples, Ok(None));
            assert_eq!(script.samples.len(), allowed.saturating_sub(2), "two are prepared first");
        }
    }

    #[test]
    fn samples_that_were_taken_before_a_stop_or_a_failure_stay() {
        let mut samples = Vec::new();
        let mut steps = 0;
        let mut script = script(&[100.; 9]);
        let whole = interleave_into(
            &mut script,
            THREE,
            |_| false,
            &mut samples,
            |_| {
                steps += 1;
                steps <= 5
            },
        );
        assert_eq!((whole, samples.len()), (Ok(false), 3));
        samples.clear();
        let mut script = Script { fail_at: Some(2), ..self::script(&[100.; 9]) };
        assert_eq!(interleave_into(&mut script, THREE, |_| false, &mut samples, |_| true), Err(2));
        assert_eq!(samples.len(), 1);
    }

    #[test]
    fn the_first_wrong_sample_ends_the_run() {
        let mut script = Script { fail_at: Some(2), ..script(&[100.; 9]) };
        assert_eq!(interleave(&mut script, THREE, |_| false, |_| true), Err(2));
        assert_eq!(script.samples.len(), 2);
    }
}
