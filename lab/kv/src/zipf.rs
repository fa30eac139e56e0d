//! Zipfian numbers: the one of rank `k` (from 0) is drawn with probability ∝ 1 / (k + 1)^exponent.
//!
//! Rejection-inversion: exact for every range and exponent, without a table, in about 1.1 trials.
//!
//! Source: W. Hörmann and G. Derflinger, "Rejection-inversion to generate variates from monotone
//! discrete distributions", ACM TOMACS 6 (1996).

use crate::rng::Rng;

/// A Zipfian distribution over `0..count`.
#[derive(Clone, Debug)]
pub struct Zipf {
    count: u64,
    exponent: f64,
    /// `hull` at 1.5, less the mass of the first number.
    low: f64,
    /// `hull` at `count` + 0.5.
    high: f64,
    /// Distances below this are accepted without a further look.
    accept_below: f64,
}

impl Zipf {
    /// The distribution over `0..count` with `exponent` > 0; 0.99 is what YCSB uses.
    ///
    /// # Panics
    ///
    /// If `count` is zero, or `exponent` not positive.
    #[must_use]
    pub fn new(count: u64, exponent: f64) -> Self {
        assert!(count > 0 && exponent > 0.0, "Zipf over 0..{count} with exponent {exponent}");
        let low = hull(exponent, 1.5) - 1.0;
        let high = hull(exponent, count as f64 + 0.5);
        let accept_below = 2.0 - hull_inverse(exponent, hull(exponent, 2.5) - mass(exponent, 2.0));
        Self { count, exponent, low, high, accept_below }
    }

    /// One number.
    #[expect(clippy::cast_possible_truncation, reason = "clamped to the range")]
    #[expect(clippy::cast_sign_loss, reason = "clamped to the range")]
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.high + rng.unit() * (self.low - self.high);
            let x = hull_inverse(self.exponent, u);
            let k = (x + 0.5).floor().clamp(1.0, self.count as f64);
            let is_accepted = k - x <= self.accept_below
                || u >= hull(self.exponent, k + 0.5) - mass(self.exponent, k);
            if is_accepted {
                return k as u64 - 1;
            }
        }
    }
}

/// Probability of the number `x` (from 1), but for a constant factor.
fn mass(exponent: f64, x: f64) -> f64 {
    x.powf(-exponent)
}

/// Integral of [`mass`].
fn hull(exponent: f64, x: f64) -> f64 {
    let log = x.ln();
    growth((1.0 - exponent) * log) * log
}

fn hull_inverse(exponent: f64, y: f64) -> f64 {
    // Rounding may push the argument of the logarithm below its domain.
    let t = (y * (1.0 - exponent)).max(-1.0);
    (log_growth(t) * y).exp()
}

/// (eᵗ - 1) / t, also where t vanishes.
fn growth(t: f64) -> f64 {
    if t.abs() > 1e-8 { t.exp_m1() / t } else { 1.0 + t / 2.0 * (1.0 + t / 3.0) }
}

/// ln(1 + t) / t, also where t vanishes.
fn log_growth(t: f64) -> f64 {
    if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 - t * (0.5 - t / 3.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pearson's statistic of 10 numbers, 9 degrees of freedom: 27.9 is exceeded once in 1000.
    fn chi_square(exponent: f64) -> f64 {
        const DRAWS: u32 = 100_000;
        let zipf = Zipf::new(10, exponent);
        let mut rng = Rng::new(11, 3);
        let mut seen = [0.0; 10];
        for _ in 0..DRAWS {
            seen[usize::try_from(zipf.draw(&mut rng)).unwrap()] += 1.0;
        }
        let masses = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0].map(|x| mass(exponent, x));
        let total = masses.iter().sum::<f64>();
        let expected = masses.map(|mass| mass / total * f64::from(DRAWS));
        seen.iter().zip(expected).map(|(seen, expected)| (seen - expected).powi(2) / expected).sum()
    }

    #[test]
    fn frequencies_follow_the_law() {
        for exponent in [0.5, 0.99, 1.0, 1.2, 2.0] {
            assert!(chi_square(exponent) < 27.9, "exponent {exponent}");
        }
    }

    #[test]
    fn one_number_is_always_that_number() {
        let zipf = Zipf::new(1, 0.99);
        let mut rng = Rng::new(0, 0);
        assert!((0..100).all(|_| zipf.draw(&mut rng) == 0));
    }

    #[test]
    fn large_ranges_are_reached_but_not_left() {
        let zipf = Zipf::new(1 << 40, 0.5);
        let mut rng = Rng::new(1, 0);
        let largest = (0..1000).map(|_| zipf.draw(&mut rng)).max().unwrap();
        assert!((1 << 38..1 << 40).contains(&largest), "{largest}");
    }
}
