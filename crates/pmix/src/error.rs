//! Why ranks share nothing through PMIx, with the remedy.

/// Why ranks share nothing through PMIx.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PmixError {
    /// The library is not there, or does not load.
    #[error(
        "cannot open {library}: {cause}; install the PMIx library of the launcher (Debian: libpmix2), or add its \
         folder to LD_LIBRARY_PATH"
    )]
    Library {
        /// Its file name.
        library: &'static str,
        /// The dynamic linker's reason.
        cause: String,
    },
    /// The library is older than what is needed.
    #[error("the PMIx library has no `{symbol}`; OpenPMIx 3 or later is needed")]
    Symbol {
        /// The function.
        symbol: &'static str,
    },
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
