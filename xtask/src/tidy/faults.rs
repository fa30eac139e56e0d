//! The table of faults is complete: each code that the name of a test cites has a row in `docs/faults.md`, and each
//! row has such a test, or says why it has none.
//!
//! `fault_a4_a6_…` cites A4 and A6, `pitfall_09_…` cites P9.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::{Finding, source::RustFile, tree::Tree};

const DOCUMENT: &str = "docs/faults.md";

/// The words of a row without a test.
const REASON: &str = "No test:";

const RULE: &str = "faults";

/// Compares the rows of the document with the names of tests.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(Path::new(DOCUMENT)) else { return Vec::new() };
    let rows: BTreeMap<_, _> = (1..).zip(text.lines()).filter_map(row).collect();
    let mut cited = BTreeSet::new();
    let mut findings = Vec::new();
    for file in tree.rust() {
        for (line, code) in cited_codes(file) {
            if !rows.contains_key(&code) {
                findings.push(Finding {
                    path: file.path.clone(),
                    line,
                    rule: RULE,
                    problem: format!("{DOCUMENT} has no row {code}"),
                    remedy: "describe the fault there, or cite another one",
                });
            }
            cited.insert(code);
        }
    }
    let untested = rows.iter().filter(|(code, row)| !row.has_reason && !cited.contains(*code));
    findings.extend(untested.map(|(code, row)| Finding {
        path: DOCUMENT.into(),
        line: row.line,
        rule: RULE,
        problem: format!("no test cites {code}"),
        remedy: "write one, or say `No test:` and why",
    }));
    findings
}

struct Row {
    /// From 1.
    line: usize,
    has_reason: bool,
}

/// The code of a row of a table, if the line is one.
fn row((line, text): (usize, &str)) -> Option<(String, Row)> {
    let (code, _) = text.strip_prefix("| ")?.split_once(" |")?;
    let is_code = code.starts_with(|c: char| c.is_ascii_uppercase()) && is_code(code);
    is_code.then(|| (code.to_owned(), Row { line, has_reason: text.contains(REASON) }))
}

/// One letter and a number of up to two digits.
fn is_code(word: &str) -> bool {
    let digits = word.get(1..).unwrap_or_default();
    word.starts_with(|c: char| c.is_ascii_alphabetic())
        && (1..=2).contains(&digits.len())
        && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Codes in names of functions, with their lines.
fn cited_codes(file: &RustFile) -> impl Iterator<Item = (usize, String)> {
    let names = file.tokens.windows(2).filter(|pair| pair[0].text == "fn").map(|pair| &pair[1]);
    names.flat_map(|name| codes_of(&name.text).into_iter().map(|code| (name.line, code)))
}

fn codes_of(name: &str) -> Vec<String> {
    if let Some(rest) = name.strip_prefix("fault_") {
        return rest.split('_').take_while(|word| is_code(word)).map(str::to_uppercase).collect();
    }
    let number = name.strip_prefix("pitfall_").and_then(|rest| rest.split('_').next());
    let number = number.and_then(|number| number.parse::<u32>().ok());
    number.map(|number| format!("P{number}")).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(document: &str, code: &str) -> Vec<(usize, String)> {
        let found = check(&Tree::from([(DOCUMENT, document), ("crates/a/tests/b.rs", code)]));
        found.into_iter().map(|finding| (finding.line, finding.problem)).collect()
    }

    #[test]
    fn a_code_without_a_row_is_found() {
        let code = "fn fault_a1_b2_x() {}\nfn pitfall_09_y() {}\nfn fault_word() {}";
        let document = "| A1 | x | y |\n";
        let expected = [(1, "docs/faults.md has no row B2"), (2, "docs/faults.md has no row P9")];
        let expected = expected.map(|(line, problem)| (line, problem.to_owned()));
        assert_eq!(found(document, code), expected);
    }

    #[test]
    fn a_row_needs_a_test_or_a_reason() {
        let document = "| code | x |\n|---|---|\n| A1 | x |\n| C12 | y |\n| P9 | z |\n\
                        | E9 | No test: why |\n| ABC1 | no code |\n";
        let code = "fn fault_a1_a_b_c() {}\nfn pitfall_9_64_peers() {}";
        assert_eq!(found(document, code), [(4, "no test cites C12".to_owned())]);
        assert_eq!(found("", "fn g() {}"), []);
    }
}
