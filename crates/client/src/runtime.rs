//! The runtime folder: a daemon's sockets, counters, and the lock that keeps a second daemon out.
//!
//! ```text
//! $COPYRPC_RUNTIME_DIR, or $XDG_RUNTIME_DIR/copyrpc, or copyrpc-UID where temporary files go
//! ├── JOB[@INSTANCE].lock      flock(2), with the daemon's process id
//! ├── JOB[@INSTANCE].sock      where clients connect
//! ├── JOB[@INSTANCE].roster    rank 0: who the others are, should it be restarted
//! └── JOB[@INSTANCE].metrics   counters, readable without the daemon
//! ```
//!
//! The folder belongs to this user alone, mode 0700. Lock and counters stay behind when a daemon
//! dies; the lock means nothing then, and the counters are what one wants to read.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use os::{
    lock::{LockError, LockFile},
    private_dir::{self, PrivateDirError},
    unix::user_id,
};

use crate::{JobId, JobIdError, allocation};

/// Longest path of a socket (`unix(7)`: 108 bytes with the zero at the end).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The job of those who name none.
const JOB_DEFAULT: &str = "default";

/// The suffix behind a daemon's name.
const SOCKET_SUFFIX: &str = ".sock";
const LOCK_SUFFIX: &str = ".lock";
const METRICS_SUFFIX: &str = ".metrics";
const ROSTER_SUFFIX: &str = ".roster";

/// Why the paths of a daemon cannot be used.
///
/// ```
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{JobId, Runtime, RuntimeError};
///
/// let folder = "/run/".repeat(100).into();
/// let refused = Runtime::new(folder, JobId::new("greetings")?, "");
/// assert!(matches!(refused, Err(RuntimeError::PathTooLong { .. })));
/// # Ok::<(), copyrpc::JobIdError>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The job or the instance has no proper name.
    #[error(transparent)]
    Name(#[from] JobIdError),
    /// The folder cannot be made or looked at.
    #[error("cannot use the folder {}: {source}; set COPYRPC_RUNTIME_DIR to another", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// Others could replace what lies in it.
    #[error(
        "{} must be a real folder of user {uid} with mode 0700; fix that, or set COPYRPC_RUNTIME_DIR \
         to another", path.display()
    )]
    NotPrivate {
        /// The folder.
        path: PathBuf,
        /// The user who must own it.
        uid: u32,
    },
    /// A socket cannot lie there.
    #[error(
        "{} exceeds the {SOCKET_PATH_BYTES_MAX} B that a socket's path may have; set \
         COPYRPC_RUNTIME_DIR to a shorter one", path.display()
    )]
    PathTooLong {
        /// The socket.
        path: PathBuf,
    },
    /// Another daemon of the job runs on this node.
    #[error("the daemon of job `{job}` runs on this node already: {cause}")]
    Taken {
        /// The job.
        job: String,
        /// The process that holds it.
        cause: LockError,
    },
    /// The lock that keeps other daemons out cannot be made.
    #[error("{cause}; make room or get access there, or set COPYRPC_RUNTIME_DIR to another folder")]
    Lock {
        /// The file and the cause.
        cause: LockError,
    },
}

/// The paths of one daemon. Nothing needs to exist there.
///
/// ```
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{JobId, Runtime};
///
/// let runtime = Runtime::new("/run/user/1000/copyrpc".into(), JobId::new("slurm-77")?, "")?;
/// assert!(runtime.socket().starts_with("/run/user/1000/copyrpc"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    folder: PathBuf,
    job: JobId,
    /// The job, and the instance if it has one.
    name: String,
}

impl Runtime {
    /// The place of the daemon of `job`; `instance` is empty unless a machine plays several nodes.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Name`] and [`RuntimeError::PathTooLong`].
    pub fn new(folder: PathBuf, job: JobId, instance: &str) -> Result<Self, RuntimeError> {
        let name = if instance.is_empty() {
            job.to_string()
        } else {
            format!("{job}@{}", JobId::new(instance)?)
        };
        // Other processes may have another working folder. Without a slash at its end, so that a link is seen
        // as one.
        let folder = std::path::absolute(&folder).unwrap_or(folder).components().collect();
        let runtime = Self { folder, job, name };
        let path = runtime.socket();
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(RuntimeError::PathTooLong { path });
        }
        Ok(runtime)
    }

    /// The place that the environment names: `COPYRPC_JOB`, `COPYRPC_INSTANCE` and
    /// `COPYRPC_RUNTIME_DIR`, or the defaults of a daemon.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Name`] and [`RuntimeError::PathTooLong`].
    pub fn from_env() -> Result<Self, RuntimeError> {
        Self::from_lookup(|variable| env::var(variable).ok())
    }

    /// The paths that the variables of [`from_env`](Self::from_env) name, where `lookup` finds them.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Name`] and [`RuntimeError::PathTooLong`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, RuntimeError> {
        let text = |variable| lookup(variable).unwrap_or_default();
        let (job, instance) = (text("COPYRPC_JOB"), text("COPYRPC_INSTANCE"));
        Self::configured_with(&text("COPYRPC_RUNTIME_DIR"), &job, &instance, &lookup)
    }

    /// The paths that a configuration names. An empty text stands for the default: the session's or
    /// the user's folder, the job of the [allocation] or `default`, no instance.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Name`] and [`RuntimeError::PathTooLong`].
    pub fn configured(folder: &str, job: &str, instance: &str) -> Result<Self, RuntimeError> {
        Self::configured_with(folder, job, instance, |variable| env::var(variable).ok())
    }

    fn configured_with(
        configured: &str,
        job: &str,
        instance: &str,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, RuntimeError> {
        let allocation = allocation::job(&lookup).filter(|_| job.is_empty());
        let default = allocation.as_deref().unwrap_or(JOB_DEFAULT);
        let job = JobId::new(if job.is_empty() { default } else { job })?;
        Self::new(folder(configured, lookup), job, instance)
    }

    /// The folder of all daemons of this user.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> &JobId {
        &self.job
    }

    /// Name of the daemon among those of this user on this machine.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The socket to which clients connect.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path(SOCKET_SUFFIX)
    }

    /// The file of the counters.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.path(METRICS_SUFFIX)
    }

    /// The file in which rank 0 remembers the other ranks.
    #[must_use]
    pub fn roster(&self) -> PathBuf {
        self.path(ROSTER_SUFFIX)
    }

    fn path(&self, suffix: &str) -> PathBuf {
        self.folder.join(format!("{}{suffix}", self.name))
    }

    /// Makes the folder if need be, and keeps every other daemon out while the result lives.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`]; [`RuntimeError::Taken`] names the process that is there.
    pub fn lock(&self) -> Result<DaemonLock, RuntimeError> {
        self.ensure_folder()?;
        let lock = LockFile::acquire(&self.path(LOCK_SUFFIX)).map_err(|cause| match cause {
            LockError::HeldBy { .. } => RuntimeError::Taken { job: self.name.clone(), cause },
            LockError::Unusable { .. } => RuntimeError::Lock { cause },
        })?;
        Ok(DaemonLock { _lock: lock })
    }

    /// Makes the folder if need be.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Folder`], or [`RuntimeError::NotPrivate`] if others can enter it.
    pub fn ensure_folder(&self) -> Result<(), RuntimeError> {
        private_dir::ensure_in_parent(&self.folder).map_err(|error| {
            let path = self.folder.clone();
            match error {
                PrivateDirError::NotPrivate { uid, .. } => RuntimeError::NotPrivate { path, uid },
                PrivateDirError::Os { source, .. } => RuntimeError::Folder { path, source },
            }
        })
    }
}

/// The lock of a running daemon. Dropping it lets another daemon of the same name start.
#[derive(Debug)]
pub struct DaemonLock {
    _lock: LockFile,
}

/// The configured folder, or the usual one.
fn folder(configured: &str, lookup: impl Fn(&str) -> Option<String>) -> PathBuf {
    if !configured.is_empty() {
        return configured.into();
    }
    match lookup("XDG_RUNTIME_DIR").filter(|text| Path::new(text).is_absolute()) {
        Some(folder) => Path::new(&folder).join("copyrpc"),
        None => env::temp_dir().join(format!("copyrpc-{}", user_id())),
    }
}

/// Names of the daemons that left counters in `folder`, sorted.
///
/// # Errors
///
/// If the folder cannot be read; that it does not exist is none.
pub fn daemons_in(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        if let Some(name) = name.to_str().and_then(|name| name.strip_suffix(METRICS_SUFFIX)) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The lock of a daemon that [`daemons_in`] named.
#[must_use]
pub fn lock_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}{LOCK_SUFFIX}"))
}

/// The file of the counters of a daemon that [`daemons_in`] named.
#[must_use]
pub fn metrics_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}{METRICS_SUFFIX}"))
}

/// The socket of the daemon of a runtime folder that has this name.
#[must_use]
pub fn socket_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}{SOCKET_SUFFIX}"))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, process};

    use super::*;

    fn runtime(folder: &Path, instance: &str) -> Runtime {
        Runtime::new(folder.to_owned(), JobId::new("job").unwrap(), instance).unwrap()
    }

    fn temporary(name: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("copyrpc-runtime-{name}-{}", process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn fault_a7_a_second_daemon_is_refused_with_the_pid_of_the_first() {
        let folder = temporary("lock");
        let lock = runtime(&folder, "").lock().unwrap();
        let error = runtime(&folder, "").lock().unwrap_err().to_string();
        let expected = format!("is locked by process {}; stop that first", process::id());
        assert!(
            error.starts_with("the daemon of job `job` runs") && error.ends_with(&expected),
            "{error}"
        );
        let other = runtime(&folder, "1").lock().unwrap();
        drop((lock, other));
        runtime(&folder, "").lock().unwrap();
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_lock_that_cannot_be_made_is_not_taken_for_another_daemon() {
        let folder = temporary("no-lock");
        let runtime = runtime(&folder, "");
        runtime.ensure_folder().unwrap();
        std::fs::create_dir(runtime.path(LOCK_SUFFIX)).unwrap();
        let error = runtime.lock().unwrap_err();
        assert!(matches!(error, RuntimeError::Lock { .. }), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let folder = temporary("mode");
        runtime(&folder, "").ensure_folder().unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o750)).unwrap();
        let refused = runtime(&folder, "").lock();
        assert!(matches!(refused, Err(RuntimeError::NotPrivate { .. })));
        fs::remove_dir_all(folder).unwrap();
    }

    /// A slash at the end makes the kernel follow a link, which its owner can turn elsewhere.
    #[test]
    fn a_link_to_a_private_folder_is_refused_however_it_is_written() {
        let folder = temporary("target");
        runtime(&folder, "").ensure_folder().unwrap();
        let link = temporary("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        for suffix in ["", "/", "//", "/."] {
            let path = PathBuf::from(format!("{}{suffix}", link.display()));
            let refused = runtime(&path, "").lock();
            assert!(matches!(refused, Err(RuntimeError::NotPrivate { .. })), "{suffix:?}");
        }
        fs::remove_file(link).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_whose_parent_is_missing_is_not_made() {
        let parent = temporary("missing");
        let refused = runtime(&parent.join("copyrpc"), "").lock();
        assert!(matches!(refused, Err(RuntimeError::Folder { .. })), "{refused:?}");
        assert!(!parent.exists());
    }

    #[test]
    fn a_relative_folder_is_the_same_from_everywhere() {
        let relative = runtime("some/folder".as_ref(), "");
        assert!(relative.folder().is_absolute());
        assert!(relative.folder().ends_with("some/folder"));
    }

    #[test]
    fn paths_that_no_socket_can_have_are_refused() {
        let long = PathBuf::from("/").join("x".repeat(100));
        let refused = Runtime::new(long, JobId::new("job").unwrap(), "");
        assert!(matches!(refused, Err(RuntimeError::PathTooLong { .. })));
        let refused = Runtime::new("/x".into(), JobId::new("job").unwrap(), "a/b");
        assert!(matches!(refused, Err(RuntimeError::Name(_))));
    }

    #[test]
    fn the_folder_follows_the_knob_then_the_session_then_the_user() {
        let session = |_: &str| Some("/run/user/7".to_owned());
        assert_eq!(folder("", session), Path::new("/run/user/7/copyrpc"));
        let own = folder("", |_| None);
        assert!(own.ends_with(format!("copyrpc-{}", user_id())), "{own:?}");
        assert_eq!(folder("", |_| Some("relative".into())), own);
        assert_eq!(folder("/here", session), Path::new("/here"));
    }

    #[test]
    fn an_empty_variable_is_as_good_as_none() {
        let of = |texts: [&'static str; 3]| {
            Runtime::from_lookup(move |variable| {
                let variables = ["COPYRPC_RUNTIME_DIR", "COPYRPC_JOB", "COPYRPC_INSTANCE"];
                let at = variables.iter().position(|known| *known == variable)?;
                Some(texts[at].to_owned())
            })
            .unwrap()
        };
        assert_eq!(of(["", "", ""]), Runtime::from_lookup(|_| None).unwrap());
        assert_eq!(of(["", "", ""]).name(), "default");
        let told = of(["/here", "a-job", "7"]);
        assert_eq!(told.socket(), Path::new("/here/a-job@7.sock"));
        assert_eq!(told, Runtime::configured("/here", "a-job", "7").unwrap());
    }

    #[test]
    fn daemons_are_found_by_their_counters() {
        let folder = temporary("list");
        assert!(daemons_in(&folder).unwrap().is_empty());
        runtime(&folder, "").ensure_folder().unwrap();
        for instance in ["1", ""] {
            fs::write(runtime(&folder, instance).metrics(), "").unwrap();
        }
        assert_eq!(daemons_in(&folder).unwrap(), ["job", "job@1"]);
        assert_eq!(metrics_of(&folder, "job@1"), runtime(&folder, "1").metrics());
        assert_eq!(socket_of(&folder, "job@1"), runtime(&folder, "1").socket());
        fs::remove_dir_all(folder).unwrap();
    }
}
