//! Interleaves the cells of a benchmark and files every sample under its regime.
//!
//! ```text
//! round 1:  probe  cell 1  probe  cell 2  probe  …  cell n  probe
//! round 2:  probe  cell 1  probe  …
//! ```
//!
//! Taking all samples of one cell in a row would let a phase of the machine decide who wins.

use crate::{regime::Regime, workers::Merging};

/// What is measured together.
pub trait Workload {
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

    /// How many messages shared a batch in the last sample, if it was of calls.
    fn merging(&self) -> Option<Merging> {
        None
    }
}

/// Samples of one cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filed {
    near: Vec<f64>,
    far: Vec<f64>,
    twin: Vec<f64>,
    /// With each sample of calls.
    merging: Vec<(Regime, Merging)>,
    dropped: usize,
}

impl Filed {
    /// Files one sample.
    pub fn file(&mut self, regime: Regime, sample: f64) {
        match regime {
            Regime::Near => self.near.push(sample),
            Regime::Far => self.far.push(sample),
            Regime::Twin => self.twin.push(sample),
            Regime::Mixed => self.dropped += 1,
        }
    }

    /// Files what was said of the sample that was filed last.
    pub fn file_merging(&mut self, regime: Regime, merging: Option<Merging>) {
        self.merging.extend(merging.map(|merging| (regime, merging)));
    }

    /// Mean over the samples of calls that were taken in `regime`.
    #[must_use]
    pub fn merging(&self, regime: Regime) -> Option<Merging> {
        let of_regime = || self.merging.iter().filter(|(found, _)| *found == regime);
        let count = of_regime().count() as f64;
        let sum = of_regime().fold(Merging::default(), |sum, (_, one)| Merging {
            calls: sum.calls + one.calls / count,
            answers: sum.answers + one.answers / count,
        });
        (count > 0.0).then_some(sum)
    }

    /// Samples that were taken in `regime`; of the dropped ones only the number is kept.
    #[must_use]
    pub fn samples(&self, regime: Regime) -> &[f64] {
        match regime {
            Regime::Near => &self.near,
            Regime::Far => &self.far,
            Regime::Twin => &self.twin,
            Regime::Mixed => &[],
        }
    }

    /// Samples whose probes disagreed, or told no regime.
    #[must_use]
    pub fn dropped(&self) -> usize {
        self.dropped
    }
}

/// Prepares every cell, then runs all of them in `rounds` rounds. `step` is called before each
/// sample (preparation included) with the cell.
///
/// # Errors
///
/// The first one of `workload`.
pub fn interleave<W: Workload>(
    workload: &mut W,
    rounds: usize,
    mut step: impl FnMut(usize),
) -> Result<Vec<Filed>, W::Error> {
    for cell in 0..workload.cells() {
        step(cell);
        workload.prepare(cell)?;
    }
    let mut filed = vec![Filed::default(); workload.cells()];
    for _ in 0..rounds {
        let mut before_ns = workload.probe()?;
        for (cell, filed) in filed.iter_mut().enumerate() {
            step(cell);
            let sample = workload.sample(cell)?;
            let merging = workload.merging();
            let after_ns = workload.probe()?;
            let regime = Regime::between(before_ns, after_ns);
            filed.file(regime, sample);
            filed.file_merging(regime, merging);
            before_ns = after_ns;
        }
    }
    Ok(filed)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Replays probes; a sample is its own number.
    struct Script {
        probes: VecDeque<f64>,
        samples: Vec<usize>,
        fail_at: Option<usize>,
    }

    impl Workload for Script {
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
    fn cells_take_turns_and_samples_are_filed_by_the_probes_around_them() {
        let mut script =
            script(&[100., 110., 480., /**/ 490., 490., 300., /**/ 90., 90., 90.]);
        let filed = interleave(&mut script, 3, |_| {}).unwrap();
        assert_eq!(script.samples, [0, 1, 0, 1, 0, 1]);
        assert_eq!(script.probes.len(), 0, "one probe per sample and one per round");
        let first = Filed { near: vec![1.0, 5.0], far: vec![3.0], ..Filed::default() };
        let second = Filed { near: vec![6.0], dropped: 2, ..Filed::default() };
        assert_eq!(filed, [first, second]);
    }

    #[test]
    fn the_first_wrong_sample_ends_the_run() {
        let mut script = Script { fail_at: Some(2), ..script(&[100.; 9]) };
        assert_eq!(interleave(&mut script, 3, |_| {}), Err(2));
        assert_eq!(script.samples.len(), 2);
    }
}
