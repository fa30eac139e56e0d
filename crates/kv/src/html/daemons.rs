//! What daemons counted about themselves while they were measured: why the numbers are as they are.

use std::collections::BTreeSet;

use super::{
    axis::{short, time},
    charts::{Palette, Stack, stacks},
    sections::{ROWS_MAX, as_f64, grid, legend, legend_in, section, timeline},
    svg::escape,
};
use crate::result::Cell;

type Row<'a> = (&'a Cell, &'a String);

/// Rows that `has` something to show: together if one picture holds them, else one picture per
/// backend and locality, of no more than that.
fn pictures<'a>(
    cells: &'a [Cell],
    labels: &'a [String],
    has: impl Fn(&Cell) -> bool,
) -> Vec<(String, Vec<Row<'a>>)> {
    let rows = cells.iter().zip(labels).filter(|(cell, _)| has(cell)).collect::<Vec<_>>();
    if rows.len() <= ROWS_MAX {
        return if rows.is_empty() { Vec::new() } else { vec![(String::new(), rows)] };
    }
    let mut pictures = Vec::<(String, Vec<Row<'_>>)>::new();
    for row in rows {
        let config = &row.0.config;
        let title = format!("{} · {}", config.backend, config.workload.locality);
        match pictures.iter_mut().find(|(other, _)| *other == title) {
            Some((_, rows)) => rows.push(row),
            None => pictures.push((title, vec![row])),
        }
    }
    pictures.iter_mut().for_each(|(_, rows)| rows.truncate(ROWS_MAX));
    pictures
}

fn titled(title: &str, picture: &str) -> String {
    if title.is_empty() {
        return picture.to_owned();
    }
    format!("<h3>{}</h3>\n{picture}", escape(title))
}

/// Calls between daemons over time.
pub(super) fn outstanding(cells: &[Cell], labels: &[String]) -> Option<String> {
    let of = |cell: &Cell| -> Vec<f64> {
        cell.typical.rank_outstanding.iter().map(|&count| as_f64(count)).collect()
    };
    let has = cells.iter().zip(labels).filter(|(cell, _)| !of(cell).is_empty());
    let (cells, labels): (Vec<_>, Vec<_>) =
        has.map(|(cell, label)| (cell.clone(), label.clone())).unzip();
    let body = timeline(&cells, &labels, &of)?;
    let hint = "Calls from one daemon to another without an answer, of all daemons: the mean of samples \
                in each slice, in the run whose throughput is the median.";
    section("Outstanding between daemons over time", hint, &body)
}

/// How much was moved together.
pub(super) fn batch_sizes(cells: &[Cell], labels: &[String]) -> Option<String> {
    let sizes = cells.iter().flat_map(|cell| cell.counters.batch_sizes.keys().copied());
    let sizes = sizes.collect::<BTreeSet<_>>();
    // Bands of a power of two each, so that the legend stays short.
    let bands = sizes.iter().filter_map(|size| size.checked_ilog2()).collect::<BTreeSet<_>>();
    let band_name = |band: &u32| match 1_u64 << band {
        1 => "1".to_owned(),
        size => format!("{size} to {}", 2 * size - 1),
    };
    let names = bands.iter().map(band_name).collect::<Vec<_>>();
    let row = |(cell, label): Row<'_>| {
        let total = as_f64(cell.counters.batch_sizes.values().sum::<u64>());
        let share = |band: &u32| {
            let inside = cell.counters.batch_sizes.iter();
            let inside = inside.filter(|(size, _)| size.checked_ilog2() == Some(*band));
            100.0 * as_f64(inside.map(|(_, count)| *count).sum()) / total
        };
        let mean = cell.counters.mean_batch().map(|mean| format!(" · mean {}", short(mean)));
        let label = format!("{label}{}", mean.unwrap_or_default());
        Stack { label, parts: bands.iter().map(share).collect() }
    };
    let keyed = names.iter().cloned().zip(0..).collect::<Vec<_>>();
    let mut body = legend_in(Palette::Ramp, &keyed);
    let pictures = pictures(cells, labels, |cell| !cell.counters.batch_sizes.is_empty());
    for (title, rows) in &pictures {
        let rows = rows.iter().copied().map(row).collect::<Vec<_>>();
        let picture = stacks(&rows, &names, Palette::Ramp, &percent, "batch sizes");
        body.push_str(&titled(title, &picture));
    }
    let hint = "Requests that a daemon took in together: share of its turns, by size of the batch. For \
                delegation: messages in a batch to another daemon, averaged over each millisecond.";
    if pictures.is_empty() { None } else { section("Batch sizes", hint, &body) }
}

/// Where the time of their loops went.
pub(super) fn phases(cells: &[Cell], labels: &[String]) -> Option<String> {
    let names = cells.iter().flat_map(|cell| cell.counters.phases_ns.keys().cloned());
    let names = names.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();
    let total = |cell: &Cell| as_f64(cell.counters.phases_ns.values().sum::<u64>());
    let row = |(cell, label): Row<'_>| {
        let share = |name: &String| {
            100.0 * as_f64(cell.counters.phases_ns.get(name).copied().unwrap_or(0)) / total(cell)
        };
        Stack { label: label.clone(), parts: names.iter().map(share).collect() }
    };
    let keyed = names.iter().cloned().zip(0..).collect::<Vec<_>>();
    let mut body = legend(&keyed);
    let pictures = pictures(cells, labels, |cell| total(cell) > 0.0);
    for (title, rows) in &pictures {
        let rows = rows.iter().copied().map(row).collect::<Vec<_>>();
        let picture = stacks(&rows, &names, Palette::Kinds, &percent, "phase times");
        body.push_str(&titled(title, &picture));
    }
    let hint = "Where the wall time of the daemons' loops went, by sampling one turn in 64.";
    if pictures.is_empty() { None } else { section("Phase times", hint, &body) }
}

/// Means of daemons: sums of these counters over sums of those.
const RATIOS: [(&str, &[&str], &[&str]); 2] = [
    ("loops per request", &["daemon loops"], &["daemon requests_ipc", "daemon incoming"]),
    // Each request to another node, and each answer to one.
    ("messages per flush", &["daemon requests_remote", "daemon incoming"], &["daemon flushes"]),
];

/// Every distribution that some daemon has, as a table.
pub(super) fn distributions(cells: &[Cell], labels: &[String]) -> Option<String> {
    let names = cells.iter().flat_map(|cell| cell.counters.distributions.keys());
    let names = names.collect::<BTreeSet<_>>();
    if names.is_empty() {
        return None;
    }
    let mut columns =
        names.iter().map(|name| name.trim_end_matches("_ns").replace('_', " ")).collect::<Vec<_>>();
    columns.extend(RATIOS.iter().map(|(name, ..)| (*name).to_owned()));
    let row = |(cell, label): (&Cell, &String)| {
        let quantiles = names.iter().map(|name| {
            let show = |value: u64| {
                if name.ends_with("_ns") { time(as_f64(value)) } else { short(as_f64(value)) }
            };
            let quantiles = cell.counters.quantiles(name);
            quantiles
                .map_or_else(String::new, |(p50, p99)| format!("{} / {}", show(p50), show(p99)))
        });
        let ratios = RATIOS.iter().map(|(_, over, under)| {
            let [over, under] = [over, under].map(|names| cell.counters.total(names));
            if under > 0 { short(as_f64(over) / as_f64(under)) } else { String::new() }
        });
        (label.clone(), quantiles.chain(ratios).collect())
    };
    let has = |cell: &Cell| !cell.counters.distributions.is_empty();
    let rows = cells.iter().zip(labels).filter(|(cell, _)| has(cell)).map(row);
    let html = grid(&columns, &rows.collect::<Vec<_>>());
    let hint = "Median and 99th percentile of what daemons measure about themselves, all runs together. \
                Times of calls are in whole turns of the loop: what ends in the turn that took it took \
                no time.";
    section("Inside the daemons", hint, &html)
}

fn percent(value: f64) -> String {
    format!("{} %", short(value))
}
