//! WorkerCalls between two workers in two processes, generic over the NIC, with every answer checked.
//!
//! ```text
//! initiator                                    responder
//!   endpoint 0 … n, depth calls in flight ──▶  answers each with its body, the first word inverted
//!   compares every byte, calls again      ◀──
//! ```
//!
//! Each sample has workers and ports of its own, so none inherits the state of the one before; its
//! first calls are not timed.

use serde::{Deserialize, Serialize};

mod error;
pub mod matrix;
mod party;
mod plan;
mod program;
pub mod switches;

pub use error::WorkerError;
pub use party::{WorkerParty, Workers};
pub use plan::plan;

use switches::Switches;

/// What is called, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerCalls {
    /// Of both workers.
    pub switches: Switches,
    /// Connections between the two workers.
    pub endpoints: u16,
    /// WorkerCalls in flight, over all endpoints. One: the result is ns per round trip; more: millions of
    /// calls per second.
    pub depth: u16,
    /// Of the body of each call, and of its answer. At least 8.
    pub len_bytes: usize,
}

impl WorkerCalls {
    /// Time per call, in ns, of a sample whose number was `value`.
    pub(crate) fn call_ns(self, value: f64) -> f64 {
        if self.depth == 1 { value } else { 1e3 / value }
    }
}

/// One sample: both sides get the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSample {
    /// What is called.
    pub calls: WorkerCalls,
    /// WorkerCalls that are timed.
    pub count: u64,
    /// Different for every sample, below 2³²: the high half of every body's first word.
    pub number: u64,
}

/// How many messages shared a batch, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Merging {
    /// WorkerCalls per batch.
    pub calls: f64,
    /// Answers per batch.
    pub answers: f64,
}

/// What the initiator measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// ns, or M/s: see [`WorkerCalls::depth`].
    pub value: f64,
    /// Of all endpoints.
    pub merging: Merging,
}
