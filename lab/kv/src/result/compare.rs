//! Two files: is the one faster than the other, or is it chance?
//!
//! Runs of two files were not taken in the same rounds, so a change of the machine's pace between both is part of the
//! ratio: the notes tell the pace of each. Ratios of one file are those of its rounds ([`measure::paired`]).

use std::fmt;

use measure::{regime, results::Header, stats};

use super::{Results, RunRecord, reduce::name_of};
use crate::{configuration::Config, rng::Rng};

/// Resamples of the bootstrap.
const RESAMPLES: usize = 10_000;
/// Of fewer runs the interval is too narrow: of equal systems, every three of one are all faster than three
/// of the other once in ten times. Of five and more, fewer than 5 % are said to differ.
const RUNS_MIN: usize = 5;
/// Both tails of the interval together.
const TAILS: f64 = 0.05;

/// A confidence interval of 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// One metric of one configuration in both files.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The configuration in the first file.
    pub cell_a: String,
    /// And in the second.
    pub cell_b: String,
    /// What is compared, with its unit.
    pub metric: &'static str,
    /// Median in the first file.
    pub a: f64,
    /// Median in the second file.
    pub b: f64,
    /// The second over the first; `None`: the first is nothing.
    pub ratio: Option<f64>,
    /// Of the ratio; `None`: one of the files has too few runs to tell.
    pub interval: Option<Interval>,
}

impl Comparison {
    /// Whether the difference is more than chance.
    #[must_use]
    pub fn is_significant(&self) -> bool {
        self.interval.is_some_and(|Interval { low, high }| low > 1.0 || high < 1.0)
    }
}

/// What two files say about each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparisons {
    /// Under which circumstances each was measured.
    pub headers: [Header; 2],
    /// Every metric of every configuration.
    pub all: Vec<Comparison>,
    /// What the numbers do not tell: calls without an answer, and how much the pace changed.
    pub notes: Vec<String>,
}

/// Why two files cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// They asked for different things.
    #[error(
        "the workloads differ: {name} is {a} in A and {b} in B; only equal ones are comparable"
    )]
    Workload {
        /// The first difference.
        name: String,
        /// In the first file.
        a: String,
        /// In the second.
        b: String,
    },
    /// A configuration has no counterpart, or several.
    #[error(
        "{cell} of A has {count} counterparts in B with the same workload; run one --backend and one \
         value of each switch per file"
    )]
    Counterparts {
        /// The configuration.
        cell: String,
        /// Their number.
        count: usize,
    },
    /// Nothing to compare.
    #[error("{0} holds no runs")]
    Empty(&'static str),
}

/// Compares all configurations that two files share.
///
/// # Errors
///
/// [`CompareError`]: comparing would be unfair.
pub fn compare(a: &Results, b: &Results) -> Result<Comparisons, CompareError> {
    let (configs_a, configs_b) = (configs(a), configs(b));
    for (configs, name) in [(&configs_b, "B"), (&configs_a, "A")] {
        if configs.is_empty() {
            return Err(CompareError::Empty(name));
        }
    }
    // Every workload of each file must be in the other.
    for config in &configs_a {
        known_to(config, &configs_b)?;
    }
    for config in &configs_b {
        known_to(config, &configs_a).map_err(|error| match error {
            CompareError::Workload { name, a, b } => CompareError::Workload { name, a: b, b: a },
            other => other,
        })?;
    }
    let headers = [a.header.clone(), b.header.clone()];
    let files = [("A", a), ("B", b)].into_iter();
    let notes = files.flat_map(|(name, file)| notes(name, file)).collect();
    let mut all = Vec::new();
    for config in &configs_a {
        let other = counterpart(config, &configs_a, &configs_b)?;
        all.extend(pair(config, other, [a, b]));
    }
    Ok(Comparisons { headers, all, notes })
}

/// Of one file.
fn notes(file: &str, results: &Results) -> Vec<String> {
    let mut notes = Vec::new();
    for config in configs(results) {
        let runs = results.runs.iter().filter(|run| run.config == *config);
        let failed = runs.map(|run| run.measured.failed()).sum::<u64>();
        if failed > 0 {
            let cell = name_of(config);
            notes.push(format!("{file}: {cell}: {failed} calls ended without an answer"));
        }
    }
    let probes = results.runs.iter().filter_map(|run| run.placement).collect::<Vec<_>>();
    let mut lines = probes.iter().map(|p| (p.before_ns * p.after_ns).sqrt()).collect::<Vec<_>>();
    if let Some(change) = regime::change(probes) {
        let line_ns = stats::median(&mut lines);
        notes.push(format!(
            "{file}: the machine's pace: two cache lines took {line_ns:.0} ns there and back, median, and changed by a \
             factor of {change:.1}"
        ));
    }
    notes
}

fn configs(results: &Results) -> Vec<&Config> {
    let mut configs = Vec::<&Config>::new();
    for run in &results.runs {
        if !configs.contains(&&run.config) {
            configs.push(&run.config);
        }
    }
    configs
}

/// If no configuration has the same workload: the first difference to the most similar one.
fn known_to(config: &Config, others: &[&Config]) -> Result<(), CompareError> {
    let differences = others.iter().map(|other| config.workload.differences(&other.workload));
    match differences.min_by_key(Vec::len).and_then(|least| least.into_iter().next()) {
        Some((name, a, b)) => Err(CompareError::Workload { name, a, b }),
        None => Ok(()),
    }
}

/// The same configuration, or the only one with the same workload on both sides.
fn counterpart<'a>(
    config: &Config,
    own: &[&Config],
    others: &[&'a Config],
) -> Result<&'a Config, CompareError> {
    if let Some(same) = others.iter().find(|&&other| other == config) {
        return Ok(same);
    }
    let has_same_workload = |other: &&&Config| other.workload == config.workload;
    let candidates = others.iter().filter(has_same_workload).collect::<Vec<_>>();
    let rivals = own.iter().filter(has_same_workload).count();
    match candidates[..] {
        [one] if rivals == 1 => Ok(one),
        _ => {
            let count = candidates.len();
            Err(CompareError::Counterparts { cell: name_of(config), count })
        }
    }
}

fn pair(config_a: &Config, config_b: &Config, [a, b]: [&Results; 2]) -> Vec<Comparison> {
    let samples = |results: &Results, config: &Config, of: fn(&RunRecord) -> Option<f64>| {
        let runs = results.runs.iter().filter(|run| run.config == *config);
        runs.filter_map(of).collect::<Vec<_>>()
    };
    let comparison = |(metric, of): (&'static str, fn(&RunRecord) -> Option<f64>)| {
        let samples_a = samples(a, config_a, of);
        let samples_b = samples(b, config_b, of);
        if samples_a.is_empty() || samples_b.is_empty() {
            return None;
        }
        let median_a = stats::median(&mut samples_a.clone());
        let median_b = stats::median(&mut samples_b.clone());
        Some(Comparison {
            cell_a: name_of(config_a),
            cell_b: name_of(config_b),
            metric,
            a: median_a,
            b: median_b,
            ratio: (median_a > 0.0).then(|| median_b / median_a),
            interval: bootstrap(&samples_a, &samples_b, config_a.workload.seed),
        })
    };
    METRICS.into_iter().filter_map(comparison).collect()
}

/// A run that has no calls has none of some.
type Metric = (&'static str, fn(&RunRecord) -> Option<f64>);

const METRICS: [Metric; 4] = [
    ("rate, 1/s", |run| Some(run.measured.rate())),
    ("p50, ns", |run| quantile(run, 0.5)),
    ("p99, ns", |run| quantile(run, 0.99)),
    ("cpu per call, ns", |run| run.measured.cpu_per_call_ns()),
];

fn quantile(run: &RunRecord, quantile: f64) -> Option<f64> {
    let latency = run.measured.local.latency.merged(&run.measured.remote.latency);
    let latency = latency.to_histogram();
    (!latency.is_empty()).then(|| super::reduce::as_f64(latency.value_at_quantile(quantile)))
}

/// Percentile bootstrap of the ratio of medians, B over A. `None` of too few runs, and where a median of
/// A may be nothing.
///
/// Source: B. Efron and R. J. Tibshirani, "An Introduction to the Bootstrap", chapter 13.
fn bootstrap(a: &[f64], b: &[f64], seed: u64) -> Option<Interval> {
    if a.len().min(b.len()) < RUNS_MIN || a.iter().any(|&sample| sample <= 0.0) {
        return None;
    }
    let mut rng = Rng::new(seed, 0);
    let mut resampled_median = |samples: &[f64]| {
        let draw = |_| samples[usize::try_from(rng.below(samples.len() as u64)).unwrap_or(0)];
        stats::median(&mut (0..samples.len()).map(draw).collect::<Vec<_>>())
    };
    let ratio = |_| resampled_median(b) / resampled_median(a);
    let mut ratios = (0..RESAMPLES).map(ratio).collect::<Vec<f64>>();
    ratios.sort_unstable_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, reason = "an index")]
    #[expect(clippy::cast_sign_loss, reason = "an index")]
    let cut = (RESAMPLES as f64 * TAILS / 2.0) as usize;
    Some(Interval { low: ratios[cut], high: ratios[RESAMPLES - 1 - cut] })
}

impl fmt::Display for Comparisons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, header) in ["A", "B"].into_iter().zip(&self.headers) {
            let Header { cpu, cores, kernel, commit, profile, date, .. } = header;
            writeln!(
                f,
                "{name}: {cpu}, {cores} cores, {kernel}; {commit}, {profile} build, {date}"
            )?;
        }
        self.all.iter().try_for_each(|one| writeln!(f, "{one}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cell_a, cell_b, metric, a, b, ratio, interval } = self;
        if cell_a != cell_b {
            write!(f, "{cell_b} over ")?;
        }
        write!(f, "{cell_a}: {metric}: {a:.0} → {b:.0}, ")?;
        let Some(ratio) = ratio else { return f.write_str("no ratio: A is nothing") };
        write!(f, "×{ratio:.3}, ")?;
        match interval {
            Some(Interval { low, high }) => {
                let verdict = if self.is_significant() { "differs" } else { "may be chance" };
                write!(f, "95 % [{low:.3}, {high:.3}]: {verdict}")
            }
            None => write!(f, "fewer than {RUNS_MIN} runs of each with answers: may be chance"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        result::{Probes, reduce::samples},
        workload::{Locality, Workload},
    };

    fn results(config: &Config, rates: &[u64]) -> Results {
        let run = |(&rate, number)| samples::run(config, number, rate, 0, 1);
        Results { header: samples::header(), runs: rates.iter().zip(0..).map(run).collect() }
    }

    fn natural() -> Config {
        samples::config(Locality::Natural)
    }

    #[test]
    fn fault_k3_different_workloads_are_refused_and_the_difference_is_named() {
        let a = results(&natural(), &[100, 110]);
        let reseeded = Workload { seed: 7, ..natural().workload };
        let b = results(&Config { workload: reseeded, ..natural() }, &[100, 110]);
        let error = compare(&a, &b).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the workloads differ: seed is 1 in A and 7 in B; only equal ones are comparable"
        );
        let mut longer = a.clone();
        longer.runs.extend(results(&samples::config(Locality::Remote), &[5]).runs);
        let error = compare(&a, &longer).unwrap_err().to_string();
        assert!(error.contains("locality is \"natural\" in A and \"remote\" in B"), "{error}");
    }

    /// Not the difference to whatever B measured first, which would send its reader astray.
    #[test]
    fn the_difference_that_is_named_is_that_to_the_most_similar_workload() {
        let with = |queue_depth, seed| {
            let workload = Workload { queue_depth, seed, ..natural().workload };
            results(&Config { workload, ..natural() }, &[100])
        };
        let a = with(32, 1);
        let mut b = with(1, 2);
        b.runs.extend(with(32, 2).runs);
        let error = compare(&a, &b).unwrap_err().to_string();
        assert!(error.contains("seed is 1 in A and 2 in B"), "{error}");
    }

    #[test]
    fn a_file_without_runs_is_named() {
        let (some, none) = (results(&natural(), &[100]), results(&natural(), &[]));
        assert_eq!(compare(&none, &some), Err(CompareError::Empty("A")));
        assert_eq!(compare(&some, &none), Err(CompareError::Empty("B")));
    }

    #[test]
    fn fault_k3_backends_and_options_may_differ_if_it_is_clear_what_is_meant() {
        let a = results(&natural(), &[100, 110, 90]);
        let spinning = samples::other_wait(&natural());
        let b = results(&spinning, &[200, 220, 180]);
        let rate = &compare(&a, &b).unwrap().all[0];
        assert!((rate.ratio.unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(rate.cell_b, "tcp/2x4/qd4/natural/wait=spin");
        let mut both = b.clone();
        both.runs.extend(results(&Config { pin: crate::job::Pin::None, ..spinning }, &[5]).runs);
        let ambiguous = compare(&a, &both);
        assert!(matches!(ambiguous, Err(CompareError::Counterparts { count: 2, .. })));
    }

    #[test]
    fn a_comparison_says_at_which_pace_and_under_which_circumstances() {
        let mut a = results(&natural(), &[100, 110]);
        a.runs[1].placement = Some(Probes { before_ns: 500.0, after_ns: 510.0 });
        let mut b = a.clone();
        b.header.profile = "debug".into();
        let text = compare(&a, &b).unwrap().to_string();
        for expected in [
            "release build",
            "debug build",
            "natural: rate",
            "A: the machine's pace: two cache lines took 305 ns there and back, median, and changed by a factor of 5.1",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }

    #[test]
    fn every_metric_is_compared_under_its_name() {
        let of = |scale| {
            let mut results = results(&natural(), &[2000 * scale; 5]);
            for run in &mut results.runs {
                *run = samples::run(&natural(), run.run, 2000 * scale, 0, scale);
                run.measured.clients_cpu_ns = 600_000;
                run.measured.ranks_cpu_ns = 0;
            }
            results
        };
        let compared = compare(&of(1), &of(3)).unwrap();
        let medians = compared.all.iter().map(|one| {
            let (interval, ratio) = (one.interval.expect("five runs of each"), one.ratio.unwrap());
            assert!((interval.low - ratio).abs() < 1e-9 && (interval.high - ratio).abs() < 1e-9);
            (one.metric, one.a.round(), (ratio * 3.0).round())
        });
        let expected = [
            ("rate, 1/s", 2000.0, 9.0),
            ("p50, ns", 500_223.0, 9.0),
            ("p99, ns", 990_207.0, 9.0),
            ("cpu per call, ns", 300.0, 1.0),
        ];
        assert_eq!(medians.collect::<Vec<_>>(), expected);
    }

    /// A result of several backends compares with one of the same backends, each with itself.
    #[test]
    fn what_is_the_same_in_both_is_compared_with_itself() {
        let mut both = results(&natural(), &[100, 110]);
        both.runs.extend(results(&samples::other_wait(&natural()), &[200, 220]).runs);
        let compared = compare(&both, &both).unwrap();
        assert!(
            compared
                .all
                .iter()
                .all(|one| one.cell_a == one.cell_b && one.a.to_bits() == one.b.to_bits())
        );
        assert_eq!(compared.all.len(), 2 * METRICS.len());
        let one = results(&Config { pin: crate::job::Pin::None, ..natural() }, &[5]);
        let ambiguous = compare(&both, &one);
        assert!(
            matches!(ambiguous, Err(CompareError::Counterparts { count: 1, .. })),
            "{ambiguous:?}"
        );
    }

    /// Over nothing nothing has a ratio, and what was never timed has no percentiles.
    #[test]
    fn fault_k2_runs_without_answers_are_not_faster_than_others() {
        let (none, some) = (results(&natural(), &[0; 5]), results(&natural(), &[100; 5]));
        for (a, b, expected) in [
            (&none, &some, "natural: rate, 1/s: 0 → 100, no ratio: A is nothing\n"),
            (&some, &none, "natural: rate, 1/s: 100 → 0, ×0.000, 95 % [0.000, 0.000]: differs\n"),
        ] {
            let compared = compare(a, b).unwrap();
            let metrics = compared.all.iter().map(|one| one.metric).collect::<Vec<_>>();
            assert_eq!(metrics, ["rate, 1/s"]);
            let text = compared.to_string();
            assert!(text.contains(expected) && !text.contains("NaN"), "{text}");
        }
        // One of five has none: a resample may have no median but nothing.
        let sometimes = compare(&results(&natural(), &[0, 100, 100, 100, 100]), &some).unwrap();
        assert_eq!((sometimes.all[0].ratio, sometimes.all[0].interval), (Some(1.0), None));
    }

    /// A system that answers half of the calls may be fast.
    #[test]
    fn fault_k2_calls_without_an_answer_are_told() {
        let a = results(&natural(), &[100, 110, 120]);
        let mut b = results(&natural(), &[100]);
        b.runs[0].measured.failures.clear();
        let compared = compare(&a, &b).unwrap();
        assert_eq!(compared.notes[0], "A: tcp/2x4/qd4/natural: 6 calls ended without an answer");
        assert_eq!(compared.notes.len(), 3, "and the pace of each: {:?}", compared.notes);
        assert!(compared.to_string().contains(&compared.notes[0]));
    }

    /// Slower is as much of a difference as faster, and four runs are too few on either side.
    #[test]
    fn fault_k2_a_difference_needs_five_runs_of_each_in_either_direction() {
        let (slow, fast) = ([100, 101, 102, 103, 104], [200, 201, 202, 203, 204]);
        let significant = |a: &[u64], b: &[u64]| {
            let compared = compare(&results(&natural(), a), &results(&natural(), b)).unwrap();
            compared.all[0].is_significant()
        };
        assert!(significant(&slow, &fast) && significant(&fast, &slow));
        assert!(!significant(&slow[..4], &fast) && !significant(&slow, &fast[..4]));
    }

    /// Of equal systems, once in ten times.
    #[test]
    fn fault_k2_three_runs_that_are_all_faster_than_three_others_may_be_chance() {
        let a = results(&natural(), &[100, 110, 105]);
        let b = results(&natural(), &[200, 220, 210]);
        let rate = &compare(&a, &b).unwrap().all[0];
        assert_eq!((rate.interval, rate.is_significant()), (None, false));
        assert!(rate.to_string().ends_with("may be chance"), "{rate}");
    }

    #[test]
    fn intervals_tell_a_difference_from_chance() {
        let noisy_a = results(&natural(), &[100, 140, 80, 120, 90]);
        let noisy_b = results(&natural(), &[110, 130, 85, 125, 95]);
        let chance = &compare(&noisy_a, &noisy_b).unwrap().all[0];
        assert!(!chance.is_significant(), "{chance:?}");
        let faster = results(&natural(), &[300, 310, 305, 299, 320]);
        let difference = &compare(&noisy_a, &faster).unwrap().all[0];
        assert!(difference.is_significant());
        let Interval { low, high } = difference.interval.unwrap();
        assert!((1.9..3.1).contains(&low) && (3.0..4.1).contains(&high), "{low} {high}");
        let same = &compare(&noisy_a, &noisy_a).unwrap().all[0];
        assert!(!same.is_significant());
        let single = results(&natural(), &[100]);
        assert_eq!(compare(&single, &faster).unwrap().all[0].interval, None);
        assert!(difference.to_string().ends_with("differs"), "{difference}");
    }
}
