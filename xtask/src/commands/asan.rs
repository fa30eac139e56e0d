//! Memory errors that only a real mapping shows, of crates whose manifest says
//!
//! ```toml
//! [package.metadata.xtask]
//! asan = true
//! ```
//!
//! Miri is stricter but sees no `mmap`, no second process and no system call that it does not
//! know; AddressSanitizer sees all of them, at half speed.

use std::process::Command;

use anyhow::{Context, Result};

use super::{cargo, has_tool, judge_tests};
use crate::{
    step::Outcome,
    workspace::{Member, Workspace},
};

/// Runs the tests of every crate that asks for it.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let members = workspace.members_with("asan");
    if members.is_empty() {
        return Ok(Outcome::NothingToRun("nothing to run: no crate sets `asan = true`".into()));
    }
    if !has_tool(workspace, &["+nightly", "--version"]) {
        return Ok(Outcome::MissingTool("rustup toolchain install nightly".into()));
    }
    let host = host()?;
    judge_tests(command(workspace, &members, &host))
}

fn command(workspace: &Workspace, members: &[&Member], host: &str) -> Command {
    let mut command =
        cargo(workspace, ["+nightly", "test", "--no-fail-fast", "--lib", "--bins", "--tests"]);
    // A target that is spelled out keeps the flags away from build scripts and macros.
    command.args(["--target", host]);
    for member in members {
        command.args(["-p", &member.package]);
    }
    command.env("RUSTFLAGS", "-Zsanitizer=address");
    command.env("CARGO_TARGET_DIR", workspace.target_dir("asan"));
    command
}

fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot start `rustc -vV`")?;
    let text = String::from_utf8(output.stdout).context("`rustc -vV` is not UTF-8")?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(String::from).context("`rustc -vV` names no host")
}
