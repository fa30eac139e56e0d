//! Steps that start cargo, and what they share.

pub(crate) mod asan;
pub(crate) mod ci;
pub(crate) mod fuzz;
pub(crate) mod loom;
pub(crate) mod miri;
pub(crate) mod mutants;
pub(crate) mod platforms;

use std::{
    env,
    ffi::OsStr,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::Workspace;

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

/// Sets `key` unless whoever called us has.
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

/// Runs `cargo test` in any of its forms and returns how many tests passed.
///
/// # Errors
///
/// If the command fails. All output appears as it comes, in either case.
fn run_tests(mut command: Command) -> Result<usize> {
    println!("{}", rendered(&command));
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| cannot_start(&command))?;
    let mut passed = 0;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.context("cannot read the output of the tests")?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            passed += tests_passed(&line).unwrap_or(0);
        }
    }
    std::io::stdout().flush()?;
    let status = child.wait()?;
    if !status.success() {
        bail!("`{}`: {status}", rendered(&command));
    }
    Ok(passed)
}

/// Reads libtest's `test result: ok. 3 passed; 0 failed; ...`.
fn tests_passed(line: &str) -> Option<usize> {
    let (_, rest) = line.split_once("test result: ok. ")?;
    rest.split(' ').next()?.parse().ok()
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
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn tests_are_counted_over_all_binaries() {
        let script = "echo 'test result: ok. 3 passed; 0 failed'; echo noise; \
                      echo 'test result: ok. 4 passed; 0 failed'";
        assert_eq!(run_tests(shell(script)).unwrap(), 7);
    }

    #[test]
    fn a_failing_command_is_an_error_whatever_it_printed() {
        assert!(run_tests(shell("echo 'test result: ok. 3 passed;'; exit 101")).is_err());
        assert!(run(shell("exit 1")).is_err());
    }

    #[test]
    fn a_command_is_rendered_as_typed() {
        let mut command = Command::new("cargo");
        command.args(["test", "-p", "x"]).env("RUSTFLAGS", "--cfg loom");
        assert_eq!(rendered(&command), "RUSTFLAGS='--cfg loom' cargo test -p x");
    }
}
