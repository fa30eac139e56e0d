//! Why ranks share nothing through PMIx, with the remedy.

use os::dylib::DylibError;

/// Why ranks share nothing through PMIx.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PmixError {
    /// The library is not there, does not load, or lacks a function.
    #[error(
        "{0}; install the PMIx library of the launcher, of OpenPMIx 3 or later (Debian: libpmix2), or add its folder \
         to LD_LIBRARY_PATH"
    )]
    Library(DylibError),
    /// The library's structures may be others.
    #[error(
        "the PMIx library is `{version}`; its versions {} to {} are known: install one of those", known.0, known.1
    )]
    Version {
        /// The library's name for itself.
        version: String,
        /// The first major version and the last.
        known: (u32, u32),
    },
    /// The launcher's server is not reached.
    #[error(
        "PMIx_Init failed: {cause}; start the daemon by a launcher that serves PMIx, such as mpirun of Open MPI or \
         srun --mpi=pmix"
    )]
    Init {
        /// The library's reason.
        cause: String,
    },
    /// A function failed.
    #[error(
        "{function} failed: {cause}; look for the launcher's messages, and whether all ranks were started"
    )]
    Failed {
        /// The function.
        function: &'static str,
        /// The library's reason.
        cause: String,
    },
    /// A value is no text.
    #[error("rank {rank} put no text under `{key}`; is it the same version of copyrpc?")]
    NoText {
        /// The rank.
        rank: u32,
        /// The key.
        key: String,
    },
}
