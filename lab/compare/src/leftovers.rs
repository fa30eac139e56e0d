//! A folder for the files of a run, and what runs leave that end by SIGKILL.
//!
//! ```text
//! $TMPDIR/copyrpc-compare-PID/          sockets, contacts
//! /dev/shm/copyrpc-compare-PID.lock     flock(2) of the run; removed at its end
//! /dev/shm/copyrpc-compare-PID_*        iceoryx2's
//! ```
//!
//! A run that ends in order, by a signal too, removes its own. The next run removes those whose lock nobody holds: a process
//! id alone says nothing about a process of another PID namespace.

use std::{
    fs,
    path::{Path, PathBuf},
};

use copyrpc_os::{
    lock::{LockFile, LockState, state_of},
    private_dir,
};

use crate::Fallible;

const PREFIX: &str = "copyrpc-compare-";
const LOCK_SUFFIX: &str = ".lock";
/// Where iceoryx2 has its memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// The folder of a run; all of it goes with the value.
pub struct RunFolder {
    path: PathBuf,
    shared_memory: PathBuf,
    _lock: LockFile,
}

impl RunFolder {
    /// Makes the folder of this process, and removes what dead ones left.
    ///
    /// # Errors
    ///
    /// The folder or its lock cannot be made.
    pub fn new() -> Fallible<Self> {
        Self::below(&std::env::temp_dir(), Path::new(SHARED_MEMORY))
    }

    fn below(temporary: &Path, shared_memory: &Path) -> Fallible<Self> {
        remove_orphans(temporary, shared_memory);
        let name = format!("{PREFIX}{}", std::process::id());
        let lock = LockFile::acquire(&shared_memory.join(format!("{name}{LOCK_SUFFIX}")))?;
        let path = temporary.join(name);
        // Of this user alone, which sockets of copyrpc ask for.
        private_dir::ensure(&path)?;
        Ok(Self { path, shared_memory: shared_memory.to_owned(), _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        remove_of(&self.path, &self.shared_memory);
    }
}

/// What begins the names of files of the run whose folder is `path`.
pub fn prefix(path: &Path) -> String {
    format!("{}_", path.file_name().unwrap_or_default().to_string_lossy())
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Removes all of a run, its lock last: as long as that is there, what is left is found again.
fn remove_of(path: &Path, shared_memory: &Path) {
    // Somebody else may have been faster.
    let _ = fs::remove_dir_all(path);
    let prefix = prefix(path);
    for name in names_in(shared_memory).iter().filter(|name| name.starts_with(&prefix)) {
        let _ = fs::remove_file(shared_memory.join(name));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let _ = fs::remove_file(shared_memory.join(format!("{name}{LOCK_SUFFIX}")));
}

/// Removes what runs left whose lock nobody holds.
fn remove_orphans(temporary: &Path, shared_memory: &Path) {
    for name in names_in(shared_memory) {
        let Some(run) = name.strip_suffix(LOCK_SUFFIX).filter(|name| name.starts_with(PREFIX))
        else {
            continue;
        };
        if matches!(state_of(&shared_memory.join(&name)), Ok(LockState::Free)) {
            remove_of(&temporary.join(run), shared_memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("leftovers-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(path.join("tmp")).unwrap();
            fs::create_dir_all(path.join("shm")).unwrap();
            Self(path)
        }

        fn of_run(&self, run: &str) {
            fs::create_dir(self.0.join("tmp").join(run)).unwrap();
            fs::write(self.0.join("tmp").join(run).join("stream-1"), "").unwrap();
            fs::write(self.0.join("shm").join(format!("{run}{LOCK_SUFFIX}")), "1\n").unwrap();
            fs::write(self.0.join("shm").join(format!("{run}_7.shm_state")), "").unwrap();
        }

        fn open(&self) -> Fallible<RunFolder> {
            RunFolder::below(&self.0.join("tmp"), &self.0.join("shm"))
        }

        fn names(&self) -> Vec<String> {
            let mut names = names_in(&self.0.join("tmp"));
            names.extend(names_in(&self.0.join("shm")));
            names.sort_unstable();
            names
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_next_run_removes_what_a_dead_one_left_and_nothing_of_a_living_one() {
        let scratch = Scratch::new("orphans");
        // No process has such ids.
        scratch.of_run("copyrpc-compare-4294967294");
        scratch.of_run("copyrpc-compare-4294967295");
        fs::write(scratch.0.join("shm/another_program"), "").unwrap();
        let lock = scratch.0.join("shm/copyrpc-compare-4294967295.lock");
        let living = LockFile::acquire(&lock).unwrap();
        let run = scratch.open().unwrap();
        assert!(run.path().is_dir());
        drop(run);
        let left = [
            "another_program",
            "copyrpc-compare-4294967295",
            "copyrpc-compare-4294967295.lock",
            "copyrpc-compare-4294967295_7.shm_state",
        ];
        assert_eq!(scratch.names(), left);
        drop(living);
        drop(scratch.open().unwrap());
        assert_eq!(scratch.names(), ["another_program"]);
    }
}
