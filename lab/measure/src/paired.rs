//! Ratios of two cells, from samples of the same rounds.
//!
//! A virtual machine changes its pace by several times while a benchmark runs. The two samples of one round
//! are taken shortly after each other, in random order, so most of that change is in both of them and their
//! ratio is free of it. The rest differs from round to round, and a ratio is shown as the median of the
//! rounds with a confidence interval.
//!
//! The interval is that of the sign test: if half of all rounds have a ratio below the true median, then the
//! number of rounds below it is binomial, whatever the distribution. So the interval from the k-th smallest to
//! the k-th largest ratio holds the true median with a probability that depends on k and the number of rounds
//! alone. (W. J. Conover, *Practical Nonparametric Statistics*, 3rd ed., sections 3.2 and 3.4.) Nothing is assumed of
//! the noise but that rounds do not depend on each other, and no sample is left out.

use core::fmt;

use serde::{Deserialize, Serialize};

/// Confidence of all intervals.
pub const CONFIDENCE: f64 = 0.95;
/// Rounds that an interval takes at least: five are all on one side of the median once in 16 times.
pub const ROUNDS_MIN: usize = 6;
/// A ratio is known if its interval reaches at most this factor from its median, on either side.
pub const TOLERANCE: f64 = 1.05;
/// A ratio is undecided if its interval reaches further than this factor from its median.
pub const UNDECIDED: f64 = 1.25;

/// A ratio of two cells.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median over the rounds.
    pub median: f64,
    /// Ends of the interval of [`CONFIDENCE`]. `None`: there are fewer than [`ROUNDS_MIN`] rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
    /// Rounds in which both cells have a sample.
    pub rounds: usize,
}

/// The verdict of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval is above 1.
    More,
    /// The whole interval is below 1.
    Less,
    /// The interval holds 1.
    Same,
    /// The interval reaches further than [`UNDECIDED`], or there is none.
    Undecided {
        /// Rounds that are missing, by estimate: an interval shrinks with the root of their number.
        more_rounds: usize,
    },
}

impl Ratio {
    /// The ratio of the first over the second sample of each round. Rounds without a finite, positive ratio
    /// count as zero or infinite: a contestant without any answer is not left out. `None`: no rounds.
    #[must_use]
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let mut ratios = pairs.into_iter().map(|(over, under)| over / under).collect::<Vec<_>>();
        // Nothing over nothing says nothing.
        ratios.retain(|ratio| !ratio.is_nan());
        ratios.sort_unstable_by(f64::total_cmp);
        let rounds = ratios.len();
        let lower = *ratios.get(rounds.checked_sub(1)? / 2)?;
        let upper = ratios[rounds / 2];
        // The geometric mean, so that the ratio of B over A is the inverse of that of A over B.
        let median = if lower > 0.0 && upper.is_finite() { (lower * upper).sqrt() } else { upper };
        let interval = rank(rounds).map(|rank| (ratios[rank], ratios[rounds - 1 - rank]));
        Some(Self { median, interval, rounds })
    }

    /// Factor from the median to the further end of the interval; infinite without one.
    #[must_use]
    pub fn reach(&self) -> f64 {
        let reach = self.interval.map(|(low, high)| (self.median / low).max(high / self.median));
        reach.filter(|reach| reach.is_finite()).unwrap_or(f64::INFINITY)
    }

    /// Whether the interval reaches no further than `factor`.
    #[must_use]
    pub fn is_known_to(&self, factor: f64) -> bool {
        self.reach() <= factor
    }

    /// The verdict of the ratio.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self.interval {
            Some((low, high)) if self.is_known_to(UNDECIDED) => match () {
                () if low > 1.0 => Verdict::More,
                () if high < 1.0 => Verdict::Less,
                () => Verdict::Same,
            },
            _ => Verdict::Undecided { more_rounds: self.rounds_missing(UNDECIDED) },
        }
    }

    /// Rounds until the interval reaches no further than `factor`, by estimate; 0 if it does not.
    #[must_use]
    pub fn rounds_missing(&self, factor: f64) -> usize {
        if self.is_known_to(factor) {
            return 0;
        }
        let reach = self.reach();
        if !reach.is_finite() {
            return ROUNDS_MIN.saturating_sub(self.rounds).max(1);
        }
        let needed = self.rounds as f64 * (reach.ln() / factor.ln()).powi(2);
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        #[expect(clippy::cast_sign_loss, reason = "a square")]
        let needed = needed.ceil() as usize;
        needed.saturating_sub(self.rounds).max(1)
    }
}

/// The word behind a number of rounds.
#[must_use]
pub fn rounds_word(count: usize) -> &'static str {
    if count == 1 { "round" } else { "rounds" }
}

/// For a table: the median, then the interval or that the ratio is undecided.
impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, interval, .. } = self;
        write!(f, "{median:.2}")?;
        if let Some((low, high)) = interval {
            match high.is_finite() {
                true => write!(f, " ({low:.2}–{high:.2})")?,
                false => write!(f, " ({low:.2}–∞)")?,
            }
        }
        match self.verdict() {
            Verdict::Undecided { more_rounds } => {
                write!(f, ", undecided: {more_rounds} more {}", rounds_word(more_rounds))
            }
            Verdict::More | Verdict::Less | Verdict::Same => Ok(()),
        }
    }
}

/// Of so many sorted ratios, how many lie below the interval, and as many above. `None`: too few for one.
fn rank(rounds: usize) -> Option<usize> {
    // Both tails hold half of what the confidence leaves.
    let tail = (1.0 - CONFIDENCE) / 2.0;
    // Probability that none, one, two … of all rounds are below the true median.
    let mut probability = 0.5_f64.powi(i32::try_from(rounds).ok()?);
    let mut sum = 0.0;
    let mut below = 0;
    // For very many rounds the first terms are below the smallest number: they add nothing.
    if probability == 0.0 {
        let rounds = rounds as f64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "of more than a thousand rounds, positive"
        )]
        #[expect(clippy::cast_sign_loss, reason = "of more than a thousand rounds, positive")]
        return Some((rounds / 2.0 - 0.98 * rounds.sqrt()) as usize - 1);
    }
    while sum + probability <= tail {
        sum += probability;
        probability *= (rounds - below) as f64 / (below + 1) as f64;
        below += 1;
    }
    below.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};
    use rand::SeedableRng as _;
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    /// The table of the sign test, 95 %, as statistics books print it: rounds and the rank of the interval's
    /// lower end, from 1.
    #[test]
    fn ranks_are_those_of_the_printed_table() {
        for (rounds, printed) in [
            (6, 1),
            (8, 1),
            (9, 2),
            (11, 2),
            (12, 3),
            (15, 4),
            (20, 6),
            (25, 8),
            (30, 10),
            (50, 18),
            (100, 40),
        ] {
            assert_eq!(rank(rounds).map(|rank| rank + 1), Some(printed), "{rounds} rounds");
        }
        assert!((0..ROUNDS_MIN).all(|rounds| rank(rounds).is_none()));
    }

    #[test]
    fn very_many_rounds_have_the_rank_of_the_normal_distribution() {
        // 1074 halvings are the last that a float can tell from zero.
        let [exact, approximate] = [1070, 1076].map(|rounds| rank(rounds).unwrap());
        assert!(exact.abs_diff(approximate) <= 4, "{exact} {approximate}");
    }

    #[test]
    fn a_ratio_is_that_of_the_same_round_whatever_the_pace() {
        let paces = [1.0, 5.0, 1.0, 4.0, 0.2, 1.0, 3.0];
        let ratio = Ratio::of(paces.map(|pace| (30.0 * pace, 10.0 * pace))).unwrap();
        assert!((ratio.median - 3.0).abs() < 1e-9 && ratio.rounds == 7);
        assert!(ratio.is_known_to(1.001), "{ratio:?}");
        assert_eq!(ratio.verdict(), Verdict::More);
    }

    #[test]
    fn verdicts_are_what_intervals_allow() {
        let of = |ratios: &[f64]| Ratio::of(ratios.iter().map(|&ratio| (ratio, 1.0))).unwrap();
        assert_eq!(of(&[1.3, 1.4, 1.3, 1.2, 1.5, 1.3]).verdict(), Verdict::More);
        assert_eq!(of(&[0.8, 0.9, 0.75, 0.8, 0.7, 0.9]).verdict(), Verdict::Less);
        assert_eq!(of(&[0.98, 1.02, 1.0, 1.01, 0.99, 1.0]).verdict(), Verdict::Same);
        let wide = of(&[0.5, 2.0, 1.0, 0.6, 1.5, 1.1]);
        assert!(matches!(wide.verdict(), Verdict::Undecided { more_rounds: 2.. }), "{wide:?}");
        let few = of(&[1.3, 1.4, 1.3]);
        assert_eq!(few.verdict(), Verdict::Undecided { more_rounds: 3 });
        assert_eq!(few.interval, None);
        assert_eq!(few.to_string(), "1.30, undecided: 3 more rounds");
        assert_eq!(of(&[1.0, 1.02, 1.0, 1.0, 1.0, 0.99]).to_string(), "1.00 (0.99–1.02)");
    }

    /// A contestant that had no answer in some rounds is not judged by the others.
    #[test]
    fn a_round_without_an_answer_counts() {
        let ratio = Ratio::of([(0.0, 1.0), (0.0, 2.0), (3.0, 1.0)]).unwrap();
        assert!(ratio.median == 0.0, "{ratio:?}");
        let mut pairs = vec![(4.0, 1.0); 8];
        pairs[3].1 = 0.0;
        let shown = Ratio::of(pairs).unwrap().to_string();
        assert!(shown.starts_with("4.00 (4.00–∞), undecided: "), "{shown}");
        let ratio = Ratio::of([(1.0, 0.0), (2.0, 0.0), (3.0, 1.0)]).unwrap();
        assert!(ratio.median.is_infinite(), "{ratio:?}");
        assert_eq!(Ratio::of([(0.0, 0.0)]), None);
        assert_eq!(Ratio::of([]), None);
    }

    proptest! {
        #[test]
        fn turning_a_ratio_round_inverts_it(pairs in vec((0.1_f64..100.0, 0.1_f64..100.0), 1..40)) {
            let there = Ratio::of(pairs.iter().copied()).unwrap();
            let back = Ratio::of(pairs.iter().map(|&(a, b)| (b, a))).unwrap();
            prop_assert!((there.median * back.median - 1.0).abs() < 1e-9);
            if let (Some((low, high)), Some((back_low, back_high))) = (there.interval, back.interval) {
                prop_assert!((low * back_high - 1.0).abs() < 1e-9);
                prop_assert!((high * back_low - 1.0).abs() < 1e-9);
                prop_assert!(low <= there.median && there.median <= high);
            }
        }
    }

    /// A machine whose pace jumps by five at random times, and whose neighbours steal some of the cores for a
    /// while: between two samples of a round, too.
    struct Machine {
        rng: Xoshiro256PlusPlus,
        pace: f64,
        stolen: f64,
    }

    impl Machine {
        fn new(seed: u64) -> Self {
            Self { rng: Xoshiro256PlusPlus::seed_from_u64(seed), pace: 1.0, stolen: 0.0 }
        }

        fn chance(&mut self, probability: f64) -> bool {
            self.rng.random::<f64>() < probability
        }

        /// A sample of what would be `value` on a quiet machine.
        fn sample(&mut self, value: f64) -> f64 {
            if self.chance(0.1) {
                self.pace = if self.pace < 1.0 { 1.0 } else { 0.2 };
            }
            if self.chance(0.2) {
                self.stolen = if self.stolen > 0.0 { 0.0 } else { self.rng.random_range(0.1..0.9) };
            }
            let jitter = 1.0 + 0.05 * (self.rng.random::<f64>() - 0.5);
            value * self.pace * (1.0 - self.stolen) * jitter
        }

        /// One round: both contestants once, in random order.
        fn round(&mut self, over: f64, under: f64) -> (f64, f64) {
            if self.rng.next_u32().is_multiple_of(2) {
                let first = self.sample(over);
                (first, self.sample(under))
            } else {
                let second = self.sample(under);
                (self.sample(over), second)
            }
        }
    }

    /// How many of 1000 runs on such machines have the true ratio within their interval.
    fn covered(rounds: usize, truth: f64, round: impl Fn(&mut Machine) -> (f64, f64)) -> usize {
        (0..1000)
            .filter(|&seed| {
                let mut machine = Machine::new(seed);
                let ratio = Ratio::of((0..rounds).map(|_| round(&mut machine))).unwrap();
                let (low, high) = ratio.interval.unwrap();
                (low..=high).contains(&truth)
            })
            .count()
    }

    #[test]
    fn the_interval_covers_the_truth_in_95_of_100_runs_on_machines_that_jump_and_are_robbed() {
        for rounds in [6, 9, 15, 40] {
            for truth in [0.8, 1.0, 4.5] {
                let covered = covered(rounds, truth, |machine| machine.round(truth * 100.0, 100.0));
                // 950 of 1000, less three standard deviations of such a count.
                assert!(covered >= 929, "{rounds} rounds, ratio {truth}: {covered} of 1000");
            }
        }
    }

    /// The test above can fail.
    #[test]
    fn a_bias_of_a_tenth_is_noticed() {
        let biased = covered(40, 1.0, |machine| machine.round(110.0, 100.0));
        assert!(biased < 500, "{biased} of 1000 runs did not notice");
    }
}
