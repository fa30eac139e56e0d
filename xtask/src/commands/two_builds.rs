//! Daemons of this tree beside those of an earlier commit: they serve each other, or name both versions.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{cannot_start, cargo, export, run as run_command, run_tests};
use crate::{step::Outcome, workspace::Workspace};

/// Builds the program of `commit` in the target folder, and runs the test of two builds with it.
pub(crate) fn run(workspace: &Workspace, commit: &str) -> Result<Outcome> {
    let mut known = Command::new("git");
    known.args(["rev-parse", "--quiet", "--verify", &format!("{commit}^{{commit}}")]);
    known.current_dir(&workspace.root).stdout(Stdio::null());
    if !known.status().with_context(|| cannot_start(&known))?.success() {
        return Ok(Outcome::NothingToRun(format!("this clone has no commit `{commit}`")));
    }
    let folder = workspace.target_dir("two-builds");
    let source = folder.join("source");
    export(workspace, commit, &source)?;
    let mut build = cargo(workspace, ["build", "-p", "copyrpc-cli"]);
    build.current_dir(&source).env("CARGO_TARGET_DIR", folder.join("target"));
    run_command(build)?;
    let name = "fault_e7_two_builds_serve_each_other_or_name_both_versions";
    let mut test = cargo(workspace, ["test", "-p", "copyrpc-cli", "--test", "daemons", name]);
    test.args(["--", "--ignored", "--nocapture"]);
    test.env("COPYRPC_TEST_OTHER_BUILD", folder.join("target/debug/copyrpc"));
    let passed = run_tests(test)?;
    ensure!(passed == 1, "the test of two builds did not run");
    Ok(Outcome::Passed(format!("beside {commit}")))
}
