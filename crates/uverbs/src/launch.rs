//! Programs that find the software NIC.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use memory::sync::{AtomicU32, Ordering};

use verbs::LinkLayer;

use crate::{
    process::{LINK_ENV, ROCE},
    sysfs,
};

/// Path of the library that is preloaded, if it is not beside the program that starts others.
pub const LIBRARY_ENV: &str = "COPYRPC_UVERBS_LIBRARY";

/// Process with which the program ends, however that ends: the one that has started it.
pub const PARENT_ENV: &str = "COPYRPC_UVERBS_PARENT";

/// Its file name.
pub const LIBRARY: &str = "libcopyrpc_preload.so";

/// Where it is looked for, from the folder of the running program: beside it, and where packages put it.
const PLACES: [&str; 4] = [".", "deps", "../lib", "../lib/copyrpc"];

/// Why no program can be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The library is nowhere.
    #[error(
        "no {LIBRARY} in {}: build it by `cargo build -p copyrpc-preload`, or name it by {LIBRARY_ENV}",
        .looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoLibrary {
        /// Where it was looked for.
        looked: Vec<PathBuf>,
    },
    /// The sysfs tree cannot be made.
    #[error("cannot make a sysfs tree in {}: {error}", .path.display())]
    Tree {
        /// Its root.
        path: PathBuf,
        /// What the file system says.
        error: io::Error,
    },
}

/// The library that is preloaded.
///
/// # Errors
///
/// [`LaunchError::NoLibrary`].
pub fn library() -> Result<PathBuf, LaunchError> {
    let named = std::env::var_os(LIBRARY_ENV).filter(|path| !path.is_empty());
    let looked: Vec<PathBuf> = match named {
        Some(path) => vec![path.into()],
        None => {
            let program = std::env::current_exe().unwrap_or_default();
            let folder = program.parent().unwrap_or(Path::new("."));
            PLACES.iter().map(|place| folder.join(place).join(LIBRARY)).collect()
        }
    };
    match looked.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.canonicalize().unwrap_or_else(|_| path.clone())),
        None => Err(LaunchError::NoLibrary { looked }),
    }
}

/// In a program: it is killed when the process of [`PARENT_ENV`] dies, if that is its parent.
pub fn end_with_parent() {
    use rustix::process::{Signal, getppid, kill_process, set_parent_process_death_signal};
    let named = std::env::var(PARENT_ENV).ok().and_then(|text| text.parse().ok());
    let is_parent = || getppid().map(|parent| parent.as_raw_nonzero().get()) == named;
    if named.is_none()
        || !is_parent()
        || set_parent_process_death_signal(Some(Signal::KILL)).is_err()
    {
        return;
    }
    if !is_parent() {
        // It has died in between.
        let _ = kill_process(rustix::process::getpid(), Signal::KILL);
    }
}

/// What programs need to find the NIC: the tree goes when this is dropped.
#[derive(Debug)]
pub struct LaunchFiles {
    library: PathBuf,
    tree: PathBuf,
    link: LinkLayer,
}

impl LaunchFiles {
    /// Makes the tree of a NIC on InfiniBand.
    ///
    /// # Errors
    ///
    /// [`LaunchError`].
    pub fn new() -> Result<Self, LaunchError> {
        Self::on(LinkLayer::InfiniBand)
    }

    /// Makes the tree.
    ///
    /// # Errors
    ///
    /// [`LaunchError`].
    pub fn on(link: LinkLayer) -> Result<Self, LaunchError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let library = library()?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("copyrpc-uverbs-{}-{count}", std::process::id());
        let tree = std::env::temp_dir().join(name);
        match fs::create_dir(&tree).and_then(|()| sysfs::create(&tree, link)) {
            Ok(()) => Ok(Self { library, tree, link }),
            Err(error) => Err(LaunchError::Tree { path: tree, error }),
        }
    }

    /// A program that finds the NIC.
    #[must_use]
    pub fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        let others = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty());
        let mut preload = OsString::from(&self.library);
        if let Some(others) = others {
            preload.push(":");
            preload.push(others);
        }
        command.env("LD_PRELOAD", preload).env(sysfs::PATH_ENV, &self.tree);
        match self.link {
            LinkLayer::InfiniBand => command.env_remove(LINK_ENV),
            LinkLayer::Ethernet => command.env(LINK_ENV, ROCE),
        };
        // Its hooks of memory go round the functions that are replaced here.
        command.env("UCX_MEM_MMAP_HOOK_MODE", "none");
        command
    }
}

impl Drop for LaunchFiles {
    fn drop(&mut self) {
        // What is left is empty of meaning, and in the folder for such things.
        let _ = fs::remove_dir_all(&self.tree);
    }
}
