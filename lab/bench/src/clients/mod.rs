//! The forms in which a client can be written, beside each other in one run.
//!
//! ```text
//! this process                                        a process of each row
//!   node 0: daemon, provider (`serve`) ◀── here ────┐   blocking, typed, tokio, c, python: one call at a time
//!      ║                                            ├── pipeline, tokio, c, python: so many in flight
//!   node 1: daemon, provider (`serve`) ◀── there ───┘
//! ```
//!
//! Every client does the same work (module `registers`) and checks every byte of every answer. Between samples it waits for a
//! line of standard input, so that one client calls at a time.

mod nodes;
mod process;
mod registers;
mod rust_clients;

use std::{ffi::OsString, io, time::Duration};

use measure::{
    cores::{Cores, CoresError},
    ping_pong::{self, PROBE_WINDOW, ThreadsError},
    results::{Cell, Metric},
    schedule::Experiment,
    shared_words::{SharedWords, SharedWordsError},
};

use self::{
    nodes::Nodes,
    process::{ClientProcess, Programs},
    registers::KEYS,
};
pub use self::{nodes::NodesError, rust_clients::ClientError, rust_clients::run};

/// Calls in flight of the rows that have several.
const IN_FLIGHT: u64 = 16;
/// Calls of the first look at how long they take.
const FIRST_CALLS: u64 = 64;
/// A look that takes this part of a sample says enough.
const LOOK_PART: u32 = 8;

/// The form of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `Client::call`, in Rust.
    Blocking,
    /// `Pipeline`, in Rust: the fastest.
    Pipeline,
    /// The client that `service!` makes, in Rust.
    Typed,
    /// `TokioClient`, in Rust, awaited on one thread.
    Tokio,
    /// C: `copyrpc_client_call`, or a pipeline.
    C,
    /// Python: `Client`, or `AsyncClient`.
    Python,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Blocking, Self::Pipeline, Self::Typed, Self::Tokio, Self::C, Self::Python];
    /// Those with one call at a time; the first is what the others are compared with.
    const ONE: [Self; 5] = [Self::Blocking, Self::Typed, Self::Tokio, Self::C, Self::Python];
    /// Those with several in flight, likewise.
    const SEVERAL: [Self; 4] = [Self::Pipeline, Self::Tokio, Self::C, Self::Python];

    /// In rows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Pipeline => "pipeline",
            Self::Typed => "typed",
            Self::Tokio => "tokio",
            Self::C => "c",
            Self::Python => "python",
        }
    }
}

/// Why a run ends without numbers.
#[derive(Debug, thiserror::Error)]
pub enum ClientsError {
    /// There is nobody to call.
    #[error(transparent)]
    Nodes(#[from] NodesError),
    /// Without two cores there is no pace to know.
    #[error(transparent)]
    Cores(#[from] CoresError),
    /// There is no memory for the probe of the pace.
    #[error(transparent)]
    Words(#[from] SharedWordsError),
    /// The pace is not known.
    #[error(transparent)]
    Probe(#[from] ThreadsError),
    /// A process does not start.
    #[error("cannot start a client: {0}")]
    Start(#[source] io::Error),
    /// A form that this machine cannot run.
    #[error("no client `{}`: {reason}", form.name())]
    Absent {
        /// The form.
        form: Form,
        /// The tool or the library that is missing.
        reason: String,
    },
    /// A client failed, or had a wrong answer.
    #[error("{name}: {cause}")]
    Client {
        /// Name of its row.
        name: String,
        /// In words; its last ones, if it said some.
        cause: String,
    },
}

/// A row.
#[derive(Clone, Debug)]
struct Row {
    cell: Cell,
    form: Form,
    rank: u32,
    in_flight: u64,
}

/// All rows, in order.
fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (rank, place) in ["here", "there"].into_iter().enumerate() {
        let rank = u32::from(rank == 1);
        for (forms, group, metric, in_flight) in [
            (&Form::ONE[..], "one", Metric::RoundTrip, 1),
            (&Form::SEVERAL[..], "in-flight-16", Metric::Rate, IN_FLIGHT),
        ] {
            let name = |form: &Form| format!("{place}/{group}/{}", form.name());
            rows.extend(forms.iter().map(|form| {
                let versus = (*form != forms[0]).then(|| name(&forms[0]));
                let cell = Cell {
                    name: name(form),
                    metric,
                    versus,
                    floor: None,
                    lines: None,
                    reference: None,
                };
                Row { cell, form: *form, rank, in_flight }
            }));
        }
    }
    rows
}

/// Nodes, and a client of each row.
#[derive(Debug)]
pub struct Clients {
    rows: Vec<Row>,
    processes: Vec<ClientProcess>,
    /// Calls of a sample, by row.
    counts: Vec<u64>,
    sample: Duration,
    cores: Cores,
    words: SharedWords,
    /// What cannot be measured here, one sentence each.
    pub absent: Vec<String>,
    /// They end after their clients.
    _nodes: Nodes,
}

impl Clients {
    /// Starts nodes, and those clients that can run here and whose name contains `part`. `this_program`: the words that
    /// lead this program to [`run`]. `wrong_every`: one answer in so many is wrong, to see whether clients notice.
    ///
    /// # Errors
    ///
    /// [`ClientsError`].
    pub fn start(
        this_program: Vec<OsString>,
        part: &str,
        sample: Duration,
        wrong_every: Option<u64>,
    ) -> Result<Self, ClientsError> {
        let cores = Cores::choose()?;
        let all = rows();
        let chosen = |row: &&Row| {
            let refers = |other: &Row| other.cell.versus.as_ref() == Some(&row.cell.name);
            let is_part = |row: &Row| row.cell.name.contains(part);
            is_part(row) || all.iter().any(|other| is_part(other) && refers(other))
        };
        let mut rows = all.iter().filter(chosen).cloned().collect::<Vec<_>>();
        let clients = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let nodes = Nodes::start(KEYS * clients.max(1), wrong_every)?;
        let programs = Programs::find(this_program, nodes.folder());
        let mut absent = Vec::new();
        for form in [Form::C, Form::Python] {
            let is_asked_for = rows.iter().any(|row| row.form == form);
            if let Some(reason) = programs.absence(form).filter(|_| is_asked_for) {
                absent.push(format!("no rows of {}: {reason}", form.name()));
                rows.retain(|row| row.form != form);
            }
        }
        let socket = nodes.socket()?;
        let mut processes = Vec::new();
        for (index, row) in (0..).zip(&rows) {
            let first_key = KEYS * index;
            let numbers = [row.rank.to_string(), first_key.to_string(), row.in_flight.to_string()];
            let mut arguments = vec![OsString::from(&socket)];
            arguments.extend(numbers.map(OsString::from));
            processes.push(ClientProcess::start(&programs, row.form, &row.cell.name, &arguments)?);
        }
        let counts = vec![FIRST_CALLS; rows.len()];
        let words = SharedWords::new()?;
        Ok(Self { rows, processes, counts, sample, cores, words, absent, _nodes: nodes })
    }

    /// The rows, in order.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        self.rows.iter().map(|row| row.cell.clone()).collect()
    }

    /// The cores of the probe. Clients and nodes run where the kernel puts them.
    #[must_use]
    pub fn cores(&self) -> Cores {
        self.cores
    }
}

impl Experiment for Clients {
    type Error = ClientsError;

    fn cells(&self) -> usize {
        self.rows.len()
    }

    fn prepare(&mut self, cell: usize) -> Result<(), ClientsError> {
        #[expect(clippy::cast_precision_loss, reason = "a time of less than a second")]
        let sample_ns = self.sample.as_nanos() as f64;
        let mut count = FIRST_CALLS;
        loop {
            let took_ns = self.processes[cell].call(count)?;
            if took_ns * f64::from(LOOK_PART) >= sample_ns {
                #[expect(clippy::cast_precision_loss, reason = "calls of less than a second")]
                let wanted = count as f64 * sample_ns / took_ns;
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "at least one, and at most eight times what was made"
                )]
                let wanted = wanted as u64;
                self.counts[cell] = wanted.max(FIRST_CALLS);
                return Ok(());
            }
            count *= 2;
        }
    }

    fn probe(&mut self) -> Result<f64, ClientsError> {
        Ok(ping_pong::between_threads(self.cores, &self.words, PROBE_WINDOW)?)
    }

    fn sample(&mut self, cell: usize) -> Result<f64, ClientsError> {
        let count = self.counts[cell];
        let took_ns = self.processes[cell].call(count)?;
        #[expect(clippy::cast_precision_loss, reason = "calls of less than a second")]
        let count = count as f64;
        Ok(match self.rows[cell].cell.metric {
            Metric::RoundTrip => took_ns / count,
            _ => count / took_ns * 1e3,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_compared_with_the_first_of_its_group() {
        let rows = rows();
        assert_eq!(rows.len(), 2 * (Form::ONE.len() + Form::SEVERAL.len()));
        for row in &rows {
            let Some(versus) = &row.cell.versus else { continue };
            let reference = rows.iter().find(|other| other.cell.name == *versus).unwrap();
            assert_eq!((reference.rank, reference.in_flight), (row.rank, row.in_flight));
            assert!(reference.cell.versus.is_none());
        }
    }
}
