//! One step of a run: its header, its outcome, and the table at the end.

use std::{
    env,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::libtest::{Failure, TestsFailed};

/// How a step that did not fail ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It ran and is content. The text is a measurement, such as a number of tests.
    Passed(String),
    /// The tree has nothing for this step: never a failure.
    NothingToRun(String),
    /// A tool is absent: a skip for a developer, a failure in CI. The text says how to get it.
    MissingTool(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

struct Row {
    name: &'static str,
    verdict: Verdict,
    elapsed: Duration,
    note: String,
    /// Tests that failed.
    failures: Vec<Failure>,
}

/// The steps run so far.
pub(crate) struct Report {
    rows: Vec<Row>,
    /// A missing tool is a failure.
    tools_required: bool,
}

impl Report {
    /// Reads the policy for missing tools from the variable `CI`.
    pub(crate) fn from_env() -> Self {
        Self::new(env::var_os("CI").is_some_and(|value| value == "true"))
    }

    fn new(tools_required: bool) -> Self {
        Self { rows: Vec::new(), tools_required }
    }

    /// Runs `step` to its end. A failure is recorded and does not stop the steps that follow.
    pub(crate) fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<Outcome>) {
        println!("\n── {name}");
        let start = Instant::now();
        let result = step();
        let elapsed = start.elapsed();
        let failures = failures_of(&result);
        let (verdict, note) = self.judge(result);
        match verdict {
            Verdict::Passed => println!("── {name}: passed in {}", seconds(elapsed)),
            Verdict::Failed => println!("── {name}: FAILED in {}: {note}", seconds(elapsed)),
            Verdict::Skipped => println!("── {name}: skipped: {note}"),
        }
        self.rows.push(Row { name, verdict, elapsed, note, failures });
    }

    fn judge(&self, result: Result<Outcome>) -> (Verdict, String) {
        match result {
            Ok(Outcome::Passed(note)) => (Verdict::Passed, note),
            Ok(Outcome::NothingToRun(note)) => (Verdict::Skipped, note),
            Ok(Outcome::MissingTool(note)) if self.tools_required => (Verdict::Failed, note),
            Ok(Outcome::MissingTool(note)) => (Verdict::Skipped, note),
            Err(error) => (Verdict::Failed, format!("{error:#}")),
        }
    }

    /// Whether no step failed.
    pub(crate) fn is_green(&self) -> bool {
        self.count(Verdict::Failed) == 0
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// Prints what failed tests said, one line per step, then the totals as the last line.
    pub(crate) fn print_summary(&self) {
        for row in &self.rows {
            for Failure { name, said } in &row.failures {
                println!("\n── {}: {name}\n{}", row.name, said.trim());
            }
        }
        println!();
        for row in &self.rows {
            let verdict = match row.verdict {
                Verdict::Passed => "passed",
                Verdict::Failed => "FAILED",
                Verdict::Skipped => "skipped",
            };
            let elapsed = seconds(row.elapsed);
            println!("{:<10} {verdict:<8} {elapsed:>9}  {}", row.name, row.note);
        }
        println!("\n{}", self.totals());
    }

    fn totals(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.count(Verdict::Passed),
            self.count(Verdict::Failed),
            self.count(Verdict::Skipped),
        )
    }
}

fn failures_of(result: &Result<Outcome>) -> Vec<Failure> {
    let failed = result.as_ref().err().and_then(|error| error.downcast_ref());
    failed.map_or_else(Vec::new, |TestsFailed { failures, .. }| failures.clone())
}

fn seconds(elapsed: Duration) -> String {
    format!("{:.1} s", elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    fn totals(tools_required: bool, result: Result<Outcome>) -> String {
        let mut report = Report::new(tools_required);
        report.run("step", || result);
        report.totals()
    }

    #[test]
    fn a_missing_tool_fails_only_in_ci() {
        let missing = || Ok(Outcome::MissingTool("install it".into()));
        assert_eq!(totals(false, missing()), "0 passed, 0 failed, 1 skipped");
        assert_eq!(totals(true, missing()), "0 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn a_failed_test_is_kept_for_the_summary() {
        let failure = Failure { name: "t".into(), said: "why".into() };
        let mut report = Report::new(true);
        let failed = TestsFailed { command: "cargo test".into(), failures: vec![failure.clone()] };
        report.run("step", || Err(failed.into()));
        assert!(!report.is_green());
        assert_eq!(report.rows[0].failures, [failure]);
    }

    #[test]
    fn nothing_to_run_never_fails() {
        let nothing = Ok(Outcome::NothingToRun(String::new()));
        assert_eq!(totals(true, nothing), "0 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn a_failed_step_turns_the_report_red_and_later_steps_still_run() {
        let mut report = Report::new(false);
        report.run("first", || Err(anyhow!("broken")));
        report.run("second", || Ok(Outcome::Passed(String::new())));
        assert!(!report.is_green());
        assert_eq!(report.totals(), "1 passed, 1 failed, 0 skipped");
    }
}
