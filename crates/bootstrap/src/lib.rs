//! Bootstrap: daemons of one job find each other.
//!
//! One operation, the *exchange*: each rank brings a blob (its addresses, opaque here) and gets those
//! of all ranks. Who has which rank comes from the launcher ([`launcher`]); how blobs travel is a
//! [`Bootstrap`]:
//!
//! | | meets | for |
//! |---|---|---|
//! | [`SingleNode`] | nobody | one node |
//! | [`Tcp`] | at the address of rank 0 | clusters without a shared folder |
//! | [`Folder`] | in a shared folder | clusters with one |
//! | [`fork`] | at its parent | many daemons on one machine |
//!
//! Where nobody says where to meet, the ranks of a launcher meet in a private folder ([`meeting`]) or agree on an
//! address through the launcher ([`pmi`]).
//!
//! Whoever takes part proves that it knows the job's [`Secret`], in answer to a fresh challenge, so
//! that a recorded proof is worth nothing; everybody else is dropped after at most one handshake
//! timeout and never costs more than [`rendezvous::PENDING_MAX`] fixed buffers. Nothing is encrypted: the
//! secret keeps strangers and other jobs out, not eavesdroppers.

#![deny(unsafe_code)]

pub mod entropy;
mod error;
mod folder;
pub mod fork;
#[doc(hidden)]
pub mod frame;
pub mod launcher;
pub mod meeting;
pub mod pmi;
pub mod pmix;
#[doc(hidden)]
pub mod rendezvous;
pub mod route;
pub mod secret;
mod server;
mod tcp;

use core::fmt;

pub use client::{JobId, JobIdError};
pub use error::{BootstrapError, Ranks};
pub use folder::Folder;
pub use secret::{Secret, SecretError};
pub use server::{Lives, RendezvousServer, RendezvousStats};
pub use tcp::{Tcp, Timeouts};

/// Longest blob of one rank.
pub const BLOB_BYTES_MAX: usize = 64 << 10;

/// Most ranks of a job.
pub const SIZE_MAX: u32 = 65_535;

/// A rank and the size of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankInfo {
    rank: u32,
    size: u32,
}

/// A rank that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank} of {size} does not exist: ranks count from 0, and there are at most {SIZE_MAX}"
)]
pub struct RankError {
    /// The rank.
    pub rank: u32,
    /// The number of ranks of the job.
    pub size: u32,
}

impl RankInfo {
    /// The only one.
    pub const ALONE: Self = Self { rank: 0, size: 1 };

    /// Rank `rank` of `size`.
    ///
    /// # Errors
    ///
    /// [`RankError`] if there is no such rank.
    pub const fn new(rank: u32, size: u32) -> Result<Self, RankError> {
        if rank < size && size <= SIZE_MAX {
            Ok(Self { rank, size })
        } else {
            Err(RankError { rank, size })
        }
    }

    /// Counts from 0.
    #[must_use]
    pub const fn rank(self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub const fn size(self) -> u32 {
        self.size
    }
}

impl fmt::Display for RankInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size)
    }
}

/// An exchange of blobs between the ranks of a job.
pub trait Bootstrap {
    /// Brings this rank's blob and returns those of all, by rank.
    ///
    /// # Errors
    ///
    /// [`BootstrapError`]; in particular, which ranks are missing.
    fn exchange(&mut self, blob: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.exchange_unless(blob, &|| false)
    }

    /// The same, unless it is to stop: it looks at that now and then while it waits.
    ///
    /// # Errors
    ///
    /// [`BootstrapError`]; [`BootstrapError::Stopped`] if it was to stop.
    fn exchange_unless(
        &mut self,
        blob: &[u8],
        is_to_stop: &dyn Fn() -> bool,
    ) -> Result<Vec<Vec<u8>>, BootstrapError>;

    /// Whether the blob that an exchange returned for a rank is that of an earlier life: its process has ended, or
    /// there is another one by now.
    fn is_stale(&self, rank: u32, blob: &[u8]) -> bool {
        let _ = (rank, blob);
        false
    }
}

/// One node: nobody to meet.
#[derive(Clone, Copy, Debug)]
pub struct SingleNode;

impl Bootstrap for SingleNode {
    fn exchange_unless(
        &mut self,
        blob: &[u8],
        _: &dyn Fn() -> bool,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        error::check_length(blob)?;
        Ok(vec![blob.to_vec()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_below_the_size() {
        assert!(RankInfo::new(0, 1).is_ok() && RankInfo::new(65_534, 65_535).is_ok());
        assert!(RankInfo::new(1, 1).is_err() && RankInfo::new(0, 0).is_err());
        assert!(RankInfo::new(0, SIZE_MAX + 1).is_err());
    }

    #[test]
    fn alone_gets_what_it_brought() {
        assert_eq!(SingleNode.exchange(b"me").unwrap(), [b"me"]);
        assert!(SingleNode.exchange(&vec![0; BLOB_BYTES_MAX + 1]).is_err());
    }
}
