//! Programs that find the software NIC.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder},
    hash::{BuildHasher as _, RandomState},
    io::{self, ErrorKind, PipeWriter},
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::DirBuilderExt as _,
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::io::{FdFlags, fcntl_setfd};
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

/// How often another name is tried for the tree. Names are random: the second is for a name that somebody has guessed.
const NAMES_MAX: u32 = 16;

/// Runtimes of sanitizers have to be loaded before every other library.
const SANITIZERS: [&str; 3] = ["libasan", "libtsan", "libclang_rt"];

/// Lets AddressSanitizer run in a program that is linked with it, behind a library that is preloaded.
const ASAN_ORDER: &str = "verify_asan_link_order=0";

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

/// What programs need to find the NIC: the tree goes when this is dropped, or once this process and the programs that it
/// has started are dead, however they die.
#[derive(Debug)]
pub struct LaunchFiles {
    library: PathBuf,
    tree: PathBuf,
    link: LinkLayer,
    /// Removes the tree when the pipe to it is closed; `None`: there is no shell.
    guard: Option<Guard>,
}

/// A process that outlives this one.
#[derive(Debug)]
struct Guard {
    process: Child,
    /// Programs inherit it.
    pipe: PipeWriter,
}

impl Guard {
    /// A shell in a group of its own, so that a signal to the group of this process does not end it.
    fn of(tree: &Path) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let script = "trap '' HUP INT TERM; read -r nothing; exec rm -rf -- \"$1\"";
        let process = Command::new("/bin/sh")
            .args(["-c", script, "copyrpc-uverbs"])
            .arg(tree)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .current_dir("/")
            .stdin(reader)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let guard = Self { process, pipe: writer };
        // Not before the shell has started, which would wait for itself.
        fcntl_setfd(&guard.pipe, FdFlags::empty())?;
        Ok(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Its tree is gone. It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
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
        let library = library()?;
        let tree = new_folder(&std::env::temp_dir())?;
        let guard = Guard::of(&tree).ok();
        let files = Self { library, tree, link, guard };
        match sysfs::create(&files.tree, link) {
            Ok(()) => Ok(files),
            Err(error) => Err(LaunchError::Tree { path: files.tree.clone(), error }),
        }
    }

    /// A folder of this user alone, which goes with the tree.
    pub(crate) fn folder(&self) -> &Path {
        &self.tree
    }

    /// A program that finds the NIC.
    #[must_use]
    pub fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        let others = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        command.env("LD_PRELOAD", preload(&self.library, &others));
        let asan = std::env::var("ASAN_OPTIONS").unwrap_or_default();
        command.env("ASAN_OPTIONS", with_order(&asan)).env(sysfs::PATH_ENV, &self.tree);
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
        self.guard = None;
    }
}

/// Makes a folder that nobody else can enter, by a name that nobody can foresee.
fn new_folder(parent: &Path) -> Result<PathBuf, LaunchError> {
    let mut attempt = 0;
    loop {
        let number = RandomState::new().hash_one(std::process::id());
        let path = parent.join(format!("copyrpc-uverbs-{number:016x}"));
        attempt += 1;
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && attempt < NAMES_MAX => {}
            Err(error) => return Err(LaunchError::Tree { path, error }),
        }
    }
}

/// What is preloaded: this library before all others, but for runtimes of sanitizers.
fn preload(library: &Path, others: &OsStr) -> OsString {
    let is_between = |byte: &u8| matches!(byte, b':' | b' ');
    let named = |path: &[u8]| {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        SANITIZERS.iter().any(|runtime| name.starts_with(runtime.as_bytes()))
    };
    let others = others.as_bytes().split(is_between).filter(|path| !path.is_empty());
    let (first, last): (Vec<_>, Vec<_>) = others.partition(|path| named(path));
    let all = first.into_iter().chain([library.as_os_str().as_bytes()]).chain(last);
    OsString::from_vec(all.collect::<Vec<_>>().join(&b':'))
}

/// Options of AddressSanitizer, with the one that a preloaded library needs, unless they say otherwise.
fn with_order(options: &str) -> String {
    match options {
        "" => ASAN_ORDER.to_owned(),
        _ if options.contains("verify_asan_link_order") => options.to_owned(),
        _ => format!("{options}:{ASAN_ORDER}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_of_sanitizers_come_first_and_other_libraries_last() {
        let of = |others: &str| preload(Path::new("/p/ours.so"), OsStr::new(others));
        assert_eq!(of(""), "/p/ours.so");
        assert_eq!(of("/x/libasan.so.8 other.so"), "/x/libasan.so.8:/p/ours.so:other.so");
        assert_eq!(of("other.so:libtsan.so.2"), "libtsan.so.2:/p/ours.so:other.so");
        assert_eq!(with_order(""), "verify_asan_link_order=0");
        assert_eq!(with_order("abort_on_error=1"), "abort_on_error=1:verify_asan_link_order=0");
        assert_eq!(with_order("verify_asan_link_order=1"), "verify_asan_link_order=1");
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes folders")]
    fn folders_have_names_of_their_own_and_one_user() {
        use std::os::unix::fs::MetadataExt as _;
        let (one, other) = (std::env::temp_dir(), std::env::temp_dir());
        let (one, other) = (new_folder(&one).unwrap(), new_folder(&other).unwrap());
        assert_ne!(one, other);
        assert_eq!(fs::metadata(&one).unwrap().mode() & 0o777, 0o700);
        fs::remove_dir(one).unwrap();
        fs::remove_dir(other).unwrap();
    }
}
