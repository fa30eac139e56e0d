//! The errors of an exchange, with the ranks that they concern.

use core::fmt;
use std::{io, path::PathBuf, time::Duration};

use crate::{BLOB_BYTES_MAX, RankInfo};

/// Ranges that a list of ranks shows before it breaks off.
const RANGES_SHOWN: usize = 16;

/// Some ranks of a job, ascending; shown as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranks(pub Vec<u32>);

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank " } else { "ranks " })?;
        let ranges = self.0.chunk_by(|low, high| low + 1 == *high);
        for (index, range) in ranges.enumerate() {
            if index == RANGES_SHOWN {
                return write!(f, ", ... ({} in all)", self.0.len());
            }
            let comma = if index == 0 { "" } else { ", " };
            match range {
                [only] => write!(f, "{comma}{only}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// Why there was no exchange.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// It was told to stop while it waited for others.
    #[error("stopped before all ranks had come")]
    Stopped,
    /// Some did not come.
    #[error(
        "{missing} of {size} did not come within {waited:?}; look for their logs, or raise \
         COPYRPC_BOOTSTRAP_TIMEOUT"
    )]
    Missing {
        /// The ranks that are missing.
        missing: Ranks,
        /// The number of ranks of the job.
        size: u32,
        /// The time that the others waited.
        waited: Duration,
    },
    /// Two say that they are the same rank.
    #[error("{rank_info} is already taken by {holder}; is it started twice?{remedy}")]
    Duplicate {
        /// This rank.
        rank_info: RankInfo,
        /// The other.
        holder: String,
        /// The remedy.
        remedy: String,
    },
    /// Nobody listens where rank 0 should.
    #[error(
        "{rank_info} found no process at {address} within {waited:?} ({source}); rank 0 listens there until all \
         have come: is it started, and was this rank in time?"
    )]
    Unreachable {
        /// This rank.
        rank_info: RankInfo,
        /// The address.
        address: String,
        /// The time waited.
        waited: Duration,
        /// The last attempt.
        source: io::Error,
    },
    /// This rank is the rendezvous, and not all came.
    #[error("{reason}{}", Unproved(*unproved))]
    GaveUp {
        /// The ranks that are missing, as a phrase.
        reason: String,
        /// Connections that did not prove that they know the secret.
        unproved: u64,
    },
    /// Whoever listens there said no.
    #[error("{address} refused {rank_info}: {reason}")]
    Refused {
        /// The address.
        address: String,
        /// This rank.
        rank_info: RankInfo,
        /// Why, in the words of the other side.
        reason: String,
    },
    /// Whoever listens there is not of this job.
    #[error("{address} is no rendezvous of job `{job}`: {why}")]
    Foreign {
        /// The address.
        address: String,
        /// This job.
        job: String,
        /// The evidence.
        why: &'static str,
    },
    /// The connection broke, or was too slow.
    #[error("{rank_info} lost the rendezvous at {address}: {source}")]
    Lost {
        /// This rank.
        rank_info: RankInfo,
        /// The address.
        address: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// It is not possible to listen.
    #[error("rank 0 cannot listen at {address}: {source}; is it an address of this machine?")]
    Listen {
        /// The address.
        address: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The shared folder cannot be used.
    #[error("cannot {operation} {}: {source}", path.display())]
    Folder {
        /// The operation that failed.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A living rank meets by other files.
    #[error(
        "rank {rank} meets in this folder by version {theirs} of its files, this rank by version {ours}; update the older"
    )]
    Version {
        /// The other rank.
        rank: u32,
        /// Its version.
        theirs: u8,
        /// That of this rank.
        ours: u8,
    },
    /// The blob is too long.
    #[error("a blob of {len_bytes} B exceeds {BLOB_BYTES_MAX} B")]
    TooLong {
        /// Its length.
        len_bytes: usize,
    },
}

/// Connections that did not prove that they know the secret, in words.
struct Unproved(u64);

impl fmt::Display for Unproved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(
                f,
                "; {count} connections did not know the secret: is it the same file everywhere?"
            ),
        }
    }
}

pub(super) fn check_length(blob: &[u8]) -> Result<(), BootstrapError> {
    let len_bytes = blob.len();
    if len_bytes <= BLOB_BYTES_MAX { Ok(()) } else { Err(BootstrapError::TooLong { len_bytes }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_shown_as_ranges() {
        let shown = |ranks: &[u32]| Ranks(ranks.to_vec()).to_string();
        assert_eq!(shown(&[3]), "rank 3");
        assert_eq!(shown(&[1, 3, 4, 5, 9]), "ranks 1, 3-5, 9");
        let odd: Vec<_> = (0..100).map(|i| 2 * i + 1).collect();
        assert!(shown(&odd).ends_with("31, ... (100 in all)"));
    }
}
