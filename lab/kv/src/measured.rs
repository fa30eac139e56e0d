//! What one run found, all clients and daemons together.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use hdrhistogram::Histogram;
use measure::events::EventCounts;
use serde::{Deserialize, Serialize};

use crate::{
    backend::{CallFailure, Counters},
    drive::{ClientTally, LATENCY_NS_MAX, SideTally, latency_histogram},
    history,
    place::ClientId,
    series::EventSeries,
};

/// What is kept of each rank's daemon, by name.
pub(crate) const EACH_RANK: [&str; 12] = [
    "requests_ipc",
    "requests_remote",
    "responses",
    "incoming",
    "replies",
    "flushes",
    "batches_in",
    "credits",
    "reply_holds",
    "ring_full",
    "completions",
    "loops",
];

/// Those of one rank that counted something.
pub(crate) fn of_rank(rank: u16, counters: &Counters) -> BTreeMap<u16, BTreeMap<String, u64>> {
    let count = |name: &&str| {
        let count = counters.total(&[&format!("daemon {name}")]);
        (count > 0).then(|| ((*name).to_owned(), count))
    };
    let counts = EACH_RANK.iter().filter_map(count).collect::<BTreeMap<_, _>>();
    if counts.is_empty() { BTreeMap::new() } else { BTreeMap::from([(rank, counts)]) }
}

/// A histogram as pairs of latency (ns) and count: small, and readable without this program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Latency(Vec<(u64, u64)>);

impl Latency {
    /// The pairs, latencies ascending.
    #[must_use]
    pub fn pairs(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// The histogram again; latencies that no run can have are filed as the longest.
    #[must_use]
    pub fn to_histogram(&self) -> Histogram<u64> {
        let mut histogram = latency_histogram();
        for &(ns, count) in &self.0 {
            histogram.saturating_record_n(ns.clamp(1, LATENCY_NS_MAX), count);
        }
        histogram
    }

    /// Both together. The coordinator does this for each process after each interval: a histogram has 33,000 buckets,
    /// of which an interval fills some hundred.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let (mut ours, mut theirs) = (&self.0[..], &other.0[..]);
        let mut pairs = Vec::with_capacity(ours.len().max(theirs.len()));
        while let ([(ns, count), our_rest @ ..], [(their_ns, their_count), their_rest @ ..]) =
            (ours, theirs)
        {
            match ns.cmp(their_ns) {
                Ordering::Less => {
                    pairs.push((*ns, *count));
                    ours = our_rest;
                }
                Ordering::Greater => {
                    pairs.push((*their_ns, *their_count));
                    theirs = their_rest;
                }
                Ordering::Equal => {
                    pairs.push((*ns, count.saturating_add(*their_count)));
                    ours = our_rest;
                    theirs = their_rest;
                }
            }
        }
        pairs.extend(ours.iter().chain(theirs));
        Self(pairs)
    }
}

impl From<&Histogram<u64>> for Latency {
    fn from(histogram: &Histogram<u64>) -> Self {
        // The value that a bucket is read as must be filed in it again: its lowest, not its highest.
        let pairs = histogram.iter_recorded().map(|step| {
            (histogram.lowest_equivalent(step.value_iterated_to()), step.count_at_value())
        });
        Self(pairs.collect())
    }
}

/// The local or the remote calls of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideRecord {
    /// Answers seen inside the measured interval.
    pub completed: u64,
    /// Of the calls due inside the measured interval.
    pub latency: Latency,
}

impl SideRecord {
    fn add(&mut self, other: &Self) {
        self.completed += other.completed;
        self.latency = self.latency.merged(&other.latency);
    }
}

impl From<&SideTally> for SideRecord {
    fn from(side: &SideTally) -> Self {
        Self { completed: side.completed, latency: Latency::from(&side.latency) }
    }
}

/// Slice by slice; both cover the same interval.
fn add_up(to: &mut Vec<u64>, from: &[u64]) {
    to.resize(to.len().max(from.len()), 0);
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Length of the measured interval, the same for all clients.
    pub interval_ns: u64,
    /// Calls to the caller's own node.
    pub local: SideRecord,
    /// Calls to other nodes.
    pub remote: SideRecord,
    /// Length of the slices of the interval.
    pub slice_ns: u64,
    /// Answers of all clients in each slice.
    pub slices: Vec<u64>,
    /// Calls outstanding in each slice, at most, of all clients.
    pub outstanding: Vec<u64>,
    /// Answers inside the interval, by client.
    pub per_client: Vec<u64>,
    /// Calls made, warm-up included.
    pub calls: u64,
    /// Calls without an answer, by reason, warm-up included.
    pub failures: BTreeMap<CallFailure, u64>,
    /// Keys that were not there.
    pub not_found: u64,
    /// CASes that were refused.
    pub mismatches: u64,
    /// Answers that came after their call was given up.
    pub late: u64,
    /// From the scheduled begin to the first call of the last client.
    pub start_skew_ns: u64,
    /// CPU time of all client processes inside the interval.
    pub clients_cpu_ns: u64,
    /// CPU time of all daemon processes inside the interval.
    pub ranks_cpu_ns: u64,
    /// Times that a core went from a client process to something else inside the interval.
    #[serde(default)]
    pub clients_switches: u64,
    /// As of clients, of the daemon processes.
    #[serde(default)]
    pub ranks_switches: u64,
    /// What the processor counted of client processes inside the interval, their main threads included.
    #[serde(default, skip_serializing_if = "EventCounts::is_empty")]
    pub clients_events: EventCounts,
    /// As of clients, of the daemon processes.
    #[serde(default, skip_serializing_if = "EventCounts::is_empty")]
    pub ranks_events: EventCounts,
    /// What the machine does not count, a sentence each.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub uncounted: BTreeSet<String>,
    /// Processes that heard of the interval after it had begun: it is measured again.
    #[serde(default)]
    pub late_processes: u32,
    /// Times that the interval was measured again for that reason.
    #[serde(default)]
    pub repeated: u32,
    /// CPU time inside the interval of what only measures: the main thread of each process, and the coordinator.
    /// The first is part of the CPU time of clients and daemons, too.
    #[serde(default)]
    pub harness_cpu_ns: u64,
    /// Memory of all processes once they were warm: the proportional share of each (PSS), in bytes.
    #[serde(default)]
    pub pss_bytes: u64,
    /// Requests that the daemons served, warm-up included.
    pub served: u64,
    /// Calls between daemons in flight in each slice, on average, of all daemons; empty if the
    /// backend does not count them.
    #[serde(default)]
    pub rank_outstanding: Vec<u64>,
    /// Of the clients' ends, warm-up included.
    pub client_counters: Counters,
    /// Of the daemons' ends, inside the interval.
    pub rank_counters: Counters,
    /// By rank: some of those counters of its daemon, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub each_rank: BTreeMap<u16, BTreeMap<String, u64>>,
    /// What happened from microsecond to microsecond, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<EventSeries>,
    /// What `--verify full` judged.
    pub linearizable: Option<history::HistoryReport>,
}

impl Measured {
    /// What one of so many clients measured.
    pub(crate) fn of_client(
        id: ClientId,
        clients: u16,
        tally: &ClientTally,
        counters: Counters,
        series_ns: u64,
    ) -> Self {
        let series =
            (series_ns > 0).then(|| EventSeries::of_client(series_ns, tally.series.clone()));
        let (local, remote) = (SideRecord::from(&tally.local), SideRecord::from(&tally.remote));
        let mut per_client = vec![0; usize::from(clients)];
        per_client[usize::from(id.0)] = local.completed + remote.completed;
        Self {
            local,
            remote,
            slices: tally.slices.clone(),
            outstanding: tally.outstanding.iter().map(|&count| u64::from(count)).collect(),
            per_client,
            calls: tally.calls,
            failures: tally.failures.clone(),
            not_found: tally.not_found,
            mismatches: tally.mismatches,
            late: tally.late,
            start_skew_ns: tally.start_skew_ns.unwrap_or(0),
            client_counters: counters,
            series,
            ..Self::default()
        }
    }

    /// Adds what others found in the same interval: other clients, daemons, or threads of them.
    pub(crate) fn add(&mut self, other: &Self) {
        self.local.add(&other.local);
        self.remote.add(&other.remote);
        for (to, from) in [
            (&mut self.slices, &other.slices),
            (&mut self.outstanding, &other.outstanding),
            (&mut self.per_client, &other.per_client),
            (&mut self.rank_outstanding, &other.rank_outstanding),
        ] {
            add_up(to, from);
        }
        for (to, from) in [
            (&mut self.calls, other.calls),
            (&mut self.not_found, other.not_found),
            (&mut self.mismatches, other.mismatches),
            (&mut self.late, other.late),
            (&mut self.clients_cpu_ns, other.clients_cpu_ns),
            (&mut self.ranks_cpu_ns, other.ranks_cpu_ns),
            (&mut self.clients_switches, other.clients_switches),
            (&mut self.ranks_switches, other.ranks_switches),
            (&mut self.harness_cpu_ns, other.harness_cpu_ns),
            (&mut self.pss_bytes, other.pss_bytes),
            (&mut self.served, other.served),
        ] {
            *to += from;
        }
        for (&failure, count) in &other.failures {
            *self.failures.entry(failure).or_default() += count;
        }
        self.clients_events.add(&other.clients_events);
        self.ranks_events.add(&other.ranks_events);
        self.uncounted.extend(other.uncounted.iter().cloned());
        if let Some(series) = &other.series {
            self.series.get_or_insert_default().add(series);
        }
        self.late_processes += other.late_processes;
        self.repeated += other.repeated;
        self.start_skew_ns = self.start_skew_ns.max(other.start_skew_ns);
        self.client_counters.add(&other.client_counters);
        self.rank_counters.add(&other.rank_counters);
        for (rank, counters) in &other.each_rank {
            let sums = self.each_rank.entry(*rank).or_default();
            for (name, count) in counters {
                *sums.entry(name.clone()).or_default() += count;
            }
        }
    }

    /// Clients that had no answer inside the interval.
    #[must_use]
    pub fn silent_clients(&self) -> usize {
        self.per_client.iter().filter(|answers| **answers == 0).count()
    }

    /// Adds calls that were made before the first interval, to warm up.
    pub(crate) fn add_warm_up(&mut self, before: &Self) {
        let Self { calls, failures, not_found, mismatches, late, served, .. } = before.clone();
        self.add(&Self { calls, failures, not_found, mismatches, late, served, ..Self::default() });
    }

    /// Answers inside the interval.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.local.completed + self.remote.completed
    }

    /// Calls without an answer.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Answers per second, all clients together.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate_of(self.completed())
    }

    /// So many answers inside the interval, per second.
    pub(crate) fn rate_of(&self, answers: u64) -> f64 {
        answers as f64 * 1e9 / self.interval_ns as f64
    }

    /// CPU time per answer, in ns; daemons and clients. `None`: there was no answer.
    #[must_use]
    pub fn cpu_per_call_ns(&self) -> Option<f64> {
        self.per_answer(self.clients_cpu_ns + self.ranks_cpu_ns)
    }

    pub(crate) fn per_answer(&self, count: u64) -> Option<f64> {
        (self.completed() > 0).then(|| count as f64 / self.completed() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        drive::{Driver, Schedule},
        workload::Workload,
    };

    #[test]
    fn a_histogram_survives_being_written() {
        let mut histogram = latency_histogram();
        for ns in (0..200_000).map(|n: u64| n * n) {
            histogram.saturating_record(ns.max(1));
        }
        let latency = Latency::from(&histogram);
        assert_eq!(latency.to_histogram(), histogram);
        let text = serde_json::to_string(&latency).unwrap();
        assert_eq!(serde_json::from_str::<Latency>(&text).unwrap(), latency);
        let twice = latency.merged(&latency).to_histogram();
        assert_eq!(twice.len(), 2 * histogram.len());
        assert_eq!(twice.value_at_quantile(0.9), histogram.value_at_quantile(0.9));
    }

    #[test]
    fn pairs_merge_as_their_histograms_do() {
        let histograms = [7_u64, 13].map(|step| {
            let mut histogram = latency_histogram();
            for ns in (0..3000).map(|n| 1 + n * n * step) {
                histogram.saturating_record_n(ns, 1 + ns % step);
            }
            histogram
        });
        let [one, other] = histograms.each_ref().map(Latency::from);
        let mut both = histograms[0].clone();
        both.add(&histograms[1]).unwrap();
        assert_eq!(one.merged(&other), Latency::from(&both));
        assert_eq!(other.merged(&one), Latency::from(&both));
        assert_eq!(one.merged(&Latency::default()), one);
    }

    /// Two reports whose numbers are all different.
    #[test]
    fn fault_k2_all_that_clients_and_daemons_counted_adds_up_under_its_name() {
        let side = |completed| SideRecord { completed, ..SideRecord::default() };
        let counters = |name: &str, count| Counters {
            named: [(name.to_owned(), count)].into(),
            ..Counters::default()
        };
        let clients = |n| Measured {
            local: side(n),
            remote: side(10 * n),
            slices: vec![11 * n],
            outstanding: vec![n],
            not_found: 2 * n,
            mismatches: 3 * n,
            late: 4 * n,
            calls: 20 * n,
            clients_cpu_ns: 100 * n,
            clients_switches: 7 * n,
            harness_cpu_ns: 5 * n,
            pss_bytes: 6 * n,
            client_counters: counters("client", n),
            ..Measured::default()
        };
        let ranks = |n| Measured {
            served: 30 * n,
            ranks_cpu_ns: 200 * n,
            ranks_switches: 8 * n,
            rank_counters: counters("rank", n),
            rank_outstanding: vec![9 * n],
            ..Measured::default()
        };
        let mut measured = Measured::default();
        for part in [clients(1), ranks(1), clients(2), ranks(2)] {
            measured.add(&part);
        }
        let expected = Measured {
            local: side(3),
            remote: side(30),
            slices: vec![33],
            outstanding: vec![3],
            calls: 60,
            not_found: 6,
            mismatches: 9,
            late: 12,
            clients_cpu_ns: 300,
            ranks_cpu_ns: 600,
            clients_switches: 21,
            ranks_switches: 24,
            harness_cpu_ns: 15,
            pss_bytes: 18,
            served: 90,
            rank_outstanding: vec![27],
            client_counters: counters("client", 3),
            rank_counters: counters("rank", 3),
            ..Measured::default()
        };
        assert_eq!(measured, expected);
        assert!((measured.cpu_per_call_ns().unwrap() - 900.0 / 33.0).abs() < 1e-9);
        assert_eq!(Measured::default().cpu_per_call_ns(), None);
    }

    /// A file may come from anywhere; a run files no such latency.
    #[test]
    fn latencies_that_no_run_has_are_filed_as_the_nearest() {
        let latency: Latency = serde_json::from_str("[[0,1],[18446744073709551615,2]]").unwrap();
        let histogram = latency.to_histogram();
        assert_eq!((histogram.len(), histogram.count_at(1)), (3, 1));
        assert!(histogram.max() >= LATENCY_NS_MAX);
    }

    #[test]
    fn local_and_remote_calls_of_a_client_stay_apart() {
        let schedule = Schedule::new(&Workload::default(), 0);
        let mut driver = Driver::new(&Workload::default(), ClientId(3), schedule);
        let (mut tally, _) = driver.finish();
        (tally.local.completed, tally.remote.completed) = (1, 2);
        let total = Measured::of_client(ClientId(3), 5, &tally, Counters::default(), 0);
        assert_eq!((total.local.completed, total.remote.completed), (1, 2));
        assert_eq!(total.per_client, [0, 0, 0, 3, 0]);
    }

    #[test]
    fn clients_without_an_answer_are_counted_and_the_warm_up_adds_its_calls() {
        let measured =
            Measured { per_client: vec![5, 0, 7, 0], clients_cpu_ns: 600, ..Measured::default() };
        assert_eq!(measured.silent_clients(), 2);
        let mut first = Measured { calls: 7, served: 7, ..Measured::default() };
        first.add_warm_up(&Measured { calls: 3, served: 3, interval_ns: 9, ..measured });
        assert_eq!((first.calls, first.served), (10, 10));
        assert_eq!(first.clients_cpu_ns + first.per_client.len() as u64, 0, "only calls are added");
    }

    /// In an open loop at a low rate, many clients have nothing to do.
    #[test]
    fn fault_k2_a_client_without_calls_hides_no_skew_and_invents_none() {
        let schedule = Schedule::new(&Workload::default(), 0);
        let idle = Driver::new(&Workload::default(), ClientId(0), schedule).finish().0;
        let mut total = Measured { start_skew_ns: 7, ..Measured::default() };
        total.add(&Measured::of_client(ClientId(0), 1, &idle, Counters::default(), 0));
        assert_eq!(total.start_skew_ns, 7);
    }

    /// Totals used to be rank 0 times the number of ranks.
    #[test]
    fn pitfall_28_every_client_counts_once() {
        let report = |per_client: [u64; 2], slices: &[u64], skew| Measured {
            local: SideRecord { completed: slices.iter().sum(), ..SideRecord::default() },
            slices: slices.to_vec(),
            per_client: per_client.to_vec(),
            start_skew_ns: skew,
            failures: BTreeMap::from([(CallFailure::Timeout, 1)]),
            ..Measured::default()
        };
        let mut measured = Measured { interval_ns: 1_000_000_000, ..Measured::default() };
        measured.add(&report([0, 60], &[10, 20, 30], 5));
        measured.add(&report([6, 0], &[1, 2, 3], 50));
        assert_eq!((measured.local.completed, measured.slices.as_slice()), (66, &[11, 22, 33][..]));
        assert_eq!((measured.start_skew_ns, measured.failures[&CallFailure::Timeout]), (50, 2));
        assert_eq!(measured.per_client, [6, 60]);
        assert!((measured.rate() - 66.0).abs() < 1e-9, "66 answers in one second");
    }
}
