//! For build scripts: the commit that a program is built from. Those of the laboratory use it, too.

use std::{path::Path, process::Command};

/// Sets `BUILD_COMMIT` for the compiler. Outside a repository, or without git, that is "unknown"; the environment
/// variable of this name overrides it (for packages).
pub(crate) fn tell() {
    println!("cargo::rerun-if-env-changed=BUILD_COMMIT");
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file])
            && Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let commit = std::env::var("BUILD_COMMIT").ok().or_else(described);
    println!("cargo::rustc-env=BUILD_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}

/// The short commit, with `-dirty` if tracked files differ from it.
fn described() -> Option<String> {
    git(&["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
