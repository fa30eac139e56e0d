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
/// Two-line round trips below this, and not of one core, are near, in ns: between what clusters of today's
/// processors take, and what it takes from one to the next.
pub const NEAR_BELOW_NS: f64 = 300.0;
/// Two-line round trips below this, and not near, are far, in ns: from one socket to the next it takes less.
pub const FAR_BELOW_NS: f64 = 2000.0;
/// Two probes that differ by a larger factor say that something has changed between them.
pub const DRIFT_MAX: f64 = 1.5;

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
        } else if ns < FAR_BELOW_NS {
            Self::Far
        } else {
            Self::Mixed
        }
    }

    /// Where a sample belongs, by the round trips of the probes before and after it, in ns.
    #[must_use]
    pub fn between(before_ns: f64, after_ns: f64) -> Self {
        let (before, after) = (Self::of_round_trip(before_ns), Self::of_round_trip(after_ns));
        let drift = before_ns.max(after_ns) / before_ns.min(after_ns);
        if before == after && drift <= DRIFT_MAX { before } else { Self::Mixed }
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
            (299.9, Near),
            (300.0, Far),
            (1999.9, Far),
            (2000.0, Mixed),
            (f64::NAN, Mixed),
        ] {
            assert_eq!(Regime::of_round_trip(ns), regime, "{ns} ns");
        }
    }

    #[test]
    fn a_sample_counts_only_if_both_probes_agree() {
        use Regime::{Far, Mixed, Near, Twin};
        for (before_ns, after_ns, regime) in [
            (100.0, 140.0, Near),
            (140.0, 100.0, Near),
            (500.0, 490.0, Far),
            (40.0, 42.0, Twin),
            (100.0, 160.0, Mixed),
            (290.0, 310.0, Mixed),
            (60.0, 70.0, Mixed),
            (100.0, 490.0, Mixed),
            (f64::NAN, 100.0, Mixed),
            (100.0, f64::NAN, Mixed),
            (9000.0, 9000.0, Mixed),
        ] {
            assert_eq!(Regime::between(before_ns, after_ns), regime, "{before_ns} {after_ns}");
        }
    }
}
