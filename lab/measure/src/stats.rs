//! Samples to numbers.

use std::time::Instant;

use serde::{Deserialize, Serialize};

/// The summary of a set of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Middle value; of an even number the mean of the middle two.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Number of samples.
    pub runs: usize,
}

impl Summary {
    /// `None` of no samples.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let &min = sorted.first()?;
        let &max = sorted.last()?;
        Some(Self { median: middle(&sorted), min, max, runs: sorted.len() })
    }
}

/// Median of `samples`, which it sorts.
///
/// # Panics
///
/// If there are none.
#[must_use]
pub fn median(samples: &mut [f64]) -> f64 {
    assert!(!samples.is_empty(), "no samples, no median");
    samples.sort_unstable_by(f64::total_cmp);
    middle(samples)
}

/// Times of batches, of which the median counts.
#[derive(Debug)]
pub struct Laps {
    last: Instant,
    each_ns: Vec<f64>,
}

impl Laps {
    /// The first batch begins now.
    #[must_use]
    pub fn start() -> Self {
        Self { last: Instant::now(), each_ns: Vec::with_capacity(4096) }
    }

    /// A batch of `count` ends now, and the next one begins; says when.
    #[inline]
    pub fn lap(&mut self, count: u64) -> Instant {
        let now = Instant::now();
        self.each_ns.push((now - self.last).as_secs_f64() * 1e9 / count as f64);
        self.last = now;
        now
    }

    /// The next batch begins now: work since the last one does not count.
    pub fn restart(&mut self) {
        self.last = Instant::now();
    }

    /// Whether no batch has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.each_ns.is_empty()
    }

    /// The median batch, in ns of each of its parts.
    ///
    /// # Panics
    ///
    /// If no batch has ended.
    #[must_use]
    pub fn median_ns(mut self) -> f64 {
        median(&mut self.each_ns)
    }
}

pub(crate) fn middle(sorted: &[f64]) -> f64 {
    let upper = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[upper] } else { sorted[upper - 1].midpoint(sorted[upper]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_known_samples_are_exact() {
        assert_eq!(Summary::of(&[]), None);
        let one = Summary { median: 4.0, min: 4.0, max: 4.0, runs: 1 };
        assert_eq!(Summary::of(&[4.0]), Some(one));
        let odd = Summary { median: 3.0, min: 1.0, max: 100.0, runs: 3 };
        assert_eq!(Summary::of(&[100.0, 1.0, 3.0]), Some(odd));
        let even = Summary { median: 2.5, min: 1.0, max: 9.0, runs: 4 };
        assert_eq!(Summary::of(&[9.0, 2.0, 1.0, 3.0]), Some(even));
    }

    #[test]
    fn a_median_ignores_one_outlier() {
        assert!((median(&mut [5.0, 5.0, 5.0, 5.0, 1e9]) - 5.0).abs() < f64::EPSILON);
    }
}
