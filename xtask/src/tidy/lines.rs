//! `cargo xtask lines`: how much code there is, by kind and by crate.
//!
//! A line counts if it holds a token of Rust and is no comment. Lines of a string that continues are not
//! counted.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Result, bail};

use super::{sizes::tests_line, source::RustFile, tree::Tree};
use crate::{step::Outcome, workspace::Workspace};

/// The purpose of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Daemons, the libraries of programs, and the commands of operators.
    Product,
    /// eRPC and ScaleRPC, which programs can use, too.
    Protocols,
    /// Workloads, measurements, comparisons and their reports.
    Benchmarks,
    /// Code for comparisons with other protocols and libraries.
    Rivals,
    /// Clusters in virtual time, and models.
    Simulator,
    /// Stand-ins that tests run the product on: the suite of NICs, and the kernel's part of verbs.
    Rigs,
    /// Commands of developers on the tree.
    Tools,
    /// Tests and fuzz targets.
    Tests,
}

const KINDS: [(Kind, &str); 8] = [
    (Kind::Product, "product"),
    (Kind::Protocols, "eRPC, ScaleRPC"),
    (Kind::Benchmarks, "benchmarks"),
    (Kind::Rivals, "rivals"),
    (Kind::Simulator, "simulator"),
    (Kind::Rigs, "rigs"),
    (Kind::Tools, "tools"),
    (Kind::Tests, "tests"),
];

/// Kinds that no service links.
const LABORATORY: [Kind; 4] = [Kind::Benchmarks, Kind::Rivals, Kind::Simulator, Kind::Rigs];

/// Crates, folders and files that are no product.
const PLACES: [(&str, Kind); 14] = [
    ("lab", Kind::Benchmarks),
    ("crates/protocols", Kind::Protocols),
    ("crates/proto/src/erpc", Kind::Protocols),
    ("crates/proto/src/scalerpc", Kind::Protocols),
    ("lab/kv/src/ucp", Kind::Rivals),
    ("lab/kv/src/backend/ucx_am", Kind::Rivals),
    ("lab/kv/src/backend/protocol", Kind::Rivals),
    ("lab/sim", Kind::Simulator),
    ("lab/cli/src/sim", Kind::Simulator),
    ("lab/conformance", Kind::Rigs),
    ("lab/uverbs", Kind::Rigs),
    ("lab/preload", Kind::Rigs),
    ("lab/cli/src/uverbs.rs", Kind::Rigs),
    ("xtask", Kind::Tools),
];

/// Prints a table of the files that git knows.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let tree = Tree::load(workspace)?;
    if let Some((place, _)) = PLACES.iter().find(|(place, _)| !tree.contains(Path::new(place))) {
        bail!("{place} is gone: say in PLACES of xtask's lines.rs where its code is now");
    }
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
    let laboratory: usize = LABORATORY.into_iter().map(of).sum();
    let permille = 1000 * laboratory / code.max(1);
    let percent = format!("{}.{} %", permille / 10, permille % 10);
    Ok(Outcome::Passed(format!(
        "the laboratory has {laboratory} lines, {percent} of {code} lines without tests"
    )))
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
    match (first.as_ref(), parts.next()) {
        ("crates", Some(name)) => name.into(),
        ("lab", Some(name)) => format!("lab/{name}"),
        _ => first.into(),
    }
}

/// The kind of the innermost place that holds the file.
fn kind_of(path: &Path) -> Kind {
    if path.iter().any(|part| part == "benches") {
        return Kind::Benchmarks;
    }
    let places = PLACES.iter().filter(|(place, _)| path.starts_with(place));
    places.max_by_key(|(place, _)| place.len()).map_or(Kind::Product, |(_, kind)| *kind)
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
            ("lab/kv/src/lib.rs", "fn m() {}\n"),
            ("lab/conformance/src/lib.rs", "fn m() {}\n"),
            ("lab/kv/src/backend/ucx_am/mod.rs", "fn r() {}\n"),
            ("crates/proto/src/erpc/mod.rs", "fn r() {}\n"),
            ("lab/sim/src/lib.rs", "fn s() {}\n"),
            ("xtask/src/main.rs", "fn x() {}\n"),
        ]);
        let counts = count(&tree);
        let of = |name: &str| counts[name].clone();
        let expected = [(Kind::Product, 3), (Kind::Benchmarks, 1), (Kind::Tests, 5)];
        assert_eq!(of("a"), BTreeMap::from(expected));
        assert_eq!(of("lab/kv"), BTreeMap::from([(Kind::Benchmarks, 1), (Kind::Rivals, 1)]));
        assert_eq!(of("proto"), BTreeMap::from([(Kind::Protocols, 1)]));
        assert_eq!(of("lab/sim"), BTreeMap::from([(Kind::Simulator, 1)]));
        assert_eq!(of("xtask"), BTreeMap::from([(Kind::Tools, 1)]));
        assert_eq!(of("lab/conformance"), BTreeMap::from([(Kind::Rigs, 1)]));
    }
}
