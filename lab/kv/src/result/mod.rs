//! What runs found, and what becomes of it: a file of records, and everything that is computed from
//! that file alone.
//!
//! ```text
//! job ──▶ RunRecord … ──▶ Results ──▶ cells ──▶ report: for a terminal, for documents, a page; JSON lines
//!                            │
//!                            └ result.jsonl: header, then one record per run; read again by `compare`
//! ```

mod cells;
mod compare;
mod costs;
mod headline;
mod reduce;
mod report;
mod runs;
mod store;

use std::collections::BTreeMap;

use measure::{regime::Probes, results::Header};
use serde::{Deserialize, Serialize};

pub use cells::rows;
pub use compare::{CompareError, Comparison, Comparisons, Interval, compare};
pub(crate) use headline::Headline;
#[cfg(test)]
pub(crate) use reduce::samples;
pub use reduce::{
    LatencySummary, ReducedCell, SideCell, name_of, nic_parts, reduce, reduce_by_pace,
};
pub(crate) use reduce::{system_parts, workload_parts};
pub use report::{By, columns, curve, page, write_markdown, write_table};
pub use runs::{write_csv, write_series};
pub use store::{LoadError, load, save};

use crate::configuration::Config;
pub use crate::measured::{Latency, Measured, SideRecord};

/// One run: a line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Configuration that was run.
    pub config: Config,
    /// The round, from 0: contestants of one workload that have the same number were measured shortly after each
    /// other.
    pub run: u32,
    /// `None`: the machine has no two cores.
    pub placement: Option<Probes>,
    /// Calls per second in the trial before the first round, by the way to wait; empty if there was none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tried: BTreeMap<String, f64>,
    /// Version of the backend, if it is not part of this program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Measurements of the run.
    pub measured: Measured,
}

/// A whole file.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// Circumstances.
    pub header: Header,
    /// In the order in which they were made.
    pub runs: Vec<RunRecord>,
}
