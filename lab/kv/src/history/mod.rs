//! What each client asked and saw, and when: what linearizability is judged by.

mod export;
mod linear;

use serde::{Deserialize, Serialize};

pub use export::HistoryFile;
pub use linear::{CheckError, HistoryReport, check};

use crate::codec::Version;

/// An operation of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEvent {
    /// Of which key.
    pub key: u64,
    /// What was asked, and what came of it.
    pub act: Act,
    /// Not carried out before this.
    pub begin_ns: u64,
    /// Carried out before this; `None`: nobody knows whether it was, or will be.
    pub end_ns: Option<u64>,
}

/// An operation on a register that holds a version or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// Saw this.
    Read(Option<Version>),
    /// Wrote this.
    Write(Version),
    /// Removed what was there: this.
    Remove(Option<Version>),
    /// Wrote `new` because `expected` was there.
    Swap {
        /// Was there.
        expected: Option<Version>,
        /// Is there now.
        new: Version,
    },
    /// Removed what was there, but nobody knows what (only without an end).
    RemoveAny,
}
