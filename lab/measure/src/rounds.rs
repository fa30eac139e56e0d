//! How many rounds a run has: a number, or as many as its ratios take.

use std::time::Duration;

use crate::paired::ROUNDS_MIN;

/// Rounds, whatever the machine does.
pub const ROUNDS_MAX: u32 = 1000;

/// How many rounds there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// This many.
    Exactly(u32),
    /// Until the ratios of the headline are known to [`TOLERANCE`](crate::paired::TOLERANCE), or this time is over; at
    /// least [`ROUNDS_MIN`], which an interval takes, and at most [`ROUNDS_MAX`].
    Known(Duration),
}

impl Rounds {
    /// Rounds of each cell, at least.
    #[must_use]
    pub fn min(self) -> u32 {
        match self {
            Self::Exactly(rounds) => rounds,
            Self::Known(_) => u32::try_from(ROUNDS_MIN).unwrap_or(u32::MAX),
        }
    }

    /// Samples of `cells` cells, at least, the one that prepares each included.
    #[must_use]
    pub fn samples(self, cells: usize) -> usize {
        cells.saturating_mul(usize::try_from(self.min()).unwrap_or(usize::MAX).saturating_add(1))
    }

    /// Whether another round follows the `done` ones, which took `elapsed` together, what came before them included:
    /// a round that would end late does not begin.
    pub fn goes_on(self, done: u32, elapsed: Duration, is_known: impl FnOnce() -> bool) -> bool {
        match self {
            Self::Exactly(rounds) => done < rounds,
            Self::Known(_) if done < self.min() => true,
            Self::Known(time) => {
                done < ROUNDS_MAX && elapsed + elapsed / done.max(1) < time && !is_known()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn rounds_go_on_until_ratios_are_known_or_time_is_over_and_are_never_too_few_for_an_interval() {
        let known = Rounds::Known(20 * S);
        assert!(known.goes_on(0, Duration::ZERO, || true));
        assert!(known.goes_on(5, 500 * S, || true), "five rounds have no interval");
        assert!(known.goes_on(6, 12 * S, || false));
        assert!(!known.goes_on(6, 12 * S, || true), "all is known");
        assert!(!known.goes_on(6, 18 * S, || false), "one more would take 3 s");
        assert!(!Rounds::Known(Duration::MAX / 4).goes_on(ROUNDS_MAX, S, || false));
    }

    #[test]
    fn a_number_of_rounds_is_that_number() {
        let made =
            |rounds: Rounds| (0..9).take_while(move |done| rounds.goes_on(*done, S, || false));
        assert_eq!(made(Rounds::Exactly(3)).count(), 3);
        assert_eq!(made(Rounds::Exactly(0)).count(), 0);
    }
}
