//! Classes of the machine's pace, from the run's own probes.
//!
//! A hypervisor may place two virtual cores of a guest on one cluster of physical cores or on two, or on the
//! two threads of one core, and move them while a program runs. Whatever moves cache lines between the two
//! cores then takes several times as long, or next to nothing. The guest can neither see nor choose it, but
//! the round trip of two cache lines tells. So every sample lies between two [`Probes`]. Numbers by pace
//! are for those who want to know what depends on it; ratios of one round ([`crate::paired`]) do not need them.
//!
//! No threshold in nanoseconds holds on two processors, so none is used. A sample whose probes differ by more
//! than [`FACTOR`] has no pace. The paces of the others fall into classes, and the regime of a
//! sample is its class. [`Regimes::of`] defines the classes:
//!
//! 1. A window holds all paces from one of them up to [`FACTOR`] times that one.
//! 2. The window that holds most is a class; of several such windows, the one with the lowest paces.
//! 3. The paces below it, and those above it, are divided likewise.
//!
//! So a class never spans more than the factor, however many values lie between two classes; one pace with
//! its jitter is one class; and rare values do not divide frequent ones.

use core::fmt;

use serde::{Deserialize, Serialize};

/// Paces that differ by more than this factor are of different regimes.
pub const FACTOR: f64 = 1.25;

/// The results of the probes around a sample: round trips of two cache lines, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probes {
    /// Before the sample.
    pub before_ns: f64,
    /// After the sample.
    pub after_ns: f64,
}

impl Probes {
    /// The geometric mean of both probes. `None`: they differ by more than [`FACTOR`], or one is no time.
    #[must_use]
    pub fn pace_ns(self) -> Option<f64> {
        let Self { before_ns, after_ns } = self;
        let low = before_ns.min(after_ns);
        let high = before_ns.max(after_ns);
        let are_times = before_ns > 0.0 && after_ns > 0.0 && high.is_finite();
        (are_times && high <= low * FACTOR).then(|| low * (high / low).sqrt())
    }
}

/// How much the pace changed: the largest of all probes over the smallest. `None`: there are no probes.
#[must_use]
pub fn change(probes: impl IntoIterator<Item = Probes>) -> Option<f64> {
    let each = probes.into_iter().flat_map(|probes| [probes.before_ns, probes.after_ns]);
    let each = each.filter(|ns| ns.is_finite() && *ns > 0.0).collect::<Vec<_>>();
    let (low, high) =
        each.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &ns| (low.min(ns), high.max(ns)));
    (high > 0.0).then(|| high / low)
}

/// The class of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Regime {
    /// All samples, whatever the pace.
    All,
    /// A class of paces.
    Line {
        /// Its number among the classes of the run, from the fastest on.
        class: u16,
        /// Its median pace, in tenths of ns.
        tenths_ns: u32,
    },
    /// The probes around the sample disagree.
    Moved,
    /// The machine has no two cores to probe.
    Unknown,
}

impl Regime {
    /// The round trip of two cache lines in this regime.
    #[must_use]
    pub fn line_ns(self) -> Option<f64> {
        match self {
            Self::Line { tenths_ns, .. } => Some(f64::from(tenths_ns) / 10.0),
            Self::All | Self::Moved | Self::Unknown => None,
        }
    }

    /// Whether samples of this regime may be compared with each other.
    #[must_use]
    pub fn is_known(self) -> bool {
        self != Self::Moved
    }
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.line_ns()) {
            (_, Some(ns)) if ns < 10.0 => write!(f, "line {ns:.1} ns"),
            (_, Some(ns)) => write!(f, "line {ns:.0} ns"),
            (Self::All, _) => f.write_str("all"),
            (Self::Moved, _) => f.write_str("moved"),
            (..) => f.write_str("unknown"),
        }
    }
}

/// A class: the paces from `low_ns` to `high_ns`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Class {
    low_ns: f64,
    high_ns: f64,
    median_ns: f64,
}

/// The classes of a run, or of several runs that are compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Regimes(Vec<Class>);

impl Regimes {
    /// The classes of all samples.
    #[must_use]
    pub fn of(probes: impl IntoIterator<Item = Probes>) -> Self {
        let mut paces_ns = probes.into_iter().filter_map(Probes::pace_ns).collect::<Vec<_>>();
        paces_ns.sort_unstable_by(f64::total_cmp);
        let mut classes = Vec::new();
        divide(&paces_ns, &mut classes);
        Self(classes)
    }

    /// The regime of a sample between `probes`. A pace that is in no class counts as moved.
    #[must_use]
    pub fn regime(&self, probes: Option<Probes>) -> Regime {
        let Some(probes) = probes else { return Regime::Unknown };
        let Some(pace_ns) = probes.pace_ns() else { return Regime::Moved };
        let holds = |class: &Class| (class.low_ns..=class.high_ns).contains(&pace_ns);
        self.0.iter().position(holds).map_or(Regime::Moved, |class| self.line(class))
    }

    /// All classes, from the fastest on.
    pub fn iter(&self) -> impl Iterator<Item = Regime> {
        (0..self.0.len()).map(|class| self.line(class))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a label, saturating"
    )]
    fn line(&self, class: usize) -> Regime {
        let tenths_ns = (self.0[class].median_ns * 10.0).round() as u32;
        Regime::Line { class: class as u16, tenths_ns }
    }
}

/// Divides ascending `paces_ns` into classes, in ascending order.
fn divide(paces_ns: &[f64], classes: &mut Vec<Class>) {
    // Each pace begins a window; its end only moves up.
    let mut end = 0;
    let mut best = 0..0;
    for (begin, low_ns) in paces_ns.iter().enumerate() {
        while paces_ns.get(end).is_some_and(|pace_ns| *pace_ns <= low_ns * FACTOR) {
            end += 1;
        }
        if end - begin > best.len() {
            best = begin..end;
        }
    }
    let [low_ns, .., high_ns] = paces_ns[best.clone()] else {
        // One pace, or none, in the largest window: each is a class of its own.
        let alone = |&ns: &f64| Class { low_ns: ns, high_ns: ns, median_ns: ns };
        return classes.extend(paces_ns.iter().map(alone));
    };
    let median_ns = crate::stats::middle(&paces_ns[best.clone()]);
    divide(&paces_ns[..best.start], classes);
    classes.push(Class { low_ns, high_ns, median_ns });
    divide(&paces_ns[best.end..], classes);
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn same(ns: f64) -> Probes {
        Probes { before_ns: ns, after_ns: ns }
    }

    /// The number of samples of each class, from the fastest on.
    fn sizes(paces_ns: &[f64]) -> Vec<usize> {
        let regimes = Regimes::of(paces_ns.iter().copied().map(same));
        let count = |regime| {
            paces_ns.iter().filter(|ns| regimes.regime(Some(same(**ns))) == regime).count()
        };
        regimes.iter().map(count).collect()
    }

    #[test]
    fn a_sample_counts_only_if_both_probes_agree() {
        for (before_ns, after_ns, agree) in [
            (100.0, 124.9, true),
            (124.9, 100.0, true),
            (100.0, 125.1, false),
            (257.0, 350.0, false),
            (f64::NAN, 100.0, false),
            (100.0, f64::NAN, false),
            (0.0, 0.0, false),
            (f64::INFINITY, f64::INFINITY, false),
        ] {
            let pace_ns = Probes { before_ns, after_ns }.pace_ns();
            assert_eq!(pace_ns.is_some(), agree, "{before_ns} {after_ns}");
        }
        assert!(
            (Probes { before_ns: 100.0, after_ns: 121.0 }.pace_ns().unwrap() - 110.0).abs() < 1e-9
        );
    }

    /// On this processor, a border at 300 ns divided every table at random.
    #[test]
    fn a_processor_whose_pace_lies_around_300_ns_has_one_regime() {
        let paces_ns = [284.0, 297.0, 299.0, 301.0, 303.0, 318.0, 325.0, 290.0, 310.0];
        assert_eq!(sizes(&paces_ns), [9]);
        let regimes = Regimes::of(paces_ns.map(same));
        assert_eq!(regimes.regime(Some(same(297.0))).to_string(), "line 301 ns");
    }

    #[test]
    fn what_is_rare_does_not_divide_what_is_frequent() {
        let mut paces_ns = vec![118.0, 119.0, 121.0, 124.0, 128.0];
        paces_ns.push(99.0);
        assert_eq!(sizes(&paces_ns), [1, 5], "the lowest value does not choose the window");
    }

    #[test]
    fn the_pace_changed_by_the_largest_probe_over_the_smallest() {
        let probes = [Probes { before_ns: 100.0, after_ns: 440.0 }, same(120.0), same(f64::NAN)];
        assert_eq!(change(probes), Some(4.4));
        assert_eq!(change([same(0.0)]), None);
    }

    #[test]
    fn labels_say_the_probe_and_what_cannot_be_compared_says_so() {
        let regimes = Regimes::of([same(4.21), same(500.4)]);
        let labels = regimes.iter().map(|regime| regime.to_string()).collect::<Vec<_>>();
        assert_eq!(labels, ["line 4.2 ns", "line 500 ns"]);
        let moved = Probes { before_ns: 100.0, after_ns: 500.0 };
        assert_eq!(regimes.regime(Some(moved)), Regime::Moved);
        assert_eq!(regimes.regime(Some(same(50.0))), Regime::Moved, "of another run");
        assert_eq!(regimes.regime(None), Regime::Unknown);
        assert_eq!(regimes.iter().next().unwrap().line_ns(), Some(4.2));
    }

    proptest! {
        #[test]
        fn classes_are_disjoint_none_exceeds_the_factor_and_each_pace_is_in_one(
            paces_ns in vec(1.0_f64..2000.0, 0..60),
        ) {
            let Regimes(classes) = Regimes::of(paces_ns.iter().copied().map(same));
            for class in &classes {
                prop_assert!(class.high_ns <= class.low_ns * FACTOR);
                prop_assert!((class.low_ns..=class.high_ns).contains(&class.median_ns));
            }
            prop_assert!(classes.windows(2).all(|pair| pair[0].high_ns < pair[1].low_ns));
            prop_assert_eq!(sizes(&paces_ns).iter().sum::<usize>(), paces_ns.len());
        }

        #[test]
        fn one_pace_with_its_jitter_is_one_class(
            pace_ns in 1.0_f64..5000.0,
            jitter in vec(1.0_f64..1.249, 1..60),
        ) {
            let paces_ns = jitter.iter().map(|factor| pace_ns * factor).collect::<Vec<_>>();
            prop_assert_eq!(sizes(&paces_ns), [paces_ns.len()]);
        }

        #[test]
        fn two_paces_are_two_classes_in_any_order(
            pace_ns in 1.0_f64..5000.0,
            apart in 1.4_f64..20.0,
            samples in vec((any::<bool>(), 1.0_f64..1.1), 2..60),
        ) {
            let paces_ns = samples.iter().map(|(is_slow, jitter)| {
                pace_ns * jitter * if *is_slow { apart } else { 1.0 }
            });
            let slow = samples.iter().filter(|(is_slow, _)| *is_slow).count();
            let mut expected = vec![samples.len() - slow, slow];
            expected.retain(|count| *count > 0);
            prop_assert_eq!(sizes(&paces_ns.collect::<Vec<_>>()), expected);
        }

        #[test]
        fn a_chain_of_values_glues_nothing_together(
            pace_ns in 1.0_f64..100.0,
            step in 1.01_f64..1.25,
            count in 2_i32..100,
        ) {
            let paces_ns = (0..count).map(|n| pace_ns * step.powi(n)).collect::<Vec<_>>();
            // No class can hold more than a window of such a chain.
            let per_class = (0..).take_while(|n| step.powi(*n) <= FACTOR * (1.0 + 1e-9)).count();
            let classes = sizes(&paces_ns);
            prop_assert!(classes.iter().all(|size| *size <= per_class), "{:?}", classes);
        }

        #[test]
        fn a_machine_that_is_as_fast_again_has_the_same_classes(
            paces_ns in vec(10.0_f64..1000.0, 0..40),
        ) {
            let twice = paces_ns.iter().map(|ns| ns * 2.0).collect::<Vec<_>>();
            prop_assert_eq!(sizes(&paces_ns), sizes(&twice));
        }

        #[test]
        fn a_pace_far_from_the_others_changes_none_of_their_classes(
            paces_ns in vec(100.0_f64..400.0, 1..40),
        ) {
            let mut with = paces_ns.clone();
            with.push(10_000.0);
            let mut expected = sizes(&paces_ns);
            expected.push(1);
            prop_assert_eq!(sizes(&with), expected);
        }
    }
}
