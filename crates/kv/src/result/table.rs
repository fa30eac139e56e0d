//! The table for people.

use std::{
    io::{self, Write},
    iter,
};

use bench::{
    report::{Header, number},
    stats::Summary,
};
use comfy_table::{CellAlignment, LineStyle, Table, presets};

use super::{
    Cell, LatencySummary, Results, SideCell,
    cells::{regime_name, regimes},
    costs::{self, costs},
    reduce,
};
use crate::workload::Pace;

const HEADINGS: [&str; 12] = [
    "cell",
    "calls",
    "k/s",
    "spread",
    "p50 µs",
    "p90",
    "p99",
    "p99.9",
    "max",
    "cpu ns/call",
    "errors",
    "vs tcp",
];

/// Writes circumstances, one table per regime, and what else must be known.
///
/// # Errors
///
/// Of `to`.
pub fn write_table(results: &Results, to: &mut impl Write) -> io::Result<()> {
    let Header { cpu, cores, pinning, kernel, nic, commit, profile, date, .. } =
        &results.header.run;
    let cells = reduce(results);
    writeln!(to, "kv: {cpu}, {cores} cores, NIC {nic}, pinning {pinning}")?;
    writeln!(to, "kernel {kernel}, commit {commit}, {profile} build, {date}")?;
    for regime in regimes() {
        let rows = cells.iter().filter(|cell| cell.regime == regime).collect::<Vec<_>>();
        if let Some(first) = rows.first() {
            writeln!(to, "\nregime: {}\n{}", regime_name(first.regime), table(&rows).trim_fmt())?;
            writeln!(to, "\n{}", costs_table(&rows).trim_fmt())?;
        }
    }
    writeln!(to)?;
    notes(&cells).iter().try_for_each(|note| writeln!(to, "{note}"))
}

fn table(cells: &[&Cell]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING.header_separator(LineStyle::none().fill('-')));
    table.set_header(HEADINGS);
    for cell in cells {
        let sides = [("all", &cell.all), ("local", &cell.local), ("remote", &cell.remote)];
        let used = sides.into_iter().filter(|(_, side)| side.latency.is_some());
        // If all calls are local or all are remote, that line says the same as the first.
        let used = used.collect::<Vec<_>>();
        let used = if used.len() == 2 { &used[1..] } else { &used[..] };
        for (index, (calls, side)) in used.iter().enumerate() {
            table.add_row(line(cell, calls, side, index == 0));
        }
        if used.is_empty() {
            table.add_row(line(cell, "none", &cell.all, true));
        }
    }
    align_numbers(&mut table, 2);
    table
}

/// What explains the numbers above.
fn costs_table(cells: &[&Cell]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING.header_separator(LineStyle::none().fill('-')));
    table.set_header(iter::once("cell").chain(costs::HEADINGS));
    for cell in cells {
        table.add_row(iter::once(cell.name.clone()).chain(costs(cell)));
    }
    align_numbers(&mut table, 1);
    table
}

/// From column `first` on.
fn align_numbers(table: &mut Table, first: usize) {
    for column in table.column_iter_mut().skip(first) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn line(cell: &Cell, calls: &str, side: &SideCell, is_first: bool) -> Vec<String> {
    let mut line = vec![
        if is_first { cell.name.clone() } else { String::new() },
        calls.to_owned(),
        number(side.rate.median / 1e3),
        spread(side.rate),
    ];
    match &side.latency {
        Some(latency) => line.extend(latency_fields(latency)),
        None => line.extend([const { String::new() }; 5]),
    }
    line.extend(if is_first {
        let errors = cell.failures.values().sum::<u64>();
        let versus = cell.versus.as_ref().map(|(_, ratio)| format!("{ratio:.2}"));
        let cpu = cell.cpu_per_call_ns.map_or_else(String::new, |cpu| number(cpu.median));
        [cpu, errors.to_string(), versus.unwrap_or_default()]
    } else {
        [const { String::new() }; 3]
    });
    line
}

fn latency_fields(latency: &LatencySummary) -> [String; 5] {
    latency.named().map(|(_, summary)| number(summary.median / 1e3))
}

/// Smallest to largest; nothing if there is one run only.
fn spread(summary: Summary) -> String {
    if summary.runs < 2 {
        return "1 run".to_owned();
    }
    format!("{}–{}", number(summary.min / 1e3), number(summary.max / 1e3))
}

/// What the numbers alone do not tell.
fn notes(cells: &[Cell]) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::samples;

    #[test]
    fn the_table_says_all_that_was_asked_for() {
        let mut bytes = Vec::new();
        write_table(&samples::results(), &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        for expected in [
            "tcp/2x4/qd4/natural",
            "regime: near",
            "local",
            "remote",
            "100.0",
            "80.0–120.0",
            "p99.9",
            "ended with: timeout",
            "commit abc",
            "within 2 µs",
            "daemon switches",
        ] {
            assert!(text.contains(expected), "{expected:?} in\n{text}");
        }
    }
}
