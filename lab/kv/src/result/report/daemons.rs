//! What daemons counted about themselves while they were measured: why the numbers are as they are.

use std::collections::{BTreeMap, BTreeSet};

use measure::{
    number::{percent, short, time},
    report::{
        Block, ReportSection,
        chart::{self, Stack},
    },
    table::Table,
};

use super::{
    super::{ReducedCell, reduce::as_f64},
    charts::{Labelled, of_rows, section, timeline},
};

/// Calls between daemons over time.
pub(super) fn outstanding(cells: &[ReducedCell], labels: &[String]) -> Option<ReportSection> {
    let hint = "Calls from one daemon to another without an answer, of all daemons: the mean of samples \
                in each slice, in the run whose throughput is the median.";
    timeline("Outstanding between daemons over time", hint, cells, labels, &|cell| {
        cell.typical.rank_outstanding.iter().map(|&count| as_f64(count)).collect()
    })
}

/// How much was moved together.
pub(super) fn batch_sizes(cells: &[ReducedCell], labels: &[String]) -> Option<ReportSection> {
    let sizes = cells.iter().flat_map(|cell| cell.counters.batch_sizes.keys().copied());
    let sizes = sizes.collect::<BTreeSet<_>>();
    // Bands of a power of two each, so that the legend stays short.
    let bands = sizes.iter().filter_map(|size| size.checked_ilog2()).collect::<BTreeSet<_>>();
    let band_name = |band: &u32| match 1_u64 << band {
        1 => "1".to_owned(),
        size => format!("{size} to {}", 2 * size - 1),
    };
    let names = bands.iter().map(band_name).collect::<Vec<_>>();
    let stack = |(cell, label): &Labelled<'_>| {
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
    let has = |cell: &ReducedCell| !cell.counters.batch_sizes.is_empty();
    let hint = "Requests that a daemon took in together: share of its turns, by size of the batch. For \
                delegation: messages in a batch to another daemon, averaged over each millisecond.";
    let draw = |rows: &[Labelled<'_>]| {
        chart::stacks(&rows.iter().map(stack).collect::<Vec<_>>(), &names, true, percent)
    };
    section("Batch sizes", hint, of_rows(cells, labels, has, draw))
}

/// Where the time of their loops went.
pub(super) fn phases(cells: &[ReducedCell], labels: &[String]) -> Option<ReportSection> {
    let names = cells.iter().flat_map(|cell| cell.counters.phases_ns.keys().cloned());
    let names = names.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();
    let total = |cell: &ReducedCell| as_f64(cell.counters.phases_ns.values().sum::<u64>());
    let stack = |(cell, label): &Labelled<'_>| {
        let share = |name: &String| {
            100.0 * as_f64(cell.counters.phases_ns.get(name).copied().unwrap_or(0)) / total(cell)
        };
        Stack { label: (*label).clone(), parts: names.iter().map(share).collect() }
    };
    let hint = "Where the wall time of the daemons' loops went, by sampling one turn in 64.";
    let has = |cell: &ReducedCell| total(cell) > 0.0;
    let draw = |rows: &[Labelled<'_>]| {
        chart::stacks(&rows.iter().map(stack).collect::<Vec<_>>(), &names, false, percent)
    };
    section("Phase times", hint, of_rows(cells, labels, has, draw))
}

/// How long turns of the loop took.
pub(super) fn loops(cells: &[ReducedCell], labels: &[String]) -> Option<ReportSection> {
    let turns = |cell: &ReducedCell| cell.counters.distributions.get(LOOP).cloned();
    // Bands of a power of two each; what took less than 32 ns is one.
    let band_of = |ns: &u64| ns.max(&16).ilog2();
    let bands = cells.iter().filter_map(turns).flat_map(BTreeMap::into_keys);
    let bands = bands.map(|ns| band_of(&ns)).collect::<BTreeSet<_>>();
    let name = |band: &u32| format!("below {}", time(as_f64(2_u64 << band)));
    let names = bands.iter().map(name).collect::<Vec<_>>();
    let stack = |(cell, label): &Labelled<'_>| {
        let turns = turns(cell)?;
        let total = as_f64(turns.values().sum::<u64>());
        let share = |band: &u32| {
            let inside = turns.iter().filter(|(ns, _)| band_of(ns) == *band);
            100.0 * as_f64(inside.map(|(_, count)| *count).sum()) / total
        };
        Some(Stack { label: (*label).clone(), parts: bands.iter().map(share).collect() })
    };
    let hint = "How long turns of the daemons' loops took: share of the turns that were timed.";
    let has = |cell: &ReducedCell| turns(cell).is_some_and(|turns| !turns.is_empty());
    let draw = |rows: &[Labelled<'_>]| {
        let stacks = rows.iter().filter_map(stack).collect::<Vec<_>>();
        chart::stacks(&stacks, &names, true, percent)
    };
    section("Turns of the loop", hint, of_rows(cells, labels, has, draw))
}

/// Durations of turns.
const LOOP: &str = "loop_ns";

/// Means of daemons: sums of these counters over sums of those.
const RATIOS: [(&str, &[&str], &[&str]); 2] = [
    ("loops per request", &["daemon loops"], &["daemon requests_ipc", "daemon incoming"]),
    // Each request to another node, and each answer to one.
    ("messages per flush", &["daemon requests_remote", "daemon incoming"], &["daemon flushes"]),
];

/// Counts of daemons.
const COUNTS: [(&str, &str); 3] = [
    ("ring full", "daemon ring_full"),
    ("credit without a batch", "daemon credits"),
    ("reply holds", "daemon reply_holds"),
];

/// Every distribution that some daemon has, as a table.
pub(super) fn distributions(cells: &[ReducedCell], labels: &[String]) -> Option<ReportSection> {
    let names = cells.iter().flat_map(|cell| cell.counters.distributions.keys());
    let names = names.collect::<BTreeSet<_>>();
    let columns = names.iter().map(|name| name.trim_end_matches("_ns").replace('_', " "));
    let ratios = RATIOS.iter().map(|(name, ..)| (*name).to_owned());
    let counts = COUNTS.iter().map(|(name, _)| (*name).to_owned());
    let columns = columns.chain(ratios).chain(counts);
    let mut table = Table::new(1, [String::new()].into_iter().chain(columns));
    for (cell, label) in cells.iter().zip(labels) {
        if cell.counters.distributions.is_empty() {
            continue;
        }
        let quantiles = names.iter().map(|name| {
            let show = |value| if name.ends_with("_ns") { time(value) } else { short(value) };
            let quantiles = cell.counters.quantiles(name);
            quantiles.map_or_else(String::new, |(p50, p99)| {
                format!("{} / {}", show(as_f64(p50)), show(as_f64(p99)))
            })
        });
        let ratios = RATIOS.iter().map(|(_, over, under)| {
            let [over, under] = [over, under].map(|names| cell.counters.total(names));
            if under > 0 { short(as_f64(over) / as_f64(under)) } else { String::new() }
        });
        let counts = COUNTS.iter().map(|(_, name)| {
            cell.counters.named.get(*name).map_or_else(String::new, |count| short(as_f64(*count)))
        });
        table.push([label.clone()].into_iter().chain(quantiles).chain(ratios).chain(counts));
    }
    let hint = "Median and 99th percentile of what daemons measure about themselves, all runs together. \
                Times of calls are in whole turns of the loop: what ends in the turn that took it took \
                no time.";
    let blocks = if names.is_empty() { Vec::new() } else { vec![Block::Table(table.upright())] };
    section("Inside the daemons", hint, blocks)
}
