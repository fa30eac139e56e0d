//! Which builds of the rivals are measured: their versions, and a folder with other builds than the system's.

use std::{
    env,
    ffi::OsString,
    io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use kv::ucp;

use crate::Fallible;

/// Variables that name folders of programs and of libraries, and the folder of a prefix for each.
const FOLDERS: [(&str, &str); 2] = [("PATH", "bin"), ("LD_LIBRARY_PATH", "lib")];
/// The exact versions of what is compiled in.
const LOCK: &str = include_str!("../Cargo.lock");
/// Rivals that are compiled in, with the settings of this program.
const COMPILED: [&str; 3] = ["iceoryx2", "tarpc", "tonic"];

/// Has this program, and all that it starts, use the programs and libraries below `prefix` first. It starts itself again,
/// because the dynamic linker reads its folders when a program starts.
pub fn prefer(prefix: &Path) -> Fallible<()> {
    let wrong = |problem: &str| format!("--rivals {}: {problem}", prefix.display());
    let prefix = prefix.canonicalize().map_err(|error| wrong(&error.to_string()))?;
    if !FOLDERS.iter().any(|(_, folder)| prefix.join(folder).is_dir()) {
        return Err(
            wrong("there is neither bin nor lib; name the prefix of an installation").into()
        );
    }
    let mut again = Command::new(env::current_exe()?);
    let mut is_first = true;
    for (variable, folder) in FOLDERS {
        let (folder, others) = (prefix.join(folder), env::var_os(variable).unwrap_or_default());
        is_first &= env::split_paths(&others).next().as_deref() == Some(&*folder);
        again.env(variable, folders_from(folder, &others)?);
    }
    if is_first { Ok(()) } else { Err(start_again(&mut again).into()) }
}

fn folders_from(first: PathBuf, others: &OsString) -> Fallible<OsString> {
    let others = env::split_paths(others).filter(|folder| !folder.as_os_str().is_empty());
    Ok(env::join_paths(std::iter::once(first).chain(others))?)
}

/// Returns if that fails.
fn start_again(again: &mut Command) -> io::Error {
    again.args(env::args_os().skip(1)).exec()
}

/// A line that names the version of each rival of calls, and its origin.
pub fn versions() -> String {
    let compiled = COMPILED.iter().filter_map(|name| {
        locked(LOCK, name)
            .map(|version| format!("{name} {version} (compiled here, release, fat LTO)"))
    });
    let library =
        ucp::version().map_or_else(|error| error.to_string(), |it| format!("libucp {it}"));
    let tools = [("ucx_info", "-v"), ("fi_info", "--version")].map(|(program, option)| {
        said(program, option).unwrap_or_else(|| format!("{program} is not installed"))
    });
    compiled.chain([library]).chain(tools).collect::<Vec<_>>().join("; ")
}

/// The version of a package in a `Cargo.lock`.
fn locked<'a>(lock: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = lock.lines().skip_while(|line| *line != format!("name = \"{name}\""));
    lines.nth(1)?.strip_prefix("version = \"")?.strip_suffix('"')
}

/// The first line that a program prints.
fn said(program: &str, option: &str) -> Option<String> {
    let output = Command::new(program).arg(option).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next()?.trim_start_matches(['#', ' ']);
    Some(format!("{program}: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_what_is_compiled_in_come_from_the_lock() {
        let lock = "[[package]]\nname = \"tonic\"\nversion = \"0.14.2\"\nsource = \"x\"\n";
        assert_eq!(locked(lock, "tonic"), Some("0.14.2"));
        assert_eq!(locked(lock, "tarpc"), None);
        assert!(COMPILED.iter().all(|name| locked(LOCK, name).is_some()));
    }

    #[test]
    fn a_folder_without_an_installation_is_refused_by_name() {
        let refused = prefer(Path::new("/proc/self/task")).unwrap_err().to_string();
        assert!(
            refused.contains("--rivals /proc/self/task: there is neither bin nor lib"),
            "{refused}"
        );
    }
}
