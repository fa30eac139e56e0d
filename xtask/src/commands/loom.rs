//! Exhaustive interleavings of the lock-free code.
//!
//! A loom test is an integration test with `loom` in its name and `#![cfg(loom)]` at its top.

use std::process::Command;

use anyhow::{Result, ensure};

use super::{cargo, env_default, run_tests};
use crate::{
    step::Outcome,
    workspace::{Member, Workspace},
};

/// Runs the loom tests of every crate.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let mut crates = 0;
    let mut passed = 0;
    for member in workspace.members.iter().filter(|member| !member.loom_tests().is_empty()) {
        let tests = run_tests(command(workspace, member))?;
        ensure!(tests > 0, "the loom tests of {} are empty under --cfg loom", member.package);
        crates += 1;
        passed += tests;
    }
    if crates == 0 {
        return Ok(Outcome::NothingToRun("nothing to run: no crate has a loom test".into()));
    }
    Ok(Outcome::Passed(format!("{passed} tests, {crates} crates")))
}

/// The loom tests of one crate.
pub(super) fn command(workspace: &Workspace, member: &Member) -> Command {
    let mut command = cargo(workspace, ["test", "--release", "-p", &member.package]);
    for test in member.loom_tests() {
        command.args(["--test", test]);
    }
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", workspace.target_dir("loom"));
    // Models are built more often than they are worth optimizing across crates.
    command.env("CARGO_PROFILE_RELEASE_LTO", "off");
    // More preemptions find no more bugs in queues of two parties, and cost minutes.
    env_default(&mut command, "LOOM_MAX_PREEMPTIONS", "3");
    command
}
