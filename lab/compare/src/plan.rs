//! What all comparisons are told: where, how long, of whom, and when to stop.

use std::{sync::Arc, time::Duration};

use copyrpc_command::exit::Interrupted;
use copyrpc_config::units::{parse_bytes, parse_duration_ns};
use copyrpc_memory::sync::{AtomicBool, Ordering};
use measure::{cores::Cores, rounds::Rounds};

use crate::Fallible;

/// The plan of a run.
#[derive(Clone)]
pub struct ComparisonPlan {
    pub cores: Cores,
    /// Of each comparison.
    pub rounds: Rounds,
    /// Peers whose names contain this take part, and what all are compared with.
    pub filter: String,
    /// Bytes of a request, or of a value; empty: those that the comparison has by default.
    pub sizes: Vec<usize>,
    /// Set by a signal.
    pub stop: Arc<AtomicBool>,
}

impl ComparisonPlan {
    /// Whether a peer takes part.
    pub fn has(&self, name: &str, reference: &str) -> bool {
        name == reference || name.contains(&self.filter)
    }

    /// The sizes that were asked for, or these.
    pub fn sizes_or(&self, default: &[usize]) -> Vec<usize> {
        if self.sizes.is_empty() { default.to_vec() } else { self.sizes.clone() }
    }

    /// Ends the run by its error once a signal has come: whatever was started and made goes with its owners, and what
    /// was measured is shown.
    pub fn go_on(&self) -> Fallible<()> {
        // Relaxed: the flag is all there is to see.
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Interrupted("the rounds that are shown".to_owned()).into()),
            false => Ok(()),
        }
    }
}

/// A size, such as 56 or 4KiB: a message has its number once, or at both ends.
pub fn size(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes == 8 || *bytes >= 16);
    bytes.ok_or_else(|| "8 and from 16 on are possible".to_owned())
}

/// A time, such as 8m or 30s.
pub fn time(text: &str) -> Result<Duration, String> {
    parse_duration_ns(text).map(Duration::from_nanos).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_room_for_their_numbers() {
        assert_eq!((size("8"), size("56B"), size("4KiB")), (Ok(8), Ok(56), Ok(4096)));
        assert!(["0", "9", "15", "x", ""].iter().all(|text| size(text).is_err()));
        assert_eq!(time("8m"), Ok(Duration::from_secs(480)));
    }
}
