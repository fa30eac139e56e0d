//! `cargo xtask lines`: how much code there is, by kind and by crate.
//!
//! A line counts if it holds a token of Rust and is no comment. Lines of a string that continues are not
//! counted.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::Result;

use super::{sizes::tests_line, source::RustFile, tree::Tree};
use crate::{step::Outcome, workspace::Workspace};

/// What code is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Product,
    Conformance,
    Measuring,
    Tools,
    Tests,
}

const KINDS: [(Kind, &str); 5] = [
    (Kind::Product, "product"),
    (Kind::Conformance, "conformance"),
    (Kind::Measuring, "measuring"),
    (Kind::Tools, "tools"),
    (Kind::Tests, "tests"),
];

/// Crates and files that measure.
const MEASURING: [&str; 6] = [
    "crates/bench",
    "crates/kv",
    "crates/measure",
    "crates/cli/src/bench.rs",
    "crates/cli/src/kv",
    "compare",
];

/// Prints a table of the files that git knows.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let tree = Tree::load(workspace)?;
    let counts = count(&tree);
    println!("| | {} |", KINDS.map(|(_, name)| name).join(" | "));
    println!("|---|{}", "---|".repeat(KINDS.len()));
    let mut sums = BTreeMap::new();
    for (name, by_kind) in &counts {
        println!("| {name} | {} |", cells(by_kind));
        for (kind, lines) in by_kind {
            *sums.entry(*kind).or_insert(0) += lines;
        }
    }
    println!("| **all** | {} |", cells(&sums));
    let of = |kind| sums.get(&kind).copied().unwrap_or(0);
    let code: usize = sums.values().sum::<usize>() - of(Kind::Tests);
    let permille = 1000 * of(Kind::Measuring) / code.max(1);
    let (share, tenth) = (permille / 10, permille % 10);
    Ok(Outcome::Passed(format!("measuring is {share}.{tenth} % of {code} lines without tests")))
}

fn cells(by_kind: &BTreeMap<Kind, usize>) -> String {
    let cell = |(kind, _)| by_kind.get(&kind).map_or(String::new(), ToString::to_string);
    KINDS.map(cell).join(" | ")
}

/// Lines by crate and kind.
fn count(tree: &Tree) -> BTreeMap<String, BTreeMap<Kind, usize>> {
    let mut counts: BTreeMap<String, BTreeMap<Kind, usize>> = BTreeMap::new();
    for file in tree.rust() {
        let by_kind = counts.entry(crate_of(&file.path)).or_default();
        let tests_from = tests_from(file);
        for line in code_lines(file) {
            let kind = if line < tests_from { kind_of(&file.path) } else { Kind::Tests };
            *by_kind.entry(kind).or_default() += 1;
        }
    }
    counts
}

fn crate_of(path: &Path) -> String {
    let mut parts = path.iter().map(|part| part.to_string_lossy());
    let first = parts.next().unwrap_or_default();
    if first == "crates" { parts.next().unwrap_or_default().into() } else { first.into() }
}

fn kind_of(path: &Path) -> Kind {
    let is_bench = path.iter().any(|part| part == "benches");
    if is_bench || MEASURING.iter().any(|place| path.starts_with(place)) {
        Kind::Measuring
    } else if path.starts_with("crates/conformance") {
        Kind::Conformance
    } else if path.starts_with("xtask") {
        Kind::Tools
    } else {
        Kind::Product
    }
}

/// The first line that is a test.
fn tests_from(file: &RustFile) -> usize {
    let is_test = file.path.starts_with("fuzz")
        || file.path.iter().any(|part| part == "tests" || part == "fuzzing")
        || file.path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests"));
    if is_test { 0 } else { tests_line(file).unwrap_or(usize::MAX) }
}

fn code_lines(file: &RustFile) -> BTreeSet<usize> {
    let lines: Vec<_> = file.text.lines().collect();
    let is_comment =
        |line: &usize| lines.get(line - 1).is_some_and(|text| text.trim_start().starts_with("//"));
    file.tokens.iter().map(|token| token.line).filter(|line| !is_comment(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_counted_without_comments_blanks_and_tests() {
        let code = "//! A.\n\n/// B.\nfn f() {\n    // C.\n    g(); // D.\n}\n\n#[cfg(test)]\nmod tests {\n    fn h() {}\n}\n";
        let tree = Tree::from([
            ("crates/a/src/lib.rs", code),
            ("crates/a/tests/b.rs", "fn t() {}\n"),
            ("crates/a/benches/c.rs", "fn m() {}\n"),
            ("crates/kv/src/lib.rs", "fn m() {}\n"),
            ("crates/conformance/src/lib.rs", "fn m() {}\n"),
        ]);
        let counts = count(&tree);
        let of = |name: &str| counts[name].clone();
        let expected = [(Kind::Product, 3), (Kind::Measuring, 1), (Kind::Tests, 5)];
        assert_eq!(of("a"), BTreeMap::from(expected));
        assert_eq!(of("kv"), BTreeMap::from([(Kind::Measuring, 1)]));
        assert_eq!(of("conformance"), BTreeMap::from([(Kind::Conformance, 1)]));
    }
}
