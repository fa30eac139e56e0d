//! Lock files: one holder at a time, whose process id others can read.
//!
//! The lock is `flock(2)` and vanishes with its holder, however that dies; the file and the id in
//! it stay behind and mean nothing by themselves. The file is never removed: a remover could remove
//! the one that somebody else just locked.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, OFlags, flock},
    io::Errno,
};

/// Longest process id text that is looked at.
const PID_TEXT_BYTES_MAX: u64 = 16;

/// Why a lock was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else holds it.
    #[error("{} is locked by process {}; stop that first", path.display(), pid.map_or("?".into(), |pid| pid.to_string()))]
    HeldBy {
        /// The lock file.
        path: PathBuf,
        /// The holder, if it has already written its id.
        pid: Option<u32>,
    },
    /// The file cannot be opened or written.
    #[error("cannot use {} as a lock file: {source}", path.display())]
    Unusable {
        /// The lock file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// A held lock; dropping it releases it.
#[derive(Debug)]
pub struct LockFile {
    _file: File,
}

impl LockFile {
    /// Acquires the lock at `path` without waiting, and writes the id of this process to it.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let unusable = |source| LockError::Unusable { path: path.to_owned(), source };
        let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(no_follow)
            .open(path)
            .map_err(unusable)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(LockError::HeldBy { path: path.to_owned(), pid: read_pid(&mut file) });
            }
            Err(errno) => return Err(unusable(errno.into())),
        }
        write_pid(&mut file).map_err(unusable)?;
        Ok(Self { _file: file })
    }
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(PID_TEXT_BYTES_MAX).read_to_string(&mut text).ok()?;
    text.strip_suffix('\n')?.parse().ok()
}
