//! In which regime of the machine a sample was taken.
//!
//! A hypervisor may place two virtual cores of a guest on one cluster of physical cores or on two, or even
//! on the two threads of one core, and move them while a program runs. Whatever moves cache lines between
//! the two then takes several times as long, or next to nothing, while both share one core's units. The
//! guest can neither see nor choose it, but the round trip of a cache line tells. So every sample is bracketed by two such probes and filed under what both say.

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
    /// They are two threads of one core.
    Twin,
    /// None of these clearly, or it changed meanwhile: such samples are counted and dropped.
    Mixed,
}

/// Two-line round trips below this are of two threads of one core, in ns.
pub const TWIN_BELOW_NS: f64 = 65.0;
/// Two-line round trips below this, and not of one core, are near, in ns.
pub const NEAR_BELOW_NS: f64 = 250.0;
/// Two-line round trips inside this range are far, in ns.
pub const FAR_WITHIN_NS: core::ops::RangeInclusive<f64> = 350.0..=700.0;

impl Regime {
    /// The regimes whose samples are kept.
    pub const KEPT: [Self; 3] = [Self::Near, Self::Far, Self::Twin];

    /// What one probe says: the round trip of two cache lines.
    #[must_use]
    pub fn of_round_trip(ns: f64) -> Self {
        if ns < TWIN_BELOW_NS {
            Self::Twin
        } else if ns < NEAR_BELOW_NS {
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
            Self::Twin => "twin",
            Self::Mixed => "mixed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_files_by_the_thresholds() {
        use Regime::{Far, Mixed, Near, Twin};
        for (ns, regime) in [
            (40.0, Twin),
            (64.9, Twin),
            (65.0, Near),
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
        use Regime::{Far, Mixed, Near, Twin};
        assert_eq!(Regime::bracket(Near, Near), Near);
        assert_eq!(Regime::bracket(Near, Twin), Mixed);
        assert_eq!(Regime::bracket(Far, Far), Far);
        for (before, after) in [(Near, Far), (Far, Near), (Near, Mixed), (Mixed, Mixed)] {
            assert_eq!(Regime::bracket(before, after), Mixed);
        }
    }
}
