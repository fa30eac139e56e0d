//! What runs found, and what becomes of it: a file of records, and everything that is computed from
//! that file alone.
//!
//! ```text
//! job ──▶ RunRecord … ──▶ Results ──▶ cells ──▶ table, Markdown, CSV, JSON lines, HTML report
//!                            │
//!                            └ result.jsonl: header, then one record per run; read again by `compare`
//! ```

mod cells;
mod compare;
mod costs;
mod csv;
mod flat;
mod markdown;
mod measured;
#[cfg(feature = "parquet")]
mod parquet;
mod reduce;
mod store;
mod table;

use serde::{Deserialize, Serialize};

pub use cells::{Row, rows, write_rows};
pub use compare::{CompareError, Comparison, Comparisons, Interval, compare};
pub(crate) use costs::{HEADINGS as COST_NAMES, MEANING as COST_MEANING, costs};
pub use csv::write_csv;
pub use markdown::write_markdown;
pub use measured::{Latency, Measured, SideRecord};
#[cfg(feature = "parquet")]
pub use parquet::{ParquetError, write_parquet};
#[cfg(test)]
pub(crate) use reduce::samples;
pub use reduce::{Cell, LatencySummary, SideCell, name_of, nic_parts, reduce};
pub(crate) use reduce::{system_parts, workload_parts};
pub use store::{LoadError, load, save};
pub use table::write_table;

use crate::job::Config;
use bench::regime::Regime;

/// Version of the file format; another one is refused.
pub const FORMAT: u32 = 1;

/// Under which circumstances the numbers were taken: the first line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// As every benchmark writes it; `bench` is "kv".
    #[serde(flatten)]
    pub run: bench::report::Header,
}

/// How far apart two cores are, around a run; in ns of a two-line round trip.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Before.
    pub before_ns: f64,
    /// After.
    pub after_ns: f64,
}

impl Placement {
    /// What both say.
    #[must_use]
    pub fn regime(&self) -> Regime {
        Regime::between(self.before_ns, self.after_ns)
    }
}

/// One run: a line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// What was run.
    pub config: Config,
    /// Which repetition, from 0.
    pub run: u32,
    /// `None`: the machine has no two cores.
    pub placement: Option<Placement>,
    /// What was found.
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
