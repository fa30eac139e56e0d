//! Packages of the crates that are published, as `cargo publish` makes them, without a registry.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{cannot_start, cargo, run as run_command};
use crate::{step::Outcome, workspace::Workspace};

/// Files that each package holds besides its own.
const PACKAGED: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Packages every crate that is to be published, in the order of their dependencies, as `cargo publish` does, but without
/// a registry and without a build of it. Each package has its licences and a readme.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let folder = workspace.target_dir("package");
    let mut command = cargo(workspace, ["package", "--no-verify", "--allow-dirty", "--offline"]);
    command.arg("--quiet");
    let published = workspace.members.iter().filter(|member| member.dir.starts_with("crates"));
    let published: Vec<_> = published.collect();
    for member in &published {
        command.args(["-p", &member.package]);
    }
    run_command(command)?;
    for member in &published {
        let name = format!("{}-{}", member.package, env!("CARGO_PKG_VERSION"));
        let mut list = Command::new("tar");
        list.arg("-tf").arg(folder.join(format!("{name}.crate")));
        let output = list.output().with_context(|| cannot_start(&list))?;
        let files = String::from_utf8_lossy(&output.stdout);
        let missing = PACKAGED.iter().find(|file| {
            let path = format!("{name}/{file}");
            !files.lines().any(|line| line == path)
        });
        if let Some(file) = missing {
            bail!("the package of {} has no {file}", member.package);
        }
    }
    Ok(Outcome::Passed(format!("{} packages", published.len())))
}
