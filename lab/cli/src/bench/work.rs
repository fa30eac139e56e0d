//! What benchmarks do with the NIC that the knobs select.

use bench::job::NicSide;
use nics::Selection;

/// Why a NIC cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkError {
    /// There is none of that name, or it does not start.
    #[error(transparent)]
    Nic(#[from] nics::OpenError),
    /// It is there, but has no room for a benchmark's queues.
    #[error("cannot set up a benchmark on NIC `{name}`: {cause}")]
    Work {
        /// The NIC.
        name: String,
        /// The error of the work that the NIC refused.
        cause: bench::Error,
    },
}

/// One side of a benchmark on the NIC.
pub(crate) fn open_work(nic: &Selection) -> Result<Box<dyn NicSide>, WorkError> {
    let refused = |cause| WorkError::Work { name: nic.name().to_owned(), cause };
    bench::selected::open_work(nic)?.map_err(refused)
}
