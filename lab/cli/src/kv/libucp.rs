//! Another libucp than the system's, by the folder that holds it.

use std::{
    env,
    ffi::OsString,
    fs, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use command::exit::UsageError;
use kv::backend::Kind;

/// File name of the library.
const LIBRARY: &str = "libucp.so.0";
/// Folders that the dynamic linker looks into first, as it reads them when a program starts.
const FOLDERS_ENV: &str = "LD_LIBRARY_PATH";

/// Has this program, and with it all processes of its jobs, use the library of `folder`. It starts itself again, unless
/// the dynamic linker looks there first already.
///
/// # Errors
///
/// A [`UsageError`] if the folder has no such library, or one that does not load.
pub(super) fn prefer(folder: &Path) -> anyhow::Result<()> {
    let library = folder.join(LIBRARY);
    let wrong = |problem: String| UsageError(format!("--ucx {}: {problem}", folder.display()));
    let Ok(real) = fs::canonicalize(&library) else {
        let remedy = "name the folder that holds it, such as PREFIX/lib";
        return Err(wrong(format!("there is no {LIBRARY}; {remedy}")).into());
    };
    let folder = fs::canonicalize(folder).context("cannot find the folder of --ucx")?;
    let folders = env::var_os(FOLDERS_ENV).unwrap_or_default();
    if env::split_paths(&folders).next() != Some(folder.clone()) {
        return Err(start_again(&folders_from(folder, &folders)?)).context("cannot start again");
    }
    if let Some(missing) = Kind::UcxAm.missing() {
        return Err(wrong(missing).into());
    }
    let maps = fs::read_to_string("/proc/self/maps").context("cannot see which library is open")?;
    if maps.lines().any(|line| line.ends_with(&*real.to_string_lossy())) {
        return Ok(());
    }
    Err(wrong(format!("the dynamic linker does not take its {LIBRARY}: is it for this machine?"))
        .into())
}

fn folders_from(first: PathBuf, others: &OsString) -> anyhow::Result<OsString> {
    let others = env::split_paths(others).filter(|folder| !folder.as_os_str().is_empty());
    let folders = env::join_paths(std::iter::once(first).chain(others));
    folders.context("the folder's name has a colon")
}

/// Returns if that fails.
fn start_again(folders: &OsString) -> io::Error {
    match env::current_exe() {
        Ok(program) => {
            Command::new(program).args(env::args_os().skip(1)).env(FOLDERS_ENV, folders).exec()
        }
        Err(error) => error,
    }
}
