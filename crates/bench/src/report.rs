//! Results: a table for people and JSON lines for programs.

use std::io::{self, Write};

use comfy_table::{CellAlignment, LineStyle, Table, presets};
use serde::{Deserialize, Serialize};

use crate::{regime::Regime, schedule::Filed, stats::Summary, workers::Merging};

/// What a cell's number means.
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

    fn name(self) -> &'static str {
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
    /// What its number means.
    pub metric: Metric,
    /// The cell that it is compared with.
    pub versus: Option<String>,
    /// What the machine can do without a NIC, if the cell is compared with that too.
    pub floor: Option<String>,
    /// Cache lines that one operation moves between the cores, as designed; `None` where lines are
    /// not what it costs.
    pub lines: Option<f64>,
}

/// Under which circumstances the numbers were taken: the first JSON line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Name of the benchmark.
    pub bench: String,
    /// How it was called.
    pub command: String,
    /// Version of this program.
    pub version: String,
    /// Commit it was built from, or "unknown".
    pub commit: String,
    /// `debug` or `release`.
    pub profile: String,
    /// Model of the CPU.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The two cores that measured: initiator, responder.
    pub pinning: String,
    /// Kernel release.
    pub kernel: String,
    /// Name of the NIC; "none" if only memory was measured.
    pub nic: String,
    /// When it began, UTC.
    pub date: String,
}

/// One cell in one regime: a JSON line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the benchmark.
    pub bench: String,
    /// Name of the cell.
    pub cell: String,
    /// When it was taken.
    pub regime: Regime,
    /// What the number means.
    pub metric: Metric,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<String>,
    /// This median over that of `floor` in the same regime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor_ratio: Option<f64>,
    /// Messages per batch, of cells that make calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_batch: Option<Merging>,
    /// Cache lines that one operation moves, as designed.
    pub lines: Option<f64>,
}

/// Everything that one run found.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Circumstances.
    pub header: Header,
    /// By regime, then in the order of the cells.
    pub rows: Vec<Row>,
    /// Samples whose probes disagreed or told neither regime.
    pub dropped: usize,
    /// Samples taken.
    pub taken: usize,
    /// What to compare the numbers with, one sentence each.
    pub notes: Vec<String>,
}

impl Report {
    /// Reduces the samples of `cells`.
    #[must_use]
    pub fn new(header: Header, cells: &[Cell], filed: &[Filed], notes: Vec<String>) -> Self {
        let rows = Regime::KEPT
            .iter()
            .flat_map(|&regime| rows_of(&header.bench, regime, cells, filed))
            .collect::<Vec<_>>();
        let dropped = filed.iter().map(Filed::dropped).sum();
        let taken = dropped + rows.iter().map(|row| row.summary.runs).sum::<usize>();
        Self { header, rows, dropped, taken, notes }
    }

    /// Writes the header and every row, one JSON object per line.
    ///
    /// # Errors
    ///
    /// Of `to`.
    pub fn write_json(&self, to: &mut impl Write) -> io::Result<()> {
        writeln!(to, "{}", serde_json::to_string(&self.header)?)?;
        for row in &self.rows {
            writeln!(to, "{}", serde_json::to_string(row)?)?;
        }
        Ok(())
    }

    /// Writes one table per regime, and the circumstances.
    ///
    /// # Errors
    ///
    /// Of `to`.
    pub fn write_tables(&self, to: &mut impl Write) -> io::Result<()> {
        let Header { bench, nic, cpu, cores, pinning, kernel, commit, profile, date, .. } =
            &self.header;
        writeln!(to, "{bench}: NIC {nic}, {cpu}, {cores} cores, pinned to {pinning}")?;
        writeln!(to, "kernel {kernel}, commit {commit}, {profile} build, {date}")?;
        for regime in Regime::KEPT {
            let rows = self.rows.iter().filter(|row| row.regime == regime).collect::<Vec<_>>();
            if !rows.is_empty() {
                writeln!(to, "\nregime: {regime}\n{}", table(&rows).trim_fmt())?;
            }
        }
        writeln!(to, "\n{}", self.filing())?;
        self.notes.iter().try_for_each(|note| writeln!(to, "{note}"))
    }

    fn filing(&self) -> String {
        let Self { taken, dropped, .. } = self;
        let hint = if dropped == taken {
            "; nothing is left: run again when the machine is quieter, or with other --cpus"
        } else {
            ""
        };
        format!(
            "{dropped} of {taken} samples dropped: the probes around them disagreed, or were \
             of no regime{hint}"
        )
    }
}

fn rows_of(bench: &str, regime: Regime, cells: &[Cell], filed: &[Filed]) -> Vec<Row> {
    let summary_of = |name: &str| {
        let index = cells.iter().position(|cell| cell.name == name)?;
        Summary::of(filed[index].samples(regime))
    };
    let row = |(cell, filed): (&Cell, &Filed)| {
        let summary = Summary::of(filed.samples(regime))?;
        let over = |reference: Option<&str>| {
            let reference: Summary = reference.and_then(summary_of)?;
            Some(summary.median / reference.median)
        };
        Some(Row {
            bench: bench.to_owned(),
            cell: cell.name.clone(),
            regime,
            metric: cell.metric,
            unit: cell.metric.unit().to_owned(),
            summary,
            vs: cell.versus.clone(),
            ratio: over(cell.versus.as_deref()),
            floor: cell.floor.clone(),
            floor_ratio: over(cell.floor.as_deref()),
            per_batch: filed.merging(regime),
            lines: cell.lines,
        })
    };
    cells.iter().zip(filed).filter_map(row).collect()
}

fn table(rows: &[&Row]) -> Table {
    let has_floor = rows.iter().any(|row| row.floor.is_some());
    let has_calls = rows.iter().any(|row| row.per_batch.is_some());
    let mut table = Table::new();
    table.load_style(presets::NOTHING.header_separator(LineStyle::none().fill('-')));
    let mut header =
        vec!["cell", "metric", "median", "min", "max", "runs", "unit", "lines", "vs", "ratio"];
    if has_floor {
        header.push("of the limit");
    }
    if has_calls {
        header.extend(["calls/batch", "answers/batch"]);
    }
    table.set_header(header);
    for row in rows {
        let mut cells = cells(row);
        if has_floor {
            cells.push(ratio(row.floor_ratio));
        }
        if has_calls {
            cells.extend(merging(row));
        }
        table.add_row(cells);
    }
    for right_aligned in [2, 3, 4, 5, 7, 9, 10, 11, 12] {
        if let Some(column) = table.column_mut(right_aligned) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn cells(row: &Row) -> Vec<String> {
    let Summary { median, min, max, runs } = row.summary;
    vec![
        row.cell.clone(),
        row.metric.name().to_owned(),
        number(median),
        number(min),
        number(max),
        runs.to_string(),
        row.unit.clone(),
        row.lines.map(number).unwrap_or_default(),
        row.vs.clone().unwrap_or_default(),
        ratio(row.ratio),
    ]
}

fn merging(row: &Row) -> [String; 2] {
    let batches = |of: fn(Merging) -> f64| row.per_batch.map(of).map(number).unwrap_or_default();
    [batches(|m| m.calls), batches(|m| m.answers)]
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
}

/// A number for a table: two digits or more, so that what is small does not read as nothing.
#[must_use]
pub fn number(value: f64) -> String {
    match value {
        v if v > 0.0 && v < 0.1 => format!("{v:.4}"),
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 1000.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::Value;

    use super::*;

    pub(crate) fn header() -> Header {
        Header {
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

    /// A limit with near and far samples, and a cell that was far only once and dropped once.
    fn report() -> Report {
        let limit = Cell {
            name: "limit".into(),
            metric: Metric::RoundTrip,
            versus: None,
            floor: None,
            lines: Some(2.0),
        };
        let cell = Cell { name: "send".into(), versus: Some("limit".into()), ..limit.clone() };
        let mut filed = [Filed::default(), Filed::default()];
        for (cell, regime, sample) in [
            (0, Regime::Near, 100.0),
            (0, Regime::Near, 120.0),
            (0, Regime::Far, 500.0),
            (1, Regime::Near, 220.0),
            (1, Regime::Far, 750.0),
            (1, Regime::Mixed, 1e9),
        ] {
            filed[cell].file(regime, sample);
        }
        Report::new(header(), &[limit, cell], &filed, vec!["aim: 2x".into()])
    }

    #[test]
    fn ratios_compare_medians_of_one_regime() {
        let report = report();
        let ratios = report.rows.iter().map(|row| (row.regime, row.ratio)).collect::<Vec<_>>();
        assert_eq!(
            ratios,
            [
                (Regime::Near, None),
                (Regime::Near, Some(2.0)),
                (Regime::Far, None),
                (Regime::Far, Some(1.5)),
            ]
        );
        assert_eq!((report.dropped, report.taken), (1, 6));
    }

    #[test]
    fn a_reference_without_samples_in_the_regime_gives_no_ratio() {
        let cell = |name: &str, versus: Option<&str>| Cell {
            name: name.into(),
            metric: Metric::Rate,
            versus: versus.map(Into::into),
            floor: None,
            lines: None,
        };
        let cells = [cell("limit", None), cell("send", Some("limit"))];
        let mut filed = [Filed::default(), Filed::default()];
        filed[0].file(Regime::Near, 10.0);
        filed[1].file(Regime::Far, 2.0);
        let report = Report::new(header(), &cells, &filed, Vec::new());
        assert_eq!(report.rows[1].vs.as_deref(), Some("limit"));
        assert_eq!(report.rows[1].ratio, None);
    }

    #[test]
    fn json_has_a_header_and_one_flat_object_per_row() {
        let mut bytes = Vec::new();
        report().write_json(&mut bytes).unwrap();
        let lines = String::from_utf8(bytes).unwrap();
        let mut lines = lines.lines();
        let read: Header = serde_json::from_str(lines.next().unwrap()).unwrap();
        assert_eq!(read, header());
        let rows = lines.map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
        assert_eq!(rows.len(), 4);
        let keys = rows[1].as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>();
        let mut expected = [
            "bench", "cell", "metric", "unit", "median", "min", "max", "runs", "vs", "ratio",
            "regime", "lines",
        ];
        expected.sort_unstable();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected);
        assert_eq!(rows[1]["metric"], "round-trip");
        assert_eq!(rows[1]["regime"], "near");
        assert_eq!(rows[1]["median"], 220.0);
        assert_eq!((&rows[0]["ratio"], &rows[0]["lines"]), (&Value::Null, &2.0.into()));
    }

    #[test]
    fn small_numbers_do_not_read_as_nothing() {
        let shown = [0.0, 0.0042, 0.0999, 0.1, 9.99, 10.0, 1234.5].map(number);
        assert_eq!(shown, ["0.00", "0.0042", "0.0999", "0.10", "9.99", "10.0", "1234"]);
    }

    #[test]
    fn tables_show_each_regime_and_what_was_dropped() {
        let mut bytes = Vec::new();
        report().write_tables(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        for expected in ["regime: near", "regime: far", "1 of 6 samples dropped", "aim: 2x"] {
            assert!(text.contains(expected), "{expected:?} in\n{text}");
        }
    }
}
