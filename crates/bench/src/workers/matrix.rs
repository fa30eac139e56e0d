//! What the switches of a worker change, as tables in Markdown for documents.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use super::{
    plan::{LOADS, name_of},
    switches::{Grid, Switches},
};
use crate::{
    regime::Regime,
    report::{Header, Report, number},
};

/// Writes circumstances, and per regime two tables: what each switch changes by itself, and every
/// combination.
///
/// # Errors
///
/// Of `to`.
pub fn write_markdown(report: &Report, grid: &Grid, to: &mut impl Write) -> io::Result<()> {
    let Header { command, cpu, cores, pinning, kernel, nic, commit, profile, date, .. } =
        &report.header;
    writeln!(to, "`{command}`\n")?;
    writeln!(to, "{cpu}, {cores} cores, NIC {nic}, pinned to {pinning}, kernel {kernel},")?;
    writeln!(to, "commit {commit}, {profile} build, {date}.")?;
    for regime in Regime::KEPT {
        let matrix = Matrix::new(report, grid, regime);
        if !matrix.points.is_empty() {
            writeln!(to, "\n### Cores {regime}: each switch by itself\n")?;
            matrix.write_effects(to)?;
            writeln!(to, "\n### Cores {regime}: every combination\n")?;
            matrix.write_points(to)?;
        }
    }
    Ok(())
}

/// A combination and its medians, by load.
struct Point {
    axes: Axes,
    medians: [Option<f64>; LOADS.len()],
}

struct Matrix {
    points: Vec<Point>,
}

impl Matrix {
    fn new(report: &Report, grid: &Grid, regime: Regime) -> Self {
        let rows = report.rows.iter().filter(|row| row.regime == regime);
        let medians: HashMap<&str, f64> =
            rows.map(|row| (row.cell.as_str(), row.summary.median)).collect();
        let point = |(switches, suffix): (Switches, String)| {
            let median = |(load, ..): (&str, u16, u16)| {
                medians.get(name_of(load, &suffix).as_str()).copied()
            };
            Point { axes: axes(&switches), medians: LOADS.map(median) }
        };
        let points = grid.points().into_iter().map(point);
        Self { points: points.filter(|point| point.medians.iter().any(Option::is_some)).collect() }
    }

    /// For each value but the first of a switch, the median over all pairs of combinations that
    /// differ in nothing else.
    fn write_effects(&self, to: &mut impl Write) -> io::Result<()> {
        let [a, b, c] = LOADS.map(|(load, ..)| load);
        writeln!(to, "| switch | {a}: time | {b}: rate | {c}: rate | pairs |")?;
        writeln!(to, "|---|---|---|---|---|")?;
        let Some(first) = self.points.first() else { return Ok(()) };
        for (axis, (name, base)) in first.axes.iter().enumerate() {
            let mut values: Vec<&str> = Vec::new();
            for point in &self.points {
                let value = point.axes[axis].1.as_str();
                if value != base && !values.contains(&value) {
                    values.push(value);
                }
            }
            for value in values {
                let pairs = self.pairs(axis, base, value);
                let cells = [0, 1, 2].map(|load| {
                    let ratio = |(to, from): &(&Point, &Point)| {
                        Some(to.medians[load]? / from.medians[load]?)
                    };
                    median(pairs.iter().filter_map(ratio).collect())
                });
                let cells = cells.map(|cell| cell.map_or_else(String::new, |c| format!("{c:.2}")));
                let (cells, count) = (cells.join(" | "), pairs.len());
                writeln!(to, "| {name} {base} → {value} | {cells} | {count} |")?;
            }
        }
        Ok(())
    }

    fn pairs<'a>(&'a self, axis: usize, base: &str, value: &str) -> Vec<(&'a Point, &'a Point)> {
        let of_value = self.points.iter().filter(|point| point.axes[axis].1 == value);
        let pair = |point: &'a Point| {
            let is_partner = |other: &&Point| {
                let same = |at: usize| other.axes[at] == point.axes[at];
                other.axes[axis].1 == base && (0..AXES).all(|at| at == axis || same(at))
            };
            Some((point, self.points.iter().find(is_partner)?))
        };
        of_value.filter_map(pair).collect()
    }

    fn write_points(&self, to: &mut impl Write) -> io::Result<()> {
        let Some(first) = self.points.first() else { return Ok(()) };
        let is_varied =
            |axis: &usize| self.points.iter().any(|p| p.axes[*axis] != first.axes[*axis]);
        let varied: Vec<usize> = (0..AXES).filter(is_varied).collect();
        let names = varied.iter().map(|axis| first.axes[*axis].0);
        let loads = LOADS
            .map(|(load, _, depth)| format!("{load} {}", if depth == 1 { "ns" } else { "M/s" }));
        let header: Vec<_> = names.chain(loads.iter().map(String::as_str)).collect();
        writeln!(to, "| {} |", header.join(" | "))?;
        writeln!(to, "|{}", "---|".repeat(header.len()))?;
        for point in &self.points {
            let values = varied.iter().map(|axis| point.axes[*axis].1.clone());
            let medians = point.medians.iter().map(|m| m.map(number).unwrap_or_default());
            writeln!(to, "| {} |", values.chain(medians).collect::<Vec<_>>().join(" | "))?;
        }
        Ok(())
    }
}

const AXES: usize = 7;
/// Names of switches and their values.
type Axes = [(&'static str, String); AXES];

fn axes(switches: &Switches) -> Axes {
    let Switches { transport, dcis, inline, doorbell_batching, srq, signal_interval, flush } =
        switches;
    [
        ("transport", transport.to_string()),
        ("dcis", dcis.to_string()),
        ("inline", inline.to_string()),
        ("doorbell-batching", doorbell_batching.to_string()),
        ("srq", srq.to_string()),
        ("signal-interval", signal_interval.to_string()),
        ("flush", flush.to_string()),
    ]
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::tests::header,
        schedule::Filed,
        workers::{plan, switches::Switch},
    };

    /// Without batched doorbells everything takes twice as long.
    #[test]
    fn an_effect_compares_what_differs_in_nothing_else() {
        let grid = Grid {
            inline: vec![Switch::On, Switch::Off],
            doorbell_batching: vec![Switch::On, Switch::Off],
            ..Grid::default()
        };
        let cells: Vec<_> = plan(true, &grid).into_iter().map(|planned| planned.cell).collect();
        let filed = cells.iter().map(|cell| {
            let slow = if cell.name.contains("doorbell-batching-off") { 2.0 } else { 1.0 };
            let uneven = if cell.name.contains("inline-off") { 3.0 } else { 1.0 };
            let mut filed = Filed::default();
            filed.file(Regime::Near, 100.0 * slow * uneven);
            filed
        });
        let filed: Vec<_> = filed.collect();
        let report = Report::new(header(), &cells, &filed, Vec::new());
        let mut text = Vec::new();
        write_markdown(&report, &grid, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines.contains(&"| doorbell-batching on → off | 2.00 | 2.00 | 2.00 | 2 |"),
            "{text}"
        );
        assert!(lines.contains(&"| inline on → off | 3.00 | 3.00 | 3.00 | 2 |"), "{text}");
        assert!(lines.contains(&"| off | on | 300.0 | 300.0 | 300.0 |"), "{text}");
        assert!(!text.contains("far"), "nothing was far");
    }
}
