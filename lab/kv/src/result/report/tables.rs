//! The tables.

use std::{collections::BTreeMap, iter};

use measure::{
    number::number, paired::Ratio, report::Block, results::events_table, stats::Summary,
    table::Table,
};

use super::super::{
    ReducedCell, SideCell,
    costs::{self as cost, costs as costs_of},
    reduce::{as_f64, ratio_over},
    system_parts, workload_parts,
};
use crate::{
    backend::Kind,
    configuration::Config,
    measured::{EACH_RANK, Measured},
    workload::Workload,
};

/// Headings of [`answers`], and what stands below each.
pub(super) const ANSWERS: [(&str, &str); 12] = [
    ("clients/node", "client processes of each node"),
    ("system", "the backend, and what else differs between the rows"),
    ("waits", "how its threads wait: the best of those that were tried, or as --wait says"),
    ("k/s", "thousands of answered and checked calls per second, median of the rounds"),
    ("smallest–largest", "of the rounds"),
    (
        "× tcp",
        "ratio to tcp in the same round, median of the rounds (95 % interval of the sign test)",
    ),
    ("p50 µs", "half of the calls took at most this, median of the rounds"),
    ("p99 µs", "99 of 100 calls took at most this"),
    ("CPU ns/call", "processor time of all processes per answer"),
    ("MiB/node", "memory of a node's processes: the sum of their proportional shares (PSS)"),
    ("QP/node", "queue pairs of a node, by construction"),
    ("errors", "calls without an answer, warm-up included"),
];

/// One row per cell: the answer.
pub(super) fn answers(cells: &[&ReducedCell]) -> Table {
    let labels = system_labels(cells);
    let mut table = Table::new(3, ANSWERS.map(|(name, _)| name));
    let micros =
        |of: Option<Summary>| of.map_or_else(String::new, |summary| number(summary.median / 1e3));
    for (cell, label) in cells.iter().zip(labels) {
        let Config { workload, wait, .. } = &cell.config;
        let latency = cell.all.latency;
        let queue_pairs = cell.config.queue_pairs_per_node();
        table.push([
            workload.clients_per_rank.to_string(),
            label,
            wait.to_string(),
            number(cell.all.rate.median / 1e3),
            spread(cell.all.rate),
            text_of(cell.versus.as_ref().map(|(_, ratio)| *ratio)),
            micros(latency.map(|latency| latency.p50)),
            micros(latency.map(|latency| latency.p99)),
            cell.cpu_per_call_ns.map_or_else(String::new, |cpu| number(cpu.median)),
            cell.pss_per_node
                .map_or_else(String::new, |pss| number(pss.median / f64::from(1 << 20))),
            queue_pairs.map_or_else(String::new, |count| count.to_string()),
            cell.failures.values().sum::<u64>().to_string(),
        ]);
    }
    table
}

/// What was counted per answer; nothing unless it was asked for.
pub(super) fn events(cells: &[&ReducedCell]) -> Vec<Block> {
    let rows = cells.iter().flat_map(|cell| {
        cell.events.iter().map(|side| (cell.name.clone(), side.side.clone(), side.each))
    });
    let rows = rows.collect::<Vec<_>>();
    if rows.is_empty() {
        return Vec::new();
    }
    let heading = Block::Heading("Counted per call".to_owned());
    vec![heading, Block::Table(events_table(rows.into_iter()))]
}

/// The backend, and the parts of a cell's name that some other cell has not and that no column tells.
fn system_labels(cells: &[&ReducedCell]) -> Vec<String> {
    let parts = |cell: &ReducedCell| {
        let Workload { ranks, clients_per_rank, .. } = cell.config.workload;
        let told = format!("{ranks}x{clients_per_rank}");
        let parts = cell.name.split('/').skip(1).map(str::to_owned);
        parts.filter(|part| *part != told && !part.starts_with("wait=")).collect::<Vec<_>>()
    };
    let all = cells.iter().map(|cell| parts(cell)).collect::<Vec<_>>();
    let is_common = |part: &String| all.iter().all(|parts| parts.contains(part));
    let label = |(cell, parts): (&&ReducedCell, &Vec<String>)| {
        let own = parts.iter().filter(|part| !is_common(part)).cloned();
        let backend = cell.config.backend.to_string();
        std::iter::once(backend).chain(own).collect::<Vec<_>>().join(" · ")
    };
    cells.iter().zip(&all).map(label).collect()
}

/// A ratio of rounds; empty if there is none.
fn text_of(ratio: Option<Ratio>) -> String {
    ratio.map_or_else(String::new, |ratio| ratio.to_string())
}

const NUMBERS: [&str; 9] =
    ["cell", "calls", "k/s", "smallest–largest", "p50 µs", "p90", "p99", "p99.9", "max"];

/// Throughput and latency, of local and remote calls apart if there are both.
pub(super) fn numbers(cells: &[&ReducedCell]) -> Table {
    let mut table = Table::new(2, NUMBERS);
    for cell in cells {
        let sides = [("all", &cell.all), ("local", &cell.local), ("remote", &cell.remote)];
        let used = sides.into_iter().filter(|(_, side)| side.latency.is_some());
        // If all calls are local or all are remote, that line says the same as the first.
        let used = used.collect::<Vec<_>>();
        let used = if used.len() == 2 { &used[1..] } else { &used[..] };
        for (index, (calls, side)) in used.iter().enumerate() {
            table.push(line(cell, calls, side, index == 0));
        }
        if used.is_empty() {
            table.push(line(cell, "none", &cell.all, true));
        }
    }
    table
}

fn line(cell: &ReducedCell, calls: &str, side: &SideCell, is_first: bool) -> Vec<String> {
    let mut line = vec![
        if is_first { cell.name.clone() } else { String::new() },
        calls.to_owned(),
        number(side.rate.median / 1e3),
        spread(side.rate),
    ];
    match &side.latency {
        Some(latency) => line.extend(latency.named().map(|(_, of)| number(of.median / 1e3))),
        None => line.extend([const { String::new() }; 5]),
    }
    line
}

/// Smallest to largest; nothing if there is one run only.
fn spread(summary: Summary) -> String {
    if summary.runs < 2 {
        return "1 run".to_owned();
    }
    format!("{}–{}", number(summary.min / 1e3), number(summary.max / 1e3))
}

/// What clients and the daemon of each node did, in the run whose throughput is the median; nothing of backends that
/// count nothing.
pub(super) fn each_rank(cells: &[&ReducedCell]) -> Option<Table> {
    let all = || cells.iter().flat_map(|cell| cell.typical.each_rank.values());
    let columns = EACH_RANK.iter().filter(|name| all().any(|counts| counts.contains_key(**name)));
    let columns = columns.collect::<Vec<_>>();
    let names = columns.iter().map(|name| name.replace('_', " "));
    let mut table =
        Table::new(2, ["cell", "node", "answers k/s"].map(str::to_owned).into_iter().chain(names));
    for cell in cells {
        let Measured { each_rank, per_client, interval_ns, .. } = &cell.typical;
        for (rank, counts) in each_rank {
            let clients = cell.config.workload.topology().clients_of(*rank);
            let answers = clients.filter_map(|id| per_client.get(usize::from(id.0)));
            let rate = as_f64(answers.sum()) * 1e6 / as_f64((*interval_ns).max(1));
            let counts = columns
                .iter()
                .map(|name| counts.get(**name).map_or_else(String::new, ToString::to_string));
            let about = [cell.name.clone(), rank.to_string(), number(rate)];
            table.push(about.into_iter().chain(counts));
        }
    }
    (!columns.is_empty()).then_some(table)
}

/// What explains the numbers.
pub(super) fn costs(cells: &[&ReducedCell]) -> Table {
    let mut table = Table::new(1, iter::once("cell").chain(cost::HEADINGS));
    for cell in cells {
        table.push(iter::once(cell.name.clone()).chain(costs_of(cell)));
    }
    table
}

/// Backends beside each other, what each switch changes, and where CPU time went.
pub(super) fn of_document(cells: &[&ReducedCell], common: &[String]) -> Vec<Block> {
    let (plain, varied): (Vec<&ReducedCell>, Vec<&ReducedCell>) =
        cells.iter().partition(|cell| system_parts(&cell.config).is_empty());
    // One backend alone is the first row of what follows.
    let first = plain.first().map(|cell| cell.config.backend);
    let has_rivals = plain.iter().any(|cell| Some(cell.config.backend) != first);
    let mut blocks = Vec::new();
    if varied.is_empty() || has_rivals {
        blocks.push(Block::Heading("Backends".to_owned()));
        blocks.push(Block::Table(backends(&plain, common)));
    }
    if !varied.is_empty() {
        blocks.push(Block::Heading("Switches, policies, waiting".to_owned()));
        let text = "Against the same backend with its defaults, in the same round. Messages per batch: \
                    between daemons\nfor delegation, taken together by a daemon otherwise.";
        blocks.push(Block::Text(text.to_owned()));
        blocks.push(Block::Table(variants(&varied, &plain, common)));
    }
    blocks.push(Block::Heading("Where CPU time went".to_owned()));
    blocks.push(Block::Text(format!("Of all runs together; {}.", cost::MEANING)));
    blocks.push(Block::Table(costs(cells)));
    blocks
}

/// Parts of the workload's name that all cells have.
pub(super) fn common_parts(cells: &[ReducedCell]) -> Vec<String> {
    let parts = |cell: &ReducedCell| workload_parts(&cell.config.workload);
    let mut common = cells.first().map(parts).unwrap_or_default();
    common.retain(|part| cells.iter().all(|cell| parts(cell).contains(part)));
    common
}

/// What a row is about, without what all cells have.
fn workload_fields(workload: &Workload, common: &[String]) -> [String; 3] {
    let Workload { ranks, clients_per_rank, queue_depth, locality, .. } = workload;
    let own = workload_parts(workload).into_iter().filter(|part| !common.contains(part));
    let keys = iter::once(locality.to_string()).chain(own).collect::<Vec<_>>().join(", ");
    [keys, queue_depth.to_string(), format!("{ranks}×{clients_per_rank}")]
}

fn rate(cell: &ReducedCell) -> String {
    let rate = cell.all.rate;
    let [median, min, max] = [rate.median, rate.min, rate.max].map(|rate| number(rate / 1e3));
    if rate.runs < 2 { median } else { format!("{median} ({min}–{max})") }
}

fn latency(cell: &ReducedCell) -> String {
    cell.all.latency.map_or_else(String::new, |latency| {
        format!("{} / {}", number(latency.p50.median / 1e3), number(latency.p99.median / 1e3))
    })
}

/// Backends whose rates are divided, where both were measured.
const RATIOS: [(Kind, Kind); 4] = [
    (Kind::Provider, Kind::Delegation),
    (Kind::Delegation, Kind::Direct),
    (Kind::Delegation, Kind::UcxAm),
    (Kind::Direct, Kind::UcxAm),
];

/// One row per workload, the backends beside each other.
fn backends(cells: &[&ReducedCell], common: &[String]) -> Table {
    let mut kinds = Kind::ALL.to_vec();
    kinds.retain(|kind| cells.iter().any(|cell| cell.config.backend == *kind));
    let mut rows = BTreeMap::<_, BTreeMap<Kind, &ReducedCell>>::new();
    for cell in cells {
        let w = &cell.config.workload;
        let rest = workload_parts(w).join("/");
        let key = (w.locality.to_string(), w.queue_depth, w.ranks, w.clients_per_rank, rest);
        rows.entry(key).or_default().insert(cell.config.backend, cell);
    }
    let mut head = ["keys", "outstanding", "nodes×clients"].map(str::to_owned).to_vec();
    for kind in &kinds {
        head.extend([format!("{kind} k/s"), "p50 / p99 µs".to_owned()]);
    }
    let mut ratios = RATIOS.to_vec();
    ratios.retain(|(over, under)| kinds.contains(over) && kinds.contains(under));
    head.extend(ratios.iter().map(|(over, under)| format!("{over}/{under}")));
    let mut table = Table::new(1, head);
    for row in rows.values() {
        let Some(first) = row.values().next() else { continue };
        let mut fields = workload_fields(&first.config.workload, common).to_vec();
        for kind in &kinds {
            let cell = row.get(kind);
            fields.extend(cell.map_or_else(Default::default, |cell| [rate(cell), latency(cell)]));
        }
        for (over, under) in &ratios {
            let both = row.get(over).zip(row.get(under));
            fields.push(text_of(both.and_then(|(over, under)| ratio_over(over, under))));
        }
        table.push(fields);
    }
    table
}

const VARIANTS: [&str; 9] = [
    "system",
    "keys",
    "outstanding",
    "nodes×clients",
    "k/s",
    "of default",
    "p50 / p99 µs",
    "CPU ns/call",
    "messages per batch",
];

/// One row per system, beside its own default with the same workload.
fn variants(cells: &[&ReducedCell], plain: &[&ReducedCell], common: &[String]) -> Table {
    let mut rows = cells.to_vec();
    rows.extend(plain.iter().filter(|cell| cells.iter().any(|other| is_default_of(cell, other))));
    rows.sort_by_key(|cell| {
        let w = &cell.config.workload;
        (cell.config.backend, w.locality.to_string(), w.queue_depth, w.clients_per_rank)
    });
    let mut table = Table::new(2, VARIANTS);
    for cell in rows {
        let parts = system_parts(&cell.config);
        let parts = if parts.is_empty() { "default".to_owned() } else { parts.join(" ") };
        let default = plain.iter().find(|other| is_default_of(other, cell));
        let system = [format!("{} {parts}", cell.config.backend)];
        let numbers = [
            rate(cell),
            text_of(default.and_then(|other| ratio_over(cell, other))),
            latency(cell),
            cell.cpu_per_call_ns.map_or_else(String::new, |cpu| number(cpu.median)),
            cell.counters.mean_batch().map_or_else(String::new, number),
        ];
        let workload = workload_fields(&cell.config.workload, common);
        table.push(system.into_iter().chain(workload).chain(numbers));
    }
    table
}

fn is_default_of(plain: &ReducedCell, cell: &ReducedCell) -> bool {
    plain.config.backend == cell.config.backend && plain.config.workload == cell.config.workload
}
