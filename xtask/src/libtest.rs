//! The output of libtest: the number of tests that passed, the names of those that failed, and their output.

use std::fmt;

/// Lines kept of what a failed test said: its panic and the first frames.
const LINES_MAX: usize = 40;

/// A test that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Its path within its crate.
    pub(crate) name: String,
    /// Its output, its panic included.
    pub(crate) said: String,
}

/// The output of one or more test executables, read line by line.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failures: Vec<Failure>,
    /// The failed test whose output the next lines are, and how many of its lines are kept.
    section: Option<(usize, usize)>,
}

impl Tally {
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(passed) = tests_passed(line) {
            self.passed += passed;
        } else if let Some(name) = failed_test(line) {
            self.failures.push(Failure { name: name.into(), said: String::new() });
        } else if let Some(name) = section_of(line) {
            let at = self.failures.iter().rposition(|failure| failure.name == name);
            self.section = at.map(|at| (at, 0));
        } else if line == "failures:" {
            self.section = None;
        } else if let Some((at, lines)) = self.section.as_mut().filter(|(_, n)| *n < LINES_MAX) {
            *lines += 1;
            self.failures[*at].said += line;
            self.failures[*at].said.push('\n');
        }
    }
}

/// A run of tests that failed.
#[derive(Debug)]
pub(crate) struct TestsFailed {
    /// The command and how it ended.
    pub(crate) command: String,
    /// The tests that failed. Empty if no test was reached, or an executable was killed.
    pub(crate) failures: Vec<Failure>,
}

impl fmt::Display for TestsFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.command)?;
        let names = names(&self.failures);
        if names.is_empty() { Ok(()) } else { write!(f, ", in {names}") }
    }
}

impl std::error::Error for TestsFailed {}

/// The names of the tests, separated by commas.
pub(crate) fn names(failures: &[Failure]) -> String {
    let names = failures.iter().map(|failure| failure.name.as_str());
    names.collect::<Vec<_>>().join(", ")
}

/// Reads `test result: ok. 3 passed; 0 failed; ...`; a failed executable counts too.
fn tests_passed(line: &str) -> Option<usize> {
    let (_, rest) = line.split_once("test result: ")?;
    let (_, rest) = rest.split_once(". ")?;
    rest.split(' ').next()?.parse().ok()
}

/// Reads `test NAME ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(name.strip_suffix(" - should panic").unwrap_or(name))
}

/// Reads `---- NAME stdout ----`.
fn section_of(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "test good ... ok\ntest a::bad ... FAILED\n\nfailures:\n\n\
        ---- a::bad stdout ----\n\nthread 'a::bad' panicked at x.rs:1:1:\ntoo few\n\n\n\
        failures:\n    a::bad\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n";

    fn tally(output: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.read(line));
        tally
    }

    #[test]
    fn a_failed_test_is_named_with_what_it_said() {
        let tally = tally(OUTPUT);
        assert_eq!((tally.passed, tally.failures.len()), (1, 1));
        assert_eq!(tally.failures[0].name, "a::bad");
        assert!(tally.failures[0].said.contains("too few"), "{tally:?}");
        assert!(!tally.failures[0].said.contains("    a::bad"), "{tally:?}");
    }

    #[test]
    fn tests_are_counted_over_all_executables() {
        let output =
            "test result: ok. 3 passed; 0 failed\nnoise\ntest result: ok. 4 passed; 0 failed";
        assert_eq!(tally(output).passed, 7);
    }

    #[test]
    fn what_a_test_says_is_bounded() {
        let output = format!("test t ... FAILED\n---- t stdout ----\n{}", "line\n".repeat(1000));
        assert_eq!(tally(&output).failures[0].said.lines().count(), LINES_MAX);
    }

    #[test]
    fn an_error_names_the_command_and_the_tests() {
        let error = TestsFailed {
            command: "`cargo test`: exit status: 101".into(),
            failures: tally(OUTPUT).failures,
        };
        assert_eq!(error.to_string(), "`cargo test`: exit status: 101, in a::bad");
    }
}
