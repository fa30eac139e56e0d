//! The Debian packages, built by Debian's tools from the commit, unpacked and used.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use super::{cannot_start, export, run as run_command};
use crate::{step::Outcome, workspace::Workspace};

/// The longest program that is shipped (docs/releasing.md).
const BINARY_BYTES_MAX: u64 = 10_000_000;

/// Builds the packages and inspects their contents.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let is_there = |tool: &str| {
        Command::new(tool)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok()
    };
    if let Some(tool) = ["dpkg-buildpackage", "dh"].into_iter().find(|tool| !is_there(tool)) {
        return Ok(Outcome::MissingTool(format!("no {tool}: apt-get install debhelper dpkg-dev")));
    }
    let folder = workspace.target_dir("deb");
    let source = folder.join("copyrpc");
    export(workspace, "HEAD", &source)?;
    // The build stays for the next time.
    let built = folder.join("target");
    fs::create_dir_all(&built).context("cannot make the target folder")?;
    symlink(&built, source.join("target")).context("cannot link the target folder")?;
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(source.join("packaging/debian")).arg(source.join("debian"));
    run_command(copy)?;
    // Its tests are run elsewhere; cargo may not be a package here.
    let mut build = Command::new("dpkg-buildpackage");
    build.args(["--build=binary", "--no-sign", "--no-check-builddeps"]);
    build.current_dir(&source).env("DEB_BUILD_OPTIONS", "nocheck");
    run_command(build)?;

    let packages = packages(&folder)?;
    ensure!(packages.len() == 4, "four packages were expected: {packages:?}");
    let root = folder.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).context("cannot remove what was unpacked before")?;
    }
    for package in &packages {
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(package).arg(&root);
        run_command(unpack)?;
    }
    use_what_is_there(&root)?;
    Ok(Outcome::Passed(format!("{} packages", packages.len())))
}

/// Packages of this version, without those of debugging symbols.
fn packages(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut packages = Vec::new();
    for entry in fs::read_dir(folder).context("cannot list the packages")? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".deb") && !name.contains("dbgsym") {
            packages.push(path);
        }
    }
    packages.sort();
    Ok(packages)
}

/// A user's first commands, with what the packages hold.
fn use_what_is_there(root: &Path) -> Result<()> {
    for file in [
        "usr/lib/copyrpc/libcopyrpc_preload.so",
        "usr/share/man/man1/copyrpc-daemon.1.gz",
        "usr/share/bash-completion/completions/copyrpc",
        "usr/lib/systemd/system/copyrpc@.service",
        "usr/include/copyrpc.h",
        "usr/share/doc/copyrpc/copyright",
    ] {
        ensure!(root.join(file).exists(), "no package holds {file}");
    }
    for program in ["copyrpc", "copyrpc-lab"] {
        let binary = root.join("usr/bin").join(program);
        let found = fs::metadata(&binary);
        let len_bytes = found.with_context(|| format!("no package holds {program}"))?.len();
        ensure!(
            len_bytes <= BINARY_BYTES_MAX,
            "{program} has {len_bytes} B, {BINARY_BYTES_MAX} may be shipped"
        );
    }
    let mut info = Command::new(root.join("usr/bin/copyrpc"));
    info.args(["info", "--json"]).stdout(Stdio::null());
    run_command(info)?;
    let mut config = Command::new("pkg-config");
    let libraries = fs::read_dir(root.join("usr/lib"))?;
    let libraries =
        libraries.filter_map(|entry| Some(entry.ok()?.path())).collect::<Vec<PathBuf>>();
    for name in ["libcopyrpc_c.so.1", "libcopyrpc_c.so", "libcopyrpc_c.a"] {
        let is_held = libraries.iter().any(|folder| folder.join(name).exists());
        ensure!(is_held, "no package holds {name}");
    }
    let paths =
        libraries.iter().map(|library| library.join("pkgconfig")).filter(|path| path.exists());
    let paths = paths.map(|path| path.display().to_string()).collect::<Vec<_>>();
    config.args(["--exists", "--print-errors", "copyrpc"]).env("PKG_CONFIG_PATH", paths.join(":"));
    let exists = config.status().with_context(|| cannot_start(&config))?;
    ensure!(exists.success(), "pkg-config does not find copyrpc");
    Ok(())
}
