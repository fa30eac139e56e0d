//! Results: what was measured, and the file of JSON lines that says so.
//!
//! The first line of a file holds the circumstances, each other line one number of one cell in one regime.
//! Files of format 1 name regimes by thresholds in ns (`near`, `far`, `twin`); they are read as they are.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

pub use crate::{
    header::{FORMAT, Header},
    schedule::PerBatch,
};
use crate::{
    number::{self, number},
    regime::{Regime, Regimes},
    report::{
        Block, Report, ReportSection,
        chart::{self, Bar},
    },
    schedule::Sample,
    stats::Summary,
    table::Table,
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
    /// Cache lines that one operation moves between the cores, as designed; `None` where lines are
    /// not what it costs.
    pub lines: Option<f64>,
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
    /// This median over that of `vs` in the same regime.
    pub ratio: Option<f64>,
    /// The machine's limit, if the cell is compared with that too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<String>,
    /// This median over that of `floor` in the same regime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_ratio: Option<f64>,
    /// Messages per batch, of cells that make calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_batch: Option<PerBatch>,
    /// Cache lines that one operation moves, as designed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<f64>,
}

impl Row {
    /// Time per operation over the round trip of two cache lines. `None` of bandwidths, and where that round
    /// trip is not known.
    #[must_use]
    pub fn line_ratio(&self) -> Option<f64> {
        let ns = match self.unit.as_str() {
            "ns" => self.summary.median,
            "M/s" => 1e3 / self.summary.median,
            _ => return None,
        };
        Some(ns / self.line_ns?)
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
    /// The aim, and for each regime whether it is met or missed; or that the cell was not measured.
    #[must_use]
    pub fn note(&self, rows: &[Row]) -> String {
        let Self { cell, text, goal } = self;
        let (limit, is_least) = match *goal {
            Goal::AtMost(limit) | Goal::LinesAtMost(limit) => (limit, false),
            Goal::AtLeast(limit) => (limit, true),
        };
        let mut note = format!("aim: {text} {limit}");
        let without_verdict = note.len();
        for row in rows.iter().filter(|row| row.cell == *cell) {
            let found =
                if matches!(goal, Goal::LinesAtMost(_)) { row.line_ratio() } else { row.ratio };
            let Some(found) = found else { continue };
            let is_met = if is_least { found >= limit } else { found <= limit };
            let verdict = if is_met { "met" } else { "missed" };
            note += &format!("; {}: {found:.2}, {verdict}", row.regime);
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
    /// By regime, then in the order of the cells.
    pub rows: Vec<Row>,
    /// Samples whose probes disagreed.
    pub dropped: usize,
    /// Samples taken.
    pub taken: usize,
    /// Other facts, one sentence each.
    pub notes: Vec<String>,
}

/// The first line of a file.
#[derive(Serialize, Deserialize)]
struct FirstLine {
    #[serde(flatten)]
    header: Header,
    #[serde(default)]
    dropped: usize,
    #[serde(default)]
    taken: usize,
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
        let regimes = Regimes::of(samples.iter().map(|sample| sample.probes));
        let filed = samples.iter().map(|sample| (regimes.regime(Some(sample.probes)), sample));
        let filed = filed.collect::<Vec<_>>();
        let rows = regimes.iter().flat_map(|regime| {
            let of_regime = filed.iter().filter(|(other, _)| *other == regime);
            let of_regime = of_regime.map(|(_, sample)| *sample).collect::<Vec<_>>();
            rows_of(&header.bench, regime, cells, &of_regime)
        });
        let rows = rows.collect::<Vec<_>>();
        let dropped = filed.iter().filter(|(regime, _)| *regime == Regime::Moved).count();
        let notes = aims.iter().map(|aim| aim.note(&rows)).collect();
        Self { header, rows, dropped, taken: samples.len(), notes }
    }

    /// Writes the header and every row, one JSON object per line.
    ///
    /// # Errors
    ///
    /// Of `to`.
    pub fn write_json(&self, to: &mut dyn Write) -> io::Result<()> {
        let Self { header, rows, dropped, taken, notes } = self;
        let (header, notes) = (Header { format: FORMAT, ..header.clone() }, notes.clone());
        let first = FirstLine { header, dropped: *dropped, taken: *taken, notes };
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
        let FirstLine { header, dropped, taken, notes } = first;
        Ok(Self { header, rows, dropped, taken, notes })
    }

    /// One table per regime with a chart per metric, and the circumstances.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut report = Report::new(&self.header);
        for rows in self.rows.chunk_by(|a, b| (&a.regime, a.line_ns) == (&b.regime, b.line_ns)) {
            let mut section = ReportSection::new(format!("regime: {}", rows[0].regime));
            section.blocks = charts(rows);
            section.blocks.push(Block::Table(table(rows)));
            report.sections.push(section);
        }
        if self.taken > 0 {
            report.notes.push(self.filing());
        }
        report.notes.extend(self.notes.iter().cloned());
        report
    }

    fn filing(&self) -> String {
        let Self { taken, dropped, .. } = self;
        let hint = if dropped == taken {
            "; nothing is left: run again when the machine is quieter, or with other --cpus"
        } else {
            ""
        };
        format!("{dropped} of {taken} samples dropped: the probes around them disagreed{hint}")
    }
}

fn rows_of(bench: &str, regime: Regime, cells: &[Cell], samples: &[&Sample]) -> Vec<Row> {
    let of_cell = |index: usize| samples.iter().filter(move |sample| sample.cell == index);
    let summary_of =
        |index: usize| Summary::of(&of_cell(index).map(|sample| sample.value).collect::<Vec<_>>());
    let row = |(index, cell): (usize, &Cell)| {
        let summary = summary_of(index)?;
        let over = |reference: Option<&str>| {
            let index = cells.iter().position(|cell| Some(cell.name.as_str()) == reference)?;
            Some(summary.median / summary_of(index)?.median)
        };
        let batches = of_cell(index).filter_map(|sample| sample.per_batch).collect::<Vec<_>>();
        let mean =
            |of: fn(&PerBatch) -> f64| batches.iter().map(of).sum::<f64>() / batches.len() as f64;
        Some(Row {
            bench: bench.to_owned(),
            cell: cell.name.clone(),
            regime: regime.to_string(),
            line_ns: regime.line_ns(),
            metric: cell.metric.name().to_owned(),
            unit: cell.metric.unit().to_owned(),
            summary,
            vs: cell.versus.clone(),
            ratio: over(cell.versus.as_deref()),
            floor: cell.floor.clone(),
            floor_ratio: over(cell.floor.as_deref()),
            per_batch: (!batches.is_empty())
                .then(|| PerBatch { calls: mean(|m| m.calls), answers: mean(|m| m.answers) }),
            lines: cell.lines,
        })
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

fn table(rows: &[Row]) -> Table {
    let has_floor = rows.iter().any(|row| row.floor.is_some());
    let has_calls = rows.iter().any(|row| row.per_batch.is_some());
    let mut head =
        vec!["cell", "metric", "unit", "vs", "median", "min", "max", "runs", "lines", "ratio"];
    if has_floor {
        head.push("of the limit");
    }
    if has_calls {
        head.extend(["calls/batch", "answers/batch"]);
    }
    let mut table = Table::new(4, head);
    for row in rows {
        let Summary { median, min, max, runs } = row.summary;
        let vs = row.vs.clone().unwrap_or_default();
        let mut fields = vec![row.cell.clone(), row.metric.clone(), row.unit.clone(), vs];
        fields.extend([median, min, max].map(number));
        fields.push(runs.to_string());
        fields.push(row.lines.map(number).unwrap_or_default());
        fields.push(number::ratio(row.ratio));
        if has_floor {
            fields.push(number::ratio(row.floor_ratio));
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
    use crate::regime::Probes;

    fn header() -> Header {
        Header {
            format: FORMAT,
            bench: "test".into(),
            command: "copyrpc bench test".into(),
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

    fn sample(cell: usize, line_ns: f64, value: f64) -> Sample {
        let probes = Probes { before_ns: line_ns, after_ns: line_ns };
        Sample { cell, probes, value, per_batch: None }
    }

    fn cell(name: &str, metric: Metric, versus: Option<&str>) -> Cell {
        let versus = versus.map(Into::into);
        Cell { name: name.into(), metric, versus, floor: None, lines: Some(2.0) }
    }

    /// A limit with samples of two paces, and a cell that has one of the second and one dropped.
    fn results() -> Results {
        let cells = [
            cell("limit", Metric::RoundTrip, None),
            cell("send", Metric::RoundTrip, Some("limit")),
        ];
        let moved = Probes { before_ns: 100.0, after_ns: 500.0 };
        let samples = [
            sample(0, 100.0, 100.0),
            sample(0, 105.0, 120.0),
            sample(0, 500.0, 500.0),
            sample(1, 95.0, 220.0),
            sample(1, 500.0, 750.0),
            Sample { probes: moved, ..sample(1, 0.0, 1e9) },
        ];
        let aim = Aim {
            cell: "send",
            text: "a send takes at most x the limit:",
            goal: Goal::AtMost(1.6),
        };
        Results::new(header(), &cells, &samples, &[aim])
    }

    #[test]
    fn ratios_compare_medians_of_one_regime() {
        let results = results();
        let ratios = results.rows.iter().map(|row| (row.regime.as_str(), row.ratio));
        assert_eq!(
            ratios.collect::<Vec<_>>(),
            [
                ("line 100 ns", None),
                ("line 100 ns", Some(2.0)),
                ("line 500 ns", None),
                ("line 500 ns", Some(1.5)),
            ]
        );
        assert_eq!((results.dropped, results.taken), (1, 6));
        assert_eq!(results.rows[0].line_ns, Some(100.0));
    }

    #[test]
    fn a_reference_without_samples_in_the_regime_gives_no_ratio() {
        let cells = [cell("limit", Metric::Rate, None), cell("send", Metric::Rate, Some("limit"))];
        let samples = [sample(0, 100.0, 10.0), sample(1, 500.0, 2.0)];
        let results = Results::new(header(), &cells, &samples, &[]);
        assert_eq!(results.rows[1].vs.as_deref(), Some("limit"));
        assert_eq!(results.rows[1].ratio, None);
    }

    #[test]
    fn aims_are_ratios_and_say_in_which_regime_they_are_met() {
        let note = &results().notes[0];
        assert!(note.contains("line 100 ns: 2.00, missed; line 500 ns: 1.50, met"), "{note}");
        let rows = [
            Row { cell: "r".into(), unit: "M/s".into(), line_ns: Some(100.0), ..Row::default() },
            Row { cell: "b".into(), unit: "GiB/s".into(), ratio: Some(0.9), ..Row::default() },
        ]
        .map(|row| Row { summary: Summary::of(&[20.0]).unwrap(), ..row });
        let aim = |cell, goal| Aim { cell, text: "x", goal }.note(&rows);
        assert_eq!(aim("r", Goal::LinesAtMost(0.6)), "aim: x 0.6; : 0.50, met");
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
        assert_eq!(rows.len(), 4);
        let mut keys = rows[1].as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>();
        let mut expected = [
            "bench", "cell", "metric", "unit", "median", "min", "max", "runs", "vs", "ratio",
            "regime", "line_ns", "lines",
        ];
        expected.sort_unstable();
        keys.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(
            (&rows[1]["metric"], &rows[1]["regime"]),
            (&"round-trip".into(), &"line 100 ns".into())
        );
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
        let later = String::from_utf8(bytes).unwrap().replace("\"format\":2", "\"format\":9");
        assert!(refused(&later).contains("format 9"));
        assert!(
            refused(&(later.lines().next().unwrap().replace(":9", ":2") + "\n{"))
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
            results.report().write_text(&mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(
                text.contains(&results.rows[0].regime) && text.contains(&results.rows[0].cell),
                "{text}"
            );
            assert!(results.report().page().ends_with("</html>\n"));
        }
    }

    #[test]
    fn tables_show_each_regime_and_what_was_dropped() {
        let mut bytes = Vec::new();
        results().report().write_text(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        for expected in
            ["regime: line 100 ns", "regime: line 500 ns", "1 of 6 samples dropped", "aim: "]
        {
            assert!(text.contains(expected), "{expected:?} in\n{text}");
        }
    }
}
