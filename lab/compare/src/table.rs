//! Samples of all peers, filed and shown as every benchmark of this project does it.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
};

use copyrpc_os::machine;
use indicatif::{ProgressBar, ProgressStyle};
use measure::{
    cores::Cores,
    date,
    regime::Probes,
    results::{Cell, FORMAT, Header, Metric, Results},
    schedule::Sample,
};

use crate::Fallible;

/// All that was measured.
pub struct Measurements {
    cells: Vec<Cell>,
    samples: Vec<Sample>,
    notes: Vec<String>,
    /// Rounds that have begun.
    round: usize,
    /// On standard error, if that is a terminal.
    progress: ProgressBar,
    /// Cores that this process may use before it is pinned to one.
    cores: usize,
}

impl Default for Measurements {
    fn default() -> Self {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        let progress = ProgressBar::new(0).with_style(style);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cells: Vec::new(),
            samples: Vec::new(),
            notes: Vec::new(),
            round: 0,
            progress,
            cores,
        }
    }
}

impl Measurements {
    /// So many rounds of cells are to come.
    pub fn expect(&self, rounds: usize) {
        self.progress.inc_length(rounds as u64);
    }

    /// A round of a cell begins. Its number gives the order in which peers take their turns.
    pub fn begin(&mut self, cell: &str) -> usize {
        self.round += 1;
        self.progress.set_message(cell.to_owned());
        self.progress.inc(1);
        self.round
    }

    /// Adds a sample of `peer` at `work`, which is compared with `reference` at the same work.
    pub fn add(
        &mut self,
        (work, peer, reference): (&str, &str, &str),
        metric: Metric,
        probes: Probes,
        value: f64,
    ) {
        let name = format!("{work}/{peer}");
        let known = self.cells.iter().position(|cell| cell.name == name);
        let cell = known.unwrap_or_else(|| {
            let versus = (peer != reference).then(|| format!("{work}/{reference}"));
            self.cells.push(Cell {
                name,
                metric,
                versus,
                floor: None,
                lines: None,
                reference: None,
            });
            self.cells.len() - 1
        });
        self.samples.push(Sample { cell, round: self.round, probes, value, per_batch: None });
    }

    /// Adds what the numbers do not tell, once.
    pub fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Prints one table, or one for each pace of the machine, and writes a file for programs.
    pub fn show(self, cores: Cores, json: Option<File>, by_pace: bool) -> Fallible<()> {
        self.progress.finish_and_clear();
        let header = Header {
            format: FORMAT,
            bench: "compare".into(),
            command: command_line(),
            version: env!("CARGO_PKG_VERSION").into(),
            commit: env!("BUILD_COMMIT").into(),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
            cpu: machine::cpu_model(),
            cores: self.cores,
            pinning: cores.to_string(),
            kernel: machine::kernel(),
            nic: "none".into(),
            date: date::now(),
        };
        let mut results = Results::new(header, &self.cells, &self.samples, &[]);
        results.notes = self.notes;
        if let Some(file) = json {
            let mut file = BufWriter::new(file);
            let written = results.write_json(&mut file).and_then(|()| file.flush());
            written.map_err(|error| format!("cannot write the JSON file: {error}"))?;
        }
        Ok(results.report(by_pace).write_text(&mut std::io::stdout().lock())?)
    }
}

fn command_line() -> String {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    format!("compare {}", arguments.join(" "))
}
