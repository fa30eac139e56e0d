//! Meeting in a folder that all nodes share.
//!
//! ```text
//! FOLDER/JOB.RANK           magic │ job, rank, size │ who wrote it │ blob │ proof
//! FOLDER/.JOB.RANK.PID.tmp  the same, while it is being written
//! ```
//!
//! A file appears by `link(2)`, whole and once: also on NFS it fails if another is there. The proof
//! is checksum and authentication in one, so a half-written file of a careless file system, one of
//! another job and a forged one are all the same: not there yet.
//!
//! In all versions a file begins with a magic whose last letter is the version, and ends with a proof of all before: one
//! that a living rank of another version holds is named.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process, thread,
    time::Duration,
};

use os::{
    clock,
    lock::{self, LockState},
    plain_file,
    process::{Process, ProcessError, ProcessId},
};
use rustix::fs::{FlockOperation, flock};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use crate::{
    BLOB_BYTES_MAX, Bootstrap, BootstrapError, JobId, RankInfo, Secret,
    error::{self, Ranks},
    secret::{PROOF_BYTES, ProofPurpose},
};
use client::JOB_BYTES_MAX;

/// The last letter is the version: `F` is 1, `G` will be 2.
const MAGIC: [u8; 8] = *b"copyrpcF";

/// The version that a magic names.
fn version_of(magic: [u8; 8]) -> Option<u8> {
    let (name, letter) = magic.split_at(MAGIC.len() - 1);
    let version = letter[0].checked_sub(b'F')?.checked_add(1)?;
    (name == &MAGIC[..MAGIC.len() - 1] && letter[0].is_ascii_uppercase()).then_some(version)
}

/// Longest name of a host that is kept.
const HOST_BYTES_MAX: usize = 64;

/// Pauses between two looks at the folder: doubled each time.
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    rank: U32,
    size: U32,
    pid: U32,
    blob_bytes: U32,
    start_ticks: U64,
    job: [u8; JOB_BYTES_MAX],
    host: [u8; HOST_BYTES_MAX],
}

const HEAD_BYTES: usize = size_of::<Head>();
const FILE_BYTES_MAX: usize = HEAD_BYTES + BLOB_BYTES_MAX + PROOF_BYTES;

/// Meets in a folder that all ranks share. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct Folder {
    folder: PathBuf,
    job: JobId,
    secret: Secret,
    rank_info: RankInfo,
    timeout: Duration,
    /// The file that was put there, and its lock: it tells ranks of other PID namespaces that this one lives.
    ours: Option<(PathBuf, File)>,
}

impl Folder {
    /// Prepares to meet; the folder must exist.
    #[must_use]
    pub fn new(
        folder: &Path,
        job: JobId,
        secret: Secret,
        rank_info: RankInfo,
        timeout: Duration,
    ) -> Self {
        Self { folder: folder.to_owned(), job, secret, rank_info, timeout, ours: None }
    }

    fn path(&self, rank: u32) -> PathBuf {
        self.folder.join(format!("{}.{rank}", self.job))
    }

    fn contents(&self, blob: &[u8]) -> Vec<u8> {
        let id = ProcessId::own();
        let mut host = [0; HOST_BYTES_MAX];
        let name = host_name();
        let len = name.len().min(HOST_BYTES_MAX);
        host[..len].copy_from_slice(&name.as_bytes()[..len]);
        let head = Head {
            magic: MAGIC,
            rank: self.rank_info.rank().into(),
            size: self.rank_info.size().into(),
            pid: id.pid.into(),
            blob_bytes: u32::try_from(blob.len()).unwrap_or(u32::MAX).into(),
            start_ticks: id.start_ticks.into(),
            job: self.job.padded(),
            host,
        };
        let mut contents = head.as_bytes().to_vec();
        contents.extend_from_slice(blob);
        let proof = self.secret.sign(ProofPurpose::File, &[&contents]);
        contents.extend_from_slice(&proof);
        contents
    }

    /// Puts this rank's file there, unless another holds its place.
    fn publish(&mut self, blob: &[u8]) -> Result<(), BootstrapError> {
        let path = self.path(self.rank_info.rank());
        let name = format!(".{}.{}.{}.tmp", self.job, self.rank_info.rank(), process::id());
        let temporary = self.folder.join(name);
        let written = write_new(&temporary, &self.contents(blob));
        let fail = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| BootstrapError::Folder { operation, path, source }
        };
        let published = written.map_err(fail("write", &temporary)).and_then(|file| {
            let published = match fs::hard_link(&temporary, &path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    self.check_holder(&path)?;
                    fs::rename(&temporary, &path).map_err(fail("replace", &path))
                }
                linked => linked.map_err(fail("create", &path)),
            };
            published.map(|()| file)
        });
        // It is gone already if it was renamed.
        let _ = fs::remove_file(&temporary);
        self.ours = Some((path, published?));
        self.sweep();
        Ok(())
    }

    /// Removes what earlier lives of this rank were killed while they wrote it. That of a process
    /// which lives is left: it will be told that the place is taken.
    fn sweep(&self) {
        let prefix = format!(".{}.{}.", self.job, self.rank_info.rank());
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let writer = name.to_str().and_then(|name| name.strip_prefix(&prefix));
            let writer = writer.and_then(|rest| rest.strip_suffix(".tmp")?.parse().ok());
            let is_dead = |pid| matches!(Process::open(pid), Err(ProcessError::Gone { .. }));
            if writer.is_some_and(is_dead) {
                // Another may be faster.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Whoever wrote the file in this rank's place must be dead, or must not have meant this job.
    fn check_holder(&self, path: &Path) -> Result<(), BootstrapError> {
        let Some((head, _)) = self.read(path, self.rank_info.rank()) else {
            return self.check_version(self.rank_info.rank());
        };
        let host = host_of(&head);
        let id = ProcessId { pid: head.pid.get(), start_ticks: head.start_ticks.get() };
        // The process table knows the processes of one PID namespace, the lock those of all.
        let is_locked = matches!(lock::state_of(path), Ok(LockState::Held { .. }));
        if host == host_name() && Process::is_gone(id) && !is_locked {
            return Ok(());
        }
        Err(BootstrapError::Duplicate {
            rank_info: self.rank_info,
            holder: format!("process {} on {host}", id.pid),
            remedy: format!(" If that is dead, remove {}", path.display()),
        })
    }

    /// What a file says before its proof, if it is there, whole and signed with the secret.
    fn signed(&self, path: &Path) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = plain_file::open(path).ok()?;
        file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).ok()?;
        let (signed, proof) = bytes.split_last_chunk::<PROOF_BYTES>()?;
        let is_signed = self.secret.verify(ProofPurpose::File, &[signed], proof);
        is_signed.then(|| signed.to_vec())
    }

    /// The file of a rank, if it is there, whole and of this job.
    fn read(&self, path: &Path, rank: u32) -> Option<(Head, Vec<u8>)> {
        let signed = self.signed(path)?;
        let (head, blob) = Head::read_from_prefix(&signed).ok()?;
        let is_ours = head.magic == MAGIC
            && head.job == self.job.padded()
            && head.rank.get() == rank
            && head.size.get() == self.rank_info.size()
            && head.blob_bytes.get() as usize == blob.len();
        is_ours.then(|| (head, blob.to_vec()))
    }

    /// Names a living rank that meets by another version. What a dead one left, its next life replaces.
    fn check_version(&self, rank: u32) -> Result<(), BootstrapError> {
        let path = self.path(rank);
        let Some(signed) = self.signed(&path) else { return Ok(()) };
        let theirs = signed.first_chunk().copied().and_then(version_of);
        match theirs.filter(|theirs| Some(*theirs) != version_of(MAGIC)) {
            Some(theirs) if matches!(lock::state_of(&path), Ok(LockState::Held { .. })) => {
                let ours = version_of(MAGIC).unwrap_or_default();
                Err(BootstrapError::Version { rank, theirs, ours })
            }
            _ => Ok(()),
        }
    }

    fn collect(&self, is_to_stop: &dyn Fn() -> bool) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let size = self.rank_info.size();
        let deadline_ns = clock::deadline_ns(self.timeout);
        let mut blobs: Vec<Option<Vec<u8>>> = vec![None; size as usize];
        let mut pause = LOOK_MIN;
        loop {
            for (rank, slot) in (0..size).zip(&mut blobs).filter(|(_, slot)| slot.is_none()) {
                *slot = self.read(&self.path(rank), rank).map(|(_, blob)| blob);
            }
            let missing: Vec<_> =
                (0..size).zip(&blobs).filter(|(_, slot)| slot.is_none()).map(|(r, _)| r).collect();
            if missing.is_empty() {
                return Ok(blobs.into_iter().flatten().collect());
            }
            missing.iter().try_for_each(|rank| self.check_version(*rank))?;
            if is_to_stop() {
                return Err(BootstrapError::Stopped);
            }
            if clock::now_ns() >= deadline_ns {
                let missing = Ranks(missing);
                return Err(BootstrapError::Missing { missing, size, waited: self.timeout });
            }
            thread::sleep(pause);
            pause = (2 * pause).min(LOOK_MAX);
        }
    }
}

impl Bootstrap for Folder {
    fn exchange_unless(
        &mut self,
        blob: &[u8],
        is_to_stop: &dyn Fn() -> bool,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        error::check_length(blob)?;
        self.publish(blob)?;
        self.collect(is_to_stop)
    }

    /// Files of ranks that were killed stay.
    fn is_stale(&self, rank: u32, blob: &[u8]) -> bool {
        let path = self.path(rank);
        // The lock first: a file that replaces this one meanwhile has other contents, or the same.
        let is_held = matches!(lock::state_of(&path), Ok(LockState::Held { .. }));
        !is_held || self.read(&path, rank).is_none_or(|(_, now)| now != blob)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some((path, _lock)) = self.ours.take() {
            // Nothing to be done about a folder that is gone.
            let _ = fs::remove_file(path);
        }
    }
}

/// Writes a file whose lock this process holds as long as the result lives.
fn write_new(path: &Path, contents: &[u8]) -> io::Result<File> {
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(contents)?;
    file.sync_all()?;
    // Where the file system has no locks, the process table alone tells of the dead.
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
    Ok(file)
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().chars().take(HOST_BYTES_MAX).collect()
}

fn host_of(head: &Head) -> String {
    let end = head.host.iter().position(|byte| *byte == 0).unwrap_or(HOST_BYTES_MAX);
    String::from_utf8_lossy(&head.host[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another build may be on the other side: whoever changes these bytes raises the version in [`MAGIC`].
    #[test]
    fn fault_e7_the_head_of_a_file_has_the_bytes_that_builds_in_use_have() {
        let job = JobId::new("job").unwrap();
        let head = Head {
            magic: MAGIC,
            rank: 0x0102.into(),
            size: 0x0304.into(),
            pid: 0x0506.into(),
            blob_bytes: 0x0708.into(),
            start_ticks: 0x090a.into(),
            job: job.padded(),
            host: [b'h'; HOST_BYTES_MAX],
        };
        let mut bytes =
            b"copyrpcF\x02\x01\0\0\x04\x03\0\0\x06\x05\0\0\x08\x07\0\0\x0a\x09\0\0\0\0\0\0job"
                .to_vec();
        bytes.resize(32 + JOB_BYTES_MAX, 0);
        bytes.extend([b'h'; 64]);
        assert_eq!(head.as_bytes(), bytes);
        assert_eq!(version_of(MAGIC), Some(1));
        assert_eq!(
            [*b"copyrpcG", *b"copyrpcE", *b"copyrpc~", *b"copyrpXF"].map(version_of),
            [Some(2), None, None, None]
        );
    }
}
