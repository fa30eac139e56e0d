//! Tests that documents name exist: code spans that begin with `fault_` or `pitfall_`. One that ends with
//! `*` or `…` names at least one.

use std::collections::HashSet;

use super::{Finding, tree::Tree};

const PREFIXES: [&str; 2] = ["fault_", "pitfall_"];
const RULE: &str = "named-tests";

/// Judges every Markdown file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let functions = functions(tree);
    let exists = |name: &&str| match name.strip_suffix(['*', '…']) {
        Some(start) => functions.iter().any(|function| function.starts_with(start)),
        None => functions.contains(name),
    };
    let mut findings = Vec::new();
    for (path, text) in tree.documents() {
        for (index, line) in text.lines().enumerate() {
            for name in named(line).filter(|name| !exists(name)) {
                findings.push(Finding {
                    path: path.into(),
                    line: index + 1,
                    rule: RULE,
                    problem: format!("no test `{name}`"),
                    remedy: "name the test that proves it, or write one",
                });
            }
        }
    }
    findings
}

/// Names of all functions, those that macros make of generic ones included.
fn functions(tree: &Tree) -> HashSet<&str> {
    let names = tree.rust().iter().flat_map(|file| {
        let functions = file.tokens.windows(2).filter(|pair| pair[0].text == "fn");
        functions.map(|pair| pair[1].text.as_str())
    });
    names.collect()
}

/// Tests that a line names.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let spans = line.split('`').skip(1).step_by(2);
    spans.filter(|span| {
        let name = span.strip_suffix(['*', '…']).unwrap_or(span);
        PREFIXES.iter().any(|prefix| name.starts_with(prefix) && name != *prefix)
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_nobody_wrote_is_found() {
        let text = "| A1 | `fault_a1_here`, `pitfall_2_gone` |\n\
                    | `other_gone` | fault_x, `fault_`, `fault_…`, `fault_a1_…`, `fault_a1_*` |\n\
                    `fault_a2_*` and `fault_a1_there_…`";
        let tree = Tree::from([("docs/a.md", text), ("a.rs", "#[test]\nfn fault_a1_here() {}")]);
        let found = check(&tree);
        let found = found.iter().map(|f| (f.line, f.problem.as_str())).collect::<Vec<_>>();
        let gone = [
            (1, "no test `pitfall_2_gone`"),
            (3, "no test `fault_a2_*`"),
            (3, "no test `fault_a1_there_…`"),
        ];
        assert_eq!(found, gone);
    }
}
