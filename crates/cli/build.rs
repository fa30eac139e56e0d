//! Tells the program the commit that it is built from. Outside a repository, or without git, that
//! is "unknown"; `BUILD_COMMIT` overrides it (for packages).

use std::{path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-env-changed=BUILD_COMMIT");
    // Whether the tree is clean depends on every source file; the commit on what HEAD names.
    println!("cargo::rerun-if-changed=..");
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
