//! Samples of all peers, filed and shown as every benchmark of this project does it.

use measure::{
    cores::Cores,
    machine,
    regime::Probes,
    results::{Cell, FORMAT, Header, Metric, Results},
    schedule::Sample,
};

use crate::Fallible;

/// All that was measured.
#[derive(Default)]
pub struct Measurements {
    cells: Vec<Cell>,
    samples: Vec<Sample>,
    notes: Vec<String>,
}

impl Measurements {
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
            self.cells.push(Cell { name, metric, versus, floor: None, lines: None });
            self.cells.len() - 1
        });
        self.samples.push(Sample { cell, probes, value, per_batch: None });
    }

    /// Adds what the numbers do not tell, once.
    pub fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Prints a table per regime.
    pub fn show(self, cores: Cores, rounds: usize) -> Fallible<()> {
        let header = Header {
            format: FORMAT,
            bench: "compare".into(),
            command: format!("{rounds} rounds"),
            version: env!("CARGO_PKG_VERSION").into(),
            commit: "unknown".into(),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
            cpu: machine::cpu_model(),
            cores: std::thread::available_parallelism()?.get(),
            pinning: cores.to_string(),
            kernel: machine::kernel(),
            nic: "none".into(),
            date: machine::date(),
        };
        let mut results = Results::new(header, &self.cells, &self.samples, &[]);
        results.notes = self.notes;
        Ok(results.report().write_text(&mut std::io::stdout().lock())?)
    }
}
