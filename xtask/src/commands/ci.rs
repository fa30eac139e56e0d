//! All steps, cheap ones first. CI and a developer run the same.

use std::{env, path::Path, process::Command};

use anyhow::{Result, ensure};

use super::{
    asan, book, cargo, deb, fuzz, has_tool, judge_tests, loom, miri, mutants, package, platforms,
    run as run_command, run_tests, two_builds,
};
use crate::{
    step::{Outcome, Report},
    tidy,
    workspace::Workspace,
};

/// Steps that tell what a change can break, within a quarter of an hour on two cores. Each runs even if an earlier one
/// failed.
pub(crate) fn check(workspace: &Workspace, report: &mut Report) {
    report.run("fmt", || simple(workspace, &["fmt", "--all", "--check"]));
    report.run("tidy", || tidy::run(workspace));
    report.run("package", || package::run(workspace));
    report.run("deny", || deny(workspace));
    report.run("clippy", || clippy(workspace));
    report.run("doc", || doc(workspace));
    report.run("book", || book::run(workspace, None));
    report.run("test", || test(workspace));
}

/// The same, then slower judges.
pub(crate) fn run(workspace: &Workspace, report: &mut Report, full: bool) {
    check(workspace, report);
    judges(workspace, report, full);
}

/// Judges that are slower than the steps of `check`; `full` adds those that take minutes per crate.
pub(crate) fn judges(workspace: &Workspace, report: &mut Report, full: bool) {
    report.run("slow", || slow_tests(workspace));
    report.run("benches", || benches(workspace));
    report.run("seeds", || seeds(workspace));
    report.run("platforms", || platforms::run(workspace));
    report.run("loom", || loom::run(workspace));
    report.run("miri", || miri::run(workspace));
    report.run("asan", || asan::run(workspace));
    report.run("fuzz", || fuzz::run(workspace, fuzz::SECONDS_DEFAULT));
    if full {
        report.run("deb", || deb::run(workspace));
        report.run("two-builds", || two_builds::run(workspace, "HEAD^"));
        report.run("long", || long_tests(workspace));
        report.run("compare", || compare(workspace));
        report.run("rxe", || soft_roce(workspace));
        report.run("mutants", || mutants::run(workspace, &[]));
    }
}

fn simple(workspace: &Workspace, arguments: &[&str]) -> Result<Outcome> {
    run_command(cargo(workspace, arguments))?;
    Ok(Outcome::Passed(String::new()))
}

fn clippy(workspace: &Workspace) -> Result<Outcome> {
    simple(workspace, &["clippy", "--workspace", "--all-targets", "--", "-Dwarnings"])
}

fn doc(workspace: &Workspace) -> Result<Outcome> {
    let arguments = ["doc", "--workspace", "--no-deps", "--document-private-items"];
    let mut command = cargo(workspace, arguments);
    command.env("RUSTDOCFLAGS", "-Dwarnings");
    run_command(command)?;
    Ok(Outcome::Passed(String::new()))
}

fn test(workspace: &Workspace) -> Result<Outcome> {
    judge_tests(cargo(workspace, ["test", "--workspace", "--no-fail-fast"]))
}

/// Seeds of each workload.
const SWARMS: [(&str, &str); 5] = [
    ("drawn", "1000"),
    ("full-rings", "100"),
    ("all-sleep", "100"),
    ("incast", "100"),
    ("direct", "100"),
];

/// Features that put a mistake in, which seeds find.
const MISTAKES: [&str; 2] = ["early-credit", "late-taken"];

/// Small clusters in virtual time, with faults that their seeds draw: each runs twice, and both
/// times has to go the same way. Then some with a mistake in them, which has to be found.
fn seeds(workspace: &Workspace) -> Result<Outcome> {
    // Of the whole workspace, as the tests have built it: with `-p` its features are others.
    let build =
        ["build", "--quiet", "--workspace", "--bin", "copyrpc-lab", "--target-dir", "target"];
    run_command(cargo(workspace, build))?;
    for (workload, seeds) in SWARMS {
        let mut swarm = Command::new(workspace.target_dir("debug").join("copyrpc-lab"));
        swarm.current_dir(&workspace.root).args(["sim", "cluster", "--twice"]);
        swarm.args(["--nodes", "3", "--clients", "2", "--for", "200us"]);
        swarm.args(["--workload", workload, "--seeds", seeds]);
        run_command(swarm)?;
    }
    let mut found = 0;
    for feature in MISTAKES {
        let mistake = ["test", "-p", "copyrpc-sim", "--features", feature, "--test", "mistake"];
        found += run_tests(cargo(workspace, mistake))?;
    }
    Ok(Outcome::Passed(format!("1400 seeds, {found} mistakes found")))
}

/// Ignored tests whose names end in `_slow`: programs of others, and measurements that documents state.
fn slow_tests(workspace: &Workspace) -> Result<Outcome> {
    let arguments = ["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"];
    let mut command = cargo(workspace, arguments);
    command.args(["_slow", "--", "--ignored"]);
    let passed = run_tests(command)?;
    ensure!(passed > 0, "no test has a name that ends in `_slow`");
    Ok(Outcome::Passed(format!("{passed} tests")))
}

/// Steps that take too long for every change: ignored tests whose names end in `_long`, the scenarios of
/// the conformance suite that wrap 24-bit counters, a billion messages, and minutes of storm.
fn long_tests(workspace: &Workspace) -> Result<Outcome> {
    let arguments = ["test", "--workspace", "--no-fail-fast", "_long", "--", "--ignored"];
    let ignored = run_tests(cargo(workspace, arguments))?;
    let suite = ["test", "--release", "-p", "copyrpc-softnic", "--test", "conformance"];
    let mut wraps = cargo(workspace, suite);
    wraps.args(["--", "cq_index_wraps_at_24_bits"]).env("CONFORMANCE_LONG", "1");
    let stress = ["test", "--release", "-p", "copyrpc-rpc", "--test", "stress", "--", "--ignored"];
    let storms = ["test", "-p", "copyrpc-cli", "--test", "daemons", "storm"];
    let mut storms = cargo(workspace, storms);
    storms.env("COPYRPC_TEST_STORM_S", "120");
    let passed =
        ignored + run_tests(wraps)? + run_tests(cargo(workspace, stress))? + run_tests(storms)?;
    Ok(Outcome::Passed(format!("{passed} tests")))
}

/// The conformance suite on verbs of a real kernel, in an emulated machine.
fn soft_roce(workspace: &Workspace) -> Result<Outcome> {
    let folder = env::var_os("RXE_VM_DIR").unwrap_or_else(|| "/var/tmp/copyrpc-rxe".into());
    if !Path::new(&folder).join("initrd").exists() {
        return Ok(Outcome::MissingTool("sudo tests/rxe/run setup".into()));
    }
    let mut suite = Command::new(workspace.root.join("tests/rxe/run"));
    suite.arg("conformance").current_dir(&workspace.root);
    let passed = run_tests(suite)?;
    let mut daemons = Command::new(workspace.root.join("tests/rxe/run"));
    daemons.arg("daemons").current_dir(&workspace.root);
    run_command(daemons)?;
    Ok(Outcome::Passed(format!("{passed} tests, daemons under faults")))
}

/// Runs every benchmark once, in its smoke mode, so that none can rot.
fn benches(workspace: &Workspace) -> Result<Outcome> {
    if !workspace.members.iter().any(|member| member.has_benches) {
        return Ok(Outcome::NothingToRun("nothing to run: no crate has a benchmark".into()));
    }
    simple(workspace, &["test", "--workspace", "--bench", "*"])
}

/// Tests of `compare`, a workspace of its own, and a short run of the key-value workload over each rival that
/// is installed, in which every answer is checked.
fn compare(workspace: &Workspace) -> Result<Outcome> {
    let manifest = ["--manifest-path", "lab/compare/Cargo.toml"];
    let tests = [&["test"], &manifest[..]].concat();
    let passed = run_tests(cargo(workspace, tests))?;
    let smoke = [&["run", "--quiet"], &manifest[..], &["--", "kv", "0"]].concat();
    run_command(cargo(workspace, smoke))?;
    Ok(Outcome::Passed(format!("{passed} tests")))
}

/// Licenses, sources and versions of dependencies, and that none needs a C compiler.
fn deny(workspace: &Workspace) -> Result<Outcome> {
    if !has_tool(workspace, &["deny", "--version"]) {
        return Ok(Outcome::MissingTool("cargo install --locked cargo-deny".into()));
    }
    simple(workspace, &["deny", "--workspace", "check", "bans", "licenses", "sources"])
}
