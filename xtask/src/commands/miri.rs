//! Undefined behaviour, of crates whose manifest says
//!
//! ```toml
//! [package.metadata.xtask]
//! miri = true
//! miri-flags = "-Zmiri-disable-isolation" # optional
//! ```

use std::{cmp::Reverse, env, fs, path::PathBuf, process::Command, time::Instant};

use anyhow::Result;

use super::{cargo, for_each, has_tool, run_tests_as, width};
use crate::{
    step::Outcome,
    workspace::{Member, Workspace},
};

const FLAGS_DEFAULT: &str = "-Zmiri-strict-provenance -Zmiri-symbolic-alignment-check";

/// Runs the tests of every crate that asks for it.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let mut members = workspace.members_with("miri");
    if members.is_empty() {
        return Ok(Outcome::NothingToRun("nothing to run: no crate sets `miri = true`".into()));
    }
    if !has_tool(workspace, &["+nightly", "miri", "--version"]) {
        let remedy = "rustup toolchain install nightly --component miri,rust-src";
        return Ok(Outcome::MissingTool(remedy.into()));
    }
    // Miri interprets with one thread: the crates share the cores, those with the most text begin.
    let files = workspace.files()?;
    members.sort_by_cached_key(|member| Reverse(rust_bytes(workspace, &files, member)));
    let passed = for_each(&members, width(), |member| {
        let start = Instant::now();
        let label = format!("{}: ", member.package);
        let passed = run_tests_as(&label, command(workspace, member))?;
        println!("{}: {passed} tests in {:.0} s", member.package, start.elapsed().as_secs_f64());
        Ok(passed)
    })?;
    let passed = passed.iter().sum::<usize>();
    Ok(Outcome::Passed(format!("{passed} tests, {} crates", members.len())))
}

/// Length of the Rust files of a crate, its tests included.
fn rust_bytes(workspace: &Workspace, files: &[PathBuf], member: &Member) -> u64 {
    let own = files.iter().filter(|file| file.starts_with(&member.dir));
    let rust = own.filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
    rust.filter_map(|file| fs::metadata(workspace.root.join(file)).ok()).map(|it| it.len()).sum()
}

/// The unit tests of one crate whose names contain `filter`.
pub(super) fn unit_tests(workspace: &Workspace, member: &Member, filter: &str) -> Command {
    let mut command = command(workspace, member);
    command.args(["--lib", filter]);
    command
}

fn command(workspace: &Workspace, member: &Member) -> Command {
    let flags = env::var("MIRIFLAGS").unwrap_or_else(|_| FLAGS_DEFAULT.into());
    let own_flags = member.settings["miri-flags"].as_str().unwrap_or_default();
    let mut command = cargo(workspace, ["+nightly", "miri", "test", "-p", &member.package]);
    command.env("MIRIFLAGS", format!("{flags} {own_flags}").trim());
    command.env("CARGO_TARGET_DIR", workspace.target_dir("miri"));
    command
}
