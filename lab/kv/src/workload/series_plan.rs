//! The plan of a series of slices around one event.

use serde::{Deserialize, Serialize};

use crate::words::words;

/// Slices of an interval, at most.
pub const SLICES_MAX: u64 = 200_000;

words! {
    /// What a series is taken around.
    SeriesEvent, "event" {
        /// The first call.
        Start = "start",
        /// The moment from which the rate of answers falls most, by a factor of two at least; if it never falls so
        /// far, where it falls most.
        Collapse = "collapse",
        /// The death of a client process, which is killed in the middle of the interval.
        Kill = "kill",
        /// The death of a node: of its daemon and its client processes, which are killed in the middle of the interval.
        KillNode = "kill-node",
    }
}

/// The slices of a series and its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesPlan {
    /// Length of a slice.
    pub slice_ns: u64,
    /// What it is taken around.
    pub event: SeriesEvent,
}
