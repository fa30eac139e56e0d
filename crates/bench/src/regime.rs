//! In which regime of the machine a sample was taken.
//!
//! A hypervisor may place two virtual cores of a guest on one cluster of physical cores or on two,
//! and move them while a program runs. Everything that moves cache lines between the two is then
//! several times slower. The guest can neither see nor choose it, but the round trip of a cache
//! line tells. So every sample is bracketed by two such probes and filed under what both say.

use core::fmt;

use serde::{Deserialize, Serialize};

/// What a probe, or the two around a sample, say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Regime {
    /// The cores share a cache.
    Near,
    /// They do not.
    Far,
    /// Neither clearly, or it changed meanwhile: such samples are counted and dropped.
    Mixed,
}

/// Two-line round trips below this are near, in ns.
pub const NEAR_BELOW_NS: f64 = 250.0;
/// Two-line round trips inside this range are far, in ns.
pub const FAR_WITHIN_NS: core::ops::RangeInclusive<f64> = 350.0..=700.0;

impl Regime {
    /// The regimes whose samples are kept.
    pub const KEPT: [Self; 2] = [Self::Near, Self::Far];

    /// What one probe says: the round trip of two cache lines.
    #[must_use]
    pub fn of_round_trip(ns: f64) -> Self {
        if ns < NEAR_BELOW_NS {
            Self::Near
        } else if FAR_WITHIN_NS.contains(&ns) {
            Self::Far
        } else {
            Self::Mixed
        }
    }

    /// Where a sample between two probes belongs.
    #[must_use]
    pub fn bracket(before: Self, after: Self) -> Self {
        if before == after { before } else { Self::Mixed }
    }
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Mixed => "mixed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_files_by_the_two_thresholds() {
        use Regime::{Far, Mixed, Near};
        for (ns, regime) in [
            (85.0, Near),
            (249.9, Near),
            (250.0, Mixed),
            (349.9, Mixed),
            (350.0, Far),
            (700.0, Far),
            (700.1, Mixed),
            (f64::NAN, Mixed),
        ] {
            assert_eq!(Regime::of_round_trip(ns), regime, "{ns} ns");
        }
    }

    #[test]
    fn a_sample_counts_only_if_both_probes_agree() {
        use Regime::{Far, Mixed, Near};
        assert_eq!(Regime::bracket(Near, Near), Near);
        assert_eq!(Regime::bracket(Far, Far), Far);
        for (before, after) in [(Near, Far), (Far, Near), (Near, Mixed), (Mixed, Mixed)] {
            assert_eq!(Regime::bracket(before, after), Mixed);
        }
    }
}
