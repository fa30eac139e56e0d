//! The sections of the page, in order. A section without data is left out.

use std::collections::{BTreeMap, BTreeSet};

use measure::{
    number,
    regime::Regime,
    report::{
        Block, ReportSection,
        chart::{self, Axis, Bar, Chart, Lines, Series, Stack, Strip},
    },
};

use super::super::{ReducedCell, SideCell, reduce::as_f64, system_parts, workload_parts};
use crate::backend::Kind;

/// Rows of one picture, at most.
const ROWS_MAX: usize = 40;
/// Bytes.
const MIB: f64 = 1_048_576.0;
/// Curves that can be told apart.
const CURVES_MAX: usize = 8;
/// Points of a curve: not more than pixels.
const POINTS_MAX: usize = 600;
/// Nines of the latency distribution.
const NINES: f64 = 5.0;

/// A cell and its label.
pub(super) type Labelled<'a> = (&'a ReducedCell, &'a String);

/// The rows of each regime, which no picture mixes, with a title if there are several.
fn by_regime<'a>(rows: impl Iterator<Item = Labelled<'a>>) -> Vec<(String, Vec<Labelled<'a>>)> {
    let mut groups = BTreeMap::<_, Vec<Labelled<'a>>>::new();
    rows.for_each(|row| groups.entry(row.0.regime).or_default().push(row));
    let is_one = groups.len() == 1;
    let title = |regime: Regime| if is_one { String::new() } else { regime.to_string() };
    groups.into_iter().map(|(regime, rows)| (title(regime), rows)).collect()
}

/// A picture of the rows that `has` something to show, for each regime; if it cannot hold them, one per backend and
/// locality, of no more than it holds.
pub(super) fn of_rows(
    cells: &[ReducedCell],
    labels: &[String],
    has: impl Fn(&ReducedCell) -> bool,
    draw: impl Fn(&[Labelled<'_>]) -> Chart,
) -> Vec<Block> {
    let mut pictures = Vec::<(String, Vec<Labelled<'_>>)>::new();
    for (regime, rows) in by_regime(cells.iter().zip(labels).filter(|(cell, _)| has(cell))) {
        let is_one = rows.len() <= ROWS_MAX;
        for row in rows {
            let config = &row.0.config;
            let place = format!("{} · {}", config.backend, config.workload.locality);
            let parts = [regime.clone(), if is_one { String::new() } else { place }];
            let title = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
            let title = title.join(" · ");
            match pictures.iter_mut().find(|(other, _)| *other == title) {
                Some((_, rows)) => rows.push(row),
                None => pictures.push((title, vec![row])),
            }
        }
    }
    let picture = |(title, rows): (String, Vec<_>)| {
        Block::Chart(draw(&rows[..rows.len().min(ROWS_MAX)]).titled(title))
    };
    pictures.into_iter().map(picture).collect()
}

/// As many as curves can be told apart: of each backend in turn the fastest.
fn chosen<'a>(rows: &[Labelled<'a>]) -> Vec<Labelled<'a>> {
    let mut ranked = rows.to_vec();
    ranked.sort_by(|(a, _), (b, _)| b.all.rate.median.total_cmp(&a.all.rate.median));
    let mut ranks = BTreeMap::<Kind, usize>::new();
    let mut rank = |row: Labelled<'a>| {
        let rank = ranks.entry(row.0.config.backend).or_default();
        *rank += 1;
        (*rank, row)
    };
    let mut ranked = ranked.into_iter().map(&mut rank).collect::<Vec<_>>();
    ranked.sort_by_key(|(rank, _)| *rank);
    let names = ranked.into_iter().take(CURVES_MAX).map(|(_, (_, label))| label);
    let names = names.collect::<BTreeSet<_>>();
    rows.iter().copied().filter(|(_, label)| names.contains(label)).collect()
}

pub(super) fn section(title: &str, hint: &str, blocks: Vec<Block>) -> Option<ReportSection> {
    (!blocks.is_empty()).then(|| ReportSection::with(title, hint, blocks))
}

/// The hint, and how many of the configurations are shown if not all are.
fn choice(hint: &str, cells: &[ReducedCell]) -> String {
    let most = by_regime_count(cells);
    match most > CURVES_MAX {
        true => format!(
            "{hint} Of {most} configurations, of each backend in turn the fastest: {CURVES_MAX}."
        ),
        false => hint.to_owned(),
    }
}

fn by_regime_count(cells: &[ReducedCell]) -> usize {
    let count =
        |cell: &ReducedCell| cells.iter().filter(|other| other.regime == cell.regime).count();
    cells.iter().map(count).max().unwrap_or(0)
}

/// The colour of a backend, which is the same in every picture of every result.
fn colour_of(backend: Kind) -> usize {
    Kind::ALL.iter().position(|kind| *kind == backend).unwrap_or(0)
}

pub(super) fn throughput(cells: &[ReducedCell], labels: &[String]) -> Option<ReportSection> {
    let bar = |(cell, label): &Labelled<'_>| Bar {
        label: (*label).clone(),
        colour: colour_of(cell.config.backend),
        value: cell.all.rate.median,
        range: (cell.all.rate.min, cell.all.rate.max),
    };
    let draw = |rows: &[Labelled<'_>]| {
        chart::bars(&rows.iter().map(bar).collect::<Vec<_>>(), number::rate)
    };
    let hint = "Answered and checked calls per second, of all clients together over one interval. \
                Bar: median of the runs; whisker: smallest to largest.";
    section("Throughput", hint, of_rows(cells, labels, |_| true, draw))
}

/// A curve: how calls are made.
type System = (Kind, Vec<String>);
/// What a picture is about: locality and queue depth, which say where it stands, and all parts of its name.
type Facet = (String, u32, Vec<String>);
/// Points of each curve.
type Curves = BTreeMap<System, Vec<(f64, f64)>>;
type Facets = BTreeMap<Facet, Curves>;

/// A number of a cell that is shown over clients per node.
struct Scaled {
    title: &'static str,
    value: fn(&ReducedCell) -> Option<f64>,
    show: number::Show,
}

const SCALED: [Scaled; 5] = [
    Scaled {
        title: "Calls per second",
        value: |cell| Some(cell.all.rate.median),
        show: number::short,
    },
    Scaled {
        title: "99th percentile",
        value: |cell| Some(cell.all.latency?.p99.median),
        show: number::time,
    },
    Scaled {
        title: "Processor time per call",
        value: |cell| Some(cell.cpu_per_call_ns?.median),
        show: number::time,
    },
    Scaled {
        title: "Memory of a node",
        value: |cell| Some(cell.pss_per_node?.median / MIB),
        show: number::short,
    },
    Scaled {
        title: "Queue pairs of a node",
        value: |cell| cell.config.queue_pairs_per_node().map(as_f64),
        show: number::short,
    },
];

/// What depends on clients per node: for each number one picture per regime, queue depth and workload, one curve per
/// system.
pub(super) fn scaling(cells: &[ReducedCell]) -> Option<ReportSection> {
    let charts = SCALED.iter().flat_map(|scaled| scaled.charts(cells, false)).collect::<Vec<_>>();
    let hint = "Calls per second are those of all clients together; 99 of 100 calls took at most the 99th percentile; memory \
                is the sum of the proportional shares (PSS), in MiB; queue pairs are those that a node has by construction.";
    (!charts.is_empty())
        .then(|| ReportSection::with("By clients per node", hint, [Block::Charts(charts)]))
}

/// Calls per second over clients per node, as a file of its own. `None`: there is no curve, or several pictures of them.
pub(super) fn curve_file(cells: &[ReducedCell]) -> Option<String> {
    let charts = SCALED[0].charts(cells, true);
    let [chart] = &charts[..] else { return None };
    Some(chart.file())
}

impl Scaled {
    /// A picture for each queue depth and workload.
    fn charts(&self, cells: &[ReducedCell], is_wide: bool) -> Vec<Chart> {
        let facets = facets_of(cells, self.value);
        let systems = facets.values().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>();
        let is_one_each =
            systems.iter().map(|system| system.0).collect::<BTreeSet<_>>().len() == systems.len();
        let colour = |system: &System| match is_one_each {
            true => colour_of(system.0),
            false => systems.iter().position(|other| *other == system).unwrap_or(0),
        };
        let names = systems.iter().map(|system| (system_name(system), colour(system)));
        let names = names.collect::<Vec<_>>();
        let is_common = |part: &String| facets.keys().all(|(_, _, parts)| parts.contains(part));
        let picture = |((_, _, parts), curves): (&Facet, &Curves)| {
            let own = parts.iter().filter(|part| facets.len() == 1 || !is_common(part)).cloned();
            let points = || curves.values().flatten();
            let series = curves.iter().map(|(system, points)| Series {
                name: system_name(system),
                colour: colour(system),
                points: points.clone(),
            });
            let lines = Lines {
                x: Axis::doubling(points().map(|point| point.0)),
                y: Axis::linear(points().map(|point| point.1), self.show),
                series: series.collect(),
                has_dots: true,
                is_wide,
            };
            let title = std::iter::once(self.title.to_owned()).chain(own).collect::<Vec<_>>();
            lines.chart().titled(title.join(" · ")).coloured(names.iter().cloned())
        };
        facets.iter().map(picture).collect()
    }
}

/// Pictures that have a curve of two points or more; points in the order of clients.
fn facets_of(cells: &[ReducedCell], value: fn(&ReducedCell) -> Option<f64>) -> Facets {
    let mut facets = Facets::new();
    for cell in cells {
        let Some(value) = value(cell) else { continue };
        let workload = &cell.config.workload;
        let mut parts = vec![
            workload.locality.to_string(),
            format!("{} outstanding", workload.queue_depth),
            format!("{} nodes", workload.ranks),
        ];
        parts.extend(workload_parts(workload));
        // The trial may find another way to wait for each number of clients: it is one curve all the same.
        let mut system = system_parts(&cell.config);
        system.retain(|part| cell.tried.is_empty() || !part.starts_with("wait="));
        let system = (cell.config.backend, system);
        let point = (f64::from(workload.clients_per_rank), value);
        let facet = (workload.locality.to_string(), workload.queue_depth, parts);
        facets.entry(facet).or_default().entry(system).or_default().push(point);
    }
    for points in facets.values_mut().flat_map(BTreeMap::values_mut) {
        points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    }
    facets.retain(|_, curves| curves.values().any(|points| points.len() > 1));
    facets
}

fn system_name((backend, parts): &System) -> String {
    let backend = backend.to_string();
    std::iter::once(&backend).chain(parts).cloned().collect::<Vec<_>>().join(" · ")
}

/// Local and remote calls apart, if there are both.
fn sides(cell: &ReducedCell) -> Vec<(&'static str, &SideCell)> {
    let sides = [("local", &cell.local), ("remote", &cell.remote)];
    let used = sides.into_iter().filter(|(_, side)| side.latency.is_some()).collect::<Vec<_>>();
    if used.len() == 2 { used } else { vec![("", &cell.all)] }
}

pub(super) fn latency(cells: &[ReducedCell], labels: &[String]) -> Option<ReportSection> {
    let strips = |(cell, label): &Labelled<'_>| {
        let strip = |(name, side): (&str, &SideCell)| {
            let label =
                if name.is_empty() { (*label).clone() } else { format!("{label} · {name}") };
            let marks = side.latency?.named().map(|(_, summary)| summary.median).to_vec();
            Some(Strip { label, colour: colour_of(cell.config.backend), marks })
        };
        sides(cell).into_iter().filter_map(strip).collect::<Vec<_>>()
    };
    let draw = |rows: &[Labelled<'_>]| {
        chart::strips(&rows.iter().flat_map(strips).collect::<Vec<_>>(), number::time)
    };
    let hint = "From the largest dot to the smallest: median, p90, p99, p99.9 and longest, medians over \
                the runs. The scale is logarithmic.";
    let has = |cell: &ReducedCell| cell.all.latency.is_some();
    section("Latency", hint, of_rows(cells, labels, has, draw))
}

pub(super) fn distribution(cells: &[ReducedCell], labels: &[String]) -> Option<ReportSection> {
    let points = |cell: &ReducedCell| {
        let pairs = cell.all.merged.pairs();
        let total = pairs.iter().map(|pair| pair.1).sum::<u64>();
        let mut below = 0;
        let share = |&(ns, count): &(u64, u64)| {
            below += count;
            (as_f64(ns), as_f64(below) / as_f64(total))
        };
        let points = pairs.iter().map(share).collect::<Vec<_>>();
        let stride = points.len().div_ceil(POINTS_MAX).max(1);
        let last = points.last().copied();
        points.into_iter().step_by(stride).chain(last).collect()
    };
    let axes = |series: &[Series]| {
        let ns = series.iter().flat_map(|s| s.points.iter().map(|p| p.0));
        (Axis::log(ns, number::time), Axis::nines(NINES))
    };
    let hint = "Share of calls (vertical; each nine takes the same room) that took at most the \
                time below. All runs together.";
    let blocks = curves(cells, labels, &points, &axes);
    section("Latency distribution", &choice(hint, cells), blocks)
}

pub(super) fn over_time(cells: &[ReducedCell], labels: &[String]) -> Option<ReportSection> {
    let rates = |cell: &ReducedCell| {
        let rate = |&count: &u64| as_f64(count) * 1e9 / as_f64(cell.typical.slice_ns.max(1));
        cell.typical.slices.iter().map(rate).collect()
    };
    let hint = "Calls per second in each slice of the measured interval, in the run whose throughput \
                is the median. Flat is good.";
    timeline("Throughput over time", hint, cells, labels, &rates)
}

pub(super) fn outstanding(cells: &[ReducedCell], labels: &[String]) -> Option<ReportSection> {
    let counts = |cell: &ReducedCell| cell.typical.outstanding.iter().map(|&n| as_f64(n)).collect();
    let hint = "Calls without an answer, of all clients together: the most in each slice. In a closed \
                loop this is the queue depth times the clients, if it is honoured.";
    timeline("Outstanding over time", hint, cells, labels, &counts)
}

/// What happened around the event of each configuration that has a series.
pub(super) fn series(cells: &[ReducedCell], labels: &[String]) -> Vec<ReportSection> {
    let with = cells.iter().zip(labels);
    let with = with.filter_map(|(cell, label)| Some((cell.typical.series.as_ref()?, label)));
    let section = |(series, label): (&crate::series::EventSeries, &String)| {
        let begin_ns = series.begin_ns() as f64;
        let slice_ns = as_f64(series.slice_ns);
        let picture = |(title, curves): (&str, Vec<crate::series::Curve>)| {
            let curve = |(at, (name, values)): (usize, (String, Vec<f64>))| {
                let x = (0_u32..).map(|slice| f64::from(slice) * slice_ns);
                Series { name, colour: at, points: x.zip(values).collect() }
            };
            let series = curves.into_iter().enumerate().map(curve).collect::<Vec<_>>();
            let names = series.iter().map(|series| (series.name.clone(), series.colour));
            let names = names.collect::<Vec<_>>();
            let points = || series.iter().flat_map(|series| series.points.iter());
            let x = Axis::linear(points().map(|point| point.0), number::time);
            let y = Axis::linear(points().map(|point| point.1), number::short);
            let lines = Lines { x, y, series, has_dots: false, is_wide: true };
            Block::Chart(lines.chart().titled(title.to_owned()).coloured(names))
        };
        let hint = format!(
            "{}, {} from the left. Slices of {}, of the run whose throughput is the median; series.csv has every \
             number.",
            series.event,
            number::time(-begin_ns),
            number::time(slice_ns),
        );
        let blocks = series.curves().into_iter().map(picture).collect::<Vec<_>>();
        section(&format!("Around the event: {label}"), &hint, blocks)
    };
    with.filter_map(section).collect()
}

/// Curves of slices over time; none if no cell has any.
pub(super) fn timeline(
    title: &str,
    hint: &str,
    cells: &[ReducedCell],
    labels: &[String],
    values: &dyn Fn(&ReducedCell) -> Vec<f64>,
) -> Option<ReportSection> {
    let points = |cell: &ReducedCell| {
        let slice_ns = as_f64(cell.typical.slice_ns);
        let at = (0_u32..).map(|index| (f64::from(index) + 0.5) * slice_ns);
        at.zip(values(cell)).collect()
    };
    let axes = |series: &[Series]| {
        let all = || series.iter().flat_map(|s| s.points.iter());
        let interval_ns = cells.iter().map(|cell| as_f64(cell.typical.interval_ns));
        let y = Axis::linear(all().map(|point| point.1), number::short);
        (Axis::linear(interval_ns, number::time), y)
    };
    section(title, &choice(hint, cells), curves(cells, labels, &points, &axes))
}

/// A picture for each regime, of curves that can be told apart.
fn curves(
    cells: &[ReducedCell],
    labels: &[String],
    points: &dyn Fn(&ReducedCell) -> Vec<(f64, f64)>,
    axes: &dyn Fn(&[Series]) -> (Axis, Axis),
) -> Vec<Block> {
    let rows = cells.iter().zip(labels).filter(|(cell, _)| !points(cell).is_empty());
    let picture = |(title, rows): (String, Vec<Labelled<'_>>)| {
        let chosen = chosen(&rows);
        let backends = chosen.iter().map(|(cell, _)| cell.config.backend).collect::<BTreeSet<_>>();
        let is_one_each = backends.len() == chosen.len();
        let curve = |(at, (cell, label)): (usize, Labelled<'_>)| Series {
            name: label.clone(),
            colour: if is_one_each { colour_of(cell.config.backend) } else { at },
            points: points(cell),
        };
        let series = chosen.into_iter().enumerate().map(curve).collect::<Vec<_>>();
        let names = series.iter().map(|series| (series.name.clone(), series.colour));
        let names = names.collect::<Vec<_>>();
        let (x, y) = axes(&series);
        let lines = Lines { x, y, series, has_dots: false, is_wide: true };
        Block::Chart(lines.chart().titled(title).coloured(names))
    };
    by_regime(rows).into_iter().map(picture).collect()
}

pub(super) fn cpu(cells: &[ReducedCell], labels: &[String]) -> Option<ReportSection> {
    let names = ["daemons".to_owned(), "clients".to_owned()];
    let stack = |(cell, label): &Labelled<'_>| {
        let (total, share) = (cell.cpu_per_call_ns?.median, cell.ranks_cpu_share.median);
        let parts = vec![total * share, total * (1.0 - share)];
        Some(Stack { label: (*label).clone(), parts })
    };
    let draw = |rows: &[Labelled<'_>]| {
        let stacks = rows.iter().filter_map(stack).collect::<Vec<_>>();
        chart::stacks(&stacks, &names, false, number::time)
    };
    let hint =
        "CPU time of all processes inside the measured interval, over the calls answered in it.";
    let has = |cell: &ReducedCell| cell.cpu_per_call_ns.is_some();
    section("CPU time per call", hint, of_rows(cells, labels, has, draw))
}
