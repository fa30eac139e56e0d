//! Runs to numbers: one cell per configuration.
//!
//! A run's number comes from all its clients over one interval; a cell's number is the median of its
//! runs, with the smallest and the largest. Runs are never left out. A ratio is that of two runs of one round.

use std::collections::BTreeMap;

use measure::{
    events::EventCounts,
    paired::Ratio,
    regime::{Regime, Regimes},
    results::SideEvents,
    stats::Summary,
};

use super::{Latency, Measured, Results, RunRecord, SideRecord};
use crate::{
    backend::{CallFailure, Counters, Kind, Switches},
    configuration::{Config, Pin},
    workload::{ClientKind, Verify, Workload},
};

/// Latencies over the runs of a cell, in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencySummary {
    /// Of the runs' medians.
    pub p50: Summary,
    /// Of their 90th percentiles.
    pub p90: Summary,
    /// Of their 99th percentiles.
    pub p99: Summary,
    /// Of their 99.9th percentiles.
    pub p999: Summary,
    /// Of their longest.
    pub max: Summary,
}

impl LatencySummary {
    /// Names and values, for tables.
    #[must_use]
    pub fn named(&self) -> [(&'static str, Summary); 5] {
        let Self { p50, p90, p99, p999, max } = *self;
        [("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p999), ("max", max)]
    }

    fn of(latencies: &[Latency]) -> Option<Self> {
        let histograms = latencies.iter().map(Latency::to_histogram).filter(|h| !h.is_empty());
        let histograms = histograms.collect::<Vec<_>>();
        let at = |quantile: f64| {
            let value = |h: &hdrhistogram::Histogram<u64>| as_f64(h.value_at_quantile(quantile));
            Summary::of(&histograms.iter().map(value).collect::<Vec<_>>())
        };
        Some(Self { p50: at(0.5)?, p90: at(0.9)?, p99: at(0.99)?, p999: at(0.999)?, max: at(1.0)? })
    }
}

/// The local, the remote, or all calls of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct SideCell {
    /// Answers per second.
    pub rate: Summary,
    /// `None`: there were no calls.
    pub latency: Option<LatencySummary>,
    /// Of all runs together, for the distribution.
    pub merged: Latency,
}

/// What is said about one configuration in one placement.
#[derive(Clone, Debug, PartialEq)]
pub struct ReducedCell {
    /// Says how it differs from the default: unique in a file, together with the regime.
    pub name: String,
    /// Configuration that was run.
    pub config: Config,
    /// Class of the machine's pace while it ran; [`Regime::All`]: whatever it was.
    pub regime: Regime,
    /// Calls per second of each round.
    pub rates: BTreeMap<u32, f64>,
    /// All calls.
    pub all: SideCell,
    /// Calls to the caller's own node.
    pub local: SideCell,
    /// Calls to other nodes.
    pub remote: SideCell,
    /// Calls without an answer, of all runs together.
    pub failures: BTreeMap<CallFailure, u64>,
    /// CPU time per answer, in ns. `None`, here and below: there was no answer.
    pub cpu_per_call_ns: Option<Summary>,
    /// Share of the daemons in it.
    pub ranks_cpu_share: Summary,
    /// Times that a core went from a client to something else, per answer.
    pub clients_switches: Option<Summary>,
    /// As of clients, of daemons.
    pub ranks_switches: Option<Summary>,
    /// What was counted per answer, of clients and of daemons; empty unless it was asked for.
    pub events: Vec<SideEvents>,
    /// Answers inside the intervals of all runs.
    pub answers: u64,
    /// Calls made in all runs, warm-up included.
    pub calls: u64,
    /// From the scheduled begin to the first call of the last client, at most, in ns.
    pub start_skew_ns: u64,
    /// The slowest client's answers over the fastest's, at worst.
    pub fairness: f64,
    /// Of daemons and clients, all runs together.
    pub counters: Counters,
    /// Memory of each node's processes, in bytes. `None`: not known.
    pub pss_per_node: Option<Summary>,
    /// Share of the harness in all CPU time of all runs.
    pub harness_share: f64,
    /// Runs in which a client had no answer at all, and the most clients of one that had none.
    pub silent_runs: usize,
    /// As of runs, of clients.
    pub silent_clients: usize,
    /// Intervals that were measured again because a process had heard of them too late.
    pub repeated: u32,
    /// Calls per second in the trial, by the way to wait; empty if there was none.
    pub tried: BTreeMap<String, f64>,
    /// The run in the middle, for plots over time.
    pub typical: Measured,
    /// The cell that it is compared with, and its rate over that one's.
    pub versus: Option<(String, Ratio)>,
}

/// Reduces a file. Cells of one workload stand together, in the order of the backends.
#[must_use]
pub fn reduce(results: &Results) -> Vec<ReducedCell> {
    grouped(results, |_| Regime::All)
}

/// Reduces a file by the machine's pace: as [`reduce`], with a cell for each regime.
#[must_use]
pub fn reduce_by_pace(results: &Results) -> Vec<ReducedCell> {
    let regimes = regimes([results]);
    grouped(results, |run| regimes.regime(run.placement))
}

fn grouped(results: &Results, regime_of: impl Fn(&RunRecord) -> Regime) -> Vec<ReducedCell> {
    let mut groups = Vec::<(&Config, Regime, Vec<&RunRecord>)>::new();
    for run in &results.runs {
        let regime = regime_of(run);
        let is_same =
            |group: &&mut (&Config, Regime, _)| group.0 == &run.config && group.1 == regime;
        match groups.iter_mut().find(is_same) {
            Some(group) => group.2.push(run),
            None => groups.push((&run.config, regime, vec![run])),
        }
    }
    let workloads = results.runs.iter().map(|run| &run.config.workload).collect::<Vec<_>>();
    let place = |config: &Config| {
        workloads.iter().position(|workload| **workload == config.workload).unwrap_or(0)
    };
    groups.sort_by_key(|(config, ..)| (place(config), config.backend));
    let cells = groups.into_iter().filter_map(|(config, regime, runs)| cell(config, regime, &runs));
    let cells = cells.collect::<Vec<_>>();
    let versus = cells.iter().map(|cell| versus(cell, &cells)).collect::<Vec<_>>();
    cells.into_iter().zip(versus).map(|(cell, versus)| ReducedCell { versus, ..cell }).collect()
}

/// The classes of all runs of files that are read together.
pub(super) fn regimes<'a>(files: impl IntoIterator<Item = &'a Results>) -> Regimes {
    let runs = files.into_iter().flat_map(|results| &results.runs);
    Regimes::of(runs.filter_map(|run| run.placement))
}

fn events(measured: &[&Measured]) -> Vec<SideEvents> {
    let answers = measured.iter().map(|m| m.completed()).sum::<u64>();
    let (mut clients, mut daemons) = (EventCounts::default(), EventCounts::default());
    for one in measured {
        clients.add(&one.clients_events);
        daemons.add(&one.ranks_events);
    }
    let sides = [("clients", clients), ("daemons", daemons)];
    let sides = sides.into_iter().filter(|(_, counts)| answers > 0 && !counts.is_empty());
    let side = |(side, counts): (&str, EventCounts)| SideEvents {
        side: side.to_owned(),
        each: counts.per(as_f64(answers)),
    };
    sides.map(side).collect()
}

/// `None`: no runs.
fn cell(config: &Config, regime: Regime, runs: &[&RunRecord]) -> Option<ReducedCell> {
    let measured = runs.iter().map(|run| &run.measured).collect::<Vec<_>>();
    let summary = |of: &dyn Fn(&Measured) -> f64| {
        Summary::of(&measured.iter().map(|measured| of(measured)).collect::<Vec<_>>())
    };
    let per_answer = |of: &dyn Fn(&Measured) -> Option<f64>| {
        Summary::of(&measured.iter().filter_map(|measured| of(measured)).collect::<Vec<_>>())
    };
    let mut failures = BTreeMap::new();
    let mut counters = Counters::default();
    for measured in &measured {
        for (&failure, count) in &measured.failures {
            *failures.entry(failure).or_default() += count;
        }
        counters.add(&measured.rank_counters);
        counters
            .add(&Counters { batch_sizes: BTreeMap::new(), ..measured.client_counters.clone() });
    }
    let rate = summary(&Measured::rate)?;
    let distance = |measured: &&&Measured| (measured.rate() - rate.median).abs();
    let typical = measured.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
    Some(ReducedCell {
        name: name_of(config),
        config: config.clone(),
        regime,
        rates: runs.iter().map(|run| (run.run, run.measured.rate())).collect(),
        pss_per_node: pss_per_node(config, &measured),
        harness_share: harness_share(&measured),
        silent_runs: measured.iter().filter(|m| m.silent_clients() > 0).count(),
        silent_clients: measured.iter().map(|m| m.silent_clients()).max()?,
        repeated: measured.iter().map(|m| m.repeated).sum(),
        tried: runs.first()?.tried.clone(),
        all: side(&measured, &|m| SideRecord {
            completed: m.completed(),
            latency: m.local.latency.merged(&m.remote.latency),
        })?,
        local: side(&measured, &|m| m.local.clone())?,
        remote: side(&measured, &|m| m.remote.clone())?,
        failures,
        cpu_per_call_ns: per_answer(&Measured::cpu_per_call_ns),
        ranks_cpu_share: summary(&ranks_cpu_share)?,
        clients_switches: per_answer(&|m| m.per_answer(m.clients_switches)),
        ranks_switches: per_answer(&|m| m.per_answer(m.ranks_switches)),
        events: events(&measured),
        answers: measured.iter().map(|m| m.completed()).sum(),
        calls: measured.iter().map(|m| m.calls).sum(),
        start_skew_ns: measured.iter().map(|m| m.start_skew_ns).max()?,
        fairness: summary(&fairness)?.min,
        counters,
        typical: (*typical).clone(),
        versus: None,
    })
}

fn side(runs: &[&Measured], of: &dyn Fn(&Measured) -> SideRecord) -> Option<SideCell> {
    let sides = runs.iter().map(|measured| of(measured)).collect::<Vec<_>>();
    let rates = sides.iter().zip(runs).map(|(side, measured)| measured.rate_of(side.completed));
    let latencies = sides.iter().map(|side| side.latency.clone()).collect::<Vec<_>>();
    let merged = latencies.iter().fold(Latency::default(), |sum, next| sum.merged(next));
    let latency = LatencySummary::of(&latencies);
    Some(SideCell { rate: Summary::of(&rates.collect::<Vec<_>>())?, latency, merged })
}

fn harness_share(measured: &[&Measured]) -> f64 {
    let sum = |of: fn(&Measured) -> u64| measured.iter().map(|m| of(m)).sum::<u64>();
    let all_ns = sum(|m| m.clients_cpu_ns + m.ranks_cpu_ns);
    as_f64(sum(|m| m.harness_cpu_ns)) / as_f64(all_ns.max(1))
}

fn pss_per_node(config: &Config, measured: &[&Measured]) -> Option<Summary> {
    let nodes = f64::from(config.workload.ranks);
    let known = measured.iter().filter(|measured| measured.pss_bytes > 0);
    Summary::of(&known.map(|measured| as_f64(measured.pss_bytes) / nodes).collect::<Vec<_>>())
}

fn ranks_cpu_share(measured: &Measured) -> f64 {
    let total_ns = measured.clients_cpu_ns + measured.ranks_cpu_ns;
    as_f64(measured.ranks_cpu_ns) / as_f64(total_ns.max(1))
}

/// Who all get nothing get the same.
fn fairness(measured: &Measured) -> f64 {
    let slowest = measured.per_client.iter().min().copied().unwrap_or(0);
    let fastest = measured.per_client.iter().max().copied().unwrap_or(0);
    if fastest == 0 { 1.0 } else { as_f64(slowest) / as_f64(fastest) }
}

/// TCP with the same workload.
fn versus(cell: &ReducedCell, cells: &[ReducedCell]) -> Option<(String, Ratio)> {
    if cell.config.backend == Kind::Tcp {
        return None;
    }
    let is_floor = |other: &&ReducedCell| {
        let Config { backend, workload, .. } = &other.config;
        *backend == Kind::Tcp && *workload == cell.config.workload && other.regime == cell.regime
    };
    let floor = cells.iter().find(is_floor)?;
    Some((floor.name.clone(), ratio_over(cell, floor)?))
}

/// The rate of the one over that of the other, round by round. `None`: they share no round with answers of the
/// other, or the pace changed while they ran and numbers by pace are asked for.
pub(super) fn ratio_over(cell: &ReducedCell, other: &ReducedCell) -> Option<Ratio> {
    let is_known = cell.regime == other.regime && cell.regime.is_known();
    let rounds = cell.rates.iter().filter_map(|(run, rate)| Some((*rate, *other.rates.get(run)?)));
    let ratio = Ratio::of(rounds).filter(|ratio| ratio.median.is_finite());
    ratio.filter(|_| is_known)
}

/// `tcp/2x4/qd4/natural`, and whatever differs from the default.
#[must_use]
pub fn name_of(config: &Config) -> String {
    let Workload { ranks, clients_per_rank, queue_depth, locality, .. } = &config.workload;
    let mut parts = vec![
        config.backend.to_string(),
        format!("{ranks}x{clients_per_rank}"),
        format!("qd{queue_depth}"),
        locality.to_string(),
    ];
    parts.extend(system_parts(config));
    parts.extend(workload_parts(&config.workload));
    parts.join("/")
}

/// How a configuration's system differs from the backend's default.
pub(crate) fn system_parts(config: &Config) -> Vec<String> {
    let Config { backend, wait, pin, nic, nic_knobs, switches, hosts, .. } = config;
    let mut parts = Vec::new();
    let mut add = |is_different: bool, part: String| {
        if is_different {
            parts.push(part);
        }
    };
    add(*wait != backend.default_wait(), format!("wait={wait}"));
    let defaults = Switches::resolve(backend.name(), backend.switches(), &BTreeMap::new());
    for (switch, value) in switches.iter() {
        let is_default = defaults.as_ref().is_ok_and(|all| all.value(switch) == value);
        add(!is_default, format!("{switch}={value}"));
    }
    add(*pin != Pin::Node, format!("pin={pin}"));
    add(!matches!(nic.as_str(), "none" | "soft"), format!("nic={nic}"));
    parts.extend(nic_parts(nic_knobs));
    parts.extend((*hosts != 1).then(|| format!("hosts={hosts}")));
    parts
}

/// What is set about a NIC, by environment variable, as it stands in names: `soft-drive=thread`. The
/// name of a fabric, or where ports meet, changes no number.
#[must_use]
pub fn nic_parts(knobs: &BTreeMap<String, String>) -> Vec<String> {
    let part = |(variable, value): (&String, &String)| {
        let knob = variable.trim_start_matches("COPYRPC_").to_lowercase().replace('_', "-");
        let is_place =
            ["soft-fabric", "tcp-address", "secret-file", "rendezvous"].contains(&&*knob);
        (!is_place).then(|| format!("{knob}={value}"))
    };
    knobs.iter().filter_map(part).collect()
}

/// How a workload differs from the default, beside ranks, clients, queue depth and locality.
pub(crate) fn workload_parts(w: &Workload) -> Vec<String> {
    let default = Workload::default();
    let mut parts = Vec::new();
    let mut add = |is_different: bool, part: String| {
        if is_different {
            parts.push(part);
        }
    };
    add(w.daemon_threads != default.daemon_threads, format!("threads{}", w.daemon_threads));
    add(w.client_kind == ClientKind::Thread, "client-threads".to_owned());
    add(w.mix != default.mix, format!("get{}", w.mix));
    add(w.popularity != default.popularity, w.popularity.to_string());
    add(w.value_size != default.value_size, format!("{}B", w.value_size));
    add(w.keys != default.keys, format!("{}keys", w.keys));
    add(w.pace != default.pace, w.pace.to_string());
    add(w.warm_up_ms != default.warm_up_ms, format!("warm-up{}ms", w.warm_up_ms));
    add(
        w.duration_ms != Workload::duration_ms_of(w.clients_per_rank),
        format!("{}ms", w.duration_ms),
    );
    add(w.timeout_ms != default.timeout_ms, format!("timeout{}ms", w.timeout_ms));
    add(w.seed != default.seed, format!("seed{}", w.seed));
    add(w.verify == Verify::Full, "verify=full".to_owned());
    parts
}

pub(super) fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Synthetic results with known answers.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use crate::{
        backend::Wait,
        drive::latency_histogram,
        result::{Header, Probes},
        workload::Locality,
    };

    pub(crate) fn header() -> Header {
        Header {
            format: measure::results::FORMAT,
            bench: "kv".into(),
            command: "copyrpc-lab bench kv".into(),
            version: "0.1.0".into(),
            commit: "abc".into(),
            profile: "release".into(),
            cpu: "some <CPU> & more".into(),
            cores: 2,
            pinning: "node".into(),
            kernel: "6.1".into(),
            nic: "none".into(),
            date: "2026-01-31T00:00:00Z".into(),
        }
    }

    pub(crate) fn config(locality: Locality) -> Config {
        let kind = Kind::Tcp;
        Config {
            backend: kind,
            wait: kind.default_wait(),
            pin: Pin::Node,
            nic: "none".into(),
            nic_knobs: BTreeMap::new(),
            hosts: 1,
            counters: false,
            switches: Switches::resolve(kind.name(), kind.switches(), &BTreeMap::new()).unwrap(),
            workload: Workload { locality, ..Workload::default() },
        }
    }

    /// A run of one second; latencies are 1 to 1000 us, scaled.
    pub(crate) fn run(config: &Config, run: u32, local: u64, remote: u64, scale: u64) -> RunRecord {
        let mut histogram = latency_histogram();
        (1..=1000).for_each(|us| histogram.saturating_record(us * 1000 * scale));
        let side = |completed| SideRecord {
            completed,
            latency: if completed > 0 { Latency::from(&histogram) } else { Latency::default() },
        };
        let measured = Measured {
            interval_ns: 1_000_000_000,
            local: side(local),
            remote: side(remote),
            slice_ns: 100_000_000,
            slices: vec![(local + remote) / 10; 10],
            outstanding: vec![32; 10],
            per_client: vec![(local + remote) / 8; 8],
            calls: local + remote + 100,
            failures: BTreeMap::from([(CallFailure::Timeout, 2)]),
            clients_cpu_ns: 300_000_000,
            ranks_cpu_ns: 100_000_000,
            clients_switches: (local + remote) / 4,
            ranks_switches: (local + remote) / 10,
            start_skew_ns: 1000 * u64::from(run),
            ..Measured::default()
        };
        let placement = Some(Probes { before_ns: 100.0, after_ns: 110.0 });
        let tried = BTreeMap::new();
        let version = None;
        RunRecord { config: config.clone(), run, placement, tried, version, measured }
    }

    /// Two configurations of three runs.
    pub(crate) fn results() -> Results {
        let (natural, remote) = (config(Locality::Natural), config(Locality::Remote));
        let runs = vec![
            run(&natural, 0, 50_000, 50_000, 1),
            run(&remote, 0, 0, 80_000, 2),
            run(&natural, 1, 70_000, 50_000, 2),
            run(&remote, 1, 0, 60_000, 2),
            run(&natural, 2, 40_000, 40_000, 3),
            run(&remote, 2, 0, 70_000, 2),
        ];
        Results { header: header(), runs }
    }

    pub(crate) fn other_wait(config: &Config) -> Config {
        Config { wait: Wait::Spin, ..config.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        backend::Wait,
        result::Probes,
        workload::{Locality, Mix, Pace, Popularity, ValueSize},
    };

    fn is(summary: Summary, median: f64, min: f64, max: f64, runs: usize) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() <= b * 0.001; // three digits of the histogram
        near(summary.median, median)
            && near(summary.min, min)
            && near(summary.max, max)
            && summary.runs == runs
    }

    #[test]
    fn fault_k2_synthetic_runs_reduce_to_known_numbers() {
        let cells = reduce(&samples::results());
        assert_eq!(cells.len(), 2);
        let natural = &cells[0];
        assert_eq!(natural.name, "tcp/2x4/qd4/natural");
        assert!(is(natural.all.rate, 100_000.0, 80_000.0, 120_000.0, 3), "{:?}", natural.all.rate);
        assert!(is(natural.local.rate, 50_000.0, 40_000.0, 70_000.0, 3));
        assert!(is(natural.remote.rate, 50_000.0, 40_000.0, 50_000.0, 3));
        let latency = natural.all.latency.unwrap();
        assert!(is(latency.p50, 1_000e3, 500e3, 1_500e3, 3), "{latency:?}");
        assert!(is(latency.p90, 1_800e3, 900e3, 2_700e3, 3));
        assert!(is(latency.p99, 1_980e3, 990e3, 2_970e3, 3));
        assert!(is(latency.p999, 1_998e3, 999e3, 2_997e3, 3));
        assert!(is(latency.max, 2_000e3, 1_000e3, 3_000e3, 3));
        assert!(is(natural.cpu_per_call_ns.unwrap(), 4000.0, 400.0e6 / 120e3, 5000.0, 3));
        assert!(is(natural.ranks_cpu_share, 0.25, 0.25, 0.25, 3));
        assert_eq!(natural.failures[&CallFailure::Timeout], 6, "errors are never dropped");
        assert_eq!(natural.start_skew_ns, 2000, "the barrier's skew is recorded");
        assert_eq!(natural.typical.completed(), 100_000);
        let remote = &cells[1];
        assert!(remote.local.latency.is_none(), "no local calls, no local latency");
        assert!(is(remote.remote.rate, 70_000.0, 60_000.0, 80_000.0, 3));
    }

    /// Means of instantaneous rates are biased: the rate is answers over time.
    #[test]
    fn pitfall_28_the_rate_is_answers_over_time_and_no_slice_is_left_out() {
        let config = samples::config(Locality::Natural);
        let mut run = samples::run(&config, 0, 100, 0, 1);
        run.measured.slices = vec![90, 10, 0, 0, 0, 0, 0, 0, 0, 0];
        let results = Results { header: samples::header(), runs: vec![run] };
        assert!(is(reduce(&results)[0].all.rate, 100.0, 100.0, 100.0, 1));
    }

    /// A cell of two runs whose numbers all differ: each is what its name says, of both runs.
    #[test]
    fn fault_k2_every_number_of_a_cell_is_its_own() {
        let config = samples::config(Locality::Natural);
        let latency = |values: &[u64]| {
            let mut histogram = crate::drive::latency_histogram();
            values.iter().for_each(|&ns| histogram.saturating_record(ns));
            Latency::from(&histogram)
        };
        // One in 3001 is far behind: the longest, and no percentile.
        let slow = [&[900; 3000][..], &[90_000]].concat();
        let counters = |name: &str, batch| {
            let mut counters = Counters::default();
            counters.batch(batch);
            counters.named.insert(name.to_owned(), 1);
            counters
        };
        let run = |number, measured: Measured| RunRecord {
            measured: Measured {
                interval_ns: 2_000_000_000,
                local: SideRecord { completed: 60, latency: latency(&[100, 100, 100]) },
                remote: SideRecord { completed: 40, latency: latency(&slow) },
                rank_counters: counters("rank", 8),
                client_counters: counters("client", 1),
                ..measured
            },
            ..samples::run(&config, number, 0, 0, 1)
        };
        let first = Measured {
            calls: 110,
            clients_cpu_ns: 3000,
            ranks_cpu_ns: 1000,
            clients_switches: 300,
            ranks_switches: 700,
            start_skew_ns: 5,
            per_client: vec![50, 40, 10],
            ..Measured::default()
        };
        let second =
            Measured { calls: 120, start_skew_ns: 4, per_client: vec![50], ..first.clone() };
        let runs = vec![run(0, first), run(1, second)];
        let cell = reduce(&Results { header: samples::header(), runs }).remove(0);
        for (side, rate, p50, max) in [
            (&cell.all, 50.0, 900.0, 90_000.0),
            (&cell.local, 30.0, 100.0, 100.0),
            (&cell.remote, 20.0, 900.0, 90_000.0),
        ] {
            let latency = side.latency.unwrap();
            assert!(is(side.rate, rate, rate, rate, 2), "{:?}", side.rate);
            assert!(is(latency.p50, p50, p50, p50, 2), "{latency:?}");
            assert!(is(latency.p999, p50, p50, p50, 2), "{latency:?}");
            assert!(is(latency.max, max, max, max, 2), "{latency:?}");
        }
        let merged =
            [&cell.all, &cell.local, &cell.remote].map(|side| side.merged.to_histogram().len());
        assert_eq!(merged, [6008, 6, 6002], "of both runs");
        assert!(is(cell.cpu_per_call_ns.unwrap(), 40.0, 40.0, 40.0, 2));
        assert!(is(cell.ranks_cpu_share, 0.25, 0.25, 0.25, 2));
        assert!(is(cell.clients_switches.unwrap(), 3.0, 3.0, 3.0, 2));
        assert!(is(cell.ranks_switches.unwrap(), 7.0, 7.0, 7.0, 2));
        assert_eq!((cell.answers, cell.calls, cell.start_skew_ns), (200, 230, 5));
        assert!((cell.fairness - 0.2).abs() < 1e-9, "the worst of both: {}", cell.fairness);
        assert_eq!(cell.counters.named, [("rank".into(), 2), ("client".into(), 2)].into());
        assert_eq!(cell.counters.batch_sizes, [(8, 2)].into(), "batches are those of daemons");
    }

    #[test]
    fn who_get_nothing_get_the_same() {
        let of = |per_client: &[u64]| {
            fairness(&Measured { per_client: per_client.to_vec(), ..Measured::default() })
        };
        assert_eq!([of(&[0, 0]), of(&[0, 5]), of(&[4, 5])], [1.0, 0.0, 0.8]);
    }

    #[test]
    fn the_floor_is_tcp_with_the_same_workload_in_the_same_round() {
        let tcp = samples::config(Locality::Natural);
        let config = Config { backend: Kind::Direct, ..tcp.clone() };
        let other =
            Config { workload: Workload { seed: 2, ..tcp.workload.clone() }, ..tcp.clone() };
        let at = |config: &Config, run, rate| samples::run(config, run, rate, 0, 1);
        let ratio_beside = |floors: &[RunRecord]| {
            let runs = [floors, &[at(&config, 0, 300), at(&config, 1, 60)]].concat();
            let cells = reduce(&Results { header: samples::header(), runs });
            let direct = cells.into_iter().find(|cell| cell.config.backend == Kind::Direct);
            direct.unwrap().versus
        };
        let elsewhere = [at(&other, 0, 70), at(&tcp, 2, 50)];
        assert_eq!(ratio_beside(&elsewhere), None, "another workload, another round");
        // The machine was five times as slow in the second round.
        let same = [at(&tcp, 0, 100), at(&tcp, 1, 20)];
        let (name, ratio) = ratio_beside(&[&elsewhere[..], &same].concat()).unwrap();
        assert_eq!(name, "tcp/2x4/qd4/natural");
        assert!((ratio.median - 3.0).abs() < 1e-9 && ratio.rounds == 2, "{ratio}");
    }

    #[test]
    fn rows_have_one_order_whatever_came_first() {
        let tcp = samples::config(Locality::Natural);
        let more = Workload { clients_per_rank: 16, ..tcp.workload.clone() };
        let of = |backend, workload: &Workload| Config {
            backend,
            workload: workload.clone(),
            ..tcp.clone()
        };
        let configs = [
            of(Kind::Tcp, &tcp.workload),
            of(Kind::Delegation, &tcp.workload),
            of(Kind::Direct, &more),
            of(Kind::Delegation, &more),
        ];
        let runs = configs.iter().map(|config| samples::run(config, 0, 10, 0, 1)).collect();
        let cells = reduce(&Results { header: samples::header(), runs });
        let order = cells
            .iter()
            .map(|cell| (cell.config.workload.clients_per_rank, cell.config.backend.name()));
        let expected = [(4, "delegation"), (4, "tcp"), (16, "delegation"), (16, "direct")];
        assert_eq!(order.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_name_of_a_fabric_is_no_part_of_a_name() {
        let knobs = [("COPYRPC_SOFT_FABRIC", "x"), ("COPYRPC_SOFT_STRICT", "7")];
        let knobs = knobs.map(|(variable, value)| (variable.to_owned(), value.to_owned()));
        assert_eq!(nic_parts(&knobs.into()), ["soft-strict=7"]);
    }

    #[test]
    fn no_run_is_left_out_and_paces_are_apart_on_request() {
        let config = samples::config(Locality::Natural);
        let at = |number, ns| {
            let placement = Some(Probes { before_ns: ns, after_ns: ns });
            RunRecord { placement, ..samples::run(&config, number, 10, 10, 1) }
        };
        let runs = vec![at(0, 100.0), at(1, 500.0), at(2, 100.0)];
        let results = Results { header: samples::header(), runs };
        let shown = |cells: Vec<ReducedCell>| {
            let shown = cells.iter().map(|cell| (cell.regime.to_string(), cell.all.rate.runs));
            shown.collect::<Vec<_>>()
        };
        assert_eq!(shown(reduce(&results)), [("all".to_owned(), 3)]);
        let by_pace = [("line 100 ns".to_owned(), 2), ("line 500 ns".to_owned(), 1)];
        assert_eq!(shown(reduce_by_pace(&results)), by_pace);
    }

    #[test]
    fn pitfall_30_no_two_configurations_share_a_name() {
        let base = samples::config(Locality::Natural);
        let w = || base.workload.clone();
        let with = |workload| Config { workload, ..base.clone() };
        let given = BTreeMap::from([("nodelay".to_owned(), "off".to_owned())]);
        let kind = Kind::Tcp;
        let switches = Switches::resolve(kind.name(), kind.switches(), &given).unwrap();
        let configs = [
            base.clone(),
            Config { wait: Wait::Spin, ..base.clone() },
            Config { pin: Pin::None, ..base.clone() },
            Config { nic: "mlx5_0".into(), ..base.clone() },
            Config {
                nic_knobs: [("COPYRPC_SOFT_DRIVE".into(), "thread".into())].into(),
                ..base.clone()
            },
            Config { switches, ..base.clone() },
            with(Workload { ranks: 3, ..w() }),
            with(Workload { daemon_threads: 2, ..w() }),
            with(Workload { clients_per_rank: 2, ..w() }),
            with(Workload { client_kind: ClientKind::Thread, ..w() }),
            with(Workload { queue_depth: 1, ..w() }),
            with(Workload { keys: 7, ..w() }),
            with(Workload { mix: Mix { get: 50, delete: 0, cas: 0 }, ..w() }),
            with(Workload { popularity: Popularity::Uniform, ..w() }),
            with(Workload { locality: Locality::Remote, ..w() }),
            with(Workload { value_size: ValueSize { min_bytes: 24, max_bytes: 64 }, ..w() }),
            with(Workload { pace: Pace::Open(1000), ..w() }),
            with(Workload { warm_up_ms: 1, ..w() }),
            with(Workload { duration_ms: 1, ..w() }),
            with(Workload { timeout_ms: 1, ..w() }),
            with(Workload { seed: 2, ..w() }),
            with(Workload { verify: Verify::Full, ..w() }),
        ];
        let names = configs.iter().map(name_of).collect::<BTreeSet<_>>();
        assert_eq!(names.len(), configs.len(), "{names:#?}");
    }
}
