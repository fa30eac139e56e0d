//! What the switches of a worker change, as tables for documents.

use std::collections::HashMap;

use measure::{
    number::{number, ratio},
    report::{Block, Report, ReportSection},
    results::{Results, Row},
    table::Table,
};

use super::switches::{CallLoad, Grid, SWITCHES, Switches};

/// The cell of a load at a point of the grid.
pub(crate) fn name_of(load: &str, suffix: &str) -> String {
    format!("rpc/{load}/32B{suffix}")
}

/// Two tables: what each switch changes by itself, and every combination.
#[must_use]
pub fn report(results: &Results, grid: &Grid) -> Report {
    let mut report = results.report(false);
    report.sections.clear();
    let rows = results.rows.iter().filter(|row| row.is_of_all()).collect::<Vec<_>>();
    let matrix = Matrix::new(&rows, grid);
    if !matrix.points.is_empty() {
        let tables = [
            Block::Heading("Each switch by itself".to_owned()),
            Block::Table(matrix.effects()),
            Block::Heading("Every combination".to_owned()),
            Block::Table(matrix.combinations()),
        ];
        report.sections.push(ReportSection::with("Switches", "", tables));
    }
    report
}

const AXES: usize = SWITCHES.len();

/// A combination and its medians, by load.
struct Point {
    /// Names of switches and their values.
    axes: Vec<(&'static str, String)>,
    /// By load.
    medians: Vec<Option<f64>>,
}

struct Matrix {
    loads: Vec<CallLoad>,
    points: Vec<Point>,
}

impl Matrix {
    fn new(rows: &[&Row], grid: &Grid) -> Self {
        let medians: HashMap<&str, f64> =
            rows.iter().map(|row| (row.cell.as_str(), row.summary.median)).collect();
        let point = |(switches, suffix): (Switches, String)| {
            let median =
                |load: &CallLoad| medians.get(name_of(&load.name, &suffix).as_str()).copied();
            let axes = switches.iter().map(|(name, value)| (name, value.to_owned()));
            Point { axes: axes.collect(), medians: grid.loads.iter().map(median).collect() }
        };
        let points = grid.points().into_iter().map(point);
        let points = points.filter(|point| point.medians.iter().any(Option::is_some)).collect();
        Self { loads: grid.loads.clone(), points }
    }

    /// For each value but the first of a switch, the median over all pairs of combinations that
    /// differ in nothing else.
    fn effects(&self) -> Table {
        let head = self.loads.iter().map(|load| {
            format!("{}: {}", load.name, if load.depth == 1 { "time" } else { "rate" })
        });
        let mut table =
            Table::new(1, ["switch".to_owned()].into_iter().chain(head).chain(["pairs".into()]));
        let Some(first) = self.points.first() else { return table };
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
                let ratios = (0..self.loads.len()).map(|load| {
                    let of_pair = |(to, from): &(&Point, &Point)| {
                        Some(to.medians[load]? / from.medians[load]?)
                    };
                    ratio(median(pairs.iter().filter_map(of_pair).collect()))
                });
                let switch = [format!("{name} {base} → {value}")];
                table.push(switch.into_iter().chain(ratios).chain([pairs.len().to_string()]));
            }
        }
        table
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

    fn combinations(&self) -> Table {
        let Some(first) = self.points.first() else { return Table::new::<&str>(0, []) };
        let is_varied =
            |axis: &usize| self.points.iter().any(|p| p.axes[*axis] != first.axes[*axis]);
        let varied: Vec<usize> = (0..AXES).filter(is_varied).collect();
        let names = varied.iter().map(|axis| first.axes[*axis].0.to_owned());
        let loads = self
            .loads
            .iter()
            .map(|load| format!("{} {}", load.name, if load.depth == 1 { "ns" } else { "M/s" }));
        let mut table = Table::new(varied.len(), names.chain(loads));
        for point in &self.points {
            let values = varied.iter().map(|axis| point.axes[*axis].1.clone());
            table.push(
                values.chain(point.medians.iter().map(|m| m.map(number).unwrap_or_default())),
            );
        }
        table
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use measure::{regime::Probes, results::Header, schedule::Sample};

    use super::*;
    use crate::plan;

    /// Without batched doorbells everything takes twice as long.
    #[test]
    fn an_effect_compares_what_differs_in_nothing_else() {
        let both: &[&str] = &["on", "off"];
        let grid = Grid::with(&[("inline", both), ("doorbell-batching", both)]);
        let cells: Vec<_> =
            plan::rpc(true, &grid).into_iter().map(|planned| planned.cell).collect();
        let sample = |(cell, of): (usize, &measure::results::Cell)| {
            let slow = if of.name.contains("doorbell-batching-off") { 2.0 } else { 1.0 };
            let uneven = if of.name.contains("inline-off") { 3.0 } else { 1.0 };
            let probes = Probes { before_ns: 118.0, after_ns: 118.0 };
            Sample { cell, round: 0, probes, value: 100.0 * slow * uneven, per_batch: None }
        };
        let samples: Vec<_> = cells.iter().enumerate().map(sample).collect();
        let results = Results::new(Header::default(), &cells, &samples, &[]);
        let mut text = Vec::new();
        report(&results, &grid).write_markdown(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines.contains(&"| doorbell-batching on → off | 2.00 | 2.00 | 2.00 | 2 |"),
            "{text}"
        );
        assert!(lines.contains(&"| inline on → off | 3.00 | 3.00 | 3.00 | 2 |"), "{text}");
        assert!(lines.contains(&"| off | on | 300.0 | 300.0 | 300.0 |"), "{text}");
        assert_eq!(text.matches("## Switches").count(), 1, "{text}");
    }
}
