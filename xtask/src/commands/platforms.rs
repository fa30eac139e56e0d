//! Everything compiles for every machine that is supported, by the oldest compiler that is: the
//! `rust-version` of the manifests. Other steps use the toolchain and the machine at hand.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};

use super::{cannot_start, cargo, run as run_command};
use crate::{step::Outcome, workspace::Workspace};

/// The targets of RDMA clusters.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// `cargo check` of all targets, without linking, so that no foreign linker is needed.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let toolchain = &workspace.rust_version;
    for target in TARGETS {
        if !has_library(toolchain, target)? {
            let remedy = format!("rustup toolchain install {toolchain} --target {target}");
            return Ok(Outcome::MissingTool(remedy));
        }
    }
    let toolchain_argument = format!("+{toolchain}");
    let arguments = [&toolchain_argument, "check", "--workspace", "--all-targets", "--locked"];
    let mut command = cargo(workspace, arguments);
    command.args(TARGETS.map(|target| format!("--target={target}")));
    command.env("CARGO_TARGET_DIR", workspace.target_dir("platforms"));
    run_command(command)?;
    // The build of `cargo kv` leaves out what the workspace has.
    let first = ["check", "--package", "copyrpc-lab", "--no-default-features", "--locked"];
    let mut command = cargo(workspace, [&[&*toolchain_argument], &first[..]].concat());
    command.arg("--target").arg(TARGETS[0]);
    command.env("CARGO_TARGET_DIR", workspace.target_dir("platforms"));
    run_command(command)?;
    Ok(Outcome::Passed(format!("rustc {toolchain}, {} targets", TARGETS.len())))
}

/// Whether the toolchain has a standard library for `target`.
fn has_library(toolchain: &str, target: &str) -> Result<bool> {
    let mut command = Command::new("rustc");
    command.args([&format!("+{toolchain}"), "--print=target-libdir", "--target", target]);
    let output = command.output().with_context(|| cannot_start(&command))?;
    let folder = String::from_utf8_lossy(&output.stdout);
    Ok(output.status.success() && Path::new(folder.trim()).is_dir())
}
