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

use measure::report::{Block, Report, ReportSection};

use super::{ReducedCell, Results, costs, reduce};
use crate::workload::Pace;

/// Writes circumstances, two tables per regime, and what else must be known.
///
/// # Errors
///
/// Of `to`.
pub fn write_table(results: &Results, to: &mut dyn Write) -> io::Result<()> {
    let cells = reduce(results);
    let mut report = Report::new(&results.header);
    report.sections = numbers(&cells);
    report.notes = notes(&cells);
    report.write_text(to)
}

/// Writes circumstances, and per regime one table of the backends as they are by default, and one of
/// everything else.
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
        "Thousands of answered and checked calls per second, of all clients: median of the runs \
         (smallest to largest).\nLatencies are medians over the runs. Calls that ended without an \
         answer: {}.",
        cells.iter().flat_map(|cell| cell.failures.values()).sum::<u64>()
    ));
    report.sections = by_regime(&cells, |cells| tables::of_document(cells, &common));
    report.write_markdown(to)
}

/// The report as one HTML page.
#[must_use]
pub fn page(results: &Results) -> String {
    let cells = reduce(results);
    let mut report = Report::new(&results.header);
    let regimes = cells.iter().map(|cell| cell.regime).collect::<BTreeSet<_>>();
    let regimes = regimes.into_iter().map(|regime| regime.to_string()).collect::<Vec<_>>();
    let configurations = cells.iter().map(|cell| &cell.name).collect::<BTreeSet<_>>().len();
    report.facts = vec![
        ("regimes".to_owned(), regimes.join(", ")),
        ("runs".to_owned(), format!("{} of {configurations} configurations", results.runs.len())),
    ];
    let labels = labels(&cells);
    report.sections = charts_of(&cells, &labels);
    report.sections.extend(numbers(&cells));
    report.notes = notes(&cells);
    report.page()
}

/// All sections that have something to show.
fn charts_of(cells: &[ReducedCell], labels: &[String]) -> Vec<ReportSection> {
    let sections = [
        charts::throughput(cells, labels),
        charts::scaling(cells),
        charts::latency(cells, labels),
        charts::distribution(cells, labels),
        charts::over_time(cells, labels),
        charts::outstanding(cells, labels),
        daemons::outstanding(cells, labels),
        daemons::batch_sizes(cells, labels),
        daemons::phases(cells, labels),
        daemons::distributions(cells, labels),
        charts::cpu(cells, labels),
    ];
    sections.into_iter().flatten().collect()
}

/// A section per regime that has cells.
fn by_regime(
    cells: &[ReducedCell],
    blocks: impl Fn(&[&ReducedCell]) -> Vec<Block>,
) -> Vec<ReportSection> {
    let regimes = cells.iter().map(|cell| cell.regime).collect::<BTreeSet<_>>();
    let section = |regime| {
        let of_regime = cells.iter().filter(|cell| cell.regime == regime).collect::<Vec<_>>();
        ReportSection::with(&format!("regime: {regime}"), "", blocks(&of_regime))
    };
    regimes.into_iter().map(section).collect()
}

fn numbers(cells: &[ReducedCell]) -> Vec<ReportSection> {
    by_regime(cells, |cells| {
        vec![Block::Table(tables::numbers(cells)), Block::Table(tables::costs(cells))]
    })
}

/// What the numbers alone do not tell.
fn notes(cells: &[ReducedCell]) -> Vec<String> {
    let mut notes = vec![
        "every answer was checked; medians over runs, spread is smallest to largest".to_owned(),
        costs::MEANING.to_owned(),
    ];
    // In an open loop the first call comes when it is due.
    let closed = cells.iter().filter(|cell| cell.config.workload.pace == Pace::Closed);
    if let Some(skew_ns) = closed.map(|cell| cell.start_skew_ns).max() {
        notes.push(format!("clients started within {} µs of each other", skew_ns / 1000));
    }
    for cell in cells {
        for (failure, count) in &cell.failures {
            notes.push(format!("{}: {count} calls ended with: {}", cell.name, failure.name()));
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
