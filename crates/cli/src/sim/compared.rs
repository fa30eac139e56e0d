//! Numbers of a reference beside simulated ones, as tables, as JSON and as pictures.

use std::{io::Write as _, path::Path};

use anyhow::Context as _;
use measure::{
    report::{
        Block, Report, ReportSection,
        chart::{self, Bar},
    },
    results::Header,
};
use serde::Serialize;
use sim::scenarios::{Compared, ERROR_MAX, Standing};

use crate::{output, table::table};

pub(super) fn text_of(rows: &[Compared]) -> String {
    let mut table = table(&["number", "unit", "reference", "simulated", "error", "used", ""]);
    for row in rows {
        table.add_row([
            row.what.clone(),
            row.unit.into(),
            number(row.reference),
            number(row.simulated),
            format!("{:+.1} %", 100.0 * row.error()),
            match row.standing {
                Standing::Fitted => "fitted".into(),
                Standing::Checked => "checked".into(),
                Standing::Shown => "shown".into(),
                Standing::Contradicted => "no".into(),
            },
            if row.is_missed() { "MISSED".into() } else { String::new() },
        ]);
    }
    let underived = rows.iter().filter(|row| row.standing == Standing::Contradicted);
    let underived: Vec<_> = underived.map(|row| row.what.as_str()).collect();
    if underived.is_empty() {
        return table.to_string();
    }
    format!(
        "{table}\n\nnot derivable, because the reference contradicts them, and met in another reading of it:\n{}",
        underived.join("\n")
    )
}

fn number(value: f64) -> String {
    if value.abs() < 1.0 { format!("{value:.4}") } else { format!("{value:.2}") }
}

/// One JSON object per number.
pub(super) fn print_json<T: Serialize>(rows: &[T]) -> anyhow::Result<()> {
    let lines: Result<Vec<_>, _> = rows.iter().map(serde_json::to_string).collect();
    output::print(&(lines.context("cannot write JSON")?.join("\n") + "\n"))
}

/// A number of a picture: what it is, its unit, and what was measured and simulated.
pub(super) type Pair<'a> = (&'a str, &'a str, f64, f64);

/// Writes a page that shows reference and simulation side by side, a picture for each unit.
pub(super) fn write_page<'a>(
    path: &Path,
    name: &str,
    pairs: impl Iterator<Item = Pair<'a>>,
) -> anyhow::Result<()> {
    let mut units: Vec<(&str, Vec<Bar>)> = Vec::new();
    for (what, unit, reference, simulated) in pairs {
        let at = units.iter().position(|(known, _)| *known == unit).unwrap_or_else(|| {
            units.push((unit, Vec::new()));
            units.len() - 1
        });
        let bar =
            |label: String, colour, value| Bar { label, colour, value, range: (value, value) };
        units[at].1.push(bar(what.to_owned(), 0, reference));
        units[at].1.push(bar(String::new(), 1, simulated));
    }
    let names = ["reference".to_owned(), "simulated".to_owned()];
    let sections = units.iter().map(|(unit, bars)| {
        let title = if unit.is_empty() { "numbers without unit" } else { unit };
        let chart = chart::bars(bars, number).titled(title.to_owned()).keyed(&names);
        ReportSection::with(title, "", [Block::Chart(chart)])
    });
    let mut report = Report::new(&Header {
        bench: format!("sim {name}"),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: std::env::args().skip(1).fold("copyrpc".to_owned(), |all, one| all + " " + &one),
        ..Header::default()
    });
    report.sections = sections.collect();
    report.notes.push("The reference was measured on hardware. Simulated numbers were not.".into());
    let page = report.page();
    output::write_file(path, |file| file.write_all(page.as_bytes()))
}

/// As [`write_page`], of rows.
pub(super) fn write_page_of(path: &Path, name: &str, rows: &[Compared]) -> anyhow::Result<()> {
    let pairs = rows.iter().map(|row| (row.what.as_str(), row.unit, row.reference, row.simulated));
    write_page(path, name, pairs)
}

/// An error that names the numbers that were missed, if any was.
pub(super) fn judge(rows: &[Compared]) -> anyhow::Result<()> {
    let misses = rows.iter().filter(|row| row.is_missed()).map(|row| row.what.as_str());
    let misses: Vec<_> = misses.collect();
    anyhow::ensure!(
        misses.is_empty(),
        "{} of {} numbers are off by more than {:.0} %: {}",
        misses.len(),
        rows.len(),
        100.0 * ERROR_MAX,
        misses.join("; ")
    );
    Ok(())
}
