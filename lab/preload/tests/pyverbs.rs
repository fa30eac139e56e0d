//! rdma-core's own tests on the software NIC: an outside judge. Debian's package `python3-pyverbs` installs them; in CI it has
//! to be there. [`run.py`](pyverbs/run.py) starts them, and writes a line for each.
//!
//! Each test passes, or is skipped for a reason of [`skips.txt`](pyverbs/skips.txt), or is in
//! [`absent.txt`](pyverbs/absent.txt) with the feature that it needs. A test of that list that does not fail any more has to
//! leave it.
#![cfg(not(any(loom, miri)))]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use uverbs::{
    launch::LaunchFiles,
    matrix::{Running, new_fabric},
    process::FABRIC_ENV,
};
use verbs::LinkLayer;

/// Where the package puts the tests, and the interpreter that finds its modules.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";
const PYTHON: &str = "/usr/bin/python3";
const MODULES: &str = "/usr/lib/python3/dist-packages/pyverbs";

/// All of them take seconds, and minutes where many others want the cores.
const PATIENCE: Duration = Duration::from_secs(900);

/// Tests that pass at least: what stopped working and says that it is not supported would be skipped.
const PASSES_MIN: usize = 98;

/// Runs of a test that has failed.
const RUNS_MORE: usize = 2;

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

fn is_installed() -> bool {
    let is_there = [TESTS, PYTHON, MODULES].iter().all(|path| Path::new(path).exists());
    let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(is_there || !is_ci, "install python3-pyverbs");
    is_there
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pyverbs")
}

/// Lines `KEY = WHY` of a committed list.
fn list(name: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(folder().join(name)).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let split = |line: &str| {
        let (key, why) = line.split_once(" = ").unwrap_or_else(|| panic!("{name}: {line}"));
        (key.to_owned(), why.to_owned())
    };
    lines.map(split).collect()
}

/// Outcomes by test, and the test that has begun and not ended.
fn parse(text: &str) -> (BTreeMap<String, Outcome>, Option<String>) {
    let mut outcomes = BTreeMap::new();
    let mut begun = None;
    for line in text.lines() {
        if let Some(test) = line.strip_prefix("start tests.") {
            begun = Some(format!("tests.{test}"));
            continue;
        }
        let mut words = line.splitn(3, ' ');
        let (Some(test), Some(verdict)) = (words.next(), words.next()) else { continue };
        if !test.starts_with("tests.") {
            continue;
        }
        let reason = words.next().unwrap_or_default().to_owned();
        let outcome = match verdict {
            "pass" => Outcome::Passed,
            "skip" => Outcome::Skipped(reason),
            "fail" => Outcome::Failed(reason),
            _ => continue,
        };
        if begun.as_deref() == Some(test) {
            begun = None;
        }
        outcomes.insert(test.to_owned(), outcome);
    }
    (outcomes, begun)
}

/// What is wrong with the outcomes.
fn judge(
    outcomes: &BTreeMap<String, Outcome>,
    absent: &BTreeMap<String, String>,
    skips: &BTreeMap<String, String>,
) -> Vec<String> {
    let is_known = |reason: &String| skips.keys().any(|known| reason.contains(known.as_str()));
    let wrong = outcomes.iter().filter_map(|(test, outcome)| match outcome {
        Outcome::Failed(reason) if !absent.contains_key(test) => {
            Some(format!("{test} fails: {reason}"))
        }
        Outcome::Passed | Outcome::Skipped(_) if absent.contains_key(test) => {
            Some(format!("{test} does not fail any more: take it out of absent.txt ({outcome:?})"))
        }
        Outcome::Skipped(reason) if !is_known(reason) => {
            Some(format!("{test} is skipped for a reason that skips.txt lacks: {reason}"))
        }
        _ => None,
    });
    wrong.collect()
}

/// Runs tests, all if none is named: what they write, once they have ended in good order.
fn run_tests(stage: &LaunchFiles, scratch: &Path, names: &[String]) -> BTreeMap<String, Outcome> {
    let mut command = stage.command(PYTHON.as_ref());
    command.arg(folder().join("run.py")).arg(TESTS).arg(scratch).args(names);
    command.env(FABRIC_ENV, new_fabric()).env("PYTHONDONTWRITEBYTECODE", "1");
    let mut running = Running::start(command).unwrap();
    let ended = running.end(Instant::now() + PATIENCE);
    running.kill();
    let text = running.text();
    let (outcomes, begun) = parse(&text);
    let last: Vec<&str> = text.lines().rev().take(40).collect();
    assert!(ended.is_ok(), "{begun:?} has begun: {ended:?}\n{last:#?}");
    outcomes
}

/// Runs all tests on a link. What fails runs again by itself: some tests have races, which a busy machine loses.
fn check(link: LinkLayer) {
    let name = format!("copyrpc-pyverbs-{link:?}-{}", std::process::id());
    let scratch = std::env::temp_dir().join(name);
    fs::create_dir_all(&scratch).unwrap();
    let stage = LaunchFiles::on(link).unwrap();
    let absent = list("absent.txt");
    let mut outcomes = run_tests(&stage, &scratch, &[]);
    for _ in 0..RUNS_MORE {
        let fails = |(test, outcome): (&String, &Outcome)| {
            let is_new = matches!(outcome, Outcome::Failed(_)) && !absent.contains_key(test);
            is_new.then(|| test.clone())
        };
        let again: Vec<String> = outcomes.iter().filter_map(fails).collect();
        if again.is_empty() {
            break;
        }
        eprintln!("{link:?}: again, by itself: {again:?}");
        outcomes.extend(run_tests(&stage, &scratch, &again));
    }
    fs::remove_dir_all(&scratch).unwrap();
    let wrong = judge(&outcomes, &absent, &list("skips.txt"));
    assert!(wrong.is_empty(), "{link:?}\n{}", wrong.join("\n"));
    let passed = outcomes.values().filter(|outcome| **outcome == Outcome::Passed).count();
    eprintln!("{link:?}: {passed} of {} tests pass", outcomes.len());
    assert!(passed >= PASSES_MIN, "{link:?}: only {passed} of {} pass", outcomes.len());
}

/// One link after the other: their tests take both cores.
#[test]
fn tests_of_rdma_core_pass_or_name_what_is_absent() {
    if !is_installed() {
        eprintln!("skipped: rdma-core's tests, which are in python3-pyverbs");
        return;
    }
    check(LinkLayer::InfiniBand);
    check(LinkLayer::Ethernet);
}

#[test]
fn a_failure_a_stale_row_and_a_strange_skip_are_told() {
    let text = "start tests.a\ntests.a pass\nstart tests.b\ntests.b skip No caps\nnoise\n\
        start tests.c\ntests.c fail Error: 5\nstart tests.d\ntests.d fail Error\nstart tests.e\n";
    let (outcomes, begun) = parse(text);
    assert_eq!((outcomes.len(), begun.as_deref()), (4, Some("tests.e")));
    let rows = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), String::new())).collect();
    let wrong = judge(&outcomes, &rows(&["tests.a", "tests.d"]), &rows(&["ODP"]));
    assert_eq!(wrong.len(), 3, "{wrong:?}");
    for (line, said) in
        wrong.iter().zip(["tests.a does not", "tests.b is skipped", "tests.c fails"])
    {
        assert!(line.starts_with(said), "{line}");
    }
    assert!(judge(&outcomes, &rows(&["tests.c", "tests.d"]), &rows(&["No caps"])).is_empty());
}
