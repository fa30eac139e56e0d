//! What is shown of a result: one report for a terminal, one for documents, one page.

mod charts;
mod daemons;
mod tables;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use measure::{
    paired::rounds_word,
    regime::Regime,
    report::{Block, Report, ReportSection},
    table::Table,
};

use super::{ReducedCell, Results, costs, reduce, reduce_by_pace};
use crate::workload::Pace;

/// Which numbers are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// One per configuration, of all rounds.
    Configuration,
    /// One per configuration and pace of the machine.
    Pace,
}

impl By {
    fn reduce(self, results: &Results) -> Vec<ReducedCell> {
        match self {
            Self::Configuration => reduce(results),
            Self::Pace => reduce_by_pace(results),
        }
    }
}

/// The answers, and what was counted meanwhile.
fn answers_of(cells: &[&ReducedCell]) -> Vec<Block> {
    let answers = [Block::Table(tables::answers(cells))];
    answers.into_iter().chain(tables::events(cells)).collect()
}

/// Writes circumstances, the table, what else must be known, and the answer in a sentence.
///
/// # Errors
///
/// Of `to`.
pub fn write_table(results: &Results, by: By, to: &mut dyn Write) -> io::Result<()> {
    let cells = by.reduce(results);
    let mut report = Report::new(&results.header);
    report.sections = by_regime(&cells, answers_of);
    report.notes = notes(results, &cells);
    report.headline = headline(results, &cells);
    report.write_text(to)
}

/// Writes circumstances, the answer, one table of the backends as they are by default, and one of everything else.
///
/// # Errors
///
/// Of `to`.
pub fn write_markdown(results: &Results, to: &mut dyn Write) -> io::Result<()> {
    let cells = reduce(results);
    let mut report = Report::new(&results.header);
    let common = tables::common_parts(&cells);
    if !common.is_empty() {
        report.preface.push(format!("All cells: {}.", common.join(", ")));
    }
    report.preface.push(format!(
        "Thousands of answered and checked calls per second, of all clients: median of the rounds \
         (smallest to largest).\nLatencies are medians over the rounds. Calls that ended without an \
         answer: {}.",
        cells.iter().flat_map(|cell| cell.failures.values()).sum::<u64>()
    ));
    report.headline = headline(results, &cells);
    report.sections = by_regime(&cells, |cells| {
        let answers = [Block::Heading("Answers".to_owned()), Block::Table(tables::answers(cells))];
        let counted = tables::events(cells);
        answers.into_iter().chain(counted).chain(tables::of_document(cells, &common)).collect()
    });
    report.notes = notes(results, &cells);
    report.write_markdown(to)
}

/// The report as one HTML page.
#[must_use]
pub fn page(results: &Results) -> String {
    let cells = reduce(results);
    let mut report = Report::new(&results.header);
    let configurations = cells.iter().map(|cell| &cell.name).collect::<BTreeSet<_>>().len();
    report.facts = vec![
        ("pace".to_owned(), pace(results)),
        ("runs".to_owned(), format!("{} of {configurations} configurations", results.runs.len())),
    ];
    report.headline = headline(results, &cells);
    let labels = labels(&cells);
    report.sections = by_regime(&cells, answers_of);
    report.sections.extend(charts::scaling(&cells));
    report.sections.extend(charts_of(&cells, &labels));
    report.sections.push(meaning());
    report.sections.extend(numbers(&cells));
    let by_pace = reduce_by_pace(results);
    if by_pace.len() > cells.len() {
        let tables = by_regime(&by_pace, answers_of);
        report.sections.extend(tables.into_iter().map(ReportSection::folded));
    }
    report.notes = notes(results, &cells);
    report.page()
}

/// Calls per second over clients per node, as an SVG file. `None`: the result has no such curve, or several.
#[must_use]
pub fn curve(results: &Results) -> Option<String> {
    charts::curve_file(&reduce(results))
}

/// What each column of the table is.
fn meaning() -> ReportSection {
    let mut table = Table::new(2, ["column", "meaning"]);
    tables::ANSWERS.iter().for_each(|&(name, meaning)| table.push([name, meaning]));
    ReportSection::with("Columns of the table", "", [Block::Table(table)]).folded()
}

/// Names and meanings of the columns of the table that [`write_table`] writes.
pub fn columns() -> impl Iterator<Item = (&'static str, &'static str)> {
    tables::ANSWERS.into_iter()
}

/// The answer, and the machine that gave it.
fn headline(results: &Results, cells: &[ReducedCell]) -> Vec<String> {
    let sentence = super::headline::sentence(cells).into_iter();
    let rounds = cells.iter().map(|cell| cell.rates.len()).min().unwrap_or(0);
    sentence
        .map(|sentence| format!("{sentence} {rounds} {}; {}.", rounds_word(rounds), pace(results)))
        .collect()
}

fn pace(results: &Results) -> String {
    match measure::regime::change(results.runs.iter().filter_map(|run| run.placement)) {
        Some(change) => {
            format!("the machine's pace changed by a factor of {change:.1} during this run")
        }
        None => "the machine's pace is not known".to_owned(),
    }
}

/// All sections that have something to show.
fn charts_of(cells: &[ReducedCell], labels: &[String]) -> Vec<ReportSection> {
    let sections = [
        charts::throughput(cells, labels),
        charts::latency(cells, labels),
        charts::distribution(cells, labels),
        charts::over_time(cells, labels),
        charts::outstanding(cells, labels),
        daemons::outstanding(cells, labels),
        daemons::batch_sizes(cells, labels),
        daemons::phases(cells, labels),
        daemons::loops(cells, labels),
        daemons::distributions(cells, labels),
        charts::cpu(cells, labels),
    ];
    sections.into_iter().flatten().chain(charts::series(cells, labels)).collect()
}

/// A section per regime that has cells.
fn by_regime(
    cells: &[ReducedCell],
    blocks: impl Fn(&[&ReducedCell]) -> Vec<Block>,
) -> Vec<ReportSection> {
    let regimes = cells.iter().map(|cell| cell.regime).collect::<BTreeSet<_>>();
    let section = |regime| {
        let of_regime = cells.iter().filter(|cell| cell.regime == regime).collect::<Vec<_>>();
        let title = match regime {
            Regime::All => "Answers".to_owned(),
            regime => format!("pace: {regime}"),
        };
        ReportSection::with(&title, "", blocks(&of_regime))
    };
    regimes.into_iter().map(section).collect()
}

/// Local and remote calls apart, and what explains the numbers.
fn numbers(cells: &[ReducedCell]) -> Vec<ReportSection> {
    let all = cells.iter().collect::<Vec<_>>();
    let each_rank = tables::each_rank(&all).map(|table| {
        let hint = "Of the run whose throughput is the median: answers of the node's clients, and what its daemon counted.";
        ReportSection::with("Each node", hint, [Block::Table(table)])
    });
    let sections = [
        ReportSection::with("Local and remote calls", "", [Block::Table(tables::numbers(&all))]),
        ReportSection::with("Costs", costs::MEANING, [Block::Table(tables::costs(&all))]),
    ];
    sections.into_iter().chain(each_rank).map(ReportSection::folded).collect()
}

/// What the numbers alone do not tell.
fn notes(results: &Results, cells: &[ReducedCell]) -> Vec<String> {
    let mut notes = vec![
        "every answer was checked; medians over rounds; no round is left out".to_owned(),
        format!("{}; --by-pace shows numbers by pace", pace(results)),
    ];
    let harness = cells.iter().map(|cell| cell.harness_share).fold(0.0, f64::max);
    if harness > 0.0 {
        notes.push(format!(
            "the harness took {:.2} % of the processor time, of the row where it took most",
            harness * 100.0
        ));
    }
    let uncounted = results.runs.iter().flat_map(|run| &run.measured.uncounted);
    notes.extend(uncounted.collect::<BTreeSet<_>>().into_iter().cloned());
    let cores = results.header.cores;
    let most =
        cells.iter().map(|cell| cell.config.workload.topology().clients()).max().unwrap_or(0);
    if usize::from(most) > cores && cells.iter().all(|cell| cell.config.hosts == 1) {
        notes.push(format!(
            "up to {most} clients share {cores} cores: what a node with a core for each does is another question"
        ));
    }
    let versions = results.runs.iter().filter_map(|run| {
        let version = run.version.as_ref()?;
        Some(format!("{}: {version}", run.config.backend))
    });
    notes.extend(versions.collect::<BTreeSet<_>>());
    // In an open loop the first call comes when it is due.
    let closed = cells.iter().filter(|cell| cell.config.workload.pace == Pace::Closed);
    if let Some(skew_ns) = closed.map(|cell| cell.start_skew_ns).max() {
        notes.push(format!("clients started within {} µs of each other", skew_ns / 1000));
    }
    for cell in cells {
        for (failure, count) in &cell.failures {
            notes.push(format!("{}: {count} calls ended with: {}", cell.name, failure.name()));
        }
        if cell.silent_runs > 0 {
            notes.push(format!(
                "{}: in {} of {} rounds some clients had no answer, {} at most: they were not connected, or starved",
                cell.name,
                cell.silent_runs,
                cell.rates.len(),
                cell.silent_clients
            ));
        }
        if cell.repeated > 0 {
            notes.push(format!(
                "{}: {} intervals were measured again: a process had heard of them too late",
                cell.name, cell.repeated
            ));
        }
        if let Some(report) = &cell.typical.linearizable {
            notes.push(format!(
                "{}: linearizable: {} keys, {} operations, {} of unknown outcome, {} on one key",
                cell.name, report.keys, report.known, report.unknown, report.busiest
            ));
        }
        if cell.fairness < 0.5 {
            let share = cell.fairness;
            notes.push(format!("{}: the slowest client got {share:.2} of the fastest", cell.name));
        }
    }
    notes
}

/// One short name per cell: the parts of its name that some cell has not, and its regime if regimes differ.
fn labels(cells: &[ReducedCell]) -> Vec<String> {
    let parts = |cell: &ReducedCell| cell.name.split('/').map(str::to_owned).collect::<Vec<_>>();
    let mut common = cells.first().map(parts).unwrap_or_default();
    for cell in cells {
        let parts = parts(cell);
        common.retain(|part| parts.contains(part));
    }
    let has_regimes = cells.iter().any(|cell| cell.regime != cells[0].regime);
    let label = |cell: &ReducedCell| {
        let backend = cell.config.backend.name().to_owned();
        let own = parts(cell).into_iter().filter(|part| !common.contains(part) && *part != backend);
        let regime = has_regimes.then(|| cell.regime.to_string());
        let label = [backend.clone()].into_iter().chain(own).chain(regime);
        label.collect::<Vec<_>>().join(" · ")
    };
    cells.iter().map(label).collect()
}
