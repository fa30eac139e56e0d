//! One sample: how much is done, and what came of it.

use std::path::PathBuf;

use measure::results::PerBatch;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Round trips or calls per reading of the clock.
pub(crate) const BATCH: u64 = 50;

/// Tells the initiator that it may begin.
pub type Ready<'a> = &'a mut dyn FnMut() -> Result<(), Error>;

/// One sample: both sides get the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplePlan {
    /// Messages, calls or operations that are timed.
    pub count: u64,
    /// Different for every sample, not 0, below 2³¹: seeds the patterns and the sequence numbers.
    pub number: u64,
    /// A folder of this run, where a server makes its socket.
    pub folder: PathBuf,
    /// Cores for further processes; the responder has its own to itself if there are others.
    pub cores: Vec<usize>,
}

impl SamplePlan {
    /// Messages per reading of the clock: a part of all, or all if they are few.
    pub(crate) fn batch(&self) -> u64 {
        self.count.clamp(1, BATCH)
    }

    /// Sequence number of message `index`: never repeated within a run, never 0.
    pub(crate) fn sequence(&self, index: u64) -> u64 {
        self.number << 32 | index
    }
}

/// What the initiator measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// In the unit of the cell's metric.
    pub value: f64,
    /// Of cells that make calls in batches.
    pub per_batch: Option<PerBatch>,
}

impl From<f64> for Measured {
    fn from(value: f64) -> Self {
        Self { value, per_batch: None }
    }
}
