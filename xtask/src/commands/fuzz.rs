//! A short run of every fuzz target: long enough to catch a target that rots.
//!
//! Each starts from `fuzz/seeds/TARGET`, if it exists, and keeps no corpus; an input that
//! crashes stays in `fuzz/artifacts/TARGET`, and cargo-fuzz prints how to run it again.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
};

use anyhow::{Context, Result, ensure};

use super::{cargo, for_each, has_tool, rendered, run as run_command, width};
use crate::{step::Outcome, workspace::Workspace};

/// Seconds per target by default.
pub(crate) const SECONDS_DEFAULT: u32 = 10;

/// Runs every file of `fuzz/fuzz_targets` for `seconds`.
pub(crate) fn run(workspace: &Workspace, seconds: u32) -> Result<Outcome> {
    let targets = targets(&workspace.root.join("fuzz/fuzz_targets"))?;
    if targets.is_empty() {
        return Ok(Outcome::NothingToRun("nothing to run: no fuzz/fuzz_targets".into()));
    }
    if !has_tool(workspace, &["+nightly", "--version"]) {
        return Ok(Outcome::MissingTool("rustup toolchain install nightly".into()));
    }
    if !has_tool(workspace, &["fuzz", "--version"]) {
        return Ok(Outcome::MissingTool("cargo install --locked cargo-fuzz".into()));
    }
    run_command(cargo(workspace, ["+nightly", "fuzz", "build"]))?;
    // libFuzzer runs one thread: the targets share the cores.
    let executions = for_each(&targets, width(), |target| {
        let executions = fuzz(workspace, target, seconds)?;
        println!("{target}: {executions} executions");
        ensure!(executions > 0, "{target} executed nothing");
        Ok(executions)
    })?;
    let total = executions.iter().sum::<u64>();
    Ok(Outcome::Passed(format!("{total} executions of {} targets", targets.len())))
}

fn targets(dir: &Path) -> Result<Vec<String>> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let mut targets = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            targets.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    targets.sort();
    Ok(targets)
}

/// Returns how many inputs were tried.
fn fuzz(workspace: &Workspace, target: &str, seconds: u32) -> Result<u64> {
    let corpus = workspace.target_dir("fuzz-corpus").join(target);
    if corpus.exists() {
        fs::remove_dir_all(&corpus)?;
    }
    fs::create_dir_all(&corpus)?;
    let mut command = cargo(workspace, ["+nightly", "fuzz", "run", target]);
    command.arg(&corpus); // libFuzzer writes into the first corpus only
    let seeds = workspace.root.join("fuzz/seeds").join(target);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    command.arg("--").arg(format!("-max_total_time={seconds}")).arg("-print_final_stats=1");
    println!("{}", rendered(&command));
    let mut child = command.stderr(Stdio::piped()).spawn().context("cannot start cargo fuzz")?;
    let mut executions = 0;
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n') {
            let line = line.context("cannot read the output of cargo fuzz")?;
            let line = String::from_utf8_lossy(&line);
            executions = executed(&line).unwrap_or(executions);
            if !is_progress(&line) {
                eprintln!("{line}");
            }
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "`{}`: {status}", rendered(&command));
    fs::remove_dir_all(&corpus)?;
    Ok(executions)
}

fn executed(line: &str) -> Option<u64> {
    line.strip_prefix("stat::number_of_executed_units:")?.trim().parse().ok()
}

/// libFuzzer's `#8192 NEW cov: ...`, thousands of them.
fn is_progress(line: &str) -> bool {
    line.starts_with('#') || line.starts_with("\tNEW_FUNC") || line.contains("NEW_FUNC[")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_of_libfuzzer_are_read() {
        assert_eq!(executed("stat::number_of_executed_units: 4711"), Some(4711));
        assert_eq!(executed("stat::average_exec_per_sec:     12"), None);
    }

    #[test]
    fn a_tree_without_targets_has_none() {
        assert!(targets(Path::new("no/such/folder")).unwrap().is_empty());
    }
}
