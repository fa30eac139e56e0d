//! The answer of a run in a sentence: how one backend compares with the others that people know.

use std::collections::BTreeMap;

use measure::paired::{Ratio, Verdict, rounds_word};

use super::{ReducedCell, reduce::ratio_over};
use crate::{backend::Kind, workload::Workload};

/// The backend that the sentence is about: the first of these that was measured.
const SUBJECTS: [Kind; 4] = [Kind::Delegation, Kind::Provider, Kind::Direct, Kind::UcxAm];
/// Backends that it is compared with, if they were measured.
const RIVALS: [Kind; 2] = [Kind::Tcp, Kind::UcxAm];

/// The ratios of the headline, while rounds are still measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Headline {
    subject: Option<Kind>,
    rivals: Vec<Kind>,
    rounds: Vec<BTreeMap<Kind, f64>>,
}

impl Headline {
    /// Of these contestants. Several of one backend have no headline: it would not say which of them it is about.
    pub(crate) fn of(mut backends: Vec<Kind>) -> Self {
        let count = backends.len();
        backends.sort_unstable();
        backends.dedup();
        let (subject, rivals) = if backends.len() == count {
            subject_and_rivals(&backends)
        } else {
            (None, Vec::new())
        };
        Self { subject, rivals, rounds: Vec::new() }
    }

    /// Adds the rates of one round.
    pub(crate) fn add_round(&mut self, rates: &[(Kind, f64)]) {
        self.rounds.push(rates.iter().copied().collect());
    }

    /// Whether all its ratios are known to `factor`; if there are none, nothing is missing.
    pub(crate) fn is_known_to(&self, factor: f64) -> bool {
        let Some(subject) = self.subject else { return true };
        self.rivals.iter().all(|rival| {
            let pairs = self
                .rounds
                .iter()
                .filter_map(|round| Some((*round.get(&subject)?, *round.get(rival)?)));
            Ratio::of(pairs).is_some_and(|ratio| ratio.is_known_to(factor))
        })
    }
}

fn subject_and_rivals(backends: &[Kind]) -> (Option<Kind>, Vec<Kind>) {
    let subject = SUBJECTS.into_iter().find(|kind| backends.contains(kind));
    let rivals =
        RIVALS.into_iter().filter(|kind| backends.contains(kind) && Some(*kind) != subject);
    (subject, rivals.collect())
}

/// The sentence about `cells`; `None` if it would have nothing to say.
pub(crate) fn sentence(cells: &[ReducedCell]) -> Option<String> {
    let mut backends = cells.iter().map(|cell| cell.config.backend).collect::<Vec<_>>();
    backends.sort_unstable();
    backends.dedup();
    let (subject, rivals) = subject_and_rivals(&backends);
    let subject = subject?;
    let mut workloads = Vec::<&Workload>::new();
    for cell in cells.iter().filter(|cell| cell.config.backend == subject) {
        if workloads.contains(&&cell.config.workload) {
            return None; // which of several ways to be this backend?
        }
        workloads.push(&cell.config.workload);
    }
    let varies = varying(&workloads)?;
    let clauses = workloads.iter().filter_map(|workload| {
        let of = |kind: Kind| {
            cells
                .iter()
                .find(|cell| cell.config.backend == kind && cell.config.workload == **workload)
        };
        let ratios = rivals
            .iter()
            .filter_map(|&rival| Some(clause(rival, &ratio_over(of(subject)?, of(rival)?)?)));
        let ratios = ratios.collect::<Vec<_>>();
        let place = if varies {
            format!("with {} clients per node ", workload.clients_per_rank)
        } else {
            String::new()
        };
        (!ratios.is_empty()).then(|| format!("{place}{}", ratios.join(" and ")))
    });
    let clauses = clauses.collect::<Vec<_>>();
    (!clauses.is_empty()).then(|| format!("{subject}: {}.", clauses.join("; ")))
}

/// Whether workloads differ in the number of clients per node. `None`: they differ in something else.
fn varying(workloads: &[&Workload]) -> Option<bool> {
    let first = workloads.first()?;
    let is_same = |other: &&&Workload| {
        let Workload { clients_per_rank, duration_ms, .. } = **first;
        Workload { clients_per_rank, duration_ms, ..(**other).clone() } == **first
    };
    (workloads.iter().filter(is_same).count() == workloads.len()).then_some(workloads.len() > 1)
}

fn clause(rival: Kind, ratio: &Ratio) -> String {
    let Ratio { median, interval, .. } = ratio;
    let range =
        interval.map_or_else(String::new, |(low, high)| format!(" ({low:.2} to {high:.2})"));
    match ratio.verdict() {
        Verdict::Same => format!("as fast as {rival}{range}"),
        Verdict::More | Verdict::Less => format!("{median:.2} times {rival}{range}"),
        Verdict::Undecided { more_rounds } => {
            let word = rounds_word(more_rounds);
            format!("{median:.2} times {rival}{range}, undecided: {more_rounds} more {word}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        configuration::Config,
        result::{Results, reduce, samples},
        workload::Locality,
    };

    /// Rates of each backend in each round, with so many clients per node.
    fn results(clients: u16, rates: &[(Kind, [u64; 6])]) -> Results {
        let mut results = Results { header: samples::header(), runs: Vec::new() };
        for (backend, rates) in rates {
            let mut config = Config { backend: *backend, ..samples::config(Locality::Natural) };
            config.workload.clients_per_rank = clients;
            let runs = (0..).zip(rates).map(|(run, &rate)| samples::run(&config, run, rate, 0, 1));
            results.runs.extend(runs);
        }
        results
    }

    const TCP: (Kind, [u64; 6]) = (Kind::Tcp, [100, 20, 100, 100, 20, 100]);
    const UCX: (Kind, [u64; 6]) = (Kind::UcxAm, [440, 92, 450, 452, 89, 449]);
    const DELEGATION: (Kind, [u64; 6]) = (Kind::Delegation, [450, 90, 440, 460, 90, 450]);

    /// The pace changes by five; the ratios do not.
    #[test]
    fn the_sentence_compares_with_those_that_people_know() {
        let results = results(4, &[TCP, UCX, DELEGATION]);
        assert_eq!(
            sentence(&reduce(&results)).unwrap(),
            "delegation: 4.50 times tcp (4.40 to 4.60) and as fast as ucx-am (0.98 to 1.02)."
        );
    }

    #[test]
    fn each_number_of_clients_has_a_clause() {
        let mut all = results(4, &[TCP, DELEGATION]);
        all.runs.extend(results(64, &[TCP, DELEGATION]).runs);
        let sentence = sentence(&reduce(&all)).unwrap();
        let expected = "delegation: with 4 clients per node 4.50 times tcp (4.40 to 4.60); with 64 clients per node";
        assert!(sentence.starts_with(expected), "{sentence}");
    }

    #[test]
    fn what_is_not_known_says_so() {
        let wild = (Kind::Delegation, [900, 20, 440, 100, 90, 450]);
        let said = sentence(&reduce(&results(4, &[TCP, wild]))).unwrap();
        assert!(said.contains("undecided: "), "{said}");
        let few =
            Results { runs: results(4, &[TCP]).runs[..1].to_vec(), header: samples::header() };
        assert_eq!(sentence(&reduce(&few)), None, "one backend compares with nothing");
    }

    #[test]
    fn rounds_go_on_until_all_ratios_of_the_headline_are_known() {
        let mut headline = Headline::of(vec![Kind::Tcp, Kind::Delegation, Kind::Direct]);
        assert!(!headline.is_known_to(1.05));
        for pace in [1.0, 0.2, 1.0, 1.0, 0.2, 1.0] {
            assert!(!headline.is_known_to(1.05), "six rounds at least");
            headline.add_round(&[(Kind::Tcp, 10.0 * pace), (Kind::Delegation, 45.0 * pace)]);
        }
        assert!(headline.is_known_to(1.05));
        headline.add_round(&[(Kind::Tcp, 10.0), (Kind::Delegation, 90.0)]);
        assert!(!headline.is_known_to(1.05), "seven: both ends of the interval are extremes");
        assert!(Headline::of(vec![Kind::Tcp]).is_known_to(1.05), "there is nothing to know");
        assert!(Headline::of(vec![Kind::Tcp, Kind::Direct, Kind::Direct]).is_known_to(1.05));
    }
}
