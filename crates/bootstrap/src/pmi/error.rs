//! Why the ranks of a launch agree on nothing through their launcher.

use std::{io, time::Duration};

use super::line::Malformed;
use crate::RankInfo;

/// Why the ranks of a launch agree on nothing through their launcher.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PmiError {
    /// It was told to stop while it waited.
    #[error("stopped before all ranks had come")]
    Stopped,
    /// The PMIx library, or what it told.
    #[error("PMIx: {0}")]
    Pmix(#[from] crate::pmix::PmixError),
    /// The launcher did not answer, or not all ranks came.
    #[error(
        "{rank_info} waited {waited:?} for {space} to {step}; did the launcher start all ranks? Raise \
         COPYRPC_BOOTSTRAP_TIMEOUT, or set COPYRPC_RENDEZVOUS and COPYRPC_SECRET_FILE to do without the launcher"
    )]
    TimedOut {
        /// This rank.
        rank_info: RankInfo,
        /// The protocol.
        space: &'static str,
        /// The step.
        step: &'static str,
        /// The time waited.
        waited: Duration,
    },
    /// The launcher counts otherwise than its variables.
    #[error(
        "{rank_info} is rank {theirs} of the PMIx server; set COPYRPC_RENDEZVOUS and COPYRPC_SECRET_FILE"
    )]
    Rank {
        /// This rank.
        rank_info: RankInfo,
        /// What the launcher calls it.
        theirs: u32,
    },
    /// The inherited descriptor is no socket.
    #[error(
        "PMI_FD={fd} cannot be used: {source}; a script between launcher and daemon may have closed it: start the \
         daemon by `exec`, or set COPYRPC_RENDEZVOUS and COPYRPC_SECRET_FILE"
    )]
    Descriptor {
        /// The number.
        fd: i32,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The launcher is gone.
    #[error("the launcher is lost at `{request}`: {source}; look for its messages")]
    Lost {
        /// The request that was sent last.
        request: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The launcher's answer is none.
    #[error(
        "the launcher answers `{request}` with what is no PMI-1: {cause}; does it speak another version?"
    )]
    Malformed {
        /// The request.
        request: &'static str,
        /// The reason why the answer is none.
        cause: Malformed,
    },
    /// The launcher refuses a request.
    #[error(
        "the launcher refuses `{request}`: rc={rc}, `{reason}`; set COPYRPC_RENDEZVOUS and COPYRPC_SECRET_FILE to do \
         without it"
    )]
    Refused {
        /// The request.
        request: &'static str,
        /// The launcher's number for the reason.
        rc: i32,
        /// The launcher's words.
        reason: String,
    },
    /// The launcher takes no value of this length.
    #[error(
        "the launcher takes keys of {key_bytes_max} B and values of {value_bytes_max} B, too short for {needed} B; \
         set COPYRPC_RENDEZVOUS and COPYRPC_SECRET_FILE"
    )]
    TooShort {
        /// The longest key.
        key_bytes_max: usize,
        /// The longest value.
        value_bytes_max: usize,
        /// Bytes of the value.
        needed: usize,
    },
    /// Rank 0 has put something else.
    #[error("rank 0 put no address and secret into {space}; is it the same version of copyrpc?")]
    MeetingPoint {
        /// The protocol.
        space: &'static str,
    },
    /// Rank 0 has put an address of another version.
    #[error(
        "rank 0 put an address of version {theirs} into {space}, this rank reads version {ours}; update the older"
    )]
    OtherVersion {
        /// The protocol.
        space: &'static str,
        /// The version of rank 0.
        theirs: u32,
        /// That of this rank.
        ours: u32,
    },
    /// Rank 0 has no port to listen at, or no thread.
    #[error("cannot {step}: {source}")]
    Os {
        /// The step.
        step: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl PmiError {
    /// Whether the launcher was not spoken to: another way to meet may be taken, as other ranks find the same.
    #[must_use]
    pub const fn is_unavailable(&self) -> bool {
        use crate::pmix::PmixError::{Init, Library, Version};
        matches!(
            self,
            Self::Pmix(Library(_) | Version { .. } | Init { .. }) | Self::Descriptor { .. }
        )
    }
}
