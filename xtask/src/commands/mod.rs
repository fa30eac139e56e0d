//! Steps that start cargo, and what they share.

pub(crate) mod asan;
pub(crate) mod book;
pub(crate) mod ci;
pub(crate) mod deb;
pub(crate) mod fuzz;
pub(crate) mod loom;
pub(crate) mod miri;
pub(crate) mod mutants;
pub(crate) mod package;
pub(crate) mod platforms;
pub(crate) mod two_builds;

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Mutex,
    thread,
};

use anyhow::{Context, Result, ensure};

use crate::{
    libtest::{Tally, TestsFailed},
    step::Outcome,
    workspace::Workspace,
};

/// `cargo ARGUMENTS` in the root of the workspace.
fn cargo<S: AsRef<OsStr>>(
    workspace: &Workspace,
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    // Not $CARGO: only the rustup proxy understands `+nightly`.
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(&workspace.root);
    command
}

/// Whether `cargo ARGUMENTS` runs and succeeds: how a tool is probed for.
fn has_tool(workspace: &Workspace, arguments: &[&str]) -> bool {
    let mut probe = cargo(workspace, arguments);
    probe.stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// Sets `key` unless the caller's environment has it.
fn env_default(command: &mut Command, key: &str, value: &str) {
    if env::var_os(key).is_none() {
        command.env(key, value);
    }
}

/// Prints the command and runs it to its end.
fn run(mut command: Command) -> Result<()> {
    println!("{}", rendered(&command));
    let status = command.status().with_context(|| cannot_start(&command))?;
    ensure!(status.success(), "`{}`: {status}", rendered(&command));
    Ok(())
}

/// Writes the files of `commit` to the folder `into`, which is made anew.
fn export(workspace: &Workspace, commit: &str, into: &Path) -> Result<()> {
    if into.exists() {
        fs::remove_dir_all(into).context("cannot remove the sources that were there before")?;
    }
    fs::create_dir_all(into).context("cannot make a folder for the sources")?;
    let mut archive = Command::new("git");
    archive.args(["archive", commit]).current_dir(&workspace.root).stdout(Stdio::piped());
    let mut archive = archive.spawn().with_context(|| cannot_start(&archive))?;
    let mut unpack = Command::new("tar");
    unpack.args(["-x", "-C"]).arg(into);
    unpack.stdin(archive.stdout.take().context("git has no output")?);
    run(unpack)?;
    ensure!(archive.wait()?.success(), "git cannot archive `{commit}`");
    Ok(())
}

/// Runs `cargo test` in any of its forms and returns how many tests passed.
///
/// # Errors
///
/// If the command fails: [`TestsFailed`]. All output appears as it comes, in either case.
fn run_tests(command: Command) -> Result<usize> {
    run_tests_as("", command)
}

/// As [`run_tests`]; `label` stands before each line of output, where several run at a time.
fn run_tests_as(label: &str, mut command: Command) -> Result<usize> {
    println!("{}", rendered(&command));
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| cannot_start(&command))?;
    let mut tally = Tally::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.context("cannot read the output of the tests")?;
            let line = String::from_utf8_lossy(&line);
            println!("{label}{line}");
            tally.read(&line);
        }
    }
    std::io::stdout().flush()?;
    let status = child.wait()?;
    if status.success() {
        return Ok(tally.passed);
    }
    let command = format!("`{}`: {status}", rendered(&command));
    Err(TestsFailed { command, failures: tally.failures }.into())
}

/// As [`run_tests`], as the outcome of a step.
fn judge_tests(command: Command) -> Result<Outcome> {
    let passed = run_tests(command)?;
    Ok(Outcome::Passed(format!("{passed} tests")))
}

/// Jobs at a time of a step whose jobs use one core each: Miri and libFuzzer.
fn width() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(4))
}

/// Runs `job` on every item, `width` at a time, and returns the results in the order of the items.
///
/// # Errors
///
/// Every job runs, whatever happened to the others; the error names all that failed.
fn for_each<T: Sync, R: Send>(
    items: &[T],
    width: usize,
    job: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = Mutex::new(items.iter().enumerate());
    let results = Mutex::new(Vec::with_capacity(items.len()));
    thread::scope(|scope| {
        for _ in 0..width.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let taken = next.lock().expect("no job panics with the lock").next();
                    let Some((at, item)) = taken else { break };
                    let result = job(item);
                    results.lock().expect("no job panics with the lock").push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no job panics with the lock");
    results.sort_by_key(|(at, _)| *at);
    let mut failed = Vec::new();
    let mut done = Vec::with_capacity(results.len());
    for (_, result) in results {
        match result {
            Ok(result) => done.push(result),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(done)
}

/// The command as one would type it, with the variables that it sets.
fn rendered(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(key, value)| {
        Some(format!("{}='{}'", key.to_string_lossy(), value?.to_string_lossy()))
    });
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| word.to_string_lossy().into_owned());
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

fn cannot_start(command: &Command) -> String {
    format!("cannot start `{}`", rendered(command))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_test_that_fails_is_named_and_not_run_again() {
        let runs = env::temp_dir().join(format!("xtask-{}-runs", std::process::id()));
        let script = format!("echo >> {}; echo 'test t ... FAILED'; exit 101", runs.display());
        let error = judge_tests(shell(&script)).unwrap_err();
        let written = fs::read_to_string(&runs).unwrap();
        fs::remove_file(runs).unwrap();
        let TestsFailed { failures, .. } = error.downcast_ref().unwrap();
        assert_eq!((failures[0].name.as_str(), failures.len()), ("t", 1));
        assert_eq!(written.lines().count(), 1);
        assert!(judge_tests(shell("kill -9 $$")).is_err());
    }

    #[test]
    fn a_failing_command_is_an_error_whatever_it_printed() {
        assert!(run_tests(shell("echo 'test result: ok. 3 passed;'; exit 101")).is_err());
        assert!(run(shell("exit 1")).is_err());
    }

    #[test]
    fn every_job_runs_and_every_failure_is_named() {
        let doubled = for_each(&[1, 2, 3], 2, |number| Ok(number * 2)).unwrap();
        assert_eq!(doubled, [2, 4, 6]);
        let ran = Mutex::new(0);
        let error = for_each(&[1, 2, 3], 2, |number| {
            *ran.lock().unwrap() += 1;
            ensure!(number % 2 == 0, "{number} is odd");
            Ok(())
        });
        assert_eq!(*ran.lock().unwrap(), 3);
        assert_eq!(error.unwrap_err().to_string(), "1 is odd; 3 is odd");
    }

    #[test]
    fn a_command_is_rendered_as_typed() {
        let mut command = Command::new("cargo");
        command.args(["test", "-p", "x"]).env("RUSTFLAGS", "--cfg loom");
        assert_eq!(rendered(&command), "RUSTFLAGS='--cfg loom' cargo test -p x");
    }
}
