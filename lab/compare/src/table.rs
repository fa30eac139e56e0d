//! Samples of all peers, filed and shown as every benchmark of this project does it.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    time::Instant,
};

use copyrpc_os::machine;
use measure::{
    cores::Cores,
    date,
    paired::TOLERANCE,
    progress::StepProgress,
    regime::Probes,
    results::{Cell, FORMAT, Header, Metric, Results, are_ratios_known},
    schedule::Sample,
};

use crate::{Fallible, plan::ComparisonPlan};

/// All that was measured.
pub struct Measurements {
    cells: Vec<Cell>,
    samples: Vec<Sample>,
    notes: Vec<String>,
    /// Rounds that have begun.
    round: usize,
    progress: StepProgress,
    /// Cores that this process may use before it is pinned to one.
    cores: usize,
}

impl Default for Measurements {
    fn default() -> Self {
        let progress = StepProgress::new("rounds", 0);
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
    /// Adds a cell for each of `peers` at `work`, in this order, which is that of the table.
    pub fn declare<'a>(
        &mut self,
        (work, reference): (&str, &str),
        metric: Metric,
        peers: impl IntoIterator<Item = &'a str>,
    ) {
        for peer in peers {
            self.cells.push(Cell {
                name: name_of(work, peer),
                metric,
                versus: (peer != reference).then(|| name_of(work, reference)),
                floor: None,
                lines: None,
                reference: None,
            });
        }
    }

    /// Takes rounds of all `works` as often as the plan says, and as the ratios of the cells from the one of index `first`
    /// on demand. `take` is told the index of a work and a number that gives the order in which peers take their turns.
    pub fn take_rounds(
        &mut self,
        (plan, begin): (&ComparisonPlan, Instant),
        works: &[String],
        first: usize,
        mut take: impl FnMut(usize, usize, &mut Self) -> Fallible<()>,
    ) -> Fallible<()> {
        self.progress.expect(plan.rounds.min() as usize * works.len());
        let mut done = 0;
        while plan.rounds.goes_on(done, begin.elapsed(), || self.is_known_from(first)) {
            done += 1;
            for (index, work) in works.iter().enumerate() {
                plan.go_on()?;
                self.round += 1;
                self.progress.step(work.as_str());
                take(index, self.round, self)?;
            }
        }
        Ok(())
    }

    /// Whether anything was measured.
    pub fn has_samples(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Cells so far.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    fn is_known_from(&self, first: usize) -> bool {
        let samples = self.samples.iter().filter_map(|sample| {
            let cell = sample.cell.checked_sub(first)?;
            Some(Sample { cell, ..*sample })
        });
        are_ratios_known(&self.cells[first..], &samples.collect::<Vec<_>>(), TOLERANCE)
    }

    /// Adds a sample of `peer` at `work`, both [declared](Self::declare).
    pub fn add(&mut self, work: &str, peer: &str, probes: Probes, value: f64) {
        let name = name_of(work, peer);
        let cell = self.cells.iter().position(|cell| cell.name == name);
        let Some(cell) = cell else { panic!("{name} was not declared") };
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
        drop(self.progress);
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

fn name_of(work: &str, peer: &str) -> String {
    format!("{work}/{peer}")
}

fn command_line() -> String {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    format!("compare {}", arguments.join(" "))
}
