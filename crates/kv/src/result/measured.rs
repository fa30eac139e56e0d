//! What one run found, all clients and daemons together.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::{
    backend::{Counters, Failure},
    drive::{LATENCY_NS_MAX, Schedule, Side, Tally, latency_histogram},
    history,
    job::{ClientsReport, RankReport},
    place::ClientId,
    workload::Workload,
};

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

    /// Both together.
    ///
    /// # Panics
    ///
    /// Never: all histograms have the same bounds.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let mut histogram = self.to_histogram();
        histogram.add(other.to_histogram()).expect("the same bounds");
        Self::from(&histogram)
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

impl From<&Side> for SideRecord {
    fn from(side: &Side) -> Self {
        Self { completed: side.completed, latency: Latency::from(&side.latency) }
    }
}

impl ClientsReport {
    /// Adds what one client measured.
    pub(crate) fn add_client(&mut self, id: ClientId, tally: &Tally, counters: &Counters) {
        let Tally { local, remote, .. } = tally;
        self.add(&Self {
            local: local.into(),
            remote: remote.into(),
            slices: tally.slices.clone(),
            outstanding: tally.outstanding.iter().map(|&count| u64::from(count)).collect(),
            failures: tally.failures.clone(),
            not_found: tally.not_found,
            mismatches: tally.mismatches,
            late: tally.late,
            calls: tally.calls,
            per_client: vec![(id, local.completed + remote.completed)],
            start_skew_ns: tally.start_skew_ns.unwrap_or(0),
            cpu_ns: 0,
            switches: 0,
            counters: counters.clone(),
        });
    }

    /// Adds what other clients measured.
    pub(crate) fn add(&mut self, other: &Self) {
        self.local.add(&other.local);
        self.remote.add(&other.remote);
        add_up(&mut self.slices, &other.slices);
        add_up(&mut self.outstanding, &other.outstanding);
        for (&failure, count) in &other.failures {
            *self.failures.entry(failure).or_default() += count;
        }
        self.not_found += other.not_found;
        self.mismatches += other.mismatches;
        self.late += other.late;
        self.calls += other.calls;
        self.per_client.extend(&other.per_client);
        self.start_skew_ns = self.start_skew_ns.max(other.start_skew_ns);
        self.cpu_ns += other.cpu_ns;
        self.switches += other.switches;
        self.counters.add(&other.counters);
    }
}

impl RankReport {
    /// Adds what another daemon, or another thread of it, counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.served += other.served;
        self.cpu_ns += other.cpu_ns;
        self.switches += other.switches;
        self.counters.add(&other.counters);
        add_up(&mut self.outstanding, &other.outstanding);
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
    pub failures: BTreeMap<Failure, u64>,
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
    /// What `--verify full` judged.
    pub linearizable: Option<history::Report>,
}

impl Measured {
    pub(crate) fn new(
        workload: &Workload,
        schedule: &Schedule,
        clients: ClientsReport,
        ranks: RankReport,
        linearizable: Option<history::Report>,
    ) -> Self {
        let mut per_client = vec![0; usize::from(workload.topology().clients())];
        for (id, count) in clients.per_client {
            per_client[usize::from(id.0)] = count;
        }
        Self {
            interval_ns: schedule.end_ns - schedule.measure_ns,
            local: clients.local,
            remote: clients.remote,
            slice_ns: schedule.slice_ns,
            slices: clients.slices,
            outstanding: clients.outstanding,
            per_client,
            calls: clients.calls,
            failures: clients.failures,
            not_found: clients.not_found,
            mismatches: clients.mismatches,
            late: clients.late,
            start_skew_ns: clients.start_skew_ns,
            clients_cpu_ns: clients.cpu_ns,
            ranks_cpu_ns: ranks.cpu_ns,
            clients_switches: clients.switches,
            ranks_switches: ranks.switches,
            served: ranks.served,
            rank_outstanding: ranks.outstanding,
            client_counters: clients.counters,
            rank_counters: ranks.counters,
            linearizable,
        }
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
    pub(super) fn rate_of(&self, answers: u64) -> f64 {
        answers as f64 * 1e9 / self.interval_ns as f64
    }

    /// CPU time per answer, in ns; daemons and clients. `None`: there was no answer.
    #[must_use]
    pub fn cpu_per_call_ns(&self) -> Option<f64> {
        self.per_answer(self.clients_cpu_ns + self.ranks_cpu_ns)
    }

    pub(super) fn per_answer(&self, count: u64) -> Option<f64> {
        (self.completed() > 0).then(|| count as f64 / self.completed() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::Driver;

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

    /// Two reports whose numbers are all different.
    #[test]
    fn fault_k2_all_that_clients_and_daemons_counted_adds_up_under_its_name() {
        let side = |completed| SideRecord { completed, ..SideRecord::default() };
        let counters = |name: &str, count| Counters {
            named: [(name.to_owned(), count)].into(),
            ..Counters::default()
        };
        let clients = |n| ClientsReport {
            local: side(n),
            remote: side(10 * n),
            slices: vec![11 * n],
            outstanding: vec![n],
            not_found: 2 * n,
            mismatches: 3 * n,
            late: 4 * n,
            calls: 20 * n,
            cpu_ns: 100 * n,
            switches: 7 * n,
            counters: counters("client", n),
            ..ClientsReport::default()
        };
        let ranks = |n| RankReport {
            served: 30 * n,
            cpu_ns: 200 * n,
            switches: 8 * n,
            counters: counters("rank", n),
            outstanding: vec![9 * n],
        };
        let (mut all_clients, mut all_ranks) = (clients(1), ranks(1));
        all_clients.add(&clients(2));
        all_ranks.add(&ranks(2));
        let workload = Workload::default();
        let schedule = Schedule::new(&workload, 77);
        let measured = Measured::new(&workload, &schedule, all_clients, all_ranks, None);
        let expected = Measured {
            interval_ns: 1_000_000_000,
            local: side(3),
            remote: side(30),
            slice_ns: 20_000_000,
            slices: vec![33],
            outstanding: vec![3],
            per_client: vec![0; 8],
            calls: 60,
            not_found: 6,
            mismatches: 9,
            late: 12,
            clients_cpu_ns: 300,
            ranks_cpu_ns: 600,
            clients_switches: 21,
            ranks_switches: 24,
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
        let (mut tally, _) = Driver::new(&Workload::default(), ClientId(3), schedule).finish();
        (tally.local.completed, tally.remote.completed) = (1, 2);
        let mut total = ClientsReport::default();
        total.add_client(ClientId(3), &tally, &Counters::default());
        assert_eq!((total.local.completed, total.remote.completed), (1, 2));
        assert_eq!(total.per_client, [(ClientId(3), 3)]);
    }

    /// In an open loop at a low rate, many clients have nothing to do.
    #[test]
    fn fault_k2_a_client_without_calls_hides_no_skew_and_invents_none() {
        let schedule = Schedule::new(&Workload::default(), 0);
        let idle = Driver::new(&Workload::default(), ClientId(0), schedule).finish().0;
        let mut total = ClientsReport { start_skew_ns: 7, ..ClientsReport::default() };
        total.add_client(ClientId(0), &idle, &crate::backend::Counters::default());
        assert_eq!(total.start_skew_ns, 7);
    }

    /// Totals used to be rank 0 times the number of ranks.
    #[test]
    fn pitfall_28_every_client_counts_once() {
        let report = |id, slices: &[u64], skew| ClientsReport {
            local: SideRecord { completed: slices.iter().sum(), ..SideRecord::default() },
            slices: slices.to_vec(),
            per_client: vec![(ClientId(id), slices.iter().sum())],
            start_skew_ns: skew,
            failures: BTreeMap::from([(Failure::Timeout, 1)]),
            ..ClientsReport::default()
        };
        let mut total = ClientsReport::default();
        total.add(&report(1, &[10, 20, 30], 5));
        total.add(&report(0, &[1, 2, 3], 50));
        assert_eq!((total.local.completed, total.slices.as_slice()), (66, &[11, 22, 33][..]));
        assert_eq!((total.start_skew_ns, total.failures[&Failure::Timeout]), (50, 2));
        let workload = Workload { ranks: 2, clients_per_rank: 1, ..Workload::default() };
        let schedule = Schedule::new(&workload, 0);
        let measured = Measured::new(&workload, &schedule, total, RankReport::default(), None);
        assert_eq!(measured.per_client, [6, 60]);
        assert!((measured.rate() - 66.0).abs() < 1e-9, "66 answers in one second");
    }
}
