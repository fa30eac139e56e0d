//! Where a daemon's sockets, lock and counters lie, and the lock that keeps a second daemon out.
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
    env,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use os::{
    lock::{LockError, LockFile},
    rendezvous::user_id,
};

#[cfg(feature = "daemon")]
use crate::config::{INSTANCE, JOB, RUNTIME_DIR, Settings};
use crate::{JobId, JobIdError};

/// Longest path of a socket (`unix(7)`: 108 bytes with the zero at the end).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Permissions of the folder, and the bits that must not be set.
const PRIVATE_MODE: u32 = 0o700;
const OTHERS_MASK: u32 = 0o077;

/// The job of those who name none.
const JOB_DEFAULT: &str = "default";

/// What follows a daemon's name.
const SOCKET_SUFFIX: &str = ".sock";
const LOCK_SUFFIX: &str = ".lock";
const METRICS_SUFFIX: &str = ".metrics";
const ROSTER_SUFFIX: &str = ".roster";

/// Why a daemon's place cannot be used.
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
        /// Why not.
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
        /// Who must own it.
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
        /// Which process has it.
        cause: LockError,
    },
    /// What would keep other daemons out cannot be made.
    #[error("{cause}; make room or get access there, or set COPYRPC_RUNTIME_DIR to another folder")]
    Lock {
        /// Which file, and why.
        cause: LockError,
    },
}

/// The paths of one daemon. Nothing needs to exist there.
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
        // Without a slash at its end, so that a link is seen as one.
        let folder = folder.components().collect();
        let runtime = Self { folder, job, name };
        let path = runtime.socket();
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(RuntimeError::PathTooLong { path });
        }
        Ok(runtime)
    }

    /// The place that the environment names: `COPYRPC_JOB`, `COPYRPC_INSTANCE` and
    /// `COPYRPC_RUNTIME_DIR`, or what a daemon takes for them that was told nothing else, either.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Name`] and [`RuntimeError::PathTooLong`].
    pub fn from_env() -> Result<Self, RuntimeError> {
        Self::from_lookup(|variable| env::var(variable).ok())
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, RuntimeError> {
        let text = |variable, default: &str| {
            let set = lookup(variable).filter(|text| !text.is_empty());
            set.unwrap_or_else(|| default.to_owned())
        };
        let folder = folder(&text("COPYRPC_RUNTIME_DIR", ""), &lookup);
        let job = JobId::new(&text("COPYRPC_JOB", JOB_DEFAULT))?;
        Self::new(folder, job, &text("COPYRPC_INSTANCE", ""))
    }

    /// The place that the settings name.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Name`] and [`RuntimeError::PathTooLong`].
    #[cfg(feature = "daemon")]
    pub fn from_settings(settings: &Settings) -> Result<Self, RuntimeError> {
        let folder = folder(settings.text(&RUNTIME_DIR), |variable| env::var(variable).ok());
        let job = JobId::new(settings.text(&JOB))?;
        Self::new(folder, job, settings.text(&INSTANCE))
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

    /// Where clients connect.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path(SOCKET_SUFFIX)
    }

    /// Where the counters are.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.path(METRICS_SUFFIX)
    }

    /// Where rank 0 remembers who the others are.
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
    pub fn claim(&self) -> Result<Claim, RuntimeError> {
        self.ensure_folder()?;
        let lock = LockFile::acquire(&self.path(LOCK_SUFFIX));
        let lock = lock.map_err(|cause| match cause {
            LockError::HeldBy { .. } => RuntimeError::Taken { job: self.name.clone(), cause },
            LockError::Unusable { .. } => RuntimeError::Lock { cause },
        })?;
        Ok(Claim { _lock: lock })
    }

    /// Makes the folder if need be.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Folder`], or [`RuntimeError::NotPrivate`] if others can enter it.
    pub fn ensure_folder(&self) -> Result<(), RuntimeError> {
        let fail = |source| RuntimeError::Folder { path: self.folder.clone(), source };
        match DirBuilder::new().recursive(true).mode(PRIVATE_MODE).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(fail(error)),
            _ => {}
        }
        let meta = fs::symlink_metadata(&self.folder).map_err(fail)?;
        let uid = user_id();
        if meta.is_dir() && meta.uid() == uid && meta.mode() & OTHERS_MASK == 0 {
            Ok(())
        } else {
            Err(RuntimeError::NotPrivate { path: self.folder.clone(), uid })
        }
    }
}

/// A daemon's claim on its place. Dropping it lets another daemon in.
#[derive(Debug)]
pub struct Claim {
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

/// Where the counters of a daemon are that [`daemons_in`] named.
#[must_use]
pub fn metrics_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}{METRICS_SUFFIX}"))
}

#[cfg(all(test, feature = "daemon"))]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, process};

    use super::*;
    use crate::config::{KNOBS, Layers};

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
        let claim = runtime(&folder, "").claim().unwrap();
        let error = runtime(&folder, "").claim().unwrap_err().to_string();
        let expected = format!("is locked by process {}; stop that first", process::id());
        assert!(
            error.starts_with("the daemon of job `job` runs") && error.ends_with(&expected),
            "{error}"
        );
        let other = runtime(&folder, "1").claim().unwrap();
        drop((claim, other));
        runtime(&folder, "").claim().unwrap();
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_lock_that_cannot_be_made_is_not_taken_for_another_daemon() {
        let folder = temporary("no-lock");
        let runtime = runtime(&folder, "");
        runtime.ensure_folder().unwrap();
        std::fs::create_dir(runtime.path(LOCK_SUFFIX)).unwrap();
        let error = runtime.claim().unwrap_err();
        assert!(matches!(error, RuntimeError::Lock { .. }), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let folder = temporary("mode");
        runtime(&folder, "").ensure_folder().unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o750)).unwrap();
        let refused = runtime(&folder, "").claim();
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
            let refused = runtime(&path, "").claim();
            assert!(matches!(refused, Err(RuntimeError::NotPrivate { .. })), "{suffix:?}");
        }
        fs::remove_file(link).unwrap();
        fs::remove_dir_all(folder).unwrap();
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

    /// Clients read the environment by themselves, daemons by way of the knobs.
    #[test]
    fn clients_and_daemons_find_the_same_place() {
        let defaults = Layers::new(KNOBS.to_vec()).finish();
        let by_default = Runtime::from_lookup(|variable| {
            Some(env::var(variable).ok()).filter(|_| variable == "XDG_RUNTIME_DIR").flatten()
        });
        assert_eq!(by_default.unwrap(), Runtime::from_settings(&defaults).unwrap());
        let (mut layers, texts) = (Layers::new(KNOBS.to_vec()), ["/here", "a-job", "7"]);
        for (knob, text) in [RUNTIME_DIR, JOB, INSTANCE].iter().zip(texts) {
            layers = layers.flag(&knob.flag(), text).unwrap();
        }
        let told = Runtime::from_lookup(|variable| {
            let knobs = [RUNTIME_DIR, JOB, INSTANCE];
            let at = knobs.iter().position(|knob| knob.env == variable)?;
            Some(texts[at].to_owned())
        });
        assert_eq!(told.unwrap(), Runtime::from_settings(&layers.finish()).unwrap());
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
        fs::remove_dir_all(folder).unwrap();
    }
}
