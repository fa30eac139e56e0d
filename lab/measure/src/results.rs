//! Results: measurements, and the file of JSON lines that holds them.
//!
//! The first line of a file holds the circumstances, each other line one number of one cell: first those of all
//! samples (regime `all`), then those of each pace of the machine. Files of formats 1 and 2 have the latter only; format
//! 1 names them by thresholds in ns (`near`, `far`, `twin`). Both are read as they are.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
};

use serde::{Deserialize, Serialize};

use crate::{
    events::{EventCounts, PerfEvent},
    number::{self, number},
    paired::Ratio,
    regime::{self, Probes, Regime, Regimes},
    report::{
        Block, Report, ReportSection,
        chart::{self, Bar},
    },
    schedule::Sample,
    stats::{self, Summary},
    table::Table,
};
pub use crate::{
    header::{FORMAT, Header},
    schedule::PerBatch,
};

/// Longest line of a file: nothing that was measured makes a longer one.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Cells that one chart shows.
const BARS_MAX: usize = 40;

/// The meaning of a cell's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Messages per second; more is better.
    Rate,
    /// Time from a request to its answer; less is better.
    RoundTrip,
    /// Bytes per second; more is better.
    Bandwidth,
}

impl Metric {
    /// Its unit.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Rate => "M/s",
            Self::RoundTrip => "ns",
            Self::Bandwidth => "GiB/s",
        }
    }

    /// Time of each operation, in ns, if the number is `value`; `len_bytes` is what each moves.
    #[must_use]
    pub fn each_ns(self, value: f64, len_bytes: usize) -> f64 {
        match self {
            Self::Rate => 1e3 / value,
            Self::RoundTrip => value,
            Self::Bandwidth => len_bytes as f64 / (value * f64::from(1 << 30)) * 1e9,
        }
    }

    /// Its name in rows and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::RoundTrip => "round-trip",
            Self::Bandwidth => "bandwidth",
        }
    }
}

/// One thing that is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Unique, with slashes from coarse to fine: `write-imm/round-trip/32B`.
    pub name: String,
    /// The meaning of its number.
    pub metric: Metric,
    /// The cell that it is compared with.
    pub versus: Option<String>,
    /// The machine's limit without a NIC, if the cell is compared with that too.
    pub floor: Option<String>,
    /// Cache lines that one operation moves between the cores, as designed; `None` where its cost is not
    /// one of lines.
    pub lines: Option<f64>,
    /// Number of another machine, in the same unit.
    pub reference: Option<f64>,
}

/// One number of one cell in one regime: a JSON line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the benchmark.
    pub bench: String,
    /// Name of the cell.
    pub cell: String,
    /// The regime's label.
    pub regime: String,
    /// Round trip of two cache lines in this regime. `None`: not known, or a file of format 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_ns: Option<f64>,
    /// The meaning of the number.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Median, minimum, maximum and number of the samples.
    #[serde(flatten)]
    pub summary: Summary,
    /// The cell it is compared with.
    pub vs: Option<String>,
    /// The ratio to the sample of `vs` in the same round: median of the rounds. In files of formats 1 and 2 the ratio
    /// of the medians.
    pub ratio: Option<f64>,
    /// 95 % interval of the ratio, if there are enough rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
    /// Rounds that the ratio is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<usize>,
    /// The machine's limit, if the cell is compared with that too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<String>,
    /// As `ratio`, to `floor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_ratio: Option<f64>,
    /// Messages per batch, of cells that make calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_batch: Option<PerBatch>,
    /// Cache lines that one operation moves, as designed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<f64>,
    /// Time per operation over the round trip of two cache lines around the same sample: median of the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_line: Option<f64>,
    /// Number of another machine, in the same unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<f64>,
    /// Counts of the processor per operation, by side, if they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<SideEvents>,
}

/// Counts of one side of a cell, per operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SideEvents {
    /// Name of the side.
    pub side: String,
    /// Per operation.
    pub each: EventCounts,
}

impl Row {
    /// Time per operation over the round trip of two cache lines. `None` of bandwidths, and where that round
    /// trip is not known.
    #[must_use]
    pub fn line_ratio(&self) -> Option<f64> {
        if self.per_line.is_some() {
            return self.per_line;
        }
        let ns = match self.unit.as_str() {
            "ns" => self.summary.median,
            "M/s" => 1e3 / self.summary.median,
            _ => return None,
        };
        Some(ns / self.line_ns?)
    }

    /// Whether it is of all samples, whatever the pace.
    #[must_use]
    pub fn is_of_all(&self) -> bool {
        self.regime == Regime::All.to_string()
    }

    /// Sets the ratio to `vs`, as far as it can be written.
    pub fn set_ratio(&mut self, ratio: Option<Ratio>) {
        let ratio = ratio.filter(|ratio| ratio.median.is_finite());
        let is_finite = |(low, high): &(f64, f64)| low.is_finite() && high.is_finite();
        self.ratio = ratio.map(|ratio| ratio.median);
        self.interval = ratio.and_then(|ratio| ratio.interval).filter(is_finite);
        self.rounds = ratio.map(|ratio| ratio.rounds);
    }

    /// The ratio to `vs` as a table shows it.
    fn ratio_text(&self) -> String {
        match (self.ratio, self.rounds) {
            (Some(median), Some(rounds)) => {
                Ratio { median, interval: self.interval, rounds }.to_string()
            }
            (ratio, _) => number::ratio(ratio),
        }
    }
}

/// The aim of a cell, as a ratio: so that it means the same on every processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aim {
    /// Name of the cell.
    pub cell: &'static str,
    /// The aim in words, without the number.
    pub text: &'static str,
    /// The cells that are compared.
    pub goal: Goal,
}

/// A ratio that is to be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// [`Row::ratio`] is at most this.
    AtMost(f64),
    /// [`Row::ratio`] is at least this.
    AtLeast(f64),
    /// [`Row::line_ratio`] is at most this.
    LinesAtMost(f64),
}

impl Aim {
    /// The aim, and whether it is met, missed, or not judged, as its interval is too wide; or that the cell was not measured.
    #[must_use]
    pub fn note(&self, rows: &[Row]) -> String {
        let Self { cell, text, goal } = self;
        let (limit, is_least) = match *goal {
            Goal::AtMost(limit) | Goal::LinesAtMost(limit) => (limit, false),
            Goal::AtLeast(limit) => (limit, true),
        };
        let mut note = format!("aim: {text} {limit}");
        let without_verdict = note.len();
        let has_all = rows.iter().any(Row::is_of_all);
        let of_cell = rows.iter().filter(|row| row.cell == *cell);
        for row in of_cell.filter(|row| row.is_of_all() == has_all) {
            let is_lines = matches!(goal, Goal::LinesAtMost(_));
            let found = if is_lines { row.line_ratio() } else { row.ratio };
            let Some(found) = found else { continue };
            let is_met = if is_least { found >= limit } else { found <= limit };
            let text = if is_lines { number::ratio(Some(found)) } else { row.ratio_text() };
            let verdict = match is_met {
                // Its interval is too wide to say.
                _ if text.contains("undecided") => "not judged",
                true => "met",
                false => "missed",
            };
            let place = if has_all { String::new() } else { format!("{}: ", row.regime) };
            note += &format!("; {place}{text}, {verdict}");
        }
        if note.len() == without_verdict {
            note += "; not measured";
        }
        note
    }
}

/// Everything that one run found.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// Circumstances.
    pub header: Header,
    /// Of all samples, then by regime; each in the order of the cells.
    pub rows: Vec<Row>,
    /// How much the machine's pace changed: the slowest probe over the fastest. `None`: not known.
    pub pace_change: Option<f64>,
    /// Other facts, one sentence each.
    pub notes: Vec<String>,
}

/// The first line of a file.
#[derive(Serialize, Deserialize)]
struct FirstLine {
    #[serde(flatten)]
    header: Header,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pace_change: Option<f64>,
    #[serde(default)]
    notes: Vec<String>,
}

/// Why a file holds no results.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read.
    #[error("cannot read the results: {0}")]
    Read(#[from] io::Error),
    /// It was not written by a benchmark.
    #[error("line {line} is no line of a result: {cause}")]
    Line {
        /// From 1.
        line: usize,
        /// Error of the parser.
        cause: serde_json::Error,
    },
    /// It is empty.
    #[error("it is empty")]
    Empty,
    /// A later version of this program wrote it.
    #[error("it has format {0}; this program reads formats 1 to {FORMAT}")]
    Format(u32),
}

impl Results {
    /// Reduces the samples of `cells`. The aims become notes.
    #[must_use]
    pub fn new(header: Header, cells: &[Cell], samples: &[Sample], aims: &[Aim]) -> Self {
        let all = samples.iter().collect::<Vec<_>>();
        let mut rows = rows_of(&header.bench, Regime::All, cells, &all);
        let regimes = Regimes::of(samples.iter().map(|sample| sample.probes));
        for regime in regimes.iter() {
            let is_of_regime = |sample: &&Sample| regimes.regime(Some(sample.probes)) == regime;
            let of_regime = samples.iter().filter(is_of_regime).collect::<Vec<_>>();
            rows.extend(rows_of(&header.bench, regime, cells, &of_regime));
        }
        let notes = aims.iter().map(|aim| aim.note(&rows)).collect();
        let pace_change = regime::change(samples.iter().map(|sample| sample.probes));
        Self { header, rows, pace_change, notes }
    }

    /// Adds the counts per operation of a cell, beside its number of all samples.
    pub fn set_events(&mut self, cell: &str, events: Vec<SideEvents>) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.cell == cell && row.is_of_all()) {
            row.events = events;
        }
    }

    /// Writes the header and every row, one JSON object per line.
    ///
    /// # Errors
    ///
    /// Of `to`.
    pub fn write_json(&self, to: &mut dyn Write) -> io::Result<()> {
        let Self { header, rows, pace_change, notes } = self;
        let header = Header { format: FORMAT, ..header.clone() };
        let notes = notes.clone();
        let first = FirstLine { header, pace_change: *pace_change, notes };
        writeln!(to, "{}", serde_json::to_string(&first)?)?;
        rows.iter().try_for_each(|row| writeln!(to, "{}", serde_json::to_string(row)?))
    }

    /// Reads what [`write_json`](Self::write_json) of this version or of an older one wrote.
    ///
    /// # Errors
    ///
    /// [`ReadError`].
    pub fn read(mut from: impl BufRead) -> Result<Self, ReadError> {
        let mut line = |number: usize| {
            let mut line = Vec::new();
            io::Read::take(&mut from, LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
            let broken = move |cause| ReadError::Line { line: number, cause };
            Ok::<_, ReadError>((!line.is_empty()).then_some((line, broken)))
        };
        let (first, broken) = line(1)?.ok_or(ReadError::Empty)?;
        let first = serde_json::from_slice::<FirstLine>(&first).map_err(broken)?;
        if !(1..=FORMAT).contains(&first.header.format) {
            return Err(ReadError::Format(first.header.format));
        }
        let mut rows = Vec::new();
        while let Some((text, broken)) = line(rows.len() + 2)? {
            rows.push(serde_json::from_slice::<Row>(&text).map_err(broken)?);
        }
        let FirstLine { header, pace_change, notes } = first;
        Ok(Self { header, rows, pace_change, notes })
    }

    /// One table with a chart per metric, and the circumstances. Numbers by pace are folded, unless `by_pace` asks for
    /// them, or the file has no others.
    #[must_use]
    pub fn report(&self, by_pace: bool) -> Report {
        let mut report = Report::new(&self.header);
        let has_all = self.rows.iter().any(Row::is_of_all);
        for rows in self.rows.chunk_by(|a, b| (&a.regime, a.line_ns) == (&b.regime, b.line_ns)) {
            let is_of_all = rows[0].is_of_all();
            let title = match is_of_all {
                true => "results".to_owned(),
                false => format!("pace: {}", rows[0].regime),
            };
            let mut section = ReportSection::new(title);
            section.blocks = charts(rows);
            section.blocks.push(Block::Table(table(rows)));
            if rows.iter().any(|row| !row.events.is_empty()) {
                section.blocks.push(Block::Heading("Counted per operation".to_owned()));
                section.blocks.push(Block::Table(events_table(rows.iter().flat_map(|row| {
                    let of_side = |side: &'_ SideEvents| (side.side.clone(), side.each);
                    row.events
                        .iter()
                        .map(of_side)
                        .map(|(side, each)| (row.cell.clone(), side, each))
                }))));
            }
            section.is_folded = has_all && is_of_all == by_pace;
            report.sections.push(section);
        }
        if let Some(change) = self.pace_change {
            report.notes.push(format!(
                "the machine's pace changed by a factor of {change:.1} during this run; no sample is left out; ratios: \
                 median of rounds (95 % interval of the sign test)"
            ));
        }
        if self.rows.iter().any(|row| !row.events.is_empty()) {
            report.notes.push(COUNTED.to_owned());
        }
        report.notes.extend(self.notes.iter().cloned());
        report
    }
}

/// The meaning of counts per operation, beside times.
const COUNTED: &str = "counted per operation: all counts of a side by all operations, so means with waits and stalls; \
                       times are medians of samples";

/// Whether the ratios of all `cells` are known to `factor`, as far as they have two samples in a round. Nothing is
/// missing if there are none.
#[must_use]
pub fn are_ratios_known(cells: &[Cell], samples: &[Sample], factor: f64) -> bool {
    let samples = samples.iter().collect::<Vec<_>>();
    (0..cells.len()).all(|index| {
        let versus = cells[index].versus.as_deref();
        ratio_over(cells, &samples, index, versus).is_none_or(|ratio| ratio.is_known_to(factor))
    })
}

/// The ratio of a cell to the one of that name.
fn ratio_over(
    cells: &[Cell],
    samples: &[&Sample],
    index: usize,
    reference: Option<&str>,
) -> Option<Ratio> {
    let other = cells.iter().position(|cell| Some(cell.name.as_str()) == reference)?;
    let of_cell = |index: usize| samples.iter().filter(move |sample| sample.cell == index);
    let others = of_cell(other).map(|sample| (sample.round, sample.value));
    let others = others.collect::<BTreeMap<_, _>>();
    Ratio::of(of_cell(index).filter_map(|sample| Some((sample.value, *others.get(&sample.round)?))))
}

fn rows_of(bench: &str, regime: Regime, cells: &[Cell], samples: &[&Sample]) -> Vec<Row> {
    let of_cell = |index: usize| samples.iter().filter(move |sample| sample.cell == index);
    let summary_of =
        |index: usize| Summary::of(&of_cell(index).map(|sample| sample.value).collect::<Vec<_>>());
    let row = |(index, cell): (usize, &Cell)| {
        let summary = summary_of(index)?;
        let over = |reference: Option<&str>| ratio_over(cells, samples, index, reference);
        let per_line = |sample: &&Sample| {
            let Probes { before_ns, after_ns } = sample.probes;
            let ns = match cell.metric {
                Metric::RoundTrip => sample.value,
                Metric::Rate => 1e3 / sample.value,
                Metric::Bandwidth => return None,
            };
            let ratio = ns / (before_ns * after_ns).sqrt();
            ratio.is_finite().then_some(ratio)
        };
        let mut per_line = of_cell(index).filter_map(per_line).collect::<Vec<_>>();
        let batches = of_cell(index).filter_map(|sample| sample.per_batch).collect::<Vec<_>>();
        let mean =
            |of: fn(&PerBatch) -> f64| batches.iter().map(of).sum::<f64>() / batches.len() as f64;
        let mut row = Row {
            bench: bench.to_owned(),
            cell: cell.name.clone(),
            regime: regime.to_string(),
            line_ns: regime.line_ns(),
            metric: cell.metric.name().to_owned(),
            unit: cell.metric.unit().to_owned(),
            summary,
            vs: cell.versus.clone(),
            floor: cell.floor.clone(),
            floor_ratio: over(cell.floor.as_deref()).map(|ratio| ratio.median),
            per_batch: (!batches.is_empty())
                .then(|| PerBatch { calls: mean(|m| m.calls), answers: mean(|m| m.answers) }),
            lines: cell.lines,
            reference: cell.reference,
            per_line: (!per_line.is_empty()).then(|| stats::median(&mut per_line)),
            ..Row::default()
        };
        row.set_ratio(over(cell.versus.as_deref()));
        Some(row)
    };
    cells.iter().enumerate().filter_map(row).collect()
}

/// A chart for each metric, if one can hold all of its cells.
fn charts(rows: &[Row]) -> Vec<Block> {
    let mut units = rows.iter().map(|row| (&row.metric, &row.unit)).collect::<Vec<_>>();
    units.sort_unstable();
    units.dedup();
    let chart = |(metric, unit): (&String, &String)| {
        let of_unit = rows.iter().filter(|row| (&row.metric, &row.unit) == (metric, unit));
        let bars = of_unit.map(|row| Bar {
            label: row.cell.clone(),
            colour: 0,
            value: row.summary.median,
            range: (row.summary.min, row.summary.max),
        });
        let bars = bars.collect::<Vec<_>>();
        let show: fn(f64) -> String = if unit == "ns" { number::time } else { number };
        let title = format!("{metric}, {}", if unit == "ns" { "time" } else { unit });
        (bars.len() <= BARS_MAX).then(|| Block::Chart(chart::bars(&bars, show).titled(title)))
    };
    units.into_iter().filter_map(chart).collect()
}

/// A row for each side: name, side, counts per operation. An event without any count has no column.
pub fn events_table(rows: impl Iterator<Item = (String, String, EventCounts)>) -> Table {
    let rows = rows.collect::<Vec<_>>();
    let is_counted = |event: &PerfEvent| rows.iter().any(|(.., each)| each.get(*event).is_some());
    let events = PerfEvent::ALL.into_iter().filter(is_counted).collect::<Vec<_>>();
    let head = ["cell", "side"].into_iter().chain(events.iter().map(|event| event.name()));
    let mut table = Table::new(2, head.chain(["IPC"]));
    for (cell, side, each) in &rows {
        let shown = |count: Option<f64>| count.map(number).unwrap_or_default();
        let counts = events.iter().map(|event| shown(each.get(*event)));
        table.push(
            [cell.clone(), side.clone()].into_iter().chain(counts).chain([shown(each.ipc())]),
        );
    }
    table
}

/// The name of a cell without the folders that it shares with `beside`.
fn relative(name: &str, beside: &str) -> String {
    let shared = name.split('/').zip(beside.split('/')).take_while(|(a, b)| a == b).count();
    name.split('/').skip(shared).collect::<Vec<_>>().join("/")
}

fn table(rows: &[Row]) -> Table {
    let has_floor = rows.iter().any(|row| row.floor.is_some());
    let has_calls = rows.iter().any(|row| row.per_batch.is_some());
    let has_lines = rows.iter().any(|row| row.lines.is_some());
    let mut head = vec!["cell", "unit", "median", "min", "max", "runs"];
    if has_lines {
        head.push("lines");
    }
    head.extend(["ratio to", "ratio"]);
    if has_floor {
        head.push("of the limit");
    }
    let has_reference = rows.iter().any(|row| row.reference.is_some());
    if has_reference {
        head.push("reference");
    }
    if has_calls {
        head.extend(["calls/batch", "answers/batch"]);
    }
    let mut table = Table::new(2, head);
    for row in rows {
        let Summary { median, min, max, runs } = row.summary;
        let mut fields = vec![row.cell.clone(), row.unit.clone()];
        fields.extend([median, min, max].map(number));
        fields.push(runs.to_string());
        if has_lines {
            fields.push(row.lines.map(number).unwrap_or_default());
        }
        fields.push(row.vs.as_deref().map(|vs| relative(vs, &row.cell)).unwrap_or_default());
        fields.push(row.ratio_text());
        if has_floor {
            fields.push(number::ratio(row.floor_ratio));
        }
        if has_reference {
            fields.push(row.reference.map(number).unwrap_or_default());
        }
        if has_calls {
            let mean =
                |of: fn(PerBatch) -> f64| row.per_batch.map(of).map(number).unwrap_or_default();
            fields.extend([mean(|m| m.calls), mean(|m| m.answers)]);
        }
        table.push(fields);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn header() -> Header {
        Header {
            format: FORMAT,
            bench: "test".into(),
            command: "copyrpc-lab bench test".into(),
            version: "0.1.0".into(),
            commit: "abc".into(),
            profile: "release".into(),
            cpu: "some CPU".into(),
            cores: 2,
            pinning: "1,0".into(),
            kernel: "6.1".into(),
            nic: "soft".into(),
            date: "2026-01-31T00:00:00Z".into(),
        }
    }

    fn sample(cell: usize, round: usize, line_ns: f64, value: f64) -> Sample {
        let probes = Probes { before_ns: line_ns, after_ns: line_ns };
        Sample { cell, round, probes, value, per_batch: None }
    }

    fn cell(name: &str, metric: Metric, versus: Option<&str>) -> Cell {
        let versus = versus.map(Into::into);
        Cell { name: name.into(), metric, versus, floor: None, lines: Some(2.0), reference: None }
    }

    /// Three rounds of a limit and a cell: at two paces, and while the pace changed.
    fn results() -> Results {
        let cells = [
            cell("limit", Metric::RoundTrip, None),
            cell("send", Metric::RoundTrip, Some("limit")),
        ];
        let moved = Probes { before_ns: 100.0, after_ns: 500.0 };
        let samples = [
            sample(0, 0, 100.0, 100.0),
            sample(1, 0, 95.0, 220.0),
            sample(0, 1, 500.0, 500.0),
            sample(1, 1, 500.0, 750.0),
            sample(0, 2, 105.0, 120.0),
            Sample { probes: moved, ..sample(1, 2, 0.0, 216.0) },
        ];
        let aim = Aim {
            cell: "send",
            text: "a send takes at most x the limit:",
            goal: Goal::AtMost(1.6),
        };
        Results::new(header(), &cells, &samples, &[aim])
    }

    #[test]
    fn ratios_are_of_samples_of_one_round_and_none_is_left_out() {
        let results = results();
        let ratios = results.rows.iter().map(|row| (row.regime.as_str(), row.ratio, row.rounds));
        assert_eq!(
            ratios.collect::<Vec<_>>(),
            [
                ("all", None, None),
                ("all", Some(1.8), Some(3)),
                ("line 100 ns", None, None),
                ("line 100 ns", Some(2.2), Some(1)),
                ("line 500 ns", None, None),
                ("line 500 ns", Some(1.5), Some(1)),
            ]
        );
        assert_eq!(
            results.rows[1].summary,
            Summary { median: 220.0, min: 216.0, max: 750.0, runs: 3 }
        );
        assert_eq!(results.rows[1].interval, None, "three rounds have none");
        assert_eq!(results.pace_change, Some(500.0 / 95.0));
        assert_eq!(results.rows[2].line_ns, Some(100.0));
    }

    /// The pace divides, sample by sample: what follows it has one ratio on any machine.
    #[test]
    fn time_per_line_is_that_of_the_pace_around_the_sample() {
        let cells = [cell("send", Metric::RoundTrip, None)];
        let samples = [100.0, 500.0, 104.0].map(|line_ns| sample(0, 0, line_ns, 2.0 * line_ns));
        let results = Results::new(header(), &cells, &samples, &[]);
        assert!((results.rows[0].line_ratio().unwrap() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn ratios_are_known_once_their_intervals_are_narrow() {
        let cells = [cell("a", Metric::Rate, Some("b")), cell("b", Metric::Rate, None)];
        let rounds = |count: usize, noise: f64| {
            let of_round = move |round: usize| {
                let factor = if round.is_multiple_of(2) { noise } else { 1.0 };
                [sample(0, round, 100.0, 3.0 * factor), sample(1, round, 100.0, 1.0)]
            };
            (0..count).flat_map(of_round).collect::<Vec<_>>()
        };
        assert!(are_ratios_known(&cells, &rounds(6, 1.01), 1.05));
        assert!(!are_ratios_known(&cells, &rounds(5, 1.0), 1.05), "five rounds have no interval");
        assert!(!are_ratios_known(&cells, &rounds(6, 1.5), 1.05));
        assert!(are_ratios_known(&cells[1..], &rounds(6, 1.5), 1.05), "there is no ratio");
    }

    #[test]
    fn a_reference_without_a_sample_in_the_round_gives_no_ratio() {
        let cells = [cell("limit", Metric::Rate, None), cell("send", Metric::Rate, Some("limit"))];
        let samples = [sample(0, 0, 100.0, 10.0), sample(1, 1, 100.0, 2.0)];
        let results = Results::new(header(), &cells, &samples, &[]);
        assert_eq!(results.rows[1].vs.as_deref(), Some("limit"));
        assert_eq!(results.rows[1].ratio, None);
    }

    #[test]
    fn aims_are_ratios_and_say_whether_they_are_met() {
        let note = &results().notes[0];
        assert!(note.ends_with("1.80, undecided: 3 more rounds, not judged"), "{note}");
        let rows = [
            Row { cell: "r".into(), unit: "M/s".into(), line_ns: Some(100.0), ..Row::default() },
            Row { cell: "b".into(), unit: "GiB/s".into(), ratio: Some(0.9), ..Row::default() },
        ]
        .map(|row| Row { summary: Summary::of(&[20.0]).unwrap(), ..row });
        let aim = |cell, goal| Aim { cell, text: "x", goal }.note(&rows);
        assert_eq!(
            aim("r", Goal::LinesAtMost(0.6)),
            "aim: x 0.6; : 0.50, met",
            "a file of format 2"
        );
        assert_eq!(aim("b", Goal::AtLeast(0.95)), "aim: x 0.95; : 0.90, missed");
        assert_eq!(
            aim("b", Goal::LinesAtMost(1.0)),
            "aim: x 1; not measured",
            "a bandwidth has no lines"
        );
    }

    #[test]
    fn json_has_a_header_and_one_flat_object_per_row() {
        let mut bytes = Vec::new();
        results().write_json(&mut bytes).unwrap();
        let lines = String::from_utf8(bytes).unwrap();
        let mut lines = lines.lines();
        let read: Header = serde_json::from_str(lines.next().unwrap()).unwrap();
        assert_eq!(read, header());
        let rows = lines.map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
        assert_eq!(rows.len(), 6);
        let mut keys = rows[1].as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>();
        let mut expected = [
            "bench", "cell", "metric", "unit", "median", "min", "max", "runs", "vs", "ratio",
            "regime", "rounds", "lines", "per_line",
        ];
        expected.sort_unstable();
        keys.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!((&rows[1]["metric"], &rows[1]["regime"]), (&"round-trip".into(), &"all".into()));
        assert_eq!((&rows[1]["median"], &rows[0]["ratio"]), (&220.0.into(), &Value::Null));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut bytes = Vec::new();
        results().write_json(&mut bytes).unwrap();
        assert_eq!(Results::read(&bytes[..]).unwrap(), results());
        let refused = |text: &str| Results::read(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(refused(""), "it is empty");
        assert!(refused("root:x:0:0\n").starts_with("line 1 is no line of a result"));
        let later = String::from_utf8(bytes).unwrap().replace("\"format\":3", "\"format\":9");
        assert!(refused(&later).contains("format 9"));
        assert!(
            refused(&(later.lines().next().unwrap().replace(":9", ":3") + "\n{"))
                .contains("line 2")
        );
    }

    /// Files of b1d9723: before regimes were made of a run's own probes.
    #[test]
    fn files_of_format_1_are_read_and_shown() {
        for (file, bench, cells) in [
            (include_str!("../tests/format-1/verbs.jsonl"), "verbs", 5),
            (include_str!("../tests/format-1/rpc.jsonl"), "rpc", 8),
            (include_str!("../tests/format-1/kv-rows.jsonl"), "kv", 76),
        ] {
            let results = Results::read(file.as_bytes()).unwrap();
            assert_eq!((results.header.format, results.header.bench.as_str()), (1, bench));
            assert_eq!(results.rows.len(), cells, "{bench}");
            assert!(results.rows.iter().all(|row| row.line_ns.is_none() && row.summary.runs > 0));
            let mut text = Vec::new();
            results.report(false).write_text(&mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(
                text.contains(&results.rows[0].regime) && text.contains(&results.rows[0].cell),
                "{text}"
            );
            assert!(results.report(false).page().ends_with("</html>\n"));
        }
    }

    #[test]
    fn one_table_has_all_and_the_paces_are_there_on_request() {
        let text = |by_pace| {
            let mut bytes = Vec::new();
            results().report(by_pace).write_text(&mut bytes).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        let all = text(false);
        let by_pace = text(true);
        assert!(all.contains("results\n") && !all.contains("pace: line"), "{all}");
        assert!(all.contains("the machine's pace changed by a factor of 5.3"), "{all}");
        assert!(all.contains("aim: "), "{all}");
        for title in ["pace: line 100 ns", "pace: line 500 ns"] {
            assert!(by_pace.contains(title) && !by_pace.contains("results\n"), "{by_pace}");
        }
        let page = results().report(false).page();
        assert!(page.contains("<summary><h2>pace: line 100 ns</h2></summary>"), "{page}");
    }
}
