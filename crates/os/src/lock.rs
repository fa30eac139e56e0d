//! Lock files: one holder at a time, whose process id others can read.
//!
//! The lock is `flock(2)` and vanishes with its holder, however that dies; the file and the id in
//! it stay behind and mean nothing by themselves. The file is never removed: a remover could remove
//! the one that somebody else just locked.
//!
//! A process id means something in one PID namespace only. The lock means the same in all of them, and where no
//! `/proc` is mounted.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read as _, Seek as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, OFlags, flock},
    io::Errno,
};

use crate::plain_file::open_as;

/// Longest process id text that is looked at.
const PID_TEXT_BYTES_MAX: u64 = 16;

/// How often, and with which pauses, a lock is tried: [`state_of`] holds it for microseconds.
const TRIES: u32 = 10;
const TRY_PAUSE: Duration = Duration::from_millis(10);

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
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = open_as(&mut options, path, OFlags::NOFOLLOW).map_err(unusable)?;
        if !try_lock(&file).map_err(unusable)? {
            return Err(LockError::HeldBy { path: path.to_owned(), pid: read_pid(&mut file) });
        }
        write_pid(&mut file).map_err(unusable)?;
        Ok(Self { _file: file })
    }

    /// Acquires the lock of a file that exists, without waiting for its holder, and leaves what the file tells.
    /// `None`: there is no such file.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub fn acquire_existing(path: &Path) -> Result<Option<Self>, LockError> {
        let unusable = |source| LockError::Unusable { path: path.to_owned(), source };
        let mut file = match open_existing(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(unusable)?,
        };
        if try_lock(&file).map_err(unusable)? {
            Ok(Some(Self { _file: file }))
        } else {
            Err(LockError::HeldBy { path: path.to_owned(), pid: read_pid(&mut file) })
        }
    }
}

/// What a look at a lock file found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockState {
    /// A process holds it, which may be in another PID namespace.
    Held {
        /// Its id in its own PID namespace, if it has already written that.
        pid: Option<u32>,
    },
    /// No process holds it.
    Free,
    /// There is no such file.
    Missing,
}

/// Looks whether some process holds the lock at `path`.
///
/// # Errors
///
/// [`LockError::Unusable`].
pub fn state_of(path: &Path) -> Result<LockState, LockError> {
    let unusable = |source| LockError::Unusable { path: path.to_owned(), source };
    let mut file = match open_existing(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(LockState::Missing),
        file => file.map_err(unusable)?,
    };
    // Shared: of several processes that look none takes another one for a holder.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(LockState::Free),
        Err(Errno::WOULDBLOCK) => Ok(LockState::Held { pid: read_pid(&mut file) }),
        Err(errno) => Err(unusable(errno.into())),
    }
}

/// Opens a lock file without following a link or waiting for the other end of a FIFO.
fn open_existing(path: &Path) -> io::Result<File> {
    crate::plain_file::open(path)
}

/// Whether the lock is held now. The holder may be a process that only looks.
fn try_lock(file: &File) -> io::Result<bool> {
    for attempt in 1.. {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK) if attempt < TRIES => thread::sleep(TRY_PAUSE),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(true)
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
