//! Runs the loom tests of one crate in the copy of the tree, until one fails.

use std::{
    fmt,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::super::{loom, miri, rendered};
use crate::workspace::{Member, Workspace};

/// A mutant may have more interleavings than the original: each test may take this much longer.
const SLOWER_MAX: u32 = 10;
/// And this much in any case.
const LIMIT_LEAST: Duration = Duration::from_secs(60);
/// For a build, and for the tests under Miri.
const LIMIT_OF_CARGO_SECONDS: u32 = 600;

/// The end of a mutant.
pub(super) enum Verdict {
    /// By this test.
    Killed(String),
    Survived,
    /// This test did not end in its time. It is no proof that the mutant is noticed: a model has
    /// a bounded number of steps, so all that takes time is the number of interleavings.
    Undecided(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed(test) => write!(f, "killed by {test}"),
            Self::Survived => f.write_str("SURVIVED"),
            Self::Undecided(test) => write!(f, "UNDECIDED, {test} takes too long"),
        }
    }
}

/// The tests of one crate, and how long they take unmutated.
pub(super) struct Judge<'w> {
    copy: &'w Workspace,
    member: &'w Member,
    /// Names, and the time that each may take; the quickest first.
    limits: Vec<(String, Duration)>,
}

impl<'w> Judge<'w> {
    /// # Errors
    ///
    /// If a test fails unmutated.
    pub(super) fn new(copy: &'w Workspace, member: &'w Member) -> Result<Self> {
        let mut judge = Self { copy, member, limits: Vec::new() };
        let mut times = Vec::new();
        for (name, path) in judge.build()?.context("the loom tests do not compile")? {
            let start = Instant::now();
            let verdict = judge.run(&name, path, Duration::MAX)?;
            ensure!(matches!(verdict, Verdict::Survived), "unmutated: {verdict}");
            times.push((start.elapsed(), name));
        }
        let is_sound = matches!(judge.miri()?, Verdict::Survived);
        ensure!(is_sound, "Miri is not there, or fails on {} unmutated", member.package);
        times.sort();
        let limit = |time: Duration| LIMIT_LEAST.max(time * SLOWER_MAX);
        judge.limits = times.into_iter().map(|(time, name)| (name, limit(time))).collect();
        Ok(judge)
    }

    /// Whether the tree compiles as it is.
    pub(super) fn builds(&self) -> Result<bool> {
        Ok(self.build()?.is_some())
    }

    /// Judges the tree as it is.
    ///
    /// # Errors
    ///
    /// If it does not compile, which proves nothing.
    pub(super) fn verdict(&self) -> Result<Verdict> {
        let tests = self.build()?.context("does not compile")?;
        for (name, limit) in &self.limits {
            let (_, path) =
                tests.iter().find(|(test, _)| test == name).context("a test is gone")?;
            let verdict = self.run(name, path.clone(), *limit)?;
            if !matches!(verdict, Verdict::Survived) {
                return Ok(verdict);
            }
        }
        self.miri()
    }

    /// Builds beside the copy, where a later run finds the dependencies compiled. Names and
    /// programs of the tests, or none if they do not compile.
    fn build(&self) -> Result<Option<Vec<(String, PathBuf)>>> {
        let mut command = self.timed(loom::command(self.copy, self.member));
        command.args(["--no-run", "--message-format=json"]);
        command.env("CARGO_INCREMENTAL", "1").env("CARGO_PROFILE_RELEASE_DEBUG", "0");
        let output = command.output().with_context(|| rendered(&command))?;
        let messages = String::from_utf8(output.stdout)?;
        let tests = messages.lines().filter_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            let program = message["executable"].as_str()?;
            Some((message["target"]["name"].as_str()?.to_string(), program.into()))
        });
        Ok(output.status.success().then(|| tests.collect()))
    }

    /// Runs a test program until it ends, one of its tests fails, or its time is up.
    fn run(&self, name: &str, program: PathBuf, limit: Duration) -> Result<Verdict> {
        let mut command = Command::new(program);
        // libtest and loom read the variables that cargo would pass on.
        command.envs(environment(&loom::command(self.copy, self.member)));
        command.current_dir(self.copy.root.join(&self.member.dir));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| rendered(&command))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let (failed, failure) = mpsc::channel();
        let reader = thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(test) = failed_test(&line) {
                    return drop(failed.send(test.to_string()));
                }
            }
        });
        let verdict = match failure.recv_timeout(limit) {
            Ok(test) => Verdict::Killed(format!("{name}, {test}")),
            Err(mpsc::RecvTimeoutError::Timeout) => Verdict::Undecided(name.into()),
            // An abort says no name.
            Err(mpsc::RecvTimeoutError::Disconnected) => match child.wait()?.success() {
                true => Verdict::Survived,
                false => Verdict::Killed(name.into()),
            },
        };
        child.kill()?;
        child.wait()?;
        reader.join().expect("the reader does not panic");
        Ok(verdict)
    }

    /// The verdict of Miri on the tests that the manifest names, if any.
    fn miri(&self) -> Result<Verdict> {
        let Some(filter) = self.member.settings["mutants-miri"].as_str() else {
            return Ok(Verdict::Survived);
        };
        let mut command = self.timed(miri::unit_tests(self.copy, self.member, filter));
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        let status = status.context("cannot start timeout(1)")?;
        Ok(match status.code() {
            Some(0) => Verdict::Survived,
            Some(EXIT_OF_TIMEOUT) => Verdict::Undecided(format!("Miri, {filter}")),
            _ => Verdict::Killed(format!("Miri, {filter}")),
        })
    }

    /// The same command under timeout(1), in the copy.
    fn timed(&self, command: Command) -> Command {
        let mut timed = Command::new("timeout");
        timed.arg(LIMIT_OF_CARGO_SECONDS.to_string());
        timed.arg(command.get_program()).args(command.get_args()).envs(environment(&command));
        timed.env("CARGO_TARGET_DIR", self.copy.root.with_file_name("build"));
        timed.current_dir(&self.copy.root);
        timed
    }
}

/// The exit code of timeout(1) after it had to end a command.
const EXIT_OF_TIMEOUT: i32 = 124;

fn environment(command: &Command) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    let variables = command.get_envs();
    variables.filter_map(|(key, value)| Some((key.into(), value?.into()))).collect()
}

/// Reads libtest's `test NAME ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_read_from_the_output() {
        assert_eq!(failed_test("test ring::wraps ... FAILED"), Some("ring::wraps"));
        assert_eq!(failed_test("test ring::wraps ... ok"), None);
        assert_eq!(failed_test("test result: FAILED. 0 passed; 1 failed;"), None);
    }
}
