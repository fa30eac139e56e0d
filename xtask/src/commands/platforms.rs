//! Everything compiles for every machine that is supported, by the oldest compiler that is: the
//! `rust-version` of the manifests. Other steps use the toolchain and the machine at hand.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};

use super::{cannot_start, cargo, run as run_command};
use crate::{step::Outcome, workspace::Workspace};

/// The targets of RDMA clusters.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// `cargo check` without linking, so that no foreign linker is needed. The other machine checks all that is here;
/// this one, which clippy and the tests compile everything on, checks what users build.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let toolchain = &workspace.rust_version;
    let [here, other] = TARGETS;
    for target in TARGETS {
        if !has_library(toolchain, target)? {
            let remedy = format!("rustup toolchain install {toolchain} --target {target}");
            return Ok(Outcome::MissingTool(remedy));
        }
    }
    check(workspace, other, &["--workspace", "--all-targets"])?;
    let product = workspace.members.iter().filter(|member| member.dir.starts_with("crates"));
    let product = product.flat_map(|member| ["-p", &member.package]).collect::<Vec<_>>();
    check(workspace, here, &product)?;
    // The build of `cargo kv` leaves out what the workspace has.
    check(workspace, here, &["-p", "copyrpc-lab", "--no-default-features"])?;
    Ok(Outcome::Passed(format!("rustc {toolchain}, {} targets", TARGETS.len())))
}

/// `cargo check` of the packages by the oldest compiler, for `target`.
fn check(workspace: &Workspace, target: &str, packages: &[&str]) -> Result<()> {
    let mut command = cargo(workspace, [&format!("+{}", workspace.rust_version), "check"]);
    command.args(["--locked", "--target", target]).args(packages);
    command.env("CARGO_TARGET_DIR", workspace.target_dir("platforms"));
    run_command(command)
}

/// Whether the toolchain has a standard library for `target`.
fn has_library(toolchain: &str, target: &str) -> Result<bool> {
    let mut command = Command::new("rustc");
    command.args([&format!("+{toolchain}"), "--print=target-libdir", "--target", target]);
    let output = command.output().with_context(|| cannot_start(&command))?;
    let folder = String::from_utf8_lossy(&output.stdout);
    Ok(output.status.success() && Path::new(folder.trim()).is_dir())
}
