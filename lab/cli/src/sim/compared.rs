//! Numbers of a reference beside simulated ones, as tables, as JSON and as pictures.

use std::{io::Write as _, path::Path};

use comfy_table::{ColumnConstraint, Table};
use measure::{
    report::{
        Block, Report, ReportSection,
        chart::{self, Bar},
    },
    results::Header,
};
use sim::scenarios::{Compared, ERROR_MAX};

use crate::output;
use command::table::narrow;

/// A table whose first column wraps and whose other columns do not, so that no number is broken.
pub(super) fn numbers(header: &[&str]) -> Table {
    let mut table = narrow(header);
    for (index, column) in table.column_iter_mut().enumerate() {
        if index == 0 {
            column.remove_constraint();
        } else {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

/// The quantity with its unit.
pub(super) fn named(what: &str, unit: &str) -> String {
    if unit.is_empty() { what.to_owned() } else { format!("{what}, {unit}") }
}

pub(super) fn text_of(rows: &[Compared]) -> String {
    let mut table = numbers(&["number", "reference", "simulated", "error", "class"]);
    for row in rows {
        table.add_row([
            named(&row.what, row.unit),
            number(row.reference),
            number(row.simulated),
            format!("{:+.1} %", 100.0 * row.error()),
            row.verdict().to_owned(),
        ]);
    }
    format!("{table}\n\n{}", summary(rows))
}

/// How many rows of each class there are, and the worst error of each.
pub(super) fn summary(rows: &[Compared]) -> String {
    let of_class = |name: &str| {
        let of_it = rows.iter().filter(|row| row.standing.name() == name).map(Compared::error);
        let (count, worst) =
            of_it.fold((0, 0.0_f64), |(count, worst), error| (count + 1, worst.max(error.abs())));
        (count, 100.0 * worst)
    };
    let classes = ["fitted", "predicted", "missed", "shown"].map(|name| {
        let (count, worst) = of_class(name);
        (name, count, worst)
    });
    let some = classes.into_iter().filter(|(_, count, _)| *count > 0);
    let text = |(name, count, worst)| format!("{count} {name} (worst {worst:.1} %)");
    let texts: Vec<_> = some.map(text).collect();
    // Two in a line, so that none is longer than 80 characters.
    let lines: Vec<_> = texts.chunks(2).map(|line| line.join(", ")).collect();
    format!(
        "{}\nfitted and predicted numbers are claimed within {:.0} %, missed are off by more",
        lines.join(",\n"),
        100.0 * ERROR_MAX
    )
}

pub(super) fn number(value: f64) -> String {
    if value.abs() < 1.0 { format!("{value:.4}") } else { format!("{value:.2}") }
}

/// Writes a page that shows reference and simulation side by side, a picture for each unit.
pub(super) fn write_page(path: &Path, name: &str, rows: &[Compared]) -> anyhow::Result<()> {
    let mut units: Vec<(&str, Vec<Bar>)> = Vec::new();
    for Compared { what, unit, reference, simulated, .. } in rows {
        let at = units.iter().position(|(known, _)| known == unit).unwrap_or_else(|| {
            units.push((unit, Vec::new()));
            units.len() - 1
        });
        let bar =
            |label: String, colour, value| Bar { label, colour, value, range: (value, value) };
        units[at].1.push(bar(what.clone(), 0, *reference));
        units[at].1.push(bar(String::new(), 1, *simulated));
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
        command: std::env::args()
            .skip(1)
            .fold("copyrpc-lab".to_owned(), |all, one| all + " " + &one),
        ..Header::default()
    });
    report.sections = sections.collect();
    report.notes.push("The reference was measured on hardware. Simulated numbers were not.".into());
    let page = report.page();
    output::write_file(path, |file| file.write_all(page.as_bytes()))
}

/// An error that names the numbers that were missed, if any was.
pub(super) fn judge(rows: &[Compared]) -> anyhow::Result<()> {
    let misses = rows.iter().filter(|row| row.is_missed()).map(|row| row.what.as_str());
    let misses: Vec<_> = misses.collect();
    anyhow::ensure!(
        misses.is_empty(),
        "{} of {} numbers are not as their class says, within {:.0} %: {}",
        misses.len(),
        rows.len(),
        100.0 * ERROR_MAX,
        misses.join("; ")
    );
    Ok(())
}
