//! The errors of a mapping, each with its remedy.

use rustix::io::Errno;

/// Why a region could not be made, or its pages not allocated.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Zero, more than the address space, or a range past the end.
    #[error("a length or end of {len_bytes} B is zero, too large or outside the region")]
    BadLength {
        /// The offending length or end.
        len_bytes: usize,
    },
    /// The process may not have, or the machine does not have, this much memory.
    #[error("no memory for a region of {len_bytes} B; use smaller regions or raise `ulimit -v`")]
    NoMemory {
        /// Bytes asked for.
        len_bytes: usize,
    },
    /// Shared memory is exhausted (the memory of the machine or the limit of the control group).
    #[error(
        "no shared memory left for {len_bytes} B; free some, use smaller regions or raise the \
         memory limit of this container"
    )]
    NoSpace {
        /// Bytes asked for.
        len_bytes: usize,
    },
    /// The file's holder could truncate it, and reading it would then raise SIGBUS.
    #[error("the received file is not sealed against resizing; its creator must seal it")]
    Unsealed,
    /// Sealed, but smaller than announced.
    #[error("the received file holds {file_bytes} B, but {len_bytes} B were announced")]
    TooShort {
        /// Bytes to be mapped.
        len_bytes: usize,
        /// Bytes in the file.
        file_bytes: u64,
    },
    /// Not a memfd, so it cannot be sealed.
    #[error("the received descriptor is no memfd; only a sealable file can be shared safely")]
    NotShareable,
    /// The creator sealed it against further writers.
    #[error("the file is sealed against new writable mappings; map it read-only")]
    WriteDenied,
    /// Its creator took the right to seal it away.
    #[error(
        "the received file takes no further seals, so that its creator could take pages away; leave F_SEAL_SEAL out"
    )]
    SealsFinal,
    /// Pages of it are not allocated: whoever touches them pays for them.
    #[error(
        "{allocated_bytes} B of the {file_bytes} B of the received file are allocated; its creator must allocate all of \
         them (`fallocate`)"
    )]
    Holes {
        /// Bytes in the file.
        file_bytes: u64,
        /// Bytes of pages that it has.
        allocated_bytes: u64,
    },
    /// The process or the machine is out of descriptors.
    #[error("no file descriptor left for a region; raise `ulimit -n`")]
    NoDescriptor,
    /// Anything else the kernel says.
    #[error("{call} failed on a region: {errno}")]
    Os {
        /// System call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

/// What a mapping failed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapFault {
    /// The file, or the length: the same request fails again.
    Request,
    /// A shortage of this process or machine, which may pass.
    Shortage,
}

impl MapError {
    /// What the mapping failed for.
    #[must_use]
    pub fn fault(&self) -> MapFault {
        match self {
            Self::BadLength { .. }
            | Self::Unsealed
            | Self::TooShort { .. }
            | Self::NotShareable
            | Self::WriteDenied
            | Self::SealsFinal
            | Self::Holes { .. } => MapFault::Request,
            Self::NoMemory { .. } | Self::NoSpace { .. } | Self::NoDescriptor | Self::Os { .. } => {
                MapFault::Shortage
            }
        }
    }

    pub(super) fn from_errno(call: &'static str, errno: Errno, len_bytes: usize) -> Self {
        match errno {
            Errno::NOSPC => Self::NoSpace { len_bytes },
            Errno::NOMEM => Self::NoMemory { len_bytes },
            Errno::MFILE | Errno::NFILE => Self::NoDescriptor,
            errno => Self::Os { call, errno },
        }
    }
}

/// Why a region could not be sealed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// On the heap, where there is no file that anybody could resize, or detached.
    #[error("a region on the heap, or detached, has no file to seal; seal a memfd before that")]
    NotAFile,
    /// The set of seals is fixed and lacks one of these.
    #[error("the file's seals are final and do not include these; seal before sharing it")]
    Final,
    /// Anything else the kernel says, such as `EINVAL` before Linux 5.1.
    #[error("the kernel refused to seal the file: {0}")]
    Os(Errno),
}
