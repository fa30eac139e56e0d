//! What the report shows, in order. A section without data is left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::{
    axis::{Scale, percentile, short, time},
    charts::{Bar, Lines, Palette, Series, Stack, Strip, bars, stacks, strips},
    daemons, labels,
    svg::escape,
};
use crate::{
    backend::Kind,
    result::{self, Cell, SideCell, system_parts, workload_parts},
};

/// Cells that a chart of rows holds; beyond, only facets and the table show them.
pub(super) const ROWS_MAX: usize = 40;
/// Curves that can be told apart.
const CURVES_MAX: usize = 8;
/// Nines of the latency distribution.
const NINES: f64 = 5.0;

/// All sections that have something to show.
pub(super) fn all(cells: &[Cell]) -> Vec<String> {
    let labels = labels::of(cells);
    [
        throughput(cells, &labels),
        scaling(cells),
        latency(cells, &labels),
        distribution(cells, &labels),
        over_time(cells, &labels),
        outstanding(cells, &labels),
        daemons::outstanding(cells, &labels),
        daemons::batch_sizes(cells, &labels),
        daemons::phases(cells, &labels),
        daemons::distributions(cells, &labels),
        cpu(cells, &labels),
        costs(cells, &labels),
        table(cells),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(super) fn section(title: &str, hint: &str, body: &str) -> Option<String> {
    Some(format!("<section>\n<h2>{title}</h2>\n<p class=\"hint\">{hint}</p>\n{body}</section>\n"))
}

pub(super) fn legend(names: &[(String, usize)]) -> String {
    legend_in(Palette::Kinds, names)
}

pub(super) fn legend_in(palette: Palette, names: &[(String, usize)]) -> String {
    let mut html = String::from("<div class=\"legend\">");
    for (name, index) in names {
        let _ = write!(html, "<span class=\"{}\">{}</span>", palette.class(*index), escape(name));
    }
    html.push_str("</div>\n");
    html
}

/// The number of a cell's backend among those of the report: its colour.
fn backend_colour(cell: &Cell, cells: &[Cell]) -> usize {
    let backends = cells.iter().map(|cell| cell.config.backend).collect::<BTreeSet<_>>();
    let is_same = |backend: &_| *backend == cell.config.backend;
    // One backend only: every cell its own colour would say nothing.
    backends.iter().position(is_same).unwrap_or(0)
}

fn rate(value: f64) -> String {
    format!("{}/s", short(value))
}

fn throughput(cells: &[Cell], labels: &[String]) -> Option<String> {
    if cells.is_empty() || cells.len() > ROWS_MAX {
        return None;
    }
    let bar = |(cell, label): (&Cell, &String)| Bar {
        label: label.clone(),
        colour: backend_colour(cell, cells),
        value: cell.all.rate.median,
        range: (cell.all.rate.min, cell.all.rate.max),
    };
    let all = cells.iter().zip(labels).map(bar).collect::<Vec<_>>();
    let hint = "Answered and checked calls per second, of all clients together over one interval. \
                Bar: median of the runs; whisker: smallest to largest.";
    section("Throughput", hint, &bars(&all, &rate, "throughput by configuration"))
}

/// A curve: how calls are made.
type System = (Kind, Vec<String>);
/// What a picture is about: locality and queue depth, which say where it stands, and all parts of its
/// name.
type Facet = (String, u32, Vec<String>);
type Facets = BTreeMap<Facet, BTreeMap<System, Vec<(f64, f64)>>>;

/// Throughput over clients per node: one picture per placement, queue depth and workload, one curve
/// per system.
fn scaling(cells: &[Cell]) -> Option<String> {
    let facets = facets_of(cells);
    let systems = facets.values().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>();
    let colour_of = |key| systems.iter().position(|other| *other == key).unwrap_or(0);
    let names = systems.iter().map(|system| system_name(system)).zip(0..).collect::<Vec<_>>();
    let is_common = |part: &String| facets.keys().all(|(_, _, parts)| parts.contains(part));
    let mut body = legend(&names) + "<div class=\"facets\">\n";
    for ((_, _, parts), curves) in &facets {
        let own = parts.iter().filter(|part| facets.len() == 1 || !is_common(part)).cloned();
        let title = own.collect::<Vec<_>>().join(" · ");
        let points = || curves.values().flatten();
        let mut ticks = points().map(|point| point.0).collect::<Vec<_>>();
        ticks.sort_unstable_by(f64::total_cmp);
        ticks.dedup();
        let series = curves.iter().map(|(system, points)| {
            let (name, colour) = (system_name(system), colour_of(system));
            Series { name, colour, points: points.clone(), has_dots: true }
        });
        let chart = Lines {
            series: &series.collect::<Vec<_>>(),
            x: Scale::log(points().map(|point| point.0)),
            y: Scale::linear(points().map(|point| point.1)),
            show_x: &short,
            show_y: &short,
            x_ticks: Some(ticks),
            width: Lines::FACET.0,
            height: Lines::FACET.1,
        };
        let _ = write!(body, "<div><h3>{}</h3>\n{}</div>\n", escape(&title), chart.draw(&title));
    }
    body.push_str("</div>\n");
    let hint = "Calls per second over client processes per node. Each picture has its own scale.";
    if facets.is_empty() { None } else { section("Throughput by clients per node", hint, &body) }
}

/// Pictures that have a curve of two points or more; points in the order of clients.
fn facets_of(cells: &[Cell]) -> Facets {
    let mut facets = Facets::new();
    for cell in cells {
        let workload = &cell.config.workload;
        let mut parts = vec![
            workload.locality.to_string(),
            format!("{} outstanding", workload.queue_depth),
            format!("{} nodes", workload.ranks),
        ];
        parts.extend(workload_parts(workload));
        parts.push(format!("cores {}", labels::regime(cell)));
        let system = (cell.config.backend, system_parts(&cell.config));
        let point = (f64::from(workload.clients_per_rank), cell.all.rate.median);
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

fn sides(cell: &Cell) -> Vec<(&'static str, &SideCell)> {
    let sides = [("local", &cell.local), ("remote", &cell.remote)];
    let used = sides.into_iter().filter(|(_, side)| side.latency.is_some()).collect::<Vec<_>>();
    if used.len() == 2 { used } else { vec![("", &cell.all)] }
}

fn latency(cells: &[Cell], labels: &[String]) -> Option<String> {
    if cells.is_empty() || cells.len() > ROWS_MAX {
        return None;
    }
    let mut rows = Vec::new();
    for (cell, label) in cells.iter().zip(labels) {
        for (name, side) in sides(cell) {
            let Some(latency) = &side.latency else { continue };
            let label = if name.is_empty() { label.clone() } else { format!("{label} · {name}") };
            let marks = latency.named().map(|(name, summary)| (name, summary.median)).to_vec();
            rows.push(Strip { label, colour: backend_colour(cell, cells), marks });
        }
    }
    let hint = "From the moment a call was due until its answer was seen. Dots from large to small: \
                p50, p90, p99, p99.9, maximum; each the median over the runs.";
    section("Latency", hint, &strips(&rows, &time, "latency percentiles by configuration"))
}

fn distribution(cells: &[Cell], labels: &[String]) -> Option<String> {
    let chosen = cells.iter().zip(labels).take(CURVES_MAX).enumerate();
    let series = chosen.filter_map(|(colour, (cell, label))| {
        let pairs = cell.all.merged.pairs();
        let total = pairs.iter().map(|pair| pair.1).sum::<u64>();
        let mut below = 0;
        let mut points = Vec::with_capacity(pairs.len());
        for &(ns, count) in pairs {
            below += count;
            points.push((as_f64(ns), as_f64(below) / as_f64(total)));
        }
        // Not more points than pixels.
        let stride = points.len().div_ceil(600).max(1);
        let last = points.last().copied()?;
        let mut points = points.into_iter().step_by(stride).collect::<Vec<_>>();
        points.push(last);
        Some(Series { name: label.clone(), colour, points, has_dots: false })
    });
    let series = series.collect::<Vec<_>>();
    if series.is_empty() {
        return None;
    }
    let names = series.iter().map(|s| (s.name.clone(), s.colour)).collect::<Vec<_>>();
    let x = Scale::log(series.iter().flat_map(|s| s.points.iter().map(|point| point.0)));
    let (width, height) = Lines::WIDE;
    let chart = Lines {
        series: &series,
        x,
        y: Scale::Nines(NINES),
        show_x: &time,
        show_y: &percentile,
        x_ticks: None,
        width,
        height,
    };
    let mut hint =
        "Share of calls (vertical; each nine takes the same room) that took at most the \
                    time below. All runs together."
            .to_owned();
    if cells.len() > CURVES_MAX {
        let _ = write!(hint, " The first {CURVES_MAX} of {} configurations.", cells.len());
    }
    let body = legend(&names) + &chart.draw("latency distribution");
    section("Latency distribution", &hint, &body)
}

fn over_time(cells: &[Cell], labels: &[String]) -> Option<String> {
    let value =
        |cell: &Cell, count: u64| as_f64(count) * 1e9 / as_f64(cell.typical.slice_ns.max(1));
    let body = timeline(cells, labels, &|cell| {
        cell.typical.slices.iter().map(|&count| value(cell, count)).collect()
    })?;
    let hint = "Calls per second in each slice of the measured interval, in the run whose throughput \
                is the median. Flat is good.";
    section("Throughput over time", hint, &body)
}

fn outstanding(cells: &[Cell], labels: &[String]) -> Option<String> {
    let body = timeline(cells, labels, &|cell| {
        cell.typical.outstanding.iter().map(|&count| as_f64(count)).collect()
    })?;
    let hint = "Calls without an answer, of all clients together: the most in each slice. In a closed \
                loop this is the queue depth times the clients, if it is honoured.";
    section("Outstanding over time", hint, &body)
}

pub(super) fn timeline(
    cells: &[Cell],
    labels: &[String],
    values: &dyn Fn(&Cell) -> Vec<f64>,
) -> Option<String> {
    let chosen = cells.iter().zip(labels).take(CURVES_MAX).enumerate();
    let series = chosen.map(|(colour, (cell, label))| {
        let slice_s = as_f64(cell.typical.slice_ns) / 1e9;
        let at = (0_u32..).map(|index| (f64::from(index) + 0.5) * slice_s);
        let points = at.zip(values(cell)).collect();
        Series { name: label.clone(), colour, points, has_dots: false }
    });
    let series = series.filter(|series| !series.points.is_empty()).collect::<Vec<_>>();
    let end_s = cells.iter().map(|cell| as_f64(cell.typical.interval_ns) / 1e9).fold(0.0, f64::max);
    if series.is_empty() {
        return None;
    }
    let names = series.iter().map(|s| (s.name.clone(), s.colour)).collect::<Vec<_>>();
    let (width, height) = Lines::WIDE;
    let chart = Lines {
        series: &series,
        x: Scale::Linear(end_s),
        y: Scale::linear(series.iter().flat_map(|s| s.points.iter().map(|point| point.1))),
        show_x: &|s| time(s * 1e9),
        show_y: &short,
        x_ticks: None,
        width,
        height: height * 0.75,
    };
    Some(legend(&names) + &chart.draw("over time"))
}

fn cpu(cells: &[Cell], labels: &[String]) -> Option<String> {
    if cells.len() > ROWS_MAX {
        return None;
    }
    let rows = cells.iter().zip(labels).filter_map(|(cell, label)| {
        let (total, share) = (cell.cpu_per_call_ns?.median, cell.ranks_cpu_share.median);
        Some(Stack { label: label.clone(), parts: vec![total * share, total * (1.0 - share)] })
    });
    let names = ["daemons".to_owned(), "clients".to_owned()];
    let keyed = names.iter().cloned().zip(0..).collect::<Vec<_>>();
    let rows = rows.collect::<Vec<_>>();
    if rows.is_empty() {
        return None;
    }
    let body = legend(&keyed) + &stacks(&rows, &names, Palette::Kinds, &time, "CPU per call");
    let hint =
        "CPU time of all processes inside the measured interval, over the calls answered in it.";
    section("CPU time per call", hint, &body)
}

/// What explains throughput: the second table of the terminal.
fn costs(cells: &[Cell], labels: &[String]) -> Option<String> {
    if cells.is_empty() {
        return None;
    }
    let row = |(cell, label): (&Cell, &String)| (label.clone(), result::costs(cell).to_vec());
    let rows = cells.iter().zip(labels).map(row).collect::<Vec<_>>();
    let html = grid(&result::COST_NAMES.map(str::to_owned), &rows);
    let hint = format!("Of all runs together; {}.", result::COST_MEANING);
    section("What a call costs", &hint, &html)
}

/// A table of names and fields, on its side if it is wider than high.
pub(super) fn grid(columns: &[String], rows: &[(String, Vec<String>)]) -> String {
    let is_wide = rows.len() < columns.len();
    let (heads, lines): (Vec<_>, Vec<Vec<_>>) = if is_wide {
        let line = |(at, name): (usize, &String)| {
            let fields = rows.iter().map(|(_, fields)| fields[at].clone());
            std::iter::once(name.clone()).chain(fields).collect()
        };
        let names = rows.iter().map(|(name, _)| name.clone()).collect();
        (names, columns.iter().enumerate().map(|(at, name)| line((at, name))).collect())
    } else {
        let line = |(name, fields): &(String, Vec<String>)| {
            std::iter::once(name).chain(fields).cloned().collect()
        };
        (columns.to_vec(), rows.iter().map(line).collect())
    };
    let mut html = String::from("<div class=\"scroll\"><table class=\"numbers\">\n<tr><th></th>");
    for head in heads {
        let _ = write!(html, "<th>{}</th>", escape(&head));
    }
    html.push_str("</tr>\n");
    for line in lines {
        html.push_str("<tr>");
        for field in line {
            let _ = write!(html, "<td>{}</td>", escape(&field));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div>\n");
    html
}

fn table(cells: &[Cell]) -> Option<String> {
    let mut html = String::from(
        "<div class=\"scroll\"><table>\n<tr><th>configuration</th><th>calls</th><th>cores</th>\
         <th>runs</th><th>median /s</th><th>min /s</th><th>max /s</th><th>p50</th><th>p90</th>\
         <th>p99</th><th>p99.9</th><th>max</th><th>CPU/call</th><th>errors</th><th>vs tcp</th>\
         </tr>\n",
    );
    for cell in cells {
        let parts = [("all", &cell.all), ("local", &cell.local), ("remote", &cell.remote)];
        let used = parts.into_iter().filter(|(_, side)| side.latency.is_some());
        let used = used.collect::<Vec<_>>();
        // If all calls are local or all are remote, that line says the same as the first.
        let used = if used.len() == 2 { &used[1..] } else { &used[..] };
        for (index, (part, side)) in used.iter().enumerate() {
            html.push_str(&row(cell, part, side, index == 0));
        }
        if used.is_empty() {
            html.push_str(&row(cell, "none", &cell.all, true));
        }
    }
    html.push_str("</table></div>\n");
    let hint = "Medians over the runs. The same numbers are in runs.csv, every run and every histogram \
                in result.jsonl beside this file.";
    section("All numbers", hint, &html)
}

fn row(cell: &Cell, part: &str, side: &SideCell, is_first: bool) -> String {
    let mut html = String::from(if is_first { "<tr>" } else { "<tr class=\"part\">" });
    let name = if is_first { escape(&cell.name) } else { String::new() };
    let _ = write!(
        html,
        "<td>{name}</td><td>{part}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
        labels::regime(cell),
        side.rate.runs,
        short(side.rate.median),
        short(side.rate.min),
        short(side.rate.max)
    );
    match &side.latency {
        Some(latency) => {
            for (_, summary) in latency.named() {
                let _ = write!(html, "<td>{}</td>", time(summary.median));
            }
        }
        None => html.push_str("<td></td><td></td><td></td><td></td><td></td>"),
    }
    if is_first {
        let failed = cell.failures.values().sum::<u64>();
        let kinds = cell.failures.iter().map(|(kind, count)| format!("{count} {}", kind.name()));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        let errors = if failed == 0 {
            "<td>0</td>".to_owned()
        } else {
            format!("<td class=\"bad\">{kinds}</td>")
        };
        let versus =
            cell.versus.as_ref().map_or_else(String::new, |(_, ratio)| format!("×{ratio:.2}"));
        let cpu = cell.cpu_per_call_ns.map_or_else(String::new, |cpu| time(cpu.median));
        let _ = write!(html, "<td>{cpu}</td>{errors}<td>{versus}</td>");
    } else {
        html.push_str("<td></td><td></td><td></td>");
    }
    html.push_str("</tr>\n");
    html
}

pub(super) fn as_f64(count: u64) -> f64 {
    count as f64
}
